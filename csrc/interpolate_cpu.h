// Interpolation and its backward on the CPU, float32 with 1 to 4 channels: the same sums as interpolate.h over blocks
// of kLanes pixels. Neighbouring pixels mostly show the same triangle: its corners are fetched once per run of pixels.
// Blocks may reach beyond their run: what they write there belongs to later runs, which overwrite it.
#pragma once

#include "core/channel_lanes.h"
#include "interpolate.h"

namespace diffrender {

constexpr int64_t kShortRun = 2;  // runs up to this long are cheaper pixel by pixel

// Whether so many triangles meet in the next kLanes pixels that looking for runs would cost more than it saves.
DR_HD bool is_crowded(const int32_t* ids) {
  return __builtin_popcount(lane_bits(load_lanes<IntLanes>(ids) == load_lanes<IntLanes>(ids + 1))) < kLanes / 2;
}

template <int kChannels>
struct InterpolateForwardRows {
  using Values = Lanes<float>;
  InterpolateForward<float, kChannels> kernel;

  void operator()(int64_t begin, int64_t end) const {
    const int64_t per_item = kernel.in.pixels_per_item;
    while (begin < end) {
      const int64_t item = begin / per_item, last = std::min(end, (item + 1) * per_item);
      const int32_t* const ids = kernel.in.triangle_id;
      while (begin < last) {
        if (begin + kLanes < last && is_crowded(ids + begin)) {
          for (const int64_t stop = begin + kLanes; begin < stop; ++begin) {
            kernel.pixel(begin, kernel.in.corners(ids[begin], item));
          }
          continue;
        }
        const int64_t stop = run_end(ids, begin, last);
        run(begin, stop, last, item);
        begin = stop;
      }
    }
  }

  void run(int64_t begin, int64_t end, int64_t last, int64_t item) const {
    const InterpolateInput<float>& in = kernel.in;
    const auto corners = in.corners(in.triangle_id[begin], item);
    if (!corners.valid) {
      std::fill_n(kernel.values + begin * kChannels, (end - begin) * kChannels, 0.0f);
      return;
    }
    int64_t p = begin;
    if (end - begin > kShortRun) {
      Values a[3][kChannels];
      for (int i = 0; i < 3; ++i) {
        for (int c = 0; c < kChannels; ++c) a[i][c] = in.attributes[corners.base[i] + c] - Values{};
      }
      for (; p < end && p + kLanes <= last; p += kLanes) {
        Values w[2], value[kChannels];
        load_channels<2>(in.weights + 2 * p, w);
        const Values w2 = in.total - w[0] - w[1];
        for (int c = 0; c < kChannels; ++c) value[c] = w[0] * a[0][c] + w[1] * a[1][c] + w2 * a[2][c];
        store_channels<kChannels>(kernel.values + p * kChannels, value);
      }
    }
    for (; p < end; ++p) kernel.pixel(p, corners);
  }
};

// Both gradients in one pass; either may be left out (`weights.grad_weights` null, or no sink).
template <int kChannels>
struct InterpolateBackwardRows {
  using Values = Lanes<float>;
  using Corners = InterpolateInput<float>::Corners;
  static constexpr int kValues = 3 * kChannels;

  InterpolateBackwardWeights<float, kChannels> weights;
  InterpolateBackwardAttributes<float, kChannels> attributes;

  void operator()(int64_t begin, int64_t end, const Sink<float>& sink) const {
    const InterpolateInput<float>& in = attributes.in;
    while (begin < end) {
      const int64_t item = begin / in.pixels_per_item, last = std::min(end, (item + 1) * in.pixels_per_item);
      while (begin < last) {
        const int64_t stop = run_end(in.triangle_id, begin, last);
        run(begin, stop, last, item, sink);
        begin = stop;
      }
    }
  }

  void run(int64_t begin, int64_t end, int64_t last, int64_t item, const Sink<float>& sink) const {
    const InterpolateInput<float>& in = attributes.in;
    float* const grad_weights = weights.grad_weights;
    const Corners corners = in.corners(in.triangle_id[begin], item);
    if (!corners.valid) {
      if (grad_weights != nullptr) std::fill_n(grad_weights + 2 * begin, 2 * (end - begin), 0.0f);
      return;
    }
    float sum[kValues] = {};
    int64_t p = begin;
    if (end - begin > kShortRun) p = blocks(begin, end, last, corners, sum);
    for (; p < end; ++p) {
      attributes.contribute(corners, p, sum);
      if (grad_weights != nullptr) weights.pixel(p, corners);
    }
    attributes.flush(corners, sum, sink);
  }

  // Returns the first pixel that it left out.
  int64_t blocks(int64_t begin, int64_t end, int64_t last, const Corners& corners, float sum[kValues]) const {
    const InterpolateInput<float>& in = attributes.in;
    float* const grad_weights = weights.grad_weights;
    Values difference[2][kChannels], sums[kValues < kLanes ? kLanes : kValues] = {};
    for (int c = 0; c < kChannels; ++c) {
      const float a2 = in.attributes[corners.base[2] + c];
      for (int k = 0; k < 2; ++k) difference[k][c] = (in.attributes[corners.base[k] + c] - a2) - Values{};
    }
    int64_t p = begin;
    for (; p < end && p + kLanes <= last; p += kLanes) {
      Values w[3], g[kChannels], grad_w[2] = {};
      load_channels<2>(in.weights + 2 * p, w);
      load_channels<kChannels>(attributes.grad_values + p * kChannels, g);
      w[2] = in.total - w[0] - w[1];
      if (grad_weights != nullptr) {
        for (int k = 0; k < 2; ++k) {
          for (int c = 0; c < kChannels; ++c) grad_w[k] += g[c] * difference[k][c];
        }
        store_channels<2>(grad_weights + 2 * p, grad_w);
      }
      if (end - p < kLanes) {
        // Both factors: the weights of another triangle may be infinite.
        const IntLanes inside = kLaneIndex < static_cast<int32_t>(end - p);
        for (int k = 0; k < 3; ++k) w[k] = inside ? w[k] : Values{};
        for (int c = 0; c < kChannels; ++c) g[c] = inside ? g[c] : Values{};
      }
      for (int k = 0; k < 3; ++k) {
        for (int c = 0; c < kChannels; ++c) sums[k * kChannels + c] += w[k] * g[c];
      }
    }
    constexpr int kTogether = kValues < kLanes ? kValues : kValues / kLanes * kLanes;
    for (int first = 0; first < kTogether; first += kLanes) {
      const Values totals = lane_sums(sums + first);
      for (int l = 0; l < kLanes && first + l < kTogether; ++l) sum[first + l] = totals[l];
    }
    for (int i = kTogether; i < kValues; ++i) sum[i] = lane_sum(sums[i]);
    return p;
  }
};

}  // namespace diffrender
