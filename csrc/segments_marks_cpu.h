// Edge walk, part 12: MarkCrossings on the CPU, which looks at every pixel and at most of them for nothing.
#pragma once

#include "core/lanes.h"
#include "segments_crossings.h"

namespace diffrender {

// First a bit for every pair of two triangles, then those pairs that share no edge, then those that share no corner.
struct MarkCrossingsCpu {
  MarkCrossings kernel;

  static constexpr int kBlock = 32;

  void operator()(int64_t begin, int64_t end) const {
    if (kernel.in.mesh.triangle_count == 0) return;
    const int64_t width = kernel.in.viewport.width, height = kernel.in.viewport.height;
    while (begin < end) {
      const int64_t line = begin / width, item = line / height, row_begin = line * width;
      const int64_t stop = std::min(end, row_begin + width);
      const int32_t row = static_cast<int32_t>(line - item * height);
      // Pixels right of a block are looked at with it.
      for (; begin + kBlock < stop; begin += kBlock) block(item, row, row_begin, begin);
      kernel(begin, stop);
      begin = stop;
    }
  }

 private:
  void block(int64_t item, int32_t row, int64_t row_begin, int64_t begin) const {
    const int32_t* const ids = kernel.triangle_id + begin;
    const int64_t below = row + 1 < kernel.in.viewport.height ? kernel.in.viewport.width : 0;
    uint64_t bits = 0;  // to the right, then downwards
    for (int k = 0; k < kBlock; k += kLanes) {
      const auto f = load_lanes<IntLanes>(ids + k), g = load_lanes<IntLanes>(ids + k + 1);
      const auto h = load_lanes<IntLanes>(ids + k + below), i = load_lanes<IntLanes>(ids + k + 1 + below);
      // Of pixels side by side that show the same f above the same h the last one stands for all.
      const IntLanes again = (f == g) & (h == i) & (kLaneIndex + k + 1 < kBlock);
      bits |= static_cast<uint64_t>(lane_bits((f != g) & ((f | g) >= 0))) << k;
      bits |= static_cast<uint64_t>(lane_bits((f != h) & ((f | h) >= 0) & ~again)) << (kBlock + k);
    }
    int32_t pairs[2 * kBlock];
    int count = 0;
    for (; bits != 0; bits &= bits - 1) {
      const int which = __builtin_ctzll(bits), k = which % kBlock;
      const int32_t f = ids[k], g = ids[k + (which < kBlock ? 1 : below)];
      const bool known = kernel.in.has(f) & kernel.in.has(g);
      // Whether there is more to look at is hard to predict: no branch.
      pairs[count] = which;
      count += known & !kernel.in.share_an_edge(known ? f : 0, g) ? 1 : 0;
    }
    for (int n = 0; n < count; ++n) {
      const int axis = pairs[n] / kBlock;
      int k = pairs[n] % kBlock;
      const int64_t step = axis == 0 ? 1 : below;
      const int32_t f = ids[k], g = ids[k + step];
      const int32_t* const triangles = kernel.in.mesh.triangles;
      if (share_an_index(triangles + static_cast<int64_t>(f) * 3, triangles + static_cast<int64_t>(g) * 3)) continue;
      do {
        kernel.look(item, static_cast<int32_t>(begin + k - row_begin), row, begin + k, axis);
        --k;
      } while (axis == 1 && k >= 0 && ids[k] == f && ids[k + step] == g);
    }
  }
};

}  // namespace diffrender
