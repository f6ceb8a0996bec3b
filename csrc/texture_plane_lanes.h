// Wrapped coordinates and levels of kLanes lookups at once: the same operations in the same order as WrappedAxis of
// texture_plane.h and Footprint::major_level of texture_footprint.h.
#pragma once

#include "core/lanes.h"
#include "texture_footprint.h"
#include "texture_plane.h"

namespace diffrender {

DR_HD Lanes<float> floor_lanes(const Lanes<float>& x) {
#if defined(__AVX__) && !defined(__clang__)
  return __builtin_ia32_roundps256(x, 9);  // towards minus infinity
#else
  Lanes<float> whole = {};
  for (int l = 0; l < kLanes; ++l) whole[l] = std::floor(x[l]);
  return whole;
#endif
}

DR_HD Lanes<float> sqrt_lanes(const Lanes<float>& x) {
#if defined(__AVX__) && !defined(__clang__)
  return __builtin_ia32_sqrtps256(x);
#else
  Lanes<float> root = {};
  for (int l = 0; l < kLanes; ++l) root[l] = std::sqrt(x[l]);
  return root;
#endif
}

struct WrappedLanes {
  IntLanes first, second;
  Lanes<float> fraction, slope;

  DR_HD static WrappedLanes clamp(const Lanes<float>& u, const IntLanes& n, const Lanes<float>& sign) {
    const Lanes<float> zero = {}, size = __builtin_convertvector(n, Lanes<float>), x = u * size - 0.5f;
    const Lanes<float> end = size - 1.0f;
    const IntLanes inside = (x >= 0.0f) & (x < end);
    const Lanes<float> below = x < end ? x : end, at = x > 0.0f ? below : zero, whole = floor_lanes(at);
    const IntLanes first = __builtin_convertvector(whole, IntLanes), next = first + 1, last = n - 1;
    return {first, next < last ? next : last, at - whole, inside ? sign * size : zero};
  }

  DR_HD static WrappedLanes wrap(TextureWrap rule, const Lanes<float>& u, const IntLanes& n) {
    const Lanes<float> size = __builtin_convertvector(n, Lanes<float>);
    const IntLanes none = {};
    switch (rule) {
      case TextureWrap::clamp:
        return clamp(u, n, 1.0f - Lanes<float>{});
      case TextureWrap::mirror: {
        const Lanes<float> turn = u - 2.0f * floor_lanes(0.5f * u), one = 1.0f - Lanes<float>{};
        return clamp(turn > 1.0f ? 2.0f - turn : turn, n, turn > 1.0f ? -one : one);
      }
      case TextureWrap::zero: {
        const Lanes<float> x = u * size - 0.5f, end = size + 1.0f, start = Lanes<float>{} - 2.0f;
        const Lanes<float> below = x < end ? x : end, near = x > -2.0f ? below : start, whole = floor_lanes(near);
        const IntLanes first = __builtin_convertvector(whole, IntLanes), second = first + 1;
        return {first < n ? first : none - 1, second < n ? second : none - 1, near - whole, size};
      }
      case TextureWrap::repeat:
        break;
    }
    const Lanes<float> x = (u - floor_lanes(u)) * size - 0.5f, whole = floor_lanes(x);
    const IntLanes first = __builtin_convertvector(whole, IntLanes), next = first + 1;
    return {first < 0 ? n - 1 : first, next < n ? next : none, x - whole, size};
  }
};

// log2 of positive normal numbers.
DR_HD Lanes<float> log2_lanes(const Lanes<float>& value) {
  const IntLanes bits = reinterpret_cast<const IntLanes&>(value);
  const IntLanes exponent = (bits - 0x3f3504f3) >> 23, rest = bits - exponent * (1 << 23);
  const Lanes<float> m = reinterpret_cast<const Lanes<float>&>(rest);
  return __builtin_convertvector(exponent, Lanes<float>) + log2_mantissa<float, 5>(m);
}

// Of footprints j = (u_X, u_Y, v_X, v_Y). Returns those lanes whose squares might overflow or underflow.
DR_HD IntLanes major_level_lanes(const Lanes<float> j[4], float width, float height, Lanes<float>* level) {
  const auto square =
      Footprint<float>::squared_major(Lanes<float>(j[0] * width), Lanes<float>(j[1] * width), Lanes<float>(j[2] * height),
                                      Lanes<float>(j[3] * height), [](const Lanes<float>& x) { return sqrt_lanes(x); });
  const IntLanes common = (square > Footprint<float>::kSmallSquare) & (square < Footprint<float>::kLargeSquare);
  const Lanes<float> one = 1.0f - Lanes<float>{};
  *level = 0.5f * log2_lanes(common ? square : one);
  return ~common;
}

}  // namespace diffrender
