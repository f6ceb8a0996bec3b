// Exact visibility inside one pixel: triangles as half-planes of the pixel, convex pieces, and their moments.
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
// Areas (square pixels) below are rounding.
constexpr double kSmallestArea = 1e-15;
// Differences of depth below this part of the summands of both depths are ties.
constexpr double kDepthTolerance = 1e-13;

constexpr int kNear = 3, kFar = 4, kDepth = 5;  // sides of a triangle: 0, 1, 2 opposite to the corners, then these
constexpr int32_t kPixelSide = -1;              // label of what does not move
constexpr int32_t kNoPartner = -1;              // a side that does not cut the pixel
constexpr int32_t kOpen = -2;                   // a side that cuts it and has no partner

struct Line {
  double x, y, c;

  DR_HD double at(double u, double v) const { return x * u + y * v + c; }
  DR_HD double reach() const { return (0.5 + kGridShift) * (magnitude(x) + magnitude(y)); }
  DR_HD double largest() const { return c + reach(); }  // over the pixel
  DR_HD double smallest() const { return c - reach(); }
  DR_HD double slope() const { return ::sqrt(x * x + y * y); }
  DR_HD Line times(double s) const { return {s * x, s * y, s * c}; }
  DR_HD Line moved(double u, double v) const { return {x, y, c + x * u + y * v}; }  // seen from (u, v)
  DR_HD Line minus(Line o) const { return {x - o.x, y - o.y, c - o.c}; }
};

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
};

struct Moments {
  double area, x, y;  // integrals of 1, u, v

  DR_HD Moments minus(const Moments& o) const { return {area - o.area, x - o.x, y - o.y}; }
};

// A pixel in its local coordinates. The frame's own border is where it should be.
struct PixelSquare {
  double left, right, top, bottom;

  DR_HD static PixelSquare make(int32_t column, int32_t row, int32_t width, int32_t height) {
    return {column > 0 ? -0.5 + kGridShift : -0.5, column + 1 < width ? 0.5 + kGridShift : 0.5,
            row > 0 ? -0.5 + kGridShift : -0.5, row + 1 < height ? 0.5 + kGridShift : 0.5};
  }

  DR_HD double area() const { return (right - left) * (bottom - top); }
  DR_HD Moments moments() const { return {area(), area() * 0.5 * (left + right), area() * 0.5 * (top + bottom)}; }
};

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

// depth_i - depth_j, and whether it is positive on the whole pixel, on none of it, or on one side of its zero.
DR_HD Order order_of(const Candidate& i, const Candidate& j, Line* difference) {
  *difference = i.depth.minus(j.depth);
  const double low = difference->smallest(), high = difference->largest();
  const double noise = kDepthTolerance * (i.record->depth_terms + j.record->depth_terms);
  if (low >= -noise && high <= noise) return j.triangle < i.triangle ? Order::always : Order::never;
  if (high <= 0) return Order::never;
  if (low >= 0) return Order::always;
  *difference = difference->times(1 / difference->slope());
  return Order::line;
}

// --- convex pieces --------------------------------------------------------------------------------

constexpr int kMaximumCorners = 16;  // of a piece
constexpr int kComfortable = 12;     // a piece with more corners is cut in two before anything else is done with it

// A convex polygon. label[k] names the line of the edge from corner k to corner k + 1: what the edge moves with.
struct Piece {
  double x[kMaximumCorners], y[kMaximumCorners];
  int32_t label[kMaximumCorners];
  int32_t count;
  int32_t next;  // first candidate that has not been taken away from it

  DR_HD void add(double px, double py, int32_t name) {
    if (count == kMaximumCorners) return;  // only a piece that rounding made concave gets here; a corner less of it
    x[count] = px;
    y[count] = py;
    label[count++] = name;
  }
};

// Label of a side of a candidate; `beyond` = the piece lies on its negative side.
DR_HD int32_t make_label(int candidate, int name, bool beyond) { return candidate * 16 + name * 2 + (beyond ? 1 : 0); }

DR_HD void copy_piece(const Piece& from, Piece* to) {
  for (int k = 0; k < from.count; ++k) {
    to->x[k] = from.x[k];
    to->y[k] = from.y[k];
    to->label[k] = from.label[k];
  }
  to->count = from.count;
  to->next = from.next;
}

enum class Place { beyond, inside, cut };

// Distances of the corners from a line, and where they lie.
DR_HD Place place_of(const Piece& p, Line line, double distance[kMaximumCorners]) {
  bool some_inside = false, some_beyond = false;
  for (int k = 0; k < p.count; ++k) {
    distance[k] = line.at(p.x[k], p.y[k]);
    some_inside = some_inside || distance[k] > kSideTolerance;
    some_beyond = some_beyond || distance[k] < -kSideTolerance;
  }
  return !some_inside ? Place::beyond : (some_beyond ? Place::cut : Place::inside);
}

// Both parts of a piece that a line cuts. `beyond` may be null.
DR_HD_CALL void cut_piece(const Piece& p, const double distance[kMaximumCorners], int candidate, int name,
                          Piece* inside, Piece* beyond) {
  inside->count = 0;
  if (beyond != nullptr) beyond->count = 0;
  for (int k = 0; k < p.count; ++k) {
    const int next = k + 1 == p.count ? 0 : k + 1;
    const bool is_in = distance[k] >= 0, next_in = distance[next] >= 0;
    if (is_in) inside->add(p.x[k], p.y[k], p.label[k]);
    if (!is_in && beyond != nullptr) beyond->add(p.x[k], p.y[k], p.label[k]);
    if (is_in == next_in) continue;
    const double t = distance[k] / (distance[k] - distance[next]);
    const double x = p.x[k] + t * (p.x[next] - p.x[k]), y = p.y[k] + t * (p.y[next] - p.y[k]);
    // Leaving, the inner part goes on along the cut and the outer one along the old edge; entering, the reverse.
    inside->add(x, y, is_in ? make_label(candidate, name, false) : p.label[k]);
    if (beyond != nullptr) beyond->add(x, y, is_in ? p.label[k] : make_label(candidate, name, true));
  }
}

// Relative to the first corner, so that a small piece keeps its digits.
DR_HD void add_moments(const Piece& p, Moments* m) {
  double area = 0, x = 0, y = 0;
  for (int k = 1; k + 1 < p.count; ++k) {
    const double ax = p.x[k] - p.x[0], ay = p.y[k] - p.y[0], bx = p.x[k + 1] - p.x[0], by = p.y[k + 1] - p.y[0];
    const double part = 0.5 * (ax * by - ay * bx);
    area += part;
    x += part * (ax + bx);
    y += part * (ay + by);
  }
  m->area += area;
  m->x += p.x[0] * area + x / 3;
  m->y += p.y[0] * area + y / 3;
}

DR_HD double area_of(const Piece& p) {
  Moments m = {0, 0, 0};
  add_moments(p, &m);
  return m.area;
}

// Pieces that may wait at once: each of at most 6 lines of the n - 1 others leaves at most one behind, and after a cut
// in two it takes 4 lines to need another. A scratch of this size can not overflow.
DR_HD int64_t stack_bound(int64_t candidates) { return 8 * candidates + 8; }

// Cuts a piece of many corners along a chord: the chord belongs to both parts, so whatever moves it has no effect.
DR_HD_CALL void halve(Piece* p, Piece* rest) {
  const int half = p->count / 2;
  rest->count = 0;
  rest->next = p->next;
  for (int k = half; k < p->count; ++k) rest->add(p->x[k], p->y[k], p->label[k]);
  rest->add(p->x[0], p->y[0], kPixelSide);
  p->count = half + 1;
  p->label[half] = kPixelSide;
}

// Takes candidate j away from a piece of candidate i. False where nothing of the piece is left; what lies beside j then
// waits on the stack.
DR_HD_CALL bool subtract(const Candidate* candidates, int i, int j, const Piece& piece, Piece* stack, int* top) {
  const Candidate& front = candidates[j];
  Line line[6];
  int name[6], lines = 0;
  double distance[kMaximumCorners];
  Line difference;
  const Order order = order_of(candidates[i], front, &difference);
  if (order == Order::never) return true;
  for (int s = 0; s < front.sides; ++s) {
    const Line side = front.line(front.side_name[s]);
    const Place place = place_of(piece, side, distance);
    if (place == Place::beyond) return true;
    if (place == Place::inside) continue;
    line[lines] = side;
    name[lines++] = front.side_name[s];
  }
  if (order == Order::line) {
    const Place place = place_of(piece, difference, distance);
    if (place == Place::beyond) return true;
    if (place == Place::cut) {
      line[lines] = difference;
      name[lines++] = kDepth;
    }
  }
  if (lines == 0) return false;
  // Cut off what is beyond each line in turn. The remainder is what j hides.
  const int before = *top;
  Piece remainder[2];
  int current = 0;
  copy_piece(piece, &remainder[0]);
  for (int s = 0; s < lines; ++s) {
    const Place place = place_of(remainder[current], line[s], distance);
    if (place == Place::inside) continue;
    if (place == Place::beyond) {
      *top = before;  // j lies beside the piece
      return true;
    }
    Piece* const beyond = stack + *top;
    cut_piece(remainder[current], distance, j, name[s], &remainder[1 - current], beyond);
    current = 1 - current;
    beyond->next = j + 1;
    if (area_of(*beyond) >= kSmallestArea) ++*top;
  }
  if (area_of(remainder[current]) < kSmallestArea) {
    *top = before;
    return true;
  }
  return false;
}

// The part of candidate i within the pixel; false where there is none. The result lies in piece[*current].
DR_HD_CALL bool own_piece(const Candidate& candidate, int i, const PixelSquare& square, Piece piece[2], int* current) {
  Piece* p = piece;
  p->count = 0;
  p->next = 0;
  p->add(square.left, square.top, kPixelSide);
  p->add(square.right, square.top, kPixelSide);
  p->add(square.right, square.bottom, kPixelSide);
  p->add(square.left, square.bottom, kPixelSide);
  *current = 0;
  double distance[kMaximumCorners];
  for (int s = 0; s < candidate.sides; ++s) {
    const Place place = place_of(*p, candidate.line(candidate.side_name[s]), distance);
    if (place == Place::beyond) return false;
    if (place == Place::inside) continue;
    *current = 1 - *current;
    cut_piece(*p, distance, i, candidate.side_name[s], piece + *current, nullptr);
    p = piece + *current;
    p->next = 0;
  }
  return true;
}

// The candidates of a pixel. `apart` = they do not overlap.
struct PixelCandidates {
  const Candidate* list;
  int count;
  bool apart;
  PixelSquare square;
};

// Calls visit(piece) for convex pieces that together are what the others of the pixel leave of candidate i, but those
// for which skip(j) holds.
template <class Skip, class Visit>
DR_HD void for_each_visible_piece(const PixelCandidates& pixel, int i, Piece* stack, const Skip& skip,
                                  const Visit& visit) {
  const Candidate* const candidates = pixel.list;
  const int count = pixel.count;
  Piece piece[2];
  int current;
  if (!own_piece(candidates[i], i, pixel.square, piece, &current)) return;
  Piece& p = piece[current];
  if (pixel.apart) p.next = count;
  int top = 0;
  while (true) {
    bool visible = true;
    while (visible && p.next < count) {
      if (p.next == i || skip(p.next)) {
        ++p.next;
        continue;
      }
      if (p.count > kComfortable) halve(&p, stack + top++);
      visible = subtract(candidates, i, p.next, p, stack, &top);
      ++p.next;
    }
    if (visible) visit(p);
    if (top == 0) return;
    copy_piece(stack[--top], &p);
  }
}

template <class Visit>
DR_HD void for_each_visible_piece(const PixelCandidates& pixel, int i, Piece* stack, const Visit& visit) {
  for_each_visible_piece(pixel, i, stack, [](int) { return false; }, visit);
}

}  // namespace diffrender
