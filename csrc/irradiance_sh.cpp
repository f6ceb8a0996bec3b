// Host side of irradiance_sh and its backward, for both devices.
#include "irradiance_sh.h"

#include "shade_host.h"

namespace diffrender {
namespace {

struct ShTensors {
  Tensor coefficients, normals;
  std::optional<Tensor> triangle_id;
  int64_t batch = 1, height, width;
};

ShTensors sh_tensors(const Tensor& coefficients, const Tensor& normals, const std::optional<Tensor>& triangle_id) {
  ShTensors t{as_contiguous(coefficients), as_contiguous(normals), as_contiguous(triangle_id)};
  DR_CHECK(t.coefficients.dim() == 3 && t.coefficients.size(1) == kShTerms,
           "irradiance_sh: coefficients must have shape (B, 9, C)");
  DR_CHECK(t.normals.dim() == 4 && t.normals.size(3) == 3, "irradiance_sh: normals must have shape (B, H, W, 3)");
  DR_CHECK(t.normals.scalar_type() == t.coefficients.scalar_type(), "irradiance_sh: types differ");
  t.batch = t.normals.size(0);
  t.height = t.normals.size(1);
  t.width = t.normals.size(2);
  if (t.coefficients.size(0) != 1) t.batch = t.coefficients.size(0);
  if (t.triangle_id.has_value()) {
    t.batch = t.triangle_id->size(0);
    DR_CHECK(t.triangle_id->numel() == t.batch * t.height * t.width && t.triangle_id->scalar_type() == ScalarType::Int,
             "irradiance_sh: triangle_id differs from normals in size");
  }
  DR_CHECK((t.normals.size(0) == 1 || t.normals.size(0) == t.batch) &&
               (t.coefficients.size(0) == 1 || t.coefficients.size(0) == t.batch),
           "irradiance_sh: batch sizes differ");
  return t;
}

template <class scalar_t>
IrradianceShInput<scalar_t> sh_input(const ShTensors& t) {
  const int64_t channels = t.coefficients.size(2), pixels = t.height * t.width;
  return {data<scalar_t>(t.coefficients),
          {data<scalar_t>(t.normals), t.normals.size(0) == 1 ? 0 : pixels * 3, is_picture(t.normals) ? 3 : 0},
          data_or_null<int32_t>(t.triangle_id),
          t.coefficients.size(0) == 1 ? 0 : kShTerms * channels,
          pixels,
          static_cast<int32_t>(channels)};
}

Tensor irradiance_sh(const Tensor& coefficients, const Tensor& normals, const std::optional<Tensor>& triangle_id,
                     int64_t driver) {
  const DeviceScope device(normals);
  const ShTensors t = sh_tensors(coefficients, normals, triangle_id);
  const Tensor irradiance = new_empty(t.normals, {t.batch, t.height, t.width, t.coefficients.size(2)});
  dispatch_floating(t.normals, [&](auto zero) {
    using scalar_t = decltype(zero);
    const IrradianceShForward<scalar_t> kernel{sh_input<scalar_t>(t), mutable_data<scalar_t>(irradiance)};
    launch_pixels<scalar_t>(irradiance, t.batch * t.height * t.width, kernel, driver);
  });
  return irradiance;
}

// Gradients of coefficients and normals; one that is not needed comes back empty.
std::tuple<Tensor, Tensor> irradiance_sh_backward(const Tensor& coefficients, const Tensor& normals,
                                                  const std::optional<Tensor>& triangle_id, const Tensor& grad_output,
                                                  bool need_coefficients, bool need_normals, int64_t scatter,
                                                  int64_t driver) {
  const DeviceScope device(normals);
  const ShTensors t = sh_tensors(coefficients, normals, triangle_id);
  const Tensor grad_irradiance = as_contiguous(grad_output);
  DR_CHECK(grad_irradiance.numel() == t.batch * t.height * t.width * t.coefficients.size(2),
           "irradiance_sh: the gradient has another size than the irradiance");
  ShadeGradients gradients(t.coefficients, t.batch, t.height, t.width);
  gradients.add(t.normals, need_normals);
  dispatch_floating(t.normals, [&](auto zero) {
    using scalar_t = decltype(zero);
    const IrradianceShBackward<scalar_t> kernel{
        sh_input<scalar_t>(t), data<scalar_t>(grad_irradiance), gradients.target<scalar_t>(0), need_coefficients, 0, 0};
    gradients.run<scalar_t>(kernel, need_coefficients, scatter, driver);
  });
  return {gradients.table(), gradients[0]};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(diffrender, m) {
  m.def("irradiance_sh(Tensor coefficients, Tensor normals, Tensor? triangle_id, int driver) -> Tensor");
  m.def(
      "irradiance_sh_backward(Tensor coefficients, Tensor normals, Tensor? triangle_id, Tensor grad_irradiance, "
      "bool need_coefficients, bool need_normals, int scatter, int driver) -> (Tensor, Tensor)");
}

DR_REGISTER("irradiance_sh", &irradiance_sh)
DR_REGISTER("irradiance_sh_backward", &irradiance_sh_backward)

}  // namespace diffrender
