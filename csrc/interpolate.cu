#include "interpolate.h"

#include "core/launch_cuda.cuh"

namespace diffrender {
#define DR_INSTANTIATE_INTERPOLATE(scalar_t, channels)          \
  DR_INSTANTIATE_LAUNCH(InterpolateForward<scalar_t, channels>) \
  DR_INSTANTIATE_LAUNCH(InterpolateBackwardWeights<scalar_t, channels>)
#define DR_INSTANTIATE_INTERPOLATE_ALL(scalar_t)                               \
  DR_INSTANTIATE_INTERPOLATE(scalar_t, 0)                                      \
  DR_INSTANTIATE_INTERPOLATE(scalar_t, 1)                                      \
  DR_INSTANTIATE_INTERPOLATE(scalar_t, 2)                                      \
  DR_INSTANTIATE_INTERPOLATE(scalar_t, 3)                                      \
  DR_INSTANTIATE_INTERPOLATE(scalar_t, 4)                                      \
  DR_INSTANTIATE_SCATTER(scalar_t, InterpolateBackwardAttributes<scalar_t, 1>) \
  DR_INSTANTIATE_SCATTER(scalar_t, InterpolateBackwardAttributes<scalar_t, 2>) \
  DR_INSTANTIATE_SCATTER(scalar_t, InterpolateBackwardAttributes<scalar_t, 3>) \
  DR_INSTANTIATE_SCATTER(scalar_t, InterpolateBackwardAttributes<scalar_t, 4>)
DR_INSTANTIATE_INTERPOLATE_ALL(float)
DR_INSTANTIATE_INTERPOLATE_ALL(double)
}  // namespace diffrender
