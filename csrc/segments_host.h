// Edge walk, part 13: what its host functions share for both devices: the arguments of a call, and the marks of edges
// and pixels worth a look. Read by segments.cpp alone.
#pragma once

#include "core/launch.h"
#include "core/tensor.h"
#include "segments_exact.h"
#include "segments_marks_cpu.h"

namespace diffrender {

// Triangles per task on the CPU, for kernels that spend about ten nanoseconds on each.
constexpr int64_t kTrianglePiece = 4096;

struct SegmentTensors {
  Tensor positions, triangles, triangle_id, topology;
  std::optional<Tensor> ranges, seams;
  Cull cull;
  bool exact;  // visibility

  SegmentTensors(const Tensor& visible, const Tensor& clip_positions, const Tensor& indices, const Tensor& edges,
                 const std::optional<Tensor>& item_ranges, const std::optional<Tensor>& seam_indices, int64_t culling,
                 bool exact_visibility)
      : positions(as_contiguous(clip_positions)),
        triangles(as_contiguous(indices)),
        triangle_id(as_contiguous(visible)),
        topology(as_contiguous(edges)),
        cull(static_cast<Cull>(culling)),
        exact(exact_visibility) {
    if (item_ranges.has_value()) ranges = as_contiguous(*item_ranges);
    if (seam_indices.has_value()) seams = as_contiguous(*seam_indices);
    DR_CHECK(triangle_id.dim() == 3 && triangle_id.scalar_type() == ScalarType::Int,
             "segments: triangle_id must be (B, H, W) int32");
    DR_CHECK(positions.dim() == 3 && positions.size(2) == 4, "segments: clip_positions must have shape (B, V, 4)");
    DR_CHECK(positions.scalar_type() == ScalarType::Float || positions.scalar_type() == ScalarType::Double,
             "segments: clip_positions must be float32 or float64");
    DR_CHECK(positions.size(0) == 1 || positions.size(0) == triangle_id.size(0), "segments: batch sizes differ");
    DR_CHECK(triangles.dim() == 2 && triangles.size(1) == 3 && triangles.scalar_type() == ScalarType::Int,
             "segments: triangles must be (T, 3) int32");
    DR_CHECK(triangles.size(0) < (int64_t(1) << 31) / 3, "segments: too many triangles");
    DR_CHECK(topology.numel() == triangles.numel() && topology.scalar_type() == ScalarType::Int,
             "segments: topology must be int32 of the shape of triangles");
    DR_CHECK(!seams.has_value() || (seams->numel() == triangles.numel() && seams->scalar_type() == ScalarType::Int),
             "segments: seams must be int32 of the shape of triangles");
    DR_CHECK(
        !ranges.has_value() || (ranges->numel() == 2 * triangle_id.size(0) && ranges->scalar_type() == ScalarType::Int),
        "segments: ranges must be (B, 2) int32");
  }

  int64_t batch() const { return triangle_id.size(0); }
};

// launch() on the CPU alone.
template <class T>
void run(int64_t n, const T& functor, int64_t piece = kItemsPerPiece) {
  parallel_ranges(n, piece, [&](int64_t begin, int64_t end) { functor(begin, end); });
}

template <class T>
Tensor new_structs(const Tensor& like, int64_t n) {
  static_assert(sizeof(T) % 8 == 0);
  return new_empty(like, {n * static_cast<int64_t>(sizeof(T) / 8)}, ScalarType::Long);
}

inline SegmentMesh mesh_of(const SegmentTensors& t, const Tensor& facing) {
  const int64_t items = t.positions.size(0), triangles = t.triangles.size(0);
  const bool single = t.positions.scalar_type() == ScalarType::Float;
  return {{{single ? nullptr : data<double>(t.positions), data<int32_t>(t.triangles), data_or_null<int32_t>(t.ranges),
            items == 1 ? 0 : t.positions.size(1) * 4, static_cast<int32_t>(t.positions.size(1)),
            static_cast<int32_t>(triangles), t.cull},
           single ? data<float>(t.positions) : nullptr},
          Viewport<double>::make(t.triangle_id.size(2), t.triangle_id.size(1)),
          data<int32_t>(t.topology),
          data_or_null<int32_t>(t.seams),
          data<int8_t>(facing),
          items == 1 ? 0 : triangles};
}

// What forward and backward both have to know of every triangle and pixel. It costs more to find than all the rest
// where discontinuities are few, and takes a byte each to keep.
struct SegmentMarks {
  Tensor facing;     // (B or 1, T) int8, of TriangleFacing
  Tensor edges;      // (B, T) uint8, of MarkEdges
  Tensor crossings;  // (B, H, W) uint8, of MarkCrossings

  explicit SegmentMarks(const SegmentTensors& t)
      : facing(new_empty(t.positions, {t.positions.size(0), t.triangles.size(0)}, ScalarType::Char)),
        edges(new_empty(t.positions, {t.batch(), t.triangles.size(0)}, ScalarType::Byte)),
        crossings(new_zeros(t.positions, {t.batch(), t.triangle_id.size(1), t.triangle_id.size(2)}, ScalarType::Byte)) {
    const SegmentMesh mesh = mesh_of(t, facing);
    dispatch_floating(t.positions, [&](auto zero) {
      using scalar_t = decltype(zero);
      const RasterMesh<scalar_t> given{data<scalar_t>(t.positions),
                                       mesh.mesh.triangles,
                                       mesh.mesh.ranges,
                                       mesh.mesh.item_stride,
                                       mesh.mesh.vertex_count,
                                       mesh.mesh.triangle_count,
                                       t.cull};
      launch(t.positions, facing.numel(), TriangleFacing<scalar_t>{given, mutable_data<int8_t>(facing)},
             kTrianglePiece);
    });
    launch(t.positions, edges.numel(), MarkEdges{mesh, mutable_data<uint8_t>(edges)}, kTrianglePiece);
    const MarkCrossings mark{mesh, data<int32_t>(t.triangle_id), mutable_data<uint8_t>(crossings)};
    if (t.positions.is_cuda()) {
      launch(t.positions, crossings.numel(), mark);
    } else {
      run(crossings.numel(), MarkCrossingsCpu{mark});
    }
  }

  SegmentMarks(const SegmentTensors& t, const Tensor& side, const Tensor& edge, const Tensor& crossing)
      : facing(as_contiguous(side)), edges(as_contiguous(edge)), crossings(as_contiguous(crossing)) {
    const int64_t triangles = t.triangles.size(0);
    DR_CHECK(facing.scalar_type() == ScalarType::Char && facing.numel() == t.positions.size(0) * triangles,
             "segments: facing must be (B, T) int8");
    DR_CHECK(edges.scalar_type() == ScalarType::Byte && edges.numel() == t.batch() * triangles,
             "segments: edges must be (B, T) uint8");
    DR_CHECK(crossings.scalar_type() == ScalarType::Byte && crossings.numel() == t.triangle_id.numel(),
             "segments: crossings must be (B, H, W) uint8");
  }
};

inline Tensor triangle_boxes(const SegmentTensors& t, const SegmentMesh& mesh) {
  const int64_t count = t.batch() * t.triangles.size(0);
  const Tensor boxes = new_structs<PixelBox>(t.positions, count);
  launch(t.positions, count, TriangleBoxes{mesh, mutable_data<PixelBox>(boxes)});
  return boxes;
}

}  // namespace diffrender
