// Host side of prefilter_environment and its backward, for both devices.
#include "prefilter_environment.h"

#include "core/launch.h"
#include "core/tensor.h"
#include "shade_packet.h"

namespace diffrender {
namespace {

// Texels of the result per task on the CPU: each costs microseconds.
constexpr int64_t kTexelsPerTask = 64;
// About how many texels of the pyramid each of them sees, and adds to for each of its images.
constexpr int64_t kAdditionsPerTexel = 1000;

struct FilterSizes {
  int64_t size, levels, resolution;
  double alpha_squared, tolerance;

  int64_t texels() const {
    int64_t sum = 0;
    for (int64_t m = 0; m < levels; ++m) sum += 6 * (size >> m) * (size >> m);
    return sum;
  }

  template <class T>
  EnvironmentFilter<T> filter(const Tensor& nodes) const {
    using scalar_t = ScalarOf<T>;
    const auto bands = FilterBands<scalar_t>::make(size, static_cast<int32_t>(levels), alpha_squared, tolerance);
    return {data<scalar_t>(nodes),
            bands,
            static_cast<scalar_t>(alpha_squared),
            static_cast<int32_t>(size),
            static_cast<int32_t>(resolution),
            CubeTurns::make()};
  }

  void check(const Tensor& nodes) const {
    DR_CHECK(levels >= 1 && levels <= FilterBands<float>::kLevels && (size >> (levels - 1)) >= 1 && resolution >= 1,
             "prefilter_environment: wrong sizes");
    DR_CHECK(resolution <= 8192 && size <= 8192, "prefilter_environment: more texels than an index can count");
    DR_CHECK(nodes.dim() == 2 && nodes.size(1) == 4 && 6 * nodes.size(0) == texels(),
             "prefilter_environment: nodes must have shape (N / 6, 4)");
  }
};

// Calls f with the type that a body runs on: packets of texels on the CPU; single ones on CUDA, in float64, a type for
// checks, and where a test asks for them.
template <class F>
void dispatch_width(const Tensor& tensor, int64_t driver, const F& f) {
  if (tensor.scalar_type() == ScalarType::Double) {
    f(double());
  } else if (tensor.is_cuda() || driver != 0) {
    f(float());
  } else {
    f(Packet<float>(0.0f));
  }
}

// Three channels at once, and the rest one by one.
template <class F>
void for_channels(int64_t channels, const F& f) {
  int64_t first = 0;
  for (; first + 3 <= channels; first += 3) f(std::integral_constant<int, 3>(), static_cast<int32_t>(first));
  for (; first < channels; ++first) f(std::integral_constant<int, 1>(), static_cast<int32_t>(first));
}

// The filtered cube map, and the sum of weights of each of its texels.
std::tuple<Tensor, Tensor> prefilter_environment(const Tensor& energies, const Tensor& node_table, int64_t size,
                                                 int64_t levels, int64_t resolution, double alpha_squared,
                                                 double tolerance, int64_t driver) {
  const DeviceScope device(energies);
  const Tensor pyramid = as_contiguous(energies), nodes = as_contiguous(node_table);
  const FilterSizes sizes{size, levels, resolution, alpha_squared, tolerance};
  sizes.check(nodes);
  DR_CHECK(pyramid.dim() == 3 && pyramid.size(1) == sizes.texels() && pyramid.scalar_type() == nodes.scalar_type(),
           "prefilter_environment: pyramid must have shape (B, N, C)");
  const int64_t batch = pyramid.size(0), channels = pyramid.size(2);
  const Tensor values = new_empty(pyramid, {batch, 6, resolution, resolution, channels});
  const bool is_empty = values.numel() == 0;
  const Tensor total =
      is_empty ? new_zeros(pyramid, {6, resolution, resolution}) : new_empty(pyramid, {6, resolution, resolution});
  dispatch_width(pyramid, driver, [&](auto zero) {
    using T = decltype(zero);
    using scalar_t = ScalarOf<T>;
    const EnvironmentFilter<T> filter = sizes.filter<T>(nodes);
    for_channels(channels, [&](auto count, int32_t first) {
      const PrefilterForward<T, decltype(count)::value> kernel{filter,
                                                               data<scalar_t>(pyramid),
                                                               mutable_data<scalar_t>(values),
                                                               mutable_data<scalar_t>(total),
                                                               pyramid.size(1),
                                                               static_cast<int32_t>(channels),
                                                               first};
      const int64_t items = batch * filter.items();
      if constexpr (PacketIo<T>::kWidth == 1) {
        if (pyramid.is_cuda()) {
          launch(pyramid, items, kernel);
          return;
        }
      }
      parallel_ranges(items, kTexelsPerTask, [&](int64_t begin, int64_t end) { kernel(begin, end); });
    });
  });
  return {values, total};
}

Tensor prefilter_environment_backward(const Tensor& grad_output, const Tensor& total_weight, const Tensor& node_table,
                                      int64_t size, int64_t levels, double alpha_squared, double tolerance,
                                      int64_t scatter, int64_t driver) {
  const DeviceScope device(grad_output);
  const Tensor grad_values = as_contiguous(grad_output), total = as_contiguous(total_weight);
  const Tensor nodes = as_contiguous(node_table);
  DR_CHECK(grad_values.dim() == 5, "prefilter_environment: the gradient must have shape (B, 6, R, R, C)");
  const int64_t batch = grad_values.size(0), resolution = grad_values.size(2), channels = grad_values.size(4);
  const FilterSizes sizes{size, levels, resolution, alpha_squared, tolerance};
  sizes.check(nodes);
  DR_CHECK(total.numel() == 6 * resolution * resolution, "prefilter_environment: total differs in size");
  const Tensor grad = new_zeros(grad_values, {batch, sizes.texels(), channels});
  const int64_t texels = batch * 6 * resolution * resolution;
  dispatch_width(grad, driver, [&](auto zero) {
    using T = decltype(zero);
    using scalar_t = ScalarOf<T>;
    const EnvironmentFilter<T> filter = sizes.filter<T>(nodes);
    for_channels(channels, [&](auto count, int32_t first) {
      const PrefilterBackward<T, decltype(count)::value> kernel{
          filter,         data<scalar_t>(grad_values),    data<scalar_t>(total),
          sizes.texels(), static_cast<int32_t>(channels), first};
      if constexpr (PacketIo<T>::kWidth == 1) {
        launch_scatter<scalar_t>(grad, batch, texels, static_cast<ScatterAlgorithm>(scatter), kernel,
                                 kAdditionsPerTexel * texels);
      } else {
        detail::scatter_cpu<scalar_t>(grad, batch, batch * filter.items(), kernel, kAdditionsPerTexel * texels);
      }
    });
  });
  return grad;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(diffrender, m) {
  m.def(
      "prefilter_environment(Tensor pyramid, Tensor nodes, int size, int levels, int resolution, float alpha_squared, "
      "float tolerance, int driver) -> (Tensor, Tensor)");
  m.def(
      "prefilter_environment_backward(Tensor grad_values, Tensor total, Tensor nodes, int size, int levels, "
      "float alpha_squared, float tolerance, int scatter, int driver) -> Tensor");
}

DR_REGISTER("prefilter_environment", &prefilter_environment)
DR_REGISTER("prefilter_environment_backward", &prefilter_environment_backward)

}  // namespace diffrender
