// Edge walk, part 3: a piece of a discontinuity in one pixel, the area that it hides from the pixel's centre, and the
// 3 x 3 pixels around.
#pragma once

#include "segments_edges.h"

namespace diffrender {

// A piece of a visible discontinuity inside one pixel: of an edge (parts 2 and 4), or of the line along which two
// triangles cut through each other (part 5). "Front" is the side that n points away from.
struct EdgePiece {
  int64_t pixel;
  double x, y;            // middle, relative to the pixel's centre
  double half_x, half_y;  // from the middle to one end
  double length;          // pixels; of a crossing: pixels per |gradient of the difference in depth|
  double area;            // of the pixel, hidden from its centre by the piece; > 0 if the centre is on the front side
  int32_t first, second;  // edge: owner corner, side; crossing: the two triangles, first in front
  int16_t front, back;    // pixels that hold the two colours, as cells of the 3 x 3 window around `pixel`
  int32_t segment;        // edge: index of its EdgeSegment
};

constexpr int kWindowCells = 9;
// Triangles around an edge, see SegmentMesh::for_each_around().
constexpr int kTrianglesAround = 12;
constexpr int kMostFaces = kWindowCells + kTrianglesAround;

// The pixel of a window cell around another one.
DR_HD int64_t cell_pixel(int64_t pixel, int cell, int32_t width) {
  return pixel + (cell / 3 - 1) * static_cast<int64_t>(width) + (cell % 3 - 1);
}

// Arc length along the border of the square [-1/2, 1/2]^2, in [0, 4), of the point that a direction hits.
DR_HD double border_arc(double x, double y) {
  const double ax = magnitude(x), ay = magnitude(y);
  if (ax >= ay) {
    const double t = 0.5 * y / ax;
    return x > 0 ? t + 0.5 : 2.5 - t;
  }
  const double t = 0.5 * x / ay;
  return y > 0 ? 1.5 - t : 3.5 + t;
}

// Where a pixel is sampled, relative to its centre. The rasterizer's top-left rule gives a sample on an edge to the
// triangle on its right, and on a level edge to the one below, however flat the edge that is not level: a hair to the
// right, and downwards so much less that it decides only where the first does not. Of edges through a centre those
// flatter than 1 : 10000 and not level may be taken for level ones. Both are long compared with rounding.
constexpr double kSampleX = 1e-7, kSampleY = 1e-11;
// Ends this close to the centre are seen from the sample. From there the directions of all others are those from the
// centre, around which the square is symmetric.
constexpr double kNearSample = 1e-3;

DR_HD Vec2<double> seen_from_sample(Vec2<double> p) {
  const bool near = magnitude(p.x) < kNearSample && magnitude(p.y) < kNearSample;
  return near ? Vec2<double>{p.x - kSampleX, p.y - kSampleY} : p;
}

// Area of the part of the unit pixel that the segment from p to q hides from the sample point: the sector between the
// directions of its ends, which border arcs measure (an arc of length s is the base of a triangle of area s / 4), less
// the triangle in front of the segment.
DR_HD_CALL double hidden_area(Vec2<double> p, Vec2<double> q) {
  const Vec2<double> a = seen_from_sample(p), b = seen_from_sample(q);
  const double turn = cross(a, b);
  if (turn == 0 && a.x * b.x + a.y * b.y >= 0) return 0;
  double arc = border_arc(b.x, b.y) - border_arc(a.x, a.y);
  arc = turn < 0 ? -arc : arc;
  arc = arc < 0 ? arc + 4 : arc;
  const double area = 0.25 * arc - 0.5 * (turn < 0 ? -cross(p, q) : cross(p, q));
  return area > 0 ? area : 0;
}

// What shows in the 3 x 3 pixels around one.
struct WindowIds {
  int32_t column, row;
  int32_t id[kWindowCells];  // triangle, -1 background, -2 outside of the frame
  bool own[kWindowCells];    // shows a triangle of the edge that is looked at

  DR_HD static double cell_x(int cell) { return cell % 3 - 1; }
  DR_HD static double cell_y(int cell) { return cell / 3 - 1; }

  DR_HD void load_ids(const Viewport<double>& viewport, const int32_t* triangle_id, int64_t item, int32_t c,
                      int32_t r) {
    column = c;
    row = r;
    const int64_t width = viewport.width;
    const int32_t* const pixel = triangle_id + (item * viewport.height + r) * width + c;
    const bool inner = c > 0 && r > 0 && c + 1 < viewport.width && r + 1 < viewport.height;
    for (int cell = 0; cell < kWindowCells; ++cell) {
      const int32_t x = cell % 3 - 1, y = cell / 3 - 1;
      const bool outside = !inner && (c + x < 0 || r + y < 0 || c + x >= viewport.width || r + y >= viewport.height);
      id[cell] = outside ? -2 : pixel[y * width + x];
      own[cell] = false;
    }
  }

  // Calls body(triangle) for the distinct triangles of some cells (bit c: cell c), that of the pixel itself first: it
  // hides most of what is hidden.
  template <class F>
  DR_HD void for_each_triangle(uint32_t cells, const F& body) const {
    constexpr int kCentre = 4;
    if ((cells >> kCentre & 1) != 0) body(id[kCentre]);
    for (int cell = 0; cell < kWindowCells; ++cell) {
      if ((cells >> cell & 1) == 0) continue;
      bool known = id[cell] == id[kCentre];
      for (int earlier = 0; earlier < cell; ++earlier) known |= id[earlier] == id[cell];
      if (!known) body(id[cell]);
    }
  }

  DR_HD uint32_t covered_cells() const {
    uint32_t cells = 0, bit = 1;
    for (const int32_t triangle : id) {
      cells |= triangle >= 0 ? bit : 0;
      bit <<= 1;
    }
    return cells;
  }
};

// The same with those triangles of it that matter, and of those around an edge.
struct Window : WindowIds {
  ScreenFace faces[kMostFaces];
  int32_t face_id[kMostFaces];
  int count = 0;

  DR_HD bool shows(int32_t triangle) const {
    bool found = false;
    for (int cell = 0; cell < kWindowCells; ++cell) found = found || id[cell] == triangle;
    return found;
  }
};

// A point whose weights are this close to zero is on the outline of a triangle.
constexpr double kInsideSlack = 1e-9;
// Depths closer than this count as equal.
constexpr double kDepthSlack = 1e-9;
// Pieces shorter than this, in pixels, are dropped.
constexpr double kShortest = 1e-9;
// Corners that were rounded to 1/256 pixel move an edge by less than this.
constexpr double kSnapSlack = 1.0 / 256;

}  // namespace diffrender
