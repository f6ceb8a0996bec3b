// Edge walk, part 8: visibility "exact" for the GPU. Lists of pieces, sorted by pixel, would make the host wait for
// their lengths. Here the thread that found a piece asks by itself, and looks for the triangles whose box has the pixel
// in a tree of boxes, whose size the host knows: eight nodes of a level make one of the next, and the triangles lie
// along a Z-curve through the middles of their boxes.
#pragma once

#include "segments_exact.h"

namespace diffrender {

constexpr int kTreeShift = 3;  // log2 of the children of a node

struct TriangleTree {
  const PixelBox* nodes;   // [B, nodes_per_item] level by level, triangles first; null: visibility "window"
  const int32_t* leaves;   // [B, T] triangle of each node of level 0
  int64_t nodes_per_item;  // the last one is the root
  int32_t triangles;       // T
  int32_t levels;

  DR_HD bool given() const { return nodes != nullptr; }
  DR_HD static int64_t parents(int64_t nodes) { return (nodes + (1 << kTreeShift) - 1) >> kTreeShift; }
  DR_HD int64_t nodes_of(int32_t level) const {
    const int32_t shift = kTreeShift * level;
    return (triangles + (int64_t(1) << shift) - 1) >> shift;
  }

  // body(triangle) for the triangles of an item whose box has a pixel, until one of the calls gives false.
  template <class F>
  DR_HD void visit(int64_t item, int32_t column, int32_t row, const F& body) const {
    int32_t level = levels - 1;
    int64_t first = item * nodes_per_item + nodes_per_item - 1, node = 0;  // `first` of the level
    while (level < levels) {
      const PixelBox box = nodes[first + node];
      if (column >= box.column_begin && column < box.column_end && row >= box.row_begin && row < box.row_end) {
        if (level > 0) {
          first -= nodes_of(--level);
          node <<= kTreeShift;
          continue;
        }
        if (!body(leaves[item * triangles + node])) return;
      }
      ++node;
      // After the last of its siblings a node's parent is done.
      while (level < levels && ((node & ((1 << kTreeShift) - 1)) == 0 || node >= nodes_of(level))) {
        first += nodes_of(level++);
        node = parents(node);
      }
    }
  }

  // `segment` is null for a piece of a crossing, of which nothing but `hidden` is asked.
  DR_HD_CALL ExactQuery ask(const SegmentMesh& in, const EdgePiece& piece, const EdgeSegment* segment) const {
    ExactQuery query = make_query(in, piece, segment);
    const int64_t width = in.viewport.width, size = width * in.viewport.height;
    const int64_t item = piece.pixel / size, within = piece.pixel - item * size;
    const int32_t row = static_cast<int32_t>(within / width), column = static_cast<int32_t>(within - row * width);
    visit(item, column, row, [&](int32_t triangle) {
      ScreenFace face;
      if (is_own(in, piece, segment, triangle) || !in.face(item, triangle, {column + 0.5, row + 0.5}, &face))
        return true;
      query.hidden = hides(face, piece, query) ? 1 : 0;
      uint64_t key;
      if (query.hidden != 0 || segment == nullptr || !shows_beyond(face, query, &key)) return query.hidden == 0;
      const uint32_t index = static_cast<uint32_t>(triangle);
      if (key < query.depth || (key == query.depth && index < query.back)) {
        query.depth = key;
        query.back = index;
      }
      return true;
    });
    return query;
  }

  // False if a piece is hidden or has no colours. A piece of an edge gets its colours.
  DR_HD_CALL bool finish(const PieceFinder& finder, const EdgeSegment& segment, EdgePiece* piece) const {
    const ExactQuery query = ask(finder.in, *piece, &segment);
    return query.hidden == 0 && finish_piece(finder, segment, query.back, piece);
  }
};

// Where the triangles lie along the curve; those that draw nothing come last.
struct CurvePlaces {
  const PixelBox* boxes;  // [B, T]
  int64_t* keys;          // [B, T] item, then place
  int32_t triangles, width, height;

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for_each_index(begin, end, triangles, [&](int64_t i, int64_t item) {
      const PixelBox box = boxes[i];
      // 16 bits each; a box ends no further right than at the width.
      const double x = 32767.5 * (box.column_begin + static_cast<double>(box.column_end)) / width;
      const double y = 32767.5 * (box.row_begin + static_cast<double>(box.row_end)) / height;
      const uint32_t place = box.empty() ? 0xffffffffu : spread(x) | spread(y) << 1;
      keys[i] = item << 32 | static_cast<int64_t>(place);
    });
  }

  // Bit k goes to bit 2 k.
  DR_HD static uint32_t spread(double value) {
    uint32_t bits = static_cast<uint32_t>(value);
    bits = (bits | bits << 8) & 0x00ff00ffu;
    bits = (bits | bits << 4) & 0x0f0f0f0fu;
    bits = (bits | bits << 2) & 0x33333333u;
    return (bits | bits << 1) & 0x55555555u;
  }
};

struct TreeLeaves {
  const PixelBox* boxes;  // [B, T]
  const int64_t* order;   // [B, T] sorted by CurvePlaces
  PixelBox* nodes;        // [B, nodes_per_item]
  int32_t* leaves;        // [B, T]
  int64_t nodes_per_item;
  int32_t triangles;

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for_each_index(begin, end, triangles, [&](int64_t i, int64_t item) {
      nodes[item * nodes_per_item + (i - item * triangles)] = boxes[order[i]];
      leaves[i] = static_cast<int32_t>(order[i] - item * triangles);
    });
  }
};

// The smallest boxes around those of the level below.
struct TreeLevel {
  PixelBox* nodes;  // [B, nodes_per_item]
  int64_t nodes_per_item, first_below, count_below;

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for_each_index(begin, end, TriangleTree::parents(count_below), [&](int64_t i, int64_t item) {
      const int64_t node = i - item * TriangleTree::parents(count_below), first = node << kTreeShift;
      const PixelBox* const below = nodes + item * nodes_per_item + first_below;
      PixelBox box = {0, 0, 0, 0};
      for (int64_t k = first; k < first + (1 << kTreeShift) && k < count_below; ++k) {
        if (below[k].empty()) continue;
        box = box.empty()
                  ? below[k]
                  : PixelBox{minimum(box.column_begin, below[k].column_begin),
                             maximum(box.column_end, below[k].column_end), minimum(box.row_begin, below[k].row_begin),
                             maximum(box.row_end, below[k].row_end)};
      }
      nodes[item * nodes_per_item + first_below + count_below + node] = box;
    });
  }
};

}  // namespace diffrender
