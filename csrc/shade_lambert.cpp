// Host side of shade_lambert and its backward, for both devices.
#include "shade_lambert.h"

#include "shade_host.h"

namespace diffrender {
namespace {

constexpr const char* kName = "shade_lambert";

template <class scalar_t>
Lambert<scalar_t> lambert(const ShadeTensors& t, double leak) {
  DR_CHECK(t.material[0].size(3) == 3, kName, ": albedo must have 3 channels");
  return {shade_map<scalar_t>(t, t.material[0]), static_cast<scalar_t>(leak)};
}

Tensor shade_lambert(const Tensor& positions, const Tensor& normals, const std::optional<Tensor>& view,
                     const std::optional<Tensor>& geometric_normals, const std::optional<Tensor>& triangle_id,
                     const Tensor& lights, const Tensor& light_types, const Tensor& albedo, bool view_is_direction,
                     bool two_sided, double leak, int64_t driver) {
  const DeviceScope device(positions);
  const ShadeTensors t = shade_tensors(kName, positions, normals, view, geometric_normals, triangle_id, lights,
                                       light_types, view_is_direction, two_sided, {albedo});
  const Tensor radiance = new_empty(t.positions, {t.batch, t.height, t.width, 3});
  dispatch_floating(t.positions, [&](auto zero) {
    using scalar_t = decltype(zero);
    shade_forward<scalar_t>(t, lambert<scalar_t>(t, leak), radiance, driver);
  });
  return radiance;
}

// Gradients of positions, normals, view, lights and albedo; one that is not needed comes back empty.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> shade_lambert_backward(
    const Tensor& positions, const Tensor& normals, const std::optional<Tensor>& view,
    const std::optional<Tensor>& geometric_normals, const std::optional<Tensor>& triangle_id, const Tensor& lights,
    const Tensor& light_types, const Tensor& albedo, const Tensor& grad_output, bool view_is_direction, bool two_sided,
    double leak, bool need_positions, bool need_normals, bool need_view, bool need_lights, bool need_albedo,
    int64_t scatter, int64_t driver) {
  const DeviceScope device(positions);
  const ShadeTensors t = shade_tensors(kName, positions, normals, view, geometric_normals, triangle_id, lights,
                                       light_types, view_is_direction, two_sided, {albedo});
  const Tensor grad_radiance = as_contiguous(grad_output);
  DR_CHECK(grad_radiance.numel() == 3 * t.pixels(), kName, ": the gradient has another size than the radiance");
  ShadeGradients gradients(t.lights, t.batch, t.height, t.width);
  gradients.add(t.positions, need_positions);
  gradients.add(t.normals, need_normals);
  gradients.add(t.view.has_value() ? *t.view : t.positions, need_view && t.view.has_value());
  gradients.add(t.material[0], need_albedo);
  dispatch_floating(t.positions, [&](auto zero) {
    using scalar_t = decltype(zero);
    auto kernel = shade_backward_kernel<scalar_t>(t, lambert<scalar_t>(t, leak), grad_radiance, gradients, need_lights);
    kernel.grads = {gradients.target<scalar_t>(3)};
    gradients.run<scalar_t>(kernel, need_lights, scatter, driver);
  });
  return {gradients[0], gradients[1], gradients[2], gradients.table(), gradients[3]};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(diffrender, m) {
  m.def(
      "shade_lambert(Tensor positions, Tensor normals, Tensor? view, Tensor? geometric_normals, Tensor? triangle_id, "
      "Tensor lights, Tensor light_types, Tensor albedo, bool view_is_direction, bool two_sided, float leak, "
      "int driver) -> Tensor");
  m.def(
      "shade_lambert_backward(Tensor positions, Tensor normals, Tensor? view, Tensor? geometric_normals, "
      "Tensor? triangle_id, Tensor lights, Tensor light_types, Tensor albedo, Tensor grad_radiance, "
      "bool view_is_direction, bool two_sided, float leak, bool need_positions, bool need_normals, bool need_view, "
      "bool need_lights, bool need_albedo, int scatter, int driver) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
}

DR_REGISTER("shade_lambert", &shade_lambert)
DR_REGISTER("shade_lambert_backward", &shade_lambert_backward)

}  // namespace diffrender
