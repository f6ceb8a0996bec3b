// Host side of rasterize and its backward, for both devices.
#include "rasterize.h"

#include "core/launch.h"
#include "core/tensor.h"
#include "rasterize_backward_cpu.h"
#include "rasterize_cpu.h"
#include "rasterize_gpu.h"

namespace diffrender {
namespace {

// Which algorithm draws. `native` is the one made for the device; the GPU's also runs on the CPU, for tests.
enum class Driver : int64_t { native = 0, gpu = 1 };

template <class scalar_t>
RasterMesh<scalar_t> raster_mesh(const Tensor& positions, const Tensor& triangles, const std::optional<Tensor>& ranges,
                                 Cull cull) {
  const int64_t vertices = positions.size(1);
  return {data<scalar_t>(positions),
          data<int32_t>(triangles),
          data_or_null<int32_t>(ranges),
          positions.size(0) == 1 ? 0 : vertices * 4,
          static_cast<int32_t>(vertices),
          static_cast<int32_t>(triangles.size(0)),
          cull};
}

template <class scalar_t>
void draw_gpu(const Tensor& positions, int64_t batch, GpuRasterizer<scalar_t> rasterizer,
              const FragmentOutput<scalar_t>& output) {
  const bool on_cpu = !positions.is_cuda();
  // One thread on the CPU: the functors expect atomics to be needed on the GPU only.
  const auto run = [&](int64_t n, const auto& functor) { launch_in_order(positions, n, functor); };
  const int64_t pixels = batch * rasterizer.viewport.width * rasterizer.viewport.height;
  const int64_t triangles = batch * rasterizer.mesh.triangle_count;
  const bool wide = sizeof(scalar_t) == 8;
  const Tensor nearest = new_empty(positions, {pixels}, ScalarType::Long);
  const Tensor winner = new_empty(positions, {wide ? (pixels + 1) / 2 : 0}, ScalarType::Long);
  const int64_t capacity = queue_capacity(triangles, rasterizer.viewport.width, rasterizer.viewport.height);
  const Tensor queue = new_empty(positions, {2 * capacity}, ScalarType::Long);
  rasterizer.buffer = {mutable_data<uint64_t>(nearest), mutable_data<uint32_t>(winner)};
  run(pixels, FillOnes{rasterizer.buffer.nearest});
  if (wide) run(winner.numel(), FillOnes{mutable_data<uint64_t>(winner)});
  for (int pass = 0; pass < (wide ? 2 : 1) && triangles > 0; ++pass) {
    const Tensor counter = new_zeros(positions, {1}, ScalarType::Long);
    rasterizer.queue = {mutable_data<uint64_t>(counter), mutable_data<int64_t>(queue),
                        mutable_data<int64_t>(queue) + capacity, capacity};
    rasterizer.pass = pass;
    run(triangles, rasterizer);
    const int64_t threads = on_cpu ? 64 : kDrawThreads;
    run(threads, GpuDrawQueue<scalar_t>{rasterizer, threads});
  }
  run(pixels, GpuResolve<scalar_t>{rasterizer.mesh, rasterizer.viewport, rasterizer.buffer, output});
}

std::tuple<Tensor, Tensor, Tensor, Tensor> rasterize(const Tensor& clip_positions, const Tensor& triangle_indices,
                                                     const std::optional<Tensor>& item_ranges,
                                                     const std::optional<Tensor>& beneath_ids, int64_t height,
                                                     int64_t width, int64_t cull, bool derivatives, int64_t driver) {
  const DeviceScope device(clip_positions);
  const Tensor positions = as_contiguous(clip_positions), triangles = as_contiguous(triangle_indices);
  DR_CHECK(positions.dim() == 3 && positions.size(2) == 4, "rasterize: clip_positions must have shape (B, V, 4)");
  DR_CHECK(triangles.dim() == 2 && triangles.size(1) == 3, "rasterize: triangles must have shape (T, 3)");
  DR_CHECK(triangles.scalar_type() == ScalarType::Int, "rasterize: triangles must be int32");
  DR_CHECK(height >= 1 && width >= 1, "rasterize: the image must have at least one pixel");
  std::optional<Tensor> ranges, beneath;
  if (item_ranges.has_value()) ranges = as_contiguous(*item_ranges);
  if (beneath_ids.has_value()) beneath = as_contiguous(*beneath_ids);
  const int64_t batch = ranges.has_value() ? ranges->size(0) : positions.size(0);
  DR_CHECK(positions.size(0) == batch || positions.size(0) == 1, "rasterize: batch sizes differ");
  DR_CHECK(!beneath.has_value() || beneath->numel() == batch * height * width, "rasterize: beneath has another size");

  const Tensor triangle_id = new_empty(positions, {batch, height, width}, ScalarType::Int);
  const Tensor barycentrics = new_empty(positions, {batch, height, width, 2});
  const Tensor depth = new_empty(positions, {batch, height, width});
  const Tensor gradients = new_empty(positions, {derivatives ? batch : 0, height, width, 4});
  dispatch_floating(positions, [&](auto zero) {
    using scalar_t = decltype(zero);
    const auto mesh = raster_mesh<scalar_t>(positions, triangles, ranges, static_cast<Cull>(cull));
    const auto viewport = Viewport<scalar_t>::make(width, height);
    const FragmentOutput<scalar_t> output{mutable_data<int32_t>(triangle_id), mutable_data<scalar_t>(barycentrics),
                                          mutable_data<scalar_t>(depth),
                                          derivatives ? mutable_data<scalar_t>(gradients) : nullptr};
    if (positions.is_cuda() || static_cast<Driver>(driver) == Driver::gpu) {
      draw_gpu(positions, batch, GpuRasterizer<scalar_t>{mesh, viewport, data_or_null<int32_t>(beneath), {}, {}, 0},
               output);
      return;
    }
    CpuRasterizer<scalar_t> rasterizer{mesh, viewport, batch, data_or_null<int32_t>(beneath), output};
    rasterizer.run();
    DR_CHECK(!rasterizer.bad_index, "rasterize: triangles refers to a vertex that clip_positions does not have");
  });
  return {triangle_id, barycentrics, depth, gradients};
}

// `triangle_id` may be the rows from `first_row` on of an image of `height` rows; height < 0: it is the whole image.
Tensor rasterize_backward(const Tensor& clip_positions, const Tensor& triangle_indices, const Tensor& visible,
                          const std::optional<Tensor>& grad_barycentrics, const std::optional<Tensor>& grad_depth,
                          const std::optional<Tensor>& grad_derivatives, int64_t algorithm, int64_t height,
                          int64_t first_row, double least_width) {
  const DeviceScope device(clip_positions);
  const Tensor positions = as_contiguous(clip_positions), triangles = as_contiguous(triangle_indices);
  const Tensor triangle_id = as_contiguous(visible);
  const auto dense = [](const std::optional<Tensor>& grad) {
    return grad.has_value() ? std::optional<Tensor>(as_contiguous(*grad)) : std::nullopt;
  };
  const auto gb = dense(grad_barycentrics), gd = dense(grad_depth), gx = dense(grad_derivatives);
  const Tensor grad = new_zeros(positions, {positions.size(0), positions.size(1), 4});
  const int64_t image_height = height < 0 ? triangle_id.size(1) : height;
  dispatch_floating(positions, [&](auto zero) {
    using scalar_t = decltype(zero);
    const RasterizeBackward<scalar_t> kernel{
        raster_mesh<scalar_t>(positions, triangles, std::nullopt, Cull::none),
        Viewport<scalar_t>::make_band(triangle_id.size(2), image_height, first_row, triangle_id.size(1)),
        data<int32_t>(triangle_id),
        data_or_null<scalar_t>(gb),
        data_or_null<scalar_t>(gd),
        data_or_null<scalar_t>(gx),
        static_cast<scalar_t>(least_width)};
    const auto scatter = static_cast<ScatterAlgorithm>(algorithm);
    const int64_t targets = positions.size(0), pixels = triangle_id.numel();
    if (grad.is_cuda() || scatter != ScatterAlgorithm::native || gx.has_value()) {
      launch_scatter<scalar_t>(grad, targets, pixels, scatter, kernel);
    } else {
      detail::scatter_cpu<scalar_t>(grad, targets, pixels, RasterizeBackwardRows<scalar_t>{kernel});
    }
  });
  return grad;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(diffrender, m) {
  m.def(
      "rasterize(Tensor clip_positions, Tensor triangles, Tensor? ranges, Tensor? beneath, int height, int width, "
      "int cull, bool derivatives, int driver) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "rasterize_backward(Tensor clip_positions, Tensor triangles, Tensor triangle_id, Tensor? grad_barycentrics, "
      "Tensor? grad_depth, Tensor? grad_derivatives, int scatter, int height=-1, int first_row=0, float "
      "least_width=0.) -> Tensor");
}

DR_REGISTER("rasterize", &rasterize)
DR_REGISTER("rasterize_backward", &rasterize_backward)

}  // namespace diffrender
