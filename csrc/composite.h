// Sums over the fragments of pixels, weighted by visible area: image_pc = sum over the fragments k of p of w_k v_kc.
#pragma once

#include "core/portable.h"

namespace diffrender {

// Which fragments each pixel has. Offsets come from the user: what they say is cut to the fragments that there are.
struct PixelFragments {
  const int64_t* offsets;  // [P + 1]
  int64_t count;           // N

  DR_HD int64_t begin(int64_t pixel) const { return offsets[pixel] > 0 ? offsets[pixel] : 0; }
  DR_HD int64_t end(int64_t pixel) const { return offsets[pixel + 1] < count ? offsets[pixel + 1] : count; }
};

// A row is the C channels of a pixel, known to the compiler where kChannels is not 0.
template <int kChannels>
struct CompositeRows {
  static constexpr int kBlock = kItemsAtOnce<(kChannels > 0 ? kChannels : 8)>;  // channels at once

  int64_t channel_count;  // C

  DR_HD int64_t channels() const { return kChannels > 0 ? kChannels : channel_count; }

  // Calls kernel.pixel(pixel, first, last) for the channels that some elements are. Made for a thread of a GPU, which
  // has one of them, so that its neighbours read the memory next to it. The CPU takes whole pixels.
  template <class Kernel>
  DR_HD void run_elements(int64_t begin, int64_t end, const Kernel& kernel) const {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t pixel = i / channels(), channel = i - pixel * channels();
      kernel.pixel(pixel, channel, channel + 1);
    }
  }

  // Calls body(channel, n) for n <= kBlock channels at a time. Written out for full blocks, whose n the compiler knows.
  template <class F>
  DR_HD static void for_each_block(int64_t first, int64_t last, const F& body) {
    for (; first + kBlock <= last; first += kBlock) body(first, kBlock);
    if (first < last) body(first, static_cast<int>(last - first));
  }
};

template <class scalar_t, int kChannels>
struct CompositeForward {
  using Rows = CompositeRows<kChannels>;

  Rows rows;
  PixelFragments fragments;
  const scalar_t* values;  // [N, C]
  const scalar_t* weight;  // [N]
  scalar_t* image;         // [P, C]

  DR_HD void operator()(int64_t begin, int64_t end) const { rows.run_elements(begin, end, *this); }

  DR_HD void pixel(int64_t p, int64_t first, int64_t last) const {
    const int64_t size = rows.channels(), from = fragments.begin(p), to = fragments.end(p);
    Rows::for_each_block(first, last, [&](int64_t c, int n) {
      scalar_t sum[Rows::kBlock] = {};
      for (int64_t k = from; k < to; ++k) {
        const scalar_t w = weight[k];
        const scalar_t* const v = values + k * size + c;
        for (int i = 0; i < n; ++i) sum[i] += w * v[i];
      }
      for (int i = 0; i < n; ++i) image[p * size + c + i] = sum[i];
    });
  }
};

// grad_v_kc = w_k g_pc, where p is the pixel of k.
template <class scalar_t, int kChannels>
struct CompositeBackwardValues {
  using Rows = CompositeRows<kChannels>;

  Rows rows;
  PixelFragments fragments;
  const scalar_t* weight;      // [N]
  const scalar_t* grad_image;  // [P, C]
  scalar_t* grad_values;       // [N, C]

  DR_HD void operator()(int64_t begin, int64_t end) const { rows.run_elements(begin, end, *this); }

  DR_HD void pixel(int64_t p, int64_t first, int64_t last) const {
    const int64_t size = rows.channels(), from = fragments.begin(p), to = fragments.end(p);
    Rows::for_each_block(first, last, [&](int64_t c, int n) {
      scalar_t g[Rows::kBlock] = {};
      for (int i = 0; i < n; ++i) g[i] = grad_image[p * size + c + i];
      for (int64_t k = from; k < to; ++k) {
        const scalar_t w = weight[k];
        scalar_t* const out = grad_values + k * size + c;
        for (int i = 0; i < n; ++i) out[i] = w * g[i];
      }
    });
  }
};

// grad_w_k = sum_c v_kc g_pc. Items are pixels.
template <class scalar_t, int kChannels>
struct CompositeBackwardWeights {
  CompositeRows<kChannels> rows;
  PixelFragments fragments;
  const scalar_t* values;      // [N, C]
  const scalar_t* grad_image;  // [P, C]
  scalar_t* grad_weight;       // [N]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t p = begin; p < end; ++p) pixel(p);
  }

  DR_HD void pixel(int64_t p) const {
    const int64_t size = rows.channels(), to = fragments.end(p);
    const scalar_t* const g = grad_image + p * size;
    for (int64_t k = fragments.begin(p); k < to; ++k) grad_weight[k] = product(values + k * size, g, size);
  }

  // Long rows have a sum for each lane of the CPU.
  DR_HD static scalar_t product(const scalar_t* a, const scalar_t* b, int64_t size) {
    constexpr int kSums = kItemsAtOnce<8>;
    scalar_t total = 0;
    int64_t c = 0;
    if constexpr (kChannels == 0) {
      scalar_t sums[kSums] = {};
      for (; c + kSums <= size; c += kSums) {
        for (int i = 0; i < kSums; ++i) sums[i] += a[c + i] * b[c + i];
      }
      for (int i = 0; i < kSums; ++i) total += sums[i];
    }
    for (; c < size; ++c) total += a[c] * b[c];
    return total;
  }
};

// Nothing for the fragments that are in no pixel: those of a list with a capacity beyond the last one, and those before
// the first pixel where the offsets are a part of longer ones. Items are all fragments.
template <class scalar_t>
struct CompositeBackwardUnused {
  const int64_t* offsets;  // [P + 1]
  int64_t pixels;          // P
  int64_t channels;        // C
  scalar_t* grad_values;   // [N, C] or null
  scalar_t* grad_weight;   // [N] or null

  DR_HD void operator()(int64_t begin, int64_t end) const {
    const int64_t first = offsets[0], past_last = offsets[pixels];
    for (int64_t k = begin; k < end; ++k) {
      if (k >= first && k < past_last) {  // those of the pixels, all at once
        k = past_last - 1;
        continue;
      }
      if (grad_weight != nullptr) grad_weight[k] = 0;
      for (int64_t c = 0; grad_values != nullptr && c < channels; ++c) grad_values[k * channels + c] = 0;
    }
  }
};

}  // namespace diffrender
