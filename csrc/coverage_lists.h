// What one pixel shows of each of its candidates, for coverage and its derivative.
#pragma once

#include "coverage_candidates.h"
#include "coverage_half.h"
#include "coverage_pieces.h"

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

constexpr int kKept = 4;  // pieces of a region that the backward pass keeps from its first walk to its second

// A side of a candidate that cuts the pixel, as an edge of the mesh.
struct CutEdge {
  int32_t from, to;  // corners
  int32_t candidate, side, partner;

  DR_HD static CutEdge make(const int32_t corners[3], int32_t side, int32_t candidate) {
    return {corners[side == 2 ? 0 : side + 1], corners[side == 0 ? 2 : side - 1], candidate, side, kNoPartner};
  }
};

// Notes for each edge which candidate has it in the opposite direction; kOpen where more than two triangles meet.
DR_HD void match_edges(CutEdge* edges, int count) {
  for (int k = 1; k < count; ++k) {
    CutEdge& e = edges[k];
    const int32_t both = e.from ^ e.to;
    for (CutEdge* o = edges; o < edges + k; ++o) {
      if ((o->from ^ o->to) != both) continue;  // one comparison, which most of them fail
      if (o->from == e.to && o->to == e.from) {
        const bool is_open = e.partner != kNoPartner || o->partner != kNoPartner;
        e.partner = is_open ? kOpen : o->candidate;
        o->partner = is_open ? kOpen : e.candidate;
      } else if (o->from == e.from && o->to == e.to) {
        e.partner = o->partner = kOpen;
      }
    }
  }
}

// Working memory of one worker, for pixels of up to `capacity` candidates.
struct CoverageScratch {
  Candidate* candidates;         // [capacity]
  CandidateGradient* gradients;  // [capacity]
  Piece* kept;                   // [kKept]
  Piece* stack;                  // [stack_bound(capacity)]
  CutEdge* edges;                // [3 capacity]

  DR_HD static int64_t bytes(int64_t capacity) {
    return capacity * static_cast<int64_t>(sizeof(Candidate) + sizeof(CandidateGradient) + 4 * sizeof(CutEdge)) +
           (kKept + stack_bound(capacity)) * static_cast<int64_t>(sizeof(Piece));
  }

  DR_HD static CoverageScratch at(uint8_t* memory, int64_t capacity) {
    CoverageScratch s;
    s.candidates = reinterpret_cast<Candidate*>(memory);
    s.gradients = reinterpret_cast<CandidateGradient*>(s.candidates + capacity);
    s.kept = reinterpret_cast<Piece*>(s.gradients + capacity);
    s.stack = s.kept + kKept;
    s.edges = reinterpret_cast<CutEdge*>(s.stack + stack_bound(capacity));
    return s;
  }
};

// What a fragment is to its pixel. The forward pass finds it, the backward pass has it from there.
enum class FragmentKind : uint8_t {
  any,
  apart,   // does not overlap others of its pixel, nor do they
  whole,   // stands for the whole pixel: a point sample at its centre
  center,  // the one at the centre of a pixel whose candidates are a smooth surface and do not overlap
};

// Triangles of one pixel, ascending.
struct PixelList {
  const int32_t* triangles;  // [count]
  int32_t count;
};

// Lists of triangles per pixel, and what is common to forward and backward: the candidates that can be seen.
struct CoverageLists {
  RasterMesh<double> mesh;
  Viewport<double> viewport;
  const TriangleRecord* records;  // [B, T]
  const DepthRange* ranges;       // [B, T], forward only
  const int64_t* offsets;         // [B H W + 1]
  const int32_t* triangles;       // [N] triangles of each pixel, ascending

  DR_HD PixelList of(int64_t pixel) const {
    return {triangles + offsets[pixel], static_cast<int32_t>(offsets[pixel + 1] - offsets[pixel])};
  }

  // Whether entry k of the lists is a triangle of the mesh.
  DR_HD bool has(int64_t k) const {
    return static_cast<uint32_t>(triangles[k]) < static_cast<uint32_t>(mesh.triangle_count);
  }

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
  DR_HD int front_winding(const PixelList& list, const PixelPlace& at) const {
    const DepthRange* const first = ranges + at.item * mesh.triangle_count;
    float nearest[2] = {kLargest<float>, kLargest<float>}, farthest[2] = {-kLargest<float>, -kLargest<float>};
    for (int32_t k = 0; k < list.count; ++k) {
      if (static_cast<uint32_t>(list.triangles[k]) >= static_cast<uint32_t>(mesh.triangle_count)) continue;
      const DepthRange range = first[list.triangles[k]];
      const int side = range.winding > 0 ? 1 : 0;
      nearest[side] = range.low < nearest[side] ? range.low : nearest[side];
      farthest[side] = range.high > farthest[side] ? range.high : farthest[side];
    }
    if (nearest[0] > 1e30f || nearest[1] > 1e30f) return 0;
    if (farthest[1] < nearest[0]) return 1;
    return farthest[0] < nearest[1] ? -1 : front_winding_here(list, at);
  }

  // The same by the depths in this pixel alone, instead of those in the boxes of the triangles.
  DR_HD_CALL int front_winding_here(const PixelList& list, const PixelPlace& at) const {
    const TriangleRecord* const first = records + at.item * mesh.triangle_count;
    double nearest[2] = {kLargest<double>, kLargest<double>}, farthest[2] = {-kLargest<double>, -kLargest<double>};
    for (int32_t k = 0; k < list.count; ++k) {
      if (static_cast<uint32_t>(list.triangles[k]) >= static_cast<uint32_t>(mesh.triangle_count)) continue;
      const TriangleRecord& record = first[list.triangles[k]];
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
  DR_HD int collect(const PixelList& list, const PixelPlace& at, int winding, Candidate* candidates) const {
    const TriangleRecord* const first = records + at.item * mesh.triangle_count;
    const auto record_of = [=](int32_t triangle) -> const TriangleRecord& { return first[triangle]; };
    return collect_from(record_of, list, at, winding, candidates);
  }

  // The same with records from elsewhere.
  template <class RecordOf>
  DR_HD_CALL int collect_from(const RecordOf& record_of, const PixelList& list, const PixelPlace& at, int winding,
                              Candidate* candidates) const {
    int count = 0, cover = -1;
    for (int32_t k = 0; k < list.count; ++k) {
      Candidate& c = candidates[count];
      const int32_t triangle = list.triangles[k];
      if (static_cast<uint32_t>(triangle) >= static_cast<uint32_t>(mesh.triangle_count)) continue;
      if (winding != 0 && ranges[at.item * mesh.triangle_count + triangle].winding != winding) continue;
      const TriangleRecord& record = record_of(triangle);
      if (record.valid == 0 || !c.make(record, at.column, at.row)) continue;
      name(triangle, k, &c);
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

  DR_HD void name(int32_t triangle, int32_t slot, Candidate* c) const {
    c->slot = slot;
    c->triangle = triangle;
    mesh.indices(triangle, c->corner);
    for (int k = 0; k < 3; ++k) c->partner[k] = kNoPartner;
  }

  // Finds the partner of every side that cuts the pixel. `edges`: room for all of them.
  DR_HD_CALL void find_partners(const PixelPlace& at, Candidate* candidates, int count, CutEdge* edges) const {
    int found = 0;
    for (int i = 0; i < count; ++i) {
      for (int s = 0; s < candidates[i].sides; ++s) {
        const int name = candidates[i].side_name[s];
        if (name < kNear) edges[found++] = CutEdge::make(candidates[i].corner, name, i);
      }
    }
    match_edges(edges, found);
    for (const CutEdge* e = edges; e < edges + found; ++e) {
      const bool is_open = e->partner == kNoPartner && !misses_pixel(at, e->from, e->to);
      candidates[e->candidate].partner[e->side] = is_open ? kOpen : e->partner;
    }
  }

  // The candidate at the pixel's centre if the pixel lies inside of a smooth surface, -1 elsewhere. That is so where
  // the candidates of one orientation are in front of all others, and every edge of theirs that crosses the pixel
  // separates two of them: then their number at a point is the same all over the pixel, and it is one at the centre.
  // Only they stay in the list, and they do not overlap.
  DR_HD int keep_smooth_surface(Candidate* candidates, int* count) const {
    int center = -1;
    for (int i = 0; i < *count; ++i) {
      const Candidate& c = candidates[i];
      for (int s = 0; s < c.sides; ++s) {
        if (c.side_name[s] >= kNear) return -1;
      }
      const double inside = c.distance_inside();
      if (magnitude(inside) < kOnEdge) return -1;  // of two neighbours there, rounding may give the centre to none
      if (inside > 0 && (center < 0 || c.depth.c < candidates[center].depth.c)) center = i;
    }
    if (center < 0) return -1;
    const bool side = candidates[center].record->determinant > 0;
    for (int i = 0; i < *count; ++i) {
      const Candidate& c = candidates[i];
      if ((c.record->determinant > 0) != side) continue;
      if (i != center && c.distance_inside() > 0) return -1;
      for (int s = 0; s < c.sides; ++s) {
        const int32_t other = c.partner[c.side_name[s]];
        if (other == kOpen) return -1;
        if (other != kNoPartner && (candidates[other].record->determinant > 0) != side) return -1;
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

  // Both ends of an edge beyond the same side of the pixel.
  DR_HD bool misses_pixel(const PixelPlace& at, int32_t from, int32_t to) const {
    const LocalFrame frame = LocalFrame::make(viewport, at.column, at.row);
    const Vec3<double> a = frame.local_roughly(mesh.vertex(at.item, from)),
                       b = frame.local_roughly(mesh.vertex(at.item, to));
    if (!(a.z > 0 && b.z > 0)) return false;
    const double half = 0.5 + 2 * kGridShift, ha = half * a.z, hb = half * b.z;
    return (a.x > ha && b.x > hb) || (a.x < -ha && b.x < -hb) || (a.y > ha && b.y > hb) || (a.y < -ha && b.y < -hb);
  }

  // Whether each of the candidates but `center` lies beyond one side of it, so that it has what they leave.
  DR_HD static bool is_star(const PixelCandidates& pixel, int center) {
    if (!pixel.apart || center < 0 || pixel.count < 2) return false;
    for (int i = 0; i < pixel.count; ++i) {
      if (i != center && pixel.list[i].sides != 1) return false;
    }
    return true;
  }

  // Less than this of the pixel is not taken for what others leave, since it would have few digits. Of two it is never
  // less than a half, as the other one does not reach the centre.
  static constexpr double kLeastRest = 1.0 / 16;

  // Moments of what the pixel shows of candidate i. Keeps the first kKept of its pieces, and counts all.
  DR_HD_CALL static Moments visible_moments(const PixelCandidates& pixel, int i, Piece* stack, Piece* kept,
                                            int* pieces) {
    const Candidate& c = pixel.list[i];
    if (pixel.apart && c.sides == 1) {
      const HalfSquare half = half_square(pixel.square, c.line(c.side_name[0]));
      *pieces = 1;
      if (kept == nullptr) return half.moments;
      kept->count = 0;  // only its edge along the line, which is all that moves
      kept->add(half.x[0], half.y[0], make_label(i, c.side_name[0], false));
      kept->add(half.x[1], half.y[1], kPixelSide);
      return half.moments;
    }
    Wedge wedge;
    if (pixel.apart && c.sides == 2) {
      const Line a = c.line(c.side_name[0]), b = c.line(c.side_name[1]);
      if (wedge.make(pixel.square, a, b)) {
        *pieces = 1;
        if (kept != nullptr) keep_wedge(pixel, i, wedge, a, b, kept);
        return wedge.moments(pixel.square, a, b);
      }
    }
    Moments m = {0, 0, 0};
    *pieces = 0;
    for_each_visible_piece(pixel, i, stack, [&](const Piece& piece) {
      add_moments(piece, &m);
      if (kept != nullptr && *pieces < kKept) copy_piece(piece, kept + *pieces);
      ++*pieces;
    });
    return m;
  }

  DR_HD static void keep_wedge(const PixelCandidates& pixel, int i, const Wedge& wedge, const Line& a, const Line& b,
                               Piece* kept) {
    const Candidate& c = pixel.list[i];
    double u, v;
    kept->count = 0;
    wedge.leave(pixel.square, a, b, &u, &v);
    kept->add(u, v, make_label(i, c.side_name[0], false));
    kept->add(wedge.x, wedge.y, make_label(i, c.side_name[1], false));
    wedge.leave(pixel.square, b, a, &u, &v);
    kept->add(u, v, kPixelSide);
  }
};

// Workers with a scratch each take every `workers`-th pixel: neighbouring threads of the GPU, neighbouring pixels.
// Pixels whose lists are longer than `shortest` and no longer than the capacity of the scratch are theirs.
struct CoverageWorkers {
  uint8_t* scratch;  // [workers, bytes]
  int64_t workers, pixels, shortest, capacity;

  DR_HD CoverageScratch scratch_of(int64_t worker) const {
    return CoverageScratch::at(scratch + worker * CoverageScratch::bytes(capacity), capacity);
  }

  DR_HD bool takes(int64_t pixel, const int64_t* offsets) const {
    const int64_t length = offsets[pixel + 1] - offsets[pixel];
    return length > shortest && length <= capacity;
  }

  template <class Body>
  DR_HD void run(int64_t begin, int64_t end, const int64_t* offsets, const Body& body) const {
    for (int64_t worker = begin; worker < end; ++worker) {
      const CoverageScratch own = scratch_of(worker);
      for (int64_t p = worker; p < pixels; p += workers) {
        if (takes(p, offsets)) body(p, own);
      }
    }
  }
};

}  // namespace diffrender
