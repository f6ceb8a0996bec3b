// Edge walk, part 4: which pieces of an edge are visible in a pixel, what lies behind them, and which pixels hold the
// two colours. Visibility is decided with the triangles that show in the 3 x 3 pixels around, and with those around the
// edge in the mesh: where triangles are about as small as pixels, an outline runs in narrow folds that show at no
// pixel's centre, and each of their edges would count as an outline.
#pragma once

#include "segments_window.h"

namespace diffrender {

// A piece that runs through a pixel from side to side has its middle exactly between two of the neighbours. So the cell
// nearest to m is the nearest to a point a hair towards the side that is looked for, and a hair right and down, which
// decides between the two at an edge along an axis. Both hairs are long compared with rounding.
DR_HD Vec2<double> hair_aside(Vec2<double> m, Vec2<double> n, double side) {
  return {m.x + side * 1e-6 * n.x + 1e-9, m.y + side * 1e-6 * n.y + 0.618e-9};
}

DR_HD double cell_distance(int cell, Vec2<double> m) {
  const double x = WindowIds::cell_x(cell) - m.x, y = WindowIds::cell_y(cell) - m.y;
  return x * x + y * y;
}

// Whether the sample of a cell is beyond the line through m with normal n.
DR_HD bool is_sample_beyond(int cell, Vec2<double> m, Vec2<double> n) {
  return (WindowIds::cell_x(cell) + kSampleX - m.x) * n.x + (WindowIds::cell_y(cell) + kSampleY - m.y) * n.y > 0;
}

// Triangles that lie on one side of an edge's line, as most next to an outline do: they neither hide a part of the edge
// nor show behind it. Pixel after pixel along an edge shows the same ones, which are told from the others once.
struct AsideTriangles {
  Vec2<double> origin, start, normal;  // the line, relative to the origin
  int32_t ends[2];                     // vertices of the edge
  uint32_t count = 0;
  int32_t known[16];  // the last ones

  DR_HD AsideTriangles(const SegmentMesh& in, const EdgeSegment& segment)
      : origin{std::floor(segment.start.x) + 0.5, std::floor(segment.start.y) + 0.5},
        start{segment.start.x - origin.x, segment.start.y - origin.y},
        normal(segment.outward()) {
    in.edge_vertices(segment.corner, &ends[0], &ends[1]);
    for (int32_t& triangle : known) triangle = -1;
  }

  DR_HD bool has(int32_t triangle) const {
    bool found = false;
    for (const int32_t other : known) found |= other == triangle;
    return found;
  }

  // Whether it is one, and from then on is known. Corners have to be further from the line than rounding and slack make
  // any difference, but for those that end the edge.
  DR_HD bool take(const SegmentMesh& in, int64_t item, int32_t triangle) {
    constexpr double kAside = 1e-3;  // pixels
    int32_t index[3];
    if (!in.has(triangle) || !in.mesh.indices(triangle, index)) return false;
    int sides = 0;
    for (const int32_t i : index) {
      if (i == ends[0] || i == ends[1]) continue;
      const Vec3<double> c = to_pixels(in.vertex(item, i), in.viewport, origin);
      const double distance = (c.x - start.x * c.z) * normal.x + (c.y - start.y * c.z) * normal.y;
      sides |= c.z > 0 && magnitude(distance) > kAside * c.z ? (distance > 0 ? 1 : 2) : 3;
    }
    if (sides != 1 && sides != 2) return false;
    known[count++ % 16] = triangle;
    return true;
  }
};

struct PieceFinder {
  SegmentMesh in;
  const int32_t* triangle_id;  // [B, H, W]
  bool exact;                  // leaves what is behind a piece, and its colours, to finish_piece()

  // The segment inside one pixel, relative to its centre.
  struct Cell {
    Vec2<double> p, step;  // start, and from start to end
    double z, step_z;
    double length;
    Vec2<double> normal;
  };

  // Calls body(piece), which may change it, for every visible piece of the segment in the walk's pixel. Looks around
  // the segment at the first pixel where it has to. `aside`, of the segment, saves time.
  template <class F>
  DR_HD void visit(EdgeSegment* edge, const PixelWalk& walk, const F& body, AsideTriangles* aside = nullptr) const {
    const EdgeSegment& segment = *edge;
    double from, to;
    walk.interval(&from, &to);
    Cell cell;
    const double dx = segment.stop.x - segment.start.x, dy = segment.stop.y - segment.start.y;
    cell.length = (to - from) * std::sqrt(dx * dx + dy * dy);
    if (!(cell.length > kShortest)) return;
    const int32_t column = walk.pixel_column(), row = walk.pixel_row();
    const double dz = segment.stop.z - segment.start.z;
    cell.p = {segment.start.x + from * dx - (column + 0.5), segment.start.y + from * dy - (row + 0.5)};
    cell.step = {(to - from) * dx, (to - from) * dy};
    cell.z = segment.start.z + from * dz;
    cell.step_z = (to - from) * dz;
    Window window;
    window.column = column;
    window.row = row;
    bool hidden = false;
    const bool at_centre = load_centre(segment, cell, &window, aside, &hidden);
    if (hidden) return;
    window.load_ids(in.viewport, triangle_id, segment.item, column, row);
    if (!load_faces(edge, cell, &window, aside, at_centre)) return;
    cell.normal = segment.outward();
    double cuts[3 * kMostFaces + 2];
    const int last = find_cuts(window, cell, cuts);
    for (int i = 0; i < last; ++i) {
      if (!((cuts[i + 1] - cuts[i]) * cell.length > kShortest)) continue;
      EdgePiece piece;
      if (make_piece(segment, window, cell, cuts[i], cuts[i + 1], &piece)) body(piece);
    }
  }

  // Notes which of the triangles around an edge it may pass over or under. Most have none: where the surface goes on
  // behind a fold all corners lie on the side of the edge's own triangles, and one look at each corner is enough.
  DR_HD_CALL void look_around(EdgeSegment* segment) const {
    const Vec2<double> origin{std::floor(segment->start.x) + 0.5, std::floor(segment->start.y) + 0.5};
    const Vec2<double> p{segment->start.x - origin.x, segment->start.y - origin.y};
    const Vec2<double> q{segment->stop.x - origin.x, segment->stop.y - origin.y};
    const Vec2<double> n = segment->outward();
    // Pixels beyond the edge's line, times w; 0 where it is not clear on which side.
    const auto beyond = [&](int32_t corner) {
      const int32_t index = in.mesh.triangles[corner];
      if (static_cast<uint32_t>(index) >= static_cast<uint32_t>(in.mesh.vertex_count)) return 0.0;
      const Vec3<double> c = to_pixels(in.vertex(segment->item, index), in.viewport, origin);
      const double distance = (c.x - p.x * c.z) * n.x + (c.y - p.y * c.z) * n.y;
      return c.z > 0 && magnitude(distance) > 1e-6 * c.z ? distance : 0.0;
    };
    const int32_t twin = in.topology[segment->corner];
    const double own[2] = {beyond(segment->corner), in.has(twin / 3) && twin >= 0 ? beyond(twin) : 0.0};
    bool aside[4] = {};  // whether no corner of a triangle next to the edge's own lies on the other side than these
    int32_t bits = 0;
    in.for_each_around(segment->corner, [&](int32_t index, int32_t corner) {
      const bool is_next = index < 4;
      const double side = own[is_next ? index / 2 : (index - 4) / 4];
      const bool rest = is_next ? side != 0 : aside[(index - 4) / 2], all = rest && beyond(corner) * side > 0;
      if (is_next) aside[index] = all;
      const int32_t triangle = corner / 3;
      if (all || in.side(segment->item, triangle) == 0 || segment->is_incident(in, triangle)) return;
      ScreenFace face;
      bool covers = true;
      if (make_face_over(segment->item, triangle, origin, p, q, &face, &covers)) bits |= 1 << index;
    });
    segment->around = bits;
  }

  // Makes the next face of a window, if the segment passes over or under the triangle. `hidden`: it hides all of it.
  DR_HD bool make_next_face(const EdgeSegment& segment, const Cell& cell, int32_t triangle, Window* window,
                            bool* hidden) const {
    const Vec2<double> end{cell.p.x + cell.step.x, cell.p.y + cell.step.y};
    const Vec2<double> origin{window->column + 0.5, window->row + 0.5};
    ScreenFace* const face = &window->faces[window->count];
    bool covers = true;
    if (!make_face_over(segment.item, triangle, origin, cell.p, end, face, &covers)) return false;
    *hidden =
        covers && is_in_front(face->depth.at(cell.p), cell.z) && is_in_front(face->depth.at(end), cell.z + cell.step_z);
    return true;
  }

  // The same for the triangle that shows in the pixel itself, which hides most of what is hidden: before anything else
  // is looked at. False where it is one of the edge's own.
  DR_HD_CALL bool load_centre(const EdgeSegment& segment, const Cell& cell, Window* window,
                              [[maybe_unused]] const AsideTriangles* aside, bool* hidden) const {
    const int64_t line = segment.item * in.viewport.height + window->row;
    const int32_t triangle = triangle_id[line * in.viewport.width + window->column];
    if (triangle < 0 || segment.is_incident(in, triangle)) return false;
    if constexpr (!kHasWarps) {
      if (aside != nullptr && aside->has(triangle)) return false;
    }
    return make_next_face(segment, cell, triangle, window, hidden);
  }

  // Takes the triangles that the segment passes over or under, without the edge's own. False if one hides all of it.
  // `at_centre`: the first face is that of load_centre().
  DR_HD_CALL bool load_faces(EdgeSegment* edge, const Cell& cell, Window* window,
                             [[maybe_unused]] AsideTriangles* aside, bool at_centre) const {
    const EdgeSegment& segment = *edge;
    mark_own(segment, window);
    bool hidden = false;
    const auto take = [&](int32_t triangle) {
      if (!hidden && make_next_face(segment, cell, triangle, window, &hidden)) {
        window->face_id[window->count++] = triangle;
      }
    };
    const auto is_aside = [&]([[maybe_unused]] int32_t triangle) {
      if constexpr (kHasWarps) {
        return false;  // a thread has one pixel
      } else {
        return aside != nullptr && (aside->has(triangle) || aside->take(in, segment.item, triangle));
      }
    };
    uint32_t cells = window->covered_cells();
    for (int c = 0; c < kWindowCells; ++c) cells &= ~((window->own[c] ? 1u : 0u) << c);
    constexpr int kCentre = 4;
    if (at_centre && !is_aside(window->id[kCentre])) window->face_id[window->count++] = window->id[kCentre];
    cells &= ~(1u << kCentre);
    window->for_each_triangle(cells, [&](int32_t triangle) {
      if (!hidden && !is_aside(triangle)) take(triangle);
    });
    if (hidden) return false;
    if (segment.around < 0) look_around(edge);
    if (segment.around == 0) return true;
    in.for_each_around(segment.corner, [&](int32_t index, int32_t corner) {
      const int32_t triangle = corner / 3;
      if ((segment.around >> index & 1) == 0 || window->shows(triangle)) return;
      bool is_known = false;  // two ways around a corner may lead to one triangle
      for (int f = 0; f < window->count; ++f) is_known = is_known || window->face_id[f] == triangle;
      if (!is_known && !segment.is_incident(in, triangle)) take(triangle);
    });
    return !hidden;
  }

  // What lies before the near plane hides nothing.
  DR_HD static bool is_in_front(double depth, double z) { return depth < z - kDepthSlack && depth >= -1; }

  DR_HD void mark_own(const EdgeSegment& segment, WindowIds* window) const {
    for (int c = 0; c < kWindowCells; ++c) {
      window->own[c] = window->id[c] >= 0 && segment.is_incident(in, window->id[c]);
    }
  }

  // make_screen_face() for triangles that may meet the segment from p to q; the others fail early. `covers`: meets all.
  DR_HD_CALL bool make_face_over(int64_t item, int32_t triangle, Vec2<double> origin, Vec2<double> p, Vec2<double> q,
                                 ScreenFace* out, bool* covers) const {
    int32_t index[3];
    Vec4<double> v[3];
    if (!in.corners(item, triangle, index, v)) return false;
    Vec3<double> corner[3], line[3];
    for (int i = 0; i < 3; ++i) corner[i] = to_pixels(v[i], in.viewport, origin);
    if (v[0].w > 0 && v[1].w > 0 && v[2].w > 0) {
      // Boxes that do not meet, with room for rounding.
      const double left = (p.x < q.x ? p.x : q.x) - kSnapSlack, right = (p.x < q.x ? q.x : p.x) + kSnapSlack;
      const double top = (p.y < q.y ? p.y : q.y) - kSnapSlack, bottom = (p.y < q.y ? q.y : p.y) + kSnapSlack;
      int beyond = 15;
      for (int i = 0; i < 3; ++i) {
        const Vec3<double> c = corner[i];
        beyond &= (c.x < left * c.z ? 1 : 0) | (c.x > right * c.z ? 2 : 0) | (c.y < top * c.z ? 4 : 0) |
                  (c.y > bottom * c.z ? 8 : 0);
      }
      if (beyond != 0) return false;
    }
    for (int i = 0; i < 3; ++i) line[i] = cross(corner[(i + 1) % 3], corner[(i + 2) % 3]);
    const double det = dot(corner[0], line[0]), outside = -kInsideSlack * det * det;
    for (int i = 0; i < 3; ++i) {
      const double a = (line[i].x * p.x + line[i].y * p.y + line[i].z) * det;
      const double b = (line[i].x * q.x + line[i].y * q.y + line[i].z) * det;
      if (a < outside && b < outside) return false;
      *covers = *covers && a >= 0 && b >= 0;
    }
    return finish_screen_face(v, line, det, out);
  }

  // Parameters at which what is in front of or behind the edge may change: it enters or leaves the footprint of a
  // triangle of the window, or passes through its plane. Returns the index of the last one.
  DR_HD_CALL static int find_cuts(const Window& window, const Cell& cell, double* cuts) {
    int n = 0;
    cuts[n++] = 0;
    for (int f = 0; f < window.count; ++f) {
      const ScreenFace& face = window.faces[f];
      double t0 = 0, t1 = 1;
      const Vec2<double> end{cell.p.x + cell.step.x, cell.p.y + cell.step.y};
      for (int i = 0; i < 3 && t0 < t1; ++i) {
        const double a = snapped(face.weight[i].at(cell.p)), b = snapped(face.weight[i].at(end));
        if (a < 0 && b < 0) t1 = -1;
        if ((a < 0) == (b < 0)) continue;
        const double t = a / (a - b);
        if (a < 0) {
          t0 = t > t0 ? t : t0;
        } else {
          t1 = t < t1 ? t : t1;
        }
      }
      const double common = (t1 - t0) * cell.length;
      if (!(common >= -kShortest)) continue;
      if (t0 > 0) cuts[n++] = t0;
      // Only a corner touches the segment. It hides none of it, but a middle that lies there would seem to be hidden.
      if (!(common > kShortest)) continue;
      if (t1 < 1) cuts[n++] = t1;
      const double a = cell.z - face.depth.at(cell.p), b = cell.z + cell.step_z - face.depth.at(end);
      if ((a < 0 && b > 0) || (a > 0 && b < 0)) {
        const double t = a / (a - b);
        if (t > t0 && t < t1) cuts[n++] = t;
      }
    }
    for (int i = 1; i < n; ++i) {
      const double value = cuts[i];
      int k = i;
      for (; cuts[k - 1] > value; --k) cuts[k] = cuts[k - 1];
      cuts[k] = value;
    }
    cuts[n] = 1;
    return n;
  }

  // A weight on the outline of a triangle, where rounding has no say.
  DR_HD static double snapped(double weight) { return magnitude(weight) <= kInsideSlack ? 0.0 : weight; }

  DR_HD_CALL bool make_piece(const EdgeSegment& segment, const Window& window, const Cell& cell, double from, double to,
                             EdgePiece* out) const {
    const double middle = 0.5 * (from + to);
    const Vec2<double> m{cell.p.x + middle * cell.step.x, cell.p.y + middle * cell.step.y};
    const double z = cell.z + middle * cell.step_z;
    int32_t back;
    if (!find_nearest(window, m, z, &back)) return false;
    out->x = m.x;
    out->y = m.y;
    out->half_x = 0.5 * (to - from) * cell.step.x;
    out->half_y = 0.5 * (to - from) * cell.step.y;
    out->length = (to - from) * cell.length;
    const Vec2<double> p{cell.p.x + from * cell.step.x, cell.p.y + from * cell.step.y};
    const Vec2<double> q{cell.p.x + to * cell.step.x, cell.p.y + to * cell.step.y};
    out->area = hidden_area(p, q);
    out->pixel = (segment.item * in.viewport.height + window.row) * in.viewport.width + window.column;
    out->first = segment.corner;
    out->second = segment.side;
    if (exact) return true;
    if (segment.seam >= 0) {
      back = segment.seam;
    } else if (back < 0 && !find_around(segment, window, cell.normal, m, z, &back)) {
      return false;
    }
    return finish(segment, window, back, out);
  }

  // The colours on both sides of a piece and the side of the pixel's centre, by what is behind it.
  DR_HD_CALL bool finish(const EdgeSegment& segment, const WindowIds& window, int32_t back, EdgePiece* out) const {
    const Vec2<double> m{out->x, out->y}, normal = segment.outward();
    if (!find_colors(segment, window, normal, m, back, out)) return false;
    if (!is_sample_in_front(segment, window, normal, m, back)) out->area = -out->area;
    return true;
  }

  // On which side of the edge's line the pixel is sampled. Coverage is decided on corners rounded to 1/256 pixel: close
  // to the edge, and not at one of its ends, what the pixel shows has the last word.
  DR_HD bool is_sample_in_front(const EdgeSegment& segment, const WindowIds& window, Vec2<double> normal,
                                Vec2<double> m, int32_t back) const {
    const double distance = (kSampleX - m.x) * normal.x + (kSampleY - m.y) * normal.y;
    if (magnitude(distance) > kSnapSlack) return distance < 0;
    const double x = window.column + 0.5, y = window.row + 0.5;
    const auto along = [&](Vec3<double> end) { return (end.y - y) * normal.x - (end.x - x) * normal.y; };
    const double start = along(segment.start), stop = along(segment.stop);
    const double before = start < stop ? start : stop, after = start < stop ? stop : start;
    if (before > -2 * kSnapSlack || after < 2 * kSnapSlack) return distance < 0;
    constexpr int kCentre = 4;
    const int32_t id = window.id[kCentre];
    if (window.own[kCentre] && id != segment.seam) return true;
    return distance < 0 && id != back;
  }

  // The nearest triangle of the window behind the edge at m, or -1. False where one is in front of the edge.
  DR_HD static bool find_nearest(const Window& window, Vec2<double> m, double z, int32_t* back) {
    double nearest = kLargest<double>;
    *back = -1;
    for (int f = 0; f < window.count; ++f) {
      // An outline that coincides with the edge hides it where it is nearer, and is not behind it where it is not.
      const double inside = window.faces[f].inside(m);
      if (!(inside >= -kInsideSlack)) continue;
      const double depth = window.faces[f].depth.at(m);
      if (is_in_front(depth, z)) return false;
      if (inside > kInsideSlack && depth < nearest && magnitude(depth) <= 1) {
        nearest = depth;
        *back = window.face_id[f];
      }
    }
    return true;
  }

  // Where no triangle of the window is behind m: what the nearest sample on the outer side shows, if its surface goes
  // on to m. False where that is in front of the edge.
  DR_HD_CALL bool find_around(const EdgeSegment& segment, const WindowIds& window, Vec2<double> n, Vec2<double> m,
                              double z, int32_t* back) const {
    const Vec2<double> aside = hair_aside(m, n, 1);
    bool candidate[kWindowCells];
    for (int c = 0; c < kWindowCells; ++c) {
      candidate[c] = window.id[c] != -2 && !window.own[c] && is_sample_beyond(c, m, n);
    }
    while (true) {
      double best = kLargest<double>;
      int cell = -1;
      for (int c = 0; c < kWindowCells; ++c) {
        const double distance = cell_distance(c, aside);
        if (!candidate[c] || !(distance < best)) continue;
        best = distance;
        cell = c;
      }
      *back = cell < 0 ? -1 : window.id[cell];
      ScreenFace face;
      if (*back < 0 || !in.face(segment.item, *back, {window.column + 0.5, window.row + 0.5}, &face)) return true;
      if (!ends_before(segment.item, *back, face, m)) {
        return !(face.depth.at({window.cell_x(cell), window.cell_y(cell)}) < z);
      }
      for (int c = 0; c < kWindowCells; ++c) candidate[c] = candidate[c] && window.id[c] != *back;
    }
  }

  // Whether the surface that a triangle belongs to ends between the triangle and m: m lies beyond a border or a fold.
  DR_HD_CALL bool ends_before(int64_t item, int32_t triangle, const ScreenFace& face, Vec2<double> m) const {
    for (int k = 0; k < 3; ++k) {
      if (!(face.weight[k].at(m) < -kInsideSlack)) continue;
      const int32_t corner = 3 * triangle + k, twin = in.topology[corner];
      if (twin == -1) return true;
      if (twin < 0 || twin >= in.corner_count()) continue;
      const int side = in.side(item, triangle), other = in.side(item, twin / 3);
      if (other == 0 || (side == other) == in.same_direction(item, corner, twin)) return true;
    }
    return false;
  }

  // The pixels that hold the colours on both sides: the nearest that shows a triangle of the edge, or else a covered
  // one on the inner side, first of those that touch the edge; the nearest that shows `back`, or else a triangle that
  // touches it (but not at a seam, where they differ), or else one on the outer side. The background never stands in
  // for a surface: most folds have the other side of the same surface behind them, and an outline too many is worse
  // than none. False where one of the two colours shows nowhere near.
  DR_HD_CALL bool find_colors(const EdgeSegment& segment, const WindowIds& window, Vec2<double> n, Vec2<double> m,
                              int32_t back, EdgePiece* out) const {
    double front[3] = {kLargest<double>, kLargest<double>, kLargest<double>};  // own, touching, any
    double behind[2] = {kLargest<double>, kLargest<double>};                   // `back`, any
    int front_cell[3] = {-1, -1, -1}, back_cell[2] = {-1, -1};
    const Vec2<double> inner = hair_aside(m, n, -1), beyond = hair_aside(m, n, 1);
    const auto keep = [](double distance, int cell, double* best, int* best_cell) {
      if (distance < *best) {
        *best = distance;
        *best_cell = cell;
      }
    };
    for (int c = 0; c < kWindowCells; ++c) {
      const int32_t id = window.id[c];
      if (id == -2) continue;
      const double distance = cell_distance(c, inner), distance_behind = cell_distance(c, beyond);
      const bool outer = is_sample_beyond(c, m, n);
      const bool own = window.own[c] && id != segment.seam;
      if (own) keep(distance, c, &front[0], &front_cell[0]);
      if (id == back) keep(distance_behind, c, &behind[0], &back_cell[0]);
      if (!outer && id >= 0 && id != segment.seam) keep(distance, c, &front[2], &front_cell[2]);
      const bool may_stand_in = id >= 0 || back < 0;
      if (outer && !own && may_stand_in) keep(distance_behind, c, &behind[1], &back_cell[1]);
    }
    if (front_cell[0] < 0 && front_cell[2] >= 0) {
      for (int c = 0; c < kWindowCells; ++c) {
        if (window.id[c] < 0 || window.id[c] == segment.seam || is_sample_beyond(c, m, n)) continue;
        if (touches(segment, window.id[c])) keep(cell_distance(c, inner), c, &front[1], &front_cell[1]);
      }
    }
    if (back_cell[0] < 0 && back >= 0 && segment.seam < 0) {
      int32_t corners[3], others[3];
      for (int c = 0; c < kWindowCells && in.has(back) && in.mesh.indices(back, corners); ++c) {
        if (window.id[c] < 0 || !in.has(window.id[c]) || !in.mesh.indices(window.id[c], others)) continue;
        if (share_a_corner(in, segment.item, corners, others)) {
          keep(cell_distance(c, beyond), c, &behind[0], &back_cell[0]);
        }
      }
    }
    const int chosen = front_cell[0] >= 0 ? front_cell[0] : (front_cell[1] >= 0 ? front_cell[1] : front_cell[2]);
    const int other = back_cell[0] >= 0 ? back_cell[0] : back_cell[1];
    out->front = static_cast<int16_t>(chosen);
    out->back = static_cast<int16_t>(other);
    return chosen >= 0 && other >= 0;
  }

  // Whether a triangle has a corner at one end of the edge.
  DR_HD_CALL bool touches(const EdgeSegment& segment, int32_t triangle) const {
    int32_t index[3], a, b;
    if (triangle >= in.mesh.triangle_count || !in.mesh.indices(triangle, index)) return false;
    in.edge_vertices(segment.corner, &a, &b);
    for (int i = 0; i < 3; ++i) {
      if (in.same_place(segment.item, index[i], a) || in.same_place(segment.item, index[i], b)) return true;
    }
    return false;
  }
};

}  // namespace diffrender
