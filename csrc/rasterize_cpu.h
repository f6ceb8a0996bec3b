// The CPU rasterizer: bands of rows, each with its own small depth buffer, filled triangle by triangle in index order
// (so that the lowest index wins ties), then turned into barycentrics and depth once per visible pixel.
//
//   1. project   snap every vertex once
//   2. bin       drop triangles that cover no pixel centre, list the others per band        (parallel over triangles)
//   3. draw      per band: visibility by integer coverage and the key of rasterize_geometry.h   (parallel over bands)
//   4. resolve   per band, while its ids are in cache: write the fragments
//
// Inner loops run over blocks of kLanes pixels (core/lanes.h) with the arithmetic of rasterize_geometry.h.
#pragma once

#include <memory>
#include <vector>

#include "core/launch.h"
#include "rasterize_band.h"

namespace diffrender {

constexpr int64_t kTrianglesPerChunk = 8192;

template <class scalar_t>
struct CpuRasterizer {
  RasterMesh<scalar_t> mesh;
  Viewport<scalar_t> viewport;
  int64_t batch;
  const int32_t* beneath;  // [B, H, W] triangle ids of the layer in front, or null
  FragmentOutput<scalar_t> output;

  std::unique_ptr<SnappedVertex[]> snapped{};     // [items with own positions, V]
  std::unique_ptr<scalar_t[]> column_centers{};   // [W + kLanes]
  int32_t band_shift = 4;                         // bands are 2^band_shift rows high
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
    // A band's keys and ids should stay in the second-level cache; band numbers have to fit 16 bits.
    while (band_shift > 0 && (int64_t(viewport.width) << band_shift) > 16384) --band_shift;
    while ((viewport.height >> band_shift) >= 65535) ++band_shift;
    bands = (int64_t(viewport.height - 1) >> band_shift) + 1;
    chunks = (mesh.triangle_count + kTrianglesPerChunk - 1) / kTrianglesPerChunk;
    column_centers.reset(new scalar_t[viewport.width + kLanes]);
    for (int32_t c = 0; c < viewport.width + kLanes; ++c) column_centers[c] = viewport.center_x(c);
    project();
    bin();
    if (bad_index) return;
    const BandInput<scalar_t> input{mesh, viewport, beneath, output, column_centers.get()};
    parallel_tasks(batch * bands, [&](int64_t task) {
      const int64_t item = task / bands, band = task % bands;
      const int32_t begin = static_cast<int32_t>(band << band_shift);
      const int32_t end = std::min(viewport.height, begin + (1 << band_shift));
      const int64_t* const cells = bin_begin.get() + task * chunks;
      const int64_t count = chunks == 0 ? 0 : cells[chunks] - cells[0];
      const int32_t* const triangles = bins.get() + (chunks == 0 ? 0 : cells[0]);
      if (beneath == nullptr) {
        Band<scalar_t, false>(input, item, begin, end, item_vertices(item)).run(triangles, count);
      } else {
        Band<scalar_t, true>(input, item, begin, end, item_vertices(item)).run(triangles, count);
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
  bool row_range(int64_t item, const int32_t index[3], const SnappedVertex* vertices, int32_t* first, int32_t* last) {
    const SnappedVertex a = vertices[index[0]], b = vertices[index[1]], c = vertices[index[2]];
    if ((a.x != kNotInside) & (b.x != kNotInside) & (c.x != kNotInside)) [[likely]] {
      ScreenTriangle screen;
      if (!make_screen_triangle(a.x, a.y, b.x, b.y, c.x, c.y, mesh.cull, viewport.width, viewport.height, &screen)) {
        return false;
      }
      *first = screen.row_begin;
      *last = screen.row_end - 1;
      // Of the triangles below pixel size that reach one centre's box, about half miss the centre.
      const bool one_centre = (screen.column_end - screen.column_begin == 1) & (*first == *last);
      return !one_centre || covers(screen, screen.column_begin, screen.row_begin);
    }
    *first = viewport.height;
    *last = -1;
    for_each_clipped(mesh, viewport, item, index, [&](const ScreenTriangle& part) {
      *first = std::min(*first, part.row_begin);
      *last = std::max(*last, part.row_end - 1);
    });
    return *first <= *last;
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
        int32_t index[3], first_row, last_row;
        if (!mesh.indices(static_cast<int32_t>(t), index)) {
          bad_index = true;
          continue;
        }
        if (!row_range(item, index, vertices, &first_row, &last_row)) continue;
        const int32_t first_band = first_row >> band_shift, last_band = last_row >> band_shift;
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
};

}  // namespace diffrender
