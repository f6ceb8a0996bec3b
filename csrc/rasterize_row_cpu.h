// Fragments of a row of pixels on the CPU, from the triangle that each of them shows.
#pragma once

#include <algorithm>

#include "core/channel_lanes.h"
#include "rasterize.h"

namespace diffrender {

template <class scalar_t>
struct RowWriter {
  RasterMesh<scalar_t> mesh;
  Viewport<scalar_t> viewport;
  FragmentOutput<scalar_t> output;  // its triangle_id is not written here
  const scalar_t* column_centers;   // [W + kLanes]

  using Values = Lanes<scalar_t>;

  // `row` of the viewport; ids [W]; what is no triangle counts as background.
  void write_row(int64_t item, int32_t row, const int32_t* ids) const {
    const int64_t pixel = (item * viewport.height + row) * viewport.width;
    for (int32_t c = 0; c < viewport.width;) {
      const int32_t triangle = ids[c];
      const int32_t end = static_cast<int32_t>(run_end(ids, c, viewport.width));
      int32_t index[3];
      if (triangle < 0 || triangle >= mesh.triangle_count || !mesh.indices(triangle, index)) {
        write_background(pixel + c, end - c);
      } else {
        const Vec4<scalar_t> v[3] = {mesh.vertex(item, index[0]), mesh.vertex(item, index[1]),
                                     mesh.vertex(item, index[2])};
        write_run(pixel, c, end, row, v);
      }
      c = end;
    }
  }

  void write_background(int64_t pixel, int32_t count) const {
    std::fill_n(output.barycentrics + 2 * pixel, 2 * static_cast<int64_t>(count), scalar_t(0));
    std::fill_n(output.depth + pixel, count, scalar_t(1));
    if (output.derivatives != nullptr) {
      std::fill_n(output.derivatives + 4 * pixel, 4 * static_cast<int64_t>(count), scalar_t(0));
    }
  }

  // FragmentOutput::write() for a run of pixels of one triangle: the same operations in the same order. Blocks may
  // reach beyond the run: what they write there belongs to later runs of the same row, which overwrite it.
  void write_run(int64_t pixel, int32_t begin, int32_t end, int32_t row, const Vec4<scalar_t> v[3]) const {
    scalar_t* const barycentrics = output.barycentrics + 2 * pixel;
    scalar_t* const depth = output.depth + pixel;
    int32_t c = begin;
    const scalar_t fy = viewport.center_y(row);
    const scalar_t q0y = v[0].y - fy * v[0].w, q1y = v[1].y - fy * v[1].w, q2y = v[2].y - fy * v[2].w;
    const bool vectors = output.derivatives == nullptr || std::is_same_v<scalar_t, float>;
    for (; vectors && c < end && c + kLanes <= viewport.width; c += kLanes) {
      const Values fx = load_lanes<Values>(column_centers + c);
      const Values q0x = v[0].x - fx * v[0].w, q1x = v[1].x - fx * v[1].w, q2x = v[2].x - fx * v[2].w;
      const Values a0 = q1x * q2y - q1y * q2x, a1 = q2x * q0y - q2y * q0x, a2 = q0x * q1y - q0y * q1x;
      const Values inverse = reciprocal_or_zero_lanes<scalar_t>(a0 + a1 + a2);
      const Values z = a0 * v[0].z + a1 * v[1].z + a2 * v[2].z, w = a0 * v[0].w + a1 * v[1].w + a2 * v[2].w;
      store_lanes(depth + c, z * reciprocal_or_zero_lanes<scalar_t>(w));
      const Values b0 = a0 * inverse, b1 = a1 * inverse;
      store_lanes(barycentrics + 2 * c, interleave_low(b0, b1));
      store_lanes(barycentrics + 2 * c + kLanes, interleave_high(b0, b1));
      if constexpr (std::is_same_v<scalar_t, float>) {
        if (output.derivatives == nullptr) continue;
        const scalar_t n0 = v[2].w * q1y - v[1].w * q2y, n1 = v[0].w * q2y - v[2].w * q0y;
        const scalar_t n2 = v[1].w * q0y - v[0].w * q1y, total_n = n0 + n1 + n2;
        const Values m0 = v[1].w * q2x - v[2].w * q1x, m1 = v[2].w * q0x - v[0].w * q2x;
        const Values m2 = v[0].w * q1x - v[1].w * q0x, total_m = m0 + m1 + m2;
        const Values steps[4] = {
            viewport.step_x * (n0 - b0 * total_n) * inverse, -viewport.step_y * (m0 - b0 * total_m) * inverse,
            viewport.step_x * (n1 - b1 * total_n) * inverse, -viewport.step_y * (m1 - b1 * total_m) * inverse};
        store_channels<4>(output.derivatives + 4 * (pixel + c), steps);
      }
    }
    for (; c < end; ++c) output.write(pixel + c, v, viewport, c, row);
  }
};

}  // namespace diffrender
