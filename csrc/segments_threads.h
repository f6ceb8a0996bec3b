// Edge walk, part 9: the walk of the GPU. Lists of pieces would make the host wait for the device to learn how long
// each of them is. Here a thread finds the pieces of an edge in one pixel and uses them at once, nothing is stored, and
// only the device knows how many pixels the edges cross: a fixed number of threads shares them out.
//
// The pieces of a pixel come in any order, so what is added to a picture is added as gradients are: see Sink.
#pragma once

#include "segments_tree.h"

namespace diffrender {

// Threads that share the edge-pixel pairs on the GPU: enough to fill it, few enough to cost nothing without work.
constexpr int64_t kPairThreads = int64_t(1) << 18;
// At most: a pair has one piece between any two cuts, a pixel one for every two triangles of its window.
constexpr int64_t kPiecesPerPair = 3 * kMostFaces + 1;
constexpr int64_t kPiecesPerCrossing = kWindowCells * (kWindowCells - 1) / 2;

// Pixels that the marked edges of every triangle cross.
struct CountPairs {
  SegmentMesh in;
  const uint8_t* marks;  // [B, T] of MarkEdges
  int64_t* pairs;        // [B, T]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    const EdgeClipper edges{in};
    for (int64_t i = begin; i < end; ++i) {
      int64_t count = 0;
      for (int32_t k = 0; k < 3; ++k) {
        EdgeSegment segment;
        if ((marks[i] >> k & 1) != 0) count += edges.clip(i, k, &segment);
      }
      pairs[i] = count;
    }
  }
};

// The edge-pixel pairs as `threads` threads take them: thread, thread + threads, ... Neighbouring threads look at
// neighbouring pixels of one edge.
struct EdgePairs {
  PieceFinder finder;
  TriangleTree tree;
  const uint8_t* marks;   // [B, T] of MarkEdges
  const int64_t* before;  // [B T + 1] pairs of all triangles before each; the last one counts all
  int64_t triangles;      // B T
  int64_t threads;

  // body(pair) for the pairs of some threads. On a GPU the lanes of a warp stay together to the end: those beyond the
  // last pair get -1.
  template <class F>
  DR_HD void for_each_place(int64_t begin, int64_t end, const F& body) const {
    const int64_t pairs = before[triangles];
    if constexpr (kHasWarps) {
      for (int64_t pair = begin; pair - warp_lane() < pairs; pair += threads) {
        body(begin < end && pair < pairs ? pair : int64_t(-1));
      }
    } else {
      for (int64_t thread = begin; thread < end; ++thread) {
        for (int64_t pair = thread; pair < pairs; pair += threads) body(pair);
      }
    }
  }

  // body(piece) for the visible pieces of a pair, if wants(pixel).
  template <class Wants, class F>
  DR_HD void visit_place(int64_t pair, const Wants& wants, const F& body) const {
    EdgeSegment segment;
    int64_t within;
    if (!find_pair(pair, &segment, &within)) return;
    const Viewport<double>& viewport = finder.in.viewport;
    PixelWalk walk(segment, viewport.width, viewport.height);
    walk.seek(static_cast<int32_t>(within));
    if (!wants((segment.item * viewport.height + walk.pixel_row()) * viewport.width + walk.pixel_column())) return;
    finder.visit(&segment, walk, [&](EdgePiece& piece) {
      if (!tree.given() || tree.finish(finder, segment, &piece)) body(piece);
    });
  }

  // The edge of a pair, clipped anew, and which of its pixels is meant.
  DR_HD_CALL bool find_pair(int64_t pair, EdgeSegment* segment, int64_t* within) const {
    int64_t low = 0, high = triangles;  // the last triangle with before[low] <= pair
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (before[middle] <= pair ? low : high) = middle;
    }
    const EdgeClipper edges{finder.in};
    *within = pair - before[low];
    for (int32_t k = 0; k < 3; ++k) {
      if ((marks[low] >> k & 1) == 0) continue;
      const int64_t pixels = edges.clip(low, k, segment);
      if (*within < pixels) {
        return true;
      }
      *within -= pixels;
    }
    return false;
  }
};

// body(i) for a range; where there are warps it is of one item or none, and then body(-1), so that all lanes come
// along.
template <class F>
DR_HD void for_each_of_range(int64_t begin, int64_t end, const F& body) {
  if constexpr (kHasWarps) {
    body(begin < end ? begin : int64_t(-1));
  } else {
    for (int64_t i = begin; i < end; ++i) body(i);
  }
}

// The marked pixels, each looked at by its thread.
struct CrossingPixels {
  CrossingFinder finder;
  TriangleTree tree;
  const uint8_t* marks;  // [B, H, W] of MarkCrossings

  template <class F>
  DR_HD void for_each_place(int64_t begin, int64_t end, const F& body) const {
    for_each_of_range(begin, end, body);
  }

  template <class Wants, class F>
  DR_HD void visit_place(int64_t pixel, const Wants& wants, const F& body) const {
    if (marks[pixel] == 0 || !wants(pixel)) return;
    finder.visit(pixel, [&](const EdgePiece& piece) {
      if (!tree.given() || tree.ask(finder.in, piece, nullptr).hidden == 0) body(piece);
    });
  }
};

}  // namespace diffrender
