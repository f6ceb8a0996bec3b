// The outline of a mesh on screen: which edges belong to it, and which pairs of neighbouring pixels they may cross.
#pragma once

#include "triangle_facing.h"

namespace diffrender {

// One bit per edge of every triangle: the outline passes there, because the edge is a border or the two triangles at it
// show different sides. The sign of one determinant per triangle decides, so that both triangles of an edge agree.
template <class scalar_t>
struct OutlineEdges {
  RasterMesh<scalar_t> mesh;
  const int32_t* topology;  // [T, 3] twin corner across each edge, -1 = border
  const int8_t* facing;     // [B or 1, T]; see TriangleFacing
  uint8_t* silhouette;      // [B or 1, T]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for_each_index(begin, end, mesh.triangle_count, [&](int64_t i, int64_t item) {
      const int32_t triangle = static_cast<int32_t>(i - item * mesh.triangle_count);
      silhouette[i] = facing[i] == 0 ? uint8_t(0) : bits(item, triangle, facing + item * mesh.triangle_count);
    });
  }

  DR_HD uint8_t bits(int64_t item, int32_t triangle, const int8_t* sides) const {
    const int32_t corner_count = 3 * mesh.triangle_count;
    const int own = sides[triangle];
    uint32_t result = 0;
    for (int k = 0; k < 3; ++k) {
      const int32_t corner = 3 * triangle + k, twin = topology[corner];
      bool outline = static_cast<uint32_t>(twin) >= static_cast<uint32_t>(corner_count);
      if (!outline) {
        const int other = sides[twin / 3];
        outline = other != 0 && other == (same_direction(mesh, item, corner, twin) ? own : -own);
      }
      result |= outline ? 1u << k : 0u;
    }
    return static_cast<uint8_t>(result);
  }
};

// Marks the pixel pairs that an outline edge may cross. Generous: a mark only means that the pair is worth a look.
template <class scalar_t>
struct MarkCrossedPairs {
  RasterMesh<scalar_t> mesh;
  Viewport<scalar_t> viewport;
  const uint8_t* silhouette;   // [B or 1, T]
  uint8_t* crossed;            // [2, B, H, W] pairs to the right, pairs downwards; zero on entry
  int64_t pixel_count;         // B * H * W
  int64_t triangles_per_item;  // T, also where the batch shares the outline

  // In pixels. Covers kCrossingSlack of antialias.h and the rounding of the projection.
  static constexpr double kMargin = 0.125;

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for_each_index(begin, end, triangles_per_item, [&](int64_t i, int64_t item) {
      const int32_t triangle = static_cast<int32_t>(i - item * triangles_per_item);
      const uint32_t bits = silhouette[mesh.item_stride == 0 ? triangle : i];
      if (bits == 0) return;
      int32_t index[3];
      mesh.indices(triangle, index);  // bits are only set for valid triangles
      for (int k = 0; k < 3; ++k) {
        if ((bits >> k & 1) == 0) continue;
        mark_edge(item, mesh.vertex(item, index[(k + 1) % 3]), mesh.vertex(item, index[(k + 2) % 3]));
      }
    });
  }

  // In double precision: the far end of an edge that passes the eye lies far outside of the image.
  DR_HD void mark_edge(int64_t item, Vec4<scalar_t> first, Vec4<scalar_t> second) const {
    if (!is_finite(first) || !is_finite(second) || (first.w <= 0 && second.w <= 0)) return;
    Vec3<double> a{first.x, first.y, first.w}, b{second.x, second.y, second.w};
    if (a.z <= 0) a = cut(b, a);
    if (b.z <= 0) b = cut(a, b);
    const Vec2<double> start = to_pixels(a), stop = to_pixels(b);
    mark_lines(item, start.x, start.y, stop.x, stop.y, viewport.width, viewport.height, 1, viewport.width, crossed);
    mark_lines(item, start.y, start.x, stop.y, stop.x, viewport.height, viewport.width, viewport.width, 1,
               crossed + pixel_count);
  }

  // Shortens an edge (x, y, w) to the part that is in front of the eye, up to a last millionth of w.
  DR_HD static Vec3<double> cut(Vec3<double> front, Vec3<double> behind) {
    const double t = (front.z - front.z * 0x1p-20) / (front.z - behind.z);
    return {front.x + t * (behind.x - front.x), front.y + t * (behind.y - front.y), front.z * 0x1p-20};
  }

  // Pixel coordinates in which centres are whole numbers.
  DR_HD Vec2<double> to_pixels(Vec3<double> v) const {
    return {(v.x / v.z) * viewport.half_width + viewport.half_width - 0.5,
            viewport.half_height - (v.y / v.z) * viewport.half_height - 0.5};
  }

  // For every line of centres v = integer that the edge (u0, v0)-(u1, v1) meets: the pairs along u around the crossing.
  DR_HD void mark_lines(int64_t item, double u0, double v0, double u1, double v1, int32_t size_u, int32_t size_v,
                        int64_t stride_u, int64_t stride_v, uint8_t* marks) const {
    const double low = v0 < v1 ? v0 : v1, high = v0 < v1 ? v1 : v0;
    const double left = u0 < u1 ? u0 : u1, right = u0 < u1 ? u1 : u0;
    if (!(high >= -kMargin && low <= size_v - 1 + kMargin && right >= -kMargin && left <= size_u - 1 + kMargin)) return;
    const double first = low - kMargin, last = high + kMargin;
    const int32_t begin = first > 0 ? static_cast<int32_t>(std::ceil(first)) : 0;
    const int32_t end = last < size_v - 1 ? static_cast<int32_t>(std::floor(last)) : size_v - 1;
    const double slope = high > low ? (u1 - u0) / (v1 - v0) : double(0);
    // An edge nearly along a line of centres crosses it anywhere within the margin: its whole length then counts.
    const double spread = kMargin * (1 + (slope < 0 ? -slope : slope));
    for (int32_t v = begin; v <= end; ++v) {
      const double u = u0 + slope * (v - v0);
      const double from = high - low > kMargin ? u - spread : left - kMargin;
      const double to = high - low > kMargin ? u + spread : right + kMargin;
      mark_pairs(item, from > left - kMargin ? from : left - kMargin, to < right + kMargin ? to : right + kMargin, v,
                 size_u, stride_u, stride_v, marks);
    }
  }

  DR_HD void mark_pairs(int64_t item, double from, double to, int32_t v, int32_t size_u, int64_t stride_u,
                        int64_t stride_v, uint8_t* marks) const {
    if (!(to >= 0) || !(from <= size_u - 1)) return;
    const int32_t begin = from > 0 ? static_cast<int32_t>(from) : 0;
    const int32_t last = to < size_u - 1 ? static_cast<int32_t>(to) : size_u - 2;
    const int64_t base = item * viewport.width * viewport.height + v * stride_v;
    for (int32_t u = begin; u <= last; ++u) set_flag(marks + base + u * stride_u);
  }
};

}  // namespace diffrender
