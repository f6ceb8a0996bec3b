// Where lookups of float fall, on the CPU with vectors: coordinates, levels and texels of kLanes lookups at once, by
// the same operations in the same order as the scalar formulas of texture.h, texture_plane.h and texture_footprint.h.
#include "texture_lanes.h"
#include "texture_plane.h"

namespace diffrender {
namespace {

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

// log2 of positive normal numbers.
DR_HD Lanes<float> log2_lanes(const Lanes<float>& value) {
  const IntLanes bits = reinterpret_cast<const IntLanes&>(value);
  const IntLanes exponent = (bits - 0x3f3504f3) >> 23, rest = bits - exponent * (1 << 23);
  const Lanes<float> m = reinterpret_cast<const Lanes<float>&>(rest);
  return __builtin_convertvector(exponent, Lanes<float>) + log2_mantissa<float, 5>(m);
}

// Of footprints j = (u_X, u_Y, v_X, v_Y). Returns those lanes whose squares might overflow or underflow.
DR_HD IntLanes major_level_lanes(const Lanes<float> j[4], float width, float height, Lanes<float>* level) {
  const auto square = Footprint<float>::squared_major(Lanes<float>(j[0] * width), Lanes<float>(j[1] * width),
                                                      Lanes<float>(j[2] * height), Lanes<float>(j[3] * height),
                                                      [](const Lanes<float>& x) { return sqrt_lanes(x); });
  const IntLanes common = (square > Footprint<float>::kSmallSquare) & (square < Footprint<float>::kLargeSquare);
  const Lanes<float> one = 1.0f - Lanes<float>{};
  *level = 0.5f * log2_lanes(common ? square : one);
  return ~common;
}

// Arguments are read in short pieces between other work: too short for the processor to guess that they go on.
inline void prefetch_ahead(const float* address) { __builtin_prefetch(address + 512); }

}  // namespace

void locate_with_vectors(const float* texcoords, int n, float* u, float* v, int32_t* valid) {
  for (int i = 0; i < n; i += kLanes) {
    const float* uv = texcoords + 2 * i;
    prefetch_ahead(uv);
    float rest[2 * kLanes];
    if (n - i < kLanes) {
      for (int k = 0; k < 2 * kLanes; ++k) rest[k] = k < 2 * (n - i) ? uv[k] : HUGE_VALF;
      uv = rest;
    }
    const Lanes<float> zero = {}, large = zero + kLargest<float>;
    // Dealt so that the two shuffles stay within the halves of a vector.
    const Lanes<float> a = {uv[0], uv[1], uv[2], uv[3], uv[8], uv[9], uv[10], uv[11]};
    const Lanes<float> b = {uv[4], uv[5], uv[6], uv[7], uv[12], uv[13], uv[14], uv[15]};
    const auto x = shuffle_lanes<0, 2, 8, 10, 4, 6, 12, 14>(a, b);
    const auto y = shuffle_lanes<1, 3, 9, 11, 5, 7, 13, 15>(a, b);
    const IntLanes finite = (x <= large) & (x >= -large) & (y <= large) & (y >= -large);
    store_lanes(u + i, finite ? x : zero);
    store_lanes(v + i, finite ? y : zero);
    store_lanes(valid + i, ~finite);
  }
}

void choose_levels_with_vectors(TextureBlock<float, true>* block, int n, int32_t last, bool blend) {
  const Lanes<float> zero = {}, top = zero + static_cast<float>(last), share = zero + (blend ? 1.0f : 0.0f);
  const IntLanes last_level = IntLanes{} + last;
  uint32_t between = 0;
  for (int i = 0; i < n; i += kLanes) {
    const auto wanted = load_lanes<Lanes<float>>(block->level + i);
    const Lanes<float> below = wanted < top ? wanted : top, level = wanted > 0.0f ? below : zero;
    const IntLanes fine = __builtin_convertvector(level, IntLanes), next = fine + 1;
    const Lanes<float> fraction = share * (level - __builtin_convertvector(fine, Lanes<float>));
    store_lanes(block->fine + i, fine);
    store_lanes(block->coarse + i, fine < last_level ? next : last_level);
    store_lanes(block->fraction + i, fraction);
    const uint32_t some = n - i < kLanes ? (1u << (n - i)) - 1 : ~0u;
    between |= some & lane_bits(fraction > 0.0f);
  }
  block->between = between != 0;
}

void find_with_vectors(const PlaneBlock& block, TextureTaps<float>* taps) {
  const bool one_level = taps->one_level;
  SizeLanes columns(IntLanes{} + block.sizes.width[0]), rows(IntLanes{} + block.sizes.height[0]);
  IntLanes width = IntLanes{} + taps->width[0], unpadded = width == columns.n;
  for (int i = 0; i < block.n; i += kLanes) {
    if (!one_level) {
      columns = SizeLanes(load_lanes<IntLanes>(block.sizes.width + i));
      rows = SizeLanes(load_lanes<IntLanes>(block.sizes.height + i));
      width = load_lanes<IntLanes>(taps->width + i);
      unpadded = width == columns.n;
    }
    const WrappedLanes x = WrappedLanes::wrap(block.wrap_u, load_lanes<Lanes<float>>(block.u + i), columns);
    const WrappedLanes y = WrappedLanes::wrap(block.wrap_v, load_lanes<Lanes<float>>(block.v + i), rows);
    const IntLanes ok = load_lanes<IntLanes>(block.valid + i), outside = IntLanes{} + kTapOutside;
    const IntLanes skew = ((x.second ^ x.next) | (y.second ^ y.next)) & unpadded, square = (skew == 0) & 1;
    const IntLanes low = y.first * width, any = x.first | x.second | y.first | y.second | ok;
    const IntLanes regular = any < 0 ? outside : square;
    store_lanes(taps->column + i, x.first);
    store_lanes(taps->row + i, y.first);
    store_lanes(taps->x + i, x.fraction);
    store_lanes(taps->y + i, y.fraction);
    store_lanes(taps->slope_x + i, x.slope);
    store_lanes(taps->slope_y + i, y.slope);
    store_lanes(taps->regular + i, regular);
    store_lanes(taps->tap[0] + i, (x.first | y.first | ok) < 0 ? outside : low + x.first);
    if (!any_lane(regular <= 0)) continue;
    const IntLanes high = y.second * width;
    store_lanes(taps->tap[1] + i, (x.second | y.first | ok) < 0 ? outside : low + x.second);
    store_lanes(taps->tap[2] + i, (x.first | y.second | ok) < 0 ? outside : high + x.first);
    store_lanes(taps->tap[3] + i, (x.second | y.second | ok) < 0 ? outside : high + x.second);
  }
}

void levels_with_vectors(const float* steps, int n, float width, float height, float* levels) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const float* const group = steps + 4 * i;
    prefetch_ahead(group);
    prefetch_ahead(group + 2 * kLanes);
    Lanes<float> j[4], level;
    load_columns([&](int l) { return group + 4 * l; }, j);
    const uint32_t beyond = lane_bits(major_level_lanes(j, width, height, &level));
    store_lanes(levels + i, level);
    for (int l = 0; beyond >> l != 0; ++l) {
      if ((beyond >> l & 1) != 0) levels[i + l] = Footprint<float>::major_level(group + 4 * l, width, height);
    }
  }
  for (; i < n; ++i) levels[i] = Footprint<float>::major_level(steps + 4 * i, width, height);
}

}  // namespace diffrender
