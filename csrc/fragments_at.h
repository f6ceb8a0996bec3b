// Fragments of pixels whose triangles are known: what rasterize wrote beside the ids, without looking for them again.
#pragma once

#include "rasterize.h"

namespace diffrender {

template <class scalar_t>
struct FragmentsAt {
  RasterMesh<scalar_t> mesh;
  Viewport<scalar_t> viewport;      // a band of rows of the image
  const int32_t* triangle_id;       // [B, rows, W]
  FragmentOutput<scalar_t> output;  // its triangle_id is not written

  DR_HD void operator()(int64_t begin, int64_t end) const {
    const int64_t per_item = static_cast<int64_t>(viewport.width) * viewport.height;
    for_each_index(begin, end, per_item, [&](int64_t pixel, int64_t item) {
      const int32_t triangle = triangle_id[pixel];
      int32_t index[3];
      if (triangle < 0 || triangle >= mesh.triangle_count || !mesh.indices(triangle, index)) {
        output.write_values_of_background(pixel);
        return;
      }
      const Vec4<scalar_t> v[3] = {mesh.vertex(item, index[0]), mesh.vertex(item, index[1]),
                                   mesh.vertex(item, index[2])};
      const int64_t within = pixel - item * per_item;
      const int32_t row = static_cast<int32_t>(within / viewport.width);
      output.write(pixel, v, viewport, static_cast<int32_t>(within - static_cast<int64_t>(row) * viewport.width), row);
    });
  }
};

}  // namespace diffrender
