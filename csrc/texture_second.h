// Second derivative of the linear filter without mips.
#pragma once

#include "texture_backward.h"

namespace diffrender {

// Second derivative of the linear filter without mips: the gradient of
//   D = <u, grad_texcoords> = sum_c g_c (a_x dm/dx + a_y dm/dy),   a = (u_0 slope_x, u_1 slope_y),
// for a cotangent u of grad_texcoords. m is bilinear in (x, y), so only the mixed derivative d2m/dxdy is left.
template <class scalar_t, class Mapping>
struct TextureBackwardTwice {
  TextureSampler<scalar_t, Mapping, false> sampler;
  const scalar_t* grad_values;  // [B, H, W, C]
  const scalar_t* cotangent;    // [B, H, W, 2]
  scalar_t* to_grad_values;     // [B, H, W, C]
  scalar_t* to_texcoords;       // [B, H, W, 2]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    const int channels = sampler.levels.channels;
    sampler.for_each_share(begin, end, [&](const TextureShares<scalar_t>& shares) {
      const auto& taps = shares.taps;
      const int n = shares.n;
      const scalar_t *u = cotangent + 2 * shares.first, *g = grad_values + shares.first * channels;
      scalar_t *to_uv = to_texcoords + 2 * shares.first, *out = to_grad_values + shares.first * channels;
      for (int i = 0; i < n; ++i, u += 2, to_uv += 2, g += channels, out += channels) {
        const scalar_t x = taps.x[i], y = taps.y[i], slope_x = taps.slope_x[i], slope_y = taps.slope_y[i];
        const scalar_t a_x = u[0] * slope_x, a_y = u[1] * slope_y;
        scalar_t mixed = 0;
        for (int c = 0; c < channels; ++c) {
          scalar_t t[4];
          read_texels(taps, i, channels, c, t);
          const scalar_t low_x = t[1] - t[0], low_y = t[2] - t[0], twist = t[3] - t[2] - low_x;
          out[c] = a_x * (low_x + y * twist) + a_y * (low_y + x * twist);
          mixed += g[c] * twist;
        }
        to_uv[0] = slope_x * a_y * mixed;
        to_uv[1] = slope_y * a_x * mixed;
      }
    });
  }
};

// The texture's part of the same: D is linear in the texels, with the derivatives of the weights.
template <class scalar_t, class Mapping>
struct TextureBackwardTwiceTexels {
  TextureSampler<scalar_t, Mapping, false> sampler;
  const scalar_t* grad_values;  // [B, H, W, C]
  const scalar_t* cotangent;    // [B, H, W, 2]

  static constexpr int kValues = kChannelsAtOnce;  // launch_scatter hands it to whole warps

  DR_HD void operator()(int64_t begin, int64_t end, const Sink<double>& sink) const {
    if constexpr (kHasWarps) return by_warp(begin, end, sink);
    sampler.for_each_share(begin, end, [&](const TextureShares<scalar_t>& shares) { add(shares, sink); });
  }

  DR_HD void add(const TextureShares<scalar_t>& shares, const Sink<double>& sink) const {
    const auto& taps = shares.taps;
    const int channels = sampler.levels.channels;
    const int64_t item_start = shares.item * sampler.levels.base_stride;
    for (int i = 0; i < shares.n; ++i) {
      const int64_t lookup = shares.first + i;
      double weights[4];
      weigh(taps, i, lookup, weights);
      const scalar_t* const g = grad_values + lookup * channels;
      for (int k = 0; k < 4; ++k) {
        const int32_t tap = taps.at(k, i);
        if (tap < 0) continue;
        const int64_t texel = item_start + static_cast<int64_t>(tap) * channels;
        for (int c = 0; c < channels; ++c) accumulate(sink, texel + c, weights[k] * g[c]);
      }
    }
  }

  DR_HD void weigh(const TextureTaps<scalar_t>& taps, int i, int64_t lookup, double weights[4]) const {
    const double x = taps.x[i], y = taps.y[i];
    const double a_x = cotangent[2 * lookup] * taps.slope_x[i];
    const double a_y = cotangent[2 * lookup + 1] * taps.slope_y[i];
    weights[0] = -a_x * (1 - y) - a_y * (1 - x);
    weights[1] = a_x * (1 - y) - a_y * x;
    weights[2] = -a_x * y + a_y * (1 - x);
    weights[3] = a_x * y + a_y * x;
  }

  DR_HD void by_warp(int64_t begin, int64_t end, const Sink<double>& sink) const {
    const int channels = sampler.levels.channels;
    const scalar_t* const g = grad_values + begin * channels;
    const bool has = begin < end && any_channel(g, channels);
    sampler.for_each_share_by_warp(has, begin, [&](const TextureShares<scalar_t>& shares, bool live) {
      double weights[4];
      if (live) weigh(shares.taps, 0, begin, weights);
      const int64_t start = shares.item * sampler.levels.base_stride;
      add_taps_by_warp(sink, live, shares.taps, weights, start, g, channels);
    });
  }
};

}  // namespace diffrender
