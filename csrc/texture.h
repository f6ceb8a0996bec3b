// Texture sampling: what is common to planes and cubes. A *mapping* (texture_plane.h, texture_cube.h) turns coordinates
// into four texels and two fractions; the functors here filter those texels and differentiate the result.
//
// Lookups are taken in blocks, as arrays with one loop per step, so that the compiler makes vectors of the steps that
// do no memory lookups. On the GPU a range is one lookup, every block has one element, and the arrays become registers.
#pragma once

#include "core/portable.h"

namespace diffrender {

constexpr int kTextureBlock = kItemsAtOnce<32>;

// A step over a whole block: not worth inlining on the CPU, where that would only cost compile time.
#if defined(__CUDACC__)
#define DR_HD_STEP DR_HD
#else
#define DR_HD_STEP __attribute__((noinline))
#endif

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

  DR_HD int32_t level_width(int32_t level) const { return (width >> level) > 1 ? width >> level : 1; }
  DR_HD int32_t level_height(int32_t level) const { return (height >> level) > 1 ? height >> level : 1; }
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
  scalar_t axis_u[kTextureBlock], axis_v[kTextureBlock];  // from the first to the last tap, in texture coordinates
};

// Four texels around a position: 0 = (x0, y0), 1 = (x1, y0), 2 = (x0, y1), 3 = (x1, y1); nearest has tap 0 only.
template <class scalar_t>
struct TextureTaps {
  int32_t tap[4][kTextureBlock];  // texel within its level, or negative
  int32_t
      regular[kTextureBlock];  // 1: all taps are texels and form a square, 0: all are texels, negative: some are not
  int32_t column[kTextureBlock], row[kTextureBlock];        // of tap 0 of a square; the faces of a cube follow in rows
  scalar_t x[kTextureBlock], y[kTextureBlock];              // fractions
  scalar_t slope_x[kTextureBlock], slope_y[kTextureBlock];  // d(x)/d(u), d(y)/d(v)
};

// log2 to the precision of its type for normal positive numbers, without branches: the mantissa m in [sqrt(1/2),
// sqrt(2)) gives 2 / ln(2) artanh(z) with z = (m - 1) / (m + 1), |z| < 0.172.
template <class scalar_t>
DR_HD scalar_t log2_normal(scalar_t value);

template <class scalar_t, int kTerms>
DR_HD scalar_t log2_mantissa(scalar_t m) {
  const scalar_t z = (m - 1) / (m + 1), z2 = z * z;
  scalar_t sum = scalar_t(1) / (2 * kTerms - 1);
  for (int k = kTerms - 2; k >= 0; --k) sum = sum * z2 + scalar_t(1) / (2 * k + 1);
  return scalar_t(2.885390081777926814719849362003784) * z * sum;
}

template <>
DR_HD float log2_normal(float value) {
  const int32_t bits = static_cast<int32_t>(float_bits(value));
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;  // of m in [sqrt(1/2), sqrt(2))
  const float m = __builtin_bit_cast(float, bits - exponent * (1 << 23));
  return static_cast<float>(exponent) + log2_mantissa<float, 6>(m);
}

template <>
DR_HD double log2_normal(double value) {
  const int64_t bits = static_cast<int64_t>(double_bits(value));
  const int64_t exponent = (bits - 0x3fe6a09e667f3bcd) >> 52;
  const double m = __builtin_bit_cast(double, bits - exponent * (int64_t(1) << 52));
  return static_cast<double>(static_cast<int32_t>(exponent)) + log2_mantissa<double, 12>(m);
}

// The ellipse that a pixel covers: singular values of the Jacobian of texel coordinates over the pixel.
//
// With J = [[x_X, x_Y], [y_X, y_Y]] (texels per pixel step), J J^T = [[A, C], [C, B]], S = (A + B) / 2, D = (A - B) / 2
// and R = |(D, C)|, the squared semi-axes are S +- R and the major one points along the angle atan2(C, D) / 2. The
// level belongs to `minor` = the longer of the minor axis and 1 / taps of the major one; `taps` samples share what is
// left.
template <class scalar_t>
struct Footprint {
  scalar_t x_X, x_Y, y_X, y_Y, scale;  // J = scale * these: no overflow or underflow of the squares
  scalar_t d, c;                       // D / R and C / R, 0 where the ellipse is a circle
  scalar_t r, major, minor;            // R and the lengths, of the scaled J

  DR_HD static Footprint make(scalar_t x_X, scalar_t x_Y, scalar_t y_X, scalar_t y_Y, int32_t taps) {
    Footprint f;
    const scalar_t a0 = x_X < 0 ? -x_X : x_X, a1 = x_Y < 0 ? -x_Y : x_Y;
    const scalar_t a2 = y_X < 0 ? -y_X : y_X, a3 = y_Y < 0 ? -y_Y : y_Y;
    const scalar_t m0 = a0 > a1 ? a0 : a1, m1 = a2 > a3 ? a2 : a3, largest = m0 > m1 ? m0 : m1;
    const bool some = largest >= kSmallestNormal<scalar_t> && largest <= kLargest<scalar_t>;
    f.scale = largest;
    const scalar_t inverse = some ? scalar_t(1) / (some ? largest : scalar_t(1)) : scalar_t(0);
    f.x_X = x_X * inverse, f.x_Y = x_Y * inverse, f.y_X = y_X * inverse, f.y_Y = y_Y * inverse;
    const scalar_t A = f.x_X * f.x_X + f.x_Y * f.x_Y, B = f.y_X * f.y_X + f.y_Y * f.y_Y;
    const scalar_t C = f.x_X * f.y_X + f.x_Y * f.y_Y, D = scalar_t(0.5) * (A - B);
    f.r = std::sqrt(D * D + C * C);
    const scalar_t by_r = f.r > 0 ? scalar_t(1) / (f.r > 0 ? f.r : scalar_t(1)) : scalar_t(0);
    f.d = D * by_r, f.c = C * by_r;
    f.major = std::sqrt(scalar_t(0.5) * (A + B) + f.r);
    f.minor = f.major;
    if (taps > 1) {
      const scalar_t det = f.x_X * f.y_Y - f.x_Y * f.y_X, area = det < 0 ? -det : det;
      const scalar_t shortest = f.major / taps, other = area / (f.major > 0 ? f.major : scalar_t(1));
      f.minor = other > shortest ? other : shortest;
    }
    return f;
  }

  // log2 of the length that chooses the level; the lowest number for a footprint without size, the highest for one
  // that is infinite or NaN: the clamp makes level 0 and the last level of them.
  DR_HD scalar_t level() const {
    const scalar_t length = scale * minor;
    const bool some = length >= kSmallestNormal<scalar_t>, finite = length <= kLargest<scalar_t>;
    const scalar_t value = log2_normal(some && finite ? length : scalar_t(1));
    return finite ? (some ? value : -kLargest<scalar_t>) : kLargest<scalar_t>;
  }

  // Unit vector of the major axis. The larger component comes from the square root, so that no digits cancel.
  DR_HD void direction(scalar_t* x, scalar_t* y) const {
    const scalar_t large = std::sqrt(scalar_t(0.5) * (1 + (d < 0 ? -d : d)));
    const scalar_t small = scalar_t(0.5) * c / large;
    *x = d < 0 ? small : large;
    *y = d < 0 ? large : small;
  }

  // From the first to the last tap, in texels.
  DR_HD void axis(scalar_t* x, scalar_t* y) const {
    direction(x, y);
    const scalar_t length = scale * (major - minor);
    *x *= length;
    *y *= length;
  }

  // grad_j += (d level / d J)^T grad_level + (d axis / d J)^T grad_axis, in this order of the chain rule:
  //   level = log2(minor) + ..., axis = p e with e = major - minor, p = (cos t, sin t), t = atan2(C, D) / 2
  //   minor = major / taps, or |det| / major        major^2 = S + R
  //   dR = (D dD + C dC) / R        dt = (D dC - C dD) / (2 R^2)
  //   A = |row x|^2, B = |row y|^2, C = <row x, row y>, det = x_X y_Y - x_Y y_X
  // All of it in the scaled J: an axis of J / scale is `scale` times shorter, a level differs by a constant.
  DR_HD void backward(int32_t taps, scalar_t grad_level, scalar_t grad_axis_x, scalar_t grad_axis_y,
                      scalar_t grad_j[4]) const {
    if (!(scale >= kSmallestNormal<scalar_t> && scale <= kLargest<scalar_t>)) return;
    scalar_t p_x, p_y;
    direction(&p_x, &p_y);
    const scalar_t axis_x = grad_axis_x * scale, axis_y = grad_axis_y * scale;
    const scalar_t grad_length = p_x * axis_x + p_y * axis_y;
    const scalar_t grad_angle = (major - minor) * (p_x * axis_y - p_y * axis_x);
    const scalar_t grad_minor = grad_level * scalar_t(1.442695040888963407359924681001892) / minor - grad_length;
    scalar_t grad_major = grad_length, grad_det = 0;
    const scalar_t det = x_X * y_Y - x_Y * y_X;
    if (taps == 1) {
      grad_major += grad_minor;
    } else if (minor > major / taps) {
      grad_major -= grad_minor * minor / major;
      grad_det = (det < 0 ? -grad_minor : grad_minor) / major;
    } else {
      grad_major += grad_minor / taps;
    }
    const scalar_t grad_square = grad_major / (2 * major);
    const scalar_t turn = r > 0 ? grad_angle / (2 * r) : scalar_t(0);
    const scalar_t grad_D = grad_square * d - turn * c, grad_C = grad_square * c + turn * d;
    // A and B enter with a factor of 2 from the square and one of 1/2 from S and D.
    const scalar_t grad_A2 = grad_square + grad_D, grad_B2 = grad_square - grad_D;
    const scalar_t values[4] = {
        grad_A2 * x_X + grad_C * y_X + grad_det * y_Y, grad_A2 * x_Y + grad_C * y_Y - grad_det * y_X,
        grad_B2 * y_X + grad_C * x_X - grad_det * x_Y, grad_B2 * y_Y + grad_C * x_Y + grad_det * x_X};
    for (int k = 0; k < 4; ++k) {
      const scalar_t value = values[k] / scale, size = value < 0 ? -value : value;
      if (size <= kLargest<scalar_t>) grad_j[k] += value;
    }
  }
};

// Levels of a block from its `level` array.
template <class scalar_t>
DR_HD void choose_levels(TextureBlock<scalar_t, true>* block, int n, int32_t last, bool blend) {
  for (int i = 0; i < n; ++i) {
    const scalar_t top = static_cast<scalar_t>(last), wanted = block->level[i];
    const scalar_t level = wanted > 0 ? (wanted < top ? wanted : top) : scalar_t(0);  // NaN: 0
    const int32_t fine = static_cast<int32_t>(level);
    block->fine[i] = fine;
    block->coarse[i] = fine < last ? fine + 1 : last;
    block->fraction[i] = blend ? level - static_cast<scalar_t>(fine) : scalar_t(0);
  }
}

// Tap k of lookup i in channel c; irregular taps are looked at one by one.
template <class scalar_t>
DR_HD scalar_t texel_or_rule(const scalar_t* texels, const TextureTaps<scalar_t>& taps, int i, int k, int channels,
                             int c) {
  const int32_t tap = taps.tap[k][i];
  if (tap >= 0) return texels[static_cast<int64_t>(tap) * channels + c];
  if (tap == kTapOutside) return 0;
  scalar_t sum = 0;
  for (int other = 0; other < 4; ++other) {
    if (taps.tap[other][i] >= 0) sum += texels[static_cast<int64_t>(taps.tap[other][i]) * channels + c];
  }
  return sum / 3;
}

// Calls use(c, t00, t10, t01, t11) for every channel of lookup i.
template <int kChannels, class scalar_t, class F>
DR_HD void for_each_channel(const scalar_t* texels, const TextureTaps<scalar_t>& taps, int i, int channels,
                            const F& use) {
  const int n = kChannels > 0 ? kChannels : channels;
  if (taps.regular[i] < 0) {
    for (int c = 0; c < n; ++c) {
      use(c, texel_or_rule(texels, taps, i, 0, n, c), texel_or_rule(texels, taps, i, 1, n, c),
          texel_or_rule(texels, taps, i, 2, n, c), texel_or_rule(texels, taps, i, 3, n, c));
    }
    return;
  }
  const scalar_t* const t00 = texels + static_cast<int64_t>(taps.tap[0][i]) * n;
  const scalar_t* const t10 = texels + static_cast<int64_t>(taps.tap[1][i]) * n;
  const scalar_t* const t01 = texels + static_cast<int64_t>(taps.tap[2][i]) * n;
  const scalar_t* const t11 = texels + static_cast<int64_t>(taps.tap[3][i]) * n;
  for (int c = 0; c < n; ++c) use(c, t00[c], t10[c], t01[c], t11[c]);
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
        const int64_t left = last - begin;
        body(begin, left < kTextureBlock ? static_cast<int>(left) : kTextureBlock, item);
      }
      begin = last;
    }
  }

  DR_HD bool blends() const { return kMips && filter == TextureFilter::mip_linear && levels.last > 0; }
  DR_HD int32_t tap_count() const { return kMips ? anisotropy : 1; }

  DR_HD_STEP void locate(int64_t first, int n, Block* block) const {
    mapping.locate(first, n, block);
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
  DR_HD_STEP void find(const Block& block, int n, int32_t index, int step, Taps* taps) const {
    int32_t width[kTextureBlock], height[kTextureBlock];
    if constexpr (kMips) {
      const int32_t* const level = step == 0 ? block.fine : block.coarse;
      for (int i = 0; i < n; ++i) {
        width[i] = levels.level_width(level[i]);
        height[i] = levels.level_height(level[i]);
      }
      if (anisotropy > 1) {
        scalar_t u[kTextureBlock], v[kTextureBlock];
        const scalar_t t = tap_position(index);
        for (int i = 0; i < n; ++i) {
          u[i] = block.u[i] + t * block.axis_u[i];
          v[i] = block.v[i] + t * block.axis_v[i];
        }
        mapping.linear(u, v, block.face, n, width, height, taps);
        return;
      }
    } else {
      for (int i = 0; i < n; ++i) width[i] = levels.width, height[i] = levels.height;
    }
    mapping.linear(block.u, block.v, block.face, n, width, height, taps);
  }

  // The one texel of the nearest filter as tap 0.
  DR_HD_STEP void find_nearest(const Block& block, int n, Taps* taps) const {
    for (int i = 0; i < n; ++i) {
      taps->tap[0][i] = mapping.nearest(block.u[i], block.v[i], block.face[i], levels.width, levels.height);
      taps->tap[1][i] = taps->tap[2][i] = taps->tap[3][i] = taps->regular[i] = kTapOutside;
      taps->x[i] = taps->y[i] = 0;
    }
  }

  // Calls body(batch item, first lookup, count, block, taps, step) for all that a range of lookups reads.
  template <class F>
  DR_HD void for_each_footprint(int64_t begin, int64_t end, const F& body) const {
    for_each_block(begin, end, lookups_per_item, [&](int64_t first, int n, int64_t item) {
      Block block;
      Taps taps;
      locate(first, n, &block);
      if (filter == TextureFilter::nearest) {
        find_nearest(block, n, &taps);
        body(item, first, n, block, taps, 0);
        return;
      }
      for (int32_t index = 0; index < tap_count(); ++index) {
        for (int step = 0; step < (blends() ? 2 : 1); ++step) {
          find(block, n, index, step, &taps);
          body(item, first, n, block, taps, step);
        }
      }
    });
  }

  DR_HD int32_t level(const Block& block, int i, int step) const {
    if constexpr (kMips) return step == 0 ? block.fine[i] : block.coarse[i];
    return 0;
  }

  DR_HD const scalar_t* texels(int64_t item, const Block& block, int i, int step) const {
    if constexpr (kMips) return levels.texels(item, step == 0 ? block.fine[i] : block.coarse[i]);
    return levels.base + item * levels.base_stride;
  }

  // What the taps of one step count: all steps and taps together 1.
  DR_HD scalar_t weight(const Block& block, int i, int step) const {
    if constexpr (kMips) {
      const scalar_t share = step == 0 ? 1 - block.fraction[i] : block.fraction[i];
      return anisotropy > 1 ? share / anisotropy : share;
    }
    return 1;
  }
};

// values = bilinear mixes of the levels, as a + f (b - a): a constant texture gives exactly its constant.
template <class scalar_t, class Mapping, int kChannels, bool kMips>
struct TextureForward {
  TextureSampler<scalar_t, Mapping, kMips> sampler;
  scalar_t* values;  // [B, H, W, C]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    using Sampler = TextureSampler<scalar_t, Mapping, kMips>;
    const int channels = kChannels > 0 ? kChannels : sampler.levels.channels;
    Sampler::for_each_block(begin, end, sampler.lookups_per_item, [&](int64_t first, int n, int64_t item) {
      typename Sampler::Block block;
      typename Sampler::Taps taps;
      sampler.locate(first, n, &block);
      const int32_t count = sampler.tap_count();
      for (int32_t index = 0; index < count; ++index) {
        for (int step = 0; step < (sampler.blends() ? 2 : 1); ++step) {
          sampler.find(block, n, index, step, &taps);
          for (int i = 0; i < n; ++i) {
            const scalar_t* const texels = sampler.texels(item, block, i, step);
            scalar_t* const out = values + (first + i) * channels;
            const scalar_t x = taps.x[i], y = taps.y[i];
            const auto visit = [&](const auto& use) {
              for_each_channel<kChannels>(texels, taps, i, channels,
                                          [&](int c, scalar_t t00, scalar_t t10, scalar_t t01, scalar_t t11) {
                                            const scalar_t low = t00 + x * (t10 - t00), high = t01 + x * (t11 - t01);
                                            use(out[c], low + y * (high - low));
                                          });
            };
            if constexpr (kMips) {
              if (count > 1) {
                const scalar_t w = sampler.weight(block, i, step), keep = index == 0 && step == 0 ? 0 : 1;
                if (keep == 0) {
                  visit([&](scalar_t& result, scalar_t value) { result = w * value; });
                } else if (w > 0) {
                  visit([&](scalar_t& result, scalar_t value) { result += w * value; });
                }
                continue;
              }
              if (step == 1) {
                const scalar_t f = block.fraction[i];
                if (f > 0) visit([&](scalar_t& result, scalar_t value) { result += f * (value - result); });
                continue;
              }
            }
            visit([](scalar_t& result, scalar_t value) { result = value; });
          }
        }
      }
    });
  }
};

// With the value m(x, y) of a level and its share w:
//   grad_u += w <g, dm/dx> slope_x,   dm/dx = (1 - y) (t10 - t00) + y (t11 - t01), likewise v
//   grad_level = <g, coarse - fine> / taps, 0 where the level is clamped
//   grad_axis += t grad_u, grad_v of the tap at position t of the axis
// The mapping pulls these back to coordinates, derivatives and bias.
template <class scalar_t, class Mapping, int kChannels, bool kMips>
struct TextureBackwardCoordinates {
  TextureSampler<scalar_t, Mapping, kMips> sampler;
  const scalar_t* grad_values;  // [B, H, W, C]
  scalar_t* grad_coordinates;   // [B, H, W, 2 or 3] or null
  scalar_t* grad_derivatives;   // [B, H, W, 4 or 6] or null
  scalar_t* grad_bias;          // [B, H, W] or null

  DR_HD void operator()(int64_t begin, int64_t end) const {
    using Sampler = TextureSampler<scalar_t, Mapping, kMips>;
    const int channels = kChannels > 0 ? kChannels : sampler.levels.channels;
    Sampler::for_each_block(begin, end, sampler.lookups_per_item, [&](int64_t first, int n, int64_t item) {
      typename Sampler::Block block;
      typename Sampler::Taps taps;
      sampler.locate(first, n, &block);
      scalar_t grad_u[kTextureBlock], grad_v[kTextureBlock];
      scalar_t grad_level[kTextureBlock], axis_u[kTextureBlock], axis_v[kTextureBlock];
      for (int i = 0; i < n; ++i) grad_u[i] = grad_v[i] = grad_level[i] = axis_u[i] = axis_v[i] = 0;
      const int32_t count = sampler.tap_count();
      for (int32_t index = 0; index < count; ++index) {
        for (int step = 0; step < (sampler.blends() ? 2 : 1); ++step) {
          sampler.find(block, n, index, step, &taps);
          const scalar_t t = sampler.tap_position(index);
          for (int i = 0; i < n; ++i) {
            if (block.face[i] < 0) continue;
            const scalar_t* const texels = sampler.texels(item, block, i, step);
            const scalar_t* const g = grad_values + (first + i) * channels;
            const scalar_t x = taps.x[i], y = taps.y[i];
            scalar_t along_x = 0, along_y = 0, total = 0;
            for_each_channel<kChannels>(texels, taps, i, channels,
                                        [&](int c, scalar_t t00, scalar_t t10, scalar_t t01, scalar_t t11) {
                                          const scalar_t low_x = t10 - t00, high_x = t11 - t01;
                                          const scalar_t low = t00 + x * low_x, y_step = t01 + x * high_x - low;
                                          along_x += g[c] * (low_x + y * (high_x - low_x));
                                          along_y += g[c] * y_step;
                                          if constexpr (kMips) total += g[c] * (low + y * y_step);
                                        });
            const scalar_t w = sampler.weight(block, i, step);
            const scalar_t tap_u = w * along_x * taps.slope_x[i], tap_v = w * along_y * taps.slope_y[i];
            grad_u[i] += tap_u;
            grad_v[i] += tap_v;
            if constexpr (kMips) {
              axis_u[i] += t * tap_u;
              axis_v[i] += t * tap_v;
              grad_level[i] += step == 0 ? -total : total;
            }
          }
        }
      }
      for (int i = 0; i < n; ++i) {
        scalar_t level = 0;
        if constexpr (kMips) {
          const bool free = sampler.blends() && block.level[i] > 0 && block.level[i] < sampler.levels.last;
          if (free) level = grad_level[i] / count;
        }
        sampler.mapping.template pull_back<kMips>(first + i, block.face[i] >= 0, sampler.levels, sampler.anisotropy,
                                                  grad_u[i], grad_v[i], level, axis_u[i], axis_v[i], grad_coordinates,
                                                  grad_derivatives, grad_bias);
      }
    });
  }
};

// The weights of the four taps; what falls off a corner of a cube goes to the other three in equal parts.
template <class scalar_t>
DR_HD void tap_weights(const TextureTaps<scalar_t>& taps, int i, scalar_t scale, scalar_t weights[4]) {
  const scalar_t x = taps.x[i], y = taps.y[i], low = scale * (1 - y), high = scale * y;
  weights[0] = low * (1 - x);
  weights[1] = low * x;
  weights[2] = high * (1 - x);
  weights[3] = high * x;
  if (taps.regular[i] >= 0) return;
  for (int k = 0; k < 4; ++k) {
    if (taps.tap[k][i] != kTapCorner) continue;
    for (int other = 0; other < 4; ++other) weights[other] += other == k ? 0 : weights[k] / 3;
    weights[k] = 0;
  }
}

// grad_texel += weight * g for the texels of every lookup, of the base or of the mips. Sums are double, so that many
// small contributions to one texel lose nothing. The CPU has a driver of its own: texture_scatter_cpu.h.
template <class scalar_t, class Mapping, bool kMips>
struct TextureBackwardTexels {
  TextureSampler<scalar_t, Mapping, kMips> sampler;
  const scalar_t* grad_values;  // [B, H, W, C]
  bool base;                    // whether the sink is the gradient of the base or that of the mips

  DR_HD void operator()(int64_t begin, int64_t end, const Sink<double>& sink) const {
    const int channels = sampler.levels.channels;
    sampler.for_each_footprint(
        begin, end, [&](int64_t item, int64_t first, int n, const auto& block, const auto& taps, int step) {
          for (int i = 0; i < n; ++i) {
            const int32_t level = sampler.level(block, i, step);
            const scalar_t share = sampler.weight(block, i, step);
            if ((level == 0) != base || !(share > 0)) continue;
            const int64_t start = level == 0
                                      ? item * sampler.levels.base_stride
                                      : item * sampler.levels.mips_stride + sampler.levels.offset[level] * channels;
            scalar_t weights[4];
            tap_weights(taps, i, share, weights);
            const scalar_t* const g = grad_values + (first + i) * channels;
            for (int k = 0; k < 4; ++k) {
              const int32_t tap = taps.tap[k][i];
              if (tap < 0) continue;
              const int64_t texel = start + static_cast<int64_t>(tap) * channels;
              const double w = weights[k];
              for (int c = 0; c < channels; ++c) accumulate(sink, texel + c, w * g[c]);
            }
          }
        });
  }
};

// Second derivative of the linear filter without mips: the gradient of
//   D = <u, grad_texcoords> = sum_c g_c (a_x dm/dx + a_y dm/dy),   a = (u_0 slope_x, u_1 slope_y),
// for a cotangent u of grad_texcoords. m is bilinear in (x, y), so only the mixed derivative d2m/dxdy is left.
template <class scalar_t, class Mapping>
struct TextureBackwardTwice {
  TextureSampler<scalar_t, Mapping, false> sampler;
  const scalar_t* grad_values;  // [B, H, W, C]
  const scalar_t* cotangent;    // [B, H, W, 2]
  scalar_t* to_grad_values;     // [B, H, W, C]
  scalar_t* to_texcoords;       // [B, H, W, 2]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    const int channels = sampler.levels.channels;
    sampler.for_each_footprint(begin, end, [&](int64_t item, int64_t first, int n, const auto&, const auto& taps, int) {
      const scalar_t* const texels = sampler.levels.base + item * sampler.levels.base_stride;
      for (int i = 0; i < n; ++i) {
        const int64_t lookup = first + i;
        const scalar_t x = taps.x[i], y = taps.y[i];
        const scalar_t a_x = cotangent[2 * lookup] * taps.slope_x[i];
        const scalar_t a_y = cotangent[2 * lookup + 1] * taps.slope_y[i];
        const scalar_t* const g = grad_values + lookup * channels;
        scalar_t* const out = to_grad_values + lookup * channels;
        scalar_t mixed = 0;
        for_each_channel<0>(texels, taps, i, channels,
                            [&](int c, scalar_t t00, scalar_t t10, scalar_t t01, scalar_t t11) {
                              const scalar_t low_x = t10 - t00, low_y = t01 - t00, twist = t11 - t01 - low_x;
                              out[c] = a_x * (low_x + y * twist) + a_y * (low_y + x * twist);
                              mixed += g[c] * twist;
                            });
        to_texcoords[2 * lookup] = taps.slope_x[i] * a_y * mixed;
        to_texcoords[2 * lookup + 1] = taps.slope_y[i] * a_x * mixed;
      }
    });
  }
};

// The texture's part of the same: D is linear in the texels, with the derivatives of the weights.
template <class scalar_t, class Mapping>
struct TextureBackwardTwiceTexels {
  TextureSampler<scalar_t, Mapping, false> sampler;
  const scalar_t* grad_values;  // [B, H, W, C]
  const scalar_t* cotangent;    // [B, H, W, 2]

  DR_HD void operator()(int64_t begin, int64_t end, const Sink<double>& sink) const {
    const int channels = sampler.levels.channels;
    sampler.for_each_footprint(begin, end, [&](int64_t item, int64_t first, int n, const auto&, const auto& taps, int) {
      for (int i = 0; i < n; ++i) {
        const int64_t lookup = first + i;
        const double x = taps.x[i], y = taps.y[i];
        const double a_x = cotangent[2 * lookup] * taps.slope_x[i];
        const double a_y = cotangent[2 * lookup + 1] * taps.slope_y[i];
        const double weights[4] = {-a_x * (1 - y) - a_y * (1 - x), a_x * (1 - y) - a_y * x, -a_x * y + a_y * (1 - x),
                                   a_x * y + a_y * x};
        const scalar_t* const g = grad_values + lookup * channels;
        for (int k = 0; k < 4; ++k) {
          const int32_t tap = taps.tap[k][i];
          if (tap < 0) continue;
          const int64_t texel = item * sampler.levels.base_stride + static_cast<int64_t>(tap) * channels;
          for (int c = 0; c < channels; ++c) accumulate(sink, texel + c, weights[k] * g[c]);
        }
      }
    });
  }
};

// The texel of the nearest filter.
template <class scalar_t, class Mapping>
struct TextureNearest {
  TextureSampler<scalar_t, Mapping, false> sampler;
  scalar_t* values;  // [B, H, W, C]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    const int channels = sampler.levels.channels;
    sampler.for_each_footprint(begin, end, [&](int64_t item, int64_t first, int n, const auto&, const auto& taps, int) {
      const scalar_t* const texels = sampler.levels.base + item * sampler.levels.base_stride;
      for (int i = 0; i < n; ++i) {
        const int32_t tap = taps.tap[0][i];
        const scalar_t* const texel = texels + static_cast<int64_t>(tap < 0 ? 0 : tap) * channels;
        scalar_t* const out = values + (first + i) * channels;
        for (int c = 0; c < channels; ++c) out[c] = tap < 0 ? scalar_t(0) : texel[c];
      }
    });
  }
};

// Sums of doubles in the type of the gradient.
template <class scalar_t>
struct RoundSums {
  const double* sums;  // [N]
  scalar_t* result;    // [N]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) result[i] = static_cast<scalar_t>(sums[i]);
  }
};

}  // namespace diffrender
