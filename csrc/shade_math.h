// The arithmetic of the shading kernels, for one pixel (here) or for a packet of pixels (shade_packet.h): bodies are
// written once over a type T that is scalar_t or Packet<scalar_t>.
#pragma once

#include "core/portable.h"
#include "core/vec.h"

namespace diffrender {

// 1 / pi and pi in the precision of scalar_t.
template <class scalar_t>
constexpr scalar_t kInversePi = scalar_t(0.318309886183790671537767526745028724L);

// How pixels in memory become a T, and how a T is added to a gradient.
template <class T>
struct PacketIo;

template <class scalar_t>
struct ScalarIo {
  using Scalar = scalar_t;
  using Mask = bool;
  static constexpr int kWidth = 1;

  DR_HD static Mask inside(const int32_t* triangle_id, int) { return *triangle_id >= 0; }
  DR_HD static Mask first(int) { return true; }
  DR_HD static scalar_t load(const scalar_t* values, int) { return *values; }
  DR_HD static Vec3<scalar_t> load3(const scalar_t* values, int) { return {values[0], values[1], values[2]}; }
  // Pixels that lie `stride` elements apart.
  DR_HD static scalar_t load_strided(const scalar_t* values, int64_t, int) { return *values; }
  DR_HD static void store_strided(scalar_t* values, int64_t, scalar_t value, int) { *values = value; }
  DR_HD static void store(scalar_t* values, scalar_t value, int) { *values = value; }
  DR_HD static void store3(scalar_t* values, Vec3<scalar_t> value, int) {
    values[0] = value.x;
    values[1] = value.y;
    values[2] = value.z;
  }
  // Every slot is kept as `spread` partial sums, so that neighbouring GPU threads do not add to one address.
  DR_HD static void add(const Sink<scalar_t>& sink, int64_t slot, int32_t spread, int64_t pixel, scalar_t value) {
    accumulate(sink, slot * spread + static_cast<int32_t>(pixel % spread), value);
  }
};

template <>
struct PacketIo<float> : ScalarIo<float> {};
template <>
struct PacketIo<double> : ScalarIo<double> {};

template <class T>
using ScalarOf = typename PacketIo<T>::Scalar;
template <class T>
using MaskOf = typename PacketIo<T>::Mask;

DR_HD float select(bool mask, float a, float b) { return mask ? a : b; }
DR_HD double select(bool mask, double a, double b) { return mask ? a : b; }
DR_HD float square_root(float value) { return ::sqrtf(value); }
DR_HD double square_root(double value) { return ::sqrt(value); }
DR_HD float arc_tangent(float y, float x) { return ::atan2f(y, x); }
DR_HD double arc_tangent(double y, double x) { return ::atan2(y, x); }
DR_HD bool any(bool mask) { return mask; }
DR_HD float sum_of_lanes(float value) { return value; }
DR_HD double sum_of_lanes(double value) { return value; }
DR_HD float logarithm(float value) { return ::logf(value); }
DR_HD double logarithm(double value) { return ::log(value); }
DR_HD float exponential(float value) { return ::expf(value); }
DR_HD double exponential(double value) { return ::exp(value); }

template <class T>
DR_HD T larger(T a, T b) {
  return select(a < b, b, a);
}

template <class T>
DR_HD T smaller(T a, T b) {
  return select(b < a, b, a);
}

template <class T, class Mask>
DR_HD Vec3<T> select3(Mask mask, Vec3<T> a, Vec3<T> b) {
  return {select(mask, a.x, b.x), select(mask, a.y, b.y), select(mask, a.z, b.z)};
}

// 1 / length of a vector of this squared length, 0 for one without a direction.
template <class T>
DR_HD T inverse_length(T squared_length) {
  const auto usable = squared_length >= T(kSmallestNormal<ScalarOf<T>>);
  return select(usable, T(1) / square_root(select(usable, squared_length, T(1))), T(0));
}

// n = inverse * x with inverse = 1 / |x|  =>  grad_x = inverse (grad_n - n (n . grad_n)): zero for the zero vector.
template <class T>
DR_HD Vec3<T> normalize_backward(Vec3<T> n, T inverse, Vec3<T> grad_n) {
  const T along = dot(n, grad_n);
  return {inverse * (grad_n.x - n.x * along), inverse * (grad_n.y - n.y * along), inverse * (grad_n.z - n.z * along)};
}

// Product of two colors, channel by channel.
template <class T>
DR_HD Vec3<T> times(Vec3<T> a, Vec3<T> b) {
  return {a.x * b.x, a.y * b.y, a.z * b.z};
}

template <class T>
DR_HD T sum_of(Vec3<T> a) {
  return a.x + a.y + a.z;
}

template <class T>
DR_HD Vec3<T> splat3(const ScalarOf<T>* values) {
  return {T(values[0]), T(values[1]), T(values[2])};
}

}  // namespace diffrender
