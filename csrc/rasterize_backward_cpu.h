// RasterizeBackward on the CPU, for gradients of barycentrics and depth (those of the derivatives take the portable
// body): the same sums over blocks of kLanes pixels.
//
// Within a row all q_iy are constant and q_ix = q_ix(c) - x w_i, x the distance from the run's first centre c. Hence a
// run of pixels of one triangle needs only the sums A_i = sum grad_a_i and X_i = sum grad_a_i x (and for the depth
// Z_i = sum g_d a_i / P and D_i = sum d g_d a_i / P); the chain rule to the corners is applied once per run. Runs of
// one or two pixels, which is what triangles below pixel size give, are put side by side instead, one pixel per lane.
#pragma once

#include "core/channel_lanes.h"
#include "rasterize.h"

namespace diffrender {

template <class scalar_t>
struct RasterizeBackwardRows {
  RasterizeBackward<scalar_t> kernel;

  using Values = Lanes<scalar_t>;
  using Triangle = typename RasterizeBackward<scalar_t>::Triangle;
  static constexpr int kShortRun = 2;

  void operator()(int64_t begin, int64_t end, const Sink<scalar_t>& sink) const {
    const Viewport<scalar_t>& viewport = kernel.viewport;
    const Narrow narrow{kernel.least_width * viewport.step_x, kernel.least_width * viewport.step_y};
    Worker worker{kernel, sink.values, sink.offset, narrow};
    const int64_t width = viewport.width;
    while (begin < end) {
      const int64_t row_end = std::min(end, (begin / width + 1) * width);
      worker.row(begin, row_end);
      begin = row_end;
    }
    worker.flush_pixels();
  }

  // Sums over pixels of one triangle in one row, lane by lane.
  struct Sums {
    Values a[3], x[3], z[3], d[3];
  };

  // Corners as lanes: one triangle in all of them, or one in each.
  struct LaneCorners {
    Values x[3], z[3], w[3], q_y[3];
  };

  // RasterizeBackward::share() lane by lane.
  struct Narrow {
    scalar_t x, y;  // least_width times the NDC per pixel

    DR_HD Values share(const LaneCorners& t, const Values a[3], const Values& inverse, const Values q_x[3]) const {
      Values n[3], m[3];
      for (int i = 0; i < 3; ++i) {
        const int j = (i + 1) % 3, k = (i + 2) % 3;
        n[i] = t.w[k] * t.q_y[j] - t.w[j] * t.q_y[k];
        m[i] = t.w[j] * q_x[k] - t.w[k] * q_x[j];
      }
      const Values total_n = n[0] + n[1] + n[2], total_m = m[0] + m[1] + m[2];
      const Values scale_x = x * inverse, scale_y = y * inverse, one = scalar_t(1) - Values{};
      Values steepest{}, weight = one;
      for (int i = 0; i < 3; ++i) {
        const Values b = a[i] * inverse;
        const Values slope_x = scale_x * (n[i] - b * total_n), slope_y = scale_y * (m[i] - b * total_m);
        const Values squared = slope_x * slope_x + slope_y * slope_y;
        steepest = squared > steepest ? squared : steepest;
        weight = b * b > weight ? b * b : weight;
      }
      steepest *= weight;
      // Most blocks have no narrow triangle.
      int narrow = 0;
      const LaneMask<scalar_t> is_narrow = steepest > one;
      for (int l = 0; l < kLanes; ++l) narrow |= static_cast<int>(is_narrow[l]);
      if (narrow == 0) return one;
      Values result = one;
      for (int l = 0; l < kLanes; ++l) result[l] = is_narrow[l] ? 1 / std::sqrt(steepest[l]) : scalar_t(1);
      return result;
    }
  };

  struct Worker {
    const RasterizeBackward<scalar_t>& kernel;
    scalar_t* const values;  // the sink's: on the CPU its mode is always `direct`
    const int64_t value_offset;
    const Narrow narrow;
    // Pixels that wait for a full block.
    int count = 0;
    scalar_t x[3][kLanes] = {}, y[3][kLanes] = {}, z[3][kLanes] = {}, w[3][kLanes] = {};
    scalar_t fx[kLanes] = {}, fy[kLanes] = {}, g0[kLanes] = {}, g1[kLanes] = {}, gd[kLanes] = {};
    int64_t base[3][kLanes] = {};

    DR_HD void add(int64_t index, scalar_t value) const { values[index - value_offset] += value; }

    void row(int64_t begin, int64_t end) {
      // Divisions once per row: a run may be a single pixel.
      const int32_t* const ids = kernel.triangle_id;
      const int64_t width = kernel.viewport.width, image_row = begin / width;
      const int64_t item = image_row / kernel.viewport.height;
      const scalar_t center_y = kernel.viewport.center_y(static_cast<int32_t>(image_row % kernel.viewport.height));
      for (int64_t i = begin; i < end;) {
        const int32_t triangle = ids[i];
        const int64_t stop = run_end(ids, i, end);
        if (triangle >= 0) {
          const Triangle t = kernel.load(triangle, item);
          const int32_t column = static_cast<int32_t>(i - image_row * width);
          if (t.valid && stop - i > kShortRun) run(t, i, stop, column, center_y);
          for (int64_t p = i; t.valid && stop - i <= kShortRun && p < stop; ++p) {
            add_pixel(t, p, column + static_cast<int32_t>(p - i), center_y);
          }
        }
        i = stop;
      }
    }

    // grad_a of a block from its gradients, and what the depth adds.
    DR_HD void contribute(const LaneCorners& t, const Values& offset, Values g_0, Values g_1, Values g_d,
                          bool has_depth, Values grad_a[3], Values grad_z[3], Values grad_d[3], Values q_x[3]) const {
      for (int i = 0; i < 3; ++i) q_x[i] = t.x[i] - offset * t.w[i];
      const Values a[3] = {q_x[1] * t.q_y[2] - t.q_y[1] * q_x[2], q_x[2] * t.q_y[0] - t.q_y[2] * q_x[0],
                           q_x[0] * t.q_y[1] - t.q_y[0] * q_x[1]};
      const Values inverse = reciprocal_or_zero_lanes<scalar_t>(a[0] + a[1] + a[2]);
      if (narrow.x > 0) {
        const Values part = narrow.share(t, a, inverse, q_x);
        g_0 *= part;
        g_1 *= part;
        g_d *= part;
      }
      const Values s = (g_0 * a[0] + g_1 * a[1]) * inverse;
      grad_a[0] = (g_0 - s) * inverse;
      grad_a[1] = (g_1 - s) * inverse;
      grad_a[2] = -s * inverse;
      if (!has_depth) return;
      const Values inverse_w = reciprocal_or_zero_lanes<scalar_t>(a[0] * t.w[0] + a[1] * t.w[1] + a[2] * t.w[2]);
      const Values depth = (a[0] * t.z[0] + a[1] * t.z[1] + a[2] * t.z[2]) * inverse_w;
      const Values scaled = g_d * inverse_w;
      for (int i = 0; i < 3; ++i) {
        grad_a[i] += scaled * (t.z[i] - depth * t.w[i]);
        grad_z[i] = scaled * a[i];
        grad_d[i] = depth * grad_z[i];
      }
    }

    void run(const Triangle& t, int64_t begin, int64_t end, int32_t column, scalar_t center_y) {
      const scalar_t first_x = kernel.viewport.center_x(column);
      scalar_t start_x[3], start_y[3];
      LaneCorners c;
      for (int i = 0; i < 3; ++i) {
        start_x[i] = t.v[i].x - first_x * t.v[i].w;
        start_y[i] = t.v[i].y - center_y * t.v[i].w;
        c.x[i] = start_x[i] - Values{};
        c.q_y[i] = start_y[i] - Values{};
        c.z[i] = t.v[i].z - Values{};
        c.w[i] = t.v[i].w - Values{};
      }
      const bool has_depth = kernel.grad_depth != nullptr;
      Sums sums{};
      const Values lane = __builtin_convertvector(kLaneIndex, Values);
      for (int64_t p = begin; p < end; p += kLanes) {
        Values g_0{}, g_1{}, g_d{};
        const int64_t left = end - p;
        load_gradients(p, left, &g_0, &g_1, &g_d);
        const Values offset = (lane + static_cast<scalar_t>(p - begin)) * kernel.viewport.step_x;
        Values grad_a[3], grad_z[3], grad_d[3], q_x[3];
        contribute(c, offset, g_0, g_1, g_d, has_depth, grad_a, grad_z, grad_d, q_x);
        const LaneMask<scalar_t> inside = lane < static_cast<scalar_t>(left);
        for (int i = 0; i < 3; ++i) {
          const Values value = inside ? grad_a[i] : Values{};
          sums.a[i] += value;
          sums.x[i] += value * offset;
          if (!has_depth) continue;
          sums.z[i] += inside ? grad_z[i] : Values{};
          sums.d[i] += inside ? grad_d[i] : Values{};
        }
      }
      scalar_t a[3], x_sum[3], z_sum[3] = {}, d_sum[3] = {};
      sum_groups(sums.a, sums.x, a, x_sum);
      if (has_depth) sum_groups(sums.z, sums.d, z_sum, d_sum);
      scalar_t grad_x[3] = {}, grad_y[3] = {}, moment[3] = {};
      for (int i = 0; i < 3; ++i) {
        const int j = (i + 1) % 3, k = (i + 2) % 3;
        grad_x[j] += a[i] * start_y[k];
        grad_x[k] -= a[i] * start_y[j];
        moment[j] += x_sum[i] * start_y[k];  // sum of x grad_q_x
        moment[k] -= x_sum[i] * start_y[j];
        grad_y[j] -= a[i] * start_x[k] - x_sum[i] * t.v[k].w;
        grad_y[k] += a[i] * start_x[j] - x_sum[i] * t.v[j].w;
      }
      for (int i = 0; i < 3; ++i) {
        add(t.base[i] + 0, grad_x[i]);
        add(t.base[i] + 1, grad_y[i]);
        if (has_depth) add(t.base[i] + 2, z_sum[i]);
        add(t.base[i] + 3, -(first_x * grad_x[i] + moment[i] + center_y * grad_y[i]) - d_sum[i]);
      }
    }

    // Lanes beyond `left` are zero.
    DR_HD void load_gradients(int64_t pixel, int64_t left, Values* g_0, Values* g_1, Values* g_d) const {
      const scalar_t* const g = kernel.grad_barycentrics;
      const scalar_t* const d = kernel.grad_depth;
      if (left >= kLanes) {
        if (g != nullptr) {
          const Values low = load_lanes<Values>(g + 2 * pixel), high = load_lanes<Values>(g + 2 * pixel + kLanes);
          *g_0 = even_lanes(low, high);
          *g_1 = odd_lanes(low, high);
        }
        if (d != nullptr) *g_d = load_lanes<Values>(d + pixel);
        return;
      }
      scalar_t padded[3][kLanes] = {};
      for (int64_t l = 0; l < left; ++l) {
        if (g != nullptr) {
          padded[0][l] = g[2 * (pixel + l)];
          padded[1][l] = g[2 * (pixel + l) + 1];
        }
        if (d != nullptr) padded[2][l] = d[pixel + l];
      }
      *g_0 = load_lanes<Values>(padded[0]);
      *g_1 = load_lanes<Values>(padded[1]);
      *g_d = load_lanes<Values>(padded[2]);
    }

    // Sums over the lanes of two groups of three.
    DR_HD static void sum_groups(const Values first[3], const Values second[3], scalar_t out_first[3],
                                 scalar_t out_second[3]) {
      if constexpr (std::is_same_v<scalar_t, float>) {
        const Values all[kLanes] = {first[0], first[1], first[2], Values{}, second[0], second[1], second[2], Values{}};
        const Values totals = lane_sums(all);
        for (int i = 0; i < 3; ++i) {
          out_first[i] = totals[i];
          out_second[i] = totals[4 + i];
        }
      } else {
        for (int i = 0; i < 3; ++i) {
          out_first[i] = lane_sum(first[i]);
          out_second[i] = lane_sum(second[i]);
        }
      }
    }

    void add_pixel(const Triangle& t, int64_t pixel, int32_t column, scalar_t center_y) {
      for (int i = 0; i < 3; ++i) {
        x[i][count] = t.v[i].x;
        y[i][count] = t.v[i].y;
        z[i][count] = t.v[i].z;
        w[i][count] = t.v[i].w;
        base[i][count] = t.base[i];
      }
      fx[count] = kernel.viewport.center_x(column);
      fy[count] = center_y;
      g0[count] = kernel.grad_barycentrics != nullptr ? kernel.grad_barycentrics[2 * pixel] : scalar_t(0);
      g1[count] = kernel.grad_barycentrics != nullptr ? kernel.grad_barycentrics[2 * pixel + 1] : scalar_t(0);
      gd[count] = kernel.grad_depth != nullptr ? kernel.grad_depth[pixel] : scalar_t(0);
      if (++count == kLanes) flush_pixels();
    }

    [[gnu::noinline]] void flush_pixels() {
      if (count == 0) return;
      LaneCorners c;
      const Values center_x = load_lanes<Values>(fx), center_y = load_lanes<Values>(fy);
      for (int i = 0; i < 3; ++i) {
        c.x[i] = load_lanes<Values>(x[i]);
        c.z[i] = load_lanes<Values>(z[i]);
        c.w[i] = load_lanes<Values>(w[i]);
        c.q_y[i] = load_lanes<Values>(y[i]) - center_y * c.w[i];
      }
      const bool has_depth = kernel.grad_depth != nullptr;
      Values grad_a[3], grad_z[3] = {}, grad_d[3] = {}, q_x[3];
      contribute(c, center_x, load_lanes<Values>(g0), load_lanes<Values>(g1), load_lanes<Values>(gd), has_depth, grad_a,
                 grad_z, grad_d, q_x);
      scalar_t out[3][4][kLanes];
      for (int j = 0; j < 3; ++j) {
        // Corner j is the first factor of a_i and the second of a_k.
        const int k = (j + 1) % 3, i = (j + 2) % 3;
        const Values grad_x = grad_a[i] * c.q_y[k] - grad_a[k] * c.q_y[i];
        const Values grad_y = grad_a[k] * q_x[i] - grad_a[i] * q_x[k];
        store_lanes(out[j][0], grad_x);
        store_lanes(out[j][1], grad_y);
        store_lanes(out[j][2], grad_z[j]);
        store_lanes(out[j][3], -(center_x * grad_x + center_y * grad_y) - grad_d[j]);
      }
      for (int l = 0; l < count; ++l) {
        for (int j = 0; j < 3; ++j) {
          for (int v = 0; v < 4; ++v) add(base[j][l] + v, out[j][v][l]);
        }
      }
      count = 0;
    }
  };
};

}  // namespace diffrender
