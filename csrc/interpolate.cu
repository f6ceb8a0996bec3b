#include "interpolate.h"

#include "core/launch_cuda.cuh"

namespace diffrender {
#define DR_INSTANTIATE_INTERPOLATE(scalar_t, channels)          \
  DR_INSTANTIATE_LAUNCH(InterpolateForward<scalar_t, channels>) \
  DR_INSTANTIATE_LAUNCH(InterpolateBackwardWeights<scalar_t, channels>)
#define DR_INSTANTIATE_INTERPOLATE_ATTRIBUTES(scalar_t)                        \
  DR_INSTANTIATE_SCATTER(scalar_t, InterpolateBackwardAttributes<scalar_t, 1>) \
  DR_INSTANTIATE_SCATTER(scalar_t, InterpolateBackwardAttributes<scalar_t, 2>) \
  DR_INSTANTIATE_SCATTER(scalar_t, InterpolateBackwardAttributes<scalar_t, 3>) \
  DR_INSTANTIATE_SCATTER(scalar_t, InterpolateBackwardAttributes<scalar_t, 4>)
DR_INSTANTIATE_INTERPOLATE(float, 0)
DR_INSTANTIATE_INTERPOLATE(float, 1)
DR_INSTANTIATE_INTERPOLATE(float, 2)
DR_INSTANTIATE_INTERPOLATE(float, 3)
DR_INSTANTIATE_INTERPOLATE(float, 4)
DR_INSTANTIATE_INTERPOLATE(double, 0)
DR_INSTANTIATE_INTERPOLATE_ATTRIBUTES(float)
DR_INSTANTIATE_INTERPOLATE_ATTRIBUTES(double)
}  // namespace diffrender
