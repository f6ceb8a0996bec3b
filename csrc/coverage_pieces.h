// Regions of a pixel as convex polygons: clipping a triangle to the pixel, and taking nearer triangles away from it.
#pragma once

#include "coverage_geometry.h"

namespace diffrender {

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
    difference = difference.times(1 / difference.slope());
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
