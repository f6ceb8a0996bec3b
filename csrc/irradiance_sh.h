// Irradiance from spherical harmonics of order 2: a polynomial of degree 2 in the unit normal.
//
//   E_c(n) = sum over k of b_k(n) L_kc,   b = 1, y, z, x, xy, yz, 3 z^2 - 1, xz, x^2 - y^2
//
// The coefficients L come with the constants of the basis and of the cosine kernel already in them (irradiance_sh.py).
#pragma once

#include "shade.h"

namespace diffrender {

constexpr int kShTerms = 9;

template <class scalar_t>
struct IrradianceShInput {
  const scalar_t* coefficients;  // [B or 1, 9, C]
  ShadeMap<scalar_t> normals;    // 3 channels
  const int32_t* triangle_id;    // [B, H, W], negative = background; null: every pixel counts
  int64_t coefficient_stride;    // 9 * C, or 0 where the batch shares them
  int64_t pixels_per_item;
  int32_t channels;

  // As in shade.h: lanes that are not active hold a harmless normal.
  template <class T>
  struct Point {
    MaskOf<T> active;
    Vec3<T> normal;
    T scale;  // 1 / length of what the map holds
  };

  template <class T>
  DR_HD Point<T> point(int64_t item, int64_t pixel, int count) const {
    Point<T> p;
    const int64_t flat = item * pixels_per_item + pixel;
    p.active = triangle_id != nullptr ? PacketIo<T>::inside(triangle_id + flat, count) : PacketIo<T>::first(count);
    const Vec3<T> raw = select3(p.active, normals.template load3<T>(item, pixel, count), {T(0), T(0), T(1)});
    p.scale = inverse_length(dot(raw, raw));
    p.active = p.active & (p.scale > T(0));
    p.normal = p.scale * raw;
    return p;
  }

  template <class T>
  DR_HD static void basis(Vec3<T> n, T b[kShTerms]) {
    b[0] = T(1);
    b[1] = n.y;
    b[2] = n.z;
    b[3] = n.x;
    b[4] = n.x * n.y;
    b[5] = n.y * n.z;
    b[6] = T(3) * n.z * n.z - T(1);
    b[7] = n.x * n.z;
    b[8] = n.x * n.x - n.y * n.y;
  }
};

template <class scalar_t>
struct IrradianceShForward {
  IrradianceShInput<scalar_t> in;
  scalar_t* irradiance;  // [B, H, W, C]

  template <class T>
  DR_HD void packet(int64_t item, int64_t pixel, int count) const {
    const auto p = in.template point<T>(item, pixel, count);
    T b[kShTerms];
    in.basis(p.normal, b);
    const scalar_t* const table = in.coefficients + item * in.coefficient_stride;
    scalar_t* const out = irradiance + (item * in.pixels_per_item + pixel) * in.channels;
    for (int c = 0; c < in.channels; ++c) {
      T sum = T(0);
      for (int k = 0; k < kShTerms; ++k) sum = sum + b[k] * T(table[k * in.channels + c]);
      PacketIo<T>::store_strided(out + c, in.channels, select(p.active, sum, T(0)), count);
    }
  }

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for_each_packet<1>(in.pixels_per_item, begin, end, [&](int64_t item, int64_t pixel, int count) {
      this->template packet<scalar_t>(item, pixel, count);
    });
  }
};

// grad_L_kc = sum over the pixels of b_k g_c. With a_k = sum_c L_kc g_c the gradient of the unit normal is sum_k a_k
// db_k/dn:
//   x:  a3 + a4 y + a7 z + 2 a8 x      y:  a1 + a4 x + a5 z - 2 a8 y      z:  a2 + a5 y + 6 a6 z + a7 x
// and that of the given vector follows from n = N / |N|.
template <class scalar_t>
struct IrradianceShBackward {
  IrradianceShInput<scalar_t> in;
  const scalar_t* grad_irradiance;  // [B, H, W, C]
  ShadeGrad<scalar_t> grad_normals;
  bool need_coefficients;
  int32_t slots;   // sums per item: 9 C, then 3 of normals that pixels share
  int32_t spread;  // partial sums per slot

  template <class T>
  DR_HD void packet(int64_t item, int64_t pixel, int count, const Sink<scalar_t>& sink) const {
    const int64_t flat = item * in.pixels_per_item + pixel;
    const GradWriter<T> write{sink, item * slots, flat, spread, count};
    const auto p = in.template point<T>(item, pixel, count);
    T b[kShTerms], a[kShTerms] = {};
    in.basis(p.normal, b);
    const scalar_t* const table = in.coefficients + item * in.coefficient_stride;
    for (int c = 0; c < in.channels; ++c) {
      const T loaded = PacketIo<T>::load_strided(grad_irradiance + flat * in.channels + c, in.channels, count);
      const T g = select(p.active, loaded, T(0));
      for (int k = 0; k < kShTerms; ++k) {
        a[k] = a[k] + g * T(table[k * in.channels + c]);
        if (need_coefficients) write.add(k * in.channels + c, b[k] * g);
      }
    }
    const Vec3<T> n = p.normal;
    const Vec3<T> grad{a[3] + a[4] * n.y + a[7] * n.z + T(2) * a[8] * n.x,
                       a[1] + a[4] * n.x + a[5] * n.z - T(2) * a[8] * n.y,
                       a[2] + a[5] * n.y + T(6) * a[6] * n.z + a[7] * n.x};
    write.map3(grad_normals, normalize_backward(n, p.scale, grad));
  }

  DR_HD void operator()(int64_t begin, int64_t end, const Sink<scalar_t>& sink) const {
    for_each_packet<1>(in.pixels_per_item, begin, end, [&](int64_t item, int64_t pixel, int count) {
      this->template packet<scalar_t>(item, pixel, count, sink);
    });
  }
};

}  // namespace diffrender
