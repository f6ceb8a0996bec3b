// Host side that the shading ops share: which tensor is which map, where gradients go, and the launches.
#pragma once

#include "core/launch.h"
#include "core/tensor.h"
#include "shade.h"
#include "shade_packet.h"

namespace diffrender {

// Which body runs: packets of pixels on the CPU and one pixel per thread on CUDA; or the latter everywhere, for tests.
enum class ShadeDriver : int64_t { automatic = 0, one_by_one = 1 };

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

inline bool is_picture(const Tensor& map) { return map.size(1) * map.size(2) != 1; }

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

// A kernel over packets of kLanes pixels instead of single ones.
template <class scalar_t, class Kernel>
struct ShadePackets {
  Kernel kernel;

  void operator()(int64_t begin, int64_t end) const {
    kernel.in.template for_each_packet<kLanes>(begin, end, [&](int64_t item, int64_t pixel, int count) {
      kernel.template packet<Packet<scalar_t>>(item, pixel, count);
    });
  }

  void operator()(int64_t begin, int64_t end, const Sink<scalar_t>& sink) const {
    kernel.in.template for_each_packet<kLanes>(begin, end, [&](int64_t item, int64_t pixel, int count) {
      kernel.template packet<Packet<scalar_t>>(item, pixel, count, sink);
    });
  }
};

// float in packets; float64 one by one: its packets would double the time to compile for a type meant for checks.
template <class scalar_t>
constexpr bool kInPackets = std::is_same_v<scalar_t, float>;

template <class scalar_t, class Model>
void shade_forward(const ShadeTensors& t, const Model& model, const Tensor& radiance, int64_t driver) {
  const ShadeForward<scalar_t, Model> kernel{shade_input<scalar_t>(t), model, mutable_data<scalar_t>(radiance)};
  if constexpr (kInPackets<scalar_t>) {
    if (!radiance.is_cuda() && static_cast<ShadeDriver>(driver) != ShadeDriver::one_by_one) {
      const ShadePackets<scalar_t, ShadeForward<scalar_t, Model>> packets{kernel};
      parallel_ranges(t.pixels(), kItemsPerPiece, [&](int64_t begin, int64_t end) { packets(begin, end); });
      return;
    }
  }
  launch(radiance, t.pixels(), kernel);
}

// Gradients of the maps and of the lights: a tensor like each, or an empty one where nobody needs it.
class ShadeGradients {
 public:
  explicit ShadeGradients(const ShadeTensors& t) : t_(t) {
    slots_ = static_cast<int32_t>(t.lights.numel() == 0 ? 0 : t.lights.size(1) * kLightValues);
  }

  // To be called for every map in turn; the order of the results.
  int add(const Tensor& map, bool needed) {
    Part part;
    const int64_t channels = map.size(3);
    part.result = new_empty(map, {needed ? map.size(0) : 0, map.size(1), map.size(2), channels});
    part.needed = needed;
    if (needed && !is_picture(map)) {
      part.slot = slots_;
      slots_ += static_cast<int32_t>(channels);
    } else if (needed && map.size(0) != t_.batch) {
      part.items = new_empty(map, {t_.batch, map.size(1), map.size(2), channels});
    }
    parts_.push_back(part);
    return static_cast<int>(parts_.size()) - 1;
  }

  template <class scalar_t>
  ShadeGrad<scalar_t> target(int i) const {
    const Part& part = parts_[i];
    if (!part.needed) return {};
    if (part.slot >= 0) return {nullptr, part.slot};
    return {mutable_data<scalar_t>(part.items.has_value() ? *part.items : part.result), -1};
  }

  // Runs the kernel, whose fields that concern sums are set here, and makes all results.
  template <class scalar_t, class Kernel>
  void run(Kernel kernel, int64_t algorithm, int64_t driver) {
    const Tensor& like = t_.lights;
    const auto scatter = static_cast<ScatterAlgorithm>(algorithm);
    const bool in_packets = kInPackets<scalar_t> && !like.is_cuda() && scatter == ScatterAlgorithm::native &&
                            static_cast<ShadeDriver>(driver) != ShadeDriver::one_by_one;
    // Private sums for every piece of an item, whose number depends on sizes alone: the same bits for any number of
    // threads.
    const int64_t pixels = t_.height * t_.width;
    const int64_t pieces = in_packets ? std::clamp<int64_t>(pixels / 4096, 1, 64) : 1;
    kernel.slots = std::max(slots_, 1);
    kernel.spread = in_packets ? kLanes : 32;
    const Tensor sums = new_zeros(like, {t_.batch, pieces, kernel.slots, kernel.spread});
    if constexpr (kInPackets<scalar_t>) {
      if (in_packets) run_packets<scalar_t>(ShadePackets<scalar_t, Kernel>{kernel}, sums, pixels, pieces);
    }
    if (!in_packets) launch_scatter<scalar_t>(sums, t_.batch, t_.pixels(), scatter, kernel);
    lights_ = new_empty(like, {kernel.need_lights ? like.size(0) : 0, like.size(1), like.size(2)});
    if (kernel.need_lights) collect<scalar_t>(sums, lights_, 0, kernel);
    for (const Part& part : parts_) {
      if (part.slot >= 0) collect<scalar_t>(sums, part.result, part.slot, kernel);
      if (part.items.has_value()) {
        const int64_t size = part.result.numel();
        launch(
            like, size,
            ShadeSumItems<scalar_t>{data<scalar_t>(*part.items), mutable_data<scalar_t>(part.result), size, t_.batch});
      }
    }
  }

  const Tensor& operator[](int i) const { return parts_[i].result; }
  const Tensor& lights() const { return lights_; }

 private:
  struct Part {
    Tensor result;
    bool needed = false;
    int32_t slot = -1;            // first sum of a map that the pixels share
    std::optional<Tensor> items;  // gradient of every item, of a picture that the batch shares
  };

  template <class scalar_t, class Packets>
  void run_packets(const Packets& packets, const Tensor& sums, int64_t pixels, int64_t pieces) const {
    const int64_t size = packets.kernel.slots * packets.kernel.spread;
    scalar_t* const values = mutable_data<scalar_t>(sums);
    parallel_tasks(t_.batch * pieces, [&](int64_t task) {
      const int64_t item = task / pieces, piece = task % pieces;
      const Sink<scalar_t> sink{values + task * size, item * size};
      packets(item * pixels + piece * pixels / pieces, item * pixels + (piece + 1) * pixels / pieces, sink);
    });
  }

  template <class scalar_t, class Kernel>
  void collect(const Tensor& sums, const Tensor& result, int32_t slot, const Kernel& kernel) const {
    const int64_t rows = result.size(0), size = rows == 0 ? 0 : result.numel() / rows;
    const ShadeCollect<scalar_t> kernel_sums{data<scalar_t>(sums),
                                             mutable_data<scalar_t>(result),
                                             size,
                                             t_.batch,
                                             sums.size(1),
                                             slot,
                                             kernel.slots,
                                             kernel.spread,
                                             rows == 1};
    launch(sums, result.numel(), kernel_sums);
  }

  const ShadeTensors& t_;
  std::vector<Part> parts_;
  int32_t slots_ = 0;
  Tensor lights_;
};

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
