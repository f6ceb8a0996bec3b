// The bilinear filter of float textures on the CPU, with vectors: over lookups for one channel, over channels for more.
// Two texels of a row lie side by side in memory, so that one load of 2 to 8 numbers gets both. What is no square
// (borders, seams) is computed by the scalar formulas, of texture_forward.h and texture_backward.h, of which these are
// the same operations in the same order.
#include "core/lanes.h"
#include "texture_backward.h"
#include "texture_forward.h"

namespace diffrender {
namespace {

using FourFloats = float __attribute__((vector_size(16), aligned(4), may_alias));

// Vectors are passed around by inlining: there is no calling convention for them.
#define DR_INLINE inline __attribute__((always_inline))

// Left and right texels of a square of 2 to 4 channels, mixed along y. Lanes beyond the channels hold other texels.
template <int kChannels>
struct MixedSquare {
  FourFloats left, right;

  DR_INLINE MixedSquare(const TextureTaps<float>& taps, int i) {
    const float* const low = taps.texels[i] + static_cast<int64_t>(taps.tap[0][i]) * kChannels;
    const float* const high = low + static_cast<int64_t>(taps.width[i]) * kChannels;
    const float y = taps.y[i];
    const FourFloats low_left = load_lanes<FourFloats>(low), high_left = load_lanes<FourFloats>(high);
    left = low_left + y * (high_left - low_left);
    if constexpr (kChannels == 2) {
      right = shuffle_lanes<2, 3, 2, 3>(left, left);
      return;
    }
    // Where three numbers end, a fourth might not be there to read: the right texel is read from the one before it on.
    constexpr int kRight = kChannels == 4 ? 4 : 2;
    const FourFloats low_right = load_lanes<FourFloats>(low + kRight);
    right = low_right + y * (load_lanes<FourFloats>(high + kRight) - low_right);
    if constexpr (kChannels == 3) right = shuffle_lanes<1, 2, 3, 3>(right, right);
  }
};

// Bit l is set where lookup i + l is no square.
DR_INLINE uint32_t irregular_lanes(const TextureTaps<float>& taps, int i) {
  return lane_bits(load_lanes<IntLanes>(taps.regular + i) <= 0);
}

constexpr uint32_t kAllLanes = (1u << kLanes) - 1;

// Where the rows of kLanes squares start. What is no square takes the place of one that is.
template <int kChannels>
struct SquareRows {
  const float *low[kLanes], *high[kLanes];

  DR_INLINE SquareRows(const TextureTaps<float>& taps, int i, uint32_t irregular) {
    const int square = __builtin_ctz(~irregular);
    for (int l = 0; l < kLanes; ++l) {
      const int k = i + ((irregular >> l & 1) != 0 ? square : l);
      low[l] = taps.texels[k] + static_cast<int64_t>(taps.tap[0][k]) * kChannels;
      high[l] = low[l] + static_cast<int64_t>(taps.width[k]) * kChannels;
    }
  }
};

// The same for one channel of kLanes lookups from i on, and the slopes along y.
template <>
struct MixedSquare<1> {
  Lanes<float> left, right, left_slope, right_slope;

  using Pair = double __attribute__((may_alias, aligned(4)));

  // In this order the two shuffles stay within the halves of a vector.
  template <class Address>
  DR_INLINE static void deal(const Address& at, Lanes<float>* left, Lanes<float>* right) {
    using Pairs = double __attribute__((vector_size(32)));
    const auto pair = [&](int l) { return *reinterpret_cast<const Pair*>(at(l)); };
    const Pairs first = {pair(0), pair(1), pair(4), pair(5)}, second = {pair(2), pair(3), pair(6), pair(7)};
    const Lanes<float> a = reinterpret_cast<const Lanes<float>&>(first);
    const Lanes<float> b = reinterpret_cast<const Lanes<float>&>(second);
    *left = shuffle_lanes<0, 2, 8, 10, 4, 6, 12, 14>(a, b);
    *right = shuffle_lanes<1, 3, 9, 11, 5, 7, 13, 15>(a, b);
  }

  // irregular: bits of the lookups that are no squares; they get the texels of another one.
  DR_INLINE MixedSquare(const TextureTaps<float>& taps, int i, uint32_t irregular) {
    Lanes<float> low_left, low_right, high_left, high_right;
    const int32_t* const tap = taps.tap[0] + i;
    if (taps.one_level && irregular == 0) {
      const float *const low = taps.texels[0], *const high = low + taps.width[0];
      deal([&](int l) { return low + tap[l]; }, &low_left, &low_right);
      deal([&](int l) { return high + tap[l]; }, &high_left, &high_right);
    } else {
      const SquareRows<1> rows(taps, i, irregular);
      deal([&](int l) { return rows.low[l]; }, &low_left, &low_right);
      deal([&](int l) { return rows.high[l]; }, &high_left, &high_right);
    }
    const auto y = load_lanes<Lanes<float>>(taps.y + i);
    left_slope = high_left - low_left;
    right_slope = high_right - low_right;
    left = low_left + y * left_slope;
    right = low_right + y * right_slope;
  }
};

// ---- values

DR_INLINE FourFloats lanes_of_channels(const TextureMix<float>& mix, int i, int channels) {
  FourFloats result = {0, 0, 0, 0};
  for (int c = 0; c < channels; ++c) result[c] = mix.value(i, channels, c);
  return result;
}

template <int kChannels>
DR_INLINE FourFloats mix_square(const TextureTaps<float>& taps, int i) {
  const MixedSquare<kChannels> square(taps, i);
  return square.left + taps.x[i] * (square.right - square.left);
}

// Two to four channels. kSimple: one level, nothing to add to.
template <int kChannels, bool kSimple>
void mix_few_channels(const TextureMix<float>& mix, int n, float* out) {
  for (int i = 0; i < n; ++i, out += kChannels) {
    FourFloats value;
    const bool blend = !kSimple && mix.blend && mix.fraction[i] > 0;
    if (mix.fine.regular[i] <= 0 || (blend && mix.coarse.regular[i] <= 0)) {
      value = lanes_of_channels(mix, i, kChannels);
    } else {
      value = mix_square<kChannels>(mix.fine, i);
      if (blend) value += mix.fraction[i] * (mix_square<kChannels>(mix.coarse, i) - value);
    }
    if constexpr (!kSimple) {
      value *= mix.scale;
      if (mix.add) {
        for (int c = 0; c < kChannels; ++c) out[c] += value[c];
        continue;
      }
    }
    if (kChannels == 4 || (kChannels == 3 && i + 1 < n)) {
      store_lanes(out, value);  // what stands behind three channels is written next
    } else {
      for (int c = 0; c < kChannels; ++c) out[c] = value[c];
    }
  }
}

void mix_one_channel(const TextureMix<float>& mix, int n, float* out) {
  const auto scalar = [&](int i) {
    const float value = mix.scale * mix.value(i, 1, 0);
    out[i] = mix.add ? out[i] + value : value;
  };
  const int whole = n - n % kLanes;
  for (int i = 0; i < whole; i += kLanes) {
    const uint32_t fine_irregular = irregular_lanes(mix.fine, i);
    const uint32_t coarse_irregular = mix.blend ? irregular_lanes(mix.coarse, i) : 0;
    const uint32_t irregular = fine_irregular | coarse_irregular;
    if (irregular == kAllLanes) {
      for (int k = i; k < i + kLanes; ++k) scalar(k);
      continue;
    }
    const MixedSquare<1> fine(mix.fine, i, fine_irregular);
    Lanes<float> value = fine.left + load_lanes<Lanes<float>>(mix.fine.x + i) * (fine.right - fine.left);
    if (mix.blend) {
      const MixedSquare<1> coarse(mix.coarse, i, coarse_irregular);
      const auto other = coarse.left + load_lanes<Lanes<float>>(mix.coarse.x + i) * (coarse.right - coarse.left);
      const auto fraction = load_lanes<Lanes<float>>(mix.fraction + i);
      value = fraction > 0 ? value + fraction * (other - value) : value;
    }
    value *= mix.scale;
    const auto before = load_lanes<Lanes<float>>(out + i);
    store_lanes(out + i, mix.add ? before + value : value);
    for (int l = 0; irregular >> l != 0; ++l) {
      if ((irregular >> l & 1) == 0) continue;
      out[i + l] = before[l];
      scalar(i + l);
    }
  }
  for (int i = whole; i < n; ++i) scalar(i);
}

// Four texels of many channels.
struct TexelRows {
  const float *t00, *t10, *t01, *t11;
  float x, y;

  DR_INLINE TexelRows(const TextureTaps<float>& taps, int i, int channels) : x(taps.x[i]), y(taps.y[i]) {
    const auto row = [&](int k) { return taps.texels[i] + static_cast<int64_t>(taps.at(k, i)) * channels; };
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

void mix_many_channels(const TextureMix<float>& mix, int n, int channels, float* out) {
  for (int i = 0; i < n; ++i, out += channels) {
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

template <int kChannels>
DR_INLINE void mix_few_channels(const TextureMix<float>& mix, int n, float* out) {
  if (!mix.blend && !mix.add && mix.scale == 1) return mix_few_channels<kChannels, true>(mix, n, out);
  mix_few_channels<kChannels, false>(mix, n, out);
}

}  // namespace

void mix_with_vectors(const TextureMix<float>& mix, int n, int channels, float* out) {
  if (channels == 1) return mix_one_channel(mix, n, out);
  if (channels == 2) return mix_few_channels<2>(mix, n, out);
  if (channels == 3) return mix_few_channels<3>(mix, n, out);
  if (channels == 4) return mix_few_channels<4>(mix, n, out);
  mix_many_channels(mix, n, channels, out);
}

// ---- slopes

namespace {

// Four numbers from each of kLanes addresses, as one vector for each of the four.
template <class Address>
DR_INLINE void load_columns(const Address& at, Lanes<float> columns[4]) {
  const auto pair = [&](int l) {
    const FourFloats low = load_lanes<FourFloats>(at(l)), high = load_lanes<FourFloats>(at(l + 4));
    return Lanes<float>{low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]};
  };
  const Lanes<float> v0 = pair(0), v1 = pair(1), v2 = pair(2), v3 = pair(3);
  const auto low_pairs = [](auto a, auto b) { return shuffle_lanes<0, 8, 1, 9, 4, 12, 5, 13>(a, b); };
  const auto high_pairs = [](auto a, auto b) { return shuffle_lanes<2, 10, 3, 11, 6, 14, 7, 15>(a, b); };
  const Lanes<float> t0 = low_pairs(v0, v1), t1 = high_pairs(v0, v1), t2 = low_pairs(v2, v3), t3 = high_pairs(v2, v3);
  columns[0] = shuffle_lanes<0, 1, 8, 9, 4, 5, 12, 13>(t0, t2);
  columns[1] = shuffle_lanes<2, 3, 10, 11, 6, 7, 14, 15>(t0, t2);
  columns[2] = shuffle_lanes<0, 1, 8, 9, 4, 5, 12, 13>(t1, t3);
  columns[3] = shuffle_lanes<2, 3, 10, 11, 6, 7, 14, 15>(t1, t3);
}

// Two to four channels of the left and right texels of kLanes squares. at(l): the left texel.
template <int kChannels, class Address>
DR_INLINE void load_row(const Address& at, Lanes<float> left[4], Lanes<float> right[4]) {
  load_columns(at, left);
  if constexpr (kChannels == 2) {
    right[0] = left[2], right[1] = left[3];
    return;
  }
  // Where three numbers end, a fourth might not be there to read: the right texel is read from the one before it on.
  constexpr int kSkip = kChannels == 4 ? 4 : 2, kFirst = kChannels == 4 ? 0 : 1;
  Lanes<float> columns[4];
  load_columns([&](int l) { return at(l) + kSkip; }, columns);
  for (int c = 0; c < kChannels; ++c) right[c] = columns[c + kFirst];
}

template <int kChannels>
void slope_few_channels(const TextureSlopes<float>& slopes, int n) {
  const TextureTaps<float>& taps = slopes.taps;
  const int whole = n - n % kLanes;
  float cotangents[kChannels][kTextureBlock];
#pragma omp simd
  for (int i = 0; i < whole; ++i) {
    for (int c = 0; c < kChannels; ++c) cotangents[c][i] = slopes.grad_values[i * kChannels + c];
  }
  for (int i = whole; i < n; ++i) slopes.one(i, kChannels);
  for (int i = 0; i < whole; i += kLanes) {
    const uint32_t irregular = irregular_lanes(taps, i);
    if (irregular == kAllLanes) {
      for (int k = i; k < i + kLanes; ++k) slopes.one(k, kChannels);
      continue;
    }
    const SquareRows<kChannels> rows(taps, i, irregular);
    Lanes<float> t00[4], t10[4], t01[4], t11[4], u = {}, v = {}, total = {};
    load_row<kChannels>([&](int l) { return rows.low[l]; }, t00, t10);
    load_row<kChannels>([&](int l) { return rows.high[l]; }, t01, t11);
    const auto x = load_lanes<Lanes<float>>(taps.x + i), y = load_lanes<Lanes<float>>(taps.y + i);
    for (int c = 0; c < kChannels; ++c) {
      const auto cotangent = load_lanes<Lanes<float>>(cotangents[c] + i);
      const auto left_slope = t01[c] - t00[c], right_slope = t11[c] - t10[c];
      const auto left = t00[c] + y * left_slope, across = t10[c] + y * right_slope - left;
      u += cotangent * across;
      v += cotangent * (left_slope + x * (right_slope - left_slope));
      total += cotangent * (left + x * across);
    }
    store_lanes(slopes.along_x + i, u);
    store_lanes(slopes.along_y + i, v);
    if (slopes.total != nullptr) store_lanes(slopes.total + i, total);
    for (int l = 0; irregular >> l != 0; ++l) {
      if ((irregular >> l & 1) != 0) slopes.one(i + l, kChannels);
    }
  }
}

void slope_one_channel(const TextureSlopes<float>& slopes, int n) {
  const TextureTaps<float>& taps = slopes.taps;
  const int whole = n - n % kLanes;
  for (int i = whole; i < n; ++i) slopes.one(i, 1);
  for (int i = 0; i < whole; i += kLanes) {
    const uint32_t irregular = irregular_lanes(taps, i);
    if (irregular == kAllLanes) {
      for (int k = i; k < i + kLanes; ++k) slopes.one(k, 1);
      continue;
    }
    const MixedSquare<1> square(taps, i, irregular);
    const auto cotangent = load_lanes<Lanes<float>>(slopes.grad_values + i);
    const auto x = load_lanes<Lanes<float>>(taps.x + i), across = square.right - square.left;
    store_lanes(slopes.along_x + i, cotangent * across);
    store_lanes(slopes.along_y + i, cotangent * (square.left_slope + x * (square.right_slope - square.left_slope)));
    if (slopes.total != nullptr) store_lanes(slopes.total + i, cotangent * (square.left + x * across));
    for (int l = 0; irregular >> l != 0; ++l) {
      if ((irregular >> l & 1) != 0) slopes.one(i + l, 1);
    }
  }
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
  if (channels == 1) return slope_one_channel(slopes, n);
  if (channels == 2) return slope_few_channels<2>(slopes, n);
  if (channels == 3) return slope_few_channels<3>(slopes, n);
  if (channels == 4) return slope_few_channels<4>(slopes, n);
  slope_many_channels(slopes, n, channels);
}

}  // namespace diffrender
