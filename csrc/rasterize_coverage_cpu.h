// Integer coverage for the CPU rasterizer: the edge functions of rasterize_geometry.h for blocks of centres (tiny and
// narrow triangles, in 32 bits) and as exact spans of a row (all others).
#pragma once

#include <algorithm>

#include "core/lanes.h"
#include "rasterize_geometry.h"

namespace diffrender {

constexpr int32_t kSmallExtent = 64 * kSubpixels;  // edge functions of a triangle this small fit 32 bits
constexpr int32_t kTinySide = 4;                   // centres across and down
constexpr int32_t kHitColumnBits = 22;

// A centre that a tiny triangle covers.
struct Hit {
  int32_t triangle;
  uint32_t place;  // row within the band << kHitColumnBits | column
};

// Edge functions of a small triangle at its first centre, and their growth per column and row.
struct SmallEdges {
  int32_t value[3], column[3], row[3];

  DR_HD explicit SmallEdges(const ScreenTriangle& t) {
    const int32_t px = t.column_begin * kSubpixels + kSubpixels / 2, py = t.row_begin * kSubpixels + kSubpixels / 2;
    for (int k = 0; k < 3; ++k) {
      const int next = k == 2 ? 0 : k + 1;
      const int32_t dx = t.x[next] - t.x[k], dy = t.y[next] - t.y[k];
      value[k] = dx * (py - t.y[k]) - dy * (px - t.x[k]) - (owns_samples_on_edge(dx, dy) ? 0 : 1);
      column[k] = -dy * kSubpixels;
      row[k] = dx * kSubpixels;
    }
  }
};

DR_HD bool is_small(const ScreenTriangle& t) {
  return maximum(t.x[0], t.x[1], t.x[2]) - minimum(t.x[0], t.x[1], t.x[2]) <= kSmallExtent &&
         maximum(t.y[0], t.y[1], t.y[2]) - minimum(t.y[0], t.y[1], t.y[2]) <= kSmallExtent;
}

DR_HD bool is_tiny(const ScreenTriangle& t) {
  return t.column_end - t.column_begin <= kTinySide && t.row_end - t.row_begin <= kTinySide && is_small(t);
}

// Calls body(column, row) for the centres that a tiny triangle covers.
template <class F>
DR_HD void for_each_tiny_hit(const ScreenTriangle& t, const F& body) {
  const SmallEdges e(t);
  // Two rows of four centres in one block of lanes.
  constexpr IntLanes kAcross = {0, 1, 2, 3, 0, 1, 2, 3}, kDown = {0, 0, 0, 0, 1, 1, 1, 1};
  const int32_t rows = t.row_end - t.row_begin;
  const IntLanes in_columns = kAcross < t.column_end - t.column_begin;
  IntLanes e0 = e.value[0] + e.column[0] * kAcross + e.row[0] * kDown;
  IntLanes e1 = e.value[1] + e.column[1] * kAcross + e.row[1] * kDown;
  IntLanes e2 = e.value[2] + e.column[2] * kAcross + e.row[2] * kDown;
  for (int32_t down = 0; down < rows; down += 2) {
    uint32_t hits = lane_bits(((e0 | e1 | e2) >= 0) & in_columns & (kDown < rows - down));
    for (; hits != 0; hits &= hits - 1) {
      const int32_t lane = __builtin_ctz(hits);
      body(t.column_begin + (lane & 3), t.row_begin + down + (lane >> 2));
    }
    e0 += 2 * e.row[0];
    e1 += 2 * e.row[1];
    e2 += 2 * e.row[2];
  }
}

// One edge of a triangle as a bound on the columns of a row: exact floor division, carried from row to row.
template <class Integer>
struct SpanEdge {
  Integer quotient, remainder, step_quotient, step_remainder, divisor;
  int32_t dy;

  static Integer floor_divide(Integer a, Integer b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

  // The edge function is value - (column - column_begin) * 256 dy, and value grows by 256 dx from row to row.
  SpanEdge(const ScreenTriangle& t, int k) {
    const int next = k == 2 ? 0 : k + 1;
    dy = t.y[next] - t.y[k];
    const Integer value = static_cast<Integer>(edge_function(t, k, t.column_begin, t.row_begin));
    const Integer step = static_cast<Integer>(t.x[next] - t.x[k]) * kSubpixels;
    divisor = dy == 0 ? 1 : static_cast<Integer>(dy < 0 ? -dy : dy) * kSubpixels;
    quotient = floor_divide(value, divisor);
    remainder = value - quotient * divisor;
    step_quotient = floor_divide(step, divisor);
    step_remainder = step - step_quotient * divisor;
  }

  // Narrows [*first, *last], columns relative to column_begin.
  void bound(Integer* first, Integer* last) const {
    if (dy > 0) {
      *last = std::min(*last, quotient);
    } else if (dy < 0) {
      *first = std::max(*first, static_cast<Integer>(-quotient));
    } else if (quotient < 0) {
      *last = -1;
    }
  }

  void next_row() {
    quotient += step_quotient;
    remainder += step_remainder;
    if (remainder >= divisor) {
      remainder -= divisor;
      ++quotient;
    }
  }
};

}  // namespace diffrender
