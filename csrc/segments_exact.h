// Edge walk, part 6: visibility "exact". What hides a piece, and what lies behind it, is asked of all triangles instead
// of those that show in the pixels around: an irregular z-buffer with one sample per piece.
//
// The pieces are found as before, so that those which the window knows to be hidden never come here. They are sorted by
// pixel; then every triangle looks for the pieces in the pixels of its box:
//   hidden   a triangle that is none of the edge's contains the middle m and is nearer there than the edge
//   behind   of the triangles that contain m + 1e-6 n (n points away from the edge's triangles) the nearest one, of
//            several in one place the lowest; found in two passes: first the depth, then who has it
// Passes only take minima and set flags, so their order does not matter. On the CPU a range of items is one band of
// rows of one item, which owns the pieces in it; on the GPU minima are atomic.
#pragma once

#include "coverage_candidates.h"
#include "segments_crossings.h"

namespace diffrender {

// What is asked about one piece, and what was found.
struct ExactQuery {
  double z;             // depth of the edge at m
  Vec2<double> beyond;  // m + 1e-6 n, relative to the pixel's centre
  uint64_t depth;       // smallest so far, as depth_key
  uint32_t back;        // triangle of that depth
  uint8_t hidden;
};

constexpr uint32_t kNobody = 0xffffffffu;

// Orders like the value.
DR_HD uint64_t depth_key(double value) {
  const uint64_t bits = double_bits(value);
  return bits >> 63 != 0 ? ~bits : bits | uint64_t(1) << 63;
}

struct TriangleBoxes {
  SegmentMesh in;
  PixelBox* boxes;  // [B, T]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for_each_index(begin, end, in.mesh.triangle_count, [&](int64_t i, int64_t item) {
      const int32_t triangle = static_cast<int32_t>(i - item * in.mesh.triangle_count);
      int32_t index[3];
      Vec4<double> v[3];
      boxes[i] = {0, 0, 0, 0};
      if (in.side(item, triangle) == 0 || !in.corners(item, triangle, index, v)) return;
      bool whole = true;
      for (int k = 0; k < 3; ++k) {
        if (!is_finite(v[k])) return;
        whole = whole && v[k].w > 0 && magnitude(v[k].z) <= v[k].w;
      }
      boxes[i] = CoverageSetup{in.mesh, in.viewport, nullptr, nullptr, nullptr}.box_of(v, whole);
    });
  }
};

// Where the pieces of each pixel begin among the sorted ones.
struct MarkSlots {
  const int64_t* keys;  // [count] sorted
  int32_t* slots;       // [B, H, W] 1 + the first; zero on entry

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      if (keys[i] != kNoPixel && (i == 0 || keys[i - 1] != keys[i])) slots[keys[i]] = static_cast<int32_t>(i) + 1;
    }
  }
};

struct MakeQueries {
  SegmentMesh in;
  PieceList list;
  const EdgeSegment* segments;  // null: crossings
  ExactQuery* queries;          // [count]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    const int64_t width = in.viewport.width, size = width * in.viewport.height;
    for (int64_t i = begin; i < end; ++i) {
      const EdgePiece& piece = list.at(i);
      ExactQuery query{0, {piece.x, piece.y}, ~uint64_t(0), kNobody, 0};
      if (piece.pixel >= 0) {
        const int64_t item = piece.pixel / size, within = piece.pixel - item * size, row = within / width;
        const Vec2<double> centre{within - row * width + 0.5, row + 0.5};
        ScreenFace face;
        if (segments != nullptr) {
          const EdgeSegment& segment = segments[piece.segment];
          const double dx = segment.stop.x - segment.start.x, dy = segment.stop.y - segment.start.y;
          const double x = centre.x + piece.x - segment.start.x, y = centre.y + piece.y - segment.start.y;
          const double t = (x * dx + y * dy) / (dx * dx + dy * dy);
          const Vec2<double> n = segment.outward();
          query.z = segment.start.z + t * (segment.stop.z - segment.start.z);
          query.beyond = {piece.x + 1e-6 * n.x, piece.y + 1e-6 * n.y};
        } else if (in.face(item, piece.first, centre, &face)) {
          query.z = face.depth.at({piece.x, piece.y});
        }
      }
      queries[i] = query;
    }
  }
};

struct ExactVisibility {
  SegmentMesh in;
  PieceList list;
  const EdgeSegment* segments;  // null: crossings
  const int64_t* keys;          // [count] sorted pixels
  const int64_t* order;         // [count] index into list
  const int32_t* slots;         // of MarkSlots
  const PixelBox* boxes;        // [B, T]
  ExactQuery* queries;          // [count]
  int32_t bands;                // of rows
  bool second_pass;

  // Items are (batch item, band, triangle).
  DR_HD void operator()(int64_t begin, int64_t end) const {
    for_each_index(begin, end, in.mesh.triangle_count, [&](int64_t i, int64_t line) {
      const int64_t item = line / bands, band = line - item * bands, height = in.viewport.height;
      const int32_t triangle = static_cast<int32_t>(i - line * in.mesh.triangle_count);
      PixelBox box = boxes[item * in.mesh.triangle_count + triangle];
      box.row_begin = maximum(box.row_begin, static_cast<int32_t>(band * height / bands));
      box.row_end = minimum(box.row_end, static_cast<int32_t>((band + 1) * height / bands));
      for (int32_t row = box.row_begin; row < box.row_end; ++row) {
        const int64_t first = (item * height + row) * in.viewport.width;
        for (int32_t column = box.column_begin; column < box.column_end; ++column) {
          const int32_t slot = slots[first + column];
          if (slot > 0) look(item, triangle, first + column, {column + 0.5, row + 0.5}, slot - 1);
        }
      }
    });
  }

  DR_HD_CALL void look(int64_t item, int32_t triangle, int64_t pixel, Vec2<double> centre, int64_t first) const {
    ScreenFace face;
    if (!in.face(item, triangle, centre, &face)) return;
    for (int64_t k = first; k < list.count && keys[k] == pixel; ++k) {
      const EdgePiece& piece = list.at(order[k]);
      ExactQuery& query = queries[order[k]];
      if (query.hidden != 0 && second_pass) continue;
      const bool own = segments != nullptr ? segments[piece.segment].is_incident(in, triangle)
                                           : triangle == piece.first || triangle == piece.second;
      if (own) continue;
      const Vec2<double> m{piece.x, piece.y};
      if (!second_pass && face.inside(m) >= -kInsideSlack) {
        const double depth = face.depth.at(m);
        if (depth < query.z - kDepthSlack && depth >= -1) set_flag(&query.hidden);
      }
      if (segments == nullptr || !(face.inside(query.beyond) >= 0)) continue;
      const double depth = face.depth.at(query.beyond);
      if (!(magnitude(depth) <= 1)) continue;
      if (!second_pass) {
        atomic_min(&query.depth, depth_key(depth));
      } else if (query.depth == depth_key(depth)) {
        atomic_min(&query.back, static_cast<uint32_t>(triangle));
      }
    }
  }
};

// Drops hidden pieces and gives the others their colours.
struct FinishPieces {
  PieceFinder finder;
  PieceList list;
  const EdgeSegment* segments;  // null: crossings, which have theirs
  const ExactQuery* queries;    // [count]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    const auto& viewport = finder.in.viewport;
    for (int64_t i = begin; i < end; ++i) {
      EdgePiece& piece = list.edit(i);
      if (piece.pixel < 0) continue;
      const ExactQuery& query = queries[i];
      if (query.hidden != 0) piece.pixel = -1;
      if (query.hidden != 0 || segments == nullptr) continue;
      const EdgeSegment& segment = segments[piece.segment];
      const int64_t size = static_cast<int64_t>(viewport.width) * viewport.height;
      const int64_t within = piece.pixel - segment.item * size;
      const int32_t row = static_cast<int32_t>(within / viewport.width);
      Window window;
      window.load_ids(viewport, finder.triangle_id, segment.item,
                      static_cast<int32_t>(within - static_cast<int64_t>(row) * viewport.width), row);
      finder.mark_own(segment, &window);
      const int32_t behind = query.back == kNobody ? -1 : static_cast<int32_t>(query.back);
      if (!finder.finish(segment, window, segment.seam >= 0 ? segment.seam : behind, &piece)) piece.pixel = -1;
    }
  }
};

}  // namespace diffrender
