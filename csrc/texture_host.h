// What the host functions of planes and cubes share: launches of one sampler.
#pragma once

#include "core/launch.h"
#include "core/tensor.h"
#include "texture.h"
#include "texture_linear_cpu.h"
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

// Calls f with the channel count as a compile-time constant where it is a common one, 0 elsewhere. Cubes are mostly
// colours.
template <bool kFew, class F>
void dispatch_texture_channels(int64_t channels, const F& f) {
  if constexpr (kFew) {
    if (channels == 3) return f(std::integral_constant<int, 3>());
    return f(std::integral_constant<int, 0>());
  }
  switch (channels) {
    case 1:
      f(std::integral_constant<int, 1>());
      break;
    case 2:
      f(std::integral_constant<int, 2>());
      break;
    case 3:
      f(std::integral_constant<int, 3>());
      break;
    case 4:
      f(std::integral_constant<int, 4>());
      break;
    default:
      f(std::integral_constant<int, 0>());
      break;
  }
}

template <class scalar_t, class Mapping, int kChannels, bool kMips>
constexpr bool kHasSquares = std::is_same_v<scalar_t, float> && Mapping::kCoordinates == 2 && kChannels > 0 && !kMips;

template <class scalar_t, class Mapping, bool kMips>
void texture_forward(const TextureSampler<scalar_t, Mapping, kMips>& sampler, const Tensor& values, int64_t lookups) {
  scalar_t* const out = mutable_data<scalar_t>(values);
  if constexpr (!kMips) {
    if (sampler.filter == TextureFilter::nearest) {
      launch(values, lookups, TextureNearest<scalar_t, Mapping>{sampler, out});
      return;
    }
  }
  dispatch_texture_channels<kMips || Mapping::kCoordinates == 3>(sampler.levels.channels, [&](auto count) {
    constexpr int kChannels = decltype(count)::value;
    const TextureForward<scalar_t, Mapping, kChannels, kMips> portable{sampler, out};
    if constexpr (kHasSquares<scalar_t, Mapping, kChannels, kMips>) {
      if (!values.is_cuda()) {
        parallel_ranges(lookups, kItemsPerPiece, TextureForwardSquares<Mapping, kChannels>{portable});
        return;
      }
    }
    launch(values, lookups, portable);
  });
}

// Gradients of the lookups; an undefined pointer is not computed.
template <class scalar_t, class Mapping, bool kMips>
void texture_backward_coordinates(const TextureSampler<scalar_t, Mapping, kMips>& sampler, const Tensor& grad_values,
                                  int64_t lookups, scalar_t* grad_coordinates, scalar_t* grad_derivatives,
                                  scalar_t* grad_bias) {
  dispatch_texture_channels<kMips || Mapping::kCoordinates == 3>(sampler.levels.channels, [&](auto count) {
    constexpr int kChannels = decltype(count)::value;
    const TextureBackwardCoordinates<scalar_t, Mapping, kChannels, kMips> portable{
        sampler, data<scalar_t>(grad_values), grad_coordinates, grad_derivatives, grad_bias};
    if constexpr (kHasSquares<scalar_t, Mapping, kChannels, kMips>) {
      if (!grad_values.is_cuda()) {
        parallel_ranges(lookups, kItemsPerPiece, TextureSlopesOfSquares<Mapping, kChannels>{portable});
        return;
      }
    }
    launch(grad_values, lookups, portable);
  });
}

// Gradients of the base and of the mips, each null if nobody needs it.
template <class scalar_t, class Mapping, bool kMips>
void texture_backward_texels(const TextureSampler<scalar_t, Mapping, kMips>& sampler, const TextureShape& shape,
                             const Tensor& grad_values, int64_t lookups, const Tensor* grad_base,
                             const Tensor* grad_mips, ScatterAlgorithm algorithm) {
  if (!grad_values.is_cuda() && algorithm == ScatterAlgorithm::native) {
    TiledLevels<scalar_t> tiled(shape.channels);
    scalar_t* base = grad_base == nullptr ? nullptr : mutable_data<scalar_t>(*grad_base);
    scalar_t* mips = grad_mips == nullptr ? nullptr : mutable_data<scalar_t>(*grad_mips);
    for (int32_t level = 0; level <= sampler.levels.last; ++level) {
      scalar_t* const mip = mips == nullptr ? nullptr : mips + sampler.levels.offset[level] * shape.channels;
      const int32_t width = sampler.levels.level_width(level);
      tiled.add(level == 0 ? base : mip, level == 0 ? sampler.levels.base_stride : sampler.levels.mips_stride, width,
                static_cast<int32_t>(shape.level_size(level) / width));
    }
    TextureScatter<scalar_t, Mapping, kMips>(sampler, tiled, data<scalar_t>(grad_values), shape.batch, lookups).run();
    return;
  }
  for (const Tensor* grad : {grad_base, grad_mips}) {
    if (grad == nullptr) continue;
    const Tensor sums = new_zeros(*grad, {grad->numel()}, ScalarType::Double);
    launch_scatter<double>(
        sums, shape.batch, lookups, algorithm,
        TextureBackwardTexels<scalar_t, Mapping, kMips>{sampler, data<scalar_t>(grad_values), grad == grad_base});
    launch(sums, grad->numel(), RoundSums<scalar_t>{data<double>(sums), mutable_data<scalar_t>(*grad)});
  }
}

}  // namespace diffrender
