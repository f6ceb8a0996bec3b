// Texels of float from kLanes addresses, and their bilinear mix.
#pragma once

#include "core/lanes.h"

namespace diffrender {

using FourFloats = float __attribute__((vector_size(16), aligned(4), may_alias));

// As one vector for each of four: four(0) ... four(kLanes - 1).
template <class Four>
DR_HD void transpose_columns(const Four& four, Lanes<float> columns[4]) {
  Lanes<float> v[4];
  for (int l = 0; l < 4; ++l) {
    const FourFloats low = four(l), high = four(l + 4);
#if defined(__AVX__) && !defined(__clang__)
    // Out of eight numbers the compiler would make eight loads.
    v[l] = __builtin_ia32_vinsertf128_ps256(__builtin_ia32_ps256_ps(low), high, 1);
#else
    v[l] = Lanes<float>{low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]};
#endif
  }
  const auto low_pairs = [](auto a, auto b) { return shuffle_lanes<0, 8, 1, 9, 4, 12, 5, 13>(a, b); };
  const auto high_pairs = [](auto a, auto b) { return shuffle_lanes<2, 10, 3, 11, 6, 14, 7, 15>(a, b); };
  const Lanes<float> t0 = low_pairs(v[0], v[1]), t1 = high_pairs(v[0], v[1]), t2 = low_pairs(v[2], v[3]),
                     t3 = high_pairs(v[2], v[3]);
  columns[0] = shuffle_lanes<0, 1, 8, 9, 4, 5, 12, 13>(t0, t2);
  columns[1] = shuffle_lanes<2, 3, 10, 11, 6, 7, 14, 15>(t0, t2);
  columns[2] = shuffle_lanes<0, 1, 8, 9, 4, 5, 12, 13>(t1, t3);
  columns[3] = shuffle_lanes<2, 3, 10, 11, 6, 7, 14, 15>(t1, t3);
}

// Four numbers from each of kLanes addresses.
template <class Address>
DR_HD void load_columns(const Address& at, Lanes<float> columns[4]) {
  transpose_columns([&](int l) { return load_lanes<FourFloats>(at(l)); }, columns);
}

// Two numbers from each address. In this order the two shuffles stay within the halves of a vector.
template <class Address>
DR_HD void load_pairs(const Address& at, Lanes<float>* left, Lanes<float>* right) {
  using Pairs = double __attribute__((vector_size(32)));
  const auto pair = [&](int l) {
    double two;
    __builtin_memcpy(&two, at(l), sizeof(two));
    return two;
  };
  const Pairs first = {pair(0), pair(1), pair(4), pair(5)}, second = {pair(2), pair(3), pair(6), pair(7)};
  const Lanes<float> a = reinterpret_cast<const Lanes<float>&>(first);
  const Lanes<float> b = reinterpret_cast<const Lanes<float>&>(second);
  *left = shuffle_lanes<0, 2, 8, 10, 4, 6, 12, 14>(a, b);
  *right = shuffle_lanes<1, 3, 9, 11, 5, 7, 13, 15>(a, b);
}

// Channels of the left and right texels of a row of kLanes squares. at(l): the left texel.
template <int kChannels, class Address>
DR_HD void load_row(const Address& at, Lanes<float> left[4], Lanes<float> right[4]) {
  if constexpr (kChannels == 1) {
    load_pairs(at, left, right);
    return;
  }
  load_columns(at, left);
  if constexpr (kChannels == 2) {
    right[0] = left[2], right[1] = left[3];
    return;
  }
  // Where three numbers end, a fourth might not be there to read: the right texel is read from the one before it on.
  constexpr int kSkip = kChannels == 4 ? 4 : 2, kFirst = kChannels == 4 ? 0 : 1;
  Lanes<float> columns[4];
  load_columns([&](int l) { return at(l) + kSkip; }, columns);
  for (int c = 0; c < kChannels && kChannels > 2; ++c) right[c] = columns[c + kFirst];
}

// The mix of a square of texels of three or four channels from its rows. Of three, the last lane is another number.
template <int kChannels>
DR_HD FourFloats mix_square(const float* low, const float* high, float x, float y) {
  const FourFloats low_left = load_lanes<FourFloats>(low), high_left = load_lanes<FourFloats>(high);
  const FourFloats left = low_left + y * (high_left - low_left);
  // As in load_row.
  constexpr int kRight = kChannels == 4 ? 4 : 2;
  const FourFloats low_right = load_lanes<FourFloats>(low + kRight);
  FourFloats right = low_right + y * (load_lanes<FourFloats>(high + kRight) - low_right);
  if constexpr (kChannels == 3) right = shuffle_lanes<1, 2, 3, 3>(right, right);
  return left + x * (right - left);
}

}  // namespace diffrender
