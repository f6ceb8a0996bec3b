// Edge walk, part 2: which edges of the mesh are discontinuities of the picture, and the pixels that they cross.
#pragma once

#include "segments_mesh.h"

namespace diffrender {

// Marks the edges that the picture may change across: both triangles on the same side of it (a fold), one triangle only
// (a border), or, where `seams` is given, attributes that differ across it. An edge is looked at from its lowest
// corner.
struct MarkEdges {
  SegmentMesh in;
  uint8_t* marks;  // [B, T] bit k: the edge opposite to corner k

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for_each_index(begin, end, in.mesh.triangle_count, [&](int64_t i, int64_t item) {
      const int32_t triangle = static_cast<int32_t>(i - item * in.mesh.triangle_count);
      uint32_t bits = 0;
      if (in.mesh.ranges != nullptr || in.seams != nullptr || !mark_ordinary(item, triangle, &bits)) {
        bits = 0;
        for (int k = 0; k < 3; ++k) bits |= is_wanted(item, 3 * triangle + k) ? 1u << k : 0u;
      }
      marks[i] = static_cast<uint8_t>(bits);
    });
  }

  // The common case in a few instructions: each edge belongs to two triangles that run along it in opposite directions,
  // so that it is a fold if one faces the viewer and the other does not. False where that is not so.
  DR_HD bool mark_ordinary(int64_t item, int32_t triangle, uint32_t* bits) const {
    const int32_t corner = 3 * triangle;
    const int32_t* const vertices = in.mesh.triangles + corner;
    const int8_t* const facing = in.facing + item * in.facing_stride;
    const uint32_t count = static_cast<uint32_t>(in.corner_count());
    bool ordinary = true;
    for (int k = 0; k < 3; ++k) {
      const uint32_t entry = static_cast<uint32_t>(in.topology[corner + k]);
      const bool valid = entry < count;
      const int32_t twin = valid ? static_cast<int32_t>(entry) : corner;
      const int32_t other = static_cast<int32_t>(static_cast<uint32_t>(twin) / 3);
      const int32_t second = in.mesh.triangles[twin + (twin == 3 * other ? 2 : -1)];
      ordinary = ordinary & valid & (second == vertices[k == 2 ? 0 : k + 1]);
      *bits |= static_cast<uint32_t>((facing[other] != facing[triangle]) & (twin > corner + k)) << k;
    }
    return ordinary;
  }

  DR_HD_CALL bool is_wanted(int64_t item, int32_t corner) const {
    const int32_t twin = in.topology[corner];
    if (twin >= 0 && twin <= corner) return false;
    const int own = in.side(item, corner / 3);
    if (twin == -1) return own != 0;
    bool positive = own > 0, negative = own < 0;
    int count = 1;
    for (int32_t c = in.next_corner(corner); c != corner && count < kMaximumRing; c = in.next_corner(c), ++count) {
      if (c < corner) return false;
      const int side = in.side(item, c / 3);
      if (side == 0) continue;
      const bool flipped = !in.same_direction(item, corner, c);
      positive = positive || (side > 0) != flipped;
      negative = negative || (side < 0) != flipped;
    }
    if (positive != negative) return true;
    return positive && in.seams != nullptr && count == 2 && is_seam(item, corner, in.next_corner(corner));
  }

  // Whether the attribute indices at the two ends of an inner edge differ between its two triangles.
  DR_HD bool is_seam(int64_t item, int32_t corner, int32_t twin) const {
    const bool same = in.same_direction(item, corner, twin);
    const auto at = [&](int32_t c, int step) { return in.seams[static_cast<int64_t>(c / 3) * 3 + (c % 3 + step) % 3]; };
    return at(corner, 1) != at(twin, same ? 1 : 2) || at(corner, 2) != at(twin, same ? 2 : 1);
  }
};

// The part of a marked edge that is on screen.
struct EdgeSegment {
  Vec3<double> start, stop;  // x, y in pixels and z/w; in the order of the owner's edge
  int64_t item;
  int32_t corner;  // owner
  int32_t side;    // the edge's triangles lie where side * (l . m) > 0, l = p_start x p_stop
  int32_t seam;    // the twin's triangle if the edge is only a seam of attributes, else -1
  int32_t twin;    // the only other triangle at the edge, -1 = none, -2 = several
  int32_t around;  // bit i: the triangle of that index of SegmentMesh::for_each_around() may hide it or lie behind it;
                   // -1: nobody has looked yet, see PieceFinder::look_around()

  DR_HD bool is_incident(const SegmentMesh& in, int32_t triangle) const {
    return (triangle == corner / 3) | (triangle == twin) || (twin == -2 && in.is_incident(corner, triangle));
  }

  // Unit normal that points away from the edge's triangles (from the owner, at a seam).
  DR_HD Vec2<double> outward() const {
    const double x = stop.y - start.y, y = start.x - stop.x;
    const double scale = side / std::sqrt(x * x + y * y);
    return {x * scale, y * scale};
  }
};

// Clips edges to the view volume.
struct EdgeClipper {
  SegmentMesh in;

  // The edge opposite to corner k of `triangle`, one of [B, T]. Returns how many pixels it crosses.
  DR_HD_CALL int64_t clip(int64_t triangle, int32_t k, EdgeSegment* out) const {
    out->item = triangle / in.mesh.triangle_count;
    out->corner = 3 * static_cast<int32_t>(triangle - out->item * in.mesh.triangle_count) + k;
    out->seam = -1;
    out->side = 0;
    out->around = -1;
    const int32_t entry = in.topology[out->corner];
    out->twin = entry >= 0 ? entry / 3 : (entry == -1 ? -1 : -2);
    int32_t a, b;
    in.edge_vertices(out->corner, &a, &b);
    // Every triangle with a side has valid indices; the owner may be the one without.
    int32_t c = out->corner;
    for (int step = 0; step < kMaximumRing; ++step) {
      const int side = in.side(out->item, c / 3);
      if (side != 0 && out->side == 0) {
        out->side = c == out->corner || in.same_direction(out->item, out->corner, c) ? side : -side;
      } else if (side != 0 && in.seams != nullptr) {
        const int other = in.same_direction(out->item, out->corner, c) ? side : -side;
        if (other != out->side) out->seam = c / 3;
      }
      c = in.next_corner(c);
      if (c == out->corner) break;
    }
    const uint32_t count = static_cast<uint32_t>(in.mesh.vertex_count);
    if (static_cast<uint32_t>(a) >= count || static_cast<uint32_t>(b) >= count) return 0;
    const Vec4<double> from = in.vertex(out->item, a), to = in.vertex(out->item, b);
    double t0 = 0, t1 = 1;
    if (!is_finite(from) || !is_finite(to) || !clip_to_view(from, to, &t0, &t1)) return 0;
    out->start = project(from, to, t0);
    out->stop = project(from, to, t1);
    const double dx = out->stop.x - out->start.x, dy = out->stop.y - out->start.y;
    if (!(dx * dx + dy * dy > 1e-24)) return 0;
    return 1 + magnitude(column(out->stop.x) - column(out->start.x)) + magnitude(row(out->stop.y) - row(out->start.y));
  }

  // Liang-Barsky in clip space against near, far and the four sides of the frame: what is left lies in the picture, so
  // that nothing far outside of it costs digits. The last plane keeps w away from zero.
  DR_HD_CALL static bool clip_to_view(Vec4<double> a, Vec4<double> b, double* t0, double* t1) {
    const double least_w = 1e-12 * (magnitude(a.w) > magnitude(b.w) ? magnitude(a.w) : magnitude(b.w));
    for (int plane = 0; plane < 7; ++plane) {
      const double da = plane < 6 ? plane_distance(a, plane, 1.0) : a.w - least_w;
      const double db = plane < 6 ? plane_distance(b, plane, 1.0) : b.w - least_w;
      if (da < 0 && db < 0) return false;
      if (da >= 0 && db >= 0) continue;
      const double t = da / (da - db);
      if (da < 0) {
        *t0 = t > *t0 ? t : *t0;
      } else {
        *t1 = t < *t1 ? t : *t1;
      }
    }
    return *t0 < *t1;
  }

  DR_HD Vec3<double> project(Vec4<double> a, Vec4<double> b, double t) const {
    const Vec4<double> v = t <= 0   ? a
                           : t >= 1 ? b
                                    : Vec4<double>{a.x + t * (b.x - a.x), a.y + t * (b.y - a.y), a.z + t * (b.z - a.z),
                                                   a.w + t * (b.w - a.w)};
    const Vec3<double> p = to_pixels(v, in.viewport, {0, 0});
    const double x = p.x / p.z, y = p.y / p.z;
    return {inside(x, in.viewport.width), inside(y, in.viewport.height), v.z / v.w};
  }

  // Rounding may leave a cut a hair outside of the frame.
  DR_HD static double inside(double value, int32_t size) { return value > 0 ? (value < size ? value : size) : 0.0; }

  DR_HD int64_t column(double x) const { return pixel_of(x, in.viewport.width); }
  DR_HD int64_t row(double y) const { return pixel_of(y, in.viewport.height); }

  DR_HD static int32_t pixel_of(double value, int32_t size) {
    const int32_t pixel = static_cast<int32_t>(value);
    return pixel < size ? pixel : size - 1;
  }
};

// Walks along a segment from pixel to pixel: its crossings of the lines x = integer and y = integer in the order in
// which they come, vertical lines first where both come together.
struct PixelWalk {
  double x, y, step_x, step_y;       // start and direction
  int32_t column, row, right, down;  // first pixel, +1 or -1
  int32_t columns, rows;             // lines crossed
  int32_t i, j;                      // of which passed

  DR_HD PixelWalk(const EdgeSegment& s, int32_t width, int32_t height)
      : x(s.start.x), y(s.start.y), step_x(s.stop.x - s.start.x), step_y(s.stop.y - s.start.y), i(0), j(0) {
    column = pixel_of(x, width);
    row = pixel_of(y, height);
    columns = pixel_of(s.stop.x, width) - column;
    rows = pixel_of(s.stop.y, height) - row;
    right = columns < 0 ? -1 : 1;
    down = rows < 0 ? -1 : 1;
    columns *= right;
    rows *= down;
  }

  DR_HD static int32_t pixel_of(double value, int32_t size) {
    const int32_t pixel = static_cast<int32_t>(value);
    return pixel < size ? pixel : size - 1;
  }

  DR_HD static double unit(double t) { return t > 0 ? (t < 1 ? t : 1.0) : 0.0; }
  DR_HD double vertical(int32_t k) const { return unit((column + (right > 0 ? 1 + k : -k) - x) / step_x); }
  DR_HD double horizontal(int32_t k) const { return unit((row + (down > 0 ? 1 + k : -k) - y) / step_y); }
  DR_HD bool is_vertical_next(int32_t v, int32_t h) const {
    return v < columns && (h >= rows || vertical(v) <= horizontal(h));
  }

  // Goes straight to the k-th pixel: how many of the first k crossings are vertical lines (merge path).
  DR_HD void seek(int32_t k) {
    int32_t low = k - rows > 0 ? k - rows : 0, high = k < columns ? k : columns;
    while (low < high) {
      const int32_t middle = (low + high) / 2;
      if (vertical(middle) <= horizontal(k - middle - 1)) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    i = low;
    j = k - low;
  }

  DR_HD void advance() {
    if (is_vertical_next(i, j)) {
      ++i;
    } else {
      ++j;
    }
  }

  DR_HD int32_t pixel_column() const { return column + right * i; }
  DR_HD int32_t pixel_row() const { return row + down * j; }

  // The part [from, to] of the segment, as fractions of it, that lies in this pixel.
  DR_HD void interval(double* from, double* to) const {
    const double v = i > 0 ? vertical(i - 1) : 0, h = j > 0 ? horizontal(j - 1) : 0;
    const double next_v = i < columns ? vertical(i) : 1, next_h = j < rows ? horizontal(j) : 1;
    *from = v > h ? v : h;
    *to = next_v < next_h ? next_v : next_h;
  }
};

}  // namespace diffrender
