// glTF 2.0 metallic-roughness: GGX with height-correlated Smith masking and Schlick's Fresnel term.
//
//   a = r^2, A = a^2;  F0 = 0.04 (1 - m) + c m;  x5 = (1 - v.h)^5;  Fd = 0.04 + 0.96 x5;  F = F0 + (1 - F0) x5
//   D = A / (pi t^2),  t = A (n.h)^2 + |n x h|^2        (= (n.h)^2 (A - 1) + 1, without its cancellation near n = h)
//   V = 1 / (2 (n.l sV + n.v sL)),  sV = sqrt((n.v)^2 (1 - A) + A),  sL likewise
//   s = D V,  f = n.l ((1 - m) (1 - Fd) c / pi + s F G),  G = 1 + k F0
//
// which is glTF's mix of a dielectric and a metal, mix(c / pi, s, Fd) and s F(c), because F is linear in F0. k is the
// energy that single scattering loses (0 where it is not compensated). Since v and l are unit vectors, v.h = |v + l|
// / 2.
#pragma once

#include "shade.h"

namespace diffrender {

template <class scalar_t>
struct MetallicRoughness {
  ShadeMap<scalar_t> albedo;     // c, 3 channels
  ShadeMap<scalar_t> metallic;   // m, 1 channel
  ShadeMap<scalar_t> roughness;  // r, 1 channel
  ShadeMap<scalar_t> energy;     // k, 1 channel, or absent
  scalar_t minimum_roughness;    // smaller ones count as this
  scalar_t diffuse_fresnel;      // 1, or 0: the diffuse part is (1 - m) c / pi, as in tools that leave out (1 - Fd)

  static constexpr scalar_t kDielectric = scalar_t(0.04);
  // n.v is not taken to be smaller in V: both cosines near 0 would make it infinite.
  static constexpr scalar_t kSmallestCosine = scalar_t(1e-4);

  struct Grads {
    ShadeGrad<scalar_t> albedo, metallic, roughness, energy;
  };

  template <class T>
  struct Surface {
    Vec3<T> albedo, f0;
    T metallic, roughness, energy;
    T alpha_squared;           // A
    MaskOf<T> seen;            // active and n.v > 0
    T cosine, bounded_cosine;  // n.v, and with its lower bound
    T view_root;               // sV
    Vec3<T> grad_albedo, grad_f0;
    T grad_metallic, grad_alpha_squared, grad_energy, grad_cosine;
  };

  template <class T>
  DR_HD Surface<T> load(const ShadePoint<T>& p, int64_t item, int64_t pixel, int count) const {
    const Vec3<T> zero{T(0), T(0), T(0)};
    Surface<T> s;
    s.albedo = select3(p.active, albedo.template load3<T>(item, pixel, count), zero);
    s.metallic = select(p.active, metallic.template load<T>(item, pixel, count), T(0));
    s.roughness = select(p.active, roughness.template load<T>(item, pixel, count), T(1));
    s.energy = energy.values == nullptr ? T(0) : select(p.active, energy.template load<T>(item, pixel, count), T(0));
    const T dielectric = T(kDielectric) * (T(1) - s.metallic);
    s.f0 = {dielectric + s.albedo.x * s.metallic, dielectric + s.albedo.y * s.metallic,
            dielectric + s.albedo.z * s.metallic};
    const T r = larger(s.roughness, T(minimum_roughness)), alpha = r * r;
    s.alpha_squared = alpha * alpha;
    s.cosine = dot(p.normal, p.view);
    s.seen = (s.cosine > T(0)) & p.active;
    s.bounded_cosine = larger(s.cosine, T(kSmallestCosine));
    s.view_root = root(s.bounded_cosine, s.alpha_squared);
    s.grad_albedo = s.grad_f0 = zero;
    s.grad_metallic = s.grad_alpha_squared = s.grad_energy = s.grad_cosine = T(0);
    return s;
  }

  // sqrt(x^2 (1 - A) + A) for a cosine x.
  template <class T>
  DR_HD static T root(T cosine, T alpha_squared) {
    return square_root(cosine * cosine * (T(1) - alpha_squared) + alpha_squared);
  }

  template <class T>
  DR_HD Vec3<T> ambient(const Surface<T>& s) const {
    return s.albedo;
  }

  template <class T>
  DR_HD void ambient_backward(Surface<T>& s, Vec3<T> w) const {
    s.grad_albedo = s.grad_albedo + w;
  }

  // The terms of one light; the same in forward and backward.
  template <class T>
  struct Terms {
    MaskOf<T> lit;
    T cosine;  // n.l, 0 where not lit
    Vec3<T> half;
    T inverse_sum;   // 1 / |v + l|
    T normal_half;   // n.h
    T tangent_half;  // |n x h|^2
    T view_half;     // v.h
    T inverse_t, distribution, light_root, visibility;
    T grazing4, grazing5;  // powers of 1 - v.h
    T diffuse;             // (1 - m) (1 - Fd) / pi
    T specular;            // s
    Vec3<T> fresnel;       // F G
  };

  template <class T>
  DR_HD Terms<T> terms(const ShadePoint<T>& p, const Surface<T>& s, Vec3<T> l, T cosine, MaskOf<T> lit) const {
    Terms<T> t;
    const T A = s.alpha_squared;
    t.lit = lit;
    t.cosine = select(lit, cosine, T(0));
    const Vec3<T> sum = p.view + l;
    const T squared = dot(sum, sum);
    t.inverse_sum = inverse_length(squared);
    t.half = t.inverse_sum * sum;
    t.view_half = T(0.5) * squared * t.inverse_sum;
    t.normal_half = dot(p.normal, t.half);
    const Vec3<T> sine = cross(p.normal, t.half);
    t.tangent_half = dot(sine, sine);
    // v + l = 0 has no half vector; it is never lit from the side that is seen.
    const T denominator = select(t.inverse_sum > T(0), A * t.normal_half * t.normal_half + t.tangent_half, T(1));
    t.inverse_t = T(1) / denominator;
    t.distribution = A * T(kInversePi<scalar_t>) * t.inverse_t * t.inverse_t;
    t.light_root = root(t.cosine, A);
    t.visibility = T(0.5) / (t.cosine * s.view_root + s.bounded_cosine * t.light_root);
    t.specular = t.distribution * t.visibility;
    const T grazing = T(1) - t.view_half, grazing2 = grazing * grazing;
    t.grazing4 = grazing2 * grazing2;
    t.grazing5 = t.grazing4 * grazing;
    const T reflected = T(kDielectric) + T(1 - kDielectric) * t.grazing5;
    t.diffuse = (T(1) - s.metallic) * (T(1) - T(diffuse_fresnel) * reflected) * T(kInversePi<scalar_t>);
    t.fresnel = {fresnel(s.f0.x, t.grazing5, s.energy), fresnel(s.f0.y, t.grazing5, s.energy),
                 fresnel(s.f0.z, t.grazing5, s.energy)};
    return t;
  }

  template <class T>
  DR_HD static T fresnel(T f0, T grazing5, T energy) {
    return (f0 + (T(1) - f0) * grazing5) * (T(1) + energy * f0);
  }

  template <class T>
  DR_HD static Vec3<T> reflected(const Surface<T>& s, const Terms<T>& t) {
    const T diffuse = t.cosine * t.diffuse, specular = t.cosine * t.specular;
    return diffuse * s.albedo + specular * t.fresnel;
  }

  template <class T>
  DR_HD Vec3<T> shade(const ShadePoint<T>& p, const Surface<T>& s, Vec3<T> to_light) const {
    const T cosine = dot(p.normal, to_light);
    const auto lit = (cosine > T(0)) & s.seen;
    if (!any(lit)) return {T(0), T(0), T(0)};
    return reflected(s, terms(p, s, to_light, cosine, lit));
  }

  // With w = g E, P = sum w_i c_i, Q = sum w_i F_i G_i and f_i = n.l (diffuse c_i + s F_i G_i):
  //   n.l  diffuse P + s Q, and through V;   c (direct)  w n.l diffuse;   s  n.l Q = g_s
  //   m (direct)  -n.l (1 - Fd) P / pi;      Fd  -n.l (1 - m) P / pi
  //   F0_i  w_i n.l s ((1 - x5) G_i + F_i k);   k  n.l s sum w_i F_i F0_i
  //   x5   0.96 g_Fd + n.l s sum w_i (1 - F0_i) G_i;   v.h  -5 (1 - v.h)^4 g_x5
  //   D  g_s V;   n.h  g_D dD/d(n.h),  dD/d(n.h) = -4 A (A - 1) n.h / (pi t^3)
  //   A  g_D (|n x h|^2 - A (n.h)^2) / (pi t^3) + g_V dV/dA
  //   V  g_s D;   dV/d(n.l) = -2 V^2 (sV + n.v n.l (1 - A) / sL), for n.v with sV and sL swapped,
  //               dV/dA = -V^2 (n.l (1 - (n.v)^2) / sV + n.v (1 - (n.l)^2) / sL)
  //   u = v + l   from n.h: g (n - h n.h) / |u|;  from v.h = |u| / 2: g h / 2.  v and l both get it.
  template <class T>
  DR_HD bool shade_backward(const ShadePoint<T>& p, Surface<T>& s, Vec3<T> to_light, Vec3<T> cotangent,
                            bool need_geometry, Vec3<T>* f, ShadePointGrad<T>* grad, Vec3<T>* grad_to_light) const {
    const T cosine = dot(p.normal, to_light);
    const auto lit = (cosine > T(0)) & s.seen;
    if (!any(lit)) return false;
    const Terms<T> t = terms(p, s, to_light, cosine, lit);
    const T A = s.alpha_squared, one_minus = T(1) - A, inverse_pi = T(kInversePi<scalar_t>);
    const Vec3<T> w = select3(lit, cotangent, {T(0), T(0), T(0)});
    const T diffuse_sum = dot(w, s.albedo), specular_sum = dot(w, t.fresnel);
    const T direct = t.cosine * t.diffuse, mirrored = t.cosine * t.specular;
    s.grad_albedo = s.grad_albedo + direct * w;
    const T grad_specular = t.cosine * specular_sum;
    const T grad_distribution = grad_specular * t.visibility, grad_visibility = grad_specular * t.distribution;

    // Fresnel
    const T reflected_share = T(kDielectric) + T(1 - kDielectric) * t.grazing5;
    const T without = t.cosine * diffuse_sum * inverse_pi;
    s.grad_metallic -= without * (T(1) - T(diffuse_fresnel) * reflected_share);
    const T remaining = T(1) - t.grazing5;
    const Vec3<T> gain{T(1) + s.energy * s.f0.x, T(1) + s.energy * s.f0.y, T(1) + s.energy * s.f0.z};
    const Vec3<T> m = mirrored * w;
    const Vec3<T> plain{s.f0.x + (T(1) - s.f0.x) * t.grazing5, s.f0.y + (T(1) - s.f0.y) * t.grazing5,
                        s.f0.z + (T(1) - s.f0.z) * t.grazing5};
    s.grad_f0 = s.grad_f0 + Vec3<T>{m.x * (remaining * gain.x + plain.x * s.energy),
                                    m.y * (remaining * gain.y + plain.y * s.energy),
                                    m.z * (remaining * gain.z + plain.z * s.energy)};
    s.grad_energy += dot(times(m, plain), s.f0);

    // Roughness
    const T squared_visibility = t.visibility * t.visibility;
    const T inverse_view_root = T(1) / s.view_root, inverse_light_root = T(1) / t.light_root;
    const T cubed = inverse_pi * t.inverse_t * t.inverse_t * t.inverse_t;
    s.grad_alpha_squared += grad_distribution * cubed * (t.tangent_half - A * t.normal_half * t.normal_half) -
                            grad_visibility * squared_visibility *
                                (t.cosine * (T(1) - s.bounded_cosine * s.bounded_cosine) * inverse_view_root +
                                 s.bounded_cosine * (T(1) - t.cosine * t.cosine) * inverse_light_root);
    if (!need_geometry) return true;
    *f = reflected(s, t);

    const T slope = T(-2) * grad_visibility * squared_visibility;
    const T grad_cosine = t.diffuse * diffuse_sum + t.specular * specular_sum +
                          slope * (s.view_root + s.bounded_cosine * t.cosine * one_minus * inverse_light_root);
    s.grad_cosine += slope * (t.light_root + t.cosine * s.bounded_cosine * one_minus * inverse_view_root);
    const T grad_grazing5 =
        dot(m, Vec3<T>{(T(1) - s.f0.x) * gain.x, (T(1) - s.f0.y) * gain.y, (T(1) - s.f0.z) * gain.z}) -
        T((1 - kDielectric) * diffuse_fresnel) * (T(1) - s.metallic) * without;
    const T grad_view_half = T(-5) * t.grazing4 * grad_grazing5;
    const T grad_normal_half = grad_distribution * T(4) * A * one_minus * t.normal_half * cubed;
    const T along = grad_normal_half * t.inverse_sum;
    const Vec3<T> grad_sum = along * p.normal + (T(0.5) * grad_view_half - along * t.normal_half) * t.half;
    *grad_to_light = select3(lit, grad_sum + grad_cosine * p.normal, {T(0), T(0), T(0)});
    const Vec3<T> zero{T(0), T(0), T(0)};
    grad->view = grad->view + select3(lit, grad_sum, zero);
    grad->normal = grad->normal + select3(lit, grad_normal_half * t.half + grad_cosine * to_light, zero);
    return true;
  }

  // F0 = 0.04 (1 - m) + c m;  A = r^4 above the smallest roughness, which itself lets the gradient through;  n.v.
  template <class T>
  DR_HD void store_backward(const ShadePoint<T>& p, const Surface<T>& s, ShadePointGrad<T>* grad, const Grads& grads,
                            const GradWriter<T>& write) const {
    write.map3(grads.albedo, s.grad_albedo + s.metallic * s.grad_f0);
    write.map(grads.metallic, s.grad_metallic + dot(s.grad_f0, s.albedo) - T(kDielectric) * sum_of(s.grad_f0));
    const T slope = T(4) * s.roughness * s.roughness * s.roughness;
    write.map(grads.roughness, select(s.roughness >= T(minimum_roughness), slope * s.grad_alpha_squared, T(0)));
    write.map(grads.energy, s.grad_energy);
    const T grad_cosine = select((s.cosine >= T(kSmallestCosine)) & s.seen, s.grad_cosine, T(0));
    grad->normal = grad->normal + grad_cosine * p.view;
    grad->view = grad->view + grad_cosine * p.normal;
  }

  template <class T>
  DR_HD void clear(const Grads& grads, const GradWriter<T>& write) const {
    write.clear(grads.albedo, 3);
    write.clear(grads.metallic, 1);
    write.clear(grads.roughness, 1);
    write.clear(grads.energy, 1);
  }
};

}  // namespace diffrender
