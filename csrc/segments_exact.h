// Edge walk, part 6: visibility "exact". What hides a piece, and what lies behind it, is asked of all triangles instead
// of those that show in the pixels around: an irregular z-buffer with one sample per piece.
//
//   hidden   a triangle that is none of the edge's contains the middle m and is nearer there than the edge
//   behind   of the triangles that contain m + 1e-9 n (n points away from the edge's triangles) the nearest one, of
//            several in one place the lowest. The step is far above rounding, and no longer than the shortest piece:
//            where a corner lies on a pixel's centre, pieces of 1e-7 pixels hide as much as long ones do.
// The pieces are found as before, so that those which the window knows to be hidden never come here. The CPU sorts them
// by pixel, then every triangle looks for the pieces in the pixels of its box (segments_lists.h). On the GPU every
// piece looks for triangles (segments_tree.h).
#pragma once

#include "coverage_candidates.h"
#include "segments_crossings.h"

namespace diffrender {

// What is asked about one piece, and what was found.
struct ExactQuery {
  double z;             // depth of the edge at m
  Vec2<double> beyond;  // m + 1e-9 n, relative to the pixel's centre
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

// `segment` is null for a piece of a crossing.
DR_HD_CALL ExactQuery make_query(const SegmentMesh& in, const EdgePiece& piece, const EdgeSegment* segment) {
  ExactQuery query{0, {piece.x, piece.y}, ~uint64_t(0), kNobody, 0};
  const int64_t width = in.viewport.width, size = width * in.viewport.height;
  const int64_t item = piece.pixel / size, within = piece.pixel - item * size, row = within / width;
  const Vec2<double> centre{within - row * width + 0.5, row + 0.5};
  ScreenFace face;
  if (segment != nullptr) {
    const double dx = segment->stop.x - segment->start.x, dy = segment->stop.y - segment->start.y;
    const double x = centre.x + piece.x - segment->start.x, y = centre.y + piece.y - segment->start.y;
    const double t = (x * dx + y * dy) / (dx * dx + dy * dy);
    const Vec2<double> n = segment->outward();
    query.z = segment->start.z + t * (segment->stop.z - segment->start.z);
    query.beyond = {piece.x + kShortest * n.x, piece.y + kShortest * n.y};
  } else if (in.face(item, piece.first, centre, &face)) {
    query.z = face.depth.at({piece.x, piece.y});
  }
  return query;
}

// Whether a triangle, not one of the piece's own, is in front of its middle.
DR_HD bool hides(const ScreenFace& face, const EdgePiece& piece, const ExactQuery& query) {
  const Vec2<double> m{piece.x, piece.y};
  if (!(face.inside(m) >= -kInsideSlack)) return false;
  const double depth = face.depth.at(m);
  return depth < query.z - kDepthSlack && depth >= -1;
}

DR_HD bool shows_beyond(const ScreenFace& face, const ExactQuery& query, uint64_t* key) {
  if (!(face.inside(query.beyond) >= 0)) return false;
  const double depth = face.depth.at(query.beyond);
  *key = depth_key(depth);
  return magnitude(depth) <= 1;
}

DR_HD bool is_own(const SegmentMesh& in, const EdgePiece& piece, const EdgeSegment* segment, int32_t triangle) {
  return segment != nullptr ? segment->is_incident(in, triangle) : triangle == piece.first || triangle == piece.second;
}

// Gives a piece of an edge its colours, by what is behind it. False if there are none.
DR_HD_CALL bool finish_piece(const PieceFinder& finder, const EdgeSegment& segment, uint32_t back, EdgePiece* piece) {
  const auto& viewport = finder.in.viewport;
  const int64_t size = static_cast<int64_t>(viewport.width) * viewport.height;
  const int64_t within = piece->pixel - segment.item * size;
  const int32_t row = static_cast<int32_t>(within / viewport.width);
  WindowIds window;
  window.load_ids(viewport, finder.triangle_id, segment.item,
                  static_cast<int32_t>(within - static_cast<int64_t>(row) * viewport.width), row);
  finder.mark_own(segment, &window);
  const int32_t behind = back == kNobody ? -1 : static_cast<int32_t>(back);
  return finder.finish(segment, window, segment.seam >= 0 ? segment.seam : behind, piece);
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

}  // namespace diffrender
