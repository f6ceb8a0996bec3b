// Faces of a cube map, +X -X +Y -Y +Z -Z in OpenGL's orientation, and directions seen from them.
#pragma once

#include "core/vec.h"

namespace diffrender {

// A direction seen from its face: `along` the major axis (positive), a to the right (s), b downwards (t).
template <class scalar_t>
struct FaceFrame {
  // s = 1/2 + a / (2 along), t = 1/2 + b / (2 along), for
  //   +X: a = -z, b = -y    -X: a = z, b = -y    +Y: a = x, b = z    -Y: a = x, b = -z    +Z: a = x, b = -y    -Z: a =
  //   -x, b = -y
  DR_HD static Vec3<scalar_t> from_world(int32_t face, Vec3<scalar_t> d) {
    const scalar_t sign = face % 2 == 0 ? scalar_t(1) : scalar_t(-1);
    if (face < 2) return {-sign * d.z, -d.y, sign * d.x};
    if (face < 4) return {d.x, sign * d.z, sign * d.y};
    return {sign * d.x, -d.y, sign * d.z};
  }

  // The inverse, which is also the transpose.
  DR_HD static Vec3<scalar_t> to_world(int32_t face, Vec3<scalar_t> f) {
    const scalar_t sign = face % 2 == 0 ? scalar_t(1) : scalar_t(-1);
    if (face < 2) return {sign * f.z, -f.y, -sign * f.x};
    if (face < 4) return {f.x, sign * f.z, sign * f.y};
    return {sign * f.x, -f.y, sign * f.z};
  }

  // The face of the largest component (ties: X before Y before Z), -1 for zero, NaN and infinite directions.
  DR_HD static int32_t face_of(Vec3<scalar_t> d) {
    const scalar_t x = d.x < 0 ? -d.x : d.x, y = d.y < 0 ? -d.y : d.y, z = d.z < 0 ? -d.z : d.z;
    const scalar_t xy = x < y ? y : x, largest = xy < z ? z : xy;
    const bool good = x <= kLargest<scalar_t> && y <= kLargest<scalar_t> && z <= kLargest<scalar_t> &&
                      largest >= kSmallestNormal<scalar_t>;
    const int32_t axis = z > xy ? 2 : (y > x ? 1 : 0);
    const scalar_t major = axis == 2 ? d.z : (axis == 1 ? d.y : d.x);
    return good ? 2 * axis + (major < 0 ? 1 : 0) : -1;
  }
};

}  // namespace diffrender
