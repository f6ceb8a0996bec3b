// Texture coordinates of kLanes lookups of float, on the CPU: the two texels of an axis that each lies between. The
// same operations in the same order as WrappedAxis and PlaneMapping::locate of texture_plane.h.
#pragma once

#include "texture_lanes.h"
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

// Texels of an axis.
struct SizeLanes {
  IntLanes n, last;
  Lanes<float> size, end;

  DR_HD explicit SizeLanes(const IntLanes& count)
      : n(count), last(count - 1), size(__builtin_convertvector(count, Lanes<float>)), end(size - 1.0f) {}
};

struct WrappedLanes {
  IntLanes first, second, next;  // next: first + 1
  Lanes<float> fraction, slope;

  DR_HD static WrappedLanes clamp(const Lanes<float>& u, const SizeLanes& axis, const Lanes<float>& sign) {
    const Lanes<float> zero = {}, x = u * axis.size - 0.5f;
    const IntLanes inside = (x >= 0.0f) & (x < axis.end);
    const Lanes<float> below = x < axis.end ? x : axis.end, at = x > 0.0f ? below : zero, whole = floor_lanes(at);
    const IntLanes first = __builtin_convertvector(whole, IntLanes), next = first + 1;
    return {first, next < axis.last ? next : axis.last, next, at - whole, inside ? sign * axis.size : zero};
  }

  DR_HD static WrappedLanes wrap(TextureWrap rule, const Lanes<float>& u, const SizeLanes& axis) {
    const IntLanes none = {};
    switch (rule) {
      case TextureWrap::clamp:
        return clamp(u, axis, 1.0f - Lanes<float>{});
      case TextureWrap::mirror: {
        const Lanes<float> turn = u - 2.0f * floor_lanes(0.5f * u), one = 1.0f - Lanes<float>{};
        return clamp(turn > 1.0f ? 2.0f - turn : turn, axis, turn > 1.0f ? -one : one);
      }
      case TextureWrap::zero: {
        const Lanes<float> x = u * axis.size - 0.5f, end = axis.size + 1.0f, start = Lanes<float>{} - 2.0f;
        const Lanes<float> below = x < end ? x : end, near = x > -2.0f ? below : start, whole = floor_lanes(near);
        const IntLanes first = __builtin_convertvector(whole, IntLanes), next = first + 1;
        return {first < axis.n ? first : none - 1, next < axis.n ? next : none - 1, next, near - whole, axis.size};
      }
      case TextureWrap::repeat:
        break;
    }
    const Lanes<float> x = (u - floor_lanes(u)) * axis.size - 0.5f, whole = floor_lanes(x);
    const IntLanes start = __builtin_convertvector(whole, IntLanes), first = start < 0 ? axis.last : start;
    const IntLanes next = first + 1;
    return {first, next < axis.n ? next : none, next, x - whole, axis.size};
  }
};

// Texture coordinates; what is not finite becomes 0, and -1 in `valid`.
struct LocatedLanes {
  Lanes<float> u, v;
  IntLanes valid;

  DR_HD explicit LocatedLanes(const float* uv) {
    const Lanes<float> zero = {}, large = zero + kLargest<float>;
    Lanes<float> x, y;
    load_pairs([&](int l) { return uv + 2 * l; }, &x, &y);
    const IntLanes finite = (x <= large) & (x >= -large) & (y <= large) & (y >= -large);
    u = finite ? x : zero;
    v = finite ? y : zero;
    valid = ~finite;
  }
};

// Arguments are read in short pieces between other work: too short for the processor to guess that they go on.
inline void prefetch_ahead(const float* address) { __builtin_prefetch(address + 512); }

}  // namespace diffrender
