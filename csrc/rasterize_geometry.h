// What the CPU and the GPU rasterizer share, so that both show the same triangle at every pixel, bit for bit:
// projection and snapping, clipping, the fill rule, the visibility key, and barycentrics at a pixel.
//
// Coverage is decided in integers on vertices rounded to 1/256 pixel (y down); everything that is interpolated comes
// from the unrounded clip positions by the homogeneous formula, which never divides by the w of a vertex:
//   q_i = (x_i - fx w_i, y_i - fy w_i),  a_i = q_j x q_k  (j = i + 1, k = i + 2),  S = a_0 + a_1 + a_2,
//   b_i = a_i / S,  z/w = sum(a_i z_i) / sum(a_i w_i)
// with (fx, fy) the pixel's centre in NDC. Taking the q relative to the pixel keeps the digits of small triangles.
// The build must not contract multiplications and additions (-ffp-contract=off, --fmad=false).
#pragma once

#include "core/vec.h"

namespace diffrender {

constexpr int32_t kSubpixels = 256;     // snapping grid per pixel
constexpr int32_t kMaximumPolygon = 9;  // corners of a triangle cut by six planes

enum class Cull : int32_t { none = 0, back = 1, front = 2 };

template <class scalar_t>
struct Viewport {
  int32_t width, height;  // pixels that are worked on
  scalar_t half_width, half_height;
  scalar_t step_x, step_y;  // NDC per pixel
  scalar_t guard;           // |x|, |y| up to guard * w are snapped without overflow
  int32_t first_row = 0;    // of the image, where `height` is only a band of its rows

  static Viewport make(int64_t width, int64_t height) {
    const scalar_t longest = static_cast<scalar_t>(width > height ? width : height);
    return {static_cast<int32_t>(width), static_cast<int32_t>(height), scalar_t(0.5) * width,
            scalar_t(0.5) * height,      scalar_t(2) / width,          scalar_t(2) / height,
            scalar_t(4194304) / longest};
  }

  // `rows` rows from `first_row` on of an image of that size.
  static Viewport make_band(int64_t width, int64_t height, int64_t first_row, int64_t rows) {
    Viewport band = make(width, height);
    band.height = static_cast<int32_t>(rows);
    band.first_row = static_cast<int32_t>(first_row);
    return band;
  }

  // NDC of the centres of a column and a row; row 0 is the top.
  DR_HD scalar_t center_x(int32_t column) const { return (column + scalar_t(0.5)) * step_x - 1; }
  DR_HD scalar_t center_y(int32_t row) const { return 1 - (row + first_row + scalar_t(0.5)) * step_y; }
};

// The mesh as a rasterizer reads it.
template <class scalar_t>
struct RasterMesh {
  const scalar_t* positions;  // [B or 1, V, 4] clip space
  const int32_t* triangles;   // [T, 3]
  const int32_t* ranges;      // [B, 2] (first triangle, count) or null: every item draws all triangles
  int64_t item_stride;        // V * 4, or 0 where the batch shares the positions
  int32_t vertex_count, triangle_count;
  Cull cull;

  DR_HD void range(int64_t item, int32_t* first, int32_t* count) const {
    *first = 0;
    *count = triangle_count;
    if (ranges == nullptr) return;
    // A wrong range draws what of it exists; it never reads outside the mesh.
    const int64_t start = ranges[2 * item], stop = start + ranges[2 * item + 1];
    const int64_t begin = start < 0 ? 0 : (start > triangle_count ? triangle_count : start);
    const int64_t end = stop < begin ? begin : (stop > triangle_count ? triangle_count : stop);
    *first = static_cast<int32_t>(begin);
    *count = static_cast<int32_t>(end - begin);
  }

  DR_HD Vec4<scalar_t> vertex(int64_t item, int32_t index) const {
    const scalar_t* p = positions + item * item_stride + static_cast<int64_t>(index) * 4;
    return {p[0], p[1], p[2], p[3]};
  }

  // False where an index lies outside the mesh.
  DR_HD bool indices(int32_t triangle, int32_t index[3]) const {
    const int32_t* t = triangles + static_cast<int64_t>(triangle) * 3;
    index[0] = t[0];
    index[1] = t[1];
    index[2] = t[2];
    const uint32_t count = static_cast<uint32_t>(vertex_count);
    return static_cast<uint32_t>(t[0]) < count && static_cast<uint32_t>(t[1]) < count &&
           static_cast<uint32_t>(t[2]) < count;
  }
};

template <class scalar_t>
DR_HD scalar_t magnitude(scalar_t value) {
  return value < 0 ? -value : value;
}

template <class scalar_t>
DR_HD bool is_finite(Vec4<scalar_t> v) {
  const scalar_t limit = kLargest<scalar_t>;
  return magnitude(v.x) <= limit && magnitude(v.y) <= limit && magnitude(v.z) <= limit && magnitude(v.w) <= limit;
}

// Inside the near and far planes and the guard band. An edge between two such vertices is never cut, in either of its
// triangles, and an edge that is cut is cut at the same point in both: neighbours stay free of cracks.
template <class scalar_t>
DR_HD bool is_inside(Vec4<scalar_t> v, scalar_t guard) {
  return v.w > 0 && v.w <= kLargest<scalar_t> && magnitude(v.z) <= v.w && magnitude(v.x) <= guard * v.w &&
         magnitude(v.y) <= guard * v.w;
}

template <class scalar_t>
DR_HD int32_t snap(scalar_t pixels) {
  return static_cast<int32_t>(std::rint(pixels * kSubpixels));
}

template <class scalar_t>
DR_HD int32_t snap_x(Vec4<scalar_t> v, const Viewport<scalar_t>& viewport) {
  return snap((v.x / v.w) * viewport.half_width + viewport.half_width);
}

template <class scalar_t>
DR_HD int32_t snap_y(Vec4<scalar_t> v, const Viewport<scalar_t>& viewport) {
  return snap(viewport.half_height - (v.y / v.w) * viewport.half_height);
}

DR_HD double plane_distance(Vec4<double> v, int plane, double guard) {
  switch (plane) {
    case 0:
      return v.z + v.w;
    case 1:
      return v.w - v.z;
    case 2:
      return guard * v.w + v.x;
    case 3:
      return guard * v.w - v.x;
    case 4:
      return guard * v.w + v.y;
    default:
      return guard * v.w - v.y;
  }
}

// Cuts a triangle by near, far and the guard band (Sutherland-Hodgman) and snaps the rest. Returns its corner count, 0
// where nothing is left or the triangle is not finite. Cuts are made in double precision, which a cut far out on a
// long edge needs, and rounded to scalar_t before they are snapped, like the corners that stay.
template <class scalar_t>
DR_HD int clip_and_snap(const Vec4<scalar_t> corners[3], const Viewport<scalar_t>& viewport, int32_t* x, int32_t* y) {
  Vec4<double> polygon[kMaximumPolygon], next[kMaximumPolygon];
  const double guard = viewport.guard;
  int count = 3;
  for (int i = 0; i < 3; ++i) {
    if (!is_finite(corners[i])) return 0;
    polygon[i] = {corners[i].x, corners[i].y, corners[i].z, corners[i].w};
  }
  for (int plane = 0; plane < 6; ++plane) {
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      const Vec4<double> a = polygon[i], b = polygon[i + 1 == count ? 0 : i + 1];
      const double da = plane_distance(a, plane, guard), db = plane_distance(b, plane, guard);
      // Rounding can make the cut of a convex polygon cross a plane more than twice; what then exceeds nine corners
      // is a sliver of no area.
      if (da >= 0 && kept < kMaximumPolygon) next[kept++] = a;
      if ((da >= 0) == (db >= 0) || kept == kMaximumPolygon) continue;
      // Always from the inner to the outer end, whichever way the triangle runs along its edge.
      const bool forward = da >= 0;
      const Vec4<double> inner = forward ? a : b, outer = forward ? b : a;
      const double t = forward ? da / (da - db) : db / (db - da);
      next[kept++] = {inner.x + t * (outer.x - inner.x), inner.y + t * (outer.y - inner.y),
                      inner.z + t * (outer.z - inner.z), inner.w + t * (outer.w - inner.w)};
    }
    if (kept < 3) return 0;
    count = kept;
    for (int i = 0; i < count; ++i) polygon[i] = next[i];
  }
  for (int i = 0; i < count; ++i) {
    const Vec4<scalar_t> v{static_cast<scalar_t>(polygon[i].x), static_cast<scalar_t>(polygon[i].y),
                           static_cast<scalar_t>(polygon[i].z), static_cast<scalar_t>(polygon[i].w)};
    // Rounding may leave a cut point a hair outside of the guard band; snapping has head room of a factor of two.
    const scalar_t limit = 2 * viewport.guard * v.w;
    if (!(v.w > 0 && magnitude(v.x) <= limit && magnitude(v.y) <= limit && is_finite(v))) return 0;
    x[i] = snap_x(v, viewport);
    y[i] = snap_y(v, viewport);
  }
  return count;
}

// A snapped triangle that may cover pixels: corners in positive order (clockwise on screen), and the columns and rows
// of pixel centres in its box, cut to the frame.
struct ScreenTriangle {
  int32_t x[3], y[3];
  int32_t column_begin, column_end, row_begin, row_end;  // half-open
};

DR_HD int32_t minimum(int32_t a, int32_t b) { return a < b ? a : b; }
DR_HD int32_t maximum(int32_t a, int32_t b) { return a > b ? a : b; }
DR_HD int32_t minimum(int32_t a, int32_t b, int32_t c) { return minimum(a, minimum(b, c)); }
DR_HD int32_t maximum(int32_t a, int32_t b, int32_t c) { return maximum(a, maximum(b, c)); }

// First column or row whose centre is at or after a snapped coordinate, and one past the last at or before it.
DR_HD int32_t first_center(int32_t snapped) { return (snapped + (kSubpixels / 2 - 1)) >> 8; }
DR_HD int32_t past_last_center(int32_t snapped) { return ((snapped - kSubpixels / 2) >> 8) + 1; }

// Twice the signed area in 1/256 pixels; positive = clockwise on screen = back face.
DR_HD int64_t snapped_area(int32_t x0, int32_t y0, int32_t x1, int32_t y1, int32_t x2, int32_t y2) {
  return static_cast<int64_t>(x1 - x0) * (y2 - y0) - static_cast<int64_t>(y1 - y0) * (x2 - x0);
}

// False where the triangle covers no pixel centre's box, has no area, or is culled.
DR_HD bool make_screen_triangle(int32_t x0, int32_t y0, int32_t x1, int32_t y1, int32_t x2, int32_t y2, Cull cull,
                                int32_t width, int32_t height, ScreenTriangle* out) {
  const int64_t area = snapped_area(x0, y0, x1, y1, x2, y2);
  if (area == 0 || (area > 0 && cull == Cull::back) || (area < 0 && cull == Cull::front)) return false;
  out->column_begin = maximum(first_center(minimum(x0, x1, x2)), 0);
  out->column_end = minimum(past_last_center(maximum(x0, x1, x2)), width);
  out->row_begin = maximum(first_center(minimum(y0, y1, y2)), 0);
  out->row_end = minimum(past_last_center(maximum(y0, y1, y2)), height);
  if (out->column_begin >= out->column_end || out->row_begin >= out->row_end) return false;
  const bool swap = area < 0;
  out->x[0] = x0;
  out->y[0] = y0;
  out->x[1] = swap ? x2 : x1;
  out->y[1] = swap ? y2 : y1;
  out->x[2] = swap ? x1 : x2;
  out->y[2] = swap ? y1 : y2;
  return true;
}

// A sample on an edge belongs to the triangle if it is a top edge (level, interior below) or a left one.
DR_HD bool owns_samples_on_edge(int32_t dx, int32_t dy) { return dy < 0 || (dy == 0 && dx > 0); }

// Edge function of corner pair (i, i + 1) at the centre of a pixel, shifted so that "inside" reads >= 0.
DR_HD int64_t edge_function(const ScreenTriangle& t, int edge, int32_t column, int32_t row) {
  const int next = edge == 2 ? 0 : edge + 1;
  const int64_t dx = t.x[next] - t.x[edge], dy = t.y[next] - t.y[edge];
  const int64_t px = static_cast<int64_t>(column) * kSubpixels + kSubpixels / 2 - t.x[edge];
  const int64_t py = static_cast<int64_t>(row) * kSubpixels + kSubpixels / 2 - t.y[edge];
  return dx * py - dy * px - (owns_samples_on_edge(t.x[next] - t.x[edge], t.y[next] - t.y[edge]) ? 0 : 1);
}

DR_HD bool covers(const ScreenTriangle& t, int32_t column, int32_t row) {
  return (edge_function(t, 0, column, row) | edge_function(t, 1, column, row) | edge_function(t, 2, column, row)) >= 0;
}

// The corners seen from one pixel: all that barycentrics and depth need.
template <class scalar_t>
struct PixelFrame {
  Vec2<scalar_t> q[3];
  scalar_t a[3];
};

template <class scalar_t>
DR_HD PixelFrame<scalar_t> pixel_frame(const Vec4<scalar_t> v[3], scalar_t fx, scalar_t fy) {
  PixelFrame<scalar_t> f;
  for (int i = 0; i < 3; ++i) f.q[i] = {v[i].x - fx * v[i].w, v[i].y - fy * v[i].w};
  f.a[0] = cross(f.q[1], f.q[2]);
  f.a[1] = cross(f.q[2], f.q[0]);
  f.a[2] = cross(f.q[0], f.q[1]);
  return f;
}

template <class scalar_t>
DR_HD scalar_t depth_at(const Vec4<scalar_t> v[3], const scalar_t a[3]) {
  const scalar_t z = a[0] * v[0].z + a[1] * v[1].z + a[2] * v[2].z;
  const scalar_t w = a[0] * v[0].w + a[1] * v[1].w + a[2] * v[2].w;
  return z * reciprocal_or_zero(w);
}

// Range that the visibility key of a triangle may not leave. Snapping can put a centre just outside of a thin
// triangle, where its plane extrapolates to any depth at all; it must not win over what is in front of it.
template <class scalar_t>
struct KeyRange {
  scalar_t low, high;
};

template <class scalar_t>
DR_HD KeyRange<scalar_t> key_range(const Vec4<scalar_t> v[3], bool all_inside) {
  if (!all_inside) return {scalar_t(-2), scalar_t(2)};
  const scalar_t z0 = v[0].z / v[0].w, z1 = v[1].z / v[1].w, z2 = v[2].z / v[2].w;
  const scalar_t low01 = z0 < z1 ? z0 : z1, high01 = z0 < z1 ? z1 : z0;
  return {low01 < z2 ? low01 : z2, high01 > z2 ? high01 : z2};
}

// Adding zero turns -0 into +0, which compare equal but differ in their bits.
template <class scalar_t>
DR_HD scalar_t clamp_key(scalar_t depth, KeyRange<scalar_t> range) {
  const scalar_t above = depth < range.low ? range.low : depth;
  return (above > range.high ? range.high : above) + scalar_t(0);
}

// False for NaN too.
template <class scalar_t>
DR_HD bool is_visible_key(scalar_t key) {
  return key >= -1 && key <= 1;
}

// Visibility key of a triangle at a pixel, from scratch; false where it has none.
template <class scalar_t>
DR_HD bool visibility_key(const RasterMesh<scalar_t>& mesh, const Viewport<scalar_t>& viewport, int64_t item,
                          int32_t triangle, int32_t column, int32_t row, scalar_t* key) {
  int32_t index[3];
  if (triangle < 0 || triangle >= mesh.triangle_count || !mesh.indices(triangle, index)) return false;
  Vec4<scalar_t> v[3];
  bool inside = true;
  for (int i = 0; i < 3; ++i) {
    v[i] = mesh.vertex(item, index[i]);
    inside = inside && is_inside(v[i], viewport.guard);
  }
  const PixelFrame<scalar_t> frame = pixel_frame(v, viewport.center_x(column), viewport.center_y(row));
  *key = clamp_key(depth_at(v, frame.a), key_range(v, inside));
  return is_visible_key(*key);
}

}  // namespace diffrender
