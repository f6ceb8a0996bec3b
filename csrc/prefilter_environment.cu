#include "prefilter_environment.h"

#include "core/launch_cuda.cuh"

namespace diffrender {
#define DR_INSTANTIATE_PREFILTER(scalar_t, channels)          \
  DR_INSTANTIATE_LAUNCH(PrefilterForward<scalar_t, channels>) \
  DR_INSTANTIATE_SCATTER(scalar_t, PrefilterBackward<scalar_t, channels>)
DR_INSTANTIATE_PREFILTER(float, 1)
DR_INSTANTIATE_PREFILTER(float, 3)
DR_INSTANTIATE_PREFILTER(double, 1)
DR_INSTANTIATE_PREFILTER(double, 3)
}  // namespace diffrender
