// Where lookups of float fall, on the CPU with vectors: coordinates, levels and texels of kLanes lookups at once, by
// the same operations in the same order as the scalar formulas of texture.h, texture_plane.h and texture_footprint.h.
#include "texture_wrap_lanes.h"

namespace diffrender {
namespace {

DR_HD Lanes<float> sqrt_lanes(const Lanes<float>& x) {
#if defined(__AVX__) && !defined(__clang__)
  return __builtin_ia32_sqrtps256(x);
#else
  Lanes<float> root = {};
  for (int l = 0; l < kLanes; ++l) root[l] = std::sqrt(x[l]);
  return root;
#endif
}

// log2 of positive normal numbers.
DR_HD Lanes<float> log2_lanes(const Lanes<float>& value) {
  const IntLanes bits = reinterpret_cast<const IntLanes&>(value);
  const IntLanes exponent = (bits - 0x3f3504f3) >> 23, rest = bits - exponent * (1 << 23);
  const Lanes<float> m = reinterpret_cast<const Lanes<float>&>(rest);
  return __builtin_convertvector(exponent, Lanes<float>) + log2_mantissa<float, 5>(m);
}

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
    const LocatedLanes at(uv);
    store_lanes(u + i, at.u);
    store_lanes(v + i, at.v);
    store_lanes(valid + i, at.valid);
  }
}

void choose_levels_with_vectors(TextureBlock<float, true>* block, int n, int32_t last, bool blend) {
  const Lanes<float> zero = {}, top = zero + static_cast<float>(last), share = zero + (blend ? 1.0f : 0.0f);
  const IntLanes last_level = IntLanes{} + last;
  uint32_t between = 0, others = 0;
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
    others |= some & lane_bits(fine != block->fine[0]);
  }
  block->one_level = others == 0;
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
    store_lanes(taps->x + i, x.fraction);
    store_lanes(taps->y + i, y.fraction);
    if (!taps->values_only) {
      store_lanes(taps->column + i, x.first);
      store_lanes(taps->row + i, y.first);
      store_lanes(taps->slope_x + i, x.slope);
      store_lanes(taps->slope_y + i, y.slope);
    }
    store_lanes(taps->regular + i, regular);
    store_lanes(taps->tap[0] + i, (x.first | y.first | ok) < 0 ? outside : low + x.first);
    if (!any_lane(regular <= 0)) continue;
    const IntLanes high = y.second * width;
    store_lanes(taps->tap[1] + i, (x.second | y.first | ok) < 0 ? outside : low + x.second);
    store_lanes(taps->tap[2] + i, (x.first | y.second | ok) < 0 ? outside : high + x.first);
    store_lanes(taps->tap[3] + i, (x.second | y.second | ok) < 0 ? outside : high + x.second);
  }
}

// Two short loops: long chains of a root and a logarithm per group would leave the processor nothing to overlap.
void levels_with_vectors(const float* steps, int n, float width, float height, float* levels) {
  const int whole = n / kLanes * kLanes;
  for (int i = 0; i < whole; i += kLanes) {
    const float* const group = steps + 4 * i;
    prefetch_ahead(group);
    prefetch_ahead(group + 2 * kLanes);
    Lanes<float> j[4];
    load_columns([&](int l) { return group + 4 * l; }, j);
    store_lanes(levels + i, Footprint<float>::squared_major(Lanes<float>(j[0] * width), Lanes<float>(j[1] * width),
                                                            Lanes<float>(j[2] * height), Lanes<float>(j[3] * height),
                                                            [](const Lanes<float>& x) { return sqrt_lanes(x); }));
  }
  const Lanes<float> one = 1.0f - Lanes<float>{};
  uint64_t beyond = 0;  // lanes whose squares might overflow or underflow
  static_assert(kTextureBlock <= 64);
  for (int i = 0; i < whole; i += kLanes) {
    const auto square = load_lanes<Lanes<float>>(levels + i);
    const IntLanes common = (square > Footprint<float>::kSmallSquare) & (square < Footprint<float>::kLargeSquare);
    store_lanes(levels + i, 0.5f * log2_lanes(common ? square : one));
    beyond |= static_cast<uint64_t>(lane_bits(~common)) << i;
  }
  for (int i = 0; beyond != 0 && i < whole; ++i) {
    if ((beyond >> i & 1) != 0) levels[i] = Footprint<float>::major_level(steps + 4 * i, width, height);
  }
  for (int i = whole; i < n; ++i) levels[i] = Footprint<float>::major_level(steps + 4 * i, width, height);
}

}  // namespace diffrender
