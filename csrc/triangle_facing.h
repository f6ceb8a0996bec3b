// Which side of each triangle the eye sees.
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

}  // namespace diffrender
