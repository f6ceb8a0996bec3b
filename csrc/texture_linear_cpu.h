// The linear filter for 1 to 4 channels of float on the CPU, with vectors. Two texels of a row lie side by side in
// memory: one load (of 2 to 8 numbers) gets both. What is no square (borders) or no whole block goes the way of
// texture.h.
#pragma once

#include "core/lanes.h"
#include "texture.h"

namespace diffrender {

using FourFloats = float __attribute__((vector_size(16), aligned(4), may_alias));

// A square of texels of 2 to 4 channels, mixed along y: left and right, and their slopes along y. Lanes beyond the
// channels hold other texels of the square.
template <int kChannels>
struct MixedSquare {
  FourFloats left, right, left_slope, right_slope;

  MixedSquare(const float* low, const float* high, float y) {
    // Where three numbers end, a fourth might not be there to read: the right texel is read from the one before it on.
    constexpr int kRight = kChannels == 4 ? 4 : kChannels == 3 ? 2 : 0;
    const FourFloats low_left = load_lanes<FourFloats>(low), high_left = load_lanes<FourFloats>(high);
    left_slope = high_left - low_left;
    left = low_left + y * left_slope;
    if constexpr (kRight == 0) {
      right = __builtin_shuffle(left, IndexLanes{2, 3, 2, 3});
      right_slope = __builtin_shuffle(left_slope, IndexLanes{2, 3, 2, 3});
      return;
    }
    const FourFloats low_right = load_lanes<FourFloats>(low + kRight),
                     high_right = load_lanes<FourFloats>(high + kRight);
    right_slope = high_right - low_right;
    right = low_right + y * right_slope;
    if constexpr (kChannels == 3) {
      right = __builtin_shuffle(right, IndexLanes{1, 2, 3, 3});
      right_slope = __builtin_shuffle(right_slope, IndexLanes{1, 2, 3, 3});
    }
  }

  using IndexLanes = int32_t __attribute__((vector_size(16)));
};

// Left and right texels of the squares of kLanes lookups, one channel.
inline __attribute__((always_inline)) void load_pairs(const float* texels, const int32_t* tap, Lanes<float>* left,
                                                      Lanes<float>* right) {
  using Pair = double __attribute__((may_alias, aligned(4)));
  using Pairs = double __attribute__((vector_size(32)));
  const auto pair = [&](int l) { return *reinterpret_cast<const Pair*>(texels + tap[l]); };
  // In this order the two shuffles stay within the halves of a vector.
  const Pairs first = {pair(0), pair(1), pair(4), pair(5)}, second = {pair(2), pair(3), pair(6), pair(7)};
  const Lanes<float> a = reinterpret_cast<const Lanes<float>&>(first);
  const Lanes<float> b = reinterpret_cast<const Lanes<float>&>(second);
  *left = __builtin_shuffle(a, b, IntLanes{0, 2, 8, 10, 4, 6, 12, 14});
  *right = __builtin_shuffle(a, b, IntLanes{1, 3, 9, 11, 5, 7, 13, 15});
}

// Calls whole_block(first, n, valid, texels of the item, taps) for blocks of a multiple of kLanes lookups, rest(begin,
// end) for what is left.
template <class Sampler, class WholeBlock, class Rest>
void for_each_whole_block(const Sampler& sampler, int64_t begin, int64_t end, const WholeBlock& whole_block,
                          const Rest& rest) {
  Sampler::for_each_block(begin, end, sampler.lookups_per_item, [&](int64_t first, int n, int64_t item) {
    const int whole = n - n % kLanes;
    if (whole > 0) {
      typename Sampler::Block block;
      typename Sampler::Taps taps;
      sampler.locate(first, whole, &block);
      sampler.find(block, whole, 0, 0, &taps);
      whole_block(first, whole, block.face, sampler.texels(item, block, 0, 0), taps);
    }
    if (whole < n) rest(first + whole, first + n);
  });
}

template <class Mapping, int kChannels>
struct TextureForwardSquares {
  TextureForward<float, Mapping, kChannels, false> portable;

  static void mix_one(const float* texels, const TextureTaps<float>& taps, int i, float* out) {
    const float x = taps.x[i], y = taps.y[i];
    for_each_channel<kChannels>(texels, taps, i, kChannels, [&](int c, float t00, float t10, float t01, float t11) {
      const float low = t00 + x * (t10 - t00), high = t01 + x * (t11 - t01);
      out[c] = low + y * (high - low);
    });
  }

  void operator()(int64_t begin, int64_t end) const {
    const int64_t row = static_cast<int64_t>(portable.sampler.levels.width) * kChannels;
    const auto whole_block = [&](int64_t first, int n, const int32_t*, const float* texels,
                                 const TextureTaps<float>& taps) {
      float* out = portable.values + first * kChannels;
      if constexpr (kChannels == 1) {
        for (int i = 0; i < n; i += kLanes) {
          if (any_lane(load_lanes<IntLanes>(taps.regular + i) <= 0)) {
            for (int k = i; k < i + kLanes; ++k) mix_one(texels, taps, k, out + k);
            continue;
          }
          Lanes<float> t00, t10, t01, t11;
          load_pairs(texels, taps.tap[0] + i, &t00, &t10);
          load_pairs(texels + row, taps.tap[0] + i, &t01, &t11);
          const auto x = load_lanes<Lanes<float>>(taps.x + i), y = load_lanes<Lanes<float>>(taps.y + i);
          const auto low = t00 + x * (t10 - t00), high = t01 + x * (t11 - t01);
          store_lanes(out + i, low + y * (high - low));
        }
      } else {
        for (int i = 0; i < n; ++i, out += kChannels) {
          if (taps.regular[i] <= 0) {
            mix_one(texels, taps, i, out);
            continue;
          }
          const float* const low = texels + static_cast<int64_t>(taps.tap[0][i]) * kChannels;
          const MixedSquare<kChannels> mixed(low, low + row, taps.y[i]);
          const FourFloats value = mixed.left + taps.x[i] * (mixed.right - mixed.left);
          if (kChannels == 4 || (kChannels == 3 && i + 1 < n)) {
            store_lanes(out, value);  // what stands behind three channels is written next
          } else {
            for (int c = 0; c < kChannels; ++c) out[c] = value[c];
          }
        }
      }
    };
    for_each_whole_block(portable.sampler, begin, end, whole_block, portable);
  }
};

// Gradient to texcoords; the formulas stand at TextureBackwardCoordinates.
template <class Mapping, int kChannels>
struct TextureSlopesOfSquares {
  TextureBackwardCoordinates<float, Mapping, kChannels, false> portable;

  static void slope_one(const float* texels, const TextureTaps<float>& taps, int i, bool valid, const float* g,
                        float* out) {
    const float x = taps.x[i], y = taps.y[i];
    float along_x = 0, along_y = 0;
    for_each_channel<kChannels>(texels, taps, i, kChannels, [&](int c, float t00, float t10, float t01, float t11) {
      const float low_x = t10 - t00, high_x = t11 - t01;
      along_x += g[c] * (low_x + y * (high_x - low_x));
      along_y += g[c] * (t01 + x * high_x - (t00 + x * low_x));
    });
    out[0] = valid ? along_x * taps.slope_x[i] : 0.0f;
    out[1] = valid ? along_y * taps.slope_y[i] : 0.0f;
  }

  void operator()(int64_t begin, int64_t end) const {
    const int64_t row = static_cast<int64_t>(portable.sampler.levels.width) * kChannels;
    const auto whole_block = [&](int64_t first, int n, const int32_t* face, const float* texels,
                                 const TextureTaps<float>& taps) {
      const float* g = portable.grad_values + first * kChannels;
      float* const out = portable.grad_coordinates + 2 * first;
      if constexpr (kChannels == 1) {
        for (int i = 0; i < n; i += kLanes) {
          if (any_lane(load_lanes<IntLanes>(taps.regular + i) <= 0)) {
            for (int k = i; k < i + kLanes; ++k) slope_one(texels, taps, k, face[k] >= 0, g + k, out + 2 * k);
            continue;
          }
          Lanes<float> t00, t10, t01, t11;
          load_pairs(texels, taps.tap[0] + i, &t00, &t10);
          load_pairs(texels + row, taps.tap[0] + i, &t01, &t11);
          const auto x = load_lanes<Lanes<float>>(taps.x + i), y = load_lanes<Lanes<float>>(taps.y + i);
          const auto cotangent = load_lanes<Lanes<float>>(g + i);
          const auto low_x = t10 - t00, high_x = t11 - t01;
          const auto u = cotangent * (low_x + y * (high_x - low_x)) * load_lanes<Lanes<float>>(taps.slope_x + i);
          const auto v =
              cotangent * (t01 + x * high_x - (t00 + x * low_x)) * load_lanes<Lanes<float>>(taps.slope_y + i);
          store_lanes(out + 2 * i, interleave_low(u, v));
          store_lanes(out + 2 * i + kLanes, interleave_high(u, v));
        }
      } else {
        using IndexLanes = typename MixedSquare<kChannels>::IndexLanes;
        float halves[4 * kTextureBlock];
        for (int i = 0; i < n; ++i, g += kChannels) {
          if (taps.regular[i] <= 0) {
            float slopes[2];
            slope_one(texels, taps, i, face[i] >= 0, g, slopes);
            store_lanes(halves + 4 * i, FourFloats{slopes[0], 0, slopes[1], 0});
            continue;
          }
          const float* const low = texels + static_cast<int64_t>(taps.tap[0][i]) * kChannels;
          const MixedSquare<kChannels> mixed(low, low + row, taps.y[i]);
          FourFloats cotangent;
          if constexpr (kChannels == 4) cotangent = load_lanes<FourFloats>(g);
          if constexpr (kChannels == 3) cotangent = FourFloats{g[0], g[1], g[2], 0};
          if constexpr (kChannels == 2) cotangent = FourFloats{g[0], g[1], 0, 0};
          const FourFloats u = cotangent * (mixed.right - mixed.left);
          const FourFloats v = cotangent * (mixed.left_slope + taps.x[i] * (mixed.right_slope - mixed.left_slope));
          // Sums over the lanes: (u0 + u2, u1 + u3, v0 + v2, v1 + v3), then the pairs of that.
          const FourFloats half =
              __builtin_shuffle(u, v, IndexLanes{0, 1, 4, 5}) + __builtin_shuffle(u, v, IndexLanes{2, 3, 6, 7});
          const FourFloats slope = {taps.slope_x[i], taps.slope_x[i], taps.slope_y[i], taps.slope_y[i]};
          store_lanes(halves + 4 * i, half * slope);
        }
        for (int i = 0; i < 2 * n; ++i) out[i] = halves[2 * i] + halves[2 * i + 1];
      }
    };
    for_each_whole_block(portable.sampler, begin, end, whole_block, portable);
  }
};

}  // namespace diffrender
