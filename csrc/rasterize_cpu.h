// The CPU rasterizer: bands of rows, each with its own small depth buffer, filled triangle by triangle in index order
// (so that the lowest index wins ties), then turned into barycentrics and depth once per visible pixel.
//
//   1. project   snap every vertex once
//   2. bin       drop triangles that cover no pixel centre, list the others per band        (parallel over triangles)
//   3. draw      per band: visibility by integer coverage and the key of rasterize_geometry.h   (parallel over bands)
//   4. resolve   per band, while its ids are in cache: write the fragments
//
// Inner loops run over blocks of kLanes pixels with a constant trip count, which compilers turn into vector code.
#pragma once

#include <memory>
#include <vector>

#include "core/launch.h"
#include "rasterize.h"

namespace diffrender {

constexpr int kLanes = 8;
constexpr int64_t kTrianglesPerChunk = 8192;
constexpr int32_t kSmallExtent = 64 * kSubpixels;  // edge functions of a triangle this small fit 32 bits

struct SnappedVertex {
  int32_t x, y;
};
constexpr int32_t kNotInside = INT32_MIN;  // x of a vertex whose triangles have to be clipped

template <class scalar_t>
struct CpuRasterizer {
  RasterMesh<scalar_t> mesh;
  Viewport<scalar_t> viewport;
  int64_t batch;
  const int32_t* beneath;  // [B, H, W] triangle ids of the layer in front, or null
  FragmentOutput<scalar_t> output;

  std::unique_ptr<SnappedVertex[]> snapped{};     // [items with own positions, V]
  std::unique_ptr<scalar_t[]> column_centers{};   // [W + kLanes]
  int32_t band_height = 16;
  int64_t bands = 0, chunks = 0;
  std::unique_ptr<int64_t[]> bin_begin{};         // [B * bands * chunks + 1]
  std::unique_ptr<int32_t[]> bins{};              // triangle ids
  std::atomic<bool> bad_index{false};

  struct Survivor {
    int32_t triangle;
    uint16_t first_band, last_band;
  };

  const SnappedVertex* item_vertices(int64_t item) const {
    return snapped.get() + (mesh.item_stride == 0 ? 0 : item * mesh.vertex_count);
  }

  void run() {
    const int64_t rows = std::max<int64_t>(1, std::min<int64_t>(16, 16384 / viewport.width));
    band_height = static_cast<int32_t>(std::max<int64_t>(rows, (viewport.height + 65534) / 65535));
    bands = (viewport.height + band_height - 1) / band_height;
    chunks = (mesh.triangle_count + kTrianglesPerChunk - 1) / kTrianglesPerChunk;
    column_centers.reset(new scalar_t[viewport.width + kLanes]);
    for (int32_t c = 0; c < viewport.width + kLanes; ++c) column_centers[c] = viewport.center_x(c);
    project();
    bin();
    if (bad_index) return;
    parallel_tasks(batch * bands, [this](int64_t task) {
      if (beneath == nullptr) {
        Band<false>(*this, task / bands, task % bands).run();
      } else {
        Band<true>(*this, task / bands, task % bands).run();
      }
    });
  }

  void project() {
    const int64_t total = mesh.item_stride == 0 ? mesh.vertex_count : batch * mesh.vertex_count;
    snapped.reset(new SnappedVertex[total]);
    parallel_ranges(total, kItemsPerPiece, [this](int64_t begin, int64_t end) {
      const scalar_t limit = kLargest<scalar_t>;
      for (int64_t i = begin; i < end; ++i) {
        const scalar_t* const p = mesh.positions + 4 * i;
        const scalar_t x = p[0], y = p[1], z = p[2], w = p[3];
        // is_inside() without short circuits, so that the loop becomes vector code.
        const bool inside = (w > 0) & (w <= limit) & (magnitude(z) <= w) & (magnitude(x) <= viewport.guard * w) &
                            (magnitude(y) <= viewport.guard * w);
        const scalar_t safe_w = inside ? w : scalar_t(1);
        const Vec4<scalar_t> v{inside ? x : scalar_t(0), inside ? y : scalar_t(0), 0, safe_w};
        const int32_t sx = snap_x(v, viewport), sy = snap_y(v, viewport);
        snapped[i] = {inside ? sx : kNotInside, sy};
      }
    });
  }

  // Rows that a triangle may touch; false where it draws nothing.
  bool row_range(int64_t item, int32_t triangle, const SnappedVertex* vertices, int32_t* first, int32_t* last) {
    int32_t index[3];
    if (!mesh.indices(triangle, index)) {
      bad_index = true;
      return false;
    }
    const SnappedVertex a = vertices[index[0]], b = vertices[index[1]], c = vertices[index[2]];
    ScreenTriangle screen;
    if ((a.x != kNotInside) & (b.x != kNotInside) & (c.x != kNotInside)) [[likely]] {
      if (!make_screen_triangle(a.x, a.y, b.x, b.y, c.x, c.y, mesh.cull, viewport.width, viewport.height, &screen)) {
        return false;
      }
      *first = screen.row_begin;
      *last = screen.row_end - 1;
      return true;
    }
    *first = viewport.height;
    *last = -1;
    for_each_clipped(item, index, [&](const ScreenTriangle& part) {
      *first = std::min(*first, part.row_begin);
      *last = std::max(*last, part.row_end - 1);
    });
    return *first <= *last;
  }

  template <class F>
  void for_each_clipped(int64_t item, const int32_t index[3], const F& body) const {
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

  void bin() {
    const int64_t cells = bands * chunks;
    const std::unique_ptr<std::vector<Survivor>[]> survivors(new std::vector<Survivor>[batch * chunks]);
    bin_begin.reset(new int64_t[batch * cells + 1]());
    parallel_tasks(batch * chunks, [&](int64_t task) {
      const int64_t item = task / chunks, chunk = task % chunks;
      int32_t first, count;
      mesh.range(item, &first, &count);
      const int64_t begin = first + chunk * kTrianglesPerChunk;
      const int64_t end = std::min<int64_t>(first + count, begin + kTrianglesPerChunk);
      if (begin >= end) return;
      std::vector<Survivor>& list = survivors[task];
      list.resize(end - begin);
      const SnappedVertex* const vertices = item_vertices(item);
      int64_t* const counts = bin_begin.get() + item * cells + chunk + 1;
      int64_t kept = 0;
      for (int64_t t = begin; t < end; ++t) {
        int32_t first_row, last_row;
        if (!row_range(item, static_cast<int32_t>(t), vertices, &first_row, &last_row)) continue;
        const int32_t first_band = first_row / band_height, last_band = last_row / band_height;
        list[kept++] = {static_cast<int32_t>(t), static_cast<uint16_t>(first_band), static_cast<uint16_t>(last_band)};
        for (int32_t b = first_band; b <= last_band; ++b) ++counts[b * chunks];
      }
      list.resize(kept);
    });
    for (int64_t i = 0; i < batch * cells; ++i) bin_begin[i + 1] += bin_begin[i];
    bins.reset(new int32_t[bin_begin[batch * cells]]);
    parallel_tasks(batch * chunks, [&](int64_t task) {
      const int64_t item = task / chunks, chunk = task % chunks;
      std::vector<int64_t> next(bands);
      for (int64_t b = 0; b < bands; ++b) next[b] = bin_begin[item * cells + b * chunks + chunk];
      for (const Survivor& s : survivors[task]) {
        for (int32_t b = s.first_band; b <= s.last_band; ++b) bins[next[b]++] = s.triangle;
      }
    });
  }

  template <bool peel>
  struct Band {
    const CpuRasterizer& owner;
    const RasterMesh<scalar_t>& mesh;
    const Viewport<scalar_t>& viewport;
    const int64_t item, band;
    const int32_t width, stride, row_begin, row_end;
    std::unique_ptr<scalar_t[]> keys;            // [rows, W + kLanes] nearest key so far
    std::unique_ptr<int32_t[]> ids;              // [rows, W + kLanes]
    std::unique_ptr<scalar_t[]> front_keys;      // [rows, W + kLanes] key of the layer in front, if peeling
    std::unique_ptr<int32_t[]> front_ids;
    // The triangle being drawn.
    Vec4<scalar_t> v[3];
    KeyRange<scalar_t> range;
    int32_t id;

    Band(const CpuRasterizer& rasterizer, int64_t item_index, int64_t band_index)
        : owner(rasterizer),
          mesh(rasterizer.mesh),
          viewport(rasterizer.viewport),
          item(item_index),
          band(band_index),
          width(viewport.width),
          stride(viewport.width + kLanes),
          row_begin(static_cast<int32_t>(band * owner.band_height)),
          row_end(std::min(viewport.height, row_begin + owner.band_height)) {}

    void run() {
      const int64_t* const cells = owner.bin_begin.get() + (item * owner.bands + band) * owner.chunks;
      const int64_t begin = owner.chunks == 0 ? 0 : cells[0], end = owner.chunks == 0 ? 0 : cells[owner.chunks];
      if (begin < end) {
        const int64_t size = static_cast<int64_t>(row_end - row_begin) * stride;
        keys.reset(new scalar_t[size]);
        ids.reset(new int32_t[size]);
        // Just beyond the far plane: one comparison then tests both the buffer and the plane.
        std::fill_n(keys.get(), size, std::nextafter(scalar_t(1), scalar_t(2)));
        std::fill_n(ids.get(), size, -1);
        if constexpr (peel) prepare_layer_in_front(size);
        for (int64_t i = begin; i < end; ++i) draw(owner.bins[i]);
      }
      for (int32_t row = row_begin; row < row_end; ++row) resolve(row, begin < end);
    }

    void prepare_layer_in_front(int64_t size) {
      front_keys.reset(new scalar_t[size]);
      front_ids.reset(new int32_t[size]);
      // A key above every other lets nothing through: where the layer in front shows background, so does this one.
      std::fill_n(front_keys.get(), size, scalar_t(4));
      std::fill_n(front_ids.get(), size, -1);
      for (int32_t row = row_begin; row < row_end; ++row) {
        const int64_t pixel = (item * viewport.height + row) * width;
        for (int32_t c = 0; c < width; ++c) {
          const int32_t triangle = owner.beneath[pixel + c];
          scalar_t key;
          if (!visibility_key(mesh, viewport, item, triangle, c, row, &key)) continue;
          front_keys[static_cast<int64_t>(row - row_begin) * stride + c] = key;
          front_ids[static_cast<int64_t>(row - row_begin) * stride + c] = triangle;
        }
      }
    }

    void draw(int32_t triangle) {
      int32_t index[3];
      mesh.indices(triangle, index);  // checked while binning
      const SnappedVertex* const vertices = owner.item_vertices(item);
      const SnappedVertex a = vertices[index[0]], b = vertices[index[1]], c = vertices[index[2]];
      id = triangle;
      for (int i = 0; i < 3; ++i) v[i] = mesh.vertex(item, index[i]);
      if ((a.x != kNotInside) & (b.x != kNotInside) & (c.x != kNotInside)) [[likely]] {
        ScreenTriangle t;
        make_screen_triangle(a.x, a.y, b.x, b.y, c.x, c.y, mesh.cull, viewport.width, viewport.height, &t);
        range = key_range(v, true);
        draw_part(t);
      } else {
        range = key_range(v, false);
        owner.for_each_clipped(item, index, [this](const ScreenTriangle& part) { draw_part(part); });
      }
    }

    void draw_part(ScreenTriangle t) {
      t.row_begin = std::max(t.row_begin, row_begin);
      t.row_end = std::min(t.row_end, row_end);
      if (t.row_begin >= t.row_end) return;
      const int32_t extent_x = maximum(t.x[0], t.x[1], t.x[2]) - minimum(t.x[0], t.x[1], t.x[2]);
      const int32_t extent_y = maximum(t.y[0], t.y[1], t.y[2]) - minimum(t.y[0], t.y[1], t.y[2]);
      if (extent_x <= kSmallExtent && extent_y <= kSmallExtent) {
        draw_small(t);
      } else {
        draw_large(t);
      }
    }

    // Tests each centre of the box, a block of lanes at a time, in 32 bits relative to the first centre.
    void draw_small(const ScreenTriangle& t) {
      int32_t value[3], step_row[3], lane[3][kLanes], step_block[3];
      for (int k = 0; k < 3; ++k) {
        const int next = k == 2 ? 0 : k + 1;
        const int32_t dx = t.x[next] - t.x[k], dy = t.y[next] - t.y[k];
        value[k] = static_cast<int32_t>(edge_function(t, k, t.column_begin, t.row_begin));
        step_row[k] = dx * kSubpixels;
        step_block[k] = -dy * kSubpixels * kLanes;
        for (int l = 0; l < kLanes; ++l) lane[k][l] = -dy * kSubpixels * l;
      }
      for (int32_t row = t.row_begin; row < t.row_end; ++row) {
        const scalar_t fy = viewport.center_y(row);
        int32_t e0 = value[0], e1 = value[1], e2 = value[2];
        for (int32_t c = t.column_begin; c < t.column_end; c += kLanes) {
          int32_t inside[kLanes], any = 0;
          for (int l = 0; l < kLanes; ++l) {
            const int32_t signs = (e0 + lane[0][l]) | (e1 + lane[1][l]) | (e2 + lane[2][l]);
            inside[l] = (signs >= 0) & (c + l < t.column_end) ? -1 : 0;
            any |= inside[l];
          }
          if (any != 0) draw_block(row, c, fy, inside);
          e0 += step_block[0];
          e1 += step_block[1];
          e2 += step_block[2];
        }
        for (int k = 0; k < 3; ++k) value[k] += step_row[k];
      }
    }

    // One edge of a large triangle as a bound on the columns of a row: exact floor division, carried from row to row.
    struct SpanEdge {
      int64_t quotient, remainder, step_quotient, step_remainder, divisor;
      int32_t dy;

      static int64_t floor_divide(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

      SpanEdge(const ScreenTriangle& t, int k) {
        const int next = k == 2 ? 0 : k + 1;
        const int64_t dx = t.x[next] - t.x[k];
        dy = t.y[next] - t.y[k];
        // The edge function is value - column * 256 dy, value growing by 256 dx from row to row.
        const int64_t value = edge_function(t, k, 0, t.row_begin), step = dx * kSubpixels;
        divisor = dy == 0 ? 1 : static_cast<int64_t>(dy < 0 ? -static_cast<int64_t>(dy) : dy) * kSubpixels;
        quotient = floor_divide(value, divisor);
        remainder = value - quotient * divisor;
        step_quotient = floor_divide(step, divisor);
        step_remainder = step - step_quotient * divisor;
      }

      void bound(int64_t* first, int64_t* last) const {
        if (dy > 0) {
          *last = std::min(*last, quotient);
        } else if (dy < 0) {
          *first = std::max(*first, -quotient);
        } else if (quotient < 0) {
          *last = -1;
        }
      }

      void next_row() {
        quotient += step_quotient;
        remainder += step_remainder;
        if (remainder >= divisor) {
          remainder -= divisor;
          ++quotient;
        }
      }
    };

    void draw_large(const ScreenTriangle& t) {
      SpanEdge edges[3] = {SpanEdge(t, 0), SpanEdge(t, 1), SpanEdge(t, 2)};
      for (int32_t row = t.row_begin; row < t.row_end; ++row) {
        int64_t first = t.column_begin, last = t.column_end - 1;
        for (SpanEdge& edge : edges) {
          edge.bound(&first, &last);
          edge.next_row();
        }
        const scalar_t fy = viewport.center_y(row);
        for (int64_t c = first; c <= last; c += kLanes) {
          int32_t inside[kLanes];
          const int32_t left = static_cast<int32_t>(last - c);
          for (int l = 0; l < kLanes; ++l) inside[l] = l <= left ? -1 : 0;
          draw_block(row, static_cast<int32_t>(c), fy, inside);
        }
      }
    }

    // Depth test of kLanes pixels. The arithmetic is pixel_frame(), depth_at() and clamp_key(), lane by lane.
    DR_HD void draw_block(int32_t row, int32_t column, scalar_t fy, const int32_t inside[kLanes]) {
      const int64_t at = static_cast<int64_t>(row - row_begin) * stride + column;
      scalar_t* const key_row = keys.get() + at;
      int32_t* const id_row = ids.get() + at;
      const scalar_t* const centers = owner.column_centers.get() + column;
      const scalar_t q0y = v[0].y - fy * v[0].w, q1y = v[1].y - fy * v[1].w, q2y = v[2].y - fy * v[2].w;
      for (int l = 0; l < kLanes; ++l) {
        const scalar_t fx = centers[l];
        const scalar_t q0x = v[0].x - fx * v[0].w, q1x = v[1].x - fx * v[1].w, q2x = v[2].x - fx * v[2].w;
        const scalar_t a[3] = {q1x * q2y - q1y * q2x, q2x * q0y - q2y * q0x, q0x * q1y - q0y * q1x};
        const scalar_t key = clamp_key(depth_at(v, a), range);
        bool better = (inside[l] != 0) & (key >= -1) & (key < key_row[l]);
        if constexpr (peel) {
          const scalar_t front = front_keys[at + l];
          better = better & ((key > front) | ((key == front) & (id > front_ids[at + l])));
        }
        key_row[l] = better ? key : key_row[l];
        id_row[l] = better ? id : id_row[l];
      }
    }

    void resolve(int32_t row, bool drawn) {
      const FragmentOutput<scalar_t>& out = owner.output;
      const int64_t pixel = (item * viewport.height + row) * width;
      if (!drawn) {
        write_background(pixel, width);
        return;
      }
      const int32_t* const row_ids = ids.get() + static_cast<int64_t>(row - row_begin) * stride;
      std::memcpy(out.triangle_id + pixel, row_ids, sizeof(int32_t) * width);
      const scalar_t fy = viewport.center_y(row);
      for (int32_t c = 0; c < width;) {
        const int32_t triangle = row_ids[c];
        int32_t end = c + 1;
        while (end < width && row_ids[end] == triangle) ++end;
        if (triangle < 0) {
          write_background(pixel + c, end - c);
        } else {
          int32_t index[3];
          mesh.indices(triangle, index);
          const Vec4<scalar_t> corner[3] = {mesh.vertex(item, index[0]), mesh.vertex(item, index[1]),
                                            mesh.vertex(item, index[2])};
          if (out.derivatives == nullptr) {
            write_run(pixel, c, end, fy, corner);
          } else {
            for (int32_t i = c; i < end; ++i) out.write(pixel + i, corner, viewport, i, row);
          }
        }
        c = end;
      }
    }

    void write_background(int64_t pixel, int32_t count) const {
      const FragmentOutput<scalar_t>& out = owner.output;
      std::fill_n(out.triangle_id + pixel, count, -1);
      std::fill_n(out.barycentrics + 2 * pixel, 2 * static_cast<int64_t>(count), scalar_t(0));
      std::fill_n(out.depth + pixel, count, scalar_t(1));
      if (out.derivatives != nullptr) {
        std::fill_n(out.derivatives + 4 * pixel, 4 * static_cast<int64_t>(count), scalar_t(0));
      }
    }

    // FragmentOutput::write() for a run of pixels of one triangle, without derivatives.
    void write_run(int64_t pixel, int32_t begin, int32_t end, scalar_t fy, const Vec4<scalar_t> corner[3]) const {
      scalar_t* __restrict const barycentrics = owner.output.barycentrics + 2 * pixel;
      scalar_t* __restrict const depth = owner.output.depth + pixel;
      const scalar_t* __restrict const centers = owner.column_centers.get();
      const Vec4<scalar_t> p[3] = {corner[0], corner[1], corner[2]};
      const scalar_t q0y = p[0].y - fy * p[0].w, q1y = p[1].y - fy * p[1].w, q2y = p[2].y - fy * p[2].w;
#pragma omp simd
      for (int32_t c = begin; c < end; ++c) {
        const scalar_t fx = centers[c];
        const scalar_t q0x = p[0].x - fx * p[0].w, q1x = p[1].x - fx * p[1].w, q2x = p[2].x - fx * p[2].w;
        const scalar_t a[3] = {q1x * q2y - q1y * q2x, q2x * q0y - q2y * q0x, q0x * q1y - q0y * q1x};
        const scalar_t inverse = reciprocal_or_zero(a[0] + a[1] + a[2]);
        barycentrics[2 * c] = a[0] * inverse;
        barycentrics[2 * c + 1] = a[1] * inverse;
        depth[c] = depth_at(p, a);
      }
    }
  };
};

}  // namespace diffrender
