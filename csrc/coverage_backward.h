// Derivative of coverage: from the fragments of each pixel to the clip positions of its triangles.
#pragma once

#include "core/scatter.h"
#include "coverage_lists.h"

namespace diffrender {

// An array of float or double.
struct FloatArray {
  const void* values;
  bool is_double;

  DR_HD bool given() const { return values != nullptr; }
  DR_HD double at(int64_t i) const {
    return is_double ? static_cast<const double*>(values)[i] : static_cast<const float*>(values)[i];
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
  const FragmentKind* kinds;     // [N]
  FloatArray grad_weight;        // [N] or null
  FloatArray grad_barycentrics;  // [N, 2] or null
  FloatArray grad_depth;         // [N] or null

  // `out` has the records of the triangles and takes the gradients of their lines.
  template <class Out>
  DR_HD_CALL void pixel(int64_t p, const CoverageScratch& scratch, Out&& out) const {
    const auto at = lists.place(p);
    const auto record_of = [&](int32_t triangle) -> const TriangleRecord& { return out.record(at.item, triangle); };
    const int count = gradients(record_of, p, at, scratch);
    for (int i = 0; i < count; ++i) out.add(at.item, at.column, at.row, scratch.candidates[i], scratch.gradients[i]);
  }

  // Leaves the candidates of a pixel and the gradients of their lines in the scratch; returns their number, 0 where
  // nothing comes in.
  template <class RecordOf>
  DR_HD_CALL int gradients(const RecordOf& record_of, int64_t p, const CoverageLists::PixelPlace& at,
                           const CoverageScratch& scratch) const {
    const PixelList list = lists.of(p);
    const int64_t begin = lists.offsets[p];
    if (!any_gradient(begin, list.count)) return 0;
    const Candidate* const candidates = scratch.candidates;
    const int count = lists.collect_from(record_of, list, at, 0, scratch.candidates);
    const bool whole = count == 1 && (candidates[0].sides == 0 || kinds[begin] == FragmentKind::whole);
    int center = -1;
    bool apart = false;
    for (int i = 0; i < count; ++i) {
      const FragmentKind kind = kinds[begin + candidates[i].slot];
      if (kind == FragmentKind::center) center = i;
      apart = apart || kind == FragmentKind::apart;
    }
    const PixelCandidates pixel = {candidates, count, apart || center >= 0, lists.square(at)};
    for (int i = 0; i < count; ++i) scratch.gradients[i] = CandidateGradient{};
    if (!lists.is_star(pixel, center) || !star(begin, pixel, center, scratch)) {
      for (int i = 0; i < count; ++i) candidate(begin, pixel, i, whole, scratch);
    }
    return count;
  }

  DR_HD bool any_gradient(int64_t begin, int32_t count) const {
    for (int64_t k = begin; k < begin + count; ++k) {
      if (grad_weight.given() && grad_weight.at(k) != 0) return true;
      if (grad_barycentrics.given() && (grad_barycentrics.at(2 * k) != 0 || grad_barycentrics.at(2 * k + 1) != 0)) {
        return true;
      }
      if (grad_depth.given() && grad_depth.at(k) != 0) return true;
    }
    return false;
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

  // Triangles that share edges with the one at the centre: the integral of each edge once, over the jump. False, and
  // nothing done, where they leave little of it.
  DR_HD_CALL bool star(int64_t begin, const PixelCandidates& pixel, int center, const CoverageScratch& scratch) const {
    int pieces = 0;
    Moments rest = pixel.square.moments();
    for (int i = 0; i < pixel.count; ++i) {
      if (i != center) rest = rest.minus(lists.visible_moments(pixel, i, scratch.stack, nullptr, &pieces));
    }
    if (rest.area < CoverageLists::kLeastRest) return false;
    const Line f = integrand(begin, pixel, center, rest, scratch);
    for (int i = 0; i < pixel.count; ++i) {
      if (i == center) continue;
      const Moments m = lists.visible_moments(pixel, i, scratch.stack, scratch.kept, &pieces);
      if (!(m.area >= kSmallestArea)) continue;
      at_boundary(*scratch.kept, integrand(begin, pixel, i, m, scratch).minus(f), i, pixel.list, scratch.gradients);
    }
    return true;
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

  // Integrals of f u, f v and f along an edge.
  template <class T>
  DR_HD static LineOf<T> along_edge(T x0, T y0, T x1, T y1, const LineOf<T>& f) {
    return along_edge(x0, y0, x1, y1, square_root((x1 - x0) * (x1 - x0) + (y1 - y0) * (y1 - y0)), f);
  }

  template <class T>
  DR_HD static LineOf<T> along_edge(T x0, T y0, T x1, T y1, T length, const LineOf<T>& f) {
    const T f0 = f.at(x0, y0), f1 = f.at(x1, y1), sixth = length / 6;
    return {sixth * (x0 * (2 * f0 + f1) + x1 * (f0 + 2 * f1)), sixth * (y0 * (2 * f0 + f1) + y1 * (f0 + 2 * f1)),
            3 * sixth * (f0 + f1)};
  }

  DR_HD_CALL static void at_boundary(const Piece& piece, Line f, int owner, const Candidate* candidates,
                                     CandidateGradient* gradients) {
    for (int k = 0; k < piece.count; ++k) {
      if (piece.label[k] == kPixelSide) continue;
      const int next = k + 1 == piece.count ? 0 : k + 1;
      const double x0 = piece.x[k], y0 = piece.y[k], x1 = piece.x[next], y1 = piece.y[next];
      const Line moments = along_edge(x0, y0, x1, y1, f);
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

// A line (x, y, c) is (x, y, c + u x + v y) from a pixel u further right and v further down.
DR_HD void add_moved(Line* sum, const Line& g, double u, double v) {
  sum->x += g.x + u * g.c;
  sum->y += g.y + v * g.c;
  sum->c += g.c;
}

// Hands the gradients of every pixel on to the corners at once.
struct CornersAtOnce {
  const CoverageBackward& kernel;
  const Sink<double>& sink;

  DR_HD const TriangleRecord& record(int64_t item, int32_t triangle) const {
    return kernel.lists.records[item * kernel.lists.mesh.triangle_count + triangle];
  }

  DR_HD void add(int64_t item, int32_t column, int32_t row, const Candidate& c, const CandidateGradient& g) const {
    kernel.flush(item, column, row, c.triangle, *c.record, c.side, c.depth, g, sink);
  }
};

// On a GPU the lanes of a warp, which have neighbouring pixels, add up the gradients of each triangle that they have in
// the same place of their lists, relative to the first pixel of its box, and one of them hands the sum on.
struct CoverageBackwardWorkers {
  static constexpr int kValues = 12;  // lines of a triangle; launch_scatter hands it to whole warps

  CoverageBackward kernel;
  CoverageWorkers workers;

  DR_HD void operator()(int64_t begin, int64_t end, const Sink<double>& sink) const {
    if constexpr (kHasWarps) {
      const CoverageScratch own = workers.scratch_of(begin < end ? begin : 0);
      // A warp stays together until the last of its pixels.
      for (int64_t p = begin < end ? begin : workers.pixels; warp_any(p < workers.pixels); p += workers.workers) {
        CoverageLists::PixelPlace at = {0, 0, 0};
        int count = 0;
        if (p < workers.pixels && workers.takes(p, kernel.lists.offsets)) {
          at = kernel.lists.place(p);
          const TriangleRecord* const first = kernel.lists.records + at.item * kernel.lists.mesh.triangle_count;
          const auto record_of = [=](int32_t triangle) -> const TriangleRecord& { return first[triangle]; };
          count = kernel.gradients(record_of, p, at, own);
        }
        for (int i = 0; warp_any(i < count); ++i) add_by_warp(at, i < count ? i : -1, own, sink);
      }
    } else {
      const CornersAtOnce out{kernel, sink};
      workers.run(begin, end, kernel.lists.offsets,
                  [&](int64_t p, const CoverageScratch& scratch) { kernel.pixel(p, scratch, out); });
    }
  }

  // i: a candidate, or -1 for nothing.
  DR_HD void add_by_warp(const CoverageLists::PixelPlace& at, int i, const CoverageScratch& own,
                         const Sink<double>& sink) const {
    double values[kValues] = {};
    bool live = false;
    if (i >= 0) {
      const CandidateGradient& g = own.gradients[i];
      const TriangleRecord& r = *own.candidates[i].record;
      for (int k = 0; k < 4; ++k) {
        Line line = {0, 0, 0};
        add_moved(&line, k < 3 ? g.edge[k] : g.depth, at.column - r.column, at.row - r.row);
        values[3 * k] = line.x;
        values[3 * k + 1] = line.y;
        values[3 * k + 2] = line.c;
      }
      for (int k = 0; k < kValues; ++k) live = live || values[k] != 0;
    }
    if (!warp_any(live)) return;
    const int64_t key = live ? at.item * kernel.lists.mesh.triangle_count + own.candidates[i].triangle : -1;
    const uint32_t peers = warp_match(static_cast<uint64_t>(key));
    sum_in_lowest_lane(peers, values);
    if (!live || warp_lane() != lowest_lane(peers)) return;
    const auto line = [&](int k) { return Line{values[3 * k], values[3 * k + 1], values[3 * k + 2]}; };
    const TriangleRecord& r = *own.candidates[i].record;
    kernel.flush(at.item, r.column, r.row, own.candidates[i].triangle, r, r.side, r.depth,
                 {{line(0), line(1), line(2)}, line(3)}, sink);
  }
};

}  // namespace diffrender
