#include "shade_metallic_roughness.h"

#include "core/launch_cuda.cuh"

namespace diffrender {
#define DR_INSTANTIATE_METALLIC_ROUGHNESS(scalar_t)                          \
  DR_INSTANTIATE_LAUNCH(ShadeForward<scalar_t, MetallicRoughness<scalar_t>>) \
  DR_INSTANTIATE_SCATTER(scalar_t, ShadeBackward<scalar_t, MetallicRoughness<scalar_t>>)
DR_INSTANTIATE_METALLIC_ROUGHNESS(float)
DR_INSTANTIATE_METALLIC_ROUGHNESS(double)
}  // namespace diffrender
