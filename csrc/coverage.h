// Exact box-filtered visibility: what area of each pixel each triangle shows, where the middle of that area lies on the
// triangle, and the derivative of both.
#pragma once

#include "core/scatter.h"
#include "coverage_candidates.h"

namespace diffrender {

// Gradient of a pixel to the lines of one candidate.
struct CandidateGradient {
  Line edge[3], depth;
};

DR_HD void add_line(Line* sum, double factor, Line line) {
  sum->x += factor * line.x;
  sum->y += factor * line.y;
  sum->c += factor * line.c;
}

// An array of float or double.
struct FloatArray {
  const void* values;
  bool is_double;

  DR_HD bool given() const { return values != nullptr; }
  DR_HD double at(int64_t i) const {
    return is_double ? static_cast<const double*>(values)[i] : static_cast<const float*>(values)[i];
  }
};

constexpr int kKept = 4;  // pieces of a region that the backward pass keeps from its first walk to its second

// Working memory of one worker, for pixels of up to `capacity` candidates.
struct CoverageScratch {
  Candidate* candidates;         // [capacity]
  CandidateGradient* gradients;  // [capacity]
  Piece* kept;                   // [kKept]
  Piece* stack;                  // [stack_bound(capacity)]

  DR_HD static int64_t bytes(int64_t capacity) {
    return capacity * static_cast<int64_t>(sizeof(Candidate) + sizeof(CandidateGradient)) +
           (kKept + stack_bound(capacity)) * static_cast<int64_t>(sizeof(Piece));
  }

  DR_HD static CoverageScratch at(uint8_t* memory, int64_t capacity) {
    CoverageScratch s;
    s.candidates = reinterpret_cast<Candidate*>(memory);
    s.gradients = reinterpret_cast<CandidateGradient*>(s.candidates + capacity);
    s.kept = reinterpret_cast<Piece*>(s.gradients + capacity);
    s.stack = s.kept + kKept;
    return s;
  }
};

// Lists of triangles per pixel, and what is common to forward and backward: the candidates that can be seen.
struct CoverageLists {
  RasterMesh<double> mesh;
  Viewport<double> viewport;
  const TriangleRecord* records;  // [B, T]
  const DepthRange* ranges;       // [B, T], forward only
  const int64_t* offsets;         // [B H W + 1]
  const int32_t* triangles;       // [N] triangles of each pixel, ascending
  bool merge;                     // pixels inside of a smooth surface are point samples

  struct PixelPlace {
    int64_t item;
    int32_t column, row;
  };

  DR_HD PixelPlace place(int64_t pixel) const {
    const int64_t per_item = static_cast<int64_t>(viewport.width) * viewport.height, item = pixel / per_item;
    const int64_t within = pixel - item * per_item;
    const int32_t row = static_cast<int32_t>(within / viewport.width);
    return {item, static_cast<int32_t>(within - static_cast<int64_t>(row) * viewport.width), row};
  }

  DR_HD PixelSquare square(const PixelPlace& at) const {
    return PixelSquare::make(at.column, at.row, viewport.width, viewport.height);
  }

  // Which winding, as the sign of D, lies in front of the other on the whole pixel, wherever the planes of all
  // triangles of the pixel reach; 0 where neither does. On a closed surface it is that of the front faces, away from
  // the silhouette.
  DR_HD int front_winding(int64_t pixel, const PixelPlace& at) const {
    const DepthRange* const first = ranges + at.item * mesh.triangle_count;
    float nearest[2] = {kLargest<float>, kLargest<float>}, farthest[2] = {-kLargest<float>, -kLargest<float>};
    for (int64_t k = offsets[pixel]; k < offsets[pixel + 1]; ++k) {
      if (static_cast<uint32_t>(triangles[k]) >= static_cast<uint32_t>(mesh.triangle_count)) continue;
      const DepthRange range = first[triangles[k]];
      const int side = range.winding > 0 ? 1 : 0;
      nearest[side] = range.low < nearest[side] ? range.low : nearest[side];
      farthest[side] = range.high > farthest[side] ? range.high : farthest[side];
    }
    if (nearest[0] > 1e30f || nearest[1] > 1e30f) return 0;
    if (farthest[1] < nearest[0]) return 1;
    return farthest[0] < nearest[1] ? -1 : front_winding_here(pixel, at);
  }

  // The same by the depths in this pixel alone, instead of those in the boxes of the triangles.
  DR_HD_CALL int front_winding_here(int64_t pixel, const PixelPlace& at) const {
    const TriangleRecord* const first = records + at.item * mesh.triangle_count;
    double nearest[2] = {kLargest<double>, kLargest<double>}, farthest[2] = {-kLargest<double>, -kLargest<double>};
    for (int64_t k = offsets[pixel]; k < offsets[pixel + 1]; ++k) {
      if (static_cast<uint32_t>(triangles[k]) >= static_cast<uint32_t>(mesh.triangle_count)) continue;
      const TriangleRecord& record = first[triangles[k]];
      const Line depth = record.depth.moved(at.column - record.column, at.row - record.row);
      const double noise = kDepthTolerance * record.depth_terms;
      const int side = record.determinant > 0 ? 1 : 0;
      const double low = depth.smallest() - noise, high = depth.largest() + noise;
      nearest[side] = low < nearest[side] ? low : nearest[side];
      farthest[side] = high > farthest[side] ? high : farthest[side];
    }
    if (nearest[0] > 1e300 || nearest[1] > 1e300) return 0;
    return farthest[1] < nearest[0] ? 1 : (farthest[0] < nearest[1] ? -1 : 0);
  }

  // Candidates that reach into the pixel, less those that lie behind one that covers all of it. `winding` = only those
  // whose D has this sign; 0 for all.
  DR_HD int collect(int64_t pixel, const PixelPlace& at, int winding, Candidate* candidates) const {
    const TriangleRecord* const first = records + at.item * mesh.triangle_count;
    int count = 0, cover = -1;
    for (int64_t k = offsets[pixel]; k < offsets[pixel + 1]; ++k) {
      Candidate& c = candidates[count];
      const int32_t triangle = triangles[k];
      if (static_cast<uint32_t>(triangle) >= static_cast<uint32_t>(mesh.triangle_count)) continue;
      if (winding != 0 && ranges[at.item * mesh.triangle_count + triangle].winding != winding) continue;
      if (first[triangle].valid == 0 || !c.make(first[triangle], at.column, at.row)) continue;
      c.slot = static_cast<int32_t>(k - offsets[pixel]);
      c.triangle = triangle;
      if (c.sides == 0 && (cover < 0 || c.depth.c < candidates[cover].depth.c)) cover = count;
      ++count;
    }
    if (cover < 0 || count == 1) return count;
    const Candidate front = candidates[cover];
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      Line difference;
      if (i != cover && order_of(candidates[i], front, &difference) == Order::always) continue;
      if (kept != i) candidates[kept] = candidates[i];
      ++kept;
    }
    return kept;
  }

  // The candidate at the pixel's centre if the pixel lies inside of a smooth surface, -1 elsewhere. That is so where
  // the candidates of one orientation are in front of all others, and every edge of theirs that crosses the pixel
  // separates two of them: then their number at a point is the same all over the pixel, and it is one at the centre.
  // Only they stay in the list, and they do not overlap.
  DR_HD int keep_smooth_surface(const PixelPlace& at, Candidate* candidates, int* count) const {
    int center = -1;
    for (int i = 0; i < *count; ++i) {
      const Candidate& c = candidates[i];
      for (int s = 0; s < c.sides; ++s) {
        if (c.side_name[s] >= kNear) return -1;
      }
      if (has_center(c) && (center < 0 || c.depth.c < candidates[center].depth.c)) center = i;
    }
    if (center < 0) return -1;
    const bool side = candidates[center].record->determinant > 0;
    for (int i = 0; i < *count; ++i) {
      const Candidate& c = candidates[i];
      if ((c.record->determinant > 0) != side) continue;
      if (i != center && has_center(c)) return -1;
      for (int s = 0; s < c.sides; ++s) {
        const int from = (c.side_name[s] + 1) % 3, to = (c.side_name[s] + 2) % 3;
        const int32_t* const own = mesh.triangles + static_cast<int64_t>(c.triangle) * 3;
        int against = 0, along = 0;
        for (int j = 0; j < *count; ++j) {
          if (j == i || (candidates[j].record->determinant > 0) != side) continue;
          against += has_edge(candidates[j], own[to], own[from]) ? 1 : 0;
          along += has_edge(candidates[j], own[from], own[to]) ? 1 : 0;
        }
        if ((against != 1 || along != 0) && !misses_pixel(at, own[from], own[to])) return -1;
      }
      for (int j = 0; j < *count; ++j) {
        Line difference;
        if ((candidates[j].record->determinant > 0) == side) continue;
        if (order_of(c, candidates[j], &difference) != Order::never) return -1;
      }
    }
    int kept = 0, result = -1;
    for (int i = 0; i < *count; ++i) {
      if ((candidates[i].record->determinant > 0) != side) continue;
      if (i == center) result = kept;
      if (kept != i) candidates[kept] = candidates[i];
      ++kept;
    }
    *count = kept;
    return result;
  }

  DR_HD static bool has_center(const Candidate& c) { return c.side[0].c >= 0 && c.side[1].c >= 0 && c.side[2].c >= 0; }

  DR_HD bool has_edge(const Candidate& c, int32_t from, int32_t to) const {
    const int32_t* const t = mesh.triangles + static_cast<int64_t>(c.triangle) * 3;
    return (t[0] == from && t[1] == to) || (t[1] == from && t[2] == to) || (t[2] == from && t[0] == to);
  }

  // Both ends of an edge beyond the same side of the pixel.
  DR_HD bool misses_pixel(const PixelPlace& at, int32_t from, int32_t to) const {
    const LocalFrame frame = LocalFrame::make(viewport, at.column, at.row);
    const Vec3<double> a = frame.local(mesh.vertex(at.item, from)), b = frame.local(mesh.vertex(at.item, to));
    if (!(a.z > 0 && b.z > 0)) return false;
    const double half = 0.5 + 2 * kGridShift, ha = half * a.z, hb = half * b.z;
    return (a.x > ha && b.x > hb) || (a.x < -ha && b.x < -hb) || (a.y > ha && b.y > hb) || (a.y < -ha && b.y < -hb);
  }

  // Whether candidate i has what the only other one leaves of the pixel: the one at the centre of two that share an
  // edge there. The other one does not reach the centre, so this is at least half of the pixel, and keeps its digits.
  DR_HD static bool is_rest(const PixelCandidates& pixel, int center, int i) {
    return pixel.apart && pixel.count == 2 && i == center;
  }

  // Moments of what the pixel shows of candidate i. Keeps the first kKept of its pieces, and counts all.
  DR_HD_CALL static Moments visible_moments(const PixelCandidates& pixel, int i, Piece* stack, Piece* kept,
                                            int* pieces) {
    Moments m = {0, 0, 0};
    *pieces = 0;
    for_each_visible_piece(pixel, i, stack, [&](const Piece& piece) {
      add_moments(piece, &m);
      if (kept != nullptr && *pieces < kKept) copy_piece(piece, kept + *pieces);
      ++*pieces;
    });
    return m;
  }
};

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

// Gradient of one pixel's fragments to the clip positions of its triangles.
//
// Fragment i has the region V_i, area A_i, first moments M_i, middle c_i = M_i / A_i, and at the middle barycentrics
// b = e(c_i) / (e_0 + e_1 + e_2) and depth d_i(c_i). With g_A, g_0, g_1, g_d on area, barycentrics and depth:
//   barycentrics  s = g_0 b_0 + g_1 b_1;  grad_e_k = (g_k - s) / (e_0 + e_1 + e_2)   (g_2 = 0)
//                 line of e_k += grad_e_k (c_x, c_y, 1);  grad_c += sum_k grad_e_k (slope of e_k)
//   depth         line of d_i += g_d (c_x, c_y, 1);  grad_c += g_d (slope of d_i)
//   middle        grad_M = grad_c / A,  grad_A = g_A - grad_c . c / A
// so that the loss moves with its region like the integral over V_i of f_i(p) = g_A + grad_c . (p - c) / A. By
// Reynolds' transport theorem only the boundary counts. V_i is a union of convex pieces whose edges lie on lines h = 0,
// each piece on the side s h >= 0 (s = 1 or -1) with |slope of h| = 1; a line that changes by dh moves its edge
// outwards by s dh:
//   d(loss) = sum over the edges of the integral along the edge of f_i s dh,      dh affine
//   line of h += s (integral of f_i u, integral of f_i v, integral of f_i)         f_i affine too: exact
// Edges along which a region was cut to get convex pieces belong to two pieces of the same f_i with opposite s and
// cancel. Edges between two regions get f_i from one side and -f_j from the other: the jump. Pixel sides do not move.
//   edge of a triangle   h = sign(D) e_k / |slope of e_k|          line of e_k += sign(D) / |slope| (...)
//   near, far            h = (d + 1) / |slope|, (1 - d) / |slope|   line of d += or -= 1 / |slope| (...)
//   crossing             h = (d_i - d_j) / |slope|                  line of d_i += ..., line of d_j -= ...
// The change of |slope| scales h, which is 0 on the edge: no term. From lines to corners:
//   e_k = q_i x q_j      grad_q_i += q_j x grad_e_k,  grad_q_j += grad_e_k x q_i
//   d . q_k = z_k        (the plane through three points) y_k = (e_k . grad_d) / D;  grad_z_k += y_k;  grad_q_k -= y_k
//   d q = (x W/2 + s_x w, -y H/2 + s_y w, w)   grad_x = W/2 grad_q.x, grad_y = -H/2 grad_q.y, grad_w = (s_x, s_y, 1) .
//   grad_q
struct CoverageBackward {
  CoverageLists lists;
  const uint8_t* merged;         // [N] or null: fragments that are point samples
  FloatArray grad_weight;        // [N] or null
  FloatArray grad_barycentrics;  // [N, 2] or null
  FloatArray grad_depth;         // [N] or null

  // `out` takes the gradients of the candidates' lines.
  template <class Out>
  DR_HD_CALL void pixel(int64_t p, const CoverageScratch& scratch, const Out& out) const {
    const int64_t begin = lists.offsets[p];
    if (begin == lists.offsets[p + 1]) return;
    const Candidate* const candidates = scratch.candidates;
    const auto at = lists.place(p);
    int count = lists.collect(p, at, 0, scratch.candidates);
    const bool whole =
        (count == 1 && candidates[0].sides == 0) || (merged != nullptr && count == 1 && merged[begin] != 0);
    const int center = !whole && count > 1 ? lists.keep_smooth_surface(at, scratch.candidates, &count) : -1;
    const PixelCandidates pixel = {candidates, count, center >= 0, lists.square(at)};
    for (int i = 0; i < count; ++i) scratch.gradients[i] = CandidateGradient{};
    if (lists.is_rest(pixel, center, center)) {
      two_neighbours(begin, pixel, center, scratch);
    } else {
      for (int i = 0; i < count; ++i) candidate(begin, pixel, i, whole, scratch);
    }
    for (int i = 0; i < count; ++i) out.add(at.item, at.column, at.row, candidates[i], scratch.gradients[i]);
  }

  DR_HD void candidate(int64_t begin, const PixelCandidates& pixel, int i, bool whole,
                       const CoverageScratch& scratch) const {
    Moments m = {1, 0, 0};
    int pieces = 0;
    if (!whole) m = lists.visible_moments(pixel, i, scratch.stack, scratch.kept, &pieces);
    if (!(m.area >= kSmallestArea)) return;
    const Line f = integrand(begin, pixel, i, m, scratch);
    if (whole || (f.x == 0 && f.y == 0 && f.c == 0)) return;
    if (pieces <= kKept) {
      for (int n = 0; n < pieces; ++n) at_boundary(scratch.kept[n], f, i, pixel.list, scratch.gradients);
    } else {
      at_boundary_of_many(pixel, f, i, scratch);
    }
  }

  // Two triangles that share the edge between them: its integral once, over the jump.
  DR_HD void two_neighbours(int64_t begin, const PixelCandidates& pixel, int center,
                            const CoverageScratch& scratch) const {
    const int other = 1 - center;
    int pieces = 0;
    const Moments m = lists.visible_moments(pixel, other, scratch.stack, scratch.kept, &pieces);
    const Moments all = pixel.square.moments();
    Line jump = integrand(begin, pixel, center, {all.area - m.area, all.x - m.x, all.y - m.y}, scratch).times(-1);
    if (!(m.area >= kSmallestArea)) return;
    add_line(&jump, 1, integrand(begin, pixel, other, m, scratch));
    for (int n = 0; n < pieces; ++n) at_boundary(scratch.kept[n], jump, other, pixel.list, scratch.gradients);
  }

  // f_i, after the gradient at a fixed middle.
  DR_HD Line integrand(int64_t begin, const PixelCandidates& pixel, int i, const Moments& m,
                       const CoverageScratch& scratch) const {
    const int64_t k = begin + pixel.list[i].slot;
    const double inverse = 1 / m.area, u = m.x * inverse, v = m.y * inverse;
    const Line slope = at_middle(k, pixel.list[i], u, v, &scratch.gradients[i]);
    const double constant = grad_weight.given() ? grad_weight.at(k) / pixel.square.area() : 0.0;
    return {slope.x * inverse, slope.y * inverse, constant - (slope.x * u + slope.y * v) * inverse};
  }

  // Barycentrics and depth at a fixed middle; returns grad_c.
  DR_HD Line at_middle(int64_t k, const Candidate& c, double u, double v, CandidateGradient* gradient) const {
    Line grad_c = {0, 0, 0};
    const Line place = {u, v, 1};
    if (grad_barycentrics.given()) {
      const double e0 = c.edge_at(0, u, v), e1 = c.edge_at(1, u, v),
                   inverse = reciprocal_or_zero(e0 + e1 + c.edge_at(2, u, v));
      const double g[3] = {grad_barycentrics.at(2 * k), grad_barycentrics.at(2 * k + 1), 0};
      const double s = (g[0] * e0 + g[1] * e1) * inverse;
      for (int n = 0; n < 3; ++n) {
        const double grad_e = (g[n] - s) * inverse;
        add_line(&gradient->edge[n], grad_e, place);
        add_line(&grad_c, grad_e * c.record->slope[n], c.side[n]);
      }
    }
    if (grad_depth.given()) {
      add_line(&gradient->depth, grad_depth.at(k), place);
      add_line(&grad_c, grad_depth.at(k), c.depth);
    }
    return grad_c;
  }

  DR_HD_CALL static void at_boundary_of_many(const PixelCandidates& pixel, Line f, int owner,
                                             const CoverageScratch& scratch) {
    for_each_visible_piece(pixel, owner, scratch.stack,
                           [&](const Piece& piece) { at_boundary(piece, f, owner, pixel.list, scratch.gradients); });
  }

  DR_HD_CALL static void at_boundary(const Piece& piece, Line f, int owner, const Candidate* candidates,
                                     CandidateGradient* gradients) {
    for (int k = 0; k < piece.count; ++k) {
      if (piece.label[k] == kPixelSide) continue;
      const int next = k + 1 == piece.count ? 0 : k + 1;
      const double x0 = piece.x[k], y0 = piece.y[k], x1 = piece.x[next], y1 = piece.y[next];
      const double length = ::sqrt((x1 - x0) * (x1 - x0) + (y1 - y0) * (y1 - y0));
      const double f0 = f.at(x0, y0), f1 = f.at(x1, y1), sixth = length / 6;
      const Line moments = {sixth * (x0 * (2 * f0 + f1) + x1 * (f0 + 2 * f1)),
                            sixth * (y0 * (2 * f0 + f1) + y1 * (f0 + 2 * f1)), 3 * sixth * (f0 + f1)};
      const int j = piece.label[k] >> 4, name = (piece.label[k] >> 1) & 7;
      const double side = (piece.label[k] & 1) != 0 ? -1 : 1;
      const Candidate& c = candidates[j];
      if (name < kNear) {
        const double factor = side / c.record->slope[name];
        add_line(&gradients[j].edge[name], factor, moments);
      } else if (name == kDepth) {
        const double factor = side / candidates[owner].depth.minus(c.depth).slope();
        add_line(&gradients[owner].depth, factor, moments);
        add_line(&gradients[j].depth, -factor, moments);
      } else {
        add_line(&gradients[j].depth, (name == kNear ? side : -side) / c.depth.slope(), moments);
      }
    }
  }

  // From the lines of a triangle, as seen from the centre of a pixel, to its corners.
  DR_HD_CALL void flush(int64_t item, int32_t column, int32_t row, int32_t triangle, const TriangleRecord& record,
                        const Line side[3], const Line& depth, const CandidateGradient& g,
                        const Sink<double>& sink) const {
    const LocalFrame frame = LocalFrame::make(lists.viewport, column, row);
    int32_t index[3];
    lists.mesh.indices(triangle, index);
    const Vec3<double> q[3] = {frame.local(lists.mesh.vertex(item, index[0])),
                               frame.local(lists.mesh.vertex(item, index[1])),
                               frame.local(lists.mesh.vertex(item, index[2]))};
    Vec3<double> grad_q[3] = {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}};
    double grad_z[3];
    const double inverse = 1 / record.determinant;
    for (int k = 0; k < 3; ++k) {
      const int i = (k + 1) % 3, j = (k + 2) % 3;
      const Vec3<double> grad_e = {g.edge[k].x, g.edge[k].y, g.edge[k].c};
      cross_backward(q[i], q[j], grad_e, &grad_q[i], &grad_q[j]);
      grad_z[k] = (side[k].x * g.depth.x + side[k].y * g.depth.y + side[k].c * g.depth.c) * record.slope[k] * inverse;
      const Vec3<double> plane = {depth.x, depth.y, depth.c};
      grad_q[k] = grad_q[k] - grad_z[k] * plane;
    }
    for (int k = 0; k < 3; ++k) {
      const int64_t base = item * lists.mesh.item_stride + static_cast<int64_t>(index[k]) * 4;
      const double grad_w = grad_q[k].z + frame.shift_x * grad_q[k].x + frame.shift_y * grad_q[k].y;
      accumulate(sink, base + 0, frame.scale_x * grad_q[k].x);
      accumulate(sink, base + 1, frame.scale_y * grad_q[k].y);
      accumulate(sink, base + 2, grad_z[k]);
      accumulate(sink, base + 3, grad_w);
    }
  }
};

// Hands the gradients of every pixel on to the corners at once.
struct CornersAtOnce {
  const CoverageBackward& kernel;
  const Sink<double>& sink;

  DR_HD void add(int64_t item, int32_t column, int32_t row, const Candidate& c, const CandidateGradient& g) const {
    kernel.flush(item, column, row, c.triangle, *c.record, c.side, c.depth, g, sink);
  }
};

// Adds up the gradients of each triangle over its pixels, relative to the first pixel of its box, and hands them on to
// the corners when another triangle needs the place. For the CPU, where one worker goes through many pixels in a row.
struct CornersPerTriangle {
  static constexpr int kPlaces = 1024;

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
    Place& place = places[c.triangle % kPlaces];
    if (place.record != c.record) {
      hand_on(place);
      place = {CandidateGradient{}, item, c.record, c.triangle};
    }
    const double u = column - c.record->column, v = row - c.record->row;
    for (int k = 0; k < 3; ++k) add_moved(&place.sum.edge[k], g.edge[k], u, v);
    add_moved(&place.sum.depth, g.depth, u, v);
  }

  // A line (x, y, c) is (x, y, c + u x + v y) from a pixel u further right and v further down.
  DR_HD static void add_moved(Line* sum, const Line& g, double u, double v) {
    sum->x += g.x + u * g.c;
    sum->y += g.y + v * g.c;
    sum->c += g.c;
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

// Workers with a scratch each take every `workers`-th pixel: neighbouring threads of the GPU, neighbouring pixels.
// Pixels whose lists are longer than `shortest` and no longer than the capacity of the scratch are theirs.
struct CoverageWorkers {
  uint8_t* scratch;  // [workers, bytes]
  int64_t workers, pixels, shortest, capacity;

  template <class Body>
  DR_HD void run(int64_t begin, int64_t end, const int64_t* offsets, const Body& body) const {
    for (int64_t worker = begin; worker < end; ++worker) {
      const CoverageScratch own = CoverageScratch::at(scratch + worker * CoverageScratch::bytes(capacity), capacity);
      for (int64_t p = worker; p < pixels; p += workers) {
        const int64_t length = offsets[p + 1] - offsets[p];
        if (length > shortest && length <= capacity) body(p, own);
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

struct CoverageBackwardWorkers {
  CoverageBackward kernel;
  CoverageWorkers workers;

  DR_HD void operator()(int64_t begin, int64_t end, const Sink<double>& sink) const {
    workers.run(begin, end, kernel.lists.offsets, [&](int64_t p, const CoverageScratch& scratch) {
      kernel.pixel(p, scratch, CornersAtOnce{kernel, sink});
    });
  }
};

}  // namespace diffrender
