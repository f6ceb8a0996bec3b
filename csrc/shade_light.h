// Light as it arrives at points of a surface, and its derivative.
#pragma once

#include "shade_math.h"

namespace diffrender {

enum class LightType : int32_t { ambient = 0, directional = 1, point = 2, spot = 3 };

// One row of the light table: kLightValues numbers.
//   0 color (3)       ambient: radiance from everywhere; directional: irradiance of a surface that faces the light;
//                     point and spot: intensity
//   3 position (3)    point and spot
//   6 direction (3)   in which the light travels, of unit length; directional and spot
//   9 radius          point and spot: the distance is never taken to be smaller
//  10 cos_inner       spot: full intensity inside this angle from its axis
//  11 cos_outer       spot: none outside of this one
constexpr int kLightValues = 12;

template <class scalar_t>
struct LightRow {
  LightType type;
  const scalar_t* values;  // [kLightValues]
};

template <class T>
struct ArrivingLight {
  Vec3<T> to_light;    // unit vector, 0 at the light itself
  Vec3<T> irradiance;  // of a surface that faces the light
  // Kept for the derivative; of point and spot lights only.
  T inverse_distance, falloff, cone, cone_position;
};

// point, spot:  u = position - p,  l = u / |u|,  falloff q = 1 / max(u.u, radius^2),  irradiance = color q cone
// spot:         x = clamp((-l . direction - cos_outer) / (cos_inner - cos_outer), 0, 1),  cone = x^2 (3 - 2 x):
//               smooth (C1) at both ends. With cos_inner = cos_outer it is a step, whose derivative is 0.
template <class T>
DR_HD ArrivingLight<T> arriving_light(const LightRow<ScalarOf<T>>& light, Vec3<T> p) {
  using scalar_t = ScalarOf<T>;
  const scalar_t* const v = light.values;
  ArrivingLight<T> a{};
  const Vec3<T> color = splat3<T>(v);
  if (light.type == LightType::directional) {
    a.to_light = {T(-v[6]), T(-v[7]), T(-v[8])};
    a.irradiance = color;
    return a;
  }
  const Vec3<T> u = splat3<T>(v + 3) - p;
  const T squared = dot(u, u);
  a.inverse_distance = inverse_length(squared);
  a.to_light = a.inverse_distance * u;
  const T bounded = larger(squared, T(v[9] * v[9]));
  const auto regular = bounded >= T(kSmallestNormal<scalar_t>);
  a.falloff = select(regular, T(1) / select(regular, bounded, T(1)), T(0));
  T strength = a.falloff;
  if (light.type == LightType::spot) {
    const scalar_t width = v[10] - v[11];
    const T above = -dot(a.to_light, splat3<T>(v + 6)) - T(v[11]);
    if (width > 0) {
      a.cone_position = larger(smaller(above / T(width), T(1)), T(0));
    } else {
      a.cone_position = select(above > T(0), T(1), T(0));
    }
    a.cone = a.cone_position * a.cone_position * (T(3) - T(2) * a.cone_position);
    strength = strength * a.cone;
  }
  a.irradiance = strength * color;
  return a;
}

// Given gradients g_l of to_light and g_E of irradiance:
//   color      g_E strength, strength = q cone;  g_s = g_E . color;  g_q = g_s cone;  g_cone = g_s q
//   cone       with w = cos_inner - cos_outer, inside of the clamp: g_x = g_cone 6 x (1 - x) (which is 0 at both
//   clamps),
//              cos_inner: -g_x x / w;  cos_outer: g_x (x - 1) / w;  direction: -(g_x / w) l;  l: -(g_x / w) direction
//   falloff    dq = -q^2 d(u.u), or where the radius bounds it -q^2 2 radius d(radius)
//   u          (g_l - l (l . g_l)) / |u| - g_q q^2 2 u;  the light's position gets it, p its negative
// Adds to *grad_p; writes the gradient of every value of the row that the light's type uses.
template <class T>
DR_HD void arriving_light_backward(const LightRow<ScalarOf<T>>& light, const ArrivingLight<T>& a, Vec3<T> p,
                                   Vec3<T> grad_to_light, Vec3<T> grad_irradiance, Vec3<T>* grad_p,
                                   T grad_light[kLightValues]) {
  using scalar_t = ScalarOf<T>;
  const scalar_t* const v = light.values;
  if (light.type == LightType::directional) {
    grad_light[0] = grad_irradiance.x;
    grad_light[1] = grad_irradiance.y;
    grad_light[2] = grad_irradiance.z;
    grad_light[6] = -grad_to_light.x;
    grad_light[7] = -grad_to_light.y;
    grad_light[8] = -grad_to_light.z;
    return;
  }
  const bool is_spot = light.type == LightType::spot;
  const T strength = is_spot ? a.falloff * a.cone : a.falloff;
  grad_light[0] = grad_irradiance.x * strength;
  grad_light[1] = grad_irradiance.y * strength;
  grad_light[2] = grad_irradiance.z * strength;
  const T grad_strength = dot(grad_irradiance, splat3<T>(v));
  T grad_falloff = grad_strength;
  if (is_spot) {
    grad_falloff = grad_strength * a.cone;
    const scalar_t width = v[10] - v[11];
    const T x = a.cone_position;
    const T grad_above = grad_strength * a.falloff * T(6) * x * (T(1) - x) * T(width > 0 ? 1 / width : scalar_t(0));
    grad_light[6] = -grad_above * a.to_light.x;
    grad_light[7] = -grad_above * a.to_light.y;
    grad_light[8] = -grad_above * a.to_light.z;
    grad_light[10] = -grad_above * x;
    grad_light[11] = grad_above * (x - T(1));
    grad_to_light = grad_to_light - grad_above * splat3<T>(v + 6);
  }
  const Vec3<T> u = splat3<T>(v + 3) - p;
  const T grad_bounded = -grad_falloff * a.falloff * a.falloff;
  const auto by_radius = dot(u, u) < T(v[9] * v[9]);
  grad_light[9] = select(by_radius, grad_bounded, T(0)) * T(2 * v[9]);
  const T grad_squared = select(by_radius, T(0), grad_bounded);
  const Vec3<T> grad_u = normalize_backward(a.to_light, a.inverse_distance, grad_to_light) + (T(2) * grad_squared) * u;
  grad_light[3] = grad_u.x;
  grad_light[4] = grad_u.y;
  grad_light[5] = grad_u.z;
  *grad_p = *grad_p - grad_u;
}

// Whether lights of this type have a gradient for value i of their row.
DR_HD bool light_uses(LightType type, int i) {
  if (i < 3) return true;
  if (i < 6 || i == 9) return type == LightType::point || type == LightType::spot;
  if (i < 9) return type == LightType::directional || type == LightType::spot;
  return type == LightType::spot;
}

}  // namespace diffrender
