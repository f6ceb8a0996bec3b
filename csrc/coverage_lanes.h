// Derivative of coverage on the CPU: fragments of simple pixels, four at once.
//
// A whole pixel shows one triangle, at its centre. A star is a pixel of a smooth surface in which each triangle but the
// one at the centre lies beyond one edge of that: these others are half-planes of the pixel, the one at the centre has
// the rest. What CoverageBackward does for one of them is done here in lanes, and takes neither candidates nor
// polygons.
#pragma once

#include "core/lanes.h"
#include "coverage_sums.h"

namespace diffrender {

using Four = double __attribute__((vector_size(32)));
using FourInMemory = double __attribute__((vector_size(32), aligned(8), may_alias));
using FourIntegers = int32_t __attribute__((vector_size(16), aligned(4), may_alias));
using FourMask = decltype(Four{} < Four{});
using FourLine = LineOf<Four>;

// Rows become columns.
DR_HD void transpose_four(Four rows[4]) {
  const Four a = shuffle_lanes<0, 4, 2, 6>(rows[0], rows[1]), b = shuffle_lanes<1, 5, 3, 7>(rows[0], rows[1]);
  const Four c = shuffle_lanes<0, 4, 2, 6>(rows[2], rows[3]), d = shuffle_lanes<1, 5, 3, 7>(rows[2], rows[3]);
  rows[0] = shuffle_lanes<0, 1, 4, 5>(a, c);
  rows[1] = shuffle_lanes<0, 1, 4, 5>(b, d);
  rows[2] = shuffle_lanes<2, 3, 6, 7>(a, c);
  rows[3] = shuffle_lanes<2, 3, 6, 7>(b, d);
}

// Fragments that wait for others, with what comes in for them.
template <int kRoom>
struct FragmentQueue {
  int count = 0;
  TriangleSums::Slot* slot[kRoom];
  int32_t right[kRoom], below[kRoom];  // of the first pixel of the triangle's box
  double grad_weight[kRoom], grad_barycentrics[2][kRoom], grad_depth[kRoom];

  void add(const CoverageBackward& kernel, TriangleSums::Slot& of, int32_t column, int32_t row, int64_t k) {
    slot[count] = &of;
    right[count] = column - of.record.column;
    below[count] = row - of.record.row;
    grad_weight[count] = kernel.grad_weight.given() ? kernel.grad_weight.at(k) : 0.0;
    for (int n = 0; n < 2; ++n)
      grad_barycentrics[n][count] = kernel.grad_barycentrics.given() ? kernel.grad_barycentrics.at(2 * k + n) : 0.0;
    grad_depth[count] = kernel.grad_depth.given() ? kernel.grad_depth.at(k) : 0.0;
    ++count;
  }

  // Makes the number of those a multiple of four that may be read: copies of the last one, which nobody counts.
  void pad() {
    for (int i = count; i % 4 != 0; ++i) {
      slot[i] = slot[i - 1];
      right[i] = right[i - 1];
      below[i] = below[i - 1];
      grad_weight[i] = grad_barycentrics[0][i] = grad_barycentrics[1][i] = grad_depth[i] = 0;
    }
  }
};

// Gradients of the lines of four triangles, in the order of CandidateGradient.
struct FourGradients {
  Four value[12];

  void set(int line, const Four& x, const Four& y, const Four& c) {
    value[3 * line] = x;
    value[3 * line + 1] = y;
    value[3 * line + 2] = c;
  }

  // Adds lane l to the sum of slot[l] where wanted(l).
  template <class Wanted>
  DR_HD void add_to(TriangleSums::Slot* const slot[4], const Wanted& wanted) {
    for (int n = 0; n < 12; n += 4) transpose_four(value + n);
    for (int l = 0; l < 4; ++l) {
      if (!wanted(l)) continue;
      double* const sum = &slot[l]->sum.edge[0].x;
      for (int n = 0; n < 3; ++n)
        store_lanes<FourInMemory>(sum + 4 * n, load_lanes<FourInMemory>(sum + 4 * n) + value[4 * n + l]);
    }
  }
};

// Four triangles, each as a pixel of its own sees it.
struct FourTriangles {
  FourLine side[3], depth;
  Four slope[3];

  // record_of(l) at the pixel right (u) of and below (v) that of the record.
  template <class RecordOf>
  DR_HD static FourTriangles load(const RecordOf& record_of, const Four& u, const Four& v) {
    FourTriangles t;
    Four values[16];
    for (int n = 0; n < 4; ++n) {
      for (int l = 0; l < 4; ++l) values[4 * n + l] = load_lanes<FourInMemory>(&record_of(l).side[0].x + 4 * n);
      transpose_four(values + 4 * n);
    }
    for (int n = 0; n < 3; ++n) {
      t.side[n] = FourLine{values[3 * n], values[3 * n + 1], values[3 * n + 2]}.moved(u, v);
      t.slope[n] = values[12 + n];
    }
    t.depth = FourLine{values[9], values[10], values[11]}.moved(u, v);
    return t;
  }
};

// Four fragments as their pixels see them.
struct FourFragments : FourTriangles {
  Four u, v;  // the pixel, seen from the first one of the triangle's box
  Four grad_weight, grad_barycentrics[2], grad_depth;

  template <int kRoom>
  DR_HD static FourFragments load(const FragmentQueue<kRoom>& queue, int first) {
    FourFragments f;
    f.u = __builtin_convertvector(load_lanes<FourIntegers>(queue.right + first), Four);
    f.v = __builtin_convertvector(load_lanes<FourIntegers>(queue.below + first), Four);
    const auto record_of = [&](int l) -> const TriangleRecord& { return queue.slot[first + l]->record; };
    static_cast<FourTriangles&>(f) = FourTriangles::load(record_of, f.u, f.v);
    f.grad_weight = load_lanes<FourInMemory>(queue.grad_weight + first);
    for (int n = 0; n < 2; ++n) f.grad_barycentrics[n] = load_lanes<FourInMemory>(queue.grad_barycentrics[n] + first);
    f.grad_depth = load_lanes<FourInMemory>(queue.grad_depth + first);
    return f;
  }

  // CoverageBackward::at_middle for the places (x, y), seen from the centres of the pixels.
  DR_HD FourLine at_middle(const Four& x, const Four& y, FourGradients* out) const {
    const Four zero = {};
    const Four e[3] = {slope[0] * side[0].at(x, y), slope[1] * side[1].at(x, y), slope[2] * side[2].at(x, y)};
    const Four total = e[0] + e[1] + e[2];
    const Four inverse = magnitude(total) >= kSmallestNormal<double> ? 1 / total : zero;
    const Four s = (grad_barycentrics[0] * e[0] + grad_barycentrics[1] * e[1]) * inverse;
    const Four grad_e[3] = {(grad_barycentrics[0] - s) * inverse, (grad_barycentrics[1] - s) * inverse, -s * inverse};
    FourLine grad_c = {grad_depth * depth.x, grad_depth * depth.y, zero};
    const Four across = u + x, down = v + y;
    for (int n = 0; n < 3; ++n) {
      const Four along = grad_e[n] * slope[n];
      grad_c.x += along * side[n].x;
      grad_c.y += along * side[n].y;
      out->set(n, grad_e[n] * across, grad_e[n] * down, grad_e[n]);
    }
    out->set(3, grad_depth * across, grad_depth * down, grad_depth);
    return grad_c;
  }

  // CoverageBackward::integrand.
  template <class Area>
  DR_HD FourLine integrand(const MomentsOf<Four>& m, const Area& pixel_area, FourGradients* out) const {
    const Four inverse = m.area >= kSmallestArea ? 1 / m.area : Four{}, x = m.x * inverse, y = m.y * inverse;
    const FourLine g = at_middle(x, y, out);
    return {g.x * inverse, g.y * inverse, grad_weight / pixel_area - (g.x * x + g.y * y) * inverse};
  }

  // Adds what an edge gives that moves with side n. The integrals are seen from the pixel.
  DR_HD void add_edge(int n, const FourLine& along, const FourMask& wanted, FourGradients* out) const {
    const Four factor = wanted ? 1 / slope[n] : Four{}, c = factor * along.c;
    out->value[3 * n] += factor * along.x + u * c;
    out->value[3 * n + 1] += factor * along.y + v * c;
    out->value[3 * n + 2] += c;
  }
};

// Part of a line.
struct FourRange {
  Four low, high;

  // The part where slope t + value >= 0.
  DR_HD void keep(const Four& slope, const Four& inverse, const Four& value) {
    const Four zero = -value * inverse;
    low = ((slope > 0) & (zero > low)) ? zero : low;
    high = ((slope < 0) & (zero < high)) ? zero : high;
    high = ((slope == 0) & (value < 0)) ? low : high;
  }

  DR_HD Four length() const { return high > low ? high - low : Four{}; }
  DR_HD Four middle() const { return 0.5 * (low + high); }
};

// Four triangles within their pixels, each of which it may cut by all of its sides.
//
// The part is convex. Its border lies on seven lines, three sides of the triangle and four of the pixel, and the border
// on one of them is what the others leave of it: a range. Seen from a point o of the part, the border on line i is at a
// distance h_i >= 0, has the length l_i and the middle m_i, and spans with o a triangle of area h_i l_i / 2 and middle
// (o + 2 m_i) / 3:
//   area = sum of h_i l_i / 2      first moments = o area + sum of h_i l_i (m_i - o) / 3
// No summand is negative, so that a small part keeps its digits. For o we take the middle of one of the edges, and the
// centre of the pixel where there is none: there the part is all of the pixel or nothing.
struct FourPieces {
  MomentsOf<Four> moments;
  FourMask has_edge[3];
  Four x[3][2], y[3][2], length[3];  // of the edges

  DR_HD static FourPieces make(const FourLine side[3], const PixelSquareOf<Four>& square) {
    FourPieces piece;
    Four inverse_x[3], inverse_y[3], middle_x[3], middle_y[3];
    for (int k = 0; k < 3; ++k) {
      inverse_x[k] = 1 / side[k].x;
      inverse_y[k] = 1 / side[k].y;
    }
    FourRange range[3];
    const Four far = Four{} + 4.0;  // further than any place of the pixel from the foot of its centre on the line
    for (int k = 0; k < 3; ++k) {
      // Side k is the line of the points (-c x - t y, -c y + t x), where (x, y) has the length 1.
      const FourLine& s = side[k];
      const Four foot_x = -s.c * s.x, foot_y = -s.c * s.y;
      range[k] = {-far, far};
      range[k].keep(-s.y, -inverse_y[k], foot_x - square.left);
      range[k].keep(s.y, inverse_y[k], square.right - foot_x);
      range[k].keep(s.x, inverse_x[k], foot_y - square.top);
      range[k].keep(-s.x, -inverse_x[k], square.bottom - foot_y);
    }
    for (int k = 0; k < 3; ++k) {
      const int j = (k + 1) % 3;
      const FourLine &a = side[k], &b = side[j];
      const Four cross = a.x * b.y - a.y * b.x, inverse = 1 / cross, dot = a.x * b.x + a.y * b.y;
      range[k].keep(cross, inverse, b.c - a.c * dot);
      range[j].keep(-cross, -inverse, a.c - b.c * dot);
    }
    Four from_x = {}, from_y = {};
    for (int k = 0; k < 3; ++k) {
      const FourLine& s = side[k];
      piece.has_edge[k] = (s.smallest() < -kSideTolerance) & (range[k].high > range[k].low);
      const Four low = piece.has_edge[k] ? range[k].low : Four{}, high = piece.has_edge[k] ? range[k].high : Four{};
      piece.length[k] = high - low;
      piece.x[k][0] = -s.c * s.x - low * s.y;
      piece.y[k][0] = -s.c * s.y + low * s.x;
      piece.x[k][1] = -s.c * s.x - high * s.y;
      piece.y[k][1] = -s.c * s.y + high * s.x;
      middle_x[k] = 0.5 * (piece.x[k][0] + piece.x[k][1]);
      middle_y[k] = 0.5 * (piece.y[k][0] + piece.y[k][1]);
      from_x = piece.has_edge[k] ? middle_x[k] : from_x;
      from_y = piece.has_edge[k] ? middle_y[k] : from_y;
    }
    MomentsOf<Four> sum = {Four{}, Four{}, Four{}};
    const auto add = [&](const Four& distance, const Four& length, const Four& x, const Four& y) {
      const Four part = distance * length;
      sum.area += part;
      sum.x += part * (x - from_x);
      sum.y += part * (y - from_y);
    };
    for (int k = 0; k < 3; ++k) add(side[k].at(from_x, from_y), piece.length[k], middle_x[k], middle_y[k]);
    for (int n = 0; n < 2; ++n) {
      const Four column = n == 0 ? square.left : square.right, row = n == 0 ? square.top : square.bottom;
      FourRange down = {square.top, square.bottom}, right = {square.left, square.right};
      for (int k = 0; k < 3; ++k) {
        down.keep(side[k].y, inverse_y[k], side[k].x * column + side[k].c);
        right.keep(side[k].x, inverse_x[k], side[k].y * row + side[k].c);
      }
      // A range without length may end anywhere.
      const FourMask is_down = down.high > down.low, is_right = right.high > right.low;
      add(n == 0 ? from_x - column : column - from_x, down.length(), column, is_down ? down.middle() : from_y);
      add(n == 0 ? from_y - row : row - from_y, right.length(), is_right ? right.middle() : from_x, row);
    }
    const Four area = 0.5 * sum.area;
    piece.moments = {area, from_x * area + sum.x / 3, from_y * area + sum.y / 3};
    return piece;
  }
};

}  // namespace diffrender
