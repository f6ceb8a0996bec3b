// Host side of perturb_normals and its backward, for both devices.
#include "perturb_normals.h"

#include "shade_host.h"

namespace diffrender {
namespace {

constexpr const char* kName = "perturb_normals";

// Maps are [B or 1, H, W, C] or [B or 1, 1, 1, C], contiguous.
struct PerturbTensors {
  Tensor normals, tangents, normal_map, scale;
  std::optional<Tensor> geometric_normals, view, triangle_id;
  int64_t batch = 1, height = 1, width = 1;

  void grow(const Tensor& map, int64_t channels) {
    DR_CHECK(map.dim() == 4 && map.size(3) == channels && map.scalar_type() == normals.scalar_type(), kName,
             ": maps must be (B, H, W, C) of one type");
    if (map.size(0) != 1) batch = map.size(0);
    if (map.size(1) != 1) height = map.size(1);
    if (map.size(2) != 1) width = map.size(2);
  }
};

PerturbTensors perturb_tensors(const Tensor& normals, const Tensor& tangents, const Tensor& normal_map,
                               const Tensor& scale, const std::optional<Tensor>& geometric_normals,
                               const std::optional<Tensor>& view, const std::optional<Tensor>& triangle_id) {
  PerturbTensors t{as_contiguous(normals),    as_contiguous(tangents),          as_contiguous(normal_map),
                   as_contiguous(scale),      as_contiguous(geometric_normals), as_contiguous(view),
                   as_contiguous(triangle_id)};
  t.grow(t.normals, 3);
  t.grow(t.tangents, 4);
  t.grow(t.normal_map, 3);
  t.grow(t.scale, 1);
  DR_CHECK(view.has_value() == geometric_normals.has_value(), kName, ": view and geometric normals come together");
  if (t.view.has_value()) {
    t.grow(*t.view, 3);
    t.grow(*t.geometric_normals, 3);
  }
  if (t.triangle_id.has_value()) {
    t.batch = t.triangle_id->size(0);
    DR_CHECK(t.triangle_id->numel() == t.batch * t.height * t.width && t.triangle_id->scalar_type() == ScalarType::Int,
             kName, ": triangle_id differs from the maps in size");
  }
  return t;
}

template <class scalar_t>
ShadeMap<scalar_t> perturb_map(const PerturbTensors& t, const std::optional<Tensor>& map) {
  if (!map.has_value()) return {nullptr, 0, 0};
  const int64_t size = map->size(1) * map->size(2);
  DR_CHECK(map->size(0) == 1 || map->size(0) == t.batch, kName, ": batch sizes differ");
  DR_CHECK(size == 1 || (map->size(1) == t.height && map->size(2) == t.width), kName, ": picture sizes differ");
  return {data<scalar_t>(*map), map->size(0) == 1 ? 0 : size * map->size(3),
          is_picture(*map) ? static_cast<int32_t>(map->size(3)) : 0};
}

template <class scalar_t>
PerturbNormalsInput<scalar_t> perturb_input(const PerturbTensors& t, bool green_up, double grazing) {
  PerturbNormalsInput<scalar_t> in;
  in.normals = perturb_map<scalar_t>(t, t.normals);
  in.tangents = perturb_map<scalar_t>(t, t.tangents);
  in.normal_map = perturb_map<scalar_t>(t, t.normal_map);
  in.scale = perturb_map<scalar_t>(t, t.scale);
  in.geometric_normals = perturb_map<scalar_t>(t, t.geometric_normals);
  in.view = perturb_map<scalar_t>(t, t.view);
  in.triangle_id = data_or_null<int32_t>(t.triangle_id);
  in.pixels_per_item = t.height * t.width;
  in.green = green_up ? scalar_t(1) : scalar_t(-1);
  in.grazing = static_cast<scalar_t>(grazing);
  return in;
}

Tensor perturb_normals(const Tensor& normals, const Tensor& tangents, const Tensor& normal_map, const Tensor& scale,
                       const std::optional<Tensor>& geometric_normals, const std::optional<Tensor>& view,
                       const std::optional<Tensor>& triangle_id, bool green_up, double grazing, int64_t driver) {
  const DeviceScope device(normals);
  const PerturbTensors t = perturb_tensors(normals, tangents, normal_map, scale, geometric_normals, view, triangle_id);
  const Tensor result = new_empty(t.normals, {t.batch, t.height, t.width, 3});
  dispatch_floating(t.normals, [&](auto zero) {
    using scalar_t = decltype(zero);
    const PerturbNormalsForward<scalar_t> kernel{perturb_input<scalar_t>(t, green_up, grazing),
                                                 mutable_data<scalar_t>(result)};
    launch_pixels<scalar_t>(result, t.batch * t.height * t.width, kernel, driver);
  });
  return result;
}

// Gradients of normals, tangents, normal_map, scale, geometric_normals, view; one that is not needed comes back empty.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> perturb_normals_backward(
    const Tensor& normals, const Tensor& tangents, const Tensor& normal_map, const Tensor& scale,
    const std::optional<Tensor>& geometric_normals, const std::optional<Tensor>& view,
    const std::optional<Tensor>& triangle_id, const Tensor& grad_output, bool green_up, double grazing,
    bool need_normals, bool need_tangents, bool need_normal_map, bool need_scale, bool need_geometric_normals,
    bool need_view, int64_t scatter, int64_t driver) {
  const DeviceScope device(normals);
  const PerturbTensors t = perturb_tensors(normals, tangents, normal_map, scale, geometric_normals, view, triangle_id);
  const Tensor grad_result = as_contiguous(grad_output);
  DR_CHECK(grad_result.numel() == 3 * t.batch * t.height * t.width, kName, ": the gradient has another size");
  ShadeGradients gradients(new_zeros(t.normals, {1, 0, 0}), t.batch, t.height, t.width);
  const bool has_view = t.view.has_value();
  gradients.add(t.normals, need_normals);
  gradients.add(t.tangents, need_tangents);
  gradients.add(t.normal_map, need_normal_map);
  gradients.add(t.scale, need_scale);
  gradients.add(has_view ? *t.geometric_normals : t.normals, need_geometric_normals && has_view);
  gradients.add(has_view ? *t.view : t.normals, need_view && has_view);
  dispatch_floating(t.normals, [&](auto zero) {
    using scalar_t = decltype(zero);
    const PerturbNormalsBackward<scalar_t> kernel{perturb_input<scalar_t>(t, green_up, grazing),
                                                  data<scalar_t>(grad_result),
                                                  gradients.target<scalar_t>(0),
                                                  gradients.target<scalar_t>(1),
                                                  gradients.target<scalar_t>(2),
                                                  gradients.target<scalar_t>(3),
                                                  gradients.target<scalar_t>(4),
                                                  gradients.target<scalar_t>(5),
                                                  0,
                                                  0};
    gradients.run<scalar_t>(kernel, false, scatter, driver);
  });
  return {gradients[0], gradients[1], gradients[2], gradients[3], gradients[4], gradients[5]};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(diffrender, m) {
  m.def(
      "perturb_normals(Tensor normals, Tensor tangents, Tensor normal_map, Tensor scale, Tensor? geometric_normals, "
      "Tensor? view, Tensor? triangle_id, bool green_up, float grazing, int driver) -> Tensor");
  m.def(
      "perturb_normals_backward(Tensor normals, Tensor tangents, Tensor normal_map, Tensor scale, Tensor? "
      "geometric_normals, Tensor? view, Tensor? triangle_id, Tensor grad_result, bool green_up, float grazing, bool "
      "need_normals, bool need_tangents, bool need_normal_map, bool need_scale, bool need_geometric_normals, bool "
      "need_view, int scatter, int driver) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

DR_REGISTER("perturb_normals", &perturb_normals)
DR_REGISTER("perturb_normals_backward", &perturb_normals_backward)

}  // namespace diffrender
