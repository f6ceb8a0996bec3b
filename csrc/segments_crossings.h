// Edge walk, part 5: lines along which two triangles cut through each other. They are no edges of the mesh; both
// triangles show next to them, so they are looked for where neighbouring pixels show different triangles.
#pragma once

#include "segments_pieces.h"

namespace diffrender {

// Marks the pixels around neighbouring pairs between whose centres two triangles change order: f is the nearer one
// where it shows, g where g shows. A line through a pixel always parts its centre from one of the four next to it.
struct MarkCrossings {
  SegmentMesh in;
  const int32_t* triangle_id;  // [B, H, W]
  uint8_t* marks;              // [B, H, W]; zero on entry

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for_each_index(begin, end, in.viewport.width, [&](int64_t p, int64_t line) {
      const int64_t item = line / in.viewport.height;
      const int32_t row = static_cast<int32_t>(line - item * in.viewport.height);
      const int32_t column = static_cast<int32_t>(p - line * in.viewport.width);
      if (column + 1 < in.viewport.width) look(item, column, row, p, 0);
      if (row + 1 < in.viewport.height) look(item, column, row, p, 1);
    });
  }

  // The pair of pixel p and the next one to the right (axis 0) or downwards (axis 1).
  DR_HD void look(int64_t item, int32_t column, int32_t row, int64_t p, int axis) const {
    const int64_t q = p + (axis == 0 ? 1 : in.viewport.width);
    const int32_t f = triangle_id[p], g = triangle_id[q];
    if (f == g || !in.has(f) || !in.has(g) || in.share_an_edge(f, g)) return;
    if (may_cross(item, column, row, f, g, axis)) mark(row, column, p, q, axis);
  }

  // All pixels that have both of a pair in their window.
  DR_HD void mark(int64_t row, int64_t column, int64_t p, int64_t q, int axis) const {
    const int64_t across = axis == 0 ? in.viewport.width : 1, place = axis == 0 ? row : column;
    const int first = place > 0 ? -1 : 0;
    const int last = place + 1 < (axis == 0 ? in.viewport.height : in.viewport.width) ? 1 : 0;
    for (int step = first; step <= last; ++step) {
      set_flag(marks + p + step * across);
      set_flag(marks + q + step * across);
    }
  }

  // Whether f is the nearer one at the pixel and g at its neighbour, and both reach the point between where they meet.
  DR_HD_CALL bool may_cross(int64_t item, int32_t column, int32_t row, int32_t f, int32_t g, int axis) const {
    int32_t index_f[3], index_g[3];
    if (!in.mesh.indices(f, index_f) || !in.mesh.indices(g, index_g)) return false;
    ScreenFace face_f, face_g;
    const Vec2<double> origin{column + 0.5, row + 0.5};
    const Vec2<double> there{axis == 0 ? 1.0 : 0.0, axis == 0 ? 0.0 : 1.0};
    if (!in.face(item, f, origin, &face_f) || !in.face(item, g, origin, &face_g)) return false;
    const double before = face_f.depth.constant - face_g.depth.constant;
    const double after = face_f.depth.at(there) - face_g.depth.at(there);
    if (!(before <= 0 && after >= 0 && after > before)) return false;
    const double t = before / (before - after);
    const Vec2<double> meeting{t * there.x, t * there.y};
    if (!(face_f.inside(meeting) >= -kInsideSlack && face_g.inside(meeting) >= -kInsideSlack)) return false;
    return !share_a_corner(in, item, index_f, index_g);
  }
};

// The crossing pieces of a pixel: every pair of triangles of its window that share no edge and no corner.
struct CrossingFinder {
  SegmentMesh in;
  const int32_t* triangle_id;  // [B, H, W]

  template <class F>
  DR_HD void visit(int64_t pixel, const F& body) const {
    const int64_t width = in.viewport.width, size = width * in.viewport.height;
    const int64_t item = pixel / size, within = pixel - item * size;
    const int32_t row = static_cast<int32_t>(within / width);
    Window window;
    window.load_ids(in.viewport, triangle_id, item, static_cast<int32_t>(within - row * width), row);
    window.for_each_triangle(window.covered_cells(), [&](int32_t triangle) {
      window.face_id[window.count] = triangle;
      if (in.face(item, triangle, {window.column + 0.5, row + 0.5}, &window.faces[window.count])) ++window.count;
    });
    for (int f = 0; f < window.count; ++f) {
      int32_t index_f[3];
      in.mesh.indices(window.face_id[f], index_f);
      for (int g = f + 1; g < window.count; ++g) {
        int32_t index_g[3];
        in.mesh.indices(window.face_id[g], index_g);
        EdgePiece piece;
        if (in.share_an_edge(window.face_id[f], window.face_id[g]) || share_a_corner(in, item, index_f, index_g) ||
            !make_piece(window, f, g, &piece)) {
          continue;
        }
        piece.pixel = pixel;
        body(piece);
      }
    }
  }

  // d = z_f - z_g is affine on screen. Its zero line, cut to the pixel and to both triangles, is a border between the
  // surfaces if nothing hides its middle.
  DR_HD_CALL bool make_piece(const Window& window, int f, int g, EdgePiece* out) const {
    const ScreenFace &face_f = window.faces[f], &face_g = window.faces[g];
    const Affine d{face_f.depth.x - face_g.depth.x, face_f.depth.y - face_g.depth.y,
                   face_f.depth.constant - face_g.depth.constant};
    const double slope = std::sqrt(d.x * d.x + d.y * d.y);
    if (!(slope > 1e-14) || !(magnitude(d.constant) <= 0.75 * slope)) return false;
    const double nx = d.x / slope, ny = d.y / slope, distance = d.constant / slope;
    const Vec2<double> foot{-distance * nx, -distance * ny}, along{-ny, nx};
    double t0 = -2, t1 = 2;
    const Affine borders[4] = {{1, 0, 0.5}, {-1, 0, 0.5}, {0, 1, 0.5}, {0, -1, 0.5}};
    for (int i = 0; i < 4; ++i) cut(borders[i], foot, along, &t0, &t1);
    for (int i = 0; i < 3; ++i) cut(face_f.weight[i], foot, along, &t0, &t1);
    for (int i = 0; i < 3; ++i) cut(face_g.weight[i], foot, along, &t0, &t1);
    if (!(t1 - t0 > kShortest)) return false;
    const double middle = 0.5 * (t0 + t1);
    const Vec2<double> m{foot.x + middle * along.x, foot.y + middle * along.y};
    const double z = face_f.depth.at(m);
    for (int h = 0; h < window.count; ++h) {
      if (h == f || h == g || !(window.faces[h].inside(m) >= 0)) continue;
      if (window.faces[h].depth.at(m) < z - kDepthSlack) return false;
    }
    out->x = m.x;
    out->y = m.y;
    out->half_x = 0.5 * (t1 - t0) * along.x;
    out->half_y = 0.5 * (t1 - t0) * along.y;
    out->length = (t1 - t0) / slope;
    const double area =
        hidden_area({foot.x + t0 * along.x, foot.y + t0 * along.y}, {foot.x + t1 * along.x, foot.y + t1 * along.y});
    // What the pixel shows says its side, if it is one of the two: its centre may lie on the line.
    constexpr int kCentre = 4;
    const int32_t shown = window.id[kCentre];
    const bool undecided = shown != window.face_id[f] && shown != window.face_id[g];
    const bool in_front = undecided ? d.constant < 0 : shown == window.face_id[f];
    out->area = in_front ? area : -area;
    out->first = window.face_id[f];
    out->second = window.face_id[g];
    out->segment = -1;
    out->front = nearest_cell(window, window.face_id[f], hair_aside(m, {nx, ny}, -1));
    out->back = nearest_cell(window, window.face_id[g], hair_aside(m, {nx, ny}, 1));
    return true;
  }

  // Keeps the part of a line on which `limit` is not negative.
  DR_HD static void cut(const Affine& limit, Vec2<double> foot, Vec2<double> along, double* t0, double* t1) {
    const double rate = limit.x * along.x + limit.y * along.y, value = limit.at(foot);
    if (rate == 0) {
      *t1 = value < 0 ? *t0 : *t1;
      return;
    }
    const double t = -value / rate;
    if (rate > 0) {
      *t0 = t > *t0 ? t : *t0;
    } else {
      *t1 = t < *t1 ? t : *t1;
    }
  }

  DR_HD static int16_t nearest_cell(const Window& window, int32_t id, Vec2<double> m) {
    double best = kLargest<double>;
    int16_t cell = 4;
    for (int c = 0; c < kWindowCells; ++c) {
      const double distance = cell_distance(c, m);
      if (window.id[c] != id || !(distance < best)) continue;
      best = distance;
      cell = static_cast<int16_t>(c);
    }
    return cell;
  }
};

}  // namespace diffrender
