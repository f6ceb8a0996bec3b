// Attribute interpolation: values = sum over the corners of weight * attribute, and its derivative.
#pragma once

#include "core/scatter.h"
#include "core/vec.h"

namespace diffrender {

// What forward and backward read. The weight of corner 2 is `total` minus the other two: total = 1 for barycentrics,
// 0 for derivatives of barycentrics, whose three weights add to nothing.
template <class scalar_t>
struct InterpolateInput {
  const scalar_t* attributes;  // [B or 1, V, C]
  const int32_t* triangles;    // [T, 3]
  const int32_t* triangle_id;  // [B, H, W], -1 = background
  const scalar_t* weights;     // [B, H, W, 2]
  int64_t pixels_per_item;
  int64_t item_stride;  // V * C, or 0 where the batch shares the attributes
  int32_t vertex_count, triangle_count, channels;
  scalar_t total;

  struct Corners {
    int64_t base[3];  // element of `attributes` that holds channel 0 of each corner
    bool valid;
  };

  DR_HD Corners corners(int32_t triangle, int64_t item) const {
    Corners c;
    c.valid = triangle >= 0 && triangle < triangle_count;
    if (!c.valid) return c;
    const int32_t* const t = triangles + static_cast<int64_t>(triangle) * 3;
    for (int i = 0; i < 3; ++i) {
      c.valid = c.valid && static_cast<uint32_t>(t[i]) < static_cast<uint32_t>(vertex_count);
      c.base[i] = item * item_stride + static_cast<int64_t>(t[i]) * channels;
    }
    return c;
  }
};

// kChannels = number of channels known at compile time, or 0.
template <class scalar_t, int kChannels>
struct InterpolateForward {
  InterpolateInput<scalar_t> in;
  scalar_t* values;  // [B, H, W, C]

  DR_HD int channels() const { return kChannels > 0 ? kChannels : in.channels; }

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for_each_index(begin, end, in.pixels_per_item,
                   [&](int64_t p, int64_t item) { pixel(p, in.corners(in.triangle_id[p], item)); });
  }

  DR_HD void pixel(int64_t pixel, const typename InterpolateInput<scalar_t>::Corners& corners) const {
    const int n = channels();
    scalar_t* const out = values + pixel * n;
    if (!corners.valid) {
      for (int c = 0; c < n; ++c) out[c] = 0;
      return;
    }
    const scalar_t w0 = in.weights[2 * pixel], w1 = in.weights[2 * pixel + 1], w2 = in.total - w0 - w1;
    const scalar_t* const a0 = in.attributes + corners.base[0];
    const scalar_t* const a1 = in.attributes + corners.base[1];
    const scalar_t* const a2 = in.attributes + corners.base[2];
    for (int c = 0; c < n; ++c) out[c] = w0 * a0[c] + w1 * a1[c] + w2 * a2[c];
  }
};

// grad_weight_k = sum_c grad_c (A_kc - A_2c), k = 0, 1 (weight 2 = total - w_0 - w_1 moves against both).
template <class scalar_t, int kChannels>
struct InterpolateBackwardWeights {
  InterpolateInput<scalar_t> in;
  const scalar_t* grad_values;  // [B, H, W, C]
  scalar_t* grad_weights;       // [B, H, W, 2]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for_each_index(begin, end, in.pixels_per_item,
                   [&](int64_t p, int64_t item) { pixel(p, in.corners(in.triangle_id[p], item)); });
  }

  DR_HD void pixel(int64_t pixel, const typename InterpolateInput<scalar_t>::Corners& corners) const {
    const int n = kChannels > 0 ? kChannels : in.channels;
    scalar_t g0 = 0, g1 = 0;
    if (corners.valid) {
      const scalar_t* const g = grad_values + pixel * n;
      const scalar_t* const a0 = in.attributes + corners.base[0];
      const scalar_t* const a1 = in.attributes + corners.base[1];
      const scalar_t* const a2 = in.attributes + corners.base[2];
      for (int c = 0; c < n; ++c) {
        g0 += g[c] * (a0[c] - a2[c]);
        g1 += g[c] * (a1[c] - a2[c]);
      }
    }
    grad_weights[2 * pixel] = g0;
    grad_weights[2 * pixel + 1] = g1;
  }
};

// grad_A_kc = sum over the pixels of triangle corners k of w_k grad_c. Channels are taken in blocks of at most kBlock,
// so that the sums of a run of pixels stay in registers.
template <class scalar_t, int kBlock>
struct InterpolateBackwardAttributes {
  static constexpr int kValues = 3 * kBlock;

  InterpolateInput<scalar_t> in;
  const scalar_t* grad_values;  // [B, H, W, C]
  int32_t first_channel;        // the block covers [first_channel, first_channel + kBlock)

  using Group = typename InterpolateInput<scalar_t>::Corners;

  DR_HD int32_t group(int64_t pixel) const { return in.triangle_id[pixel]; }
  DR_HD int64_t pixels_per_item() const { return in.pixels_per_item; }
  DR_HD Group load(int32_t triangle, int64_t item) const { return in.corners(triangle, item); }

  DR_HD void contribute(const Group&, int64_t pixel, scalar_t sum[kValues]) const {
    const scalar_t w0 = in.weights[2 * pixel], w1 = in.weights[2 * pixel + 1], w2 = in.total - w0 - w1;
    const scalar_t* const g = grad_values + pixel * in.channels + first_channel;
    for (int c = 0; c < kBlock; ++c) {
      sum[c] += w0 * g[c];
      sum[kBlock + c] += w1 * g[c];
      sum[2 * kBlock + c] += w2 * g[c];
    }
  }

  DR_HD void flush(const Group& corners, const scalar_t sum[kValues], const Sink<scalar_t>& sink) const {
    for (int i = 0; i < 3; ++i) {
      for (int c = 0; c < kBlock; ++c) {
        accumulate(sink, corners.base[i] + first_channel + c, sum[i * kBlock + c]);
      }
    }
  }

  DR_HD void operator()(int64_t begin, int64_t end, const Sink<scalar_t>& sink) const {
    scatter_runs(*this, begin, end, sink);
  }
};

}  // namespace diffrender
