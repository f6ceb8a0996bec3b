// Exact box-filtered visibility: what area of each pixel each triangle shows, and where the middle of that area lies on
// the triangle.
#pragma once

#include "coverage_lists.h"

namespace diffrender {

struct CoverageForward {
  CoverageLists lists;
  int64_t* counts;       // [B H W] fragments of each pixel
  double* weight;        // [N] 0 where the candidate is not seen
  double* barycentrics;  // [N, 2]
  double* depth;         // [N]

  DR_HD_CALL void pixel(int64_t p, const CoverageScratch& scratch) const {
    const int64_t begin = lists.offsets[p], end = lists.offsets[p + 1];
    counts[p] = 0;
    if (begin == end) return;
    for (int64_t k = begin; k < end; ++k) {
      weight[k] = 0;
      barycentrics[2 * k] = 0;
      barycentrics[2 * k + 1] = 0;
      depth[k] = 1;
    }
    const Candidate* const candidates = scratch.candidates;
    const auto at = lists.place(p);
    // What lies behind a smooth surface need not be looked at.
    const int winding = end - begin > 1 ? lists.front_winding(p, at) : 0;
    int count = lists.collect(p, at, winding, scratch.candidates);
    bool whole = count == 1 && candidates[0].sides == 0;
    int center = whole ? 0 : lists.keep_smooth_surface(at, scratch.candidates, &count);
    if (winding != 0 && center < 0) {
      count = lists.collect(p, at, 0, scratch.candidates);
      whole = count == 1 && candidates[0].sides == 0;
      center = whole ? 0 : lists.keep_smooth_surface(at, scratch.candidates, &count);
    }
    if (count == 0) return;
    if (whole) {
      write(p, candidates[0], {1, 0, 0}, 1);
      return;
    }
    if (center >= 0 && lists.merge) {
      write(p, candidates[center], {1, 0, 0}, 1);
      return;
    }
    const PixelCandidates pixel = {candidates, count, center >= 0, lists.square(at)};
    Moments rest = pixel.square.moments();
    for (int i = 0; i < count; ++i) {
      if (lists.is_rest(pixel, center, i)) continue;
      int pieces;
      const Moments m = lists.visible_moments(pixel, i, scratch.stack, nullptr, &pieces);
      rest = {rest.area - m.area, rest.x - m.x, rest.y - m.y};
      if (m.area >= 10 * kSmallestArea) write(p, candidates[i], m, pixel.square.area());
    }
    if (lists.is_rest(pixel, center, center)) write(p, candidates[center], rest, pixel.square.area());
  }

  DR_HD void write(int64_t p, const Candidate& c, const Moments& m, double pixel_area) const {
    const int64_t k = lists.offsets[p] + c.slot;
    ++counts[p];
    const double u = m.x / m.area, v = m.y / m.area;
    const double e0 = c.edge_at(0, u, v), e1 = c.edge_at(1, u, v), e2 = c.edge_at(2, u, v);
    const double inverse = reciprocal_or_zero(e0 + e1 + e2);
    weight[k] = m.area < pixel_area ? m.area / pixel_area : 1.0;
    barycentrics[2 * k] = e0 * inverse;
    barycentrics[2 * k + 1] = e1 * inverse;
    depth[k] = c.depth.at(u, v);
  }
};

// The fragments that are seen, without gaps.
struct CoverageCompact {
  const int64_t* offsets;      // [P + 1] of the candidates
  const int32_t* candidates;   // [N]
  const double* weight;        // [N]
  const double* barycentrics;  // [N, 2]
  const double* depth;         // [N]
  const int64_t* new_offsets;  // [P + 1] of the fragments
  int32_t* new_triangles;      // [M]
  double* new_weight;          // [M]
  double* new_barycentrics;    // [M, 2]
  double* new_depth;           // [M]
  int64_t* new_pixel;          // [M]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t p = begin; p < end; ++p) {
      int64_t place = new_offsets[p];
      for (int64_t k = offsets[p]; k < offsets[p + 1] && place < new_offsets[p + 1]; ++k) {
        if (!(weight[k] > 0)) continue;
        new_triangles[place] = candidates[k];
        new_weight[place] = weight[k];
        new_barycentrics[2 * place] = barycentrics[2 * k];
        new_barycentrics[2 * place + 1] = barycentrics[2 * k + 1];
        new_depth[place] = depth[k];
        new_pixel[place++] = p;
      }
    }
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
