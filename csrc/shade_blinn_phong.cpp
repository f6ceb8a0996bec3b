// Host side of shade_blinn_phong and its backward, for both devices.
#include "shade_blinn_phong.h"

#include "shade_host.h"

namespace diffrender {
namespace {

constexpr const char* kName = "shade_blinn_phong";

template <class scalar_t>
BlinnPhong<scalar_t> blinn_phong(const ShadeTensors& t) {
  DR_CHECK(t.material[0].size(3) == 3 && t.material[1].size(3) == 3 && t.material[2].size(3) == 1, kName,
           ": albedo and specular must have 3 channels, shininess 1");
  return {shade_map<scalar_t>(t, t.material[0]), shade_map<scalar_t>(t, t.material[1]),
          shade_map<scalar_t>(t, t.material[2])};
}

Tensor shade_blinn_phong(const Tensor& positions, const Tensor& normals, const std::optional<Tensor>& view,
                         const std::optional<Tensor>& geometric_normals, const std::optional<Tensor>& triangle_id,
                         const Tensor& lights, const Tensor& light_types, const Tensor& albedo, const Tensor& specular,
                         const Tensor& shininess, bool view_is_direction, bool two_sided, int64_t driver) {
  const DeviceScope device(positions);
  const ShadeTensors t = shade_tensors(kName, positions, normals, view, geometric_normals, triangle_id, lights,
                                       light_types, view_is_direction, two_sided, {albedo, specular, shininess});
  const Tensor radiance = new_empty(t.positions, {t.batch, t.height, t.width, 3});
  dispatch_floating(t.positions, [&](auto zero) {
    using scalar_t = decltype(zero);
    shade_forward<scalar_t>(t, blinn_phong<scalar_t>(t), radiance, driver);
  });
  return radiance;
}

// Gradients of positions, normals, view, lights, albedo, specular, shininess; one that is not needed comes back empty.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> shade_blinn_phong_backward(
    const Tensor& positions, const Tensor& normals, const std::optional<Tensor>& view,
    const std::optional<Tensor>& geometric_normals, const std::optional<Tensor>& triangle_id, const Tensor& lights,
    const Tensor& light_types, const Tensor& albedo, const Tensor& specular, const Tensor& shininess,
    const Tensor& grad_output, bool view_is_direction, bool two_sided, bool need_positions, bool need_normals,
    bool need_view, bool need_lights, bool need_albedo, bool need_specular, bool need_shininess, int64_t scatter,
    int64_t driver) {
  const DeviceScope device(positions);
  const ShadeTensors t = shade_tensors(kName, positions, normals, view, geometric_normals, triangle_id, lights,
                                       light_types, view_is_direction, two_sided, {albedo, specular, shininess});
  const Tensor grad_radiance = as_contiguous(grad_output);
  DR_CHECK(grad_radiance.numel() == 3 * t.pixels(), kName, ": the gradient has another size than the radiance");
  ShadeGradients gradients(t.lights, t.batch, t.height, t.width);
  gradients.add(t.positions, need_positions);
  gradients.add(t.normals, need_normals);
  gradients.add(t.view.has_value() ? *t.view : t.positions, need_view && t.view.has_value());
  gradients.add(t.material[0], need_albedo);
  gradients.add(t.material[1], need_specular);
  gradients.add(t.material[2], need_shininess);
  dispatch_floating(t.positions, [&](auto zero) {
    using scalar_t = decltype(zero);
    auto kernel = shade_backward_kernel<scalar_t>(t, blinn_phong<scalar_t>(t), grad_radiance, gradients, need_lights);
    kernel.grads = {gradients.target<scalar_t>(3), gradients.target<scalar_t>(4), gradients.target<scalar_t>(5)};
    gradients.run<scalar_t>(kernel, need_lights, scatter, driver);
  });
  return {gradients[0], gradients[1], gradients[2], gradients.table(), gradients[3], gradients[4], gradients[5]};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(diffrender, m) {
  m.def(
      "shade_blinn_phong(Tensor positions, Tensor normals, Tensor? view, Tensor? geometric_normals, Tensor?"
      " triangle_id, Tensor lights, Tensor light_types, Tensor albedo, Tensor specular, Tensor shininess, "
      "bool view_is_direction, bool two_sided, int driver) -> Tensor");
  m.def(
      "shade_blinn_phong_backward(Tensor positions, Tensor normals, Tensor? view, Tensor? "
      "geometric_normals, Tensor? triangle_id, Tensor lights, Tensor light_types, Tensor albedo, Tensor "
      "specular, Tensor shininess, Tensor grad_radiance, bool view_is_direction, bool two_sided, bool "
      "need_positions, bool need_normals, bool need_view, bool need_lights, bool need_albedo, bool "
      "need_specular, bool need_shininess, int scatter, int driver) -> (Tensor, Tensor, Tensor, Tensor, "
      "Tensor, Tensor, Tensor)");
}

DR_REGISTER("shade_blinn_phong", &shade_blinn_phong)
DR_REGISTER("shade_blinn_phong_backward", &shade_blinn_phong_backward)

}  // namespace diffrender
