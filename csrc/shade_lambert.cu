#include "shade_lambert.h"

#include "core/launch_cuda.cuh"

namespace diffrender {
#define DR_INSTANTIATE_LAMBERT(scalar_t)                           \
  DR_INSTANTIATE_LAUNCH(ShadeForward<scalar_t, Lambert<scalar_t>>) \
  DR_INSTANTIATE_SCATTER(scalar_t, ShadeBackward<scalar_t, Lambert<scalar_t>>)
DR_INSTANTIATE_LAMBERT(float)
DR_INSTANTIATE_LAMBERT(double)
}  // namespace diffrender
