// Lambert's diffuse reflection: f = albedo / pi, times max(n . l, 0).
#pragma once

#include "shade.h"

namespace diffrender {

template <class scalar_t>
struct Lambert {
  ShadeMap<scalar_t> albedo;  // 3 channels
  scalar_t leak;              // share of the gradient that passes where the surface faces away from the light

  struct Grads {
    ShadeGrad<scalar_t> albedo;
  };

  template <class T>
  struct Surface {
    Vec3<T> albedo, grad_albedo;
  };

  template <class T>
  DR_HD Surface<T> load(const ShadePoint<T>& p, int64_t item, int64_t pixel, int count) const {
    const Vec3<T> zero{T(0), T(0), T(0)};
    return {select3(p.active, albedo.template load3<T>(item, pixel, count), zero), zero};
  }

  template <class T>
  DR_HD Vec3<T> ambient(const Surface<T>& s) const {
    return s.albedo;
  }

  template <class T>
  DR_HD Vec3<T> shade(const ShadePoint<T>& p, const Surface<T>& s, Vec3<T> to_light) const {
    return (larger(dot(p.normal, to_light), T(0)) * T(kInversePi<scalar_t>)) * s.albedo;
  }

  template <class T>
  DR_HD void ambient_backward(Surface<T>& s, Vec3<T> w) const {
    s.grad_albedo = s.grad_albedo + w;
  }

  // With w = g E:  albedo gets w (n.l)+ / pi, n.l gets (w . albedo) / pi where it is positive (the gate is shut at 0).
  template <class T>
  DR_HD bool shade_backward(const ShadePoint<T>& p, Surface<T>& s, Vec3<T> to_light, Vec3<T> w, bool need_geometry,
                            Vec3<T>* f, ShadePointGrad<T>* grad, Vec3<T>* grad_to_light) const {
    const T cosine = dot(p.normal, to_light);
    const auto lit = (cosine > T(0)) & p.active;
    if (!any(lit) && leak == 0) return false;
    const T scale = select(lit, cosine, T(0)) * T(kInversePi<scalar_t>);
    s.grad_albedo = s.grad_albedo + scale * w;
    if (!need_geometry) return true;
    *f = scale * s.albedo;
    const T grad_cosine = dot(w, s.albedo) * T(kInversePi<scalar_t>) * select(lit, T(1), T(leak));
    *grad_to_light = grad_cosine * p.normal;
    grad->normal = grad->normal + grad_cosine * to_light;
    return true;
  }

  template <class T>
  DR_HD void store_backward(const ShadePoint<T>&, const Surface<T>& s, ShadePointGrad<T>*, const Grads& grads,
                            const GradWriter<T>& write) const {
    write.map3(grads.albedo, s.grad_albedo);
  }

  template <class T>
  DR_HD void clear(const Grads& grads, const GradWriter<T>& write) const {
    write.clear(grads.albedo, 3);
  }
};

}  // namespace diffrender
