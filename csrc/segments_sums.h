// Edge walk, part 10: gradients on their way to memory. The GPU adds with atomics, and the pixels along an edge all add
// to its two vertices. So a thread sums what it finds in its pixel, the lanes of a warp that add to the same place sum
// theirs (lanes lie next to each other along an edge, see EdgePairs), and one lane adds the total.
//
// A thread that walked a whole edge would not need its neighbours. But the longest edge would then decide how long a
// warp takes, and short edges, which are the most, would have no more than one pixel for each thread to sum.
#pragma once

#include "core/scatter.h"
#include "segments_crossings.h"
#include "warp_sums.h"

namespace diffrender {

// Gradient of one edge, or of two triangles that cross: what add() of EdgeBackward and CrossingBackward writes.
template <class scalar_t, int kCount>
struct VertexSum {
  int64_t pixel = -1;             // -1: of nothing
  int32_t first = 0, second = 0;  // as in EdgePiece
  scalar_t values[kCount] = {};

  DR_HD bool empty() const { return pixel < 0; }
  DR_HD bool takes(const EdgePiece& piece) const {
    return empty() || (pixel == piece.pixel && first == piece.first && second == piece.second);
  }
  DR_HD void own(const EdgePiece& piece) {
    pixel = piece.pixel;
    first = piece.first;
    second = piece.second;
  }
};

// The area that pieces with the same two colours hide from one pixel.
struct ColorSum {
  int64_t pixel = -1;  // -1: of nothing
  int16_t front = 0, back = 0;
  double area = 0;

  DR_HD bool empty() const { return pixel < 0; }
  DR_HD bool takes(const EdgePiece& piece) const {
    return empty() || (pixel == piece.pixel && front == piece.front && back == piece.back);
  }
  DR_HD void add(const EdgePiece& piece) {
    pixel = piece.pixel;
    front = piece.front;
    back = piece.back;
    area += piece.area;
  }
};

// Adds the VertexSums of a warp, whose lanes all have to come here. Where they are zero, nothing is added up.
template <class Use, class scalar_t>
DR_HD void add_vertices_by_warp(const Use& use, typename Use::Sum& sum, const Sink<scalar_t>& sink) {
  bool live = false;
  for (int i = 0; i < Use::kValues; ++i) live = live || sum.values[i] != 0;
  if (!warp_any(live)) return;
  const LaneGroup group = LaneGroup::of(live, live ? use.key(sum) : 0);
  sum_in_lowest_lane(group.lanes, sum.values);
  if (group.leads) use.flush(sum, sink);
}

// Kernel: adds what Use makes of the pieces that Source visits (EdgePairs, CrossingPixels, on the CPU a PieceList). A
// Use has
//   Sum                     what it keeps of pieces at one place        wants(pixel): whether pieces there add anything
//   add(piece, &sum)        takes one in                                flush(sum, sink): adds it to memory
//   flush_by_warp(sum, sink): the same for the sums, or empty ones, of all lanes of a warp
// The CPU adds every piece by itself: its additions are cheap.
template <class Source, class Use>
struct SumPieces {
  static constexpr int kValues = Use::kValues;  // launch_scatter hands it to whole warps

  Source source;
  Use use;

  template <class scalar_t>
  DR_HD void operator()(int64_t begin, int64_t end, const Sink<scalar_t>& sink) const {
    const auto wants = [&](int64_t pixel) { return use.wants(pixel); };
    source.for_each_place(begin, end, [&](int64_t place) {
      if constexpr (kHasWarps) {
        typename Use::Sum sum;
        const auto take = [&](const EdgePiece& piece) {
          if (!sum.takes(piece)) {
            use.flush(sum, sink);
            sum = {};
          }
          use.add(piece, &sum);
        };
        if (place >= 0) source.visit_place(place, wants, take);
        use.flush_by_warp(sum, sink);
      } else {
        source.visit_place(place, wants, [&](const EdgePiece& piece) {
          typename Use::Sum sum;
          use.add(piece, &sum);
          if (!sum.empty()) use.flush(sum, sink);
        });
      }
    });
  }
};

}  // namespace diffrender
