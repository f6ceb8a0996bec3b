// Exact visibility inside one pixel: triangles as half-planes of the pixel.
//
// Local coordinates (u, v) of a pixel: origin at its centre, u right, v down, the pixel is [-1/2, 1/2]^2. A clip-space
// vertex becomes q = (x W/2 + (W/2 - column - 1/2) w, -y H/2 + (H/2 - row - 1/2) w, w), whose first two components over
// the third are its local position. With the lines e_i = q_j x q_k (j = i + 1, k = i + 2; 3-D cross product, a line is
// read as e.x u + e.y v + e.z) and D = q_0 . e_0:
//   e_i(u, v) / D = b_i / w         b perspective-correct barycentrics of the surface seen at (u, v), w its depth
//   depth(u, v) = z/w = sum_i z_i e_i(u, v) / D          affine on the screen
// So the visible side of a triangle is the set where all e_i / D >= 0 and -1 <= depth <= 1: half-planes of the screen,
// also where corners lie behind the camera, and nothing is ever divided by the w of a corner. "j in front of i" is one
// half-plane more, depth_i - depth_j >= 0. All of it is computed in double precision: the corners of float32 meshes are
// exact in it, and neighbours that share an edge see the very same line with the sign changed, hence no gap and no
// overlap.
#pragma once

#include "rasterize_geometry.h"

namespace diffrender {

// A side within this distance (pixels) of a corner does not cut it off: rounding leaves less than 1e-15.
constexpr double kSideTolerance = 1e-14;
// Lines between pixels lie this much (pixels) further right and down than they should. An edge exactly on such a line,
// as of shapes with whole pixel coordinates, is then inside of one pixel and not of none, and has its derivative there.
constexpr double kGridShift = 1e-11;
// A centre within this distance (pixels) of a side cannot be counted on one side of it: of two neighbours that meet
// there, rounding may give it to both or to none.
constexpr double kOnEdge = 1e-9;
// Areas (square pixels) below are rounding.
constexpr double kSmallestArea = 1e-15;
// Differences of depth below this part of the summands of both depths are ties.
constexpr double kDepthTolerance = 1e-13;

constexpr int kNear = 3, kFar = 4, kDepth = 5;  // sides of a triangle: 0, 1, 2 opposite to the corners, then these
constexpr int32_t kPixelSide = -1;              // label of what does not move
constexpr int32_t kNoPartner = -1;              // a side that does not cut the pixel
constexpr int32_t kOpen = -2;                   // a side that cuts it and has no partner

DR_HD double square_root(double value) { return ::sqrt(value); }
template <class Vector>
DR_HD Vector square_root(Vector value) {
  for (int l = 0; l < static_cast<int>(sizeof(Vector) / sizeof(value[0])); ++l) value[l] = ::sqrt(value[l]);
  return value;
}

// T: double, or a vector of them that holds the lines of several pixels.
template <class T>
struct LineOf {
  T x, y, c;

  DR_HD T at(T u, T v) const { return x * u + y * v + c; }
  DR_HD T reach() const { return (0.5 + kGridShift) * (magnitude(x) + magnitude(y)); }
  DR_HD T largest() const { return c + reach(); }  // over the pixel
  DR_HD T smallest() const { return c - reach(); }
  DR_HD T slope() const { return square_root(x * x + y * y); }
  DR_HD LineOf times(T s) const { return {s * x, s * y, s * c}; }
  DR_HD LineOf moved(T u, T v) const { return {x, y, c + x * u + y * v}; }  // seen from (u, v)
  DR_HD LineOf minus(LineOf o) const { return {x - o.x, y - o.y, c - o.c}; }
};

using Line = LineOf<double>;

DR_HD Line line_through(Vec3<double> a, Vec3<double> b) {
  const Vec3<double> l = cross(a, b);
  return {l.x, l.y, l.z};
}

// Scale and origin of a pixel's local coordinates.
struct LocalFrame {
  double scale_x, scale_y, shift_x, shift_y;

  DR_HD static LocalFrame make(const Viewport<double>& viewport, int32_t column, int32_t row) {
    const double half_width = 0.5 * viewport.width, half_height = 0.5 * viewport.height;
    return {half_width, -half_height, half_width - column - 0.5, half_height - row - 0.5};
  }

  // Rounded once, at the size of the result: the two products are hundreds of pixels and cancel to a few, and a corner
  // has to be the same point in the frames of all its triangles.
  DR_HD Vec3<double> local(Vec4<double> v) const {
    const double x = shift_x * v.w, y = shift_y * v.w;
    return {::fma(v.x, scale_x, x) + ::fma(shift_x, v.w, -x), ::fma(v.y, scale_y, y) + ::fma(shift_y, v.w, -y), v.w};
  }

  // To within a few roundings of the products: far less than kGridShift.
  DR_HD Vec3<double> local_roughly(Vec4<double> v) const {
    return {v.x * scale_x + shift_x * v.w, v.y * scale_y + shift_y * v.w, v.w};
  }
};

template <class T>
struct MomentsOf {
  T area, x, y;  // integrals of 1, u, v

  DR_HD MomentsOf minus(const MomentsOf& o) const { return {area - o.area, x - o.x, y - o.y}; }
};

using Moments = MomentsOf<double>;

// A pixel in its local coordinates. The frame's own border is where it should be.
template <class T>
struct PixelSquareOf {
  T left, right, top, bottom;

  DR_HD static PixelSquareOf make(int32_t column, int32_t row, int32_t width, int32_t height) {
    return {column > 0 ? -0.5 + kGridShift : -0.5, column + 1 < width ? 0.5 + kGridShift : 0.5,
            row > 0 ? -0.5 + kGridShift : -0.5, row + 1 < height ? 0.5 + kGridShift : 0.5};
  }

  DR_HD T area() const { return (right - left) * (bottom - top); }
  DR_HD MomentsOf<T> moments() const { return {area(), area() * 0.5 * (left + right), area() * 0.5 * (top + bottom)}; }
};

using PixelSquare = PixelSquareOf<double>;

// What the pixels of a triangle share. Lines are relative to the centre of the first pixel of its box: a triangle far
// from the origin keeps its digits, and moving a line to another pixel is one multiplication and addition per axis.
struct TriangleRecord {
  Line side[3];           // sign(D) e_i / |slope of e_i|: distance in pixels, >= 0 inside
  Line depth;             // z/w
  double slope[3];        // sign(D) |slope of e_i|
  double determinant;     // D
  double depth_terms;     // bound of the summands of depth: what its rounding is relative to
  int32_t column, row;    // the pixel
  int32_t crosses_depth;  // some corner lies beyond the near or the far plane, or behind the camera
  int32_t valid;

  // False where the triangle has no area. `columns` and `rows` = size of its box.
  DR_HD bool make(const Vec4<double> v[3], const LocalFrame& frame, int32_t columns, int32_t rows) {
    Vec3<double> q[3];
    crosses_depth = 0;
    for (int i = 0; i < 3; ++i) {
      q[i] = frame.local(v[i]);
      crosses_depth |= v[i].w > 0 && magnitude(v[i].z) <= v[i].w ? 0 : 1;
    }
    const Line edge[3] = {line_through(q[1], q[2]), line_through(q[2], q[0]), line_through(q[0], q[1])};
    determinant = q[0].x * edge[0].x + q[0].y * edge[0].y + q[0].z * edge[0].c;
    const double size = magnitude(determinant), sign = determinant < 0 ? -1 : 1;
    if (!(size >= kSmallestNormal<double> && size <= kLargest<double>)) return false;
    const double inverse = 1 / determinant;
    depth = {0, 0, 0};
    depth_terms = 0;
    for (int i = 0; i < 3; ++i) {
      const double length = edge[i].slope(), z = v[i].z * inverse;
      if (!(length > 0 && length <= kLargest<double>)) return false;
      side[i] = edge[i].times(sign / length);
      slope[i] = sign * length;
      depth = {depth.x + z * edge[i].x, depth.y + z * edge[i].y, depth.c + z * edge[i].c};
      depth_terms +=
          magnitude(z) * (magnitude(edge[i].c) + columns * magnitude(edge[i].x) + rows * magnitude(edge[i].y));
    }
    return depth_terms <= kLargest<double>;
  }
};

// What all pixels of a triangle's box have in common, small enough to stay in a cache when many triangles are looked
// at.
struct DepthRange {
  float low, high;  // bounds of the depth of its plane, rounding included
  int32_t winding;  // sign of D

  DR_HD static DepthRange of(const TriangleRecord& record, int32_t columns, int32_t rows) {
    const double half_x = 0.5 * columns, half_y = 0.5 * rows;
    const Line depth = record.depth.moved(half_x - 0.5, half_y - 0.5);  // from the middle of the box
    const double reach = magnitude(depth.x) * (half_x + kGridShift) + magnitude(depth.y) * (half_y + kGridShift) +
                         kDepthTolerance * record.depth_terms;
    const double low = depth.c - reach, high = depth.c + reach;
    constexpr double kRounding = 1e-6;  // of a float, and more
    return {static_cast<float>(low - kRounding * magnitude(low)),
            static_cast<float>(high + kRounding * magnitude(high)), record.determinant > 0 ? 1 : -1};
  }
};

// A triangle seen from one pixel.
struct Candidate {
  const TriangleRecord* record;
  Line side[3], depth;   // of the record, relative to the pixel
  int32_t side_name[5];  // sides that cut the pixel: 0, 1, 2, kNear or kFar
  int32_t sides;         // their number; 0: the triangle covers the pixel
  int32_t slot;          // place in the list of the pixel
  int32_t triangle;
  int32_t corner[3];   // of the mesh
  int32_t partner[3];  // candidate across each side, see CoverageLists::find_partners

  // False where no part of the triangle lies in the pixel.
  DR_HD bool make(const TriangleRecord& of, int32_t column, int32_t row) {
    record = &of;
    sides = 0;
    const double u = column - of.column, v = row - of.row;
    for (int i = 0; i < 3; ++i) {
      side[i] = of.side[i].moved(u, v);
      if (!add_side(side[i], i)) return false;
    }
    depth = of.depth.moved(u, v);
    return of.crosses_depth == 0 || (add_depth_side(kNear) && add_depth_side(kFar));
  }

  // Distance in pixels from a side, >= 0 inside.
  DR_HD Line line(int name) const {
    if (name < kNear) return side[name];
    const double inverse = 1 / depth.slope();
    return name == kNear ? Line{depth.x * inverse, depth.y * inverse, (depth.c + 1) * inverse}
                         : Line{-depth.x * inverse, -depth.y * inverse, (1 - depth.c) * inverse};
  }

  // Distance in pixels of the centre from the nearest side's line, > 0 inside of the triangle.
  DR_HD double distance_inside() const {
    const double first = side[0].c < side[1].c ? side[0].c : side[1].c;
    return side[2].c < first ? side[2].c : first;
  }

  // e_i at a point.
  DR_HD double edge_at(int i, double u, double v) const { return record->slope[i] * side[i].at(u, v); }

 private:
  // Notes a side that cuts the pixel; false where the pixel is all beyond it.
  DR_HD bool add_side(const Line& distance, int name) {
    const double reach = distance.reach();
    if (!(distance.c + reach > kSideTolerance)) return false;
    if (distance.c - reach < -kSideTolerance) side_name[sides++] = name;
    return true;
  }

  DR_HD bool add_depth_side(int name) {
    const double sign = name == kNear ? 1 : -1;
    const Line inside = {sign * depth.x, sign * depth.y, 1 + sign * depth.c};
    if (inside.smallest() >= 0) return true;
    if (!(inside.largest() > 0)) return false;
    return add_side(line(name), name);
  }
};

// Where candidate j is in front of candidate i.
enum class Order { never, always, line };

// depth_i - depth_j, which is no distance in pixels, and whether it is positive on the whole pixel, on none of it, or
// on one side of its zero.
DR_HD Order order_of(const Candidate& i, const Candidate& j, Line* difference) {
  *difference = i.depth.minus(j.depth);
  const double low = difference->smallest(), high = difference->largest();
  const double noise = kDepthTolerance * (i.record->depth_terms + j.record->depth_terms);
  if (low >= -noise && high <= noise) return j.triangle < i.triangle ? Order::always : Order::never;
  if (high <= 0) return Order::never;
  return low >= 0 ? Order::always : Order::line;
}

}  // namespace diffrender
