// Edge walk, part 7: the picture and its derivative from visible pieces.
//
//   I_p = C_p + sum over the pieces s in p of A_s (C_far - C_near)
// with A_s the area that s hides from the pixel's centre, near = the side of the centre. Constant colours per surface
// make this the exact mean over the pixel, however many pieces there are and wherever the centre lies.
#pragma once

#include "segments_exact.h"
#include "segments_sums.h"
#include "segments_threads.h"

namespace diffrender {

// Kernel: hands the pieces that Source visits (EdgePairs, CrossingPixels, on the CPU a PieceList) to Use.
template <class Source, class Use>
struct UsePieces {
  Source source;
  Use use;

  DR_HD void operator()(int64_t begin, int64_t end) const {
    source.for_each_place(begin, end, [&](int64_t place) {
      if (place >= 0) source.visit_place(place, [](int64_t) { return true; }, use);
    });
  }
};

// Marks the pairs of neighbouring pixels whose centres a visible piece parts.
struct MarkParted {
  uint8_t* parted;  // [B, H, W, 2] to the right, downwards; zero on entry
  int32_t width, height;

  DR_HD void operator()(const EdgePiece& piece) const {
    const int64_t line = piece.pixel / width, row = line % height;
    const int64_t column = piece.pixel - line * width;
    mark(piece.pixel, piece.x, piece.half_x, piece.y, piece.half_y, column, width, 1, 0);
    mark(piece.pixel, piece.y, piece.half_y, piece.x, piece.half_x, row, height, width, 1);
  }

  // Where the piece meets the line v = 0 through the centre, and on which side of it.
  DR_HD void mark(int64_t pixel, double u, double half_u, double v, double half_v, int64_t place, int32_t size,
                  int64_t stride, int axis) const {
    const double start = v - half_v, stop = v + half_v;
    if (start * stop > 0 || half_v == 0) return;
    const double at = u - v / half_v * half_u;
    if (at >= 0 && place + 1 < size) set_flag(parted + 2 * pixel + axis);
    if (at <= 0 && place > 0) set_flag(parted + 2 * (pixel - stride) + axis);
  }
};

// Adds the pieces of each pixel to the picture, in any order.
template <class scalar_t>
struct BlendPiece {
  using Sum = ColorSum;
  static constexpr int kValues = kChannelsAtOnce;

  const scalar_t* image;  // [B, H, W, C]
  int32_t channels, width;

  DR_HD bool wants(int64_t) const { return true; }
  DR_HD void add(const EdgePiece& piece, Sum* sum) const { sum->add(piece); }

  DR_HD scalar_t value(const Sum& sum, int32_t c) const {
    const scalar_t front = image[cell_pixel(sum.pixel, sum.front, width) * channels + c];
    const scalar_t back = image[cell_pixel(sum.pixel, sum.back, width) * channels + c];
    return static_cast<scalar_t>(sum.area) * (back - front);
  }

  DR_HD void flush(const Sum& sum, const Sink<scalar_t>& sink) const {
    for (int32_t c = 0; c < channels; ++c) accumulate(sink, sum.pixel * channels + c, value(sum, c));
  }

  // The same, for pixels in [first, last) only.
  DR_HD void flush_within(const Sum& sum, int64_t first, int64_t last, const Sink<scalar_t>& sink) const {
    if (sum.pixel >= first && sum.pixel < last) flush(sum, sink);
  }

  DR_HD void flush_by_warp(const Sum& sum, const Sink<scalar_t>& sink) const {
    if (!warp_any(sum.area != 0)) return;
    add_channels_by_warp(sink, sum.area != 0, sum.pixel * channels, channels, [&](int32_t c) { return value(sum, c); });
  }
};

template <class scalar_t>
DR_HD bool any_channel(const scalar_t* grad_result, int64_t pixel, int32_t channels) {
  bool any = false;
  for (int32_t c = 0; c < channels; ++c) any = any || grad_result[pixel * channels + c] != 0;
  return any;
}

// grad_C_far += A G_p, grad_C_near -= A G_p, on top of grad_C_p = G_p.
template <class scalar_t>
struct BlendBackwardImage {
  using Sum = ColorSum;
  static constexpr int kValues = kChannelsAtOnce;

  const scalar_t* grad_result;  // [B, H, W, C]
  int32_t channels, width;

  DR_HD bool wants(int64_t pixel) const { return any_channel(grad_result, pixel, channels); }

  DR_HD void add(const EdgePiece& piece, Sum* sum) const {
    if (piece.front != piece.back) sum->add(piece);
  }

  DR_HD void flush(const Sum& sum, const Sink<scalar_t>& sink) const { flush_within(sum, 0, INT64_MAX, sink); }

  DR_HD void flush_within(const Sum& sum, int64_t first, int64_t last, const Sink<scalar_t>& sink) const {
    const scalar_t area = static_cast<scalar_t>(sum.area);
    const int64_t front = cell_pixel(sum.pixel, sum.front, width), back = cell_pixel(sum.pixel, sum.back, width);
    const bool to_back = back >= first && back < last, to_front = front >= first && front < last;
    for (int32_t c = 0; c < channels; ++c) {
      const scalar_t g = area * grad_result[sum.pixel * channels + c];
      if (to_back) accumulate(sink, back * channels + c, g);
      if (to_front) accumulate(sink, front * channels + c, -g);
    }
  }

  DR_HD void flush_by_warp(const Sum& sum, const Sink<scalar_t>& sink) const {
    if (!warp_any(sum.area != 0)) return;
    for (int side = 0; side < 2; ++side) {
      const scalar_t area = static_cast<scalar_t>(side == 0 ? sum.area : -sum.area);
      const int64_t target = cell_pixel(sum.pixel, side == 0 ? sum.back : sum.front, width);
      add_channels_by_warp(sink, sum.area != 0, target * channels, channels,
                           [&](int32_t c) { return area * grad_result[sum.pixel * channels + c]; });
    }
  }
};

// The colour jump J = <G_p, C_front - C_back> at the middle of a piece. Colours come from pixels, half a pixel away on
// average, so each is carried on to the piece along the line through a second pixel further from it; not where that
// pixel seems to show another surface or lies beyond a seam, and not where it changes the colour by more than half of
// the jump.
template <class scalar_t>
struct ColorJump {
  SegmentMesh in;
  const int32_t* triangle_id;   // [B, H, W]
  const scalar_t* image;        // [B, H, W, C]
  const scalar_t* grad_result;  // [B, H, W, C]
  int32_t channels;

  struct Side {
    int64_t near, far;  // pixels
    double weight;      // C = C_near + weight (C_far - C_near)
  };

  DR_HD_CALL Side extrapolate(const EdgePiece& piece, int cell) const {
    const int64_t width = in.viewport.width, size = width * in.viewport.height;
    const int64_t item = piece.pixel / size;
    Side side{cell_pixel(piece.pixel, cell, in.viewport.width), 0, 0};
    side.far = side.near;
    const int64_t within = side.near - item * size;
    const int32_t row = static_cast<int32_t>(within / width), column = static_cast<int32_t>(within - row * width);
    const double dx = cell % 3 - 1 - piece.x, dy = cell / 3 - 1 - piece.y;
    const double longest = magnitude(dx) > magnitude(dy) ? magnitude(dx) : magnitude(dy);
    if (!(longest > 1e-6)) return side;
    // The next of the eight neighbours in the direction away from the piece; tan(22.5 degrees) = 0.41.
    const int step_x = magnitude(dx) > 0.41 * longest ? (dx > 0 ? 1 : -1) : 0;
    const int step_y = magnitude(dy) > 0.41 * longest ? (dy > 0 ? 1 : -1) : 0;
    if (column + step_x < 0 || column + step_x >= width || row + step_y < 0 || row + step_y >= in.viewport.height) {
      return side;
    }
    const int64_t far = side.near + step_y * width + step_x;
    const int32_t f = triangle_id[side.near], g = triangle_id[far];
    if (f < 0 || g < 0 || f >= in.mesh.triangle_count || g >= in.mesh.triangle_count) return side;
    if (f != g && in.seams != nullptr && !is_smooth(item, f, g)) return side;
    if (f != g) {
      // A step in depth larger than both slopes explain is another surface.
      ScreenFace face_f, face_g;
      const Vec2<double> origin{column + 0.5, row + 0.5};
      if (!in.face(item, f, origin, &face_f) || !in.face(item, g, origin, &face_g)) return side;
      const Vec2<double> there{static_cast<double>(step_x), static_cast<double>(step_y)};
      const double step = face_g.depth.at(there) - face_f.depth.constant;
      if (!(magnitude(step) <= 1.5 * (slope(face_f) + slope(face_g)) + kDepthSlack)) return side;
    }
    side.far = far;
    side.weight = -(dx * step_x + dy * step_y) / (step_x * step_x + step_y * step_y);
    return side;
  }

  // Whether two triangles have an attribute of one corner in common, so that colours go on from one to the other.
  DR_HD bool is_smooth(int64_t item, int32_t f, int32_t g) const {
    const int32_t* const t = in.mesh.triangles;
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j < 3; ++j) {
        const int64_t a = static_cast<int64_t>(f) * 3 + i, b = static_cast<int64_t>(g) * 3 + j;
        if (in.seams[a] == in.seams[b] && in.same_place(item, t[a], t[b])) return true;
      }
    }
    return false;
  }

  DR_HD static double slope(const ScreenFace& face) {
    return std::sqrt(face.depth.x * face.depth.x + face.depth.y * face.depth.y);
  }

  DR_HD_CALL double at(const EdgePiece& piece) const {
    const Side front = extrapolate(piece, piece.front), back = extrapolate(piece, piece.back);
    const scalar_t* const f0 = image + front.near * channels;
    const scalar_t* const f1 = image + front.far * channels;
    const scalar_t* const b0 = image + back.near * channels;
    const scalar_t* const b1 = image + back.far * channels;
    const scalar_t* const g = grad_result + piece.pixel * channels;
    double jump = 0, front_change = 0, back_change = 0;   // times the cotangent
    double jump_size = 0, front_size = 0, back_size = 0;  // squares
    for (int32_t c = 0; c < channels; ++c) {
      const double grad = g[c], difference = static_cast<double>(f0[c]) - static_cast<double>(b0[c]);
      const double df = front.weight * (static_cast<double>(f1[c]) - static_cast<double>(f0[c]));
      const double db = back.weight * (static_cast<double>(b1[c]) - static_cast<double>(b0[c]));
      jump += grad * difference;
      front_change += grad * df;
      back_change += grad * db;
      jump_size += difference * difference;
      front_size += df * df;
      back_size += db * db;
    }
    if (front_size <= 0.25 * jump_size) jump += front_change;
    if (back_size <= 0.25 * jump_size) jump -= back_change;
    return jump;
  }
};

// Moves a gradient with respect to p = to_pixels(v, origin) on to the x, y and w of v, and adds it to those.
template <class scalar_t>
DR_HD void add_pixel_gradient(const Viewport<double>& viewport, Vec2<double> origin, Vec3<double> grad_p, scalar_t* x,
                              scalar_t* y, scalar_t* w) {
  *x += static_cast<scalar_t>(viewport.half_width * grad_p.x);
  *y += static_cast<scalar_t>(-viewport.half_height * grad_p.y);
  *w += static_cast<scalar_t>(grad_p.z + (viewport.half_width - origin.x) * grad_p.x +
                              (viewport.half_height - origin.y) * grad_p.y);
}

// Adds to the x, y, z and w of a vertex.
template <class scalar_t>
DR_HD_CALL void add_to_vertex(const Sink<scalar_t>& sink, int64_t base, Vec4<scalar_t> value) {
  accumulate(sink, base + 0, value.x);
  accumulate(sink, base + 1, value.y);
  if (value.z != 0) accumulate(sink, base + 2, value.z);
  accumulate(sink, base + 3, value.w);
}

// Gradient of the edge pieces to the clip positions. Where the picture changes by J when an edge is passed,
//   dL = J * integral over the piece of (motion of the edge along its outward normal).
// The edge is the line l . (x, y, 1) = 0 with l = p_a x p_b, its triangles lie where side * l . (x, y, 1) > 0, and a
// change of l moves the point m outwards by side * dl . m / |l_xy|. This is affine along the piece, so its middle times
// the length is the integral. With the origin at m, m = (0, 0, 1):
//   kappa = J side length / |l_xy|,   grad_l = (0, 0, kappa)
//   grad_p_a = p_b x grad_l = kappa (p_b.y, -p_b.x, 0),   grad_p_b = grad_l x p_a = kappa (-p_a.y, p_a.x, 0)
// No division by a vertex's w: holds for edges with one end behind the eye.
template <class scalar_t>
struct EdgeBackward {
  static constexpr int kValues = 6;  // x, y, w of the two ends
  using Sum = VertexSum<scalar_t, kValues>;

  ColorJump<scalar_t> jump;

  DR_HD bool wants(int64_t pixel) const { return any_channel(jump.grad_result, pixel, jump.channels); }

  DR_HD void add(const EdgePiece& piece, Sum* sum) const {
    const SegmentMesh& in = jump.in;
    const double strength = jump.at(piece);
    if (strength == 0) return;
    const int64_t width = in.viewport.width, size = width * in.viewport.height;
    const int64_t item = piece.pixel / size, within = piece.pixel - item * size, row = within / width;
    const Vec2<double> m{within - row * width + 0.5 + piece.x, row + 0.5 + piece.y};
    int32_t a, b;
    in.edge_vertices(piece.first, &a, &b);
    const Vec3<double> p = to_pixels(in.vertex(item, a), in.viewport, m);
    const Vec3<double> q = to_pixels(in.vertex(item, b), in.viewport, m);
    const double lx = p.y * q.z - p.z * q.y, ly = p.z * q.x - p.x * q.z;
    const double kappa = strength * piece.second * piece.length / std::sqrt(lx * lx + ly * ly);
    scalar_t* const v = sum->values;
    sum->own(piece);
    add_pixel_gradient(in.viewport, m, {kappa * q.y, -kappa * q.x, 0}, v, v + 1, v + 2);
    add_pixel_gradient(in.viewport, m, {-kappa * p.y, kappa * p.x, 0}, v + 3, v + 4, v + 5);
  }

  DR_HD int64_t item_of(const Sum& sum) const {
    return sum.pixel / (static_cast<int64_t>(jump.in.viewport.width) * jump.in.viewport.height);
  }

  DR_HD int64_t key(const Sum& sum) const { return item_of(sum) * jump.in.corner_count() + sum.first; }

  DR_HD void flush(const Sum& sum, const Sink<scalar_t>& sink) const {
    int32_t ends[2];
    jump.in.edge_vertices(sum.first, &ends[0], &ends[1]);
    const int64_t first = item_of(sum) * jump.in.mesh.item_stride;
    for (int i = 0; i < 2; ++i) {
      const scalar_t* const v = sum.values + 3 * i;
      add_to_vertex(sink, first + static_cast<int64_t>(ends[i]) * 4, {v[0], v[1], 0, v[2]});
    }
  }

  DR_HD void flush_by_warp(Sum& sum, const Sink<scalar_t>& sink) const { add_vertices_by_warp(*this, sum, sink); }
};

// Gradient of the crossing pieces. The line d = z_f - z_g = 0 moves along its normal by -dd / |grad d|, away from f:
//   e = -J length / |grad d|,   grad_z_f(m) = e,   grad_z_g(m) = -e
// (`length` of such a piece is divided by |grad d| already). With p relative to m, q_i = (p_i.x, p_i.y) and
// a_i = q_j x q_k:  z(m) = sum a_i z_i / P, P = sum a_i w_i:
//   grad_z_i = e a_i / P,  grad_w_i = -z(m) e a_i / P,  grad_a_i = e (z_i - z(m) w_i) / P,  then through a_i.
template <class scalar_t>
struct CrossingBackward {
  static constexpr int kValues = 24;  // x, y, z, w of the corners of both triangles
  using Sum = VertexSum<scalar_t, kValues>;

  ColorJump<scalar_t> jump;

  DR_HD bool wants(int64_t pixel) const { return any_channel(jump.grad_result, pixel, jump.channels); }

  DR_HD void add(const EdgePiece& piece, Sum* sum) const {
    const SegmentMesh& in = jump.in;
    const double strength = -jump.at(piece) * piece.length;
    if (strength == 0) return;
    const int64_t width = in.viewport.width, size = width * in.viewport.height;
    const int64_t item = piece.pixel / size, within = piece.pixel - item * size, row = within / width;
    const Vec2<double> m{within - row * width + 0.5 + piece.x, row + 0.5 + piece.y};
    sum->own(piece);
    add_depth(item, piece.first, m, strength, sum->values);
    add_depth(item, piece.second, m, -strength, sum->values + 12);
  }

  DR_HD_CALL void add_depth(int64_t item, int32_t triangle, Vec2<double> m, double e, scalar_t* values) const {
    const SegmentMesh& in = jump.in;
    int32_t index[3];
    Vec4<double> v[3];
    if (!in.corners(item, triangle, index, v)) return;
    Vec2<double> q[3], grad_q[3] = {{0, 0}, {0, 0}, {0, 0}};
    for (int i = 0; i < 3; ++i) {
      const Vec3<double> p = to_pixels(v[i], in.viewport, m);
      q[i] = {p.x, p.y};
    }
    const double a[3] = {cross(q[1], q[2]), cross(q[2], q[0]), cross(q[0], q[1])};
    const double scale = e * reciprocal_or_zero(a[0] * v[0].w + a[1] * v[1].w + a[2] * v[2].w);
    const double z = depth_at(v, a);
    for (int i = 0; i < 3; ++i) {
      const int j = (i + 1) % 3, k = (i + 2) % 3;
      cross_backward(q[j], q[k], scale * (v[i].z - z * v[i].w), &grad_q[j], &grad_q[k]);
    }
    for (int i = 0; i < 3; ++i) {
      scalar_t* const corner = values + 4 * i;
      corner[2] += static_cast<scalar_t>(scale * a[i]);
      add_pixel_gradient(in.viewport, m, {grad_q[i].x, grad_q[i].y, -z * scale * a[i]}, corner, corner + 1, corner + 3);
    }
  }

  DR_HD int64_t item_of(const Sum& sum) const {
    return sum.pixel / (static_cast<int64_t>(jump.in.viewport.width) * jump.in.viewport.height);
  }

  // Another one for each pair of triangles in a warp, even where it passes 2^64: pixels of a warp belong to less than
  // 32 items, and 32 T^2 < 2^64 for T < 2^31 / 3.
  DR_HD int64_t key(const Sum& sum) const {
    const uint64_t triangles = static_cast<uint64_t>(jump.in.mesh.triangle_count);
    return static_cast<int64_t>((static_cast<uint64_t>(item_of(sum)) * triangles + sum.first) * triangles + sum.second);
  }

  DR_HD void flush(const Sum& sum, const Sink<scalar_t>& sink) const {
    const int64_t first = item_of(sum) * jump.in.mesh.item_stride;
    for (int t = 0; t < 2; ++t) {
      int32_t index[3];
      if (!jump.in.mesh.indices(t == 0 ? sum.first : sum.second, index)) continue;
      for (int i = 0; i < 3; ++i) {
        const scalar_t* const v = sum.values + 12 * t + 4 * i;
        add_to_vertex(sink, first + static_cast<int64_t>(index[i]) * 4, {v[0], v[1], v[2], v[3]});
      }
    }
  }

  DR_HD void flush_by_warp(Sum& sum, const Sink<scalar_t>& sink) const { add_vertices_by_warp(*this, sum, sink); }
};

}  // namespace diffrender
