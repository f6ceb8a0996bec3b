// The footprint of a pixel on a texture: which level it reads and along which axis.
#pragma once

#include <type_traits>

#include "core/portable.h"

namespace diffrender {

#if !defined(__CUDACC__)
// texture_locate_cpu.cpp: Footprint<float>::levels_of_major.
void levels_with_vectors(const float* steps, int n, float width, float height, float* levels);
#endif

// A step over a whole block: not worth inlining on the CPU, where that would only cost compile time.
#if defined(__CUDACC__)
#define DR_HD_STEP DR_HD
#else
#define DR_HD_STEP __attribute__((noinline))
#endif

// log2 to the precision of its type for normal positive numbers, without branches: the mantissa m in [sqrt(1/2),
// sqrt(2)) gives 2 / ln(2) artanh(z) with z = (m - 1) / (m + 1), |z| < 0.172.
template <class scalar_t>
DR_HD scalar_t log2_normal(scalar_t value);

// Value: a scalar, or lanes of them.
template <class scalar_t, int kTerms, class Value>
DR_HD Value log2_mantissa(const Value& m) {
  const Value z = (m - scalar_t(1)) / (m + scalar_t(1)), z2 = z * z;
  Value sum = Value{} + scalar_t(1) / (2 * kTerms - 1);
  for (int k = kTerms - 2; k >= 0; --k) sum = sum * z2 + scalar_t(1) / (2 * k + 1);
  return scalar_t(2.885390081777926814719849362003784) * z * sum;
}

template <>
DR_HD float log2_normal(float value) {
  const int32_t bits = static_cast<int32_t>(float_bits(value));
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;  // of m in [sqrt(1/2), sqrt(2))
  const float m = __builtin_bit_cast(float, bits - exponent * (1 << 23));
  return static_cast<float>(exponent) + log2_mantissa<float, 5>(m);
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

  // The squared major axis of J. Value: a scalar, or lanes of them.
  template <class Value, class Root>
  DR_HD static Value squared_major(const Value& x_X, const Value& x_Y, const Value& y_X, const Value& y_Y,
                                   const Root& root) {
    const Value A = x_X * x_X + x_Y * x_Y, B = y_X * y_X + y_Y * y_Y;
    const Value C = x_X * y_X + x_Y * y_Y, D = scalar_t(0.5) * (A - B);
    return scalar_t(0.5) * (A + B) + root(D * D + C * C);
  }

  // Between these squares nothing that counts overflows or underflows. NaN is not between them.
  static constexpr scalar_t kSmallSquare = scalar_t(1e-12), kLargeSquare = scalar_t(1e18);

  // Levels of the major axes of n footprints (u_X, u_Y, v_X, v_Y), in units of the texture.
  DR_HD_STEP static void levels_of_major(const scalar_t* steps, int n, scalar_t width, scalar_t height,
                                         scalar_t* levels) {
#if !defined(__CUDACC__)
    if constexpr (std::is_same_v<scalar_t, float>) return levels_with_vectors(steps, n, width, height, levels);
#endif
    for (int i = 0; i < n; ++i) levels[i] = major_level(steps + 4 * i, width, height);
  }

  DR_HD_STEP static scalar_t major_level(const scalar_t* step, scalar_t width, scalar_t height) {
    const scalar_t x_X = step[0] * width, x_Y = step[1] * width, y_X = step[2] * height, y_Y = step[3] * height;
    const scalar_t square = squared_major(x_X, x_Y, y_X, y_Y, [](scalar_t x) { return std::sqrt(x); });
    if (square > kSmallSquare && square < kLargeSquare) return scalar_t(0.5) * log2_normal(square);
    return make(x_X, x_Y, y_X, y_Y, 1).level();
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

}  // namespace diffrender
