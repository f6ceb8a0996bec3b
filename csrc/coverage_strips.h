// Strips of a few rows, by which the CPU goes from triangles to fragments: their triangles, and what they show.
#pragma once

#include <memory>
#include <vector>

#include "core/launch.h"
#include "coverage_lists.h"

namespace diffrender {

constexpr int64_t kStripRows = 8;

// Triangles of each strip of each item, ascending.
struct CoverageStrips {
  int64_t per_item;              // strips
  std::vector<int64_t> offsets;  // [B * strips + 1]
  std::unique_ptr<int32_t[]> triangles;

  CoverageStrips(const PixelBox* boxes, int64_t batch, int64_t triangle_count, int64_t height)
      : per_item((height + kStripRows - 1) / kStripRows), offsets(batch * per_item + 1, 0) {
    const int64_t chunks = (triangle_count + kItemsPerPiece - 1) / kItemsPerPiece;
    // First the number of triangles that each chunk has in each strip, then where the next of them goes.
    std::vector<int64_t> places(batch * per_item * chunks, 0);
    const auto visit_all = [&](const auto& body) {
      parallel_tasks(batch * chunks, [&](int64_t task) {
        const int64_t item = task / chunks, chunk = task % chunks, begin = chunk * kItemsPerPiece;
        for (int64_t t = begin; t < std::min(triangle_count, begin + kItemsPerPiece); ++t) {
          const PixelBox& box = boxes[item * triangle_count + t];
          if (box.empty()) continue;
          for (int64_t s = box.row_begin / kStripRows; s <= (box.row_end - 1) / kStripRows; ++s)
            body(t, &places[(item * per_item + s) * chunks + chunk]);
        }
      });
    };
    visit_all([](int64_t, int64_t* count) { ++*count; });
    int64_t sum = 0;
    for (int64_t strip = 0; strip < batch * per_item; ++strip) {
      offsets[strip] = sum;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t count = places[strip * chunks + chunk];
        places[strip * chunks + chunk] = sum;
        sum += count;
      }
    }
    offsets.back() = sum;
    triangles.reset(new int32_t[sum]);
    visit_all([&](int64_t t, int64_t* place) { triangles[(*place)++] = static_cast<int32_t>(t); });
  }
};

// An array of float or double that is written.
struct FloatOutput {
  void* values;
  bool is_double;

  void set(int64_t i, double value) const {
    if (is_double) {
      static_cast<double*>(values)[i] = value;
    } else {
      static_cast<float*>(values)[i] = static_cast<float>(value);
    }
  }
};

// Fragments of one strip, pixel by pixel.
struct StripFragments {
  std::unique_ptr<uint8_t[]> memory;
  std::unique_ptr<int32_t[]> counts;  // [pixels of the strip], null where there are none
  int64_t capacity = 0, count = 0;
  int64_t longest = 0;  // list of candidates
  bool is_double = true;

  int64_t float_bytes() const { return is_double ? 8 : 4; }

  void reserve(int64_t fragments) {
    capacity = fragments;
    memory.reset(new uint8_t[fragments * (4 * float_bytes() + 5)]);
  }

  // The arrays lie in the memory one after the other.
  FloatOutput weight() const { return {memory.get(), is_double}; }
  FloatOutput depth() const { return {memory.get() + capacity * float_bytes(), is_double}; }
  FloatOutput barycentrics() const { return {memory.get() + 2 * capacity * float_bytes(), is_double}; }
  int32_t* triangles() const { return reinterpret_cast<int32_t*>(memory.get() + 4 * capacity * float_bytes()); }
  FragmentKind* kinds() const { return reinterpret_cast<FragmentKind*>(triangles() + capacity); }

  void append(int32_t triangle, FragmentKind kind, double w, double b0, double b1, double d) {
    triangles()[count] = triangle;
    kinds()[count] = kind;
    weight().set(count, w);
    depth().set(count, d);
    barycentrics().set(2 * count, b0);
    barycentrics().set(2 * count + 1, b1);
    ++count;
  }
};

}  // namespace diffrender
