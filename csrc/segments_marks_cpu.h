// Edge walk, part 12: MarkCrossings on the CPU, which looks at every pixel and at most of them for nothing.
#pragma once

#include <algorithm>
#include <array>

#include "core/lanes.h"
#include "segments_crossings.h"

namespace diffrender {

// Row by row lists the pairs of two triangles, keeps of them those that share no edge, then those that share no corner.
// What comes next is hard to predict, so that the lists are made without branches.
struct MarkCrossingsCpu {
  MarkCrossings kernel;

  static constexpr int kBlock = 256;  // pixels

  void operator()(int64_t begin, int64_t end) const {
    if (kernel.in.mesh.triangle_count == 0) return;
    const int64_t width = kernel.in.viewport.width, height = kernel.in.viewport.height;
    while (begin < end) {
      const int64_t line = begin / width, item = line / height, row_begin = line * width;
      const int64_t stop = std::min(end, row_begin + width);
      const int32_t row = static_cast<int32_t>(line - item * height);
      // The pixel to the right of a block is looked at with it.
      const int64_t last = std::min(stop, row_begin + width - 1);
      while (last - begin >= kLanes) {
        const int64_t pixels = std::min<int64_t>(kBlock, last - begin) / kLanes * kLanes;
        if (!block(item, row, row_begin, begin, static_cast<int>(pixels))) kernel(begin, begin + pixels);
        begin += pixels;
      }
      kernel(begin, stop);
      begin = stop;
    }
  }

 private:
  // False, and nothing done, where an id is not one of a triangle.
  bool block(int64_t item, int32_t row, int64_t row_begin, int64_t begin, int pixels) const {
    const int32_t* const ids = kernel.triangle_id + begin;
    const int64_t below = row + 1 < kernel.in.viewport.height ? kernel.in.viewport.width : 0;
    Pairs right, down;
    IntLanes unknown = {};
    for (int k = 0; k < pixels; k += kLanes) {
      const auto f = load_lanes<IntLanes>(ids + k), g = load_lanes<IntLanes>(ids + k + 1);
      const auto h = load_lanes<IntLanes>(ids + k + below), i = load_lanes<IntLanes>(ids + k + 1 + below);
      const int32_t triangles = kernel.in.mesh.triangle_count;
      unknown |= (f >= triangles) | (g >= triangles) | (h >= triangles);
      // Of pixels side by side that show the same f above the same h the last one stands for all.
      const IntLanes again = (f == g) & (h == i) & (kLaneIndex + k + 1 < pixels);
      right.add(k, (f != g) & ((f | g) >= 0));
      down.add(k, (f != h) & ((f | h) >= 0) & ~again);
    }
    if (any_lane(unknown)) return false;
    const int32_t* const corners = kernel.in.mesh.triangles;
    for (int axis = 0; axis < 2; ++axis) {
      const int64_t step = axis == 0 ? 1 : below;
      Pairs& pairs = axis == 0 ? right : down;
      pairs.keep_if([&](int k) { return !kernel.in.share_an_edge(ids[k], ids[k + step]); });
      pairs.keep_if([&](int k) {
        return !share_an_index(corners + static_cast<int64_t>(ids[k]) * 3,
                               corners + static_cast<int64_t>(ids[k + step]) * 3);
      });
      for (int n = 0; n < pairs.count; ++n) {
        int k = pairs.pixels[n];
        const int32_t f = ids[k], g = ids[k + step];
        do {
          kernel.look(item, static_cast<int32_t>(begin + k - row_begin), row, begin + k, axis);
          --k;
        } while (axis == 1 && k >= 0 && ids[k] == f && ids[k + step] == g);
      }
    }
    return true;
  }

  // Pixels of a block whose neighbour on one side shows another triangle.
  struct Pairs {
    int32_t pixels[kBlock + kLanes];
    int count = 0;

    // `first` plus the lanes that are set.
    void add(int32_t first, const IntLanes& mask) {
      const uint32_t bits = lane_bits(mask);
      store_lanes(pixels + count, load_lanes<IntLanes>(kSetLanes[bits].data()) + first);
      count += __builtin_popcount(bits);
    }

    template <class F>
    void keep_if(const F& wanted) {
      int kept = 0;
      for (int n = 0; n < count; ++n) {
        const int32_t k = pixels[n];
        pixels[kept] = k;
        kept += wanted(k) ? 1 : 0;
      }
      count = kept;
    }
  };

  // The lanes of each mask in their order.
  static constexpr std::array<std::array<int32_t, kLanes>, 1 << kLanes> kSetLanes = [] {
    std::array<std::array<int32_t, kLanes>, 1 << kLanes> lanes{};
    for (uint32_t bits = 0; bits < lanes.size(); ++bits) {
      int count = 0;
      for (int l = 0; l < kLanes; ++l) {
        if ((bits >> l & 1) != 0) lanes[bits][count++] = l;
      }
    }
    return lanes;
  }();
};

}  // namespace diffrender
