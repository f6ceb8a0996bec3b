// Edge walk, part 4: lines along which two triangles cut through each other. They are no edges of the mesh; both
// triangles show next to them, so they are looked for where neighbouring pixels show different triangles.
#pragma once

#include "segments_pieces.h"

namespace diffrender {

template <class scalar_t>
DR_HD bool share_a_corner(const SegmentMesh<scalar_t>& in, int64_t item, const int32_t f[3], const int32_t g[3]) {
  for (int i = 0; i < 3; ++i) {
    if (f[i] == g[0] || f[i] == g[1] || f[i] == g[2]) return true;
  }
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      if (in.same_place(item, f[i], g[j])) return true;
    }
  }
  return false;
}

// Marks the pixels of neighbouring pairs between whose centres two triangles change order: f is the nearer one where it
// shows, g where g shows. A line through a pixel always parts its centre from one of the four next to it.
template <class scalar_t>
struct MarkCrossings {
  SegmentMesh<scalar_t> in;
  const int32_t* triangle_id;  // [B, H, W]
  uint8_t* marks;              // [B, H, W]; zero on entry

  DR_HD void operator()(int64_t begin, int64_t end) const {
    const int64_t width = in.viewport.width, height = in.viewport.height;
    constexpr int64_t kBlock = 16;
    for_each_index_block(begin, end, width, [&](int64_t first, int64_t last, int64_t line) {
      const int64_t item = line / height;
      const bool has_below = line + 1 < (item + 1) * height;
      const int32_t row = static_cast<int32_t>(line - item * height);
      const int64_t row_end = (line + 1) * width;
      for (int64_t p = first; p < last;) {
        const int64_t stop = p + kBlock < last ? p + kBlock : last;
        if (stop - p == kBlock && stop < row_end && has_below) {
          int32_t different = 0;
          for (int64_t k = 0; k < kBlock; ++k) {
            const int32_t id = triangle_id[p + k];
            different |= (id ^ triangle_id[p + k + 1]) | (id ^ triangle_id[p + k + width]);
          }
          if (different == 0) {
            p = stop;
            continue;
          }
        }
        for (; p < stop; ++p) {
          const int32_t column = static_cast<int32_t>(p - line * width);
          if (p + 1 < row_end) test(item, column, row, p, p + 1, 1, 0);
          if (has_below) test(item, column, row, p, p + width, 0, 1);
        }
      }
    });
  }

  template <class F>
  DR_HD static void for_each_index_block(int64_t begin, int64_t end, int64_t per_line, const F& body) {
    while (begin < end) {
      const int64_t line = begin / per_line, stop = (line + 1) * per_line;
      const int64_t last = end < stop ? end : stop;
      body(begin, last, line);
      begin = last;
    }
  }

  DR_HD void test(int64_t item, int32_t column, int32_t row, int64_t p, int64_t q, int32_t right, int32_t down) const {
    const int32_t f = triangle_id[p], g = triangle_id[q];
    if (f == g || f < 0 || g < 0 || !may_cross(item, column, row, f, g, right, down)) return;
    set_flag(marks + p);
    set_flag(marks + q);
  }

  DR_HD bool may_cross(int64_t item, int32_t column, int32_t row, int32_t f, int32_t g, int32_t right,
                       int32_t down) const {
    int32_t index_f[3], index_g[3];
    if (f >= in.mesh.triangle_count || g >= in.mesh.triangle_count) return false;
    if (!in.mesh.indices(f, index_f) || !in.mesh.indices(g, index_g)) return false;
    if (share_a_corner(in, item, index_f, index_g)) return false;
    ScreenFace face_f, face_g;
    const Vec2<double> origin{column + 0.5, row + 0.5}, here{0, 0};
    const Vec2<double> there{static_cast<double>(right), static_cast<double>(down)};
    if (!in.face(item, f, origin, &face_f) || !in.face(item, g, origin, &face_g)) return false;
    return face_f.depth.at(here) <= face_g.depth.at(here) && face_g.depth.at(there) <= face_f.depth.at(there);
  }
};

// The crossing pieces of a pixel: every pair of triangles of its window that share no corner.
template <class scalar_t>
struct CrossingFinder {
  SegmentMesh<scalar_t> in;
  const int32_t* triangle_id;  // [B, H, W]

  template <class F>
  DR_HD void visit(int64_t pixel, const F& body) const {
    const int64_t width = in.viewport.width, size = width * in.viewport.height;
    const int64_t item = pixel / size, within = pixel - item * size;
    const int32_t row = static_cast<int32_t>(within / width);
    Window<scalar_t> window;
    window.load_ids(in.viewport, triangle_id, item, static_cast<int32_t>(within - row * width), row);
    window.load_faces(in, item, -1);
    for (int f = 0; f < window.count; ++f) {
      int32_t index_f[3];
      in.mesh.indices(window.face_id[f], index_f);
      for (int g = f + 1; g < window.count; ++g) {
        int32_t index_g[3];
        in.mesh.indices(window.face_id[g], index_g);
        Piece piece;
        if (share_a_corner(in, item, index_f, index_g) || !make_piece(window, f, g, &piece)) continue;
        piece.pixel = pixel;
        body(piece);
      }
    }
  }

  // d = z_f - z_g is affine on screen. Its zero line, cut to the pixel and to both triangles, is a border between the
  // surfaces if nothing hides its middle.
  DR_HD bool make_piece(const Window<scalar_t>& window, int f, int g, Piece* out) const {
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
      if (h == f || h == g || !window.faces[h].contains(m)) continue;
      if (window.faces[h].depth.at(m) < z - kDepthSlack) return false;
    }
    out->x = m.x;
    out->y = m.y;
    out->length = (t1 - t0) / slope;
    const double area =
        hidden_area({foot.x + t0 * along.x, foot.y + t0 * along.y}, {foot.x + t1 * along.x, foot.y + t1 * along.y});
    out->area = d.constant < 0 ? area : -area;
    out->first = window.face_id[f];
    out->second = window.face_id[g];
    out->front = nearest_cell(window, window.face_id[f], m);
    out->back = nearest_cell(window, window.face_id[g], m);
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

  DR_HD static int8_t nearest_cell(const Window<scalar_t>& window, int32_t id, Vec2<double> m) {
    double best = kLargest<double>;
    int8_t cell = 4;
    for (int c = 0; c < kWindowCells; ++c) {
      const double x = window.cell_x(c) - m.x, y = window.cell_y(c) - m.y, distance = x * x + y * y;
      if (window.id[c] != id || !(distance < best)) continue;
      best = distance;
      cell = static_cast<int8_t>(c);
    }
    return cell;
  }
};

// Like FindEdgePieces, over marked pixels.
template <class scalar_t>
struct FindCrossingPieces {
  CrossingFinder<scalar_t> finder;
  const int64_t* marked;  // [N] pixels
  Piece* pieces;          // [N], in the second pass [extra pieces]
  int64_t* extra;         // [N + 1]
  bool second_pass;

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      if (second_pass && extra[i + 1] == extra[i]) continue;
      int64_t found = 0;
      if (!second_pass) pieces[i].pixel = -1;
      finder.visit(marked[i], [&](const Piece& piece) {
        if (second_pass) {
          if (found > 0) pieces[extra[i] + found - 1] = piece;
        } else if (found == 0) {
          pieces[i] = piece;
        }
        ++found;
      });
      if (!second_pass) extra[i] = found > 1 ? found - 1 : 0;
    }
  }
};

}  // namespace diffrender
