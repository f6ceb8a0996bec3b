// Rasterization: per-pixel results of a visible triangle, and their derivative.
#pragma once

#include "core/scatter.h"
#include "rasterize_geometry.h"

namespace diffrender {

// How the edge functions change over the picture: n_i = d(a_i)/d(fx) = w_k q_jy - w_j q_ky and m_i = d(a_i)/d(fy) = w_j
// q_kx - w_k q_jx, and their sums N and M.
template <class scalar_t>
struct EdgeSlopes {
  scalar_t n[3], m[3], total_n, total_m;

  DR_HD static EdgeSlopes of(const Vec4<scalar_t> v[3], const Vec2<scalar_t> q[3]) {
    EdgeSlopes s;
    for (int i = 0; i < 3; ++i) {
      const int j = (i + 1) % 3, k = (i + 2) % 3;
      s.n[i] = v[k].w * q[j].y - v[j].w * q[k].y;
      s.m[i] = v[j].w * q[k].x - v[k].w * q[j].x;
    }
    s.total_n = s.n[0] + s.n[1] + s.n[2];
    s.total_m = s.m[0] + s.m[1] + s.m[2];
    return s;
  }
};

template <class scalar_t>
struct FragmentOutput {
  int32_t* triangle_id;    // [B, H, W], -1 = background
  scalar_t* barycentrics;  // [B, H, W, 2]
  scalar_t* depth;         // [B, H, W]
  scalar_t* derivatives;   // [B, H, W, 4] or null

  DR_HD void write_background(int64_t pixel) const {
    triangle_id[pixel] = -1;
    write_values_of_background(pixel);
  }

  DR_HD void write_values_of_background(int64_t pixel) const {
    barycentrics[2 * pixel] = 0;
    barycentrics[2 * pixel + 1] = 0;
    depth[pixel] = 1;
    if (derivatives == nullptr) return;
    for (int i = 0; i < 4; ++i) derivatives[4 * pixel + i] = 0;
  }

  // d(b_k)/dx = (2/W) (n_k - b_k N) / S and d(b_k)/dy = -(2/H) (m_k - b_k M) / S (y down), see EdgeSlopes.
  DR_HD void write(int64_t pixel, const Vec4<scalar_t> v[3], const Viewport<scalar_t>& viewport, int32_t column,
                   int32_t row) const {
    const PixelFrame<scalar_t> f = pixel_frame(v, viewport.center_x(column), viewport.center_y(row));
    const scalar_t inverse = reciprocal_or_zero(f.a[0] + f.a[1] + f.a[2]);
    const scalar_t b0 = f.a[0] * inverse, b1 = f.a[1] * inverse;
    barycentrics[2 * pixel] = b0;
    barycentrics[2 * pixel + 1] = b1;
    depth[pixel] = depth_at(v, f.a);
    if (derivatives == nullptr) return;
    const auto s = EdgeSlopes<scalar_t>::of(v, f.q);
    derivatives[4 * pixel + 0] = viewport.step_x * (s.n[0] - b0 * s.total_n) * inverse;
    derivatives[4 * pixel + 1] = -viewport.step_y * (s.m[0] - b0 * s.total_m) * inverse;
    derivatives[4 * pixel + 2] = viewport.step_x * (s.n[1] - b1 * s.total_n) * inverse;
    derivatives[4 * pixel + 3] = -viewport.step_y * (s.m[1] - b1 * s.total_m) * inverse;
  }
};

// Gradient of one pixel's barycentrics, depth and derivatives to the clip positions of its triangle.
//
// With g_0, g_1 on the barycentrics, g_d on the depth d = Z / P (Z = sum a_i z_i, P = sum a_i w_i), and h_kx, h_ky on
// the derivatives D_kx = c_x (n_k - b_k N) / S, D_ky = c_y (m_k - b_k M) / S, c_x = 2/W, c_y = -2/H:
//   derivatives   grad_n_i = c_x (h_ix - sum_k h_kx b_k) / S   (h_2 = 0),   grad_m_i likewise
//                 g_k     -= (c_x h_kx N + c_y h_ky M) / S
//                 grad_S  -= sum_k (h_kx D_kx + h_ky D_ky) / S
//   barycentrics  s = g_0 b_0 + g_1 b_1;   grad_a_i = (g_i - s) / S + grad_S   (g_2 = 0)
//   depth         grad_a_i += g_d (z_i - d w_i) / P;   grad_z_i = g_d a_i / P;   grad_w_i = -d g_d a_i / P
//   n, m          bilinear in w and q: see the loop
//   a             grad_q_j += grad_a_i (q_ky, -q_kx);   grad_q_k += grad_a_i (-q_jy, q_jx)
//   q             grad_x_i = grad_q_ix;  grad_y_i = grad_q_iy;  grad_w_i -= fx grad_q_ix + fy grad_q_iy
// An underflowed S or P has reciprocal zero, hence the zero gradient of the zero that the forward pass wrote.
//
// least_width > 0 takes something off the gradient of narrow triangles. A centre falls into a triangle of width v
// pixels with a probability of about v, and its gradient there is about 1 / v: right on the average over all places of
// the centre, but of a variance of about 1 / v, so that one triangle seen on edge may outweigh the whole picture. Of
// the estimates s X of a mean E X, X being 1 / v with probability v and else 0, s = (E X)^2 / E X^2 = v is the nearest
// one; where n centres see the same triangle their sum takes about s = min(1, n v). So all of a pixel's gradient is
// multiplied by min(1, v / least_width), with 1 / v the steepest |grad b_i| on the screen at the centre. Coverage is
// decided on rounded corners: what is narrower than their grid may be seen from outside, where weights grow beyond 1
// like 1 / v, and with them the motion db_i = -b_j grad b_i . dp_j. Hence 1 / v is taken times the largest |b_j| there.
template <class scalar_t>
struct RasterizeBackward {
  static constexpr int kValues = 12;  // x, y, z, w of the three corners

  RasterMesh<scalar_t> mesh;
  Viewport<scalar_t> viewport;
  const int32_t* triangle_id;         // [B, H, W]
  const scalar_t* grad_barycentrics;  // [B, H, W, 2] or null
  const scalar_t* grad_depth;         // [B, H, W] or null
  const scalar_t* grad_derivatives;   // [B, H, W, 4] or null
  scalar_t least_width = 0;           // pixels

  struct Triangle {
    int64_t base[3];  // element of the gradient that holds x of each corner
    Vec4<scalar_t> v[3];
    bool valid;
  };

  DR_HD int32_t group(int64_t pixel) const { return triangle_id[pixel]; }

  DR_HD int64_t pixels_per_item() const { return static_cast<int64_t>(viewport.width) * viewport.height; }

  DR_HD Triangle load(int32_t triangle, int64_t item) const {
    Triangle t;
    int32_t index[3];
    t.valid = triangle >= 0 && triangle < mesh.triangle_count && mesh.indices(triangle, index);
    if (!t.valid) return t;
    for (int i = 0; i < 3; ++i) {
      t.base[i] = item * mesh.item_stride + static_cast<int64_t>(index[i]) * 4;
      t.v[i] = mesh.vertex(item, index[i]);
    }
    return t;
  }

  DR_HD void contribute(const Triangle& t, int64_t pixel, scalar_t sum[kValues]) const {
    const int64_t within = pixel % pixels_per_item();
    const int32_t row = static_cast<int32_t>(within / viewport.width);
    const int32_t column = static_cast<int32_t>(within - static_cast<int64_t>(row) * viewport.width);
    contribute_at(t, pixel, viewport.center_x(column), viewport.center_y(row), sum);
  }

  // min(1, v / least_width), from the slopes of its barycentrics: FragmentOutput::write().
  DR_HD scalar_t share(const Triangle& t, const PixelFrame<scalar_t>& f, scalar_t inverse) const {
    if (!(least_width > 0)) return 1;
    const auto s = EdgeSlopes<scalar_t>::of(t.v, f.q);
    scalar_t steepest = 0, weight = 1;
    for (int i = 0; i < 3; ++i) {
      const scalar_t b = f.a[i] * inverse;
      const scalar_t x = least_width * viewport.step_x * inverse * (s.n[i] - b * s.total_n);
      const scalar_t y = least_width * viewport.step_y * inverse * (s.m[i] - b * s.total_m);
      const scalar_t squared = x * x + y * y;
      steepest = squared > steepest ? squared : steepest;
      weight = b * b > weight ? b * b : weight;
    }
    return steepest * weight > 1 ? 1 / std::sqrt(steepest * weight) : scalar_t(1);
  }

  DR_HD void contribute_at(const Triangle& t, int64_t pixel, scalar_t fx, scalar_t fy, scalar_t sum[kValues]) const {
    const PixelFrame<scalar_t> f = pixel_frame(t.v, fx, fy);
    const scalar_t inverse = reciprocal_or_zero(f.a[0] + f.a[1] + f.a[2]);
    const scalar_t b[3] = {f.a[0] * inverse, f.a[1] * inverse, 0};
    const scalar_t part = share(t, f, inverse);
    scalar_t g[3] = {0, 0, 0}, grad_a[3] = {0, 0, 0}, grad_w[3] = {0, 0, 0}, grad_z[3] = {0, 0, 0};
    Vec2<scalar_t> grad_q[3] = {{0, 0}, {0, 0}, {0, 0}};
    if (grad_barycentrics != nullptr) {
      g[0] = part * grad_barycentrics[2 * pixel];
      g[1] = part * grad_barycentrics[2 * pixel + 1];
    }
    if (grad_derivatives != nullptr) {
      const scalar_t* const h = grad_derivatives + 4 * pixel;
      const scalar_t scale_x = part * viewport.step_x * inverse, scale_y = -part * viewport.step_y * inverse;
      const scalar_t hx[3] = {h[0] * scale_x, h[2] * scale_x, 0}, hy[3] = {h[1] * scale_y, h[3] * scale_y, 0};
      const auto s = EdgeSlopes<scalar_t>::of(t.v, f.q);
      const scalar_t sx = hx[0] * b[0] + hx[1] * b[1], sy = hy[0] * b[0] + hy[1] * b[1];
      scalar_t grad_s = 0;
      for (int k = 0; k < 2; ++k) {
        grad_s -= (hx[k] * (s.n[k] - b[k] * s.total_n) + hy[k] * (s.m[k] - b[k] * s.total_m)) * inverse;
        g[k] -= hx[k] * s.total_n + hy[k] * s.total_m;
      }
      for (int i = 0; i < 3; ++i) {
        const int j = (i + 1) % 3, k = (i + 2) % 3;
        const scalar_t grad_n = hx[i] - sx, grad_m = hy[i] - sy;
        grad_a[i] += grad_s;
        grad_w[k] += grad_n * f.q[j].y - grad_m * f.q[j].x;
        grad_w[j] += grad_m * f.q[k].x - grad_n * f.q[k].y;
        grad_q[j].x -= grad_m * t.v[k].w;
        grad_q[j].y += grad_n * t.v[k].w;
        grad_q[k].x += grad_m * t.v[j].w;
        grad_q[k].y -= grad_n * t.v[j].w;
      }
    }
    const scalar_t s = g[0] * b[0] + g[1] * b[1];
    for (int i = 0; i < 3; ++i) grad_a[i] += (g[i] - s) * inverse;
    if (grad_depth != nullptr) {
      const scalar_t inverse_w = reciprocal_or_zero(f.a[0] * t.v[0].w + f.a[1] * t.v[1].w + f.a[2] * t.v[2].w);
      const scalar_t depth = (f.a[0] * t.v[0].z + f.a[1] * t.v[1].z + f.a[2] * t.v[2].z) * inverse_w;
      const scalar_t scaled = part * grad_depth[pixel] * inverse_w;
      for (int i = 0; i < 3; ++i) {
        grad_a[i] += scaled * (t.v[i].z - depth * t.v[i].w);
        grad_z[i] = scaled * f.a[i];
        grad_w[i] -= depth * scaled * f.a[i];
      }
    }
    for (int i = 0; i < 3; ++i) {
      const int j = (i + 1) % 3, k = (i + 2) % 3;
      cross_backward(f.q[j], f.q[k], grad_a[i], &grad_q[j], &grad_q[k]);
    }
    for (int i = 0; i < 3; ++i) {
      sum[4 * i + 0] += grad_q[i].x;
      sum[4 * i + 1] += grad_q[i].y;
      sum[4 * i + 2] += grad_z[i];
      sum[4 * i + 3] += grad_w[i] - (fx * grad_q[i].x + fy * grad_q[i].y);
    }
  }

  DR_HD void flush(const Triangle& t, const scalar_t sum[kValues], const Sink<scalar_t>& sink) const {
    for (int i = 0; i < 3; ++i) {
      for (int c = 0; c < 4; ++c) accumulate(sink, t.base[i] + c, sum[4 * i + c]);
    }
  }

  DR_HD void operator()(int64_t begin, int64_t end, const Sink<scalar_t>& sink) const {
    scatter_runs(*this, begin, end, sink);
  }
};

}  // namespace diffrender
