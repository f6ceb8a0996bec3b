// What the shading models share: maps, the frame of a pixel, the loop over the lights, and the driver of the gradients.
//
// A model is a struct (shade_lambert.h is the shortest) with
//   kMaps                     number of its material maps, and channels(i) of each
//   Surface<T>                its material at a pixel, with the gradients that add up over the lights
//   load, shade, ambient, shade_backward, ambient_backward, store_backward
// Everything is written over T = scalar_t or Packet<scalar_t>: one pixel per GPU thread, kLanes pixels at once on the
// CPU.
#pragma once

#include "shade_light.h"

namespace diffrender {

// A picture, or one vector for all pixels of an item, or one for all items.
template <class scalar_t>
struct ShadeMap {
  const scalar_t* values;  // [B or 1, H, W, C] or [B or 1, C]; null where the map is absent
  int64_t item_stride;     // 0 where the batch shares the map
  int32_t pixel_stride;    // C, or 0 where the pixels of an item share one vector

  template <class T>
  DR_HD T load(int64_t item, int64_t pixel, int count) const {
    const scalar_t* const p = values + item * item_stride;
    if (pixel_stride == 0) return T(*p);
    return PacketIo<T>::load(p + pixel, count);
  }

  template <class T>
  DR_HD Vec3<T> load3(int64_t item, int64_t pixel, int count) const {
    const scalar_t* const p = values + item * item_stride;
    if (pixel_stride == 0) return splat3<T>(p);
    return PacketIo<T>::load3(p + pixel * 3, count);
  }
};

// Where the gradient of a map goes: to every pixel, or to sums over the pixels of an item. Neither: nobody needs it.
template <class scalar_t>
struct ShadeGrad {
  scalar_t* values = nullptr;  // [B, H, W, C]
  int32_t slot = -1;           // first of the C sums
  DR_HD bool needed() const { return values != nullptr || slot >= 0; }
};

// Calls body(item, first pixel within the item, number of pixels) for packets of at most kWidth pixels.
template <int kWidth, class F>
DR_HD void for_each_packet(int64_t pixels_per_item, int64_t begin, int64_t end, const F& body) {
  while (begin < end) {
    const int64_t item = begin / pixels_per_item, start = item * pixels_per_item;
    const int64_t stop = end < start + pixels_per_item ? end : start + pixels_per_item;
    for (; begin < stop; begin += kWidth) {
      const int64_t left = stop - begin;
      body(item, begin - start, static_cast<int>(left < kWidth ? left : kWidth));
    }
    begin = stop;
  }
}

template <class scalar_t>
struct ShadeInput {
  ShadeMap<scalar_t> positions, normals, view, geometric_normals;  // all with 3 channels
  const int32_t* triangle_id;  // [B, H, W], negative = background; null: every pixel is shaded
  const int32_t* light_types;  // [L]
  const scalar_t* lights;      // [B or 1, L, kLightValues]
  int64_t light_stride;        // L * kLightValues, or 0 where the batch shares the lights
  int32_t light_count;
  bool view_is_direction;  // view holds directions to the viewer instead of the viewer's position
  bool two_sided;
  int64_t pixels_per_item;

  DR_HD LightRow<scalar_t> light(int64_t item, int i) const {
    return {static_cast<LightType>(light_types[i]), lights + item * light_stride + int64_t(i) * kLightValues};
  }
};

// A point to shade: where it is, its unit normal on the viewer's side, the unit vector to the viewer.
template <class T>
struct ShadePoint {
  MaskOf<T> active;  // neither background nor without a normal or a view direction
  Vec3<T> position, normal, view;
  T normal_scale, view_scale;  // factors that made normal and view from what the maps hold (the sign included)
};

// Lanes that are not active get values that are harmless in every formula: whatever stands on the background, no NaN
// can arise from it, in the forward or in the backward pass.
template <class T, class scalar_t>
DR_HD ShadePoint<T> shade_point(const ShadeInput<scalar_t>& in, int64_t item, int64_t pixel, int count) {
  const Vec3<T> zero{T(0), T(0), T(0)}, up{T(0), T(0), T(1)};
  const int64_t flat = item * in.pixels_per_item + pixel;
  ShadePoint<T> p;
  p.active = in.triangle_id != nullptr ? PacketIo<T>::inside(in.triangle_id + flat, count) : PacketIo<T>::first(count);
  if (!any(p.active)) return p;
  p.position = select3(p.active, in.positions.template load3<T>(item, pixel, count), zero);
  const Vec3<T> normal = select3(p.active, in.normals.template load3<T>(item, pixel, count), up);
  p.normal_scale = inverse_length(dot(normal, normal));
  p.active = p.active & (p.normal_scale > T(0));
  p.view = up;
  p.view_scale = T(0);
  if (in.view.values != nullptr) {
    Vec3<T> to_viewer = in.view.template load3<T>(item, pixel, count);
    if (!in.view_is_direction) to_viewer = to_viewer - p.position;
    to_viewer = select3(p.active, to_viewer, up);
    p.view_scale = inverse_length(dot(to_viewer, to_viewer));
    p.active = p.active & (p.view_scale > T(0));
    p.view = p.view_scale * to_viewer;
    if (in.two_sided) {
      const Vec3<T> facing =
          in.geometric_normals.values != nullptr ? in.geometric_normals.template load3<T>(item, pixel, count) : normal;
      p.normal_scale = select(dot(facing, p.view) < T(0), -p.normal_scale, p.normal_scale);
    }
  }
  p.normal = p.normal_scale * normal;
  return p;
}

// What a model adds up for the point over all lights.
template <class T>
struct ShadePointGrad {
  Vec3<T> position{T(0), T(0), T(0)}, normal{T(0), T(0), T(0)}, view{T(0), T(0), T(0)};
};

// Writes gradients of a packet of pixels.
template <class T>
struct GradWriter {
  using scalar_t = ScalarOf<T>;
  const Sink<scalar_t>& sink;
  int64_t first_slot;  // of the packet's item
  int64_t flat;        // its first pixel in the whole batch
  int32_t spread;
  int count;

  DR_HD void add(int32_t slot, T value) const { PacketIo<T>::add(sink, first_slot + slot, spread, flat, value); }

  DR_HD void add3(int32_t slot, Vec3<T> value) const {
    add(slot, value.x);
    add(slot + 1, value.y);
    add(slot + 2, value.z);
  }

  DR_HD void map(const ShadeGrad<scalar_t>& grad, T value) const {
    if (grad.values != nullptr) PacketIo<T>::store(grad.values + flat, value, count);
    if (grad.slot >= 0) add(grad.slot, value);
  }

  DR_HD void map3(const ShadeGrad<scalar_t>& grad, Vec3<T> value) const {
    if (grad.values != nullptr) PacketIo<T>::store3(grad.values + flat * 3, value, count);
    if (grad.slot >= 0) add3(grad.slot, value);
  }

  DR_HD void clear(const ShadeGrad<scalar_t>& grad, int channels) const {
    if (grad.values == nullptr) return;
    for (int64_t i = 0; i < int64_t(count) * channels; ++i) grad.values[flat * channels + i] = 0;
  }
};

template <class scalar_t, class Model>
struct ShadeForward {
  ShadeInput<scalar_t> in;
  Model model;
  scalar_t* radiance;  // [B, H, W, 3]

  template <class T>
  DR_HD void packet(int64_t item, int64_t pixel, int count) const {
    Vec3<T> sum{T(0), T(0), T(0)};
    const ShadePoint<T> p = shade_point<T>(in, item, pixel, count);
    if (any(p.active)) {
      const auto surface = model.template load<T>(p, item, pixel, count);
      for (int i = 0; i < in.light_count; ++i) {
        const LightRow<scalar_t> light = in.light(item, i);
        if (light.type == LightType::ambient) {
          sum = sum + times(model.ambient(surface), splat3<T>(light.values));
          continue;
        }
        const ArrivingLight<T> arriving = arriving_light(light, p.position);
        sum = sum + times(model.shade(p, surface, arriving.to_light), arriving.irradiance);
      }
      sum = select3(p.active, sum, {T(0), T(0), T(0)});
    }
    PacketIo<T>::store3(radiance + (item * in.pixels_per_item + pixel) * 3, sum, count);
  }

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for_each_packet<1>(in.pixels_per_item, begin, end, [&](int64_t item, int64_t pixel, int count) {
      this->template packet<scalar_t>(item, pixel, count);
    });
  }
};

// With the radiance L = sum over the lights of f(n, v, l, material) E the models give, for the cotangent g of L:
// grad_E = g f, and the gradients of n, v, l and material. From there
//   n = s N / |N|            grad_N = s (g - n (n . g)) / |N|, the sign s of a two-sided surface a constant
//   v = u / |u|, u = c - x   grad_u likewise; the viewer c gets it, the position x its negative
// and the light's own derivative (shade_light.h). One pass over the lights; everything is computed again from the
// inputs.
template <class scalar_t, class Model>
struct ShadeBackward {
  ShadeInput<scalar_t> in;
  Model model;
  const scalar_t* grad_radiance;  // [B, H, W, 3]
  ShadeGrad<scalar_t> grad_positions, grad_normals, grad_view;
  typename Model::Grads grads;
  bool need_lights;
  bool need_geometry;  // gradient of positions, normals, view or lights: of anything but the material
  int32_t slots;       // sums per item: light_count * kLightValues, then those of maps that pixels share
  int32_t spread;      // partial sums per slot

  template <class T>
  DR_HD void packet(int64_t item, int64_t pixel, int count, const Sink<scalar_t>& sink) const {
    const int64_t flat = item * in.pixels_per_item + pixel;
    const GradWriter<T> write{sink, item * slots, flat, spread, count};
    const Vec3<T> zero{T(0), T(0), T(0)};
    ShadePointGrad<T> grad;
    const ShadePoint<T> p = shade_point<T>(in, item, pixel, count);
    if (!any(p.active)) {
      write.clear(grad_positions, 3);
      write.clear(grad_normals, 3);
      write.clear(grad_view, 3);
      model.clear(grads, write);
      return;
    }
    auto surface = model.template load<T>(p, item, pixel, count);
    const Vec3<T> g = select3(p.active, PacketIo<T>::load3(grad_radiance + flat * 3, count), zero);
    for (int i = 0; i < in.light_count; ++i) {
      const LightRow<scalar_t> light = in.light(item, i);
      if (light.type == LightType::ambient) {
        const Vec3<T> f = model.ambient(surface);
        model.ambient_backward(surface, times(g, splat3<T>(light.values)));
        if (need_lights) write.add3(i * kLightValues, times(g, f));
        continue;
      }
      const ArrivingLight<T> arriving = arriving_light(light, p.position);
      Vec3<T> grad_to_light = zero, f = zero;
      const bool lit = model.shade_backward(p, surface, arriving.to_light, times(g, arriving.irradiance), need_geometry,
                                            &f, &grad, &grad_to_light);
      if (!lit || !need_geometry) continue;
      T grad_light[kLightValues] = {};
      arriving_light_backward(light, arriving, p.position, grad_to_light, times(g, f), &grad.position, grad_light);
      if (!need_lights) continue;
      for (int k = 0; k < kLightValues; ++k) {
        if (light_uses(light.type, k)) write.add(i * kLightValues + k, grad_light[k]);
      }
    }
    model.store_backward(p, surface, &grad, grads, write);
    write.map3(grad_normals, normalize_backward(p.normal, p.normal_scale, grad.normal));
    const Vec3<T> grad_to_viewer = normalize_backward(p.view, p.view_scale, grad.view);
    write.map3(grad_view, grad_to_viewer);
    write.map3(grad_positions, in.view_is_direction ? grad.position : grad.position - grad_to_viewer);
  }

  DR_HD void operator()(int64_t begin, int64_t end, const Sink<scalar_t>& sink) const {
    for_each_packet<1>(in.pixels_per_item, begin, end, [&](int64_t item, int64_t pixel, int count) {
      this->template packet<scalar_t>(item, pixel, count, sink);
    });
  }
};

// Adds the partial sums of a slot, and those of all items where the batch shares what the slot stands for.
template <class scalar_t>
struct ShadeCollect {
  const scalar_t* sums;  // [B, pieces, slots, spread]
  scalar_t* result;      // [B or 1, N]
  int64_t size;          // N
  int64_t items;         // B
  int64_t pieces;
  int32_t first_slot, slots, spread;
  bool shared;  // the result has one row

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / size, first = shared ? 0 : row * pieces, last = (shared ? items : row + 1) * pieces;
      scalar_t total = 0;
      for (int64_t part = first; part < last; ++part) {
        const scalar_t* const s = sums + (part * slots + first_slot + i % size) * spread;
        for (int k = 0; k < spread; ++k) total += s[k];
      }
      result[i] = total;
    }
  }
};

// Sum over the items of a map that the batch shares.
template <class scalar_t>
struct ShadeSumItems {
  const scalar_t* values;  // [B, N]
  scalar_t* result;        // [N]
  int64_t size, items;

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) result[i] = 0;
    for (int64_t item = 0; item < items; ++item) {
      for (int64_t i = begin; i < end; ++i) result[i] += values[item * size + i];
    }
  }
};

}  // namespace diffrender
