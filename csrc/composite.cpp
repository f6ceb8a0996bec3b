// Host side of composite and its backward, for both devices.
#include "composite.h"

#include "core/launch.h"
#include "core/tensor.h"

namespace diffrender {
namespace {

void check_composite(const Tensor& values, const Tensor& weight, const Tensor& offsets) {
  DR_CHECK(values.dim() == 2, "composite: values must have shape (N, C)");
  DR_CHECK(weight.dim() == 1 && weight.size(0) == values.size(0), "composite: values and weight differ in size");
  DR_CHECK(weight.scalar_type() == values.scalar_type(), "composite: values and weight differ in type");
  DR_CHECK(offsets.dim() == 1 && offsets.size(0) >= 1, "composite: offsets must have shape (P + 1,)");
  DR_CHECK(offsets.scalar_type() == ScalarType::Long, "composite: offsets must be int64");
}

// Calls f with the channel count as a compile-time constant where it is a common one, else 0.
template <class scalar_t, class F>
void dispatch_rows(int64_t channels, const F& f) {
  if constexpr (std::is_same_v<scalar_t, float>) {
    if (channels == 1) return f(CompositeRows<1>{channels});
    if (channels == 3) return f(CompositeRows<3>{channels});
    if (channels == 4) return f(CompositeRows<4>{channels});
  }
  f(CompositeRows<0>{channels});
}

// Calls body(pixel, C) for all pixels, on the CPU.
template <int kChannels, class F>
void for_each_pixel(int64_t pixels, const CompositeRows<kChannels>& rows, const F& body) {
  const int64_t piece = std::max<int64_t>(1, kItemsPerPiece / std::max<int64_t>(rows.channels(), 1));
  parallel_ranges(pixels, piece, [rows, body](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) body(p, rows.channels());
  });
}

Tensor composite(const Tensor& given_values, const Tensor& given_weight, const Tensor& given_offsets) {
  const DeviceScope device(given_values);
  const Tensor values = as_contiguous(given_values), weight = as_contiguous(given_weight);
  const Tensor offsets = as_contiguous(given_offsets);
  check_composite(values, weight, offsets);
  const int64_t pixels = offsets.size(0) - 1, channels = values.size(1);
  const Tensor image = new_empty(values, {pixels, channels});
  dispatch_floating(values, [&](auto zero) {
    using scalar_t = decltype(zero);
    dispatch_rows<scalar_t>(channels, [&]<int kChannels>(const CompositeRows<kChannels>& rows) {
      const CompositeForward<scalar_t, kChannels> kernel{rows,
                                                         {data<int64_t>(offsets), values.size(0)},
                                                         data<scalar_t>(values),
                                                         data<scalar_t>(weight),
                                                         mutable_data<scalar_t>(image)};
      if (values.is_cuda()) {
        launch(values, pixels * channels, kernel);
      } else {
        for_each_pixel(pixels, rows, [kernel](int64_t p, int64_t size) { kernel.pixel(p, 0, size); });
      }
    });
  });
  return image;
}

// Gradients to values and weight; one that is not needed comes back empty.
std::tuple<Tensor, Tensor> composite_backward(const Tensor& given_values, const Tensor& given_weight,
                                              const Tensor& given_offsets, const Tensor& grad_output, bool need_values,
                                              bool need_weight) {
  const DeviceScope device(given_values);
  const Tensor values = as_contiguous(given_values), weight = as_contiguous(given_weight);
  const Tensor offsets = as_contiguous(given_offsets), grad_image = as_contiguous(grad_output);
  check_composite(values, weight, offsets);
  const int64_t count = values.size(0), pixels = offsets.size(0) - 1, channels = values.size(1);
  DR_CHECK(grad_image.numel() == pixels * channels, "composite: the gradient has another size than the image");
  DR_CHECK(grad_image.scalar_type() == values.scalar_type(), "composite: the gradient has another type");
  const Tensor grad_values = new_empty(values, {need_values ? count : 0, channels});
  const Tensor grad_weight = new_empty(values, {need_weight ? count : 0});
  dispatch_floating(values, [&](auto zero) {
    using scalar_t = decltype(zero);
    const PixelFragments fragments = {data<int64_t>(offsets), count};
    const auto* const grad = data<scalar_t>(grad_image);
    auto* const to_values = need_values ? mutable_data<scalar_t>(grad_values) : nullptr;
    auto* const to_weight = need_weight ? mutable_data<scalar_t>(grad_weight) : nullptr;
    launch(values, count,
           CompositeBackwardUnused<scalar_t>{data<int64_t>(offsets), pixels, channels, to_values, to_weight});
    dispatch_rows<scalar_t>(channels, [&]<int kChannels>(const CompositeRows<kChannels>& rows) {
      const CompositeBackwardValues<scalar_t, kChannels> of_values{rows, fragments, data<scalar_t>(weight), grad,
                                                                   to_values};
      const CompositeBackwardWeights<scalar_t, kChannels> of_weights{rows, fragments, data<scalar_t>(values), grad,
                                                                     to_weight};
      if (values.is_cuda()) {
        if (need_values) launch(values, pixels * channels, of_values);
        if (need_weight) launch(values, pixels, of_weights);
        return;
      }
      for_each_pixel(pixels, rows, [=](int64_t p, int64_t size) {
        if (need_values) of_values.pixel(p, 0, size);
        if (need_weight) of_weights.pixel(p);
      });
    });
  });
  return {grad_values, grad_weight};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(diffrender, m) {
  m.def("composite(Tensor values, Tensor weight, Tensor offsets) -> Tensor");
  m.def(
      "composite_backward(Tensor values, Tensor weight, Tensor offsets, Tensor grad_image, bool need_values, "
      "bool need_weight) -> (Tensor, Tensor)");
}

DR_REGISTER("composite", &composite)
DR_REGISTER("composite_backward", &composite_backward)

}  // namespace diffrender
