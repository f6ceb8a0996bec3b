// Gradient of a texture on the CPU: what texture_host.h hands to texture_scatter_cpu.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "texture.h"

namespace diffrender {

// Calls the visitor for all blocks of lookups [begin, end), in order; called from several threads.
template <class scalar_t>
using ScatterSource = std::function<void(int64_t begin, int64_t end, const ShareVisitor<scalar_t>&)>;

// All levels that take a gradient, cut into tiles of 2^shift x 2^shift texels.
struct TiledLevels {
  struct Level {
    void* grad;           // of item 0, in the type of the gradient; null where nobody needs it
    int64_t item_stride;  // elements
    int32_t width, rows;  // texels; rows of all faces
    int32_t tiles_per_row, first_tile;
    bool in_squares;    // few texels: without tiles, sums stand in squares (texture_scatter_cpu.cpp)
    int64_t first_sum;  // without tiles: of all levels
  };
  std::vector<Level> levels;
  int64_t texel_count = 0, sum_count = 0;
  int32_t shift, tile_count = 0, channels;
  // Where tap 0 of a lookup tells the other three, though they be no square: what follows the last texel of a row or
  // column, the first one or the last again.
  bool first_tap_tells = false, repeats_u = false, repeats_v = false;

  explicit TiledLevels(int64_t channel_count);
  void add(void* grad, int64_t item_stride, int32_t width, int32_t rows);
};

// Writes every gradient of `tiled`. `targets` = number of gradients: the batch size, or 1 where the batch shares them.
template <class scalar_t>
void scatter_texels(const TiledLevels& tiled, const scalar_t* grad_values, int64_t targets, int64_t lookups,
                    int64_t entries_per_lookup, const ScatterSource<scalar_t>& source);

}  // namespace diffrender
