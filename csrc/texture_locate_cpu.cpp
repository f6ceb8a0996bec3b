// Where lookups of float fall, on the CPU with vectors: coordinates, levels and texels of kLanes lookups at once, by
// the same operations in the same order as the scalar formulas of texture.h, texture_plane.h and texture_footprint.h.
#include <cstdlib>

#include "core/channel_lanes.h"
#include "texture_backward.h"
#include "texture_forward.h"
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

// log2 of positive normal numbers.
DR_HD Lanes<float> log2_lanes(const Lanes<float>& value) {
  const IntLanes bits = reinterpret_cast<const IntLanes&>(value);
  const IntLanes exponent = (bits - 0x3f3504f3) >> 23, rest = bits - exponent * (1 << 23);
  const Lanes<float> m = reinterpret_cast<const Lanes<float>&>(rest);
  return __builtin_convertvector(exponent, Lanes<float>) + log2_mantissa<float, 5>(m);
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

// ---- one channel without mips: all steps at once

namespace {

struct GroupLanes {
  Lanes<float> x, y, slope_x, slope_y;
  alignas(32) int32_t tap[kLanes];
};

// Calls body(first lookup, texels, group) for every kLanes squares, and rest(first lookup, count, block, taps) for
// lookups of which some are no squares, or which are too few.
template <class Body, class Rest>
DR_HD void for_each_group(const PlaneSampler& sampler, int64_t begin, int64_t end, const Body& body, const Rest& rest) {
  constexpr int kGroups = kTextureBlock / kLanes;
  // Lookups all over a texture that is larger than the inner caches: texels are asked for well before they are read.
  constexpr int64_t kLargeTexture = int64_t(1) << 17, kRowsApart = 16;
  const auto& mapping = sampler.mapping;
  const auto& levels = sampler.levels;
  const SizeLanes columns(IntLanes{} + levels.width), rows(IntLanes{} + levels.height);
  const int64_t pitch = levels.width + levels.pad;
  const bool large = pitch * levels.height > kLargeTexture;
  const IntLanes width = IntLanes{} + static_cast<int32_t>(pitch), unpadded = IntLanes{} - (levels.pad == 0 ? 1 : 0);
  const auto one_by_one = [&](int64_t first, int n, int64_t item) __attribute__((noinline)) {
    PlaneSampler::Block block;
    PlaneSampler::Taps taps;
    sampler.locate(first, n, &block);
    sampler.find(item, block, n, 0, 0, &taps);
    rest(first, n, block, taps);
  };
  PlaneSampler::for_each_block(begin, end, sampler.lookups_per_item, [&](int64_t first, int n, int64_t item) {
    const float *const low = levels.texels(item, 0), *const high = low + pitch;
    GroupLanes groups[kGroups];
    uint32_t apart = 0;
    const int whole = n / kLanes;
    for (int g = 0; g < whole; ++g) {
      const float* const uv = mapping.texcoords + 2 * (first + g * kLanes);
      prefetch_ahead(uv);
      const LocatedLanes at(uv);
      const WrappedLanes x = WrappedLanes::wrap(mapping.wrap_u, at.u, columns);
      const WrappedLanes y = WrappedLanes::wrap(mapping.wrap_v, at.v, rows);
      const IntLanes skew = ((x.second ^ x.next) | (y.second ^ y.next)) & unpadded;
      const IntLanes outside = (x.first | x.second | y.first | y.second | at.valid) < 0;
      apart |= (any_lane((skew != 0) | outside) ? 1u : 0u) << g;
      groups[g].x = x.fraction, groups[g].y = y.fraction;
      groups[g].slope_x = x.slope, groups[g].slope_y = y.slope;
      int32_t* const tap = groups[g].tap;
      store_lanes(tap, y.first * width + x.first);
      if (!large || std::abs(int64_t(tap[kLanes - 1]) - tap[0]) < kRowsApart * pitch) continue;
      for (int l = 0; l < kLanes; ++l) __builtin_prefetch(low + tap[l]), __builtin_prefetch(high + tap[l]);
    }
    for (int g = 0; g < whole; ++g) {
      if ((apart >> g & 1) != 0) {
        one_by_one(first + g * kLanes, kLanes, item);
        continue;
      }
      const int32_t* const tap = groups[g].tap;
      Lanes<float> t[4];
      load_pairs([&](int l) { return low + tap[l]; }, &t[0], &t[1]);
      load_pairs([&](int l) { return high + tap[l]; }, &t[2], &t[3]);
      body(first + g * kLanes, t, groups[g]);
    }
    if (whole * kLanes < n) one_by_one(first + whole * kLanes, n - whole * kLanes, item);
  });
}

}  // namespace

bool values_at_once(const PlaneSampler& sampler, int64_t begin, int64_t end, float* values) {
  if (sampler.levels.channels != 1) return false;
  for_each_group(
      sampler, begin, end,
      [&](int64_t first, const Lanes<float> t[4], const GroupLanes& at) {
        const Lanes<float> left = t[0] + at.y * (t[2] - t[0]), right = t[1] + at.y * (t[3] - t[1]);
        store_lanes(values + first, left + at.x * (right - left));
      },
      [&](int64_t first, int n, const auto&, const auto& taps) {
        mix_with_vectors({taps, taps, nullptr, false, false, 1.0f}, n, 1, values + first);
      });
  return true;
}

bool slopes_at_once(const PlaneSampler& sampler, int64_t begin, int64_t end, const float* grad_values,
                    float* grad_texcoords) {
  // Without mips there is nothing but texcoords to have a gradient.
  if (sampler.levels.channels != 1 || grad_texcoords == nullptr) return false;
  for_each_group(
      sampler, begin, end,
      [&](int64_t first, const Lanes<float> t[4], const GroupLanes& at) {
        const auto g = load_lanes<Lanes<float>>(grad_values + first);
        const Lanes<float> left_slope = t[2] - t[0], right_slope = t[3] - t[1], left = t[0] + at.y * left_slope;
        const Lanes<float> across = t[1] + at.y * right_slope - left, zero = {};
        const Lanes<float> along_y = g * (left_slope + at.x * (right_slope - left_slope));
        const Lanes<float> grads[2] = {(zero + g * across) * at.slope_x, (zero + along_y) * at.slope_y};
        store_channels<2>(grad_texcoords + 2 * first, grads);
      },
      [&](int64_t first, int n, const auto& block, const auto& taps) {
        float along_x[kTextureBlock], along_y[kTextureBlock];
        slopes_with_vectors({taps, grad_values + first, along_x, along_y, nullptr}, n, 1);
        for (int i = 0; i < n; ++i) {
          grad_texcoords[2 * (first + i)] = block.face[i] < 0 ? 0.0f : along_x[i] * taps.slope_x[i];
          grad_texcoords[2 * (first + i) + 1] = block.face[i] < 0 ? 0.0f : along_y[i] * taps.slope_y[i];
        }
      });
  return true;
}

// ---- one or two channels between two levels: all steps at once

namespace {

// A level with one more column and row, so that every lookup reads a square.
struct SquareLevel {
  SizeLanes columns, rows;
  IntLanes pitch;
  const float *low, *high;

  SquareLevel(const TextureLevels<float>& levels, int64_t item, int32_t level)
      : columns(IntLanes{} + levels.level_width(level)),
        rows(IntLanes{} + levels.level_height(level)),
        pitch(columns.n + 1),
        low(levels.texels(item, level)),
        high(low + static_cast<int64_t>(pitch[0]) * levels.channels) {}
};

template <int kChannels>
DR_HD void load_squares(const SquareLevel& level, const int32_t* tap, Lanes<float> t[4][kChannels]) {
  const auto low = [&](int l) { return level.low + static_cast<int64_t>(tap[l]) * kChannels; };
  const auto high = [&](int l) { return level.high + static_cast<int64_t>(tap[l]) * kChannels; };
  if constexpr (kChannels == 1) {
    load_pairs(low, t[0], t[1]);
    load_pairs(high, t[2], t[3]);
  } else {
    load_columns(low, t[0]);  // fills t[1] too
    load_columns(high, t[2]);
  }
}

// Stops before the first group of kLanes lookups that needs more than squares of the same two levels. The levels are
// guessed to be those of the lookups before: so no address waits for a logarithm. In short loops, as above.
template <int kChannels, bool kSlopes>
int blend_lookups(const MipSampler& sampler, int64_t first, int n, int64_t item, int32_t* guess,
                  const float* grad_values, float* out) {
  constexpr int kOut = kSlopes ? 2 : kChannels, kGroups = kTextureBlock / kLanes;
  const auto& mapping = sampler.mapping;
  const auto& levels = sampler.levels;
  const float* const uv = mapping.texcoords + 2 * first;
  const int groups = n / kLanes;
  float wanted[kTextureBlock];
  levels_with_vectors(mapping.derivatives + 4 * first, groups * kLanes, static_cast<float>(levels.width),
                      static_cast<float>(levels.height), wanted);
  const Lanes<float> zero = {}, top = zero + static_cast<float>(levels.last);
  Lanes<float> fraction[kGroups];
  int count = 1, done = 0;
  for (; done < groups; ++done) {
    prefetch_ahead(uv + 2 * kLanes * done);
    const auto level_wanted = load_lanes<Lanes<float>>(wanted + kLanes * done);
    const Lanes<float> below = level_wanted < top ? level_wanted : top, level = level_wanted > 0.0f ? below : zero;
    const IntLanes whole = __builtin_convertvector(level, IntLanes);
    const IntLanes invalid = LocatedLanes(uv + 2 * kLanes * done).valid;
    if (any_lane(invalid | (whole != *guess))) {
      const int32_t fine = whole[0];
      if (done > 0 || any_lane(invalid | (whole != fine)) || levels.pad_of(fine) == 0) break;
      *guess = fine;
    }
    fraction[done] = level - __builtin_convertvector(whole, Lanes<float>);
    if (any_lane(fraction[done] > 0.0f)) count = 2;
  }
  const int32_t fine = *guess, coarse = fine < levels.last ? fine + 1 : fine;
  const SquareLevel pair[2] = {{levels, item, fine}, {levels, item, coarse}};
  GroupLanes found[2][kGroups];
  for (int step = 0; step < count; ++step) {
    const SquareLevel& level = pair[step];
    for (int g = 0; g < done; ++g) {
      const LocatedLanes at(uv + 2 * kLanes * g);
      const WrappedLanes x = WrappedLanes::wrap(mapping.wrap_u, at.u, level.columns);
      const WrappedLanes y = WrappedLanes::wrap(mapping.wrap_v, at.v, level.rows);
      GroupLanes& group = found[step][g];
      group.x = x.fraction, group.y = y.fraction;
      if constexpr (kSlopes) group.slope_x = x.slope, group.slope_y = y.slope;
      store_lanes(group.tap, y.first * level.pitch + x.first);
    }
  }
  for (int g = 0; g < done; ++g) {
    const int64_t start = first + kLanes * g;
    Lanes<float> result[kOut] = {}, cotangent[kChannels];
    if constexpr (kSlopes) load_channels<kChannels>(grad_values + start * kChannels, cotangent);
    for (int step = 0; step < count; ++step) {
      const GroupLanes& at = found[step][g];
      Lanes<float> t[4][kChannels], along_x = {}, along_y = {};
      load_squares<kChannels>(pair[step], at.tap, t);
      for (int c = 0; c < kChannels; ++c) {
        const Lanes<float> left_slope = t[2][c] - t[0][c], right_slope = t[3][c] - t[1][c];
        const Lanes<float> left = t[0][c] + at.y * left_slope, across = t[1][c] + at.y * right_slope - left;
        if constexpr (kSlopes) {
          along_x += cotangent[c] * across;
          along_y += cotangent[c] * (left_slope + at.x * (right_slope - left_slope));
        } else {
          const Lanes<float> value = left + at.x * across, mixed = result[c] + fraction[g] * (value - result[c]);
          const Lanes<float> blended = fraction[g] > 0.0f ? mixed : result[c];
          result[c] = step == 0 ? value : blended;
        }
      }
      if constexpr (kSlopes) {
        const Lanes<float> share = step == 0 ? 1.0f - fraction[g] : fraction[g];
        result[0] += along_x * (share * at.slope_x);
        result[1] += along_y * (share * at.slope_y);
      }
    }
    store_channels<kOut>(out + start * kOut, result);
  }
  return done * kLanes;
}

template <bool kSlopes>
int blend_start(const MipSampler& sampler, int64_t first, int n, int64_t item, int32_t* guess, const float* grad_values,
                float* out) {
  const auto& levels = sampler.levels;
  if (sampler.mapping.derivatives == nullptr || sampler.mapping.bias != nullptr || sampler.tap_count() != 1) return 0;
  if (!sampler.blends() || levels.mip_pad == 0) return 0;
  *guess = *guess < 0 ? levels.last : *guess;
  if (levels.channels == 1) return blend_lookups<1, kSlopes>(sampler, first, n, item, guess, grad_values, out);
  if (levels.channels == 2) return blend_lookups<2, kSlopes>(sampler, first, n, item, guess, grad_values, out);
  return 0;
}

}  // namespace

int values_of_start(const MipSampler& sampler, int64_t first, int n, int64_t item, int32_t* guess, float* values) {
  return blend_start<false>(sampler, first, n, item, guess, nullptr, values);
}

int slopes_of_start(const MipSampler& sampler, int64_t first, int n, int64_t item, int32_t* guess,
                    const float* grad_values, float* grad_texcoords) {
  if (grad_texcoords == nullptr) return 0;
  return blend_start<true>(sampler, first, n, item, guess, grad_values, grad_texcoords);
}

}  // namespace diffrender
