// Which triangles touch which pixel: conservative rasterization in three steps, box, count and fill.
//
// A triangle is a candidate of a pixel where the pixel reaches over all of its three edge lines (and its box). That may
// take in a pixel too many, which the exact clipping then drops, but never one too few. The lists are in CSR form: the
// candidates of pixel p are candidates[offsets[p] ... offsets[p + 1]), in the order of the triangle index.
#pragma once

#include "coverage_geometry.h"

namespace diffrender {

// Pixels (or parts of a pixel) by which boxes and edges are widened: more than rounding, less than matters.
constexpr double kCandidateMargin = 1e-6;

// Half-open box of pixels.
struct PixelBox {
  int32_t column_begin, column_end, row_begin, row_end;

  DR_HD bool empty() const { return column_begin >= column_end || row_begin >= row_end; }
};

// Pixel box and record of each triangle of each item; the box is empty where it draws nothing.
struct CoverageSetup {
  RasterMesh<double> mesh;
  Viewport<double> viewport;
  PixelBox* boxes;          // [B, T]
  TriangleRecord* records;  // [B, T]
  DepthRange* ranges;       // [B, T] or null

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for_each_index(begin, end, mesh.triangle_count, [&](int64_t i, int64_t item) {
      const PixelBox box = make(item, static_cast<int32_t>(i - item * mesh.triangle_count), &records[i]);
      boxes[i] = box;
      if (ranges == nullptr) return;
      ranges[i] = box.empty()
                      ? DepthRange{0, 0, 0}
                      : DepthRange::of(records[i], box.column_end - box.column_begin, box.row_end - box.row_begin);
    });
  }

  // Writes the record of a triangle and returns its box.
  DR_HD PixelBox make(int64_t item, int32_t triangle, TriangleRecord* record) const {
    const PixelBox nothing = {0, 0, 0, 0};
    *record = TriangleRecord{};
    int32_t first, count, index[3];
    mesh.range(item, &first, &count);
    if (triangle < first || triangle - first >= count || !mesh.indices(triangle, index)) return nothing;
    Vec4<double> v[3];
    bool whole = true;
    for (int k = 0; k < 3; ++k) {
      v[k] = mesh.vertex(item, index[k]);
      if (!is_finite(v[k])) return nothing;
      whole = whole && v[k].w > 0 && magnitude(v[k].z) <= v[k].w;
    }
    const PixelBox box = box_of(v, whole);
    if (box.empty()) return nothing;
    record->column = box.column_begin;
    record->row = box.row_begin;
    record->valid = record->make(v, LocalFrame::make(viewport, box.column_begin, box.row_begin),
                                 box.column_end - box.column_begin, box.row_end - box.row_begin);
    return record->valid ? box : nothing;
  }

  DR_HD PixelBox box_of(const Vec4<double> v[3], bool whole) const {
    const PixelBox nothing = {0, 0, 0, 0};
    Vec4<double> polygon[6], next[6];
    int count = 3;
    for (int k = 0; k < 3; ++k) polygon[k] = {v[k].x, v[k].y, v[k].z, v[k].w};
    // v points down on the screen, so that a positive determinant runs clockwise there: a back face.
    const Vec3<double> a = {polygon[0].x, -polygon[0].y, polygon[0].w};
    const Vec3<double> b = {polygon[1].x, -polygon[1].y, polygon[1].w};
    const Vec3<double> c = {polygon[2].x, -polygon[2].y, polygon[2].w};
    const double determinant = dot(a, cross(b, c));
    if ((determinant > 0 && mesh.cull == Cull::back) || (determinant < 0 && mesh.cull == Cull::front)) return nothing;
    for (int plane = 0; plane < 2 && !whole; ++plane) {
      int kept = 0;
      for (int k = 0; k < count; ++k) {
        const Vec4<double> p = polygon[k], q = polygon[k + 1 == count ? 0 : k + 1];
        const double dp = plane_distance(p, plane, 0), dq = plane_distance(q, plane, 0);
        if (dp >= 0 && kept < 6) next[kept++] = p;
        if ((dp >= 0) == (dq >= 0) || kept == 6) continue;
        const double t = dp / (dp - dq);
        next[kept++] = {p.x + t * (q.x - p.x), p.y + t * (q.y - p.y), p.z + t * (q.z - p.z), p.w + t * (q.w - p.w)};
      }
      count = kept;
      for (int k = 0; k < count; ++k) polygon[k] = next[k];
    }
    if (count < 3) return nothing;
    const double width = viewport.width, height = viewport.height;
    double low_x = width, high_x = 0, low_y = height, high_y = 0;
    for (int k = 0; k < count; ++k) {
      if (!(polygon[k].w > 0)) return {0, viewport.width, 0, viewport.height};  // reaches the plane of the eye
      const double x = (polygon[k].x / polygon[k].w + 1) * (0.5 * width);
      const double y = (1 - polygon[k].y / polygon[k].w) * (0.5 * height);
      low_x = x < low_x ? x : low_x;
      high_x = x > high_x ? x : high_x;
      low_y = y < low_y ? y : low_y;
      high_y = y > high_y ? y : high_y;
    }
    if (!(high_x > 0 && low_x < width && high_y > 0 && low_y < height)) return nothing;
    return {first_pixel(low_x), past_last_pixel(high_x, viewport.width), first_pixel(low_y),
            past_last_pixel(high_y, viewport.height)};
  }

  DR_HD static int32_t first_pixel(double low) {
    const double widened = low - kCandidateMargin;
    return widened > 0 ? static_cast<int32_t>(widened) : 0;
  }

  DR_HD static int32_t past_last_pixel(double high, int32_t size) {
    const double widened = high + kCandidateMargin;
    return widened < size ? static_cast<int32_t>(widened) + 1 : size;
  }
};

// Calls visit(row, first column, last column) for the pixels within `part`, a part of the triangle's box, that the
// triangle touches: in each row one run, which ends where the row leaves a side. Rounding of the ends is far below the
// margin.
template <class Visit>
DR_HD void for_each_touched_run(const TriangleRecord& record, const PixelBox& part, const Visit& visit) {
  Line side[3];
  double inverse[3];
  for (int k = 0; k < 3; ++k) {
    side[k] = record.side[k].moved(part.column_begin - record.column, part.row_begin - record.row);
    side[k].c += side[k].reach() + kCandidateMargin;
    inverse[k] = 1 / side[k].x;
  }
  const double last_column = part.column_end - part.column_begin - 1;
  for (int32_t row = 0; row < part.row_end - part.row_begin; ++row) {
    double first = 0, last = last_column;
    for (int k = 0; k < 3; ++k) {
      const double value = side[k].y * row + side[k].c, zero = -value * inverse[k];
      first = side[k].x > 0 && zero > first ? zero : first;
      last = side[k].x < 0 && zero < last ? zero : last;
      last = side[k].x == 0 && value < 0 ? -1.0 : last;
    }
    if (!(first <= last)) continue;
    int32_t u = static_cast<int32_t>(first);
    u += u < first ? 1 : 0;
    const int32_t end = static_cast<int32_t>(last);
    if (u <= end) visit(part.row_begin + row, part.column_begin + u, part.column_begin + end);
  }
}

// Counts, or with `candidates` fills in, the triangles of each pixel. For the GPU; the CPU goes by coverage_cpu.h.
struct CoverageCandidates {
  const PixelBox* boxes;          // [B, T]
  const TriangleRecord* records;  // [B, T]
  int64_t* counts;                // [B, H, W] count: triangles so far; fill: where the next one goes
  int32_t* candidates;            // [capacity] or null to count
  int64_t capacity;               // what comes after so many is left out
  int32_t triangle_count, width, height;

  DR_HD void add(int64_t item, int32_t triangle, const PixelBox& part) const {
    for_each_touched_run(records[item * triangle_count + triangle], part, [&](int32_t row, int32_t u, int32_t last) {
      const int64_t pixel = (item * height + row) * width;
      for (; u <= last; ++u) {
        const int64_t place = static_cast<int64_t>(atomic_add(reinterpret_cast<uint64_t*>(counts + pixel + u), 1));
        if (candidates != nullptr && place < capacity) candidates[place] = triangle;
      }
    });
  }
};

constexpr int32_t kBlockSide = 16;  // pixels

DR_HD int64_t blocks_of(const PixelBox& box) {
  if (box.empty()) return 0;
  return static_cast<int64_t>((box.column_end - box.column_begin + kBlockSide - 1) / kBlockSide) *
         ((box.row_end - box.row_begin + kBlockSide - 1) / kBlockSide);
}

struct CoverageBlockCount {
  const PixelBox* boxes;  // [B, T]
  int64_t* blocks;        // [B, T]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) blocks[i] = blocks_of(boxes[i]);
  }
};

// On the GPU: blocks of 16 x 16 pixels of the triangles' boxes, so that no thread walks over a large one. Only the
// device knows how many there are: thread i takes blocks i, i + threads, ...
struct CoverageBlocks {
  CoverageCandidates kernel;
  const int64_t* block_offsets;  // [B T + 1] first block of each triangle of each item
  int64_t triangles;             // B T
  int64_t threads;

  DR_HD void operator()(int64_t begin, int64_t end) const {
    const int64_t blocks = block_offsets[triangles];
    for (int64_t thread = begin; thread < end; ++thread) {
      for (int64_t block = thread; block < blocks; block += threads) add_block(block);
    }
  }

  DR_HD void add_block(int64_t block) const {
    int64_t low = 0, high = triangles;  // the last triangle whose first block is at or before this one
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (block_offsets[middle] <= block ? low : high) = middle;
    }
    const PixelBox box = kernel.boxes[low];
    const int32_t columns = (box.column_end - box.column_begin + kBlockSide - 1) / kBlockSide;
    const int32_t within = static_cast<int32_t>(block - block_offsets[low]);
    const int32_t column = box.column_begin + within % columns * kBlockSide;
    const int32_t row = box.row_begin + within / columns * kBlockSide;
    const PixelBox part = {column, minimum(column + kBlockSide, box.column_end), row,
                           minimum(row + kBlockSide, box.row_end)};
    const int64_t item = low / kernel.triangle_count;
    kernel.add(item, static_cast<int32_t>(low - item * kernel.triangle_count), part);
  }
};

// Where the first candidate of each pixel goes.
struct CoveragePlaces {
  const int64_t* offsets;  // [P + 1]
  int64_t* places;         // [P]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) places[i] = offsets[i];
  }
};

// Atomics fill the lists in any order: sort each, so that results do not depend on it. Long ones by a heap: a mesh far
// away has all of its triangles in a few pixels.
struct CoverageSort {
  static constexpr int64_t kShort = 24;

  const int64_t* offsets;  // [P + 1]
  int32_t* candidates;     // [N]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t pixel = begin; pixel < end; ++pixel) {
      const int64_t count = offsets[pixel + 1] - offsets[pixel];
      int32_t* const list = candidates + offsets[pixel];
      if (count <= kShort) {
        by_insertion(list, count);
      } else {
        by_heap(list, count);
      }
    }
  }

  DR_HD static void by_insertion(int32_t* list, int64_t count) {
    for (int64_t i = 1; i < count; ++i) {
      const int32_t moving = list[i];
      int64_t place = i;
      for (; place > 0 && list[place - 1] > moving; --place) list[place] = list[place - 1];
      list[place] = moving;
    }
  }

  DR_HD static void by_heap(int32_t* list, int64_t count) {
    for (int64_t root = count / 2 - 1; root >= 0; --root) sift(list, root, count);
    for (int64_t last = count - 1; last > 0; --last) {
      const int32_t largest = list[0];
      list[0] = list[last];
      list[last] = largest;
      sift(list, 0, last);
    }
  }

  // Moves the root down until no child is larger.
  DR_HD static void sift(int32_t* list, int64_t root, int64_t count) {
    const int32_t moving = list[root];
    for (int64_t child = 2 * root + 1; child < count; child = 2 * root + 1) {
      if (child + 1 < count && list[child + 1] > list[child]) ++child;
      if (list[child] <= moving) break;
      list[root] = list[child];
      root = child;
    }
    list[root] = moving;
  }
};

}  // namespace diffrender
