// Edge walk, part 5: lines along which two triangles cut through each other. They are no edges of the mesh; both
// triangles show next to them, so they are looked for where neighbouring pixels show different triangles.
#pragma once

#include "segments_pieces.h"

namespace diffrender {

DR_HD bool share_an_index(const int32_t f[3], const int32_t g[3]) {
  return (f[0] == g[0]) | (f[0] == g[1]) | (f[0] == g[2]) | (f[1] == g[0]) | (f[1] == g[1]) | (f[1] == g[2]) |
         (f[2] == g[0]) | (f[2] == g[1]) | (f[2] == g[2]);
}

DR_HD_CALL bool share_a_corner(const SegmentMesh& in, int64_t item, const int32_t f[3], const int32_t g[3]) {
  if (share_an_index(f, g)) return true;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      if (in.same_place(item, f[i], g[j])) return true;
    }
  }
  return false;
}

// Marks the pixels around neighbouring pairs between whose centres two triangles change order: f is the nearer one
// where it shows, g where g shows. A line through a pixel always parts its centre from one of the four next to it.
struct MarkCrossings {
  SegmentMesh in;
  const int32_t* triangle_id;  // [B, H, W]
  uint8_t* marks;              // [B, H, W]; zero on entry

  static constexpr int kBlock = kItemsAtOnce<32>, kStep = kItemsAtOnce<8>;

  DR_HD void operator()(int64_t begin, int64_t end) const {
    const int64_t width = in.viewport.width, height = in.viewport.height;
    while (begin < end && in.mesh.triangle_count > 0) {
      const int64_t line = begin / width, item = line / height, row_end = (line + 1) * width;
      const int64_t stop = end < row_end ? end : row_end;
      const int32_t row = static_cast<int32_t>(line - item * height);
      for (; begin < stop; begin += kBlock) {
        mark_block(item, row, line * width, begin, begin + kBlock < stop ? begin + kBlock : stop, row_end);
      }
      begin = stop;
    }
  }

  // First a mark for every pair of two triangles, which vectorizes, then a look at those.
  DR_HD void mark_block(int64_t item, int32_t row, int64_t row_begin, int64_t begin, int64_t end,
                        int64_t row_end) const {
    const int64_t below = row + 1 < in.viewport.height ? in.viewport.width : 0;
    uint8_t differ[2 * kBlock];  // to the right, then downwards
    int32_t any = 0;
    if (end - begin == kBlock && end < row_end) {
      for (int k = 0; k < kBlock; ++k) {
        const int32_t f = triangle_id[begin + k], g = triangle_id[begin + k + 1], h = triangle_id[begin + k + below];
        // Of pixels side by side that show the same f above the same h the last one stands for all.
        const bool again = (f == g) & (h == triangle_id[begin + k + 1 + below]) & (k + 1 < kBlock);
        differ[k] = static_cast<uint8_t>((f != g) & ((f | g) >= 0));
        differ[kBlock + k] = static_cast<uint8_t>((f != h) & ((f | h) >= 0) & !again);
        any |= (f ^ g) | (f ^ h);
      }
    } else {
      for (int k = 0; k < kBlock; ++k) {
        const int64_t p = begin + k < end ? begin + k : begin;
        const int32_t f = triangle_id[p], g = triangle_id[p + (p + 1 < row_end ? 1 : 0)], h = triangle_id[p + below];
        differ[k] = static_cast<uint8_t>((begin + k < end) & (f != g) & ((f | g) >= 0));
        differ[kBlock + k] = static_cast<uint8_t>((begin + k < end) & (f != h) & ((f | h) >= 0));
        any |= (f ^ g) | (f ^ h);
      }
    }
    if (any == 0) return;
    int32_t pairs[2 * kBlock];
    int count = 0;
    for (int k = 0; k < 2 * kBlock; k += kStep) {  // which pairs differ is hard to predict: no branch for each of them
      const uint8_t* const flags = differ + k;
      const uint64_t word = kStep == 8 ? load_word(flags) : *flags;
      if (word == 0) continue;
      for (int b = 0; b < kStep; ++b) {
        pairs[count] = k + b;
        count += static_cast<int>(word >> (8 * b) & 1);
      }
    }
    // Most of them are neighbours on one surface. Their indices side by side are compared many at once.
    int32_t corners[6][2 * kBlock];
    uint8_t apart[2 * kBlock];
    const uint32_t triangles = static_cast<uint32_t>(in.mesh.triangle_count);
    for (int i = 0; i < count; ++i) {
      const int64_t p = begin + pairs[i] % kBlock, q = p + (pairs[i] < kBlock ? 1 : below);
      const uint32_t f = static_cast<uint32_t>(triangle_id[p]), g = static_cast<uint32_t>(triangle_id[q]);
      const bool known = f < triangles && g < triangles;  // others seem to be one triangle
      const int32_t* const tf = in.mesh.triangles + static_cast<int64_t>(known ? f : 0) * 3;
      const int32_t* const tg = in.mesh.triangles + static_cast<int64_t>(known ? g : 0) * 3;
      for (int k = 0; k < 3; ++k) {
        corners[k][i] = tf[k];
        corners[3 + k][i] = tg[k];
      }
    }
    for (int i = 0; i < count; ++i) {
      int shared = 0;
      for (int k = 0; k < 3; ++k) {
        for (int m = 3; m < 6; ++m) shared |= corners[k][i] == corners[m][i] ? 1 : 0;
      }
      apart[i] = static_cast<uint8_t>(1 - shared);
    }
    for (int i = 0; i < count; ++i) {
      if (apart[i] == 0) continue;
      const int axis = pairs[i] / kBlock;
      const int64_t step = axis == 0 ? 1 : below;
      int64_t p = begin + pairs[i] % kBlock;
      const int32_t f = triangle_id[p], g = triangle_id[p + step];
      bool again = true;
      for (; again; --p) {
        if (may_cross(item, static_cast<int32_t>(p - row_begin), row, f, g, axis)) {
          mark(row, p - row_begin, p, p + step, axis);
        }
        again = axis == 1 && p > begin && triangle_id[p - 1] == f && triangle_id[p - 1 + step] == g;
      }
    }
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

// The crossing pieces of a pixel: every pair of triangles of its window that share no corner.
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
    window.for_each_triangle([&](int32_t triangle) {
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
        if (share_a_corner(in, item, index_f, index_g) || !make_piece(window, f, g, &piece)) continue;
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
