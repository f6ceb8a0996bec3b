// What the host functions of planes and cubes share: launches of one sampler.
#pragma once

#include "core/launch.h"
#include "core/tensor.h"
#include "texture_backward.h"
#include "texture_forward.h"
#include "texture_scatter_cpu.h"

namespace diffrender {

// Sizes of one call. `faces` lie below each other.
struct TextureShape {
  int64_t batch, faces, height, width, channels, last;  // batch: of the texture

  // Texels of a level, all faces.
  int64_t level_size(int64_t level) const {
    return faces * std::max<int64_t>(height >> level, 1) * std::max<int64_t>(width >> level, 1);
  }
  int64_t mip_texels() const {
    int64_t sum = 0;
    for (int64_t level = 1; level <= last; ++level) sum += level_size(level);
    return sum;
  }
};

template <class scalar_t>
TextureLevels<scalar_t> texture_levels(const TextureShape& shape, const Tensor& texture, const Tensor* mips) {
  TextureLevels<scalar_t> levels{};
  levels.base = data<scalar_t>(texture);
  levels.base_stride = shape.batch == 1 ? 0 : shape.level_size(0) * shape.channels;
  if (mips != nullptr) {
    levels.mips = data<scalar_t>(*mips);
    levels.mips_stride = shape.batch == 1 ? 0 : shape.mip_texels() * shape.channels;
    for (int64_t level = 2; level <= shape.last; ++level) {
      levels.offset[level] = levels.offset[level - 1] + shape.level_size(level - 1);
    }
  }
  levels.width = static_cast<int32_t>(shape.width);
  levels.height = static_cast<int32_t>(shape.height);
  levels.channels = static_cast<int32_t>(shape.channels);
  levels.last = mips == nullptr ? 0 : static_cast<int32_t>(shape.last);
  return levels;
}

template <class scalar_t, class Mapping, bool kMips>
void texture_forward(const TextureSampler<scalar_t, Mapping, kMips>& sampler, const Tensor& values, int64_t lookups) {
  scalar_t* const out = mutable_data<scalar_t>(values);
  if constexpr (!kMips) {
    if (sampler.filter == TextureFilter::nearest) {
      launch(values, lookups, TextureNearest<scalar_t, Mapping>{sampler, out});
      return;
    }
  }
  launch(values, lookups, TextureForward<scalar_t, Mapping, kMips>{sampler, out});
}

// Gradients of the lookups; what has a null pointer is not computed.
template <class scalar_t, class Mapping, bool kMips>
void texture_backward_coordinates(const TextureSampler<scalar_t, Mapping, kMips>& sampler, const Tensor& grad_values,
                                  int64_t lookups, scalar_t* grad_coordinates, scalar_t* grad_derivatives,
                                  scalar_t* grad_bias) {
  launch(grad_values, lookups,
         TextureBackwardCoordinates<scalar_t, Mapping, kMips>{sampler, data<scalar_t>(grad_values), grad_coordinates,
                                                              grad_derivatives, grad_bias});
}

// The lookups of a sampler as the CPU's scatter takes them.
template <class scalar_t, class Mapping, bool kMips>
ScatterSource<scalar_t> scatter_source(const TextureSampler<scalar_t, Mapping, kMips>& sampler) {
  return [&sampler](int64_t begin, int64_t end, const ShareVisitor<scalar_t>& visit) {
    sampler.for_each_share(begin, end, visit);
  };
}

// Gradients of the base and of the mips, each null if nobody needs it.
template <class scalar_t, class Mapping, bool kMips>
void texture_backward_texels(const TextureSampler<scalar_t, Mapping, kMips>& sampler, const TextureShape& shape,
                             const Tensor& grad_values, int64_t lookups, const Tensor* grad_base,
                             const Tensor* grad_mips, ScatterAlgorithm algorithm) {
  const int64_t footprints = sampler.tap_count() * (sampler.blends() ? 2 : 1);  // of one lookup
  if (!grad_values.is_cuda() && algorithm == ScatterAlgorithm::native) {
    TiledLevels tiled(shape.channels);
    tiled.first_tap_tells = Mapping::kFirstTapTells;
    tiled.repeats_u = sampler.mapping.repeats_u();
    tiled.repeats_v = sampler.mapping.repeats_v();
    scalar_t* base = grad_base == nullptr ? nullptr : mutable_data<scalar_t>(*grad_base);
    scalar_t* mips = grad_mips == nullptr ? nullptr : mutable_data<scalar_t>(*grad_mips);
    for (int32_t level = 0; level <= sampler.levels.last; ++level) {
      scalar_t* const mip = mips == nullptr ? nullptr : mips + sampler.levels.offset[level] * shape.channels;
      const int32_t width = sampler.levels.level_width(level);
      tiled.add(level == 0 ? base : mip, level == 0 ? sampler.levels.base_stride : sampler.levels.mips_stride, width,
                static_cast<int32_t>(shape.level_size(level) / width));
    }
    scatter_texels(tiled, data<scalar_t>(grad_values), shape.batch, lookups, footprints, scatter_source(sampler));
    return;
  }
  for (const Tensor* grad : {grad_base, grad_mips}) {
    if (grad == nullptr) continue;
    const Tensor sums = new_zeros(*grad, {grad->numel()}, ScalarType::Double);
    scatter_without_buffers<double>(
        sums, lookups, algorithm,
        TextureBackwardTexels<scalar_t, Mapping, kMips>{sampler, data<scalar_t>(grad_values), grad == grad_base},
        4 * footprints);
    launch(sums, grad->numel(), RoundSums<scalar_t>{data<double>(sums), mutable_data<scalar_t>(*grad)});
  }
}

}  // namespace diffrender
