// What one or two lines leave of a pixel, in closed form.
//
// One line is what most pixels have that show two triangles, neighbours across an edge. Seen along the axis that the
// line is steeper against, every row of the pixel has a part on the inner side, from one and the same border: its
// length w is a linear function of the row, cut off at 0 and at the whole width W. So the inner side is a trapezoid, of
// the rows that the line crosses, and a rectangle, of the rows that lie inside.
#pragma once

#include "coverage_geometry.h"

namespace diffrender {

template <class T>
struct HalfSquareOf {
  MomentsOf<T> moments;  // of the inner side
  T x[2], y[2];          // ends of the line in the pixel
};

using HalfSquare = HalfSquareOf<double>;

// Picks one of two numbers, several times by the same comparison: of vectors lane by lane.
template <class T>
struct Choice {
  decltype(T{} < T{}) mask;
  DR_HD static Choice less(T a, T b) { return {a < b}; }
  DR_HD T of(T yes, T no) const { return mask ? yes : no; }
};

#if !defined(__CUDACC__)
// CPU compilers make branches of `?:`, which cost more than all of half_square where they are as hard to predict as the
// way that a line runs.
template <>
struct Choice<double> {
  using Pair = double __attribute__((vector_size(16)));
  int64_t __attribute__((vector_size(16))) mask;
  DR_HD static Choice less(double a, double b) { return {Pair{a, a} < Pair{b, b}}; }
  DR_HD double of(double yes, double no) const { return (mask ? Pair{yes, yes} : Pair{no, no})[0]; }
};
#endif

// The magnitude, 0 of -0 too, so that what is divided by it is infinite with the right sign.
DR_HD double without_sign(double value) { return ::fabs(value); }
template <class T>
DR_HD T without_sign(T value) {
  return magnitude(value) + 0.0;
}

// No difference of two areas is taken, so that a small corner keeps its digits.
template <class T>
DR_HD HalfSquareOf<T> half_square(const PixelSquareOf<T>& square, const LineOf<T>& line) {
  const T zero = {}, one = zero + 1;
  const auto flat = Choice<T>::less(magnitude(line.x), magnitude(line.y));
  const T across = flat.of(line.y, line.x), along = flat.of(line.x, line.y);
  const T low = flat.of(square.top, square.left), high = flat.of(square.bottom, square.right);
  const T first = flat.of(square.left, square.top), last = flat.of(square.right, square.bottom);
  // Rows are counted in the direction in which w grows, w is counted from the border `base`.
  const T inverse = 1 / magnitude(across), width = high - low;
  const auto back = Choice<T>::less(across, zero), up = Choice<T>::less(along, zero);
  const T sign = back.of(-one, one), base = back.of(low, high);
  const T turn = up.of(-one, one), begin = up.of(-last, first), end = up.of(-first, last);
  const T slope = without_sign(along) * inverse, per_slope = 1 / slope;
  const T offset = (across * base + line.c) * inverse;
  const T empty = -offset * per_slope, full = (width - offset) * per_slope;  // rows where w = 0 and w = W
  T v0 = empty > begin ? empty : begin;
  v0 = v0 < end ? v0 : end;
  T v1 = full < end ? full : end;
  v1 = v1 > v0 ? v1 : v0;
  T w0 = Choice<T>::less(begin, empty).of(zero, offset + slope * begin);
  T w1 = Choice<T>::less(full, end).of(width, offset + slope * end);
  w0 = w0 > 0 ? w0 : zero;
  w1 = w1 > 0 ? w1 : zero;
  w0 = w0 < width ? w0 : width;
  w1 = w1 < width ? w1 : width;
  const T rows = v1 - v0, whole = end - v1;
  const T trapezoid = 0.5 * rows * (w0 + w1), rectangle = width * whole;
  const T area = trapezoid + rectangle;
  const T of_w = rows * (w0 * w0 + w0 * w1 + w1 * w1) / 6 + 0.5 * width * rectangle;
  const T of_row = v0 * trapezoid + rows * rows * (w0 + 2 * w1) / 6 + 0.5 * (v1 + end) * rectangle;
  const T p = base * area - sign * of_w, q = turn * of_row;
  const T p0 = base - sign * w0, p1 = base - sign * w1, q0 = turn * v0, q1 = turn * v1;
  return {{area, flat.of(q, p), flat.of(p, q)}, {flat.of(q0, p0), flat.of(q1, p1)}, {flat.of(p0, q0), flat.of(p1, q1)}};
}

// The part of a pixel on the inner side of two lines that cross in it.
struct Wedge {
  double x, y;  // where they cross

  // False where that is not in the pixel.
  DR_HD bool make(const PixelSquare& square, const Line& a, const Line& b) {
    const double inverse = 1 / (a.x * b.y - a.y * b.x);
    x = (a.y * b.c - b.y * a.c) * inverse;
    y = (a.c * b.x - b.c * a.x) * inverse;
    return x > square.left && x < square.right && y > square.top && y < square.bottom;
  }

  DR_HD Moments moments(const PixelSquare& square, const Line& a, const Line& b) const {
    Moments m = {0, 0, 0};
    const double inverse_ax = 1 / a.x, inverse_ay = 1 / a.y, inverse_bx = 1 / b.x, inverse_by = 1 / b.y;
    for (int k = 0; k < 2; ++k) {
      const double side = k == 0 ? square.left : square.right, away = magnitude(side - x);
      Range range = {square.top - y, square.bottom - y};
      range.keep(a.y, inverse_ay, a.x * (side - x));
      range.keep(b.y, inverse_by, b.x * (side - x));
      const double part = away * range.length();
      m.area += part;
      m.x += part * (side - x);
      m.y += part * range.middle();
    }
    for (int k = 0; k < 2; ++k) {
      const double side = k == 0 ? square.top : square.bottom, away = magnitude(side - y);
      Range range = {square.left - x, square.right - x};
      range.keep(a.x, inverse_ax, a.y * (side - y));
      range.keep(b.x, inverse_bx, b.y * (side - y));
      const double part = away * range.length();
      m.area += part;
      m.x += part * range.middle();
      m.y += part * (side - y);
    }
    m.area *= 0.5;
    return {m.area, x * m.area + m.x / 3, y * m.area + m.y / 3};
  }

  // Where the inner side leaves the pixel along line a.
  DR_HD void leave(const PixelSquare& square, const Line& a, const Line& b, double* u, double* v) const {
    const double sign = a.x * b.y - a.y * b.x < 0 ? -1 : 1, across = -sign * a.y, down = sign * a.x;
    const double to_side = (across < 0 ? x - square.left : square.right - x) / without_sign(across);
    const double to_row = (down < 0 ? y - square.top : square.bottom - y) / without_sign(down);
    const double length = to_side < to_row ? to_side : to_row;
    *u = x + length * across;
    *v = y + length * down;
  }

 private:
  struct Range {
    double low, high;

    // The part where slope t + value >= 0.
    DR_HD void keep(double slope, double inverse, double value) {
      const double zero = -value * inverse;
      low = slope > 0 && zero > low ? zero : low;
      high = slope < 0 && zero < high ? zero : high;
      high = slope == 0 && value < 0 ? low : high;
    }

    DR_HD double length() const { return high > low ? high - low : 0; }
    DR_HD double middle() const { return high > low ? 0.5 * (low + high) : 0; }
  };
};

}  // namespace diffrender
