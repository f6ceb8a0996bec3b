#include "core/launch_cuda.cuh"
#include "texture_plane.h"

namespace diffrender {
#define DR_INSTANTIATE_TEXTURE_CHANNELS(scalar_t, channels, mips)                         \
  DR_INSTANTIATE_LAUNCH(TextureForward<scalar_t, PlaneMapping<scalar_t>, channels, mips>) \
  DR_INSTANTIATE_LAUNCH(TextureBackwardCoordinates<scalar_t, PlaneMapping<scalar_t>, channels, mips>)
#define DR_INSTANTIATE_TEXTURE_MIPS(scalar_t, mips)  \
  DR_INSTANTIATE_TEXTURE_CHANNELS(scalar_t, 0, mips) \
  DR_INSTANTIATE_TEXTURE_CHANNELS(scalar_t, 3, mips) \
  DR_INSTANTIATE_SCATTER(double, TextureBackwardTexels<scalar_t, PlaneMapping<scalar_t>, mips>)
#define DR_INSTANTIATE_TEXTURE(scalar_t)                                                       \
  DR_INSTANTIATE_TEXTURE_MIPS(scalar_t, false)                                                 \
  DR_INSTANTIATE_TEXTURE_CHANNELS(scalar_t, 1, false)                                          \
  DR_INSTANTIATE_TEXTURE_CHANNELS(scalar_t, 2, false)                                          \
  DR_INSTANTIATE_TEXTURE_CHANNELS(scalar_t, 4, false)                                          \
  DR_INSTANTIATE_TEXTURE_MIPS(scalar_t, true)                                                  \
  DR_INSTANTIATE_LAUNCH(TextureNearest<scalar_t, PlaneMapping<scalar_t>>)                      \
  DR_INSTANTIATE_LAUNCH(TextureBackwardTwice<scalar_t, PlaneMapping<scalar_t>>)                \
  DR_INSTANTIATE_SCATTER(double, TextureBackwardTwiceTexels<scalar_t, PlaneMapping<scalar_t>>) \
  DR_INSTANTIATE_LAUNCH(RoundSums<scalar_t>)
DR_INSTANTIATE_TEXTURE(float)
DR_INSTANTIATE_TEXTURE(double)
}  // namespace diffrender
