// Blinn-Phong: f = (c / pi + ks (s + 8) / (8 pi) (n.h)^s) n.l with the half vector h = (v + l) / |v + l|.
#pragma once

#include "shade.h"

namespace diffrender {

template <class scalar_t>
struct BlinnPhong {
  ShadeMap<scalar_t> albedo;     // c, 3 channels
  ShadeMap<scalar_t> specular;   // ks, 3 channels
  ShadeMap<scalar_t> shininess;  // s, 1 channel; smaller ones than 1 count as 1

  struct Grads {
    ShadeGrad<scalar_t> albedo, specular, shininess;
  };

  template <class T>
  struct Surface {
    Vec3<T> albedo, specular;
    T shininess, exponent;  // as given, and bounded
    T scale;                // (s + 8) / (8 pi)
    Vec3<T> grad_albedo, grad_specular;
    T grad_exponent;
  };

  template <class T>
  DR_HD Surface<T> load(const ShadePoint<T>& p, int64_t item, int64_t pixel, int count) const {
    const Vec3<T> zero{T(0), T(0), T(0)};
    Surface<T> s;
    s.albedo = select3(p.active, albedo.template load3<T>(item, pixel, count), zero);
    s.specular = select3(p.active, specular.template load3<T>(item, pixel, count), zero);
    s.shininess = select(p.active, shininess.template load<T>(item, pixel, count), T(1));
    s.exponent = larger(s.shininess, T(1));
    s.scale = (s.exponent + T(8)) * T(kInversePi<scalar_t> / 8);
    s.grad_albedo = s.grad_specular = zero;
    s.grad_exponent = T(0);
    return s;
  }

  template <class T>
  DR_HD Vec3<T> ambient(const Surface<T>& s) const {
    return s.albedo;
  }

  template <class T>
  DR_HD void ambient_backward(Surface<T>& s, Vec3<T> w) const {
    s.grad_albedo = s.grad_albedo + w;
  }

  template <class T>
  struct Highlight {
    Vec3<T> half;
    T inverse_sum, cosine;  // 1 / |v + l|; n.h, 1 where it is not positive
    MaskOf<T> visible;      // lit and n.h > 0
    T logarithm;            // ln(n.h)
    T power;                // (n.h)^s, 0 where not visible
  };

  template <class T>
  DR_HD Highlight<T> highlight(const ShadePoint<T>& p, const Surface<T>& s, Vec3<T> to_light, MaskOf<T> lit) const {
    Highlight<T> h;
    const Vec3<T> sum = p.view + to_light;
    h.inverse_sum = inverse_length(dot(sum, sum));
    h.half = h.inverse_sum * sum;
    const T cosine = dot(p.normal, h.half);
    h.visible = lit & (cosine > T(0));
    h.cosine = select(h.visible, cosine, T(1));
    h.logarithm = logarithm(h.cosine);
    h.power = select(h.visible, exponential(s.exponent * h.logarithm), T(0));
    return h;
  }

  template <class T>
  DR_HD Vec3<T> shade(const ShadePoint<T>& p, const Surface<T>& s, Vec3<T> to_light) const {
    const T cosine = dot(p.normal, to_light);
    const auto lit = (cosine > T(0)) & p.active;
    if (!any(lit)) return {T(0), T(0), T(0)};
    const T positive = select(lit, cosine, T(0));
    const T diffuse = positive * T(kInversePi<scalar_t>);
    const T shine = positive * s.scale * highlight(p, s, to_light, lit).power;
    return diffuse * s.albedo + shine * s.specular;
  }

  // With w = g E, x = n.h, p = x^s and K = (s + 8) / (8 pi):
  //   c  w n.l / pi;   ks  w n.l K p;   n.l  (w.c) / pi + (w.ks) K p
  //   s  (w.ks) n.l (p / (8 pi) + K p ln x), whose logarithm is not taken at x = 0
  //   x  (w.ks) n.l K s x^(s-1);   u = v + l  g_x (n - h x) / |u|, which v and l both get
  template <class T>
  DR_HD bool shade_backward(const ShadePoint<T>& p, Surface<T>& s, Vec3<T> to_light, Vec3<T> cotangent,
                            bool need_geometry, Vec3<T>* f, ShadePointGrad<T>* grad, Vec3<T>* grad_to_light) const {
    const T cosine = dot(p.normal, to_light);
    const auto lit = (cosine > T(0)) & p.active;
    if (!any(lit)) return false;
    const Highlight<T> h = highlight(p, s, to_light, lit);
    const Vec3<T> w = select3(lit, cotangent, {T(0), T(0), T(0)});
    const T positive = select(lit, cosine, T(0)), inverse_pi = T(kInversePi<scalar_t>);
    const T diffuse = positive * inverse_pi, shine = positive * s.scale * h.power;
    s.grad_albedo = s.grad_albedo + diffuse * w;
    s.grad_specular = s.grad_specular + shine * w;
    const T specular_sum = dot(w, s.specular);
    s.grad_exponent += specular_sum * positive * h.power * (T(kInversePi<scalar_t> / 8) + s.scale * h.logarithm);
    if (!need_geometry) return true;
    *f = diffuse * s.albedo + shine * s.specular;
    const T grad_cosine = dot(w, s.albedo) * inverse_pi + specular_sum * s.scale * h.power;
    // x^(s-1) = p / x: x is 1 where nothing is visible, and p is 0 there.
    const T grad_half_cosine = specular_sum * positive * s.scale * s.exponent * h.power / h.cosine;
    const T along = grad_half_cosine * h.inverse_sum;
    const Vec3<T> grad_sum = along * (p.normal - h.cosine * h.half);
    *grad_to_light = grad_sum + grad_cosine * p.normal;
    grad->view = grad->view + grad_sum;
    grad->normal = grad->normal + grad_half_cosine * h.half + grad_cosine * to_light;
    return true;
  }

  template <class T>
  DR_HD void store_backward(const ShadePoint<T>&, const Surface<T>& s, ShadePointGrad<T>*, const Grads& grads,
                            const GradWriter<T>& write) const {
    write.map3(grads.albedo, s.grad_albedo);
    write.map3(grads.specular, s.grad_specular);
    write.map(grads.shininess, select(s.shininess >= T(1), s.grad_exponent, T(0)));
  }

  template <class T>
  DR_HD void clear(const Grads& grads, const GradWriter<T>& write) const {
    write.clear(grads.albedo, 3);
    write.clear(grads.specular, 3);
    write.clear(grads.shininess, 1);
  }
};

}  // namespace diffrender
