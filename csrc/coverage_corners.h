// Derivative of coverage on the CPU: pixels of the simple kinds without candidates, and one sum per triangle.
#pragma once

#include "core/lanes.h"
#include "coverage_backward.h"

namespace diffrender {

// Adds up the gradients of each triangle over its pixels, relative to the first pixel of its box, and hands them on to
// the corners when another triangle needs the place. For the CPU, where one worker goes through many pixels in a row.
struct CornersPerTriangle {
  static constexpr int kPlaces = 1024;
  using Four = double __attribute__((vector_size(32), aligned(8), may_alias));

  struct Place {
    CandidateGradient sum;
    int64_t item;
    const TriangleRecord* record;  // null: nobody's
    int32_t triangle;
  };

  const CoverageBackward& kernel;
  const Sink<double>& sink;
  Place* places;  // [kPlaces]

  DR_HD void add(int64_t item, int32_t column, int32_t row, const Candidate& c, const CandidateGradient& g) const {
    CandidateGradient& sum = sum_of(item, c.triangle, c.record);
    const double u = column - c.record->column, v = row - c.record->row;
    for (int k = 0; k < 3; ++k) add_moved(&sum.edge[k], g.edge[k], u, v);
    add_moved(&sum.depth, g.depth, u, v);
  }

  // A pixel for which fragment k stands alone: CoverageBackward::at_middle for its centre, which does not move.
  DR_HD void add_whole(int64_t item, int32_t column, int32_t row, int64_t k) const {
    const int32_t triangle = kernel.lists.triangles[k];
    const TriangleRecord& record = kernel.lists.records[item * kernel.lists.mesh.triangle_count + triangle];
    at_place(k, record, column - record.column, row - record.row, &sum_of(item, triangle, &record));
  }

  // CoverageBackward::at_middle for the place (u, v) seen from the first pixel of the box. The lanes are the edges and
  // the depth.
  DR_HD Line at_place(int64_t k, const TriangleRecord& r, double u, double v, CandidateGradient* sum) const {
    if (!kernel.grad_barycentrics.given() && !kernel.grad_depth.given()) return {0, 0, 0};
    const Four x = {r.side[0].x, r.side[1].x, r.side[2].x, r.depth.x};
    const Four y = {r.side[0].y, r.side[1].y, r.side[2].y, r.depth.y};
    const Four c = {r.side[0].c, r.side[1].c, r.side[2].c, r.depth.c};
    const Four slope = {r.slope[0], r.slope[1], r.slope[2], 1};
    Four grad = {0, 0, 0, kernel.grad_depth.given() ? kernel.grad_depth.at(k) : 0.0};
    if (kernel.grad_barycentrics.given()) {
      const Four e = slope * (x * u + y * v + c);
      const double total = reciprocal_or_zero(e[0] + e[1] + e[2]);
      const double g0 = kernel.grad_barycentrics.at(2 * k), g1 = kernel.grad_barycentrics.at(2 * k + 1);
      const double s = (g0 * e[0] + g1 * e[1]) * total;
      grad = Four{(g0 - s) * total, (g1 - s) * total, -s * total, grad[3]};
    }
    // grad (u, v, 1) for each of the four, one after the other.
    double* const sums = &sum->edge[0].x;
    add_four(sums, shuffle_lanes<0, 0, 0, 1>(grad, grad) * Four{u, v, 1, u});
    add_four(sums + 4, shuffle_lanes<1, 1, 2, 2>(grad, grad) * Four{v, 1, u, v});
    add_four(sums + 8, shuffle_lanes<2, 3, 3, 3>(grad, grad) * Four{1, u, v, 1});
    const Four along = grad * slope, grad_u = along * x, grad_v = along * y;
    return {(grad_u[0] + grad_u[1]) + (grad_u[2] + grad_u[3]), (grad_v[0] + grad_v[1]) + (grad_v[2] + grad_v[3]), 0};
  }

  static constexpr int kMost = 4;  // fragments of a pixel that add_star takes

  // CoverageBackward::star for fragments k ... k + count - 1, without candidates and at once relative to the first
  // pixels of their boxes. False, and nothing done, where they are not that.
  DR_HD bool add_star(const CoverageLists::PixelPlace& at, int64_t k, int count, int center) const {
    const CoverageLists& lists = kernel.lists;
    const TriangleRecord* const first = lists.records + at.item * lists.mesh.triangle_count;
    const PixelSquare square = lists.square(at);
    HalfSquare half[kMost];
    int name[kMost];
    Moments rest = square.moments();
    for (int i = 0; i < count; ++i) {
      if (!lists.has(k + i)) return false;
      const TriangleRecord& r = first[lists.triangles[k + i]];
      if (r.valid == 0 || r.crosses_depth != 0) return false;
      if (i == center) continue;
      Line line = {0, 0, 0};
      double which = 0, cuts = 0;
      for (int n = 0; n < 3; ++n) {
        const Line side = r.side[n].moved(at.column - r.column, at.row - r.row);
        const Choice cut = Choice::less(side.smallest(), -kSideTolerance);
        which = cut.of(n, which);
        line = {cut.of(side.x, line.x), cut.of(side.y, line.y), cut.of(side.c, line.c)};
        cuts += cut.of(1, 0);
      }
      if (cuts != 1) return false;
      name[i] = static_cast<int>(which);
      half[i] = half_square(square, line);
      rest = rest.minus(half[i].moments);
    }
    if (rest.area < CoverageLists::kLeastRest) return false;
    if (!kernel.any_gradient(k, count)) return true;
    const auto record = [&](int i) -> const TriangleRecord& { return first[lists.triangles[k + i]]; };
    const Line f = integrand(at, k + center, record(center), rest, square.area());
    for (int i = 0; i < count; ++i) {
      if (i == center || !(half[i].moments.area >= kSmallestArea)) continue;
      CandidateGradient* sum;
      const Line g = integrand(at, k + i, record(i), half[i].moments, square.area(), &sum);
      const Line along =
          CoverageBackward::along_edge(half[i].x[0], half[i].y[0], half[i].x[1], half[i].y[1], g.minus(f));
      add_moved(&sum->edge[name[i]], along.times(1 / record(i).slope[name[i]]), at.column - record(i).column,
                at.row - record(i).row);
    }
    return true;
  }

  // CoverageBackward::integrand, which adds to the sum of the triangle at once.
  DR_HD Line integrand(const CoverageLists::PixelPlace& at, int64_t k, const TriangleRecord& record, const Moments& m,
                       double pixel_area, CandidateGradient** out = nullptr) const {
    CandidateGradient& sum = sum_of(at.item, kernel.lists.triangles[k], &record);
    if (out != nullptr) *out = &sum;
    const double inverse = 1 / m.area, u = m.x * inverse, v = m.y * inverse;
    const Line g = at_place(k, record, u + (at.column - record.column), v + (at.row - record.row), &sum);
    const double constant = kernel.grad_weight.given() ? kernel.grad_weight.at(k) / pixel_area : 0.0;
    return {g.x * inverse, g.y * inverse, constant - (g.x * u + g.y * v) * inverse};
  }

  DR_HD static void add_four(double* to, const Four& values) { store_lanes(to, load_lanes<Four>(to) + values); }

  DR_HD CandidateGradient& sum_of(int64_t item, int32_t triangle, const TriangleRecord* record) const {
    Place& place = places[triangle % kPlaces];
    if (place.record != record) {
      hand_on(place);
      place = {CandidateGradient{}, item, record, triangle};
    }
    return place.sum;
  }

  DR_HD void hand_on(const Place& place) const {
    if (place.record == nullptr) return;
    const TriangleRecord& r = *place.record;
    kernel.flush(place.item, r.column, r.row, place.triangle, r, r.side, r.depth, place.sum, sink);
  }

  DR_HD void finish() const {
    for (int i = 0; i < kPlaces; ++i) hand_on(places[i]);
  }
};

}  // namespace diffrender
