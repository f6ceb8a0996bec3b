// Edge walk, part 1: the mesh as its kernels read it. Everything is computed in double precision, also for float32
// positions: few items reach these kernels, and visibility has to be decided the same way in forward and backward.
//
// Pixel space: x right, y down, pixel (column, row) covers [column, column + 1] x [row, row + 1]. A clip-space corner
// relative to an origin o is p = (x W/2 + w (W/2 - o_x), -y H/2 + w (H/2 - o_y), w), so that a screen point m (also
// relative to o) is (m_x, m_y, 1) up to scale, and no vertex is ever divided by its own w.
#pragma once

#include "triangle_facing.h"

namespace diffrender {

// Longest cycle of triangles around one edge; a longer one is a broken index array.
constexpr int kMaximumRing = 64;

DR_HD Vec3<double> to_pixels(Vec4<double> v, const Viewport<double>& viewport, Vec2<double> origin) {
  return {v.x * viewport.half_width + v.w * (viewport.half_width - origin.x),
          v.w * (viewport.half_height - origin.y) - v.y * viewport.half_height, v.w};
}

// c0 + cx x + cy y.
struct Affine {
  double x, y, constant;

  DR_HD double at(Vec2<double> p) const { return x * p.x + y * p.y + constant; }
};

// A triangle as seen around one pixel: screen-linear weights of its corners and its depth z/w, as functions of the
// position relative to that pixel's centre. With l_i = p_j x p_k and det = p_0 . l_0 they are
//   lambda_i = l_i . (x, y, 1) / det   and   z/w = sum z_i lambda_i,
// because sum w_i lambda_i = 1. A point is inside where all lambda_i >= 0, also with corners behind the eye.
struct ScreenFace {
  Affine weight[3];
  Affine depth;

  // Smallest weight: positive inside, negative outside.
  DR_HD double inside(Vec2<double> p) const {
    const double a = weight[0].at(p), b = weight[1].at(p), c = weight[2].at(p);
    return a < b ? (a < c ? a : c) : (b < c ? b : c);
  }
};

// From l_i and det; false where the triangle covers nothing.
DR_HD bool finish_screen_face(const Vec4<double> v[3], const Vec3<double> line[3], double det, ScreenFace* out) {
  if (!(magnitude(det) > 0 && magnitude(det) <= kLargest<double>)) return false;
  const double inverse = 1 / det;
  out->depth = {0, 0, 0};
  for (int i = 0; i < 3; ++i) {
    out->weight[i] = {line[i].x * inverse, line[i].y * inverse, line[i].z * inverse};
    out->depth.x += v[i].z * out->weight[i].x;
    out->depth.y += v[i].z * out->weight[i].y;
    out->depth.constant += v[i].z * out->weight[i].constant;
  }
  return true;
}

DR_HD_CALL bool make_screen_face(const Vec4<double> v[3], const Viewport<double>& viewport, Vec2<double> origin,
                                 ScreenFace* out) {
  Vec3<double> p[3], line[3];
  for (int i = 0; i < 3; ++i) p[i] = to_pixels(v[i], viewport, origin);
  for (int i = 0; i < 3; ++i) line[i] = cross(p[(i + 1) % 3], p[(i + 2) % 3]);
  return finish_screen_face(v, line, dot(p[0], line[0]), out);
}

// A mesh whose positions are float32 or float64, and are read as double.
struct EitherMesh : RasterMesh<double> {
  const float* singles;  // [B or 1, V, 4] in the place of `positions`, or null

  DR_HD Vec4<double> vertex(int64_t item, int32_t index) const {
    if (singles == nullptr) return RasterMesh<double>::vertex(item, index);
    const float* const p = singles + item * item_stride + static_cast<int64_t>(index) * 4;
    return {p[0], p[1], p[2], p[3]};
  }
};

struct SegmentMesh {
  EitherMesh mesh;
  Viewport<double> viewport;
  const int32_t* topology;  // [T, 3] twin corner across each edge; -1: none; -2 - c: next corner c of several
  const int32_t* seams;     // [T, 3] attribute index of each corner, or null
  const int8_t* facing;     // [B or 1, T]; see TriangleFacing
  int64_t facing_stride;    // T, or 0 where the batch shares positions

  DR_HD int32_t corner_count() const { return 3 * mesh.triangle_count; }

  // The next corner of the cycle of triangles around the edge opposite to `corner`; itself where there is no other.
  DR_HD int32_t next_corner(int32_t corner) const {
    const int32_t entry = topology[corner];
    const int32_t next = entry >= 0 ? entry : (entry == -1 ? corner : -2 - entry);
    return static_cast<uint32_t>(next) < static_cast<uint32_t>(corner_count()) ? next : corner;
  }

  DR_HD bool is_incident(int32_t corner, int32_t triangle) const {
    int32_t c = corner;
    for (int step = 0; step < kMaximumRing; ++step) {
      if (c / 3 == triangle) return true;
      c = next_corner(c);
      if (c == corner) break;
    }
    return false;
  }

  // Calls body(index, corner) for the triangles around an edge: those across the other edges of its own two (index 0 to
  // 3), each followed by those across its other edges (4 to 11). `corner` is the one opposite to the edge that leads
  // there. Edges of three or more triangles lead nowhere.
  template <class F>
  DR_HD void for_each_around(int32_t corner, const F& body) const {
    const uint32_t count = static_cast<uint32_t>(corner_count());
    const auto across_others = [&](int32_t c, int32_t first, const auto& visit) {
      for (int32_t k = 1; k < 3; ++k) {
        const int32_t entry = topology[3 * (c / 3) + (c % 3 + k) % 3];
        if (static_cast<uint32_t>(entry) < count) visit(first + k - 1, entry);
      }
    };
    for (int32_t own = 0; own < 2; ++own) {
      const int32_t c = own == 0 ? corner : topology[corner];
      if (static_cast<uint32_t>(c) >= count) continue;
      across_others(c, 2 * own, [&](int32_t index, int32_t near) {
        body(index, near);
        across_others(near, 4 + 2 * index, body);
      });
    }
  }

  DR_HD bool has(int32_t triangle) const {
    return static_cast<uint32_t>(triangle) < static_cast<uint32_t>(mesh.triangle_count);
  }

  // Whether g is the only other triangle at an edge of f, as almost all neighbours on the screen are. No branches.
  DR_HD bool share_an_edge(int32_t f, int32_t g) const {
    const int32_t* const twins = topology + static_cast<int64_t>(f) * 3;
    const uint32_t first = 3 * static_cast<uint32_t>(g);
    return (twins[0] - first < 3u) | (twins[1] - first < 3u) | (twins[2] - first < 3u);
  }

  DR_HD void edge_vertices(int32_t corner, int32_t* a, int32_t* b) const {
    diffrender::edge_vertices(mesh.triangles, corner, a, b);
  }

  // Facing of a triangle that the item draws, 0 for one that it does not.
  DR_HD int side(int64_t item, int32_t triangle) const {
    if (mesh.ranges != nullptr) {
      int32_t first, count;
      mesh.range(item, &first, &count);
      if (triangle < first || triangle - first >= count) return 0;
    }
    return facing[item * facing_stride + triangle];
  }

  DR_HD Vec4<double> vertex(int64_t item, int32_t index) const { return mesh.vertex(item, index); }

  DR_HD bool corners(int64_t item, int32_t triangle, int32_t index[3], Vec4<double> v[3]) const {
    if (triangle < 0 || triangle >= mesh.triangle_count || !mesh.indices(triangle, index)) return false;
    for (int i = 0; i < 3; ++i) v[i] = vertex(item, index[i]);
    return true;
  }

  DR_HD bool face(int64_t item, int32_t triangle, Vec2<double> origin, ScreenFace* out) const {
    int32_t index[3];
    Vec4<double> v[3];
    return corners(item, triangle, index, v) && make_screen_face(v, viewport, origin, out);
  }

  // By position: a mesh that was split along texture seams has several vertices in one place.
  DR_HD bool same_place(int64_t item, int32_t i, int32_t j) const {
    if (i == j) return true;
    const Vec4<double> a = mesh.vertex(item, i), b = mesh.vertex(item, j);
    return a.x == b.x && a.y == b.y && a.w == b.w && a.z == b.z;
  }

  DR_HD_CALL bool same_direction(int64_t item, int32_t corner, int32_t other) const {
    return diffrender::same_direction(mesh, item, corner, other);
  }
};

DR_HD bool share_an_index(const int32_t f[3], const int32_t g[3]) {
  return (f[0] == g[0]) | (f[0] == g[1]) | (f[0] == g[2]) | (f[1] == g[0]) | (f[1] == g[1]) | (f[1] == g[2]) |
         (f[2] == g[0]) | (f[2] == g[1]) | (f[2] == g[2]);
}

DR_HD_CALL bool share_a_corner(const SegmentMesh& in, int64_t item, const int32_t f[3], const int32_t g[3]) {
  if (share_an_index(f, g)) return true;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      if (in.same_place(item, f[i], g[j])) return true;
    }
  }
  return false;
}

}  // namespace diffrender
