// Texture sampling: what is common to planes and cubes. A *mapping* (texture_plane.h, texture_cube.h) turns coordinates
// into four texels and two fractions; texture_forward.h filters those texels, texture_backward.h and texture_second.h
// differentiate the result.
//
// Lookups are taken in blocks, as arrays with one loop per step, so that the compiler makes vectors of the steps that
// do no memory lookups. On the GPU a range is one lookup, every block has one element, and the arrays become registers.
#pragma once

#include <type_traits>

#include "core/portable.h"
#include "texture_footprint.h"
#if !defined(__CUDACC__)
#include <functional>
#endif

namespace diffrender {

constexpr int kTextureBlock = kItemsAtOnce<64>;

// Arrays of a block may be read and written to here, so that vectors need not stop before the end.
DR_HD constexpr int whole_vectors(int n) { return kTextureBlock == 1 ? n : (n + 7) / 8 * 8; }

constexpr int kMaxTextureLevels = 32;

enum class TextureFilter : int32_t { nearest = 0, linear = 1, mip_nearest = 2, mip_linear = 3 };

// A tap with a negative index: outside of the texture (it counts as 0), or off a corner of a cube, where three faces
// meet and there is no texel (it counts as the mean of the other three taps).
constexpr int32_t kTapOutside = -1, kTapCorner = -2;

// A texture and its mip levels. Faces of a cube lie below each other in every level.
template <class scalar_t>
struct TextureLevels {
  const scalar_t* base;               // [B or 1, faces, H, W, C]
  const scalar_t* mips;               // [B or 1, N, C], levels 1 ... last one after the other
  int64_t base_stride, mips_stride;   // elements per item, 0 where the batch shares them
  int64_t offset[kMaxTextureLevels];  // texel of `mips` at which a level starts
  int32_t width, height, channels, last;
  int32_t pad, mip_pad;  // columns and rows stored behind the last ones, of the base and of the mips: texture_pad_cpu.h

  DR_HD int32_t level_width(int32_t level) const { return (width >> level) > 1 ? width >> level : 1; }
  DR_HD int32_t level_height(int32_t level) const { return (height >> level) > 1 ? height >> level : 1; }
  DR_HD int32_t pad_of(int32_t level) const { return level == 0 ? pad : mip_pad; }
  DR_HD const scalar_t* texels(int64_t item, int32_t level) const {
    return level == 0 ? base + item * base_stride : mips + item * mips_stride + offset[level] * channels;
  }
};

// Where a block of lookups falls, before any level is chosen.
template <class scalar_t, bool kMips>
struct TextureBlock {
  scalar_t u[kTextureBlock], v[kTextureBlock];
  int32_t face[kTextureBlock];  // cubes: face, -1 = no direction; planes: 0, -1 = not finite
};

// Which levels a block reads, and (anisotropic) along which axis.
template <class scalar_t>
struct TextureBlock<scalar_t, true> : TextureBlock<scalar_t, false> {
  scalar_t level[kTextureBlock];     // before it is clamped to [0, last]
  scalar_t fraction[kTextureBlock];  // share of the coarser level
  int32_t fine[kTextureBlock], coarse[kTextureBlock];
  bool one_level;                                         // all lookups read the same levels
  bool between;                                           // any lookup has a share of the coarser level
  scalar_t axis_u[kTextureBlock], axis_v[kTextureBlock];  // from the first to the last tap, in texture coordinates
};

// Of the level that each lookup of a block reads.
struct LevelSizes {
  int32_t width[kTextureBlock], height[kTextureBlock];  // of a block of one level only [0]
};

// Four texels around a position: 0 = (x0, y0), 1 = (x1, y0), 2 = (x0, y1), 3 = (x1, y1); nearest has tap 0 only.
template <class scalar_t>
struct TextureTaps {
  const scalar_t* texels[kTextureBlock];  // the level that is read; of a block of one level only [0]
  int32_t width[kTextureBlock];           // texels from a row of that level to the next; likewise
  int32_t tap[4][kTextureBlock];          // texel within its level, or negative; of a square only tap 0
  int32_t regular[kTextureBlock];         // 1: a square of texels, 0: four texels, negative: some are no texels
  int32_t column[kTextureBlock], row[kTextureBlock];        // of tap 0 of a square; the faces of a cube follow in rows
  scalar_t x[kTextureBlock], y[kTextureBlock];              // fractions
  scalar_t slope_x[kTextureBlock], slope_y[kTextureBlock];  // d(x)/d(u), d(y)/d(v)
  bool one_level;                                           // the whole block reads the same level
  bool values_only = false;                                 // column, row and slopes are not needed

  DR_HD const scalar_t* texels_of(int i) const { return texels[kTextureBlock == 1 || one_level ? 0 : i]; }
  DR_HD int32_t width_of(int i) const { return width[kTextureBlock == 1 || one_level ? 0 : i]; }
  DR_HD int32_t at(int k, int i) const {
    return regular[i] > 0 ? tap[0][i] + (k & 1) + (k >> 1) * width_of(i) : tap[k][i];
  }
};

// A block of lookups in one of its levels, and what it counts there.
template <class scalar_t>
struct TextureShares {
  int64_t item, first;  // of the batch; lookup
  int n;
  const TextureTaps<scalar_t>& taps;
  const int32_t* level;    // [n], null: all 0
  const scalar_t* weight;  // [n], null: all 1

  DR_HD int32_t level_of(int i) const { return level == nullptr ? 0 : level[i]; }
  DR_HD scalar_t weight_of(int i) const { return weight == nullptr ? scalar_t(1) : weight[i]; }
};

#if !defined(__CUDACC__)
template <class scalar_t>
using ShareVisitor = std::function<void(const TextureShares<scalar_t>&)>;

// texture_locate_cpu.cpp: choose_levels.
void choose_levels_with_vectors(TextureBlock<float, true>* block, int n, int32_t last, bool blend);
#endif

// Levels of a block from its `level` array.
template <class scalar_t>
DR_HD void choose_levels(TextureBlock<scalar_t, true>* block, int n, int32_t last, bool blend) {
#if !defined(__CUDACC__)
  if constexpr (std::is_same_v<scalar_t, float>) return choose_levels_with_vectors(block, n, last, blend);
#endif
  const scalar_t top = static_cast<scalar_t>(last);
  int32_t between = 0, others = 0;
  for (int i = 0; i < n; ++i) {
    const scalar_t wanted = block->level[i];
    const scalar_t level = wanted > 0 ? (wanted < top ? wanted : top) : scalar_t(0);  // NaN: 0
    const int32_t fine = static_cast<int32_t>(level);
    block->fine[i] = fine;
    others |= fine ^ block->fine[0];
    block->coarse[i] = fine < last ? fine + 1 : last;
    const scalar_t fraction = blend ? level - static_cast<scalar_t>(fine) : scalar_t(0);
    block->fraction[i] = fraction;
    between |= fraction > 0 ? 1 : 0;
  }
  block->one_level = others == 0;
  block->between = between != 0;
}

// Channel c of the four texels of lookup i; what is no texel counts by its rule.
template <class scalar_t>
DR_HD void read_texels(const TextureTaps<scalar_t>& taps, int i, int channels, int c, scalar_t t[4]) {
  const scalar_t* const texels = taps.texels_of(i) + c;
  if (taps.regular[i] >= 0) {
    for (int k = 0; k < 4; ++k) t[k] = texels[static_cast<int64_t>(taps.at(k, i)) * channels];
    return;
  }
  scalar_t sum = 0;
  for (int k = 0; k < 4; ++k) {
    const int32_t tap = taps.tap[k][i];
    t[k] = tap >= 0 ? texels[static_cast<int64_t>(tap) * channels] : scalar_t(0);
    sum += t[k];
  }
  for (int k = 0; k < 4; ++k) {
    if (taps.tap[k][i] == kTapCorner) t[k] = sum / 3;
  }
}

// A mapping with its levels: walks lookups block by block, tap by tap along the axis, level by level.
template <class scalar_t, class Mapping, bool kMips>
struct TextureSampler {
  using Block = TextureBlock<scalar_t, kMips>;
  using Taps = TextureTaps<scalar_t>;

  Mapping mapping;
  TextureLevels<scalar_t> levels;
  int64_t lookups_per_item;
  TextureFilter filter;
  int32_t anisotropy;  // taps along the major axis

  // Calls body(first lookup, count, batch item) for blocks that do not cross into the next item.
  template <class F>
  DR_HD static void for_each_block(int64_t begin, int64_t end, int64_t per_item, const F& body) {
    while (begin < end) {
      const int64_t item = begin / per_item, stop = (item + 1) * per_item, last = end < stop ? end : stop;
      for (; begin < last; begin += kTextureBlock) {
        // On the GPU this is the constant 1, which turns the arrays of a block into registers.
        const bool whole = kTextureBlock == 1 || last - begin >= kTextureBlock;
        body(begin, whole ? kTextureBlock : static_cast<int>(last - begin), item);
      }
      begin = last;
    }
  }

  DR_HD bool blends() const { return kMips && filter == TextureFilter::mip_linear && levels.last > 0; }
  // The same where the coarser level of this block counts.
  DR_HD bool blends(const Block& block) const {
    if constexpr (kMips) return blends() && block.between;
    return false;
  }
  DR_HD int32_t tap_count() const { return kMips ? anisotropy : 1; }

  DR_HD_STEP void locate(int64_t first, int n, Block* block) const {
    mapping.locate(first, n, block->u, block->v, block->face);
    for (int i = n; i < whole_vectors(n); ++i) block->u[i] = block->v[i] = 0, block->face[i] = -1;
    if constexpr (kMips) {
      mapping.measure(first, n, levels, anisotropy, block);
      choose_levels(block, n, levels.last, filter == TextureFilter::mip_linear);
    }
  }

  // Position of tap `index` on the axis: -1/2 ... 1/2.
  DR_HD scalar_t tap_position(int32_t index) const {
    return anisotropy > 1 ? static_cast<scalar_t>(index) / (anisotropy - 1) - scalar_t(0.5) : scalar_t(0);
  }

  // The four texels of tap `index` in the finer (step 0) or coarser (step 1) level.
  DR_HD_STEP void find(int64_t item, const Block& block, int n, int32_t index, int step, Taps* taps) const {
    LevelSizes sizes;
    const auto set_level = [&](int i, int32_t level) {
      sizes.width[i] = levels.level_width(level);
      sizes.height[i] = levels.level_height(level);
      taps->width[i] = sizes.width[i] + levels.pad_of(level);
      taps->texels[i] = levels.texels(item, level);
    };
    if constexpr (kMips) {
      const int32_t* const level = step == 0 ? block.fine : block.coarse;
      taps->one_level = block.one_level;
      const int count = taps->one_level ? 1 : n;
      for (int i = 0; i < count; ++i) set_level(i, level[i]);
      for (int i = count; i < whole_vectors(count); ++i) sizes.width[i] = sizes.height[i] = taps->width[i] = 1;
      if (anisotropy > 1) {
        scalar_t u[kTextureBlock], v[kTextureBlock];
        const scalar_t t = tap_position(index);
        for (int i = 0; i < n; ++i) {
          u[i] = block.u[i] + t * block.axis_u[i];
          v[i] = block.v[i] + t * block.axis_v[i];
        }
        for (int i = n; i < whole_vectors(n); ++i) u[i] = v[i] = 0;
        mapping.linear(u, v, block.face, n, sizes, taps);
        return;
      }
    } else {
      taps->one_level = true;
      set_level(0, 0);
    }
    mapping.linear(block.u, block.v, block.face, n, sizes, taps);
  }

  // The one texel of the nearest filter as tap 0.
  DR_HD_STEP void find_nearest(int64_t item, const Block& block, int n, Taps* taps) const {
    taps->one_level = true;
    taps->texels[0] = levels.texels(item, 0);
    for (int i = 0; i < n; ++i) {
      taps->width[i] = levels.width;
      taps->tap[0][i] = mapping.nearest(block.u[i], block.v[i], block.face[i], levels.width, levels.height);
      taps->tap[1][i] = taps->tap[2][i] = taps->tap[3][i] = taps->regular[i] = kTapOutside;
      taps->x[i] = taps->y[i] = 0;
    }
  }

  // What the taps of one step count: all steps and taps together 1.
  DR_HD_STEP void weigh(const Block& block, int n, int step, scalar_t* weights) const {
    static_assert(kMips);
    // Selected before the loop, which the compiler would make once for each step.
    const scalar_t start = step == 0 ? scalar_t(1) : scalar_t(0), sign = step == 0 ? scalar_t(-1) : scalar_t(1);
    for (int i = 0; i < n; ++i) weights[i] = start + sign * block.fraction[i];
    for (int i = 0; anisotropy > 1 && i < n; ++i) weights[i] /= static_cast<scalar_t>(anisotropy);
  }

  // The same for one lookup per lane of a warp, or none: calls body(shares, live) until the last lane has no more to
  // read. All lanes come there together; of those that are not live the shares hold nothing.
  template <class F>
  DR_HD void for_each_share_by_warp(bool has, int64_t lookup, const F& body) const {
    Block block;
    Taps taps;
    scalar_t weight[kTextureBlock];
    const int64_t item = has ? lookup / lookups_per_item : 0;
    int32_t passes = 0;
    int steps = 1;
    if (has) {
      locate(lookup, 1, &block);
      steps = blends(block) ? 2 : 1;
      passes = steps * tap_count();
    }
    for (int32_t pass = 0; warp_any(pass < passes); ++pass) {
      const bool live = pass < passes;
      const int32_t* level = nullptr;
      if constexpr (kMips) {
        const int step = pass % steps;
        level = step == 0 ? block.fine : block.coarse;
        if (live) {
          find(item, block, 1, pass / steps, step, &taps);
          weigh(block, 1, step, weight);
        }
      } else if (live && filter == TextureFilter::nearest) {
        find_nearest(item, block, 1, &taps);
      } else if (live) {
        find(item, block, 1, 0, 0, &taps);
      }
      body(TextureShares<scalar_t>{item, lookup, 1, taps, level, kMips ? weight : nullptr}, live);
    }
  }

  // Calls body(shares) for all that a range of lookups reads.
  template <class F>
  DR_HD void for_each_share(int64_t begin, int64_t end, const F& body) const {
#if defined(__CUDACC__)
    walk(begin, end, body);
#else
    // One walk for all bodies: compiled once, and called once per block.
    if constexpr (std::is_same_v<F, ShareVisitor<scalar_t> >) {
      walk(begin, end, body);
    } else {
      walk(begin, end, ShareVisitor<scalar_t>(std::cref(body)));
    }
#endif
  }

 private:
  template <class F>
  DR_HD_STEP void walk(int64_t begin, int64_t end, const F& body) const {
    for_each_block(begin, end, lookups_per_item, [&](int64_t first, int n, int64_t item) {
      Block block;
      Taps taps;
      locate(first, n, &block);
      if constexpr (kMips) {
        scalar_t weights[kTextureBlock];
        const int steps = blends(block) ? 2 : 1;
        for (int32_t pass = 0; pass < steps * tap_count(); ++pass) {
          const int step = pass % steps;
          find(item, block, n, pass / steps, step, &taps);
          weigh(block, n, step, weights);
          body(TextureShares<scalar_t>{item, first, n, taps, step == 0 ? block.fine : block.coarse, weights});
        }
      } else {
        if (filter == TextureFilter::nearest) {
          find_nearest(item, block, n, &taps);
        } else {
          find(item, block, n, 0, 0, &taps);
        }
        body(TextureShares<scalar_t>{item, first, n, taps, nullptr, nullptr});
      }
    });
  }
};

}  // namespace diffrender
