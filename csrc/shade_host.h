// Host side that the shading ops share: which tensor is which map, where gradients go, and the launches.
#pragma once

#include "shade_gradients.h"

namespace diffrender {

// The arguments that all shading ops have in common, contiguous. Maps are [B or 1, H, W, C] or [B or 1, 1, 1, C].
struct ShadeTensors {
  Tensor positions, normals;
  std::optional<Tensor> view, geometric_normals, triangle_id;
  Tensor lights, light_types;
  bool view_is_direction, two_sided;
  std::vector<Tensor> material;
  int64_t batch = 1, height = 1, width = 1;

  int64_t pixels() const { return batch * height * width; }

  void check(const char* op) const {
    DR_CHECK(lights.dim() == 3 && lights.size(2) == kLightValues && light_types.numel() == lights.size(1) &&
                 light_types.scalar_type() == ScalarType::Int,
             op, ": lights must have shape (B, L, 12) and int32 types (L,)");
    DR_CHECK(lights.size(0) == 1 || lights.size(0) == batch, op, ": lights differ from the maps in batch size");
    DR_CHECK(
        !triangle_id.has_value() || (triangle_id->numel() == pixels() && triangle_id->scalar_type() == ScalarType::Int),
        op, ": triangle_id differs from the maps in size");
    DR_CHECK(view.has_value() || !two_sided, op, ": two-sided shading needs the viewer");
  }
};

inline std::optional<Tensor> as_contiguous(const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? std::optional<Tensor>(as_contiguous(*tensor)) : std::nullopt;
}

inline ShadeTensors shade_tensors(const char* op, const Tensor& positions, const Tensor& normals,
                                  const std::optional<Tensor>& view, const std::optional<Tensor>& geometric_normals,
                                  const std::optional<Tensor>& triangle_id, const Tensor& lights,
                                  const Tensor& light_types, bool view_is_direction, bool two_sided,
                                  std::initializer_list<Tensor> material) {
  ShadeTensors t{as_contiguous(positions),         as_contiguous(normals),     as_contiguous(view),
                 as_contiguous(geometric_normals), as_contiguous(triangle_id), as_contiguous(lights),
                 as_contiguous(light_types),       view_is_direction,          two_sided};
  for (const Tensor& map : material) t.material.push_back(as_contiguous(map));
  const auto grow = [&](const Tensor& map) {
    DR_CHECK(map.dim() == 4 && map.scalar_type() == lights.scalar_type(), op,
             ": maps must be (B, H, W, C) of one type");
    if (map.size(0) != 1) t.batch = map.size(0);
    if (map.size(1) != 1) t.height = map.size(1);
    if (map.size(2) != 1) t.width = map.size(2);
  };
  grow(t.positions);
  grow(t.normals);
  if (t.view.has_value()) grow(*t.view);
  if (t.geometric_normals.has_value()) grow(*t.geometric_normals);
  for (const Tensor& map : t.material) grow(map);
  if (t.lights.size(0) != 1) t.batch = t.lights.size(0);
  if (t.triangle_id.has_value()) t.batch = t.triangle_id->size(0);
  t.check(op);
  return t;
}

template <class scalar_t>
ShadeMap<scalar_t> shade_map(const ShadeTensors& t, const std::optional<Tensor>& map) {
  if (!map.has_value()) return {nullptr, 0, 0};
  const int64_t size = map->size(1) * map->size(2);
  DR_CHECK(map->size(0) == 1 || map->size(0) == t.batch, "shade: batch sizes differ");
  DR_CHECK(size == 1 || (map->size(1) == t.height && map->size(2) == t.width), "shade: picture sizes differ");
  return {data<scalar_t>(*map), map->size(0) == 1 ? 0 : size * map->size(3),
          is_picture(*map) ? static_cast<int32_t>(map->size(3)) : 0};
}

template <class scalar_t>
ShadeInput<scalar_t> shade_input(const ShadeTensors& t) {
  ShadeInput<scalar_t> in;
  in.positions = shade_map<scalar_t>(t, t.positions);
  in.normals = shade_map<scalar_t>(t, t.normals);
  in.view = shade_map<scalar_t>(t, t.view);
  in.geometric_normals = shade_map<scalar_t>(t, t.geometric_normals);
  in.triangle_id = data_or_null<int32_t>(t.triangle_id);
  in.light_types = data<int32_t>(t.light_types);
  in.lights = data<scalar_t>(t.lights);
  in.light_count = static_cast<int32_t>(t.lights.size(1));
  in.light_stride = t.lights.size(0) == 1 ? 0 : t.lights.size(1) * kLightValues;
  in.view_is_direction = t.view_is_direction;
  in.two_sided = t.two_sided;
  in.pixels_per_item = t.height * t.width;
  return in;
}

template <class scalar_t, class Model>
void shade_forward(const ShadeTensors& t, const Model& model, const Tensor& radiance, int64_t driver) {
  const ShadeForward<scalar_t, Model> kernel{shade_input<scalar_t>(t), model, mutable_data<scalar_t>(radiance)};
  launch_pixels<scalar_t>(radiance, t.pixels(), kernel, driver);
}

// Fills the fields of a backward kernel that all models have, in the order positions, normals, view of `gradients`.
template <class scalar_t, class Model>
ShadeBackward<scalar_t, Model> shade_backward_kernel(const ShadeTensors& t, const Model& model,
                                                     const Tensor& grad_radiance, const ShadeGradients& gradients,
                                                     bool need_lights) {
  ShadeBackward<scalar_t, Model> kernel{};
  kernel.in = shade_input<scalar_t>(t);
  kernel.model = model;
  kernel.grad_radiance = data<scalar_t>(grad_radiance);
  kernel.grad_positions = gradients.target<scalar_t>(0);
  kernel.grad_normals = gradients.target<scalar_t>(1);
  if (t.view.has_value()) kernel.grad_view = gradients.target<scalar_t>(2);
  kernel.need_lights = need_lights;
  kernel.need_geometry =
      need_lights || kernel.grad_positions.needed() || kernel.grad_normals.needed() || kernel.grad_view.needed();
  return kernel;
}

}  // namespace diffrender
