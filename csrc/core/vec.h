// Small fixed-size vectors for kernel bodies, and the derivative of each operation that kernels use.
#pragma once

#include "portable.h"

namespace diffrender {

template <class T>
struct Vec2 {
  T x, y;
};

template <class T>
struct Vec3 {
  T x, y, z;
};

template <class T>
struct Vec4 {
  T x, y, z, w;
};

template <class T>
DR_HD Vec3<T> operator+(Vec3<T> a, Vec3<T> b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z};
}

template <class T>
DR_HD Vec3<T> operator-(Vec3<T> a, Vec3<T> b) {
  return {a.x - b.x, a.y - b.y, a.z - b.z};
}

template <class T>
DR_HD Vec3<T> operator*(T s, Vec3<T> a) {
  return {s * a.x, s * a.y, s * a.z};
}

template <class T>
DR_HD T dot(Vec3<T> a, Vec3<T> b) {
  return a.x * b.x + a.y * b.y + a.z * b.z;
}

// z component of the 3-D cross product of (a, 0) and (b, 0).
template <class T>
DR_HD T cross(Vec2<T> a, Vec2<T> b) {
  return a.x * b.y - a.y * b.x;
}

template <class T>
DR_HD Vec3<T> cross(Vec3<T> a, Vec3<T> b) {
  return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}

// c = a x b  =>  grad_a = b x grad_c,  grad_b = grad_c x a.
template <class T>
DR_HD void cross_backward(Vec3<T> a, Vec3<T> b, Vec3<T> grad_c, Vec3<T>* grad_a, Vec3<T>* grad_b) {
  *grad_a = *grad_a + cross(b, grad_c);
  *grad_b = *grad_b + cross(grad_c, a);
}

template <class T>
DR_HD void cross_backward(Vec2<T> a, Vec2<T> b, T grad_c, Vec2<T>* grad_a, Vec2<T>* grad_b) {
  grad_a->x += grad_c * b.y;
  grad_a->y -= grad_c * b.x;
  grad_b->x -= grad_c * a.y;
  grad_b->y += grad_c * a.x;
}

// 1 / value, or 0 where the quotient would only be the noise of an underflow. Forward and backward use the same rule.
template <class T>
DR_HD T reciprocal_or_zero(T value) {
  const T magnitude = value < 0 ? -value : value;
  return magnitude >= kSmallestNormal<T> ? T(1) / value : T(0);
}

}  // namespace diffrender
