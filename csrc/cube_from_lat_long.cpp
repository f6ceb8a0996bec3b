// Host side of cube_from_lat_long and its transpose, for both devices.
#include "cube_from_lat_long.h"

#include "core/launch.h"
#include "core/tensor.h"

namespace diffrender {
namespace {

template <class scalar_t>
LatLongSampler<scalar_t> make_sampler(int64_t height, int64_t width, int64_t size) {
  DR_CHECK(height >= 1 && width >= 1 && size >= 1 && size <= 8192, "cube_from_lat_long: wrong size");
  return {static_cast<int32_t>(height), static_cast<int32_t>(width), static_cast<int32_t>(size)};
}

Tensor cube_from_lat_long(const Tensor& input, int64_t size) {
  const DeviceScope device(input);
  const Tensor panorama = as_contiguous(input);
  DR_CHECK(panorama.dim() == 4, "cube_from_lat_long: panorama must have shape (B, H, W, C)");
  const int64_t batch = panorama.size(0), channels = panorama.size(3);
  const Tensor cube = new_zeros(panorama, {batch, 6, size, size, channels});
  if (cube.numel() == 0) return cube;
  dispatch_floating(panorama, [&](auto zero) {
    using scalar_t = decltype(zero);
    launch(panorama, batch * 6 * size * size,
           CubeFromLatLongForward<scalar_t>{make_sampler<scalar_t>(panorama.size(1), panorama.size(2), size),
                                            data<scalar_t>(panorama), mutable_data<scalar_t>(cube),
                                            static_cast<int32_t>(channels)});
  });
  return cube;
}

Tensor cube_from_lat_long_backward(const Tensor& grad_output, int64_t height, int64_t width, int64_t scatter) {
  const DeviceScope device(grad_output);
  const Tensor grad_cube = as_contiguous(grad_output);
  DR_CHECK(grad_cube.dim() == 5, "cube_from_lat_long: the gradient must have shape (B, 6, S, S, C)");
  const int64_t batch = grad_cube.size(0), size = grad_cube.size(2), channels = grad_cube.size(4);
  const Tensor grad = new_zeros(grad_cube, {batch, height, width, channels});
  dispatch_floating(grad, [&](auto zero) {
    using scalar_t = decltype(zero);
    const CubeFromLatLongBackward<scalar_t> kernel{make_sampler<scalar_t>(height, width, size),
                                                   data<scalar_t>(grad_cube), static_cast<int32_t>(channels)};
    const int64_t texels = batch * 6 * size * size;
    const auto algorithm = static_cast<ScatterAlgorithm>(scatter);
    if (grad.is_cuda() || algorithm == ScatterAlgorithm::fixed_point) {
      // All taps of all parts of a texel may be the same texel of the panorama.
      constexpr int64_t kPerTexel = 4 * LatLongSampler<scalar_t>::kMostParts * LatLongSampler<scalar_t>::kMostParts;
      scatter_without_buffers<scalar_t>(grad, texels, algorithm, kernel, kPerTexel);
    } else {
      detail::scatter_cpu<scalar_t>(grad, batch, texels, kernel);
    }
  });
  return grad;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(diffrender, m) {
  m.def("cube_from_lat_long(Tensor panorama, int size) -> Tensor");
  m.def("cube_from_lat_long_backward(Tensor grad_cube, int height, int width, int scatter) -> Tensor");
}

DR_REGISTER("cube_from_lat_long", &cube_from_lat_long)
DR_REGISTER("cube_from_lat_long_backward", &cube_from_lat_long_backward)

}  // namespace diffrender
