// The GPU rasterizer as kernel functors. They also run on one CPU thread under test.
//
// One thread per triangle projects it; a triangle whose box has at most one piece (kPieceWidth x kPieceHeight pixels)
// is drawn at once, a larger one is put on a queue and drawn piece by piece by a second launch, so that no thread ever
// walks over a large part of the screen. Drawing is an atomic minimum per pixel: in float32 of the visibility key and
// the triangle id packed in 64 bits; in float64 of the key alone, and in a second pass of the id among the triangles
// that reach the minimum. Both give the lowest id at the smallest key, whatever the order.
#pragma once

#include "rasterize.h"

namespace diffrender {

constexpr int32_t kPieceWidth = 16;
constexpr int32_t kPieceHeight = 8;
constexpr int kQueueCountShift = 43;                  // counter: entries in the upper 21 bits, pieces below
constexpr int64_t kQueueCapacity = int64_t(1) << 20;  // beyond it triangles are drawn by their own thread
constexpr int64_t kThreadsAtOnce = int64_t(1) << 18;  // more than a GPU runs at a time of a kernel with 100 registers
constexpr int64_t kDrawThreads = int64_t(1) << 18;

// As many entries as leave both halves of the counter room for their pieces, and for those of the threads that all find
// the queue not yet full and then come too late.
inline int64_t queue_capacity(int64_t triangles, int64_t width, int64_t height) {
  const int64_t pieces = ((width + kPieceWidth - 1) / kPieceWidth) * ((height + kPieceHeight - 1) / kPieceHeight);
  const int64_t additions = (int64_t(1) << kQueueCountShift) / pieces - 1;
  const int64_t entries = triangles <= additions ? triangles : additions - kThreadsAtOnce;
  return entries < 0 ? 0 : (entries < kQueueCapacity ? entries : kQueueCapacity);
}

// Orders like the floating-point numbers.
DR_HD uint32_t ordered_bits(float value) {
  const uint32_t bits = float_bits(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

DR_HD uint64_t ordered_bits(double value) {
  const uint64_t bits = double_bits(value);
  return (bits & 0x8000000000000000u) != 0 ? ~bits : bits | 0x8000000000000000u;
}

constexpr uint64_t kNothingDrawn = ~uint64_t(0);

// Per-pixel minimum under construction.
struct VisibilityBuffer {
  uint64_t* nearest;  // [B, H, W] float32: key and id packed; float64: key
  uint32_t* winner;   // [B, H, W] float64 only: id

  DR_HD void offer(int64_t pixel, float key, int32_t triangle, int) const {
    atomic_min(nearest + pixel, static_cast<uint64_t>(ordered_bits(key)) << 32 | static_cast<uint32_t>(triangle));
  }

  DR_HD void offer(int64_t pixel, double key, int32_t triangle, int pass) const {
    if (pass == 0) {
      atomic_min(nearest + pixel, ordered_bits(key));
    } else if (nearest[pixel] == ordered_bits(key)) {
      atomic_min(winner + pixel, static_cast<uint32_t>(triangle));
    }
  }

  DR_HD int32_t triangle(int64_t pixel, float) const {
    return nearest[pixel] == kNothingDrawn ? -1 : static_cast<int32_t>(nearest[pixel] & 0xffffffffu);
  }

  DR_HD int32_t triangle(int64_t pixel, double) const { return static_cast<int32_t>(winner[pixel]); }
};

struct DrawQueue {
  uint64_t* counter;  // [1] entries << kQueueCountShift | pieces
  int64_t* begin;     // [capacity] first piece of each entry, ascending
  int64_t* triangle;  // [capacity] item * T + triangle
  int64_t capacity;
};

template <class scalar_t>
struct GpuRasterizer {
  RasterMesh<scalar_t> mesh;
  Viewport<scalar_t> viewport;
  const int32_t* beneath;  // [B, H, W] or null
  VisibilityBuffer buffer;
  DrawQueue queue;
  int pass;

  struct Projected {
    Vec4<scalar_t> v[3];
    KeyRange<scalar_t> range;
    int32_t x[kMaximumPolygon], y[kMaximumPolygon];
    int corners;
    int32_t column_begin, column_end, row_begin, row_end;
  };

  DR_HD int64_t pieces(const Projected& p) const {
    const int64_t across = (p.column_end - p.column_begin + kPieceWidth - 1) / kPieceWidth;
    return across * ((p.row_end - p.row_begin + kPieceHeight - 1) / kPieceHeight);
  }

  // False where the triangle draws nothing.
  DR_HD bool project(int64_t item, int32_t triangle, Projected* p) const {
    int32_t index[3];
    if (!mesh.indices(triangle, index)) return false;
    bool inside = true;
    for (int i = 0; i < 3; ++i) {
      p->v[i] = mesh.vertex(item, index[i]);
      inside = inside && is_inside(p->v[i], viewport.guard);
    }
    p->range = key_range(p->v, inside);
    if (inside) {
      p->corners = 3;
      for (int i = 0; i < 3; ++i) {
        p->x[i] = snap_x(p->v[i], viewport);
        p->y[i] = snap_y(p->v[i], viewport);
      }
    } else {
      p->corners = clip_and_snap(p->v, viewport, p->x, p->y);
    }
    p->column_begin = viewport.width;
    p->row_begin = viewport.height;
    p->column_end = p->row_end = 0;
    for (int i = 1; i + 1 < p->corners; ++i) {
      ScreenTriangle part;
      if (!make_part(*p, i, &part)) continue;
      p->column_begin = minimum(p->column_begin, part.column_begin);
      p->row_begin = minimum(p->row_begin, part.row_begin);
      p->column_end = maximum(p->column_end, part.column_end);
      p->row_end = maximum(p->row_end, part.row_end);
    }
    return p->column_begin < p->column_end;
  }

  DR_HD bool make_part(const Projected& p, int i, ScreenTriangle* part) const {
    return make_screen_triangle(p.x[0], p.y[0], p.x[i], p.y[i], p.x[i + 1], p.y[i + 1], mesh.cull, viewport.width,
                                viewport.height, part);
  }

  DR_HD void draw(int64_t item, int32_t triangle, const Projected& p, int32_t column_begin, int32_t column_end,
                  int32_t row_begin, int32_t row_end) const {
    for (int i = 1; i + 1 < p.corners; ++i) {
      ScreenTriangle part;
      if (!make_part(p, i, &part)) continue;
      const int32_t c0 = maximum(part.column_begin, column_begin), c1 = minimum(part.column_end, column_end);
      const int32_t r0 = maximum(part.row_begin, row_begin), r1 = minimum(part.row_end, row_end);
      for (int32_t row = r0; row < r1; ++row) {
        for (int32_t column = c0; column < c1; ++column) {
          if (covers(part, column, row)) draw_pixel(item, triangle, p, column, row);
        }
      }
    }
  }

  DR_HD void draw_pixel(int64_t item, int32_t triangle, const Projected& p, int32_t column, int32_t row) const {
    const PixelFrame<scalar_t> frame = pixel_frame(p.v, viewport.center_x(column), viewport.center_y(row));
    const scalar_t key = clamp_key(depth_at(p.v, frame.a), p.range);
    if (!is_visible_key(key)) return;
    const int64_t pixel = (item * viewport.height + row) * viewport.width + column;
    if (beneath != nullptr) {
      scalar_t front;
      const int32_t front_triangle = beneath[pixel];
      if (!visibility_key(mesh, viewport, item, front_triangle, column, row, &front)) return;
      if (!(key > front || (key == front && triangle > front_triangle))) return;
    }
    buffer.offer(pixel, key, triangle, pass);
  }

  // One item per triangle of the batch.
  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t item = i / mesh.triangle_count;
      int32_t first, count;
      mesh.range(item, &first, &count);
      const int32_t place = static_cast<int32_t>(i - item * mesh.triangle_count);  // within the range
      Projected p;
      if (place >= count || !project(item, first + place, &p)) continue;
      const int32_t triangle = first + place;
      const int64_t needed = pieces(p);
      if (needed > 1 && enqueue(item, triangle, needed)) continue;
      draw(item, triangle, p, p.column_begin, p.column_end, p.row_begin, p.row_end);
    }
  }

  DR_HD bool enqueue(int64_t item, int32_t triangle, int64_t needed) const {
    // Reading first keeps the entry count of a full queue from growing without bound.
    const uint64_t seen = read_shared(queue.counter);
    if (static_cast<int64_t>(seen >> kQueueCountShift) >= queue.capacity) return false;
    const uint64_t before = atomic_add(queue.counter, uint64_t(1) << kQueueCountShift | static_cast<uint64_t>(needed));
    const int64_t entry = static_cast<int64_t>(before >> kQueueCountShift);
    if (entry >= queue.capacity) return false;
    // One atomic hands out entry and first piece together, so the entries are sorted by their first piece.
    queue.begin[entry] = static_cast<int64_t>(before & ((uint64_t(1) << kQueueCountShift) - 1));
    queue.triangle[entry] = item * mesh.triangle_count + triangle;
    return true;
  }
};

// Draws what the queue holds: thread i takes pieces i, i + threads, ...
template <class scalar_t>
struct GpuDrawQueue {
  GpuRasterizer<scalar_t> rasterizer;
  int64_t threads;

  DR_HD void operator()(int64_t begin, int64_t end) const {
    const DrawQueue& queue = rasterizer.queue;
    const uint64_t counter = *queue.counter;
    const int64_t pieces = static_cast<int64_t>(counter & ((uint64_t(1) << kQueueCountShift) - 1));
    const int64_t requested = static_cast<int64_t>(counter >> kQueueCountShift);
    const int64_t entries = requested < queue.capacity ? requested : queue.capacity;
    for (int64_t thread = begin; thread < end; ++thread) {
      for (int64_t piece = thread; piece < pieces && entries > 0; piece += threads) draw_piece(piece, entries);
    }
  }

  DR_HD void draw_piece(int64_t piece, int64_t entries) const {
    int64_t low = 0, high = entries - 1;  // last entry that begins at or before the piece
    while (low < high) {
      const int64_t middle = (low + high + 1) / 2;
      if (rasterizer.queue.begin[middle] <= piece) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    const int64_t encoded = rasterizer.queue.triangle[low], local = piece - rasterizer.queue.begin[low];
    const int64_t item = encoded / rasterizer.mesh.triangle_count;
    const int32_t triangle = static_cast<int32_t>(encoded - item * rasterizer.mesh.triangle_count);
    typename GpuRasterizer<scalar_t>::Projected p;
    if (!rasterizer.project(item, triangle, &p) || local >= rasterizer.pieces(p)) return;
    const int64_t across = (p.column_end - p.column_begin + kPieceWidth - 1) / kPieceWidth;
    const int32_t row = p.row_begin + static_cast<int32_t>(local / across) * kPieceHeight;
    const int32_t column = p.column_begin + static_cast<int32_t>(local % across) * kPieceWidth;
    rasterizer.draw(item, triangle, p, column, minimum(column + kPieceWidth, p.column_end), row,
                    minimum(row + kPieceHeight, p.row_end));
  }
};

// Turns the finished minimum into fragments, one item per pixel.
template <class scalar_t>
struct GpuResolve {
  RasterMesh<scalar_t> mesh;
  Viewport<scalar_t> viewport;
  VisibilityBuffer buffer;
  FragmentOutput<scalar_t> output;

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t pixel = begin; pixel < end; ++pixel) {
      const int32_t triangle = buffer.triangle(pixel, scalar_t());
      if (triangle < 0) {
        output.write_background(pixel);
        continue;
      }
      const int64_t size = static_cast<int64_t>(viewport.width) * viewport.height;
      const int64_t item = pixel / size, within = pixel - item * size;
      int32_t index[3];
      mesh.indices(triangle, index);  // only valid triangles are drawn
      const Vec4<scalar_t> v[3] = {mesh.vertex(item, index[0]), mesh.vertex(item, index[1]),
                                   mesh.vertex(item, index[2])};
      output.triangle_id[pixel] = triangle;
      output.write(pixel, v, viewport, static_cast<int32_t>(within % viewport.width),
                   static_cast<int32_t>(within / viewport.width));
    }
  }
};

// Fills a buffer of 64-bit words with ones: "nothing drawn".
struct FillOnes {
  uint64_t* values;

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) values[i] = ~uint64_t(0);
  }
};

}  // namespace diffrender
