// Exact box-filtered visibility: what area of each pixel each triangle shows, and where the middle of that area lies on
// the triangle.
#pragma once

#include "coverage_layers.h"

namespace diffrender {

// What a pixel shows of a triangle, from the moments of its region. `side` and `depth` are those of the record, seen
// from the pixel.
struct Shown {
  double weight, barycentrics[2], depth;

  DR_HD static Shown of(const TriangleRecord& record, const Line side[3], const Line& depth, const Moments& m,
                        double pixel_area) {
    const double inverse_area = 1 / m.area, u = m.x * inverse_area, v = m.y * inverse_area;
    double e[3];
    for (int k = 0; k < 3; ++k) e[k] = record.slope[k] * side[k].at(u, v);
    const double inverse = reciprocal_or_zero(e[0] + e[1] + e[2]);
    return {m.area < pixel_area ? m.area / pixel_area : 1.0, {e[0] * inverse, e[1] * inverse}, depth.at(u, v)};
  }
};

// What the candidates of some pixels show.
struct FragmentArrays {
  double* weight;        // [N] 0 where the candidate is not seen
  double* barycentrics;  // [N, 2]
  double* depth;         // [N]
  FragmentKind* kind;    // [N]

  DR_HD FragmentArrays from(int64_t first) const {
    return {weight + first, barycentrics + 2 * first, depth + first, kind + first};
  }

  DR_HD void clear(int64_t k) const {
    weight[k] = 0;
    barycentrics[2 * k] = 0;
    barycentrics[2 * k + 1] = 0;
    depth[k] = 1;
    kind[k] = FragmentKind::any;
  }

  DR_HD void set(const Candidate& c, const Moments& m, double pixel_area, FragmentKind what) const {
    const Shown shown = Shown::of(*c.record, c.side, c.depth, m, pixel_area);
    weight[c.slot] = shown.weight;
    barycentrics[2 * c.slot] = shown.barycentrics[0];
    barycentrics[2 * c.slot + 1] = shown.barycentrics[1];
    depth[c.slot] = shown.depth;
    kind[c.slot] = what;
  }
};

struct CoverageForward {
  CoverageLists lists;
  bool merge;       // pixels inside of a smooth surface are point samples
  int64_t* counts;  // [B H W] fragments of each pixel
  FragmentArrays out;

  DR_HD void pixel(int64_t p, const CoverageScratch& scratch) const {
    const PixelList list = lists.of(p);
    const FragmentArrays here = out.from(lists.offsets[p]);
    for (int32_t k = 0; k < list.count; ++k) here.clear(k);
    counts[p] = list.count > 0 ? show(list, lists.place(p), scratch, here) : 0;
  }

  // Writes the candidates of a pixel that are seen; returns their number.
  DR_HD_CALL int show(const PixelList& list, const CoverageLists::PixelPlace& at, const CoverageScratch& scratch,
                      const FragmentArrays& here) const {
    const Candidate* const candidates = scratch.candidates;
    // What lies behind a smooth surface need not be looked at.
    const int winding = list.count > 1 ? lists.front_winding(list, at) : 0;
    int count, center;
    bool whole = find(list, at, winding, scratch, &count, &center);
    if (winding != 0 && center < 0) whole = find(list, at, 0, scratch, &count, &center);
    if (count == 0) return 0;
    if (whole || (center >= 0 && merge)) {
      here.set(candidates[whole ? 0 : center], {1, 0, 0}, 1, FragmentKind::whole);
      return 1;
    }
    if (center < 0) {
      const int shown = show_front_layer({candidates, count, false, lists.square(at)}, scratch, here);
      if (shown >= 0) return shown;
    }
    return show_parts({candidates, count, center >= 0, lists.square(at)}, center, scratch.stack, here);
  }

  // Whether the pixel has but one candidate, which covers it. If not, `center` is that of a smooth surface, or -1.
  DR_HD bool find(const PixelList& list, const CoverageLists::PixelPlace& at, int winding,
                  const CoverageScratch& scratch, int* count, int* center) const {
    *count = lists.collect(list, at, winding, scratch.candidates);
    const bool whole = *count == 1 && scratch.candidates[0].sides == 0;
    if (!whole) lists.find_partners(at, scratch.candidates, *count, scratch.edges);
    *center = whole ? 0 : lists.keep_smooth_surface(scratch.candidates, count);
    return whole;
  }

  // The front layer of a closed surface, where nothing else is seen; -1 where that is not so. See coverage_layers.h.
  DR_HD_CALL static int show_front_layer(const PixelCandidates& pixel, const CoverageScratch& scratch,
                                         const FragmentArrays& here) {
    const int front = front_layer(pixel.list, pixel.count);
    if (front == 0) return -1;
    const double area = pixel.square.area();
    bool apart = true;
    int shown = 0;
    for (int i = 0; i < pixel.count; ++i) {
      if ((pixel.list[i].record->determinant > 0) != (front > 0)) continue;
      Moments m = {0, 0, 0};
      if (!front_moments(pixel, i, scratch.stack, &m, &apart)) {
        for (int k = 0; k < i; ++k) here.clear(pixel.list[k].slot);
        return -1;
      }
      if (!(m.area >= 10 * kSmallestArea)) continue;
      here.set(pixel.list[i], m, area, FragmentKind::any);
      ++shown;
    }
    for (int i = 0; i < pixel.count && apart; ++i) here.kind[pixel.list[i].slot] = FragmentKind::apart;
    return shown;
  }

  DR_HD_CALL static int show_parts(const PixelCandidates& pixel, int center, Piece* stack, const FragmentArrays& here) {
    const double area = pixel.square.area();
    const bool star = CoverageLists::is_star(pixel, center);
    Moments rest = pixel.square.moments();
    int shown = 0;
    const auto add = [&](int i, const Moments& m) {
      if (!(m.area >= 10 * kSmallestArea)) return;
      here.set(pixel.list[i], m, area, i == center ? FragmentKind::center : FragmentKind::any);
      ++shown;
    };
    for (int i = 0; i < pixel.count; ++i) {
      if (star && i == center) continue;
      int pieces;
      const Moments m = CoverageLists::visible_moments(pixel, i, stack, nullptr, &pieces);
      rest = rest.minus(m);
      add(i, m);
    }
    if (!star) return shown;
    int pieces;
    add(center, rest.area >= CoverageLists::kLeastRest
                    ? rest
                    : CoverageLists::visible_moments(pixel, center, stack, nullptr, &pieces));
    return shown;
  }
};

// The fragments that are seen, without gaps. Items are the pixels and behind them the places of the result: those
// beyond the last fragment are made to show nothing.
struct CoverageCompact {
  int64_t pixels, capacity;
  const int64_t* offsets;      // [P + 1] of the candidates
  const int32_t* candidates;   // [N]
  const double* weight;        // [N]
  const double* barycentrics;  // [N, 2]
  const double* depth;         // [N]
  const uint8_t* kind;         // [N] FragmentKind
  const int64_t* new_offsets;  // [P + 1] of the fragments
  int32_t* new_triangles;      // [capacity]
  double* new_weight;          // [capacity]
  double* new_barycentrics;    // [capacity, 2]
  double* new_depth;           // [capacity]
  uint8_t* new_kind;           // [capacity]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      if (i < pixels) {
        copy(i);
      } else if (i - pixels >= new_offsets[pixels]) {
        leave_empty(i - pixels);
      }
    }
  }

  DR_HD void copy(int64_t p) const {
    int64_t place = new_offsets[p];
    for (int64_t k = offsets[p]; k < offsets[p + 1] && place < new_offsets[p + 1]; ++k) {
      if (!(weight[k] > 0)) continue;
      new_triangles[place] = candidates[k];
      new_weight[place] = weight[k];
      new_barycentrics[2 * place] = barycentrics[2 * k];
      new_barycentrics[2 * place + 1] = barycentrics[2 * k + 1];
      new_depth[place] = depth[k];
      new_kind[place++] = kind[k];
    }
  }

  DR_HD void leave_empty(int64_t place) const {
    new_triangles[place] = -1;
    new_weight[place] = 0;
    new_barycentrics[2 * place] = 0;
    new_barycentrics[2 * place + 1] = 0;
    new_depth[place] = 1;
    new_kind[place] = static_cast<uint8_t>(FragmentKind::any);
  }
};

struct CoverageForwardWorkers {
  CoverageForward kernel;
  CoverageWorkers workers;

  DR_HD void operator()(int64_t begin, int64_t end) const {
    workers.run(begin, end, kernel.lists.offsets,
                [&](int64_t p, const CoverageScratch& scratch) { kernel.pixel(p, scratch); });
  }
};

}  // namespace diffrender
