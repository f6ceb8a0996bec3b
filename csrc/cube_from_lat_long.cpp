// Host side of cube_from_lat_long and its transpose, for both devices.
#include "cube_from_lat_long.h"

#include "core/launch.h"
#include "core/tensor.h"
#include "shade_packet.h"

namespace diffrender {
namespace {

// Texels per task on the CPU: each has several parts.
constexpr int64_t kTexelsPerTask = 1024;

template <class T>
LatLongSampler<T> make_sampler(int64_t height, int64_t width, int64_t size) {
  DR_CHECK(height >= 1 && width >= 1 && size >= 1 && size <= 8192, "cube_from_lat_long: wrong size");
  return {static_cast<int32_t>(height), static_cast<int32_t>(width), static_cast<int32_t>(size)};
}

// Calls f with the number of channels where a body knows it.
template <class F>
void for_channels(int64_t channels, const F& f) {
  if (channels == 3) {
    f(std::integral_constant<int, 3>());
  } else {
    f(std::integral_constant<int, 0>());
  }
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
    const int64_t texels = batch * 6 * size * size;
    const auto run = [&](auto number, auto known) {
      using T = decltype(number);
      const CubeFromLatLongForward<T, decltype(known)::value> kernel{
          make_sampler<T>(panorama.size(1), panorama.size(2), size), data<scalar_t>(panorama),
          mutable_data<scalar_t>(cube), static_cast<int32_t>(channels)};
      if constexpr (PacketIo<T>::kWidth == 1) {
        launch(panorama, texels, kernel);
      } else {
        parallel_ranges(texels, kTexelsPerTask, [&](int64_t begin, int64_t end) { kernel(begin, end); });
      }
    };
    if constexpr (std::is_same_v<scalar_t, float>) {
      if (!panorama.is_cuda()) {
        for_channels(channels, [&](auto known) { run(Packet<float>(0.0f), known); });
        return;
      }
    }
    run(zero, std::integral_constant<int, 0>());
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
    } else if constexpr (std::is_same_v<scalar_t, float>) {
      for_channels(channels, [&](auto known) {
        using T = Packet<float>;
        const CubeFromLatLongBackward<T, decltype(known)::value> packets{
            make_sampler<T>(height, width, size), data<scalar_t>(grad_cube), static_cast<int32_t>(channels)};
        detail::scatter_cpu<scalar_t>(grad, batch, texels, packets);
      });
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
