// The CPU rasterizer: bands of rows, each with its own small depth buffer, filled triangle by triangle in index order
// (so that the lowest index wins ties), then turned into barycentrics and depth once per visible pixel.
//
//   1. project   snap every vertex once
//   2. bin       drop triangles that cover no pixel centre, list the others, or the centres that tiny ones cover, per
//                band                                                                       (parallel over triangles)
//   3. draw      per band: visibility by integer coverage and the key of rasterize_geometry.h   (parallel over bands)
//   4. resolve   per band, while its ids are in cache: write the fragments
//
// Inner loops run over blocks of kLanes pixels (core/lanes.h) with the arithmetic of rasterize_geometry.h.
#pragma once

#include <atomic>
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

  std::unique_ptr<SnappedVertex[]> snapped{};    // [items with own positions, V]
  std::unique_ptr<scalar_t[]> column_centers{};  // [W + kLanes]
  int32_t band_shift = 4;                        // bands are 2^band_shift rows high
  int64_t bands = 0, chunks = 0;
  std::unique_ptr<int64_t[]> bin_begin{};  // [B * bands * chunks + 1]
  std::unique_ptr<int32_t[]> bins{};       // triangle ids
  std::unique_ptr<int64_t[]> hit_begin{};  // [B * bands * chunks + 1]
  std::unique_ptr<Hit[]> hits{};
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
      const int64_t* const hit_cells = hit_begin.get() + task * chunks;
      const int64_t hit_count = chunks == 0 ? 0 : hit_cells[chunks] - hit_cells[0];
      const Hit* const band_hits = hits.get() + (chunks == 0 ? 0 : hit_cells[0]);
      if (beneath == nullptr) {
        Band<scalar_t, false>(input, item, begin, end, item_vertices(item)).run(triangles, count, band_hits, hit_count);
      } else {
        Band<scalar_t, true>(input, item, begin, end, item_vertices(item)).run(triangles, count, band_hits, hit_count);
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

  // What the triangles of one chunk draw, before it is sorted into bands.
  struct ChunkLists {
    std::vector<Survivor> survivors;
    std::vector<Hit> hits;
    std::vector<uint16_t> hit_bands;
  };

  // Counts per (band, chunk) and their running sum: where each chunk's part of each band begins.
  static int64_t accumulate_counts(int64_t* begin, int64_t cells) {
    for (int64_t i = 0; i < cells; ++i) begin[i + 1] += begin[i];
    return begin[cells];
  }

  void bin() {
    const int64_t cells = batch * bands * chunks;
    const std::unique_ptr<ChunkLists[]> lists(new ChunkLists[batch * chunks]);
    bin_begin.reset(new int64_t[cells + 1]());
    hit_begin.reset(new int64_t[cells + 1]());
    parallel_tasks(batch * chunks, [&](int64_t task) { list_chunk(task / chunks, task % chunks, &lists[task]); });
    bins.reset(new int32_t[accumulate_counts(bin_begin.get(), cells)]);
    hits.reset(new Hit[accumulate_counts(hit_begin.get(), cells)]);
    parallel_tasks(batch * chunks, [&](int64_t task) {
      const int64_t first_cell = task / chunks * bands * chunks + task % chunks;
      std::vector<int64_t> next(bands), next_hit(bands);
      for (int64_t b = 0; b < bands; ++b) {
        next[b] = bin_begin[first_cell + b * chunks];
        next_hit[b] = hit_begin[first_cell + b * chunks];
      }
      const ChunkLists& list = lists[task];
      for (const Survivor& s : list.survivors) {
        for (int32_t b = s.first_band; b <= s.last_band; ++b) bins[next[b]++] = s.triangle;
      }
      for (size_t i = 0; i < list.hits.size(); ++i) hits[next_hit[list.hit_bands[i]]++] = list.hits[i];
    });
  }

  void list_chunk(int64_t item, int64_t chunk, ChunkLists* lists) {
    int32_t first, count;
    mesh.range(item, &first, &count);
    const int64_t begin = first + chunk * kTrianglesPerChunk;
    const int64_t end = std::min<int64_t>(first + count, begin + kTrianglesPerChunk);
    const SnappedVertex* const vertices = item_vertices(item);
    // Counts lie one behind their cell, so that the running sum turns them into beginnings.
    int64_t* const counts = bin_begin.get() + item * bands * chunks + chunk + 1;
    int64_t* const hit_counts = hit_begin.get() + item * bands * chunks + chunk + 1;
    const auto keep = [&](int32_t triangle, int32_t first_row, int32_t last_row) {
      const int32_t first_band = first_row >> band_shift, last_band = last_row >> band_shift;
      lists->survivors.push_back({triangle, static_cast<uint16_t>(first_band), static_cast<uint16_t>(last_band)});
      for (int32_t b = first_band; b <= last_band; ++b) ++counts[b * chunks];
    };
    for (int64_t t = begin; t < end; ++t) {
      const int32_t triangle = static_cast<int32_t>(t);
      int32_t index[3];
      if (!mesh.indices(triangle, index)) {
        bad_index = true;
        continue;
      }
      const SnappedVertex a = vertices[index[0]], b = vertices[index[1]], c = vertices[index[2]];
      if ((a.x == kNotInside) | (b.x == kNotInside) | (c.x == kNotInside)) [[unlikely]] {
        int32_t first_row = viewport.height, last_row = -1;
        for_each_clipped(mesh, viewport, item, index, [&](const ScreenTriangle& part) {
          first_row = std::min(first_row, part.row_begin);
          last_row = std::max(last_row, part.row_end - 1);
        });
        if (first_row <= last_row) keep(triangle, first_row, last_row);
        continue;
      }
      ScreenTriangle screen;
      if (!make_screen_triangle(a.x, a.y, b.x, b.y, c.x, c.y, mesh.cull, viewport.width, viewport.height, &screen)) {
        continue;
      }
      if (beneath != nullptr || !is_tiny(screen)) {
        keep(triangle, screen.row_begin, screen.row_end - 1);
        continue;
      }
      for_each_tiny_hit(screen, [&](int32_t column, int32_t row) {
        const int32_t band = row >> band_shift;
        const uint32_t place = static_cast<uint32_t>(row - (band << band_shift)) << kHitColumnBits;
        lists->hits.push_back({triangle, place | static_cast<uint32_t>(column)});
        lists->hit_bands.push_back(static_cast<uint16_t>(band));
        ++hit_counts[band * chunks];
      });
    }
  }
};

}  // namespace diffrender
