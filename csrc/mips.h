// Mip levels of textures of any size: the mean over the area that each coarser texel covers.
//
// Along an axis of n texels the next level has m = max(1, n / 2). Where n = 2 m, a texel is the mean of two. Where
// n = 2 m + 1 > 1, texel i covers 2 + 1/m finer ones: 2i, 2i + 1 and 2i + 2 with the weights (m - i)/n, m/n, (i + 1)/n.
// They add to 1, so a constant stays constant, and every finer texel gives m/n in all, so the mean stays the mean.
#pragma once

#include "core/portable.h"

namespace diffrender {

// The finer texels under a coarser one, and the coarser ones over a finer one.
template <class scalar_t>
struct MipAxis {
  int32_t first, count;
  scalar_t weight[3];

  DR_HD static MipAxis finer(int32_t i, int32_t n) {
    if (n == 1) return {0, 1, {1, 0, 0}};
    const int32_t m = n / 2;
    if (n % 2 == 0) return {2 * i, 2, {scalar_t(0.5), scalar_t(0.5), 0}};
    const scalar_t size = static_cast<scalar_t>(n);
    return {2 * i, 3, {(m - i) / size, m / size, (i + 1) / size}};
  }

  DR_HD static MipAxis coarser(int32_t j, int32_t n) {
    if (n == 1) return {0, 1, {1, 0, 0}};
    const int32_t m = n / 2, k = j / 2;
    if (n % 2 == 0) return {k, 1, {scalar_t(0.5), 0, 0}};
    const scalar_t size = static_cast<scalar_t>(n);
    if (j % 2 == 1) return {k, 1, {m / size, 0, 0}};
    if (k == 0) return {0, 1, {m / size, 0, 0}};
    if (k == m) return {m - 1, 1, {m / size, 0, 0}};
    return {k - 1, 2, {k / size, (m - k) / size, 0}};
  }
};

// The rows of a level, of all items and faces; on the GPU, where neighbouring threads should have neighbouring texels,
// every texel by itself.
struct MipRows {
  int32_t faces, rows, columns;
  bool by_texel;

  int64_t count(int64_t items) const { return items * faces * rows * (by_texel ? columns : 1); }

  // body(item, face, row, first column, column behind the last)
  template <class F>
  DR_HD void for_each(int64_t begin, int64_t end, const F& body) const {
    for (int64_t index = begin; index < end; ++index) {
      const int64_t line = by_texel ? index / columns : index, face = line / rows, item = face / faces;
      const int32_t first = by_texel ? static_cast<int32_t>(index - line * columns) : 0;
      body(item, static_cast<int32_t>(face - item * faces), static_cast<int32_t>(line - face * rows), first,
           by_texel ? first + 1 : columns);
    }
  }
};

// One level from the one before it, over the rows of all items and faces.
template <class scalar_t>
struct MipForward {
  const scalar_t* fine;  // rows of `width` texels; item i starts at i * fine_stride
  scalar_t* coarse;
  int64_t fine_stride, coarse_stride;
  int32_t height, width, channels;  // of the finer level
  MipRows out_rows;                 // of the coarser one

  DR_HD void operator()(int64_t begin, int64_t end) const {
    out_rows.for_each(begin, end, [&](int64_t item, int32_t face, int32_t row, int32_t first, int32_t last) {
      const auto y = MipAxis<scalar_t>::finer(row, height);
      const scalar_t* const from =
          fine + item * fine_stride + (static_cast<int64_t>(face) * height + y.first) * width * channels;
      const int64_t line = static_cast<int64_t>(face) * out_rows.rows + row;
      scalar_t* out = coarse + item * coarse_stride + (line * out_rows.columns + first) * channels;
      for (int32_t column = first; column < last; ++column) {
        const auto x = MipAxis<scalar_t>::finer(column, width);
        const scalar_t* const corner = from + static_cast<int64_t>(x.first) * channels;
        for (int32_t c = 0; c < channels; ++c) {
          scalar_t sum = 0;
          for (int32_t j = 0; j < y.count; ++j) {
            scalar_t across = 0;
            for (int32_t i = 0; i < x.count; ++i) {
              across += x.weight[i] * corner[(static_cast<int64_t>(j) * width + i) * channels + c];
            }
            sum += y.weight[j] * across;
          }
          *out++ = sum;
        }
      }
    });
  }
};

// The transpose, gathered by the finer texels: fine = own + sum of weight * coarse. From the last level up to the base
// this pulls the gradients of all levels back to the base.
template <class scalar_t>
struct MipBackward {
  const scalar_t* coarse;  // rows of texels, as above
  const scalar_t* own;     // gradient that the finer level has by itself, like `coarse` with its stride, or null
  scalar_t* fine;
  int64_t coarse_stride, own_stride, fine_stride;
  int32_t channels;
  MipRows out_rows;  // of the finer level

  DR_HD void operator()(int64_t begin, int64_t end) const {
    const int32_t height = out_rows.rows, width = out_rows.columns;
    const int32_t rows = height > 1 ? height / 2 : 1, columns = width > 1 ? width / 2 : 1;
    out_rows.for_each(begin, end, [&](int64_t item, int32_t face, int32_t row, int32_t first, int32_t last) {
      const auto y = MipAxis<scalar_t>::coarser(row, height);
      const scalar_t* const from =
          coarse + item * coarse_stride + (static_cast<int64_t>(face) * rows + y.first) * columns * channels;
      const int64_t start = ((static_cast<int64_t>(face) * height + row) * width + first) * channels;
      scalar_t* out = fine + item * fine_stride + start;
      const scalar_t* kept = own == nullptr ? nullptr : own + item * own_stride + start;
      for (int32_t column = first; column < last; ++column) {
        const auto x = MipAxis<scalar_t>::coarser(column, width);
        const scalar_t* const corner = from + static_cast<int64_t>(x.first) * channels;
        for (int32_t c = 0; c < channels; ++c, ++out) {
          scalar_t sum = 0;
          for (int32_t j = 0; j < y.count; ++j) {
            for (int32_t i = 0; i < x.count; ++i) {
              sum += y.weight[j] * x.weight[i] * corner[(static_cast<int64_t>(j) * columns + i) * channels + c];
            }
          }
          *out = kept == nullptr ? sum : *kept++ + sum;
        }
      }
    });
  }
};

}  // namespace diffrender
