// From triangles to fragments on the CPU: pixels inside of a smooth surface that show two triangles, four at once.
//
// That is the second most frequent kind of pixel, and what StripWorker::append_star does for one of them is a long
// chain of operations, each of which waits for the one before.
#pragma once

#include "coverage_lanes.h"
#include "coverage_strips.h"

namespace diffrender {

// Pixels whose fragments have their places, but no values yet.
class PairPixels {
 public:
  // Where a triangle reaches this far into a pixel (in pixels), it shows more than what is left out as rounding.
  static constexpr double kLeastReach = 1e-6;

  // A pixel that is not at the frame's own border. `other` lies beyond its side of that name, `center` has the rest.
  // Their fragments are numbers place and place + 1, in the order of the triangles.
  void add(const TriangleRecord& other, int side, const TriangleRecord& center, bool other_first, int32_t column,
           int32_t row, StripFragments* out, int64_t place) {
    record_[0][count_] = &other;
    record_[1][count_] = &center;
    side_[count_] = side;
    column_[count_] = column;
    row_[count_] = row;
    place_[0][count_] = place + (other_first ? 0 : 1);
    place_[1][count_] = place + (other_first ? 1 : 0);
    if (++count_ == 4) finish(out);
  }

  [[gnu::noinline]] void finish(StripFragments* out) {
    if (count_ == 0) return;
    for (int l = count_; l < 4; ++l) {  // copies of the last one
      for (int n = 0; n < 2; ++n) {
        record_[n][l] = record_[n][l - 1];
        place_[n][l] = place_[n][l - 1];
      }
      side_[l] = side_[l - 1];
      column_[l] = column_[l - 1];
      row_[l] = row_[l - 1];
    }
    count_ = 0;
    const PixelSquare one = PixelSquare::make(1, 1, 3, 3);
    const Four zero = {};
    const PixelSquareOf<Four> square = {zero + one.left, zero + one.right, zero + one.top, zero + one.bottom};
    const FourTriangles other = triangles(0);
    const FourMask first = side_ == 0, second = side_ == 1;
    const auto of_side = [&](auto part) {
      return first ? part(other.side[0]) : (second ? part(other.side[1]) : part(other.side[2]));
    };
    const FourLine line = {of_side([](const FourLine& s) { return s.x; }),
                           of_side([](const FourLine& s) { return s.y; }),
                           of_side([](const FourLine& s) { return s.c; })};
    const MomentsOf<Four> half = half_square(square, line).moments;
    write(other, half, square.area(), place_[0], out);
    write(triangles(1), square.moments().minus(half), square.area(), place_[1], out);
  }

 private:
  FourTriangles triangles(int n) const {
    Four u, v;
    for (int l = 0; l < 4; ++l) {
      u[l] = column_[l] - record_[n][l]->column;
      v[l] = row_[l] - record_[n][l]->row;
    }
    return FourTriangles::load([&](int l) -> const TriangleRecord& { return *record_[n][l]; }, u, v);
  }

  // Shown::of.
  static void write(const FourTriangles& of, const MomentsOf<Four>& m, const Four& pixel_area, const int64_t place[4],
                    StripFragments* out) {
    const Four zero = {}, one = zero + 1.0;
    const Four inverse_area = 1 / m.area, u = m.x * inverse_area, v = m.y * inverse_area;
    const Four e[3] = {of.slope[0] * of.side[0].at(u, v), of.slope[1] * of.side[1].at(u, v),
                       of.slope[2] * of.side[2].at(u, v)};
    const Four total = e[0] + e[1] + e[2];
    const Four inverse = magnitude(total) >= kSmallestNormal<double> ? 1 / total : zero;
    Four values[4] = {m.area < pixel_area ? m.area / pixel_area : one, e[0] * inverse, e[1] * inverse,
                      of.depth.at(u, v)};
    transpose_four(values);
    for (int l = 0; l < 4; ++l) out->set(place[l], values[l][0], values[l][1], values[l][2], values[l][3]);
  }

  int count_ = 0;
  const TriangleRecord* record_[2][4];  // of the other one and of the one at the centre
  FourMask side_;
  int32_t column_[4], row_[4];
  int64_t place_[2][4];
};

}  // namespace diffrender
