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

// What a strip keeps of a fragment until the number of all is known.
template <class T>
struct StripFragment {
  T weight, depth, barycentrics[2];
  int32_t triangle;
  FragmentKind kind;
};

// Memory of one worker for the fragments of its strips, one after the other, in blocks that stay where they are.
class FragmentBlocks {
 public:
  // Room for so many bytes, of which keep() says how many are used in the end.
  uint8_t* reserve(int64_t bytes) {
    if (blocks_.empty() || bytes > size_ - used_) {
      size_ = std::max(bytes, std::min(2 * kept_, kMostBytes));
      used_ = 0;
      blocks_.emplace_back(new uint8_t[size_]);
    }
    return blocks_.back().get() + used_;
  }

  void keep(int64_t bytes) {
    used_ += bytes;
    kept_ += bytes;
  }

 private:
  static constexpr int64_t kMostBytes = int64_t(8) << 20;  // of a block, but for one strip that needs more

  std::vector<std::unique_ptr<uint8_t[]>> blocks_;
  int64_t size_ = 0, used_ = 0, kept_ = 0;
};

// Fragments of one strip, pixel by pixel.
struct StripFragments {
  int64_t count = 0, candidates = 0;
  int64_t longest = 0;  // list of candidates
  bool is_double = true;
  void* memory = nullptr;

  template <class T>
  StripFragment<T>* values() const {
    return static_cast<StripFragment<T>*>(memory);
  }

  int64_t bytes_each() const {
    return static_cast<int64_t>(is_double ? sizeof(StripFragment<double>) : sizeof(StripFragment<float>));
  }

  void append(int32_t triangle, FragmentKind kind, double w, double b0, double b1, double d) {
    append(triangle, kind);
    set(count - 1, w, b0, b1, d);
  }

  // A fragment whose numbers come later.
  void append(int32_t triangle, FragmentKind kind) {
    const auto name = [&](auto* fragment) {
      fragment->triangle = triangle;
      fragment->kind = kind;
    };
    is_double ? name(values<double>() + count) : name(values<float>() + count);
    ++count;
  }

  void set(int64_t k, double w, double b0, double b1, double d) const {
    const auto fill = [&](auto* fragment) {
      using T = decltype(fragment->weight);
      fragment->weight = static_cast<T>(w);
      fragment->depth = static_cast<T>(d);
      fragment->barycentrics[0] = static_cast<T>(b0);
      fragment->barycentrics[1] = static_cast<T>(b1);
    };
    is_double ? fill(values<double>() + k) : fill(values<float>() + k);
  }
};

// The arrays of the result, from the place of the first fragment of a strip on.
template <class T>
struct FragmentOutput {
  int32_t* triangle;
  T *weight, *depth, *barycentrics;
  FragmentKind* kind;

  void copy(const StripFragment<T>* from, int64_t count) const {
    for (int64_t k = 0; k < count; ++k) {
      triangle[k] = from[k].triangle;
      weight[k] = from[k].weight;
      depth[k] = from[k].depth;
      barycentrics[2 * k] = from[k].barycentrics[0];
      barycentrics[2 * k + 1] = from[k].barycentrics[1];
      kind[k] = from[k].kind;
    }
  }
};

}  // namespace diffrender
