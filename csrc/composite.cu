#include "composite.h"

#include "core/launch_cuda.cuh"

namespace diffrender {
#define DR_INSTANTIATE_COMPOSITE(scalar_t, channels)                 \
  DR_INSTANTIATE_LAUNCH(CompositeForward<scalar_t, channels>)        \
  DR_INSTANTIATE_LAUNCH(CompositeBackwardValues<scalar_t, channels>) \
  DR_INSTANTIATE_LAUNCH(CompositeBackwardWeights<scalar_t, channels>)
DR_INSTANTIATE_COMPOSITE(float, 0)
DR_INSTANTIATE_COMPOSITE(float, 1)
DR_INSTANTIATE_COMPOSITE(float, 3)
DR_INSTANTIATE_COMPOSITE(float, 4)
DR_INSTANTIATE_COMPOSITE(double, 0)
DR_INSTANTIATE_LAUNCH(CompositeBackwardUnused<float>)
DR_INSTANTIATE_LAUNCH(CompositeBackwardUnused<double>)
}  // namespace diffrender
