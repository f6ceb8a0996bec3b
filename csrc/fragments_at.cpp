// Host side of fragments_at, for both devices. Its backward is that of rasterize, see rasterize.cpp.
#include "fragments_at.h"

#include <memory>

#include "core/launch.h"
#include "core/tensor.h"
#include "rasterize_row_cpu.h"

namespace diffrender {
namespace {

template <class scalar_t>
void write_rows(const FragmentsAt<scalar_t>& kernel, int64_t batch) {
  const Viewport<scalar_t>& viewport = kernel.viewport;
  const std::unique_ptr<scalar_t[]> centers(new scalar_t[viewport.width + kLanes]);
  for (int32_t c = 0; c < viewport.width + kLanes; ++c) centers[c] = viewport.center_x(c);
  const RowWriter<scalar_t> writer{kernel.mesh, viewport, kernel.output, centers.get()};
  const int64_t rows_at_once = std::max<int64_t>(1, kItemsPerPiece / viewport.width);
  parallel_ranges(batch * viewport.height, rows_at_once, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      writer.write_row(row / viewport.height, static_cast<int32_t>(row % viewport.height),
                       kernel.triangle_id + row * viewport.width);
    }
  });
}

std::tuple<Tensor, Tensor, Tensor> fragments_at(const Tensor& clip_positions, const Tensor& triangle_indices,
                                                const Tensor& visible, int64_t height, int64_t first_row,
                                                bool derivatives) {
  const DeviceScope device(clip_positions);
  const Tensor positions = as_contiguous(clip_positions), triangles = as_contiguous(triangle_indices);
  const Tensor triangle_id = as_contiguous(visible);
  DR_CHECK(positions.dim() == 3 && positions.size(2) == 4, "fragments_at: clip_positions must have shape (B, V, 4)");
  DR_CHECK(triangles.scalar_type() == ScalarType::Int && triangle_id.scalar_type() == ScalarType::Int,
           "fragments_at: triangles and triangle_id must be int32");
  DR_CHECK(triangle_id.dim() == 3, "fragments_at: triangle_id must have shape (B, rows, W)");
  const int64_t batch = triangle_id.size(0), rows = triangle_id.size(1), width = triangle_id.size(2);
  DR_CHECK(positions.size(0) == 1 || positions.size(0) == batch, "fragments_at: batch sizes differ");
  DR_CHECK(first_row >= 0 && first_row + rows <= height, "fragments_at: the rows lie outside of the image");
  const Tensor barycentrics = new_empty(positions, {batch, rows, width, 2});
  const Tensor depth = new_empty(positions, {batch, rows, width});
  const Tensor gradients = new_empty(positions, {derivatives ? batch : 0, rows, width, 4});
  if (triangle_id.numel() == 0) return {barycentrics, depth, gradients};
  dispatch_floating(positions, [&](auto zero) {
    using scalar_t = decltype(zero);
    const int64_t vertices = positions.size(1);
    const FragmentsAt<scalar_t> kernel{
        {data<scalar_t>(positions), data<int32_t>(triangles), nullptr, positions.size(0) == 1 ? 0 : vertices * 4,
         static_cast<int32_t>(vertices), static_cast<int32_t>(triangles.size(0)), Cull::none},
        Viewport<scalar_t>::make_band(width, height, first_row, rows),
        data<int32_t>(triangle_id),
        {nullptr, mutable_data<scalar_t>(barycentrics), mutable_data<scalar_t>(depth),
         derivatives ? mutable_data<scalar_t>(gradients) : nullptr}};
    if (positions.is_cuda()) {
      launch(positions, triangle_id.numel(), kernel);
    } else {
      write_rows(kernel, batch);
    }
  });
  return {barycentrics, depth, gradients};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(diffrender, m) {
  m.def(
      "fragments_at(Tensor clip_positions, Tensor triangles, Tensor triangle_id, int height, int first_row, "
      "bool derivatives) -> (Tensor, Tensor, Tensor)");
}

DR_REGISTER("fragments_at", &fragments_at)

}  // namespace diffrender
