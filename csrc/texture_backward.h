// First derivatives of texture lookups: to coordinates, derivatives and bias, and to the texels.
#pragma once

#include <type_traits>

#include "texture.h"
#include "warp_sums.h"

namespace diffrender {

template <class scalar_t>
struct TextureSlopes;

#if !defined(__CUDACC__)
// texture_vectors_cpu.cpp: TextureSlopes<float>::run.
void slopes_with_vectors(const TextureSlopes<float>& slopes, int n, int channels);
#endif

// Per lookup of a block, with the mix m(x, y) of one level:
//   along_x = <g, dm/dx>,  m = left + x (right - left):  dm/dx = right - left
//   along_y = <g, dm/dy>,  left = t00 + y (t01 - t00), likewise right:  dm/dy = left' + x (right' - left')
//   total = <g, m>
template <class scalar_t>
struct TextureSlopes {
  const TextureTaps<scalar_t>& taps;
  const scalar_t* grad_values;  // [n, C]
  scalar_t *along_x, *along_y;  // [n]
  scalar_t* total;              // [n], or null

  // Channels from c on, added to (along_x, along_y, total).
  DR_HD void rest(int i, int channels, int c, scalar_t sums[3]) const {
    const scalar_t* const g = grad_values + static_cast<int64_t>(i) * channels;
    const scalar_t x = taps.x[i], y = taps.y[i];
    for (; c < channels; ++c) {
      scalar_t t[4];
      read_texels(taps, i, channels, c, t);
      const scalar_t left_slope = t[2] - t[0], right_slope = t[3] - t[1];
      const scalar_t left = t[0] + y * left_slope, across = t[1] + y * right_slope - left;
      sums[0] += g[c] * across;
      sums[1] += g[c] * (left_slope + x * (right_slope - left_slope));
      sums[2] += g[c] * (left + x * across);
    }
    along_x[i] = sums[0];
    along_y[i] = sums[1];
    if (total != nullptr) total[i] = sums[2];
  }

  DR_HD void one(int i, int channels) const {
    scalar_t sums[3] = {0, 0, 0};
    rest(i, channels, 0, sums);
  }

  DR_HD void run(int n, int channels) const {
#if !defined(__CUDACC__)
    if constexpr (std::is_same_v<scalar_t, float>) return slopes_with_vectors(*this, n, channels);
#endif
    for (int i = 0; i < n; ++i) one(i, channels);
  }
};

// As values_at_once of texture_forward.h.
template <class Sampler, class scalar_t>
DR_HD bool slopes_at_once(const Sampler&, int64_t, int64_t, const scalar_t*, scalar_t*) {
  return false;
}

// As values_of_start.
template <class Sampler, class scalar_t>
DR_HD int slopes_of_start(const Sampler&, int64_t, int, int64_t, int32_t*, const scalar_t*, scalar_t*) {
  return 0;
}

// With the share w of a level:
//   grad_u += w along_x slope_x, likewise v
//   grad_level = total of the coarser level - that of the finer one, over taps; 0 where the level is clamped
//   grad_axis += t grad_u, grad_v of the tap at position t of the axis
// The mapping pulls these back to coordinates, derivatives and bias.
template <class scalar_t, class Mapping, bool kMips>
struct TextureBackwardCoordinates {
  TextureSampler<scalar_t, Mapping, kMips> sampler;
  const scalar_t* grad_values;  // [B, H, W, C]
  scalar_t* grad_coordinates;   // [B, H, W, 2 or 3] or null
  scalar_t* grad_derivatives;   // [B, H, W, 4 or 6] or null
  scalar_t* grad_bias;          // [B, H, W] or null

  DR_HD void operator()(int64_t begin, int64_t end) const {
    using Sampler = TextureSampler<scalar_t, Mapping, kMips>;
    const int channels = sampler.levels.channels;
    if (slopes_at_once(sampler, begin, end, grad_values, grad_coordinates)) return;
    int32_t guess = -1;
    Sampler::for_each_block(begin, end, sampler.lookups_per_item, [&](int64_t first, int n, int64_t item) {
      if (grad_derivatives == nullptr && grad_bias == nullptr) {
        const int done = slopes_of_start(sampler, first, n, item, &guess, grad_values, grad_coordinates);
        if (done == n) return;
        first += done, n -= done;
      }
      typename Sampler::Block block;
      typename Sampler::Taps taps;
      const scalar_t* const g = grad_values + first * channels;
      scalar_t grad_u[kTextureBlock], grad_v[kTextureBlock], grad_level[kTextureBlock];
      scalar_t axis_u[kTextureBlock], axis_v[kTextureBlock];
      sampler.locate(first, n, &block);
      if constexpr (!kMips) {
        sampler.find(item, block, n, 0, 0, &taps);
        TextureSlopes<scalar_t>{taps, g, grad_u, grad_v, nullptr}.run(n, channels);
        for (int i = 0; i < n; ++i) {
          grad_u[i] *= taps.slope_x[i];
          grad_v[i] *= taps.slope_y[i];
        }
      } else {
        for (int i = 0; i < n; ++i) grad_u[i] = grad_v[i] = grad_level[i] = axis_u[i] = axis_v[i] = 0;
        const bool to_level =
            sampler.blends() && (grad_derivatives != nullptr || grad_bias != nullptr || Mapping::kCoordinates == 3);
        // A share of 0 has a derivative to the level all the same.
        const int steps = to_level || sampler.blends(block) ? 2 : 1;
        const int32_t count = sampler.tap_count();
        for (int32_t pass = 0; pass < steps * count; ++pass) {
          const int step = pass % steps;
          scalar_t along_x[kTextureBlock], along_y[kTextureBlock], total[kTextureBlock], weights[kTextureBlock];
          sampler.find(item, block, n, pass / steps, step, &taps);
          TextureSlopes<scalar_t>{taps, g, along_x, along_y, to_level ? total : nullptr}.run(n, channels);
          const scalar_t t = sampler.tap_position(pass / steps);
          sampler.weigh(block, n, step, weights);
          for (int i = 0; i < n; ++i) {
            // What a lookup has no share of may be NaN or infinite.
            along_x[i] = weights[i] > 0 ? along_x[i] * (weights[i] * taps.slope_x[i]) : scalar_t(0);
            along_y[i] = weights[i] > 0 ? along_y[i] * (weights[i] * taps.slope_y[i]) : scalar_t(0);
            grad_u[i] += along_x[i];
            grad_v[i] += along_y[i];
          }
          for (int i = 0; count > 1 && i < n; ++i) {
            axis_u[i] += t * along_x[i];
            axis_v[i] += t * along_y[i];
          }
          const scalar_t sign = step == 0 ? scalar_t(-1) : scalar_t(1);
          for (int i = 0; to_level && i < n; ++i) grad_level[i] += sign * total[i];
        }
        for (int i = 0; to_level && i < n; ++i) {
          const bool free = block.level[i] > 0 && block.level[i] < sampler.levels.last;
          grad_level[i] = free ? grad_level[i] / count : scalar_t(0);
        }
      }
      sampler.mapping.template pull_back<kMips>(first, n, block.face, sampler.levels, sampler.anisotropy, grad_u,
                                                grad_v, grad_level, axis_u, axis_v, grad_coordinates, grad_derivatives,
                                                grad_bias);
    });
  }
};

// The weights of the four taps; what falls off a corner of a cube goes to the other three in equal parts.
template <class scalar_t>
DR_HD void tap_weights(const TextureTaps<scalar_t>& taps, int i, scalar_t scale, scalar_t weights[4]) {
  const scalar_t x = taps.x[i], y = taps.y[i], low = scale * (1 - y), high = scale * y;
  weights[0] = low * (1 - x);
  weights[1] = low * x;
  weights[2] = high * (1 - x);
  weights[3] = high * x;
  if (taps.regular[i] >= 0) return;
  for (int k = 0; k < 4; ++k) {
    if (taps.tap[k][i] != kTapCorner) continue;
    for (int other = 0; other < 4; ++other) weights[other] += other == k ? 0 : weights[k] / 3;
    weights[k] = 0;
  }
}

// Whether any channel of a lookup has a gradient. NaN is one.
template <class scalar_t>
DR_HD bool any_channel(const scalar_t* grad_values, int channels) {
  bool any = false;
  for (int c = 0; c < channels; ++c) any = any || grad_values[c] != 0;
  return any;
}

// Adds weights[k] * g to the four texels of each live lane, of all lanes of a warp together: where a texture is
// magnified, neighbouring pixels read the same ones. `start`: element of the sink at which the lookup's level
// starts.
template <class scalar_t, class Weight>
DR_HD void add_taps_by_warp(const Sink<double>& sink, bool live, const TextureTaps<scalar_t>& taps,
                            const Weight weights[4], int64_t start, const scalar_t* g, int channels) {
  for (int k = 0; k < 4; ++k) {
    const int32_t tap = live ? taps.at(k, 0) : kTapOutside;
    if (!warp_any(tap >= 0)) continue;
    const double weight = tap >= 0 ? static_cast<double>(weights[k]) : 0.0;
    const int64_t texel = start + static_cast<int64_t>(tap) * channels;
    add_channels_by_warp(sink, tap >= 0, texel, channels, [&](int c) { return weight * g[c]; });
  }
}

// Of TextureBackwardTexels what depends on the type of the numbers alone.
template <class scalar_t>
DR_HD_STEP void add_shares(const TextureLevels<scalar_t>& levels, const TextureShares<scalar_t>& shares,
                           const scalar_t* grad_values, bool base, const Sink<double>& sink) {
  const int channels = levels.channels;
  for (int i = 0; i < shares.n; ++i) {
    const int32_t level = shares.level_of(i);
    const scalar_t share = shares.weight_of(i);
    if ((level == 0) != base || !(share > 0)) continue;
    const int64_t start = level == 0 ? shares.item * levels.base_stride
                                     : shares.item * levels.mips_stride + levels.offset[level] * channels;
    scalar_t weights[4];
    tap_weights(shares.taps, i, share, weights);
    const scalar_t* const g = grad_values + (shares.first + i) * channels;
    for (int k = 0; k < 4; ++k) {
      const int32_t tap = shares.taps.at(k, i);
      if (tap < 0) continue;
      const int64_t texel = start + static_cast<int64_t>(tap) * channels;
      const double w = weights[k];
      for (int c = 0; c < channels; ++c) accumulate(sink, texel + c, w * g[c]);
    }
  }
}

// grad_texel += weight * g for the texels of every lookup, of the base or of the mips. Sums are double, so that many
// small contributions to one texel lose nothing. The CPU has a driver of its own: texture_scatter_cpu.h. On the GPU the
// lanes of a warp add up what they have for the same texel.
template <class scalar_t, class Mapping, bool kMips>
struct TextureBackwardTexels {
  TextureSampler<scalar_t, Mapping, kMips> sampler;
  const scalar_t* grad_values;  // [B, H, W, C]
  bool base;                    // whether the sink is the gradient of the base or that of the mips

  static constexpr int kValues = kChannelsAtOnce;  // launch_scatter hands it to whole warps

  DR_HD void operator()(int64_t begin, int64_t end, const Sink<double>& sink) const {
    if constexpr (kHasWarps) return by_warp(begin, end, sink);
    sampler.for_each_share(begin, end, [&](const TextureShares<scalar_t>& shares) {
      add_shares(sampler.levels, shares, grad_values, base, sink);
    });
  }

  DR_HD void by_warp(int64_t begin, int64_t end, const Sink<double>& sink) const {
    const TextureLevels<scalar_t>& levels = sampler.levels;
    const scalar_t* const g = grad_values + begin * levels.channels;
    const bool has = begin < end && any_channel(g, levels.channels);
    sampler.for_each_share_by_warp(has, begin, [&](const TextureShares<scalar_t>& shares, bool live) {
      scalar_t weights[4];
      int64_t start = 0;
      if (live) {
        const int32_t level = shares.level_of(0);
        const scalar_t share = shares.weight_of(0);
        live = (level == 0) == base && share > 0;
        tap_weights(shares.taps, 0, share, weights);
        start = level == 0 ? shares.item * levels.base_stride
                           : shares.item * levels.mips_stride + levels.offset[level] * levels.channels;
      }
      add_taps_by_warp(sink, live, shares.taps, weights, start, g, levels.channels);
    });
  }
};

// Sums of doubles in the type of the gradient.
template <class scalar_t>
struct RoundSums {
  const double* sums;  // [N]
  scalar_t* result;    // [N]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) result[i] = static_cast<scalar_t>(sums[i]);
  }
};

}  // namespace diffrender
