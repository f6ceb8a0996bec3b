// Lookups of float on a plane that read squares of texels, on the CPU: short ways from coordinates to values or slopes,
// one for a single channel without mips, one for up to four channels between two levels. They are the same operations
// in the same order as those of texture_forward.h and texture_backward.h, to which all other lookups are left.
#include <algorithm>
#include <cstdlib>

#include "core/channel_lanes.h"
#include "texture_backward.h"
#include "texture_forward.h"
#include "texture_wrap_lanes.h"

namespace diffrender {

// ---- one channel without mips

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

// ---- one to four channels between two levels

namespace {

// Lookups at the start of a block that read squares of the same two levels.
struct BlockSquares {
  // In the finer or the coarser level. Of a padded copy, in which every lookup reads a square.
  struct Level {
    const float *low, *high;  // of the first texel of a row, and of the next row
    float x[kTextureBlock], y[kTextureBlock], slope_x[kTextureBlock], slope_y[kTextureBlock];
    int32_t tap[kTextureBlock];
  };
  int count;   // whole groups of kLanes
  int levels;  // 1: no lookup has a share of the coarser one
  float u[kTextureBlock], v[kTextureBlock], fraction[kTextureBlock];
  Level level[2];
};

// Where `count` lookups fall in one level.
template <bool kSlopes>
__attribute__((noinline)) void place_in_level(const MipSampler& sampler, const float* u, const float* v, int count,
                                              int64_t item, int32_t level, BlockSquares::Level* out) {
  const auto& levels = sampler.levels;
  const SizeLanes columns(IntLanes{} + levels.level_width(level)), rows(IntLanes{} + levels.level_height(level));
  const IntLanes pitch = columns.n + 1;
  out->low = levels.texels(item, level);
  out->high = out->low + static_cast<int64_t>(pitch[0]) * levels.channels;
  for (int i = 0; i < count; i += kLanes) {
    const WrappedLanes x = WrappedLanes::wrap(sampler.mapping.wrap_u, load_lanes<Lanes<float>>(u + i), columns);
    const WrappedLanes y = WrappedLanes::wrap(sampler.mapping.wrap_v, load_lanes<Lanes<float>>(v + i), rows);
    store_lanes(out->x + i, x.fraction);
    store_lanes(out->y + i, y.fraction);
    store_lanes(out->tap + i, y.first * pitch + x.first);
    if constexpr (!kSlopes) continue;
    store_lanes(out->slope_x + i, x.slope);
    store_lanes(out->slope_y + i, y.slope);
  }
}

// The levels are guessed to be those of the lookups before: so no address waits for a logarithm.
template <bool kSlopes>
__attribute__((noinline)) void find_squares(const MipSampler& sampler, int64_t first, int n, int64_t item,
                                            int32_t* guess, BlockSquares* found) {
  const auto& levels = sampler.levels;
  const float* const uv = sampler.mapping.texcoords + 2 * first;
  const int whole_groups = n / kLanes * kLanes;
  float wanted[kTextureBlock];
  levels_with_vectors(sampler.mapping.derivatives + 4 * first, whole_groups, static_cast<float>(levels.width),
                      static_cast<float>(levels.height), wanted);
  const Lanes<float> zero = {}, top = zero + static_cast<float>(levels.last);
  int i = 0, count = 1;
  for (; i < whole_groups; i += kLanes) {
    prefetch_ahead(uv + 2 * i);
    const LocatedLanes at(uv + 2 * i);
    store_lanes(found->u + i, at.u);
    store_lanes(found->v + i, at.v);
    const auto level_wanted = load_lanes<Lanes<float>>(wanted + i);
    const Lanes<float> below = level_wanted < top ? level_wanted : top, level = level_wanted > 0.0f ? below : zero;
    const IntLanes whole = __builtin_convertvector(level, IntLanes);
    if (any_lane(at.valid | (whole != *guess))) {
      const int32_t fine = whole[0];
      if (i > 0 || any_lane(at.valid | (whole != fine)) || levels.pad_of(fine) == 0) break;
      *guess = fine;
    }
    const Lanes<float> fraction = level - __builtin_convertvector(whole, Lanes<float>);
    store_lanes(found->fraction + i, fraction);
    if (any_lane(fraction > 0.0f)) count = 2;
  }
  const int32_t fine = *guess;
  place_in_level<kSlopes>(sampler, found->u, found->v, i, item, fine, &found->level[0]);
  if (count == 2) place_in_level<kSlopes>(sampler, found->u, found->v, i, item, fine + 1, &found->level[1]);
  found->count = i;
  found->levels = count;
}

// Texels [4][channels] of kLanes squares.
template <int kChannels>
DR_HD void load_squares(const BlockSquares::Level& level, int i, Lanes<float> t[4][4]) {
  const int32_t* const tap = level.tap + i;
  load_row<kChannels>([&](int l) { return level.low + static_cast<int64_t>(tap[l]) * kChannels; }, t[0], t[1]);
  load_row<kChannels>([&](int l) { return level.high + static_cast<int64_t>(tap[l]) * kChannels; }, t[2], t[3]);
}

// Over lookups: one or two channels.
template <int kChannels>
void values_of_squares(const BlockSquares& found, float* values) {
  const int count = found.count, levels = found.levels;
  for (int i = 0; i < count; i += kLanes, values += kChannels * kLanes) {
    const auto fraction = load_lanes<Lanes<float>>(found.fraction + i);
    Lanes<float> result[kChannels] = {};
    for (int step = 0; step < levels; ++step) {
      const BlockSquares::Level& at = found.level[step];
      const auto x = load_lanes<Lanes<float>>(at.x + i), y = load_lanes<Lanes<float>>(at.y + i);
      Lanes<float> t[4][4];
      load_squares<kChannels>(at, i, t);
      for (int c = 0; c < kChannels; ++c) {
        const Lanes<float> left = t[0][c] + y * (t[2][c] - t[0][c]), right = t[1][c] + y * (t[3][c] - t[1][c]);
        const Lanes<float> value = left + x * (right - left), mixed = result[c] + fraction * (value - result[c]);
        const Lanes<float> blended = fraction > 0.0f ? mixed : result[c];
        result[c] = step == 0 ? value : blended;
      }
    }
    store_channels<kChannels>(values, result);
  }
}

// Over channels: three or four.
template <int kChannels>
void values_of_squares_by_channel(const BlockSquares& found, float* values) {
  const auto mix = [&](const BlockSquares::Level& at, int i) {
    const int64_t texel = static_cast<int64_t>(at.tap[i]) * kChannels;
    return mix_square<kChannels>(at.low + texel, at.high + texel, at.x[i], at.y[i]);
  };
  for (int i = 0; i < found.count; ++i, values += kChannels) {
    FourFloats value = mix(found.level[0], i);
    const float fraction = found.levels == 2 ? found.fraction[i] : 0.0f;
    if (fraction > 0) value += fraction * (mix(found.level[1], i) - value);
    if (kChannels == 4 || i + 1 < found.count) {
      store_lanes(values, value);  // what stands behind three channels is written next
    } else {
      for (int c = 0; c < kChannels; ++c) values[c] = value[c];
    }
  }
}

template <int kChannels>
void slopes_of_squares(const BlockSquares& found, const float* grad_values, float* grad_texcoords) {
  const int count = found.count, levels = found.levels;
  for (int i = 0; i < count; i += kLanes) {
    const auto fraction = load_lanes<Lanes<float>>(found.fraction + i);
    Lanes<float> result[2] = {}, cotangent[kChannels];
    load_channels<kChannels>(grad_values + i * kChannels, cotangent);
    for (int step = 0; step < levels; ++step) {
      const BlockSquares::Level& at = found.level[step];
      const auto x = load_lanes<Lanes<float>>(at.x + i), y = load_lanes<Lanes<float>>(at.y + i);
      Lanes<float> t[4][4], along_x = {}, along_y = {};
      load_squares<kChannels>(at, i, t);
      for (int c = 0; c < kChannels; ++c) {
        const Lanes<float> left_slope = t[2][c] - t[0][c], right_slope = t[3][c] - t[1][c];
        const Lanes<float> left = t[0][c] + y * left_slope, across = t[1][c] + y * right_slope - left;
        along_x += cotangent[c] * across;
        along_y += cotangent[c] * (left_slope + x * (right_slope - left_slope));
      }
      const Lanes<float> share = step == 0 ? 1.0f - fraction : fraction, zero = {};
      Lanes<float> part_x = along_x * (share * load_lanes<Lanes<float>>(at.slope_x + i));
      Lanes<float> part_y = along_y * (share * load_lanes<Lanes<float>>(at.slope_y + i));
      if (step > 0) {  // what a lookup has no share of may be NaN or infinite
        part_x = fraction > 0.0f ? part_x : zero;
        part_y = fraction > 0.0f ? part_y : zero;
      }
      result[0] += part_x;
      result[1] += part_y;
    }
    store_channels<2>(grad_texcoords + 2 * i, result);
  }
}

// Whether blocks are worth trying. After one that read other levels, some are not.
bool may_be_squares(const MipSampler& sampler, int32_t* guess) {
  const auto& levels = sampler.levels;
  if (sampler.mapping.derivatives == nullptr || sampler.mapping.bias != nullptr || sampler.tap_count() != 1)
    return false;
  if (!sampler.blends() || levels.mip_pad == 0 || levels.channels < 1 || levels.channels > 4) return false;
  if (*guess < -1) return ++*guess, false;
  if (*guess == -1) *guess = levels.last;
  return true;
}

// How many lookups are done.
int finish_squares(const BlockSquares& found, int32_t* guess) {
  constexpr int32_t kBlocksLeftAlone = 7;
  if (found.count == 0) *guess = -1 - kBlocksLeftAlone;
  return found.count;
}

}  // namespace

int values_of_start(const MipSampler& sampler, int64_t first, int n, int64_t item, int32_t* guess, float* values) {
  if (!may_be_squares(sampler, guess)) return 0;
  BlockSquares found;
  find_squares<false>(sampler, first, n, item, guess, &found);
  const int channels = sampler.levels.channels;
  float* const out = values + first * channels;
  if (channels == 1) values_of_squares<1>(found, out);
  if (channels == 2) values_of_squares<2>(found, out);
  if (channels == 3) values_of_squares_by_channel<3>(found, out);
  if (channels == 4) values_of_squares_by_channel<4>(found, out);
  return finish_squares(found, guess);
}

int slopes_of_start(const MipSampler& sampler, int64_t first, int n, int64_t item, int32_t* guess,
                    const float* grad_values, float* grad_texcoords) {
  if (grad_texcoords == nullptr || !may_be_squares(sampler, guess)) return 0;
  BlockSquares found;
  find_squares<true>(sampler, first, n, item, guess, &found);
  const int channels = sampler.levels.channels;
  const float* const g = grad_values + first * channels;
  float* const out = grad_texcoords + 2 * first;
  if (channels == 1) slopes_of_squares<1>(found, g, out);
  if (channels == 2) slopes_of_squares<2>(found, g, out);
  if (channels == 3) slopes_of_squares<3>(found, g, out);
  if (channels == 4) slopes_of_squares<4>(found, g, out);
  return finish_squares(found, guess);
}

}  // namespace diffrender
