// Which side of each triangle the eye sees, and whether two triangles at an edge wind alike.
#pragma once

#include "rasterize_geometry.h"

namespace diffrender {

// On which side of its edges a triangle lies on screen: the sign of det(p_0, p_1, p_2) in pixel space, which is also
// that of l_i . m inside. 0 for a triangle that draws nothing: degenerate, not finite, or culled. One sign per triangle
// makes silhouettes closed loops whatever the rounding.
template <class scalar_t>
struct TriangleFacing {
  RasterMesh<scalar_t> mesh;
  int8_t* facing;  // [B or 1, T]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for_each_index(begin, end, mesh.triangle_count, [&](int64_t i, int64_t item) {
      int32_t index[3];
      const int32_t triangle = static_cast<int32_t>(i - item * mesh.triangle_count);
      facing[i] = mesh.indices(triangle, index) ? sign(mesh.positions + item * mesh.item_stride, index) : int8_t(0);
    });
  }

  DR_HD int8_t sign(const scalar_t* positions, const int32_t index[3]) const {
    const scalar_t* const a = positions + static_cast<int64_t>(index[0]) * 4;
    const scalar_t* const b = positions + static_cast<int64_t>(index[1]) * 4;
    const scalar_t* const c = positions + static_cast<int64_t>(index[2]) * 4;
    const double x = a[0], y = a[1], w = a[3];
    const Vec3<double> p{x, y, w}, ab{b[0] - x, b[1] - y, b[3] - w}, ac{c[0] - x, c[1] - y, c[3] - w};
    // Clip space has y up: counter-clockwise, the front, is positive here and negative in pixel space.
    const double det = dot(p, cross(ab, ac));
    const int visible = magnitude(det) <= kLargest<double> ? 1 : 0;
    const int front = det > 0 && mesh.cull != Cull::front ? 1 : 0, back = det < 0 && mesh.cull != Cull::back ? 1 : 0;
    return static_cast<int8_t>(visible * (back - front));
  }
};

// The two vertices of the edge opposite to a corner (3 triangle + k), in the triangle's order.
DR_HD void edge_vertices(const int32_t* triangles, int32_t corner, int32_t* a, int32_t* b) {
  const int32_t* const t = triangles + static_cast<int64_t>(corner / 3) * 3;
  const int32_t k = corner % 3;
  *a = t[k == 2 ? 0 : k + 1];
  *b = t[k == 0 ? 2 : k - 1];
}

// Whether vertex `first` rather than `second` lies where `a` does.
template <class Mesh>
DR_HD_CALL bool is_nearer(const Mesh& mesh, int64_t item, int32_t a, int32_t first, int32_t second) {
  const auto p = mesh.vertex(item, a), q = mesh.vertex(item, first), r = mesh.vertex(item, second);
  const auto distance = [&](const auto& v) {
    return magnitude(v.x - p.x) + magnitude(v.y - p.y) + magnitude(v.z - p.z) + magnitude(v.w - p.w);
  };
  return distance(q) <= distance(r);
}

// Whether the edges opposite to two corners, which join the same two places, run in the same direction: triangles of
// opposite winding meet there.
template <class Mesh>
DR_HD bool same_direction(const Mesh& mesh, int64_t item, int32_t corner, int32_t other) {
  int32_t a, b, first, second;
  edge_vertices(mesh.triangles, corner, &a, &b);
  edge_vertices(mesh.triangles, other, &first, &second);
  if (first == a || second == b) return true;
  if (second == a || first == b) return false;
  return is_nearer(mesh, item, a, first, second);  // split along an attribute seam
}

}  // namespace diffrender
