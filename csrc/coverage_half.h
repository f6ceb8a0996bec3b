// A pixel that one line cuts, in closed form: what most pixels are that show two triangles, neighbours across an edge.
//
// Seen along the axis that the line is steeper against, every row of the pixel has a part on the inner side, from one
// and the same border: its length w is a linear function of the row, cut off at 0 and at the whole width W. So the
// inner side is a trapezoid, of the rows that the line crosses, and a rectangle, of the rows that lie inside.
#pragma once

#include "coverage_geometry.h"

namespace diffrender {

struct HalfSquare {
  Moments moments;    // of the inner side
  double x[2], y[2];  // ends of the line in the pixel
};

// Without branches: which way a line runs is hard to predict. No difference of two areas is taken, so that a small
// corner keeps its digits.
DR_HD HalfSquare half_square(const PixelSquare& square, const Line& line) {
  const bool upright = magnitude(line.x) >= magnitude(line.y);
  const double across = upright ? line.x : line.y, along = upright ? line.y : line.x;
  const double low = upright ? square.left : square.top, high = upright ? square.right : square.bottom;
  const double first = upright ? square.top : square.left, last = upright ? square.bottom : square.right;
  // Rows are counted in the direction in which w grows, w is counted from the border `base`.
  const double inverse = 1 / magnitude(across), width = high - low;
  const double sign = across < 0 ? -1 : 1, base = across < 0 ? low : high;
  const double turn = along < 0 ? -1 : 1, begin = along < 0 ? -last : first, end = along < 0 ? -first : last;
  const double slope = ::fabs(along) * inverse;  // 0 of -0, too, so that what follows is infinite with the right sign
  const double offset = (across * base + line.c) * inverse;
  const double empty = -offset / slope, full = (width - offset) / slope;  // rows where w = 0 and w = W
  double v0 = empty > begin ? empty : begin;
  v0 = v0 < end ? v0 : end;
  double v1 = full < end ? full : end;
  v1 = v1 > v0 ? v1 : v0;
  double w0 = empty > begin ? 0 : offset + slope * begin, w1 = full < end ? width : offset + slope * end;
  w0 = w0 > 0 ? (w0 < width ? w0 : width) : 0;
  w1 = w1 > 0 ? (w1 < width ? w1 : width) : 0;
  const double rows = v1 - v0, whole = end - v1;
  const double trapezoid = 0.5 * rows * (w0 + w1), rectangle = width * whole;
  const double area = trapezoid + rectangle;
  const double of_w = rows * (w0 * w0 + w0 * w1 + w1 * w1) / 6 + 0.5 * width * rectangle;
  const double of_row = v0 * trapezoid + rows * rows * (w0 + 2 * w1) / 6 + 0.5 * (v1 + end) * rectangle;
  const double p = base * area - sign * of_w, q = turn * of_row;
  const double p0 = base - sign * w0, p1 = base - sign * w1, q0 = turn * v0, q1 = turn * v1;
  return {{area, upright ? p : q, upright ? q : p},
          {upright ? p0 : q0, upright ? p1 : q1},
          {upright ? q0 : p0, upright ? q1 : p1}};
}

}  // namespace diffrender
