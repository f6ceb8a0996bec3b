// Texture coordinates on a plane, with four ways to continue it past its border.
#pragma once

#include "texture.h"

namespace diffrender {

enum class TextureWrap : int32_t { repeat = 0, clamp = 1, mirror = 2, zero = 3 };

// Texel centres lie at half-integers. For a coordinate u of n texels: the two texels that it lies between (-1 =
// outside), how far it is from the first to the second, and the slope of that. All in arithmetic that vectorises.
template <class scalar_t>
struct WrappedAxis {
  int32_t first, second;
  scalar_t fraction, slope;

  DR_HD static WrappedAxis between(scalar_t x, int32_t n, scalar_t slope) {
    const scalar_t whole = std::floor(x);
    const int32_t first = static_cast<int32_t>(whole);
    return {first, first + 1 < n ? first + 1 : n - 1, x - whole, slope};
  }

  DR_HD static WrappedAxis repeat(scalar_t u, int32_t n) {
    const scalar_t size = static_cast<scalar_t>(n);
    // The fractional part first: exact, and it keeps what digits a coordinate of 1e6 has.
    const scalar_t x = (u - std::floor(u)) * size - scalar_t(0.5), whole = std::floor(x);
    const int32_t first = static_cast<int32_t>(whole);
    return {first < 0 ? n - 1 : first, first + 1 < n ? first + 1 : 0, x - whole, size};
  }

  // Beyond the outer texel centres the value is constant.
  DR_HD static WrappedAxis clamp(scalar_t u, int32_t n, scalar_t sign) {
    const scalar_t size = static_cast<scalar_t>(n), x = u * size - scalar_t(0.5), end = size - 1;
    const bool inside = x >= 0 && x < end;
    return between(x > 0 ? (x < end ? x : end) : scalar_t(0), n, inside ? sign * size : scalar_t(0));
  }

  DR_HD static WrappedAxis mirror(scalar_t u, int32_t n) {
    const scalar_t turn = u - 2 * std::floor(scalar_t(0.5) * u);
    return clamp(turn > 1 ? 2 - turn : turn, n, turn > 1 ? scalar_t(-1) : scalar_t(1));
  }

  DR_HD static WrappedAxis zero(scalar_t u, int32_t n) {
    const scalar_t size = static_cast<scalar_t>(n), x = u * size - scalar_t(0.5);
    const scalar_t near = x > -2 ? (x < size + 1 ? x : size + 1) : scalar_t(-2), whole = std::floor(near);
    const int32_t first = static_cast<int32_t>(whole), second = first + 1;
    return {first < n ? first : -1, second < n ? second : -1, near - whole, size};
  }
};

#if !defined(__CUDACC__)
// A block of lookups for PlaneMapping<float>::linear.
struct PlaneBlock {
  const float *u, *v;    // [n]
  const int32_t* valid;  // [n]
  int n;                 // all arrays go on to a multiple of kLanes
  const LevelSizes& sizes;
  TextureWrap wrap_u, wrap_v;
};

// texture_locate_cpu.cpp. These write on to a multiple of kLanes.
void locate_with_vectors(const float* texcoords, int n, float* u, float* v, int32_t* valid);
void find_with_vectors(const PlaneBlock& block, TextureTaps<float>* taps);
#endif

template <class scalar_t>
struct PlaneMapping {
  static constexpr int kCoordinates = 2, kDerivatives = 4;
  static constexpr bool kFirstTapTells = true;  // where the other three are, unless one lies outside

  const scalar_t* texcoords;    // [B, H, W, 2]
  const scalar_t* derivatives;  // [B, H, W, 4] (u_X, u_Y, v_X, v_Y) per pixel step, or null
  const scalar_t* bias;         // [B, H, W], or null
  TextureWrap wrap_u, wrap_v;

  DR_HD void locate(int64_t first, int n, scalar_t* us, scalar_t* vs, int32_t* valid) const {
    const scalar_t* const uv = texcoords + 2 * first;
#if !defined(__CUDACC__)
    if constexpr (std::is_same_v<scalar_t, float>) return locate_with_vectors(uv, n, us, vs, valid);
#endif
    for (int i = 0; i < n; ++i) {
      const scalar_t u = uv[2 * i], v = uv[2 * i + 1];
      const bool finite = ((u < 0 ? -u : u) <= kLargest<scalar_t>)&((v < 0 ? -v : v) <= kLargest<scalar_t>);
      us[i] = finite ? u : scalar_t(0);
      vs[i] = finite ? v : scalar_t(0);
      valid[i] = finite ? 0 : -1;
    }
  }

  DR_HD Footprint<scalar_t> footprint(int64_t lookup, const TextureLevels<scalar_t>& levels, int32_t taps) const {
    const scalar_t* const step = derivatives + 4 * lookup;
    const scalar_t width = static_cast<scalar_t>(levels.width), height = static_cast<scalar_t>(levels.height);
    return Footprint<scalar_t>::make(step[0] * width, step[1] * width, step[2] * height, step[3] * height, taps);
  }

  DR_HD void measure(int64_t first, int n, const TextureLevels<scalar_t>& levels, int32_t taps,
                     TextureBlock<scalar_t, true>* block) const {
    if (derivatives != nullptr && taps == 1) {
      Footprint<scalar_t>::levels_of_major(derivatives + 4 * first, n, static_cast<scalar_t>(levels.width),
                                           static_cast<scalar_t>(levels.height), block->level);
    } else if (derivatives != nullptr) {
      for (int i = 0; i < n; ++i) {
        const Footprint<scalar_t> at = footprint(first + i, levels, taps);
        scalar_t x, y;
        at.axis(&x, &y);
        x /= static_cast<scalar_t>(levels.width);
        y /= static_cast<scalar_t>(levels.height);
        const bool finite = (x < 0 ? -x : x) <= kLargest<scalar_t> && (y < 0 ? -y : y) <= kLargest<scalar_t>;
        block->level[i] = at.level();
        block->axis_u[i] = finite ? x : scalar_t(0);
        block->axis_v[i] = finite ? y : scalar_t(0);
      }
    }
    if (derivatives == nullptr) {
      for (int i = 0; i < n; ++i) block->level[i] = bias == nullptr ? scalar_t(0) : bias[first + i];
    } else if (bias != nullptr) {
      for (int i = 0; i < n; ++i) block->level[i] += bias[first + i];
    }
  }

  // What follows the last texel of a column or row: the first one, or the last again.
  bool repeats_u() const { return wrap_u == TextureWrap::repeat; }
  bool repeats_v() const { return wrap_v == TextureWrap::repeat; }

  template <class Wrap>
  DR_HD_STEP static void along(const scalar_t* coordinate, const int32_t* size, int stride, int n, int32_t* first,
                               int32_t* second, scalar_t* fraction, scalar_t* slope, const Wrap& wrap) {
    for (int i = 0; i < n; ++i) {
      const WrappedAxis<scalar_t> wrapped = wrap(coordinate[i], size[i * stride]);
      first[i] = wrapped.first;
      second[i] = wrapped.second;
      fraction[i] = wrapped.fraction;
      slope[i] = wrapped.slope;
    }
  }

  DR_HD static void wrap_axis(TextureWrap wrap, const scalar_t* coordinate, const int32_t* size, int stride, int n,
                              int32_t* first, int32_t* second, scalar_t* fraction, scalar_t* slope) {
    using Axis = WrappedAxis<scalar_t>;
    const auto go = [&](const auto& rule) { along(coordinate, size, stride, n, first, second, fraction, slope, rule); };
    switch (wrap) {
      case TextureWrap::repeat:
        go([](scalar_t c, int32_t s) { return Axis::repeat(c, s); });
        break;
      case TextureWrap::clamp:
        go([](scalar_t c, int32_t s) { return Axis::clamp(c, s, 1); });
        break;
      case TextureWrap::mirror:
        go([](scalar_t c, int32_t s) { return Axis::mirror(c, s); });
        break;
      case TextureWrap::zero:
        go([](scalar_t c, int32_t s) { return Axis::zero(c, s); });
        break;
    }
  }

  DR_HD_STEP void linear(const scalar_t* u, const scalar_t* v, const int32_t* valid, int n, const LevelSizes& sizes,
                         TextureTaps<scalar_t>* taps) const {
#if !defined(__CUDACC__)
    if constexpr (std::is_same_v<scalar_t, float>) {
      return find_with_vectors({u, v, valid, n, sizes, wrap_u, wrap_v}, taps);
    }
#endif
    int32_t second_column[kTextureBlock], second_row[kTextureBlock];
    const int stride = taps->one_level ? 0 : 1;
    wrap_axis(wrap_u, u, sizes.width, stride, n, taps->column, second_column, taps->x, taps->slope_x);
    wrap_axis(wrap_v, v, sizes.height, stride, n, taps->row, second_row, taps->y, taps->slope_y);
    int32_t others = 0;
    for (int i = 0; i < n; ++i) {
      const int32_t x0 = taps->column[i], x1 = second_column[i], y0 = taps->row[i], y1 = second_row[i], ok = valid[i];
      const int32_t any = x0 | x1 | y0 | y1 | ok;
      // A pair that wraps around or lies on the last texel is no square, unless its second texel stands behind it.
      const bool padded = taps->width_of(i) != sizes.width[i * stride];
      const int32_t skew = (x1 - x0 - 1) | (y1 - y0 - 1), square = padded || skew == 0 ? 1 : 0;
      taps->tap[0][i] = (x0 | y0 | ok) < 0 ? kTapOutside : y0 * taps->width_of(i) + x0;
      taps->regular[i] = any < 0 ? kTapOutside : square;
      others |= taps->regular[i] - 1;
    }
    if (others == 0) return;
    for (int i = 0; i < n; ++i) {
      const int32_t x0 = taps->column[i], x1 = second_column[i], y0 = taps->row[i], y1 = second_row[i], ok = valid[i];
      taps->tap[1][i] = (x1 | y0 | ok) < 0 ? kTapOutside : y0 * taps->width_of(i) + x1;
      taps->tap[2][i] = (x0 | y1 | ok) < 0 ? kTapOutside : y1 * taps->width_of(i) + x0;
      taps->tap[3][i] = (x1 | y1 | ok) < 0 ? kTapOutside : y1 * taps->width_of(i) + x1;
    }
  }

  // The texel that a coordinate lies in, -1 = outside.
  DR_HD static int32_t nearest_on_axis(scalar_t u, int32_t n, TextureWrap wrap) {
    const scalar_t size = static_cast<scalar_t>(n);
    if (wrap == TextureWrap::repeat) u -= std::floor(u);
    if (wrap == TextureWrap::mirror) {
      u -= 2 * std::floor(scalar_t(0.5) * u);
      u = u > 1 ? 2 - u : u;
    }
    const scalar_t x = u * size;
    if (wrap == TextureWrap::zero && !(x >= 0 && x < size)) return -1;
    return x > 0 ? (x < size ? static_cast<int32_t>(x) : n - 1) : 0;
  }

  DR_HD int32_t nearest(scalar_t u, scalar_t v, int32_t valid, int32_t width, int32_t height) const {
    const int32_t x = nearest_on_axis(u, width, wrap_u), y = nearest_on_axis(v, height, wrap_v);
    return (x | y | valid) < 0 ? kTapOutside : y * width + x;
  }

  template <bool kMips>
  DR_HD void pull_back(int64_t first, int n, const int32_t* valid, const TextureLevels<scalar_t>& levels, int32_t taps,
                       const scalar_t* grad_u, const scalar_t* grad_v, const scalar_t* grad_level,
                       const scalar_t* grad_axis_u, const scalar_t* grad_axis_v, scalar_t* grad_texcoords,
                       scalar_t* grad_derivatives, scalar_t* grad_bias) const {
    if (grad_texcoords != nullptr) {
      scalar_t* const out = grad_texcoords + 2 * first;
#pragma omp simd
      for (int i = 0; i < n; ++i) {
        out[2 * i] = valid[i] < 0 ? scalar_t(0) : grad_u[i];
        out[2 * i + 1] = valid[i] < 0 ? scalar_t(0) : grad_v[i];
      }
    }
    if constexpr (kMips) {
      for (int i = 0; grad_bias != nullptr && i < n; ++i) {
        grad_bias[first + i] = valid[i] < 0 ? scalar_t(0) : grad_level[i];
      }
      const scalar_t width = static_cast<scalar_t>(levels.width), height = static_cast<scalar_t>(levels.height);
      for (int i = 0; grad_derivatives != nullptr && i < n; ++i) {
        scalar_t grad_j[4] = {0, 0, 0, 0};
        if (valid[i] >= 0) {
          footprint(first + i, levels, taps)
              .backward(taps, grad_level[i], grad_axis_u[i] / width, grad_axis_v[i] / height, grad_j);
        }
        scalar_t* const out = grad_derivatives + 4 * (first + i);
        out[0] = grad_j[0] * width;
        out[1] = grad_j[1] * width;
        out[2] = grad_j[2] * height;
        out[3] = grad_j[3] * height;
      }
    }
  }
};

#if !defined(__CUDACC__)
// texture_squares_cpu.cpp: the whole of TextureForward and TextureBackwardCoordinates, if there is a short way.
using PlaneSampler = TextureSampler<float, PlaneMapping<float>, false>;
bool values_at_once(const PlaneSampler& sampler, int64_t begin, int64_t end, float* values);
bool slopes_at_once(const PlaneSampler& sampler, int64_t begin, int64_t end, const float* grad_values,
                    float* grad_texcoords);
// The same for the first lookups of a block, as many as they return; `guess` starts at -1.
using MipSampler = TextureSampler<float, PlaneMapping<float>, true>;
int values_of_start(const MipSampler& sampler, int64_t first, int n, int64_t item, int32_t* guess, float* values);
int slopes_of_start(const MipSampler& sampler, int64_t first, int n, int64_t item, int32_t* guess,
                    const float* grad_values, float* grad_texcoords);
#endif

}  // namespace diffrender
