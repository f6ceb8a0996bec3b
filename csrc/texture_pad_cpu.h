// Small levels of a texture with one more column and row, so that every lookup reads a square of texels: behind the
// last texel of a row or column stands the one that the wrap puts there. On small levels many lookups cross that
// border, and telling them apart would cost more than the copy. Values and gradients are the same bits.
#pragma once

#include <cstring>
#include <optional>

#include "core/launch.h"
#include "core/tensor.h"
#include "texture_host.h"
#include "texture_plane.h"

namespace diffrender {

// `levels` with the base and the mips replaced by padded copies, each if it is small next to the number of lookups.
// storage: what holds them, for as long as the result is used. Cold: compiled for size, which takes less time.
template <class scalar_t>
[[gnu::cold]] TextureLevels<scalar_t> pad_small_levels(const TextureLevels<scalar_t>& levels, const TextureShape& shape,
                                                       TextureWrap wrap_u, TextureWrap wrap_v, int64_t lookups,
                                                       const Tensor& like, std::optional<Tensor>* storage) {
  TextureLevels<scalar_t> padded = levels;
  if (like.is_cuda() || wrap_u == TextureWrap::zero || wrap_v == TextureWrap::zero) return padded;
  const bool pad_base = shape.batch * shape.level_size(0) <= lookups / 8;
  const bool pad_mips = levels.last > 0 && shape.batch * shape.mip_texels() <= lookups / 2;
  if (!pad_base && !pad_mips) return padded;
  const int64_t channels = shape.channels;
  const auto size = [&](int32_t level) {
    return static_cast<int64_t>(levels.level_width(level) + 1) * (levels.level_height(level) + 1);
  };
  const int64_t base_size = pad_base ? size(0) * channels : 0;
  int64_t mip_texels = 0;
  for (int32_t level = 1; pad_mips && level <= levels.last; ++level) {
    padded.offset[level] = mip_texels;
    mip_texels += size(level);
  }
  const int64_t mips_size = mip_texels * channels;
  *storage = new_empty(like, {shape.batch * (base_size + mips_size)});
  scalar_t* const base = mutable_data<scalar_t>(**storage);
  scalar_t* const mips = base + shape.batch * base_size;
  if (pad_base) padded.base = base, padded.base_stride = shape.batch == 1 ? 0 : base_size, padded.pad = 1;
  if (pad_mips) padded.mips = mips, padded.mips_stride = shape.batch == 1 ? 0 : mips_size, padded.mip_pad = 1;
  for (int32_t level = pad_base ? 0 : 1; level <= (pad_mips ? levels.last : 0); ++level) {
    const int64_t width = levels.level_width(level), height = levels.level_height(level);
    parallel_ranges(shape.batch * (height + 1), 64, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t item = r / (height + 1), y = r % (height + 1);
        const int64_t from_y = y < height ? y : wrap_v == TextureWrap::repeat ? 0 : height - 1;
        const int64_t behind = wrap_u == TextureWrap::repeat ? 0 : width - 1;
        const scalar_t* const in = levels.texels(item, level) + from_y * width * channels;
        scalar_t* const out = const_cast<scalar_t*>(padded.texels(item, level)) + y * (width + 1) * channels;
        std::memcpy(out, in, sizeof(scalar_t) * width * channels);
        std::memcpy(out + width * channels, in + behind * channels, sizeof(scalar_t) * channels);
      }
    });
  }
  return padded;
}

}  // namespace diffrender
