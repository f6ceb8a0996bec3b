#include "core/launch_cuda.cuh"
#include "texture_backward.h"
#include "texture_forward.h"
#include "texture_plane.h"
#include "texture_second.h"

namespace diffrender {
#define DR_INSTANTIATE_TEXTURE_MIPS(scalar_t, mips)                                         \
  DR_INSTANTIATE_LAUNCH(TextureForward<scalar_t, PlaneMapping<scalar_t>, mips>)             \
  DR_INSTANTIATE_LAUNCH(TextureBackwardCoordinates<scalar_t, PlaneMapping<scalar_t>, mips>) \
  DR_INSTANTIATE_SCATTER(double, TextureBackwardTexels<scalar_t, PlaneMapping<scalar_t>, mips>)
#define DR_INSTANTIATE_TEXTURE(scalar_t)                                                       \
  DR_INSTANTIATE_TEXTURE_MIPS(scalar_t, false)                                                 \
  DR_INSTANTIATE_TEXTURE_MIPS(scalar_t, true)                                                  \
  DR_INSTANTIATE_LAUNCH(TextureNearest<scalar_t, PlaneMapping<scalar_t>>)                      \
  DR_INSTANTIATE_LAUNCH(TextureBackwardTwice<scalar_t, PlaneMapping<scalar_t>>)                \
  DR_INSTANTIATE_SCATTER(double, TextureBackwardTwiceTexels<scalar_t, PlaneMapping<scalar_t>>) \
  DR_INSTANTIATE_LAUNCH(RoundSums<scalar_t>)
DR_INSTANTIATE_TEXTURE(float)
DR_INSTANTIATE_TEXTURE(double)
}  // namespace diffrender
