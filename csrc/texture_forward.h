// Values of a texture: bilinear mixes, within a level or between two.
#pragma once

#include <type_traits>

#include "texture.h"

namespace diffrender {

// The bilinear mix of channel c, as a + f (b - a): a constant texture gives exactly its constant.
template <class scalar_t>
DR_HD scalar_t mix_channel(const TextureTaps<scalar_t>& taps, int i, int channels, int c) {
  scalar_t t[4];
  read_texels(taps, i, channels, c, t);
  const scalar_t left = t[0] + taps.y[i] * (t[2] - t[0]), right = t[1] + taps.y[i] * (t[3] - t[1]);
  return left + taps.x[i] * (right - left);
}

// What a block adds to its values: those of one level, or with `blend` those between two.
template <class scalar_t>
struct TextureMix {
  const TextureTaps<scalar_t>&fine, &coarse;
  const scalar_t* fraction;  // [n] share of the coarser level
  bool blend;
  bool add;        // to what the taps before have left
  scalar_t scale;  // 1 / taps

  DR_HD scalar_t value(int i, int channels, int c) const {
    scalar_t result = mix_channel(fine, i, channels, c);
    if (blend && fraction[i] > 0) result += fraction[i] * (mix_channel(coarse, i, channels, c) - result);
    return result;
  }

  // kChannels: the channel count where it is known, else 0.
  template <int kChannels>
  DR_HD_STEP void run(int n, int channel_count, scalar_t* out) const {
    const int channels = kChannels > 0 ? kChannels : channel_count;
    for (int i = 0; i < n; ++i) {
      for (int c = 0; c < channels; ++c) {
        const scalar_t one = scale * value(i, channels, c);
        scalar_t& result = out[i * channels + c];
        result = add ? result + one : one;
      }
    }
  }
};

#if !defined(__CUDACC__)
// texture_vectors_cpu.cpp: the same for any channel count.
void mix_with_vectors(const TextureMix<float>& mix, int n, int channels, float* out);
#endif

template <class scalar_t>
DR_HD void mix_block(const TextureMix<scalar_t>& mix, int n, int channels, scalar_t* out) {
#if defined(__CUDACC__)
  if (channels == 3) return mix.template run<3>(n, channels, out);
  if (channels == 4) return mix.template run<4>(n, channels, out);
#else
  if constexpr (std::is_same_v<scalar_t, float>) return mix_with_vectors(mix, n, channels, out);
#endif
  mix.template run<0>(n, channels, out);
}

// Whether all of it is done by this; some samplers of the CPU have a short way.
template <class Sampler, class scalar_t>
DR_HD bool values_at_once(const Sampler&, int64_t, int64_t, scalar_t*) {
  return false;
}

// How many lookups at the start of a block are done by this.
template <class Sampler, class scalar_t>
DR_HD int values_of_start(const Sampler&, int64_t, int, int64_t, int32_t*, scalar_t*) {
  return 0;
}

template <class scalar_t, class Mapping, bool kMips>
struct TextureForward {
  TextureSampler<scalar_t, Mapping, kMips> sampler;
  scalar_t* values;  // [B, H, W, C]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    using Sampler = TextureSampler<scalar_t, Mapping, kMips>;
    const int channels = sampler.levels.channels;
    if (values_at_once(sampler, begin, end, values)) return;
    int32_t guess = -1;
    Sampler::for_each_block(begin, end, sampler.lookups_per_item, [&](int64_t first, int n, int64_t item) {
      const int done = values_of_start(sampler, first, n, item, &guess, values);
      if (done == n) return;
      first += done, n -= done;
      typename Sampler::Block block;
      typename Sampler::Taps fine;
      fine.values_only = true;
      scalar_t* const out = values + first * channels;
      sampler.locate(first, n, &block);
      if constexpr (kMips) {
        typename Sampler::Taps coarse;
        coarse.values_only = true;
        const int32_t count = sampler.tap_count();
        const bool blends = sampler.blends(block);
        for (int32_t index = 0; index < count; ++index) {
          sampler.find(item, block, n, index, 0, &fine);
          if (blends) sampler.find(item, block, n, index, 1, &coarse);
          mix_block(TextureMix<scalar_t>{fine, coarse, block.fraction, blends, index > 0, scalar_t(1) / count}, n,
                    channels, out);
        }
      } else {
        sampler.find(item, block, n, 0, 0, &fine);
        mix_block(TextureMix<scalar_t>{fine, fine, nullptr, false, false, scalar_t(1)}, n, channels, out);
      }
    });
  }
};

// The texel of the nearest filter.
template <class scalar_t, class Mapping>
struct TextureNearest {
  TextureSampler<scalar_t, Mapping, false> sampler;
  scalar_t* values;  // [B, H, W, C]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    using Sampler = TextureSampler<scalar_t, Mapping, false>;
    const int channels = sampler.levels.channels;
    Sampler::for_each_block(begin, end, sampler.lookups_per_item, [&](int64_t first, int n, int64_t item) {
      typename Sampler::Block block;
      typename Sampler::Taps taps;
      sampler.locate(first, n, &block);
      sampler.find_nearest(item, block, n, &taps);
      for (int i = 0; i < n; ++i) {
        const int32_t tap = taps.tap[0][i];
        const scalar_t* const texel = taps.texels_of(i) + static_cast<int64_t>(tap < 0 ? 0 : tap) * channels;
        scalar_t* const out = values + (first + i) * channels;
        for (int c = 0; c < channels; ++c) out[c] = tap < 0 ? scalar_t(0) : texel[c];
      }
    });
  }
};

}  // namespace diffrender
