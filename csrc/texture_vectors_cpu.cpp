// The bilinear filter of float textures on the CPU, with vectors: over lookups for one or two channels, over channels
// for more, over lookups again for the gradient of the coordinates. Two texels of a row lie side by side in memory, so
// that one load of 2 to 8 numbers gets both. All of it is the same operations in the same order as the scalar formulas
// of texture_forward.h and texture_backward.h.
#include "core/channel_lanes.h"
#include "texture_backward.h"
#include "texture_forward.h"
#include "texture_lanes.h"

namespace diffrender {
namespace {

// Vectors are passed around by inlining: there is no calling convention for them.
#define DR_INLINE inline __attribute__((always_inline))

// ---- texels of kLanes lookups

// kChannels numbers from each address, and nothing behind them.
template <int kChannels, class Address>
DR_INLINE void load_texels(const Address& at, Lanes<float> columns[4]) {
  if constexpr (kChannels == 1) {
    columns[0] = Lanes<float>{*at(0), *at(1), *at(2), *at(3), *at(4), *at(5), *at(6), *at(7)};
  } else {
    const auto four = [&](int l) {
      const float* const texel = at(l);
      if constexpr (kChannels == 2) return FourFloats{texel[0], texel[1], 0, 0};
      if constexpr (kChannels == 3) return FourFloats{texel[0], texel[1], texel[2], 0};
      if constexpr (kChannels == 4) return load_lanes<FourFloats>(texel);
    };
    transpose_columns(four, columns);
  }
}

// t[k][c]: channel c of texel k of each lookup.
template <int kChannels>
struct TexelLanes {
  Lanes<float> t[4][4];

  template <class Low, class High>
  DR_INLINE void load(const Low& low, const High& high) {
    load_row<kChannels>(low, t[0], t[1]);
    load_row<kChannels>(high, t[2], t[3]);
  }

  // Any lookups: of several levels, or no squares. What is no texel counts by the rule of read_texels.
  __attribute__((noinline)) void load_each(const TextureTaps<float>& taps, int i) {
    const IntLanes regular = load_lanes<IntLanes>(taps.regular + i), none = {};
    const IntLanes first = load_lanes<IntLanes>(taps.tap[0] + i);
    const IntLanes width = taps.one_level ? none + taps.width[0] : load_lanes<IntLanes>(taps.width + i);
    IntLanes tap[4], all = regular;
    for (int k = 0; k < 4; ++k) {
      const IntLanes of_square = first + (k & 1) + (k >> 1) * width;
      tap[k] = regular > 0 ? of_square : load_lanes<IntLanes>(taps.tap[k] + i);
      all |= tap[k];
      const IntLanes texel = tap[k] > 0 ? tap[k] : none;
#if defined(__AVX2__) && !defined(__clang__)
      if (kChannels == 1 && taps.one_level) {
        const IntLanes every = none - 1;
        t[k][0] = __builtin_ia32_gathersiv8sf(Lanes<float>{}, taps.texels[0], texel,
                                              reinterpret_cast<const Lanes<float>&>(every), sizeof(float));
        continue;
      }
#endif
      load_texels<kChannels>([&](int l) { return taps.texels_of(i + l) + static_cast<int64_t>(texel[l]) * kChannels; },
                             t[k]);
    }
    if (!any_lane(all < 0)) return;
    for (int c = 0; c < kChannels; ++c) {
      Lanes<float> sum = {};
      for (int k = 0; k < 4; ++k) {
        t[k][c] = tap[k] < 0 ? Lanes<float>{} : t[k][c];
        sum += t[k][c];
      }
      for (int k = 0; k < 4; ++k) t[k][c] = tap[k] == kTapCorner ? sum / 3.0f : t[k][c];
    }
  }

  DR_INLINE TexelLanes(const TextureTaps<float>& taps, int i) {
    if (taps.one_level && !any_lane(load_lanes<IntLanes>(taps.regular + i) <= 0)) {
      const float* const low = taps.texels[0];
      const float* const high = low + static_cast<int64_t>(taps.width[0]) * kChannels;
      const int32_t* const tap = taps.tap[0] + i;
      load([&](int l) { return low + static_cast<int64_t>(tap[l]) * kChannels; },
           [&](int l) { return high + static_cast<int64_t>(tap[l]) * kChannels; });
    } else {
      TexelLanes each;  // by itself in memory, so that what is loaded above stays in registers
      each.load_each(taps, i);
      *this = each;
    }
  }

 private:
  TexelLanes() = default;
};

// ---- values

template <int kChannels>
DR_INLINE void mix_lanes(const TextureTaps<float>& taps, int i, Lanes<float> values[kChannels]) {
  const TexelLanes<kChannels> at(taps, i);
  const auto x = load_lanes<Lanes<float>>(taps.x + i), y = load_lanes<Lanes<float>>(taps.y + i);
  for (int c = 0; c < kChannels; ++c) {
    const Lanes<float> left = at.t[0][c] + y * (at.t[2][c] - at.t[0][c]);
    const Lanes<float> right = at.t[1][c] + y * (at.t[3][c] - at.t[1][c]);
    values[c] = left + x * (right - left);
  }
}

// One or two channels.
template <int kChannels>
void mix_over_lookups(const TextureMix<float>& mix, int n, float* out) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes, out += kChannels * kLanes) {
    Lanes<float> values[kChannels], other[kChannels];
    mix_lanes<kChannels>(mix.fine, i, values);
    if (mix.blend) {
      const auto fraction = load_lanes<Lanes<float>>(mix.fraction + i);
      mix_lanes<kChannels>(mix.coarse, i, other);
      for (int c = 0; c < kChannels; ++c) {
        values[c] = fraction > 0.0f ? values[c] + fraction * (other[c] - values[c]) : values[c];
      }
    }
    for (int c = 0; c < kChannels; ++c) values[c] *= mix.scale;
    if (mix.add) {
      load_channels<kChannels>(out, other);
      for (int c = 0; c < kChannels; ++c) values[c] += other[c];
    }
    store_channels<kChannels>(out, values);
  }
  for (; i < n; ++i) {
    for (int c = 0; c < kChannels; ++c, ++out) {
      const float value = mix.scale * mix.value(i, kChannels, c);
      *out = mix.add ? *out + value : value;
    }
  }
}

template <int kChannels>
DR_INLINE FourFloats mix_taps(const TextureTaps<float>& taps, int i) {
  const float* const low = taps.texels_of(i) + static_cast<int64_t>(taps.tap[0][i]) * kChannels;
  return mix_square<kChannels>(low, low + static_cast<int64_t>(taps.width_of(i)) * kChannels, taps.x[i], taps.y[i]);
}

// Three or four channels.
template <int kChannels>
void mix_few_channels(const TextureMix<float>& mix, int n, float* out) {
  for (int i = 0; i < n; ++i, out += kChannels) {
    FourFloats value;
    const bool blend = mix.blend && mix.fraction[i] > 0;
    if (mix.fine.regular[i] <= 0 || (blend && mix.coarse.regular[i] <= 0)) {
      value = FourFloats{};
      for (int c = 0; c < kChannels; ++c) value[c] = mix.value(i, kChannels, c);
    } else {
      value = mix_taps<kChannels>(mix.fine, i);
      if (blend) value += mix.fraction[i] * (mix_taps<kChannels>(mix.coarse, i) - value);
    }
    value *= mix.scale;
    if (!mix.add && (kChannels == 4 || i + 1 < n)) {
      store_lanes(out, value);  // what stands behind three channels is written next
      continue;
    }
    for (int c = 0; c < kChannels; ++c) out[c] = mix.add ? out[c] + value[c] : value[c];
  }
}

// Four texels of many channels.
struct TexelRows {
  const float *t00, *t10, *t01, *t11;
  float x, y;

  DR_INLINE TexelRows(const TextureTaps<float>& taps, int i, int channels) : x(taps.x[i]), y(taps.y[i]) {
    const auto row = [&](int k) { return taps.texels_of(i) + static_cast<int64_t>(taps.at(k, i)) * channels; };
    t00 = row(0), t10 = row(1), t01 = row(2), t11 = row(3);
  }
};

template <class Vector>
DR_INLINE Vector mix_rows(const TexelRows& rows, int c) {
  const Vector t00 = load_lanes<Vector>(rows.t00 + c), t10 = load_lanes<Vector>(rows.t10 + c);
  const Vector left = t00 + rows.y * (load_lanes<Vector>(rows.t01 + c) - t00);
  const Vector right = t10 + rows.y * (load_lanes<Vector>(rows.t11 + c) - t10);
  return left + rows.x * (right - left);
}

__attribute__((noinline)) void prefetch_rows(const TextureTaps<float>& taps, int i, int channels) {
  if (taps.regular[i] < 0) return;
  const TexelRows rows(taps, i, channels);
  for (const float* row : {rows.t00, rows.t10, rows.t01, rows.t11}) __builtin_prefetch(row);
}

void mix_many_channels(const TextureMix<float>& mix, int n, int channels, float* out) {
  // Texels of a level that the inner caches do not hold are asked for some lookups ahead.
  constexpr int kAhead = 6;
  constexpr int64_t kLargeLevel = int64_t(1) << 16;
  const int64_t width = mix.fine.width[0];  // as if it were as high
  const bool large = !mix.blend && mix.fine.one_level && width * width * channels > kLargeLevel;
  for (int i = 0; i < n; ++i, out += channels) {
    if (large && i + kAhead < n) prefetch_rows(mix.fine, i + kAhead, channels);
    const bool blend = mix.blend && mix.fraction[i] > 0;
    const float fraction = blend ? mix.fraction[i] : 0.0f;
    int c = 0;
    if (mix.fine.regular[i] >= 0 && !(blend && mix.coarse.regular[i] < 0)) {
      const TexelRows fine(mix.fine, i, channels), coarse(blend ? mix.coarse : mix.fine, i, channels);
      const auto step = [&](auto zeros) {
        using Vector = decltype(zeros);
        Vector value = mix_rows<Vector>(fine, c);
        if (blend) value += fraction * (mix_rows<Vector>(coarse, c) - value);
        value *= mix.scale;
        if (mix.add) value += load_lanes<Vector>(out + c);
        store_lanes(out + c, value);
        c += sizeof(Vector) / sizeof(float);
      };
      while (c + kLanes <= channels) step(Lanes<float>{});
      if (c + 4 <= channels) step(FourFloats{});
    }
    for (; c < channels; ++c) {
      const float value = mix.scale * mix.value(i, channels, c);
      out[c] = mix.add ? out[c] + value : value;
    }
  }
}

}  // namespace

void mix_with_vectors(const TextureMix<float>& mix, int n, int channels, float* out) {
  if (channels == 1) return mix_over_lookups<1>(mix, n, out);
  if (channels == 2) return mix_over_lookups<2>(mix, n, out);
  if (channels == 3) return mix_few_channels<3>(mix, n, out);
  if (channels == 4) return mix_few_channels<4>(mix, n, out);
  mix_many_channels(mix, n, channels, out);
}

// ---- slopes

namespace {

// One to four channels.
template <int kChannels>
void slopes_over_lookups(const TextureSlopes<float>& slopes, int n) {
  const TextureTaps<float>& taps = slopes.taps;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Lanes<float> cotangent[kChannels], u = {}, v = {}, total = {};
    load_channels<kChannels>(slopes.grad_values + i * kChannels, cotangent);
    const TexelLanes<kChannels> at(taps, i);
    const auto x = load_lanes<Lanes<float>>(taps.x + i), y = load_lanes<Lanes<float>>(taps.y + i);
    for (int c = 0; c < kChannels; ++c) {
      const Lanes<float> left_slope = at.t[2][c] - at.t[0][c], right_slope = at.t[3][c] - at.t[1][c];
      const Lanes<float> left = at.t[0][c] + y * left_slope, across = at.t[1][c] + y * right_slope - left;
      u += cotangent[c] * across;
      v += cotangent[c] * (left_slope + x * (right_slope - left_slope));
      total += cotangent[c] * (left + x * across);
    }
    store_lanes(slopes.along_x + i, u);
    store_lanes(slopes.along_y + i, v);
    if (slopes.total != nullptr) store_lanes(slopes.total + i, total);
  }
  for (; i < n; ++i) slopes.one(i, kChannels);
}

// Sums over many channels in kLanes parts.
void slope_many_channels(const TextureSlopes<float>& slopes, int n, int channels) {
  const TextureTaps<float>& taps = slopes.taps;
  for (int i = 0; i < n; ++i) {
    if (taps.regular[i] < 0 || channels < kLanes) {
      slopes.one(i, channels);
      continue;
    }
    const TexelRows rows(taps, i, channels);
    const float* const g = slopes.grad_values + static_cast<int64_t>(i) * channels;
    Lanes<float> u = {}, v = {}, total = {};
    int c = 0;
    for (; c + kLanes <= channels; c += kLanes) {
      const auto t00 = load_lanes<Lanes<float>>(rows.t00 + c), t10 = load_lanes<Lanes<float>>(rows.t10 + c);
      const auto cotangent = load_lanes<Lanes<float>>(g + c);
      const auto left_slope = load_lanes<Lanes<float>>(rows.t01 + c) - t00;
      const auto right_slope = load_lanes<Lanes<float>>(rows.t11 + c) - t10;
      const auto left = t00 + rows.y * left_slope, across = t10 + rows.y * right_slope - left;
      u += cotangent * across;
      v += cotangent * (left_slope + rows.x * (right_slope - left_slope));
      total += cotangent * (left + rows.x * across);
    }
    float sums[3] = {0, 0, 0};
    for (int l = 0; l < kLanes; ++l) sums[0] += u[l], sums[1] += v[l], sums[2] += total[l];
    slopes.rest(i, channels, c, sums);
  }
}

}  // namespace

void slopes_with_vectors(const TextureSlopes<float>& slopes, int n, int channels) {
  if (channels == 1) return slopes_over_lookups<1>(slopes, n);
  if (channels == 2) return slopes_over_lookups<2>(slopes, n);
  if (channels == 3) return slopes_over_lookups<3>(slopes, n);
  if (channels == 4) return slopes_over_lookups<4>(slopes, n);
  slope_many_channels(slopes, n, channels);
}

}  // namespace diffrender
