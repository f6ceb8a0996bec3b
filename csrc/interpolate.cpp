// Host side of interpolate and its backward, for both devices.
#include "interpolate.h"

#include "core/launch.h"
#include "core/tensor.h"
#include "interpolate_cpu.h"

namespace diffrender {
namespace {

template <class scalar_t>
InterpolateInput<scalar_t> interpolate_input(const Tensor& attributes, const Tensor& triangles,
                                             const Tensor& triangle_id, const Tensor& weights, double total) {
  const int64_t vertices = attributes.size(1), channels = attributes.size(2);
  return {data<scalar_t>(attributes),
          data<int32_t>(triangles),
          data<int32_t>(triangle_id),
          data<scalar_t>(weights),
          triangle_id.size(1) * triangle_id.size(2),
          attributes.size(0) == 1 ? 0 : vertices * channels,
          static_cast<int32_t>(vertices),
          static_cast<int32_t>(triangles.size(0)),
          static_cast<int32_t>(channels),
          static_cast<scalar_t>(total)};
}

void check_interpolate(const Tensor& attributes, const Tensor& triangles, const Tensor& triangle_id,
                       const Tensor& weights) {
  DR_CHECK(attributes.dim() == 3, "interpolate: attributes must have shape (B, V, C)");
  DR_CHECK(triangles.dim() == 2 && triangles.size(1) == 3, "interpolate: triangles must have shape (T, 3)");
  DR_CHECK(triangles.scalar_type() == ScalarType::Int && triangle_id.scalar_type() == ScalarType::Int,
           "interpolate: triangles and triangle_id must be int32");
  DR_CHECK(triangle_id.dim() == 3 && weights.numel() == 2 * triangle_id.numel(),
           "interpolate: triangle_id and weights differ in size");
  DR_CHECK(attributes.size(0) == 1 || attributes.size(0) == triangle_id.size(0), "interpolate: batch sizes differ");
  DR_CHECK(weights.scalar_type() == attributes.scalar_type(), "interpolate: weights and attributes differ in type");
}

// Whether interpolate_cpu.h has this case.
template <class scalar_t, int kChannels>
constexpr bool has_rows = std::is_same_v<scalar_t, float> && kChannels >= 1;

// Calls f with the channel count as a compile-time constant where it is a common one, 0 elsewhere and in float64, where
// nothing is tuned for speed.
template <class scalar_t, class F>
void dispatch_channels(int64_t channels, const F& f) {
  if constexpr (std::is_same_v<scalar_t, float>) {
    if (channels == 1) return f(std::integral_constant<int, 1>());
    if (channels == 2) return f(std::integral_constant<int, 2>());
    if (channels == 3) return f(std::integral_constant<int, 3>());
    if (channels == 4) return f(std::integral_constant<int, 4>());
  }
  f(std::integral_constant<int, 0>());
}

Tensor interpolate(const Tensor& vertex_attributes, const Tensor& triangle_indices, const Tensor& visible,
                   const Tensor& pixel_weights, double total) {
  const DeviceScope device(vertex_attributes);
  const Tensor attributes = as_contiguous(vertex_attributes), triangles = as_contiguous(triangle_indices);
  const Tensor triangle_id = as_contiguous(visible), weights = as_contiguous(pixel_weights);
  check_interpolate(attributes, triangles, triangle_id, weights);
  const int64_t channels = attributes.size(2);
  const Tensor values =
      new_empty(attributes, {triangle_id.size(0), triangle_id.size(1), triangle_id.size(2), channels});
  dispatch_floating(attributes, [&](auto zero) {
    using scalar_t = decltype(zero);
    const auto in = interpolate_input<scalar_t>(attributes, triangles, triangle_id, weights, total);
    dispatch_channels<scalar_t>(channels, [&](auto count) {
      constexpr int kChannels = decltype(count)::value;
      const InterpolateForward<scalar_t, kChannels> kernel{in, mutable_data<scalar_t>(values)};
      if constexpr (has_rows<scalar_t, kChannels>) {
        if (!attributes.is_cuda()) {
          parallel_ranges(triangle_id.numel(), kItemsPerPiece, InterpolateForwardRows<kChannels>{kernel});
          return;
        }
      }
      launch(attributes, triangle_id.numel(), kernel);
    });
  });
  return values;
}

// Gradients to attributes and weights; one that is not needed comes back empty.
std::tuple<Tensor, Tensor> interpolate_backward(const Tensor& vertex_attributes, const Tensor& triangle_indices,
                                                const Tensor& visible, const Tensor& pixel_weights,
                                                const Tensor& grad_output, double total, bool need_attributes,
                                                bool need_weights, int64_t algorithm) {
  const DeviceScope device(vertex_attributes);
  const Tensor attributes = as_contiguous(vertex_attributes), triangles = as_contiguous(triangle_indices);
  const Tensor triangle_id = as_contiguous(visible), weights = as_contiguous(pixel_weights);
  const Tensor grad_values = as_contiguous(grad_output);
  check_interpolate(attributes, triangles, triangle_id, weights);
  const int64_t channels = attributes.size(2), pixels = triangle_id.numel();
  DR_CHECK(grad_values.numel() == pixels * channels, "interpolate: the gradient has another size than the values");
  const Tensor grad_attributes =
      new_zeros(attributes, {need_attributes ? attributes.size(0) : 0, attributes.size(1), channels});
  const Tensor grad_weights =
      new_empty(attributes, {need_weights ? triangle_id.size(0) : 0, triangle_id.size(1), triangle_id.size(2), 2});
  dispatch_floating(attributes, [&](auto zero) {
    using scalar_t = decltype(zero);
    const auto in = interpolate_input<scalar_t>(attributes, triangles, triangle_id, weights, total);
    const scalar_t* const grad = data<scalar_t>(grad_values);
    const auto scatter = static_cast<ScatterAlgorithm>(algorithm);
    if constexpr (std::is_same_v<scalar_t, float>) {
      const bool rows = !attributes.is_cuda() && scatter == ScatterAlgorithm::native && channels <= 4;
      if (rows && need_attributes && grad_attributes.numel() > 0) {
        dispatch_channels<scalar_t>(channels, [&](auto count) {
          constexpr int kChannels = decltype(count)::value;
          if constexpr (has_rows<float, kChannels>) {
            float* const gradient = need_weights ? mutable_data<float>(grad_weights) : nullptr;
            detail::scatter_cpu<float>(grad_attributes, attributes.size(0), pixels,
                                       InterpolateBackwardRows<kChannels>{{in, grad, gradient}, {in, grad, 0}});
          }
        });
        return;
      }
    }
    if (need_weights) {
      dispatch_channels<scalar_t>(channels, [&](auto count) {
        launch(attributes, pixels,
               InterpolateBackwardWeights<scalar_t, decltype(count)::value>{in, grad,
                                                                            mutable_data<scalar_t>(grad_weights)});
      });
    }
    int64_t first = 0;
    while (need_attributes && first < channels) {
      const auto add_block = [&](auto count) {
        constexpr int kBlock = decltype(count)::value;
        launch_scatter<scalar_t>(
            grad_attributes, attributes.size(0), pixels, scatter,
            InterpolateBackwardAttributes<scalar_t, kBlock>{in, grad, static_cast<int32_t>(first)});
        first += kBlock;
      };
      if (channels - first >= 4) {
        add_block(std::integral_constant<int, 4>());
      } else if (channels - first == 3) {
        add_block(std::integral_constant<int, 3>());
      } else if (channels - first == 2) {
        add_block(std::integral_constant<int, 2>());
      } else {
        add_block(std::integral_constant<int, 1>());
      }
    }
  });
  return {grad_attributes, grad_weights};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(diffrender, m) {
  m.def("interpolate(Tensor attributes, Tensor triangles, Tensor triangle_id, Tensor weights, float total) -> Tensor");
  m.def(
      "interpolate_backward(Tensor attributes, Tensor triangles, Tensor triangle_id, Tensor weights, "
      "Tensor grad_values, float total, bool need_attributes, bool need_weights, int scatter) -> (Tensor, Tensor)");
}

DR_REGISTER("interpolate", &interpolate)
DR_REGISTER("interpolate_backward", &interpolate_backward)

}  // namespace diffrender
