// Tangent-space normal maps: n' = normalize(x t + y b + z n), bent back towards the surface near grazing view.
//
//   b = s (n x t), s = +1 or -1 the handedness of the tangent; n and t as interpolated, of whatever length: maps are
//   baked for exactly that rule (MikkTSpace).
//   x = scale (2 r - 1), y = scale green (2 g - 1), z = max(2 b - 1, 0)        r, g, b the normal map
//   c = (n' . v) sign(G . v),  q = clamp(c / grazing, 0, 1),  k = q^2 (3 - 2 q)      v unit to the viewer
//   result = normalize(G + k (n' - G))                                   G unit geometric normal
#pragma once

#include "shade.h"

namespace diffrender {

template <class scalar_t>
struct PerturbNormalsInput {
  ShadeMap<scalar_t> normals, tangents, normal_map, scale;  // 3, 4, 3 and 1 channels
  ShadeMap<scalar_t> geometric_normals, view;               // 3 channels; both null: nothing is bent back
  const int32_t* triangle_id;  // [B, H, W], negative = background; null: every pixel counts
  int64_t pixels_per_item;
  scalar_t green;    // 1 where the green channel points up in the picture, -1 where it points down
  scalar_t grazing;  // cosine of normal and view below which the normal is bent back

  // As in shade.h: lanes that are not active hold what is harmless in every formula.
  template <class T>
  struct Point {
    MaskOf<T> active;  // neither background nor without a normal
    MaskOf<T> bent;    // the map has a say: there is a tangent, and it does not cancel the normal
    MaskOf<T> mixed;   // both the geometric normal and the view have a direction
    Vec3<T> normal, tangent, bitangent;
    T handedness;
    T red, green, scale;  // the map before its scale, green with the sign of the convention
    T x, y, z;
    MaskOf<T> outside;  // z < 0 before it was clamped
    Vec3<T> perturbed;  // n'
    T perturbed_scale;
    Vec3<T> geometric, view;  // unit
    T geometric_scale, view_scale, side, q, k;
    Vec3<T> result;
    T result_scale;
  };

  template <class T>
  DR_HD T tangent_channel(int64_t item, int64_t pixel, int channel, int count) const {
    const scalar_t* const p = tangents.values + item * tangents.item_stride + channel;
    if (tangents.pixel_stride == 0) return T(*p);
    return PacketIo<T>::load_strided(p + pixel * 4, 4, count);
  }

  template <class T>
  DR_HD Point<T> point(int64_t item, int64_t pixel, int count) const {
    const Vec3<T> up{T(0), T(0), T(1)};
    const int64_t flat = item * pixels_per_item + pixel;
    Point<T> p;
    p.active = triangle_id != nullptr ? PacketIo<T>::inside(triangle_id + flat, count) : PacketIo<T>::first(count);
    p.normal = select3(p.active, normals.template load3<T>(item, pixel, count), up);
    const T normal_scale = inverse_length(dot(p.normal, p.normal));
    p.active = p.active & (normal_scale > T(0));
    p.normal = select3(p.active, p.normal, up);

    p.tangent = select3(p.active,
                        Vec3<T>{tangent_channel<T>(item, pixel, 0, count), tangent_channel<T>(item, pixel, 1, count),
                                tangent_channel<T>(item, pixel, 2, count)},
                        {T(0), T(0), T(0)});
    p.handedness = select(tangent_channel<T>(item, pixel, 3, count) < T(0), T(-1), T(1));
    p.bitangent = p.handedness * cross(p.normal, p.tangent);

    const Vec3<T> texel = select3(p.active, normal_map.template load3<T>(item, pixel, count), {T(0.5), T(0.5), T(1)});
    p.scale = select(p.active, scale.template load<T>(item, pixel, count), T(1));
    p.red = T(2) * texel.x - T(1);
    p.green = T(green) * (T(2) * texel.y - T(1));
    p.x = p.scale * p.red;
    p.y = p.scale * p.green;
    const T blue = T(2) * texel.z - T(1);
    p.outside = blue < T(0);
    p.z = select(p.outside, T(0), blue);

    const Vec3<T> sum = p.x * p.tangent + p.y * p.bitangent + p.z * p.normal;
    p.perturbed_scale = inverse_length(dot(sum, sum));
    p.bent = (inverse_length(dot(p.tangent, p.tangent)) > T(0)) & (p.perturbed_scale > T(0));
    p.perturbed_scale = select(p.bent, p.perturbed_scale, inverse_length(dot(p.normal, p.normal)));
    p.perturbed = p.perturbed_scale * select3(p.bent, sum, p.normal);

    p.result = p.perturbed;
    p.result_scale = T(1);
    if (view.values == nullptr) return p;
    const Vec3<T> geometric = select3(p.active, geometric_normals.template load3<T>(item, pixel, count), up);
    const Vec3<T> to_viewer = select3(p.active, view.template load3<T>(item, pixel, count), up);
    p.geometric_scale = inverse_length(dot(geometric, geometric));
    p.view_scale = inverse_length(dot(to_viewer, to_viewer));
    p.mixed = (p.geometric_scale > T(0)) & (p.view_scale > T(0));
    p.geometric = p.geometric_scale * geometric;
    p.view = p.view_scale * to_viewer;
    p.side = select(dot(p.geometric, p.view) < T(0), T(-1), T(1));
    p.q = larger(smaller(p.side * dot(p.perturbed, p.view) / T(grazing), T(1)), T(0));
    p.k = p.q * p.q * (T(3) - T(2) * p.q);
    const Vec3<T> mix = p.geometric + p.k * (p.perturbed - p.geometric);
    p.result_scale = inverse_length(dot(mix, mix));
    // At k = 1 the value is that of no view at all, to the last bit.
    p.mixed = p.mixed & (p.q < T(1));
    const Vec3<T> unit_mix = select3(p.result_scale > T(0), p.result_scale * mix, p.geometric);
    p.result = select3(p.mixed, unit_mix, p.perturbed);
    return p;
  }
};

template <class scalar_t>
struct PerturbNormalsForward {
  PerturbNormalsInput<scalar_t> in;
  scalar_t* result;  // [B, H, W, 3]

  template <class T>
  DR_HD void packet(int64_t item, int64_t pixel, int count) const {
    const auto p = in.template point<T>(item, pixel, count);
    const Vec3<T> value = select3(p.active, p.result, {T(0), T(0), T(0)});
    PacketIo<T>::store3(result + (item * in.pixels_per_item + pixel) * 3, value, count);
  }

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for_each_packet<1>(in.pixels_per_item, begin, end, [&](int64_t item, int64_t pixel, int count) {
      this->template packet<scalar_t>(item, pixel, count);
    });
  }
};

// With the cotangent g of the result and m = G + k (n' - G), where the normal is bent back:
//   grad_m = (g - r (r . g)) / |m|,  r = m / |m|
//   grad_n' = k grad_m,  grad_G = (1 - k) grad_m,  grad_k = (n' - G) . grad_m
//   grad_q = 6 q (1 - q) grad_k      0 at both ends of the clamp: the blend is C1, and G . v = 0 has q near 0 anyway
//   grad_n' += (side / grazing) grad_q v,  grad_v = (side / grazing) grad_q n',  the side a constant
// and elsewhere grad_n' = g. With u = x t + y b + z n:
//   grad_u = (grad_n' - n' (n' . grad_n')) / |u|
//   grad_x = t . grad_u,  grad_y = b . grad_u,  grad_z = n . grad_u (0 below the clamp)
//   b = s n x t  =>  grad_n = z grad_u + s y (t x grad_u),  grad_t = x grad_u + s y (grad_u x n)
//   grad_r = 2 scale grad_x,  grad_g = 2 scale green grad_y,  grad_b = 2 grad_z
//   grad_scale = (2 r - 1) grad_x + green (2 g - 1) grad_y
// A pixel without a tangent, or whose u is zero, shows n / |n|: u = n, and neither map nor tangent get anything.
template <class scalar_t>
struct PerturbNormalsBackward {
  PerturbNormalsInput<scalar_t> in;
  const scalar_t* grad_result;  // [B, H, W, 3]
  ShadeGrad<scalar_t> grad_normals, grad_tangents, grad_normal_map, grad_scale, grad_geometric_normals, grad_view;
  int32_t slots;   // sums per item, of maps that pixels share
  int32_t spread;  // partial sums per slot

  template <class T>
  DR_HD void packet(int64_t item, int64_t pixel, int count, const Sink<scalar_t>& sink) const {
    const int64_t flat = item * in.pixels_per_item + pixel;
    const GradWriter<T> write{sink, item * slots, flat, spread, count};
    const Vec3<T> zero{T(0), T(0), T(0)};
    const auto p = in.template point<T>(item, pixel, count);
    const Vec3<T> g = select3(p.active, PacketIo<T>::load3(grad_result + flat * 3, count), zero);

    Vec3<T> grad_perturbed = g;
    if (in.view.values != nullptr) {
      const Vec3<T> grad_mix = normalize_backward(p.result, p.result_scale, g);
      const T grad_q = T(6) * p.q * (T(1) - p.q) * dot(p.perturbed - p.geometric, grad_mix);
      const T along = p.side * grad_q / T(in.grazing);
      grad_perturbed = select3(p.mixed, p.k * grad_mix + along * p.view, g);
      const Vec3<T> grad_geometric = select3(p.mixed, (T(1) - p.k) * grad_mix, zero);
      const Vec3<T> grad_direction = select3(p.mixed, along * p.perturbed, zero);
      write.map3(grad_geometric_normals, normalize_backward(p.geometric, p.geometric_scale, grad_geometric));
      write.map3(grad_view, normalize_backward(p.view, p.view_scale, grad_direction));
    }

    const Vec3<T> grad_sum = normalize_backward(p.perturbed, p.perturbed_scale, grad_perturbed);
    const Vec3<T> to_map = select3(p.bent, grad_sum, zero);
    const T grad_x = dot(p.tangent, to_map), grad_y = dot(p.bitangent, to_map);
    const T grad_z = select(p.outside, T(0), dot(p.normal, to_map));
    const T turn = p.handedness * p.y;
    const Vec3<T> through_map = p.z * grad_sum + turn * cross(p.tangent, grad_sum);
    write.map3(grad_normals, select3(p.bent, through_map, grad_sum));
    const Vec3<T> grad_tangent = p.x * to_map + turn * cross(to_map, p.normal);
    write_tangent(write, flat, grad_tangent, count);
    const T twice = T(2) * p.scale;
    write.map3(grad_normal_map, {twice * grad_x, T(in.green) * twice * grad_y, T(2) * grad_z});
    write.map(grad_scale, p.red * grad_x + p.green * grad_y);
  }

  // The handedness is a constant: its gradient is 0.
  template <class T>
  DR_HD void write_tangent(const GradWriter<T>& write, int64_t flat, Vec3<T> value, int count) const {
    if (grad_tangents.slot >= 0) write.add3(grad_tangents.slot, value);
    if (grad_tangents.values == nullptr) return;
    scalar_t* const out = grad_tangents.values + flat * 4;
    PacketIo<T>::store_strided(out, 4, value.x, count);
    PacketIo<T>::store_strided(out + 1, 4, value.y, count);
    PacketIo<T>::store_strided(out + 2, 4, value.z, count);
    PacketIo<T>::store_strided(out + 3, 4, T(0), count);
  }

  DR_HD void operator()(int64_t begin, int64_t end, const Sink<scalar_t>& sink) const {
    for_each_packet<1>(in.pixels_per_item, begin, end, [&](int64_t item, int64_t pixel, int count) {
      this->template packet<scalar_t>(item, pixel, count, sink);
    });
  }
};

}  // namespace diffrender
