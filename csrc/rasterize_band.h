// One band of rows of the CPU rasterizer: visibility of every triangle that touches it, then the fragments.
//
// Triangles are drawn by size. All ways decide coverage by the same integers and compute the key by the same operations
// in the same order (pixel_frame, depth_at, clamp_key of rasterize_geometry.h), so that the result does not depend on
// which one is taken:
//   tiny    boxes of at most 4 x 4 centres: coverage is decided while binning; the band gets a list of hits, each a
//           triangle and a pixel, and computes the keys of kLanes hits at a time
//   narrow  boxes of at most kLanes columns: one block of lanes per row
//   other   the exact span of each row, by a division that is carried from row to row
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>

#include "rasterize.h"
#include "rasterize_coverage_cpu.h"
#include "rasterize_row_cpu.h"

namespace diffrender {

struct SnappedVertex {
  int32_t x, y;
};
constexpr int32_t kNotInside = INT32_MIN;  // x of a vertex whose triangles have to be clipped

// What the bands of a rasterizer share.
template <class scalar_t>
struct BandInput {
  RasterMesh<scalar_t> mesh;
  Viewport<scalar_t> viewport;
  const int32_t* beneath;  // [B, H, W] triangle ids of the layer in front, or null
  FragmentOutput<scalar_t> output;
  const scalar_t* column_centers;  // [W + kLanes]
};

// Calls body for every part of a triangle that has to be clipped.
template <class scalar_t, class F>
void for_each_clipped(const RasterMesh<scalar_t>& mesh, const Viewport<scalar_t>& viewport, int64_t item,
                      const int32_t index[3], const F& body) {
  const Vec4<scalar_t> v[3] = {mesh.vertex(item, index[0]), mesh.vertex(item, index[1]), mesh.vertex(item, index[2])};
  if ((v[0].z < -v[0].w && v[1].z < -v[1].w && v[2].z < -v[2].w) ||
      (v[0].z > v[0].w && v[1].z > v[1].w && v[2].z > v[2].w)) {
    return;
  }
  int32_t x[kMaximumPolygon], y[kMaximumPolygon];
  const int corners = clip_and_snap(v, viewport, x, y);
  for (int i = 1; i + 1 < corners; ++i) {
    ScreenTriangle part;
    if (make_screen_triangle(x[0], y[0], x[i], y[i], x[i + 1], y[i + 1], mesh.cull, viewport.width, viewport.height,
                             &part)) {
      body(part);
    }
  }
}

template <class scalar_t, bool peel>
class Band {
 public:
  Band(const BandInput<scalar_t>& input, int64_t item, int32_t row_begin, int32_t row_end,
       const SnappedVertex* vertices)
      : in_(input),
        item_(item),
        row_begin_(row_begin),
        row_end_(row_end),
        width_(input.viewport.width),
        stride_(input.viewport.width + kLanes),
        vertices_(vertices) {}

  // Draws the listed triangles, in ascending order, and the hits, and writes the fragments of the band.
  void run(const int32_t* triangles, int64_t count, const Hit* hits, int64_t hit_count) {
    const bool drawn = count > 0 || hit_count > 0;
    if (drawn) {
      const int64_t size = static_cast<int64_t>(row_end_ - row_begin_) * stride_;
      keys_.reset(new scalar_t[size]);
      ids_.reset(new int32_t[size]);
      // Just beyond the far plane: one comparison then tests both the buffer and the plane.
      std::fill_n(keys_.get(), size, std::nextafter(scalar_t(1), scalar_t(2)));
      std::fill_n(ids_.get(), size, -1);
      if constexpr (peel) prepare_layer_in_front(size);
      for (int64_t i = 0; i < count; ++i) {
        prefetch(count, i, [&](int64_t k) { return triangles[k]; });
        draw(triangles[i]);
      }
      for (int64_t i = 0; i < hit_count; i += kLanes) {
        for (int64_t k = i; k < i + kLanes; ++k) prefetch(hit_count, k, [&](int64_t n) { return hits[n].triangle; });
        test_hits(hits + i, static_cast<int32_t>(std::min<int64_t>(kLanes, hit_count - i)));
      }
    }
    for (int32_t row = row_begin_; row < row_end_; ++row) resolve(row, drawn);
  }

 private:
  using Values = Lanes<scalar_t>;
  using Mask = LaneMask<scalar_t>;

  // A triangle as the depth test needs it.
  struct Plane {
    Vec4<scalar_t> v[3];
    KeyRange<scalar_t> range;
    int32_t id;
    bool all_inside;
  };

  // The part of it that does not depend on the pixel, for kLanes pixels of one triangle or of several.
  struct LanePlane {
    Values z[3], w[3], low, high;
  };

  // Keys from the corners relative to each pixel: depth_at() and clamp_key().
  DR_HD static Values lane_keys(const Values q_x[3], const Values q_y[3], const LanePlane& p) {
    const Values a0 = q_x[1] * q_y[2] - q_y[1] * q_x[2], a1 = q_x[2] * q_y[0] - q_y[2] * q_x[0];
    const Values a2 = q_x[0] * q_y[1] - q_y[0] * q_x[1];
    const Values z = a0 * p.z[0] + a1 * p.z[1] + a2 * p.z[2], w = a0 * p.w[0] + a1 * p.w[1] + a2 * p.w[2];
    const Values depth = z * reciprocal_or_zero_lanes<scalar_t>(w);
    const Values above = p.low > depth ? p.low : depth;
    return p.high < above ? p.high : above;
  }

  int64_t row_offset(int32_t row) const { return static_cast<int64_t>(row - row_begin_) * stride_; }

  Plane make_plane(int32_t triangle, const int32_t index[3], bool all_inside) const {
    Plane p{{in_.mesh.vertex(item_, index[0]), in_.mesh.vertex(item_, index[1]), in_.mesh.vertex(item_, index[2])},
            {},
            triangle,
            all_inside};
    p.range = key_range(p.v, all_inside);
    return p;
  }

  void prepare_layer_in_front(int64_t size) {
    front_keys_.reset(new scalar_t[size]);
    front_ids_.reset(new int32_t[size]);
    // A key above every other lets nothing through: where the layer in front shows background, so does this one.
    std::fill_n(front_keys_.get(), size, scalar_t(4));
    std::fill_n(front_ids_.get(), size, -1);
    for (int32_t row = row_begin_; row < row_end_; ++row) {
      const int64_t pixel = (item_ * in_.viewport.height + row) * width_;
      for (int32_t c = 0; c < width_; ++c) {
        const int32_t triangle = in_.beneath[pixel + c];
        scalar_t key;
        if (!visibility_key(in_.mesh, in_.viewport, item_, triangle, c, row, &key)) continue;
        front_keys_[row_offset(row) + c] = key;
        front_ids_[row_offset(row) + c] = triangle;
      }
    }
  }

  // A band visits the mesh in jumps, which costs more than the drawing of small triangles: ask for the indices of a
  // later triangle, and for the vertices of one whose indices have arrived.
  template <class F>
  DR_HD void prefetch(int64_t count, int64_t i, const F& triangle_at) const {
    constexpr int64_t kIndicesAhead = 24, kVerticesAhead = 12;
    if (i + kIndicesAhead >= count) return;
    __builtin_prefetch(in_.mesh.triangles + static_cast<int64_t>(triangle_at(i + kIndicesAhead)) * 3);
    const int32_t* const index = in_.mesh.triangles + static_cast<int64_t>(triangle_at(i + kVerticesAhead)) * 3;
    for (int k = 0; k < 3; ++k) {
      __builtin_prefetch(in_.mesh.positions + item_ * in_.mesh.item_stride + static_cast<int64_t>(index[k]) * 4);
    }
  }

  void draw(int32_t triangle) {
    int32_t index[3];
    in_.mesh.indices(triangle, index);  // checked while binning
    const SnappedVertex a = vertices_[index[0]], b = vertices_[index[1]], c = vertices_[index[2]];
    if ((a.x != kNotInside) & (b.x != kNotInside) & (c.x != kNotInside)) [[likely]] {
      ScreenTriangle t;
      make_screen_triangle(a.x, a.y, b.x, b.y, c.x, c.y, in_.mesh.cull, width_, in_.viewport.height, &t);
      draw_part(t, triangle, index, true);
    } else {
      for_each_clipped(in_.mesh, in_.viewport, item_, index,
                       [&](const ScreenTriangle& part) { draw_part(part, triangle, index, false); });
    }
  }

  void draw_part(ScreenTriangle t, int32_t triangle, const int32_t index[3], bool all_inside) {
    t.row_begin = std::max(t.row_begin, row_begin_);
    t.row_end = std::min(t.row_end, row_end_);
    if (t.row_begin >= t.row_end) return;
    if (!is_small(t)) {
      draw_spans<int64_t>(t, make_plane(triangle, index, all_inside));
    } else if (t.column_end - t.column_begin <= kLanes) {
      draw_narrow(t, make_plane(triangle, index, all_inside));
    } else {
      draw_spans<int32_t>(t, make_plane(triangle, index, all_inside));
    }
  }

  // Depth test of up to kLanes hits, each of a triangle of its own.
  void test_hits(const Hit* hits, int32_t count) {
    scalar_t x[3][kLanes], y[3][kLanes], z[3][kLanes], w[3][kLanes], fx[kLanes], fy[kLanes], key[kLanes];
    for (int32_t l = 0; l < kLanes; ++l) {
      const Hit hit = hits[l < count ? l : 0];  // lanes beyond the last hit repeat the first
      int32_t index[3];
      in_.mesh.indices(hit.triangle, index);  // checked while binning
      for (int i = 0; i < 3; ++i) {
        const Vec4<scalar_t> v = in_.mesh.vertex(item_, index[i]);
        x[i][l] = v.x;
        y[i][l] = v.y;
        z[i][l] = v.z;
        w[i][l] = v.w;
      }
      fx[l] = in_.column_centers[column_of(hit)];
      fy[l] = in_.viewport.center_y(row_begin_ + static_cast<int32_t>(hit.place >> kHitColumnBits));
    }
    LanePlane p;
    Values q_x[3], q_y[3], z_over_w[3];
    const Values center_x = load_lanes<Values>(fx), center_y = load_lanes<Values>(fy);
    for (int i = 0; i < 3; ++i) {
      p.z[i] = load_lanes<Values>(z[i]);
      p.w[i] = load_lanes<Values>(w[i]);
      q_x[i] = load_lanes<Values>(x[i]) - center_x * p.w[i];
      q_y[i] = load_lanes<Values>(y[i]) - center_y * p.w[i];
      z_over_w[i] = p.z[i] / p.w[i];
    }
    // key_range(), lane by lane; all corners are inside here.
    const Values low01 = z_over_w[0] < z_over_w[1] ? z_over_w[0] : z_over_w[1];
    const Values high01 = z_over_w[0] < z_over_w[1] ? z_over_w[1] : z_over_w[0];
    p.low = low01 < z_over_w[2] ? low01 : z_over_w[2];
    p.high = high01 > z_over_w[2] ? high01 : z_over_w[2];
    store_lanes(key, lane_keys(q_x, q_y, p));
    for (int32_t l = 0; l < count; ++l) {
      const int64_t offset = static_cast<int64_t>(hits[l].place >> kHitColumnBits) * stride_ + column_of(hits[l]);
      // Larger triangles of higher index have been drawn before: ties need a look at the ids.
      if (key[l] < keys_[offset] || (key[l] == keys_[offset] && hits[l].triangle < ids_[offset])) {
        keys_[offset] = key[l];
        ids_[offset] = hits[l].triangle;
      }
    }
  }

  DR_HD static int32_t column_of(const Hit& hit) {
    return static_cast<int32_t>(hit.place & ((1u << kHitColumnBits) - 1));
  }

  // Depth test of a block of pixels of one triangle, `offset` being the first of them in the band's buffers.
  // `hidden_early` looks whether all of it is hidden first, which pays for triangles of few pixels.
  template <bool hidden_early>
  DR_HD void test_block(int64_t offset, const IntLanes& inside, const Values q_x[3], const Values q_y[3],
                        const LanePlane& lanes, const Plane& plane) const {
    scalar_t* const keys = keys_.get() + offset;
    int32_t* const ids = ids_.get() + offset;
    const Values nearest = load_lanes<Values>(keys);
    Mask better = __builtin_convertvector(inside, Mask);
    if constexpr (hidden_early) {
      // No key of the triangle lies below its range: where everything is nearer already, there is nothing to compute.
      better &= lanes.low < nearest;
      if (!any_lane(__builtin_convertvector(better, IntLanes))) return;
    }
    const Values key = lane_keys(q_x, q_y, lanes);
    better &= key < nearest;
    // Keys of triangles inside of the frustum are clamped to its depths anyway.
    if (!plane.all_inside) better &= key >= scalar_t(-1);
    if constexpr (peel) {
      const Values front = load_lanes<Values>(front_keys_.get() + offset);
      const IntLanes later = plane.id > load_lanes<IntLanes>(front_ids_.get() + offset);
      better &= (key > front) | ((key == front) & __builtin_convertvector(later, Mask));
    }
    store_lanes(keys, better ? key : nearest);
    const IntLanes shown = load_lanes<IntLanes>(ids);
    store_lanes(ids, __builtin_convertvector(better, IntLanes) ? plane.id - IntLanes{} : shown);
  }

  DR_HD static LanePlane broadcast(const Plane& p) {
    LanePlane lanes;
    for (int i = 0; i < 3; ++i) {
      lanes.z[i] = p.v[i].z - Values{};
      lanes.w[i] = p.v[i].w - Values{};
    }
    lanes.low = p.range.low - Values{};
    lanes.high = p.range.high - Values{};
    return lanes;
  }

  DR_HD void relative_x(const Plane& p, int32_t column, Values q_x[3]) const {
    const Values fx = load_lanes<Values>(in_.column_centers + column);
    for (int i = 0; i < 3; ++i) q_x[i] = p.v[i].x - fx * p.v[i].w;
  }

  DR_HD void relative_y(const Plane& p, int32_t row, Values q_y[3]) const {
    const scalar_t fy = in_.viewport.center_y(row);
    for (int i = 0; i < 3; ++i) q_y[i] = (p.v[i].y - fy * p.v[i].w) - Values{};
  }

  void draw_narrow(const ScreenTriangle& t, const Plane& plane) {
    const SmallEdges e(t);
    const LanePlane lanes = broadcast(plane);
    const IntLanes in_columns = kLaneIndex < t.column_end - t.column_begin;
    IntLanes e0 = e.value[0] + e.column[0] * kLaneIndex;
    IntLanes e1 = e.value[1] + e.column[1] * kLaneIndex;
    IntLanes e2 = e.value[2] + e.column[2] * kLaneIndex;
    Values q_x[3], q_y[3];
    relative_x(plane, t.column_begin, q_x);
    int64_t offset = row_offset(t.row_begin) + t.column_begin;
    for (int32_t row = t.row_begin; row < t.row_end; ++row, offset += stride_) {
      const IntLanes inside = ((e0 | e1 | e2) >= 0) & in_columns;
      e0 += e.row[0];
      e1 += e.row[1];
      e2 += e.row[2];
      relative_y(plane, row, q_y);
      test_block<true>(offset, inside, q_x, q_y, lanes, plane);
    }
  }

  template <class Integer>
  void draw_spans(const ScreenTriangle& t, const Plane& plane) {
    const LanePlane lanes = broadcast(plane);
    SpanEdge<Integer> edges[3] = {SpanEdge<Integer>(t, 0), SpanEdge<Integer>(t, 1), SpanEdge<Integer>(t, 2)};
    int64_t offset = row_offset(t.row_begin) + t.column_begin;
    for (int32_t row = t.row_begin; row < t.row_end; ++row, offset += stride_) {
      Integer first = 0, last = t.column_end - t.column_begin - 1;
      for (SpanEdge<Integer>& edge : edges) {
        edge.bound(&first, &last);
        edge.next_row();
      }
      if (first > last) continue;
      Values q_x[3], q_y[3];
      relative_y(plane, row, q_y);
      for (Integer c = first; c <= last; c += kLanes) {
        relative_x(plane, t.column_begin + static_cast<int32_t>(c), q_x);
        test_block<false>(offset + c, kLaneIndex <= static_cast<int32_t>(last - c), q_x, q_y, lanes, plane);
      }
    }
  }

  void resolve(int32_t row, bool drawn) {
    const RowWriter<scalar_t> writer{in_.mesh, in_.viewport, in_.output, in_.column_centers};
    const int64_t pixel = (item_ * in_.viewport.height + row) * width_;
    if (!drawn) {
      std::fill_n(in_.output.triangle_id + pixel, width_, -1);
      writer.write_background(pixel, width_);
      return;
    }
    const int32_t* const ids = ids_.get() + row_offset(row);
    std::memcpy(in_.output.triangle_id + pixel, ids, sizeof(int32_t) * width_);
    writer.write_row(item_, row, ids);
  }

  const BandInput<scalar_t>& in_;
  const int64_t item_;
  const int32_t row_begin_, row_end_, width_, stride_;
  const SnappedVertex* const vertices_;
  std::unique_ptr<scalar_t[]> keys_;        // [rows, W + kLanes] nearest key so far
  std::unique_ptr<int32_t[]> ids_;          // [rows, W + kLanes]
  std::unique_ptr<scalar_t[]> front_keys_;  // [rows, W + kLanes] key of the layer in front, if peeling
  std::unique_ptr<int32_t[]> front_ids_;
};

}  // namespace diffrender
