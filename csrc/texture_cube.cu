#include "texture_cube.h"

#include "core/launch_cuda.cuh"
#include "texture_backward.h"
#include "texture_forward.h"

namespace diffrender {
#define DR_INSTANTIATE_CUBE_MIPS(scalar_t, mips)                                           \
  DR_INSTANTIATE_LAUNCH(TextureForward<scalar_t, CubeMapping<scalar_t>, mips>)             \
  DR_INSTANTIATE_LAUNCH(TextureBackwardCoordinates<scalar_t, CubeMapping<scalar_t>, mips>) \
  DR_INSTANTIATE_SCATTER(double, TextureBackwardTexels<scalar_t, CubeMapping<scalar_t>, mips>)
#define DR_INSTANTIATE_CUBE(scalar_t)       \
  DR_INSTANTIATE_CUBE_MIPS(scalar_t, false) \
  DR_INSTANTIATE_CUBE_MIPS(scalar_t, true)  \
  DR_INSTANTIATE_LAUNCH(TextureNearest<scalar_t, CubeMapping<scalar_t>>)
DR_INSTANTIATE_CUBE(float)
DR_INSTANTIATE_CUBE(double)
}  // namespace diffrender
