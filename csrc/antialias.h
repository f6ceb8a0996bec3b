// Antialiasing over pixel pairs: where a silhouette edge passes between the centres of two neighbouring pixels, the one
// that it covers in part takes some of the other's colour. The blend moves with the edge, which is what gives vertices
// a gradient through visibility.
//
// Owner of a pair = the surface whose edge it is: the covered pixel's, or the nearer of two. From the owner's triangle
// the way to the other centre is followed across inner edges, triangle by triangle, until it meets an outline edge;
// near an outline triangles are grazing, and the one with the edge rarely owns a pixel centre itself.
//
// In homogeneous pixel space relative to the owner's centre, p_i = ((x_i - fx w_i) W/2, -(y_i - fy w_i) H/2, w_i), the
// edge opposite corner k is the line l_k = p_i x p_j with l_k . (X, Y, 1) = e_k(X, Y), valid for vertices behind the
// camera too. The centres are u = +-1 apart along axis a; the edge is crossed at the fraction
// t = e(0) / (e(0) - e(u)) = -u l_c / l_a, and with n_a^2 = l_a^2 / (l_x^2 + l_y^2), the share of this axis in the
// edge's normal,
//   alpha = n_a^2 (1/2 - t):  > 0: the owner's pixel takes alpha of the other;  < 0: the other takes -alpha of the
//   owner.
// Weighting by n_a^2 counts each edge once over horizontal and vertical pairs and keeps alpha smooth in the slope.
// A pixel's up to four weights are divided by max(1, their sum): its colour stays a mean of input colours.
#pragma once

#include "antialias_outline.h"
#include "core/scatter.h"

namespace diffrender {

// How far beyond either centre, in pixels, an edge may lie and still belong to the pair: coverage is decided on snapped
// corners, which may differ from the edge by 1/512 pixel, more along the edge's direction. Weights go on growing there,
// so that an edge keeps its derivative when it lies on a centre.
constexpr float kCrossingSlack = 1.0f / 16;

// Triangles that the way between two centres may cross before the pair is given up.
constexpr int kMaximumSteps = 16;

template <class scalar_t>
struct AntialiasInput {
  RasterMesh<scalar_t> mesh;
  Viewport<scalar_t> viewport;
  const int32_t* triangle_id;  // [B, H, W]
  const uint8_t* silhouette;   // [B or 1, T]
  int64_t silhouette_stride;   // T, or 0 where the batch shares positions
  const int32_t* topology;     // [T, 3]
  const uint8_t* crossed;      // [2, B, H, W] whether an outline edge may cross the pair to the right / downwards
  int64_t pixel_count;         // B * H * W

  // One pair as its receiving pixel sees it.
  struct Pair {
    scalar_t weight;         // share of the other pixel's colour, before the limit on their sum; see pair()
    int32_t triangle;        // owner
    int corner;              // the edge lies opposite to this corner
    Vec3<scalar_t> line;     // l
    Vec3<scalar_t> ends[2];  // p of the edge's two corners
    scalar_t fx, fy;         // NDC of the owner's pixel centre
    scalar_t sign;           // weight = sign * alpha
    scalar_t step;           // u
    scalar_t t;
    int axis;  // a

    DR_HD bool taken_here() const { return weight > 0 || (weight == 0 && sign > 0); }
  };

  DR_HD int64_t pixels_per_item() const { return static_cast<int64_t>(viewport.width) * viewport.height; }

  // Whether an outline edge may cross the pair of a pixel and its neighbour.
  DR_HD bool marked(int64_t pixel, int64_t other, int axis, int direction) const {
    return crossed[axis * pixel_count + (direction > 0 ? pixel : other)] != 0;
  }

  DR_HD bool is_outline(int64_t item, int32_t triangle, int corner) const {
    return (silhouette[item * silhouette_stride + triangle] >> corner & 1) != 0;
  }

  // Whether an outline edge blends the pixel at (column, row) and its neighbour, whose ids are `here` and `there`. The
  // weight is positive if this pixel takes part of the neighbour's colour, negative if the neighbour takes part of its.
  // At zero, an edge half way between the centres, it is the owner's pixel that takes: the value is nothing, but not
  // its derivative.
  DR_HD bool pair(int64_t item, int32_t column, int32_t row, int32_t here, int32_t there, int axis, int direction,
                  Pair* out) const {
    if (here == there || (here < 0 && there < 0)) return false;
    if (here >= mesh.triangle_count || there >= mesh.triangle_count) return false;
    const int32_t other_column = column + (axis == 0 ? direction : 0), other_row = row + (axis == 1 ? direction : 0);
    bool mine = there < 0;  // the owner's pixel is this one
    if (here >= 0 && there >= 0) {
      scalar_t key_here, key_there;
      if (!visibility_key(mesh, viewport, item, here, column, row, &key_here) ||
          !visibility_key(mesh, viewport, item, there, other_column, other_row, &key_there)) {
        return false;
      }
      mine = key_here < key_there || (key_here == key_there && here < there);
    }
    out->fx = viewport.center_x(mine ? column : other_column);
    out->fy = viewport.center_y(mine ? row : other_row);
    out->step = static_cast<scalar_t>(mine ? direction : -direction);
    out->axis = axis;
    if (!find_edge(item, mine ? here : there, mine ? there : here, out)) return false;
    const scalar_t along = axis == 0 ? out->line.x : out->line.y;
    const scalar_t inverse = reciprocal_or_zero(out->line.x * out->line.x + out->line.y * out->line.y);
    const scalar_t alpha = along * along * inverse * (scalar_t(0.5) - out->t);
    out->sign = mine ? scalar_t(1) : scalar_t(-1);
    out->weight = out->sign * alpha;
    return true;
  }

  // Follows the way from the owner's centre to the other one up to the first outline edge.
  DR_HD bool find_edge(int64_t item, int32_t triangle, int32_t target, Pair* out) const {
    for (int step = 0; step < kMaximumSteps && triangle != target; ++step) {
      int32_t index[3];
      if (!mesh.indices(triangle, index)) return false;
      Vec3<scalar_t> p[3];
      for (int i = 0; i < 3; ++i) {
        const Vec4<scalar_t> v = mesh.vertex(item, index[i]);
        p[i] = {(v.x - out->fx * v.w) * viewport.half_width, -(v.y - out->fy * v.w) * viewport.half_height, v.w};
      }
      const scalar_t orientation = dot(p[0], cross(p[1], p[2]));
      if (!(orientation > 0) && !(orientation < 0)) return false;
      // The edge that the way leaves this triangle through: of those it crosses outwards, the first.
      scalar_t nearest = kLargest<scalar_t>;
      for (int k = 0; k < 3; ++k) {
        const Vec3<scalar_t> line = cross(p[(k + 1) % 3], p[(k + 2) % 3]);
        const scalar_t at_owner = orientation > 0 ? line.z : -line.z;
        const scalar_t slope = (orientation > 0 ? out->step : -out->step) * (out->axis == 0 ? line.x : line.y);
        if (!(slope < 0)) continue;
        const scalar_t t = at_owner / -slope;
        if (!(t < nearest) || t < -kCrossingSlack) continue;
        nearest = t;
        out->corner = k;
        out->line = line;
      }
      // Far inside of this triangle at the other centre: faces cross between the two.
      if (!(nearest <= 1 + kCrossingSlack)) return false;
      if (is_outline(item, triangle, out->corner)) {
        out->triangle = triangle;
        out->t = nearest;
        out->ends[0] = p[(out->corner + 1) % 3];
        out->ends[1] = p[(out->corner + 2) % 3];
        return true;
      }
      triangle = topology[static_cast<int64_t>(triangle) * 3 + out->corner] / 3;
    }
    return false;
  }
};

// The pairs of one pixel: offset to each neighbour in the image, and its place relative to the pixel.
template <class scalar_t>
struct PixelPairs {
  static constexpr int kNeighbours = 4;
  typename AntialiasInput<scalar_t>::Pair pair[kNeighbours];
  int64_t other[kNeighbours];  // pixel index
  int side[kNeighbours];       // left, right, up, down
  int count;
  scalar_t total;  // sum of the weights

  DR_HD scalar_t scale() const { return total > 1 ? 1 / total : scalar_t(1); }
};

// Reads ids of a pixel's neighbours in the order left, right, up, down; false at the image border.
struct Neighbourhood {
  int64_t pixel, item;
  int32_t column, row, width, height;

  DR_HD Neighbourhood(int64_t index, int32_t w, int32_t h) : pixel(index), width(w), height(h) {
    const int64_t size = static_cast<int64_t>(w) * h;
    item = index / size;
    const int64_t within = index - item * size;
    row = static_cast<int32_t>(within / w);
    column = static_cast<int32_t>(within - static_cast<int64_t>(row) * w);
  }

  DR_HD bool neighbour(int side, int* axis, int* direction, int64_t* other) const {
    *axis = side / 2;
    *direction = (side % 2) * 2 - 1;
    const int32_t place = (*axis == 0 ? column : row) + *direction;
    *other = pixel + *direction * (*axis == 0 ? int64_t(1) : int64_t(width));
    return place >= 0 && place < (*axis == 0 ? width : height);
  }
};

// Calls body(pixel) for the pixels of a range with a pair that an outline edge may cross. Pairs across the border of
// the image are never marked, so reading the mark of the pixel before or above is right even there.
template <class scalar_t, class F>
DR_HD void for_each_near_outline(const AntialiasInput<scalar_t>& in, int64_t begin, int64_t end, const F& body) {
  const uint8_t* const right = in.crossed;
  const uint8_t* const down = in.crossed + in.pixel_count;
  const int64_t width = in.viewport.width;
  constexpr int64_t kWord = 8;
  for (int64_t pixel = begin; pixel < end;) {
    // Far from the outline, eight pixels at a time.
    if (pixel + kWord <= end && pixel >= width && pixel >= 1) {
      const uint64_t marks = load_word(right + pixel) | load_word(right + pixel - 1) | load_word(down + pixel) |
                             load_word(down + pixel - width);
      if (marks == 0) {
        pixel += kWord;
        continue;
      }
    }
    const int64_t stop = pixel + kWord < end ? pixel + kWord : end;
    for (; pixel < stop; ++pixel) {
      const int64_t left = pixel > 0 ? pixel - 1 : 0, up = pixel >= width ? pixel - width : pixel;
      if ((right[pixel] | down[pixel] | right[left] | down[up]) != 0) body(pixel);
    }
  }
}

template <class scalar_t>
DR_HD void gather_pairs(const AntialiasInput<scalar_t>& in, int64_t pixel, PixelPairs<scalar_t>* out) {
  const Neighbourhood place(pixel, in.viewport.width, in.viewport.height);
  const int32_t here = in.triangle_id[pixel];
  out->count = 0;
  out->total = 0;
  for (int side = 0; side < PixelPairs<scalar_t>::kNeighbours; ++side) {
    int axis, direction;
    int64_t other;
    if (!place.neighbour(side, &axis, &direction, &other)) continue;
    if (!in.marked(pixel, other, axis, direction)) continue;
    auto* const pair = &out->pair[out->count];
    if (!in.pair(place.item, place.column, place.row, here, in.triangle_id[other], axis, direction, pair)) continue;
    if (!pair->taken_here()) continue;
    out->side[out->count] = side;
    out->other[out->count++] = other;
    out->total += pair->weight;
  }
}

template <class scalar_t>
struct AntialiasForward {
  AntialiasInput<scalar_t> in;
  const scalar_t* image;  // [B, H, W, C]
  scalar_t* result;       // [B, H, W, C]
  int32_t channels;

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin * channels; i < end * channels; ++i) result[i] = image[i];
    for_each_near_outline(in, begin, end, [&](int64_t pixel) {
      PixelPairs<scalar_t> pairs;
      gather_pairs(in, pixel, &pairs);
      if (pairs.count == 0) return;
      const scalar_t scale = pairs.scale();
      for (int32_t c = 0; c < channels; ++c) {
        const scalar_t own = image[pixel * channels + c];
        scalar_t sum = 0;
        for (int m = 0; m < pairs.count; ++m) {
          sum += pairs.pair[m].weight * (image[pairs.other[m] * channels + c] - own);
        }
        result[pixel * channels + c] = own + scale * sum;
      }
    });
  }
};

// What a pixel takes of each of its four neighbours, after the limit on their sum. Written for every pixel near an
// outline, and read nowhere else.
template <class scalar_t>
DR_HD void write_weights(const PixelPairs<scalar_t>& pairs, int64_t pixel, scalar_t* weights) {
  scalar_t* const out = weights + pixel * PixelPairs<scalar_t>::kNeighbours;
  for (int side = 0; side < PixelPairs<scalar_t>::kNeighbours; ++side) out[side] = 0;
  const scalar_t scale = pairs.scale();
  for (int m = 0; m < pairs.count; ++m) out[pairs.side[m]] = scale * pairs.pair[m].weight;
}

// Where no gradient to the positions is asked for, which finds the weights on its way.
template <class scalar_t>
struct AntialiasWeights {
  AntialiasInput<scalar_t> in;
  scalar_t* weights;  // [B, H, W, 4]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for_each_near_outline(in, begin, end, [&](int64_t pixel) {
      PixelPairs<scalar_t> pairs;
      gather_pairs(in, pixel, &pairs);
      write_weights(pairs, pixel, weights);
    });
  }
};

// Every weight that touches a pixel's colour: what it keeps of itself, and what neighbours take of it.
//   grad_C_p = (1 - sum_m w_pm) G_p + sum over neighbours q that take from p of w_qp G_q
template <class scalar_t>
struct AntialiasBackwardImage {
  AntialiasInput<scalar_t> in;
  const scalar_t* weights;      // [B, H, W, 4]
  const scalar_t* grad_result;  // [B, H, W, C]
  scalar_t* grad_image;         // [B, H, W, C]
  int32_t channels;

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin * channels; i < end * channels; ++i) grad_image[i] = grad_result[i];
    for_each_near_outline(in, begin, end, [&](int64_t pixel) { add_pixel(pixel); });
  }

  DR_HD void add_pixel(int64_t pixel) const {
    constexpr int kNeighbours = PixelPairs<scalar_t>::kNeighbours;
    const Neighbourhood place(pixel, in.viewport.width, in.viewport.height);
    scalar_t taken = 0, given[kNeighbours];
    int64_t takers[kNeighbours];
    int count = 0;
    for (int side = 0; side < kNeighbours; ++side) {
      int axis, direction;
      int64_t other;
      if (!place.neighbour(side, &axis, &direction, &other) || !in.marked(pixel, other, axis, direction)) continue;
      taken += weights[pixel * kNeighbours + side];
      const scalar_t share = weights[other * kNeighbours + (side ^ 1)];
      if (share == 0) continue;
      given[count] = share;
      takers[count++] = other;
    }
    const scalar_t kept = 1 - (taken < 1 ? taken : scalar_t(1));
    for (int32_t c = 0; c < channels; ++c) {
      scalar_t sum = kept * grad_result[pixel * channels + c];
      for (int m = 0; m < count; ++m) sum += given[m] * grad_result[takers[m] * channels + c];
      grad_image[pixel * channels + c] = sum;
    }
  }
};

// Gradient to the clip positions. For a receiving pixel p with weights a_m, N = max(1, sum a_m) and
// J_m = <G_p, C_m - C_p>:   grad_a_m = J_m where N = 1, else (J_m - sum_k a_k J_k / N) / N.
// With D = l_x^2 + l_y^2 and other axis b, alpha = n_a^2 (1/2 - t) = (l_a^2 / 2 + u l_c l_a) / D:
//   grad_l_a = (l_a + u l_c - 2 alpha l_a) / D,   grad_l_b = -2 alpha l_b / D,   grad_l_c = u l_a / D
// Then l = p_i x p_j and p = ((x - fx w) W/2, -(y - fy w) H/2, w).
template <class scalar_t>
struct AntialiasBackwardPositions {
  AntialiasInput<scalar_t> in;
  const scalar_t* image;        // [B, H, W, C]
  const scalar_t* grad_result;  // [B, H, W, C]
  int32_t channels;
  scalar_t* weights;  // [B, H, W, 4] for the gradient to the image, or null

  static constexpr int kValues = 6;  // x, y, w of the two ends of an edge; launch_scatter hands it to whole warps
  static constexpr int kNeighbours = PixelPairs<scalar_t>::kNeighbours;

  DR_HD void operator()(int64_t begin, int64_t end, const Sink<scalar_t>& sink) const {
    if constexpr (kHasWarps) {
      // A range is one pixel, or none. Neighbours mostly see the same edge, and add up before one of them writes.
      PixelPairs<scalar_t> pairs;
      scalar_t grad_weights[kNeighbours];
      pairs.count = 0;
      for_each_near_outline(in, begin, end, [&](int64_t pixel) { gradients(pixel, &pairs, grad_weights); });
      for (int m = 0; warp_any(m < pairs.count); ++m) {
        const bool live = m < pairs.count && grad_weights[m] != 0;
        scalar_t values[kValues] = {};
        int64_t item = 0, key = -1;
        if (live) {
          item = begin / in.pixels_per_item();
          key = item * 3 * in.mesh.triangle_count + 3 * static_cast<int64_t>(pairs.pair[m].triangle) +
                pairs.pair[m].corner;
          edge_gradient(pairs.pair[m], grad_weights[m], values);
        }
        const uint32_t peers = warp_match(static_cast<uint64_t>(key));
        sum_in_lowest_lane(peers, values);
        if (live && warp_lane() == lowest_lane(peers)) flush(item, pairs.pair[m], values, sink);
      }
    } else {
      for_each_near_outline(in, begin, end, [&](int64_t pixel) { add_pixel(pixel, sink); });
    }
  }

  DR_HD void add_pixel(int64_t pixel, const Sink<scalar_t>& sink) const {
    PixelPairs<scalar_t> pairs;
    scalar_t grad_weights[kNeighbours];
    gradients(pixel, &pairs, grad_weights);
    for (int m = 0; m < pairs.count; ++m) {
      if (grad_weights[m] == 0) continue;
      scalar_t values[kValues];
      edge_gradient(pairs.pair[m], grad_weights[m], values);
      flush(pixel / in.pixels_per_item(), pairs.pair[m], values, sink);
    }
  }

  // The pairs of a pixel, and grad_a of each.
  DR_HD void gradients(int64_t pixel, PixelPairs<scalar_t>* pairs, scalar_t grad_weights[kNeighbours]) const {
    gather_pairs(in, pixel, pairs);
    if (weights != nullptr) write_weights(*pairs, pixel, weights);
    if (pairs->count == 0) return;
    const scalar_t scale = pairs->scale();
    scalar_t jump[kNeighbours], mean = 0;
    for (int m = 0; m < pairs->count; ++m) {
      scalar_t sum = 0;
      for (int32_t c = 0; c < channels; ++c) {
        sum +=
            grad_result[pixel * channels + c] * (image[pairs->other[m] * channels + c] - image[pixel * channels + c]);
      }
      jump[m] = sum;
      mean += pairs->pair[m].weight * scale * sum;
    }
    for (int m = 0; m < pairs->count; ++m) grad_weights[m] = pairs->total > 1 ? (jump[m] - mean) * scale : jump[m];
  }

  DR_HD void edge_gradient(const typename AntialiasInput<scalar_t>::Pair& pair, scalar_t grad_weight,
                           scalar_t values[kValues]) const {
    const scalar_t along = pair.axis == 0 ? pair.line.x : pair.line.y;
    const scalar_t across = pair.axis == 0 ? pair.line.y : pair.line.x;
    const scalar_t grad_alpha = grad_weight * pair.sign * reciprocal_or_zero(along * along + across * across);
    const scalar_t alpha = pair.weight * pair.sign;
    const scalar_t grad_along = grad_alpha * (along + pair.step * pair.line.z - 2 * alpha * along);
    const scalar_t grad_across = -2 * grad_alpha * alpha * across;
    const Vec3<scalar_t> grad_line{pair.axis == 0 ? grad_along : grad_across, pair.axis == 0 ? grad_across : grad_along,
                                   grad_alpha * pair.step * along};
    Vec3<scalar_t> grad_p[2] = {{0, 0, 0}, {0, 0, 0}};
    cross_backward(pair.ends[0], pair.ends[1], grad_line, &grad_p[0], &grad_p[1]);
    for (int end = 0; end < 2; ++end) {
      const scalar_t grad_x = in.viewport.half_width * grad_p[end].x;
      const scalar_t grad_y = -in.viewport.half_height * grad_p[end].y;
      values[3 * end] = grad_x;
      values[3 * end + 1] = grad_y;
      values[3 * end + 2] = grad_p[end].z - pair.fx * grad_x - pair.fy * grad_y;
    }
  }

  DR_HD void flush(int64_t item, const typename AntialiasInput<scalar_t>::Pair& pair, const scalar_t values[kValues],
                   const Sink<scalar_t>& sink) const {
    int32_t index[3];
    in.mesh.indices(pair.triangle, index);
    for (int end = 0; end < 2; ++end) {
      const int64_t base = item * in.mesh.item_stride + static_cast<int64_t>(index[(pair.corner + 1 + end) % 3]) * 4;
      accumulate(sink, base + 0, values[3 * end]);
      accumulate(sink, base + 1, values[3 * end + 1]);
      accumulate(sink, base + 3, values[3 * end + 2]);
    }
  }
};

}  // namespace diffrender
