// Images keep the channels of a pixel together; blocks of lanes hold one channel of kLanes pixels. The ways between the
// two for 1 to 4 channels of float32, and the sums of several blocks at once.
#pragma once

#include "lanes.h"

namespace diffrender {

#if defined(__clang__)
#define DR_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define DR_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, IntLanes{__VA_ARGS__})
#endif

// Element 8 k + i of 8 interleaved triples belongs to channel (8 k + i) mod 3 of pixel (8 k + i) / 3. As 3 and 8 have
// no common factor, a channel has exactly one element at each position i of the three blocks: one blend brings them
// together, one permutation into order.
template <int kRemainder>
DR_HD Lanes<float> pick_third(const Lanes<float>& a, const Lanes<float>& b, const Lanes<float>& c) {
  // Lane i comes from `a` where i mod 3 = kRemainder, from `b` where (i + 2) mod 3 = kRemainder, else from `c`.
  constexpr auto on = [](int i, int shift) { return (i + shift) % 3 == kRemainder ? -1 : 0; };
  constexpr IntLanes from_a = {on(0, 0), on(1, 0), on(2, 0), on(3, 0), on(4, 0), on(5, 0), on(6, 0), on(7, 0)};
  constexpr IntLanes from_b = {on(0, 2), on(1, 2), on(2, 2), on(3, 2), on(4, 2), on(5, 2), on(6, 2), on(7, 2)};
  const Lanes<float> b_or_c = from_b ? b : c;
  return from_a ? a : b_or_c;
}

// channel[c][l] = address[kChannels l + c].
template <int kChannels>
DR_HD void load_channels(const float* address, Lanes<float> channel[kChannels]) {
  using Values = Lanes<float>;
  static_assert(kChannels >= 1 && kChannels <= 4);
  if constexpr (kChannels == 1) {
    channel[0] = load_lanes<Values>(address);
  } else if constexpr (kChannels == 2) {
    const Values low = load_lanes<Values>(address), high = load_lanes<Values>(address + kLanes);
    channel[0] = even_lanes(low, high);
    channel[1] = odd_lanes(low, high);
  } else if constexpr (kChannels == 3) {
    const Values a = load_lanes<Values>(address), b = load_lanes<Values>(address + kLanes);
    const Values c = load_lanes<Values>(address + 2 * kLanes);
    const Values red = pick_third<0>(a, b, c), green = pick_third<1>(a, b, c), blue = pick_third<2>(a, b, c);
    channel[0] = DR_SHUFFLE(red, red, 0, 3, 6, 1, 4, 7, 2, 5);
    channel[1] = DR_SHUFFLE(green, green, 1, 4, 7, 2, 5, 0, 3, 6);
    channel[2] = DR_SHUFFLE(blue, blue, 2, 5, 0, 3, 6, 1, 4, 7);
  } else {
    Values half[2][2];
    for (int h = 0; h < 2; ++h) {
      const Values low = load_lanes<Values>(address + 2 * h * kLanes);
      const Values high = load_lanes<Values>(address + (2 * h + 1) * kLanes);
      half[0][h] = even_lanes(low, high);
      half[1][h] = odd_lanes(low, high);
    }
    for (int c = 0; c < 2; ++c) {
      channel[c] = even_lanes(half[c][0], half[c][1]);
      channel[c + 2] = odd_lanes(half[c][0], half[c][1]);
    }
  }
}

// address[kChannels l + c] = channel[c][l].
template <int kChannels>
DR_HD void store_channels(float* address, const Lanes<float> channel[kChannels]) {
  using Values = Lanes<float>;
  static_assert(kChannels >= 1 && kChannels <= 4);
  if constexpr (kChannels == 1) {
    store_lanes(address, channel[0]);
  } else if constexpr (kChannels == 2) {
    store_lanes(address, interleave_low(channel[0], channel[1]));
    store_lanes(address + kLanes, interleave_high(channel[0], channel[1]));
  } else if constexpr (kChannels == 3) {
    // Pixel l of channel c goes to position (3 l + c) mod 8; 3 is its own inverse modulo 8.
    const Values red = DR_SHUFFLE(channel[0], channel[0], 0, 3, 6, 1, 4, 7, 2, 5);
    const Values green = DR_SHUFFLE(channel[1], channel[1], 5, 0, 3, 6, 1, 4, 7, 2);
    const Values blue = DR_SHUFFLE(channel[2], channel[2], 2, 5, 0, 3, 6, 1, 4, 7);
    store_lanes(address, pick_third<0>(red, green, blue));
    store_lanes(address + kLanes, pick_third<1>(red, green, blue));
    store_lanes(address + 2 * kLanes, pick_third<2>(red, green, blue));
  } else {
    const Values even[2] = {interleave_low(channel[0], channel[2]), interleave_high(channel[0], channel[2])};
    const Values odd[2] = {interleave_low(channel[1], channel[3]), interleave_high(channel[1], channel[3])};
    for (int h = 0; h < 2; ++h) {
      store_lanes(address + 2 * h * kLanes, interleave_low(even[h], odd[h]));
      store_lanes(address + (2 * h + 1) * kLanes, interleave_high(even[h], odd[h]));
    }
  }
}

// Lane i of the result is the sum over the lanes of v[i]: a transposition that adds on its way.
DR_HD Lanes<float> lane_sums(const Lanes<float> v[kLanes]) {
  using Values = Lanes<float>;
  Values quad[2];
  for (int h = 0; h < 2; ++h) {
    const Values* const u = v + 4 * h;
    Values pair[2];
    for (int i = 0; i < 2; ++i) {
      pair[i] = DR_SHUFFLE(u[2 * i], u[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13) +
                DR_SHUFFLE(u[2 * i], u[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    quad[h] = DR_SHUFFLE(pair[0], pair[1], 0, 1, 8, 9, 4, 5, 12, 13) +
              DR_SHUFFLE(pair[0], pair[1], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  return DR_SHUFFLE(quad[0], quad[1], 0, 1, 2, 3, 8, 9, 10, 11) +
         DR_SHUFFLE(quad[0], quad[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

#undef DR_SHUFFLE

}  // namespace diffrender
