#include "antialias.h"

#include "core/launch_cuda.cuh"

namespace diffrender {
#define DR_INSTANTIATE_ANTIALIAS(scalar_t)                \
  DR_INSTANTIATE_LAUNCH(OutlineEdges<scalar_t>)           \
  DR_INSTANTIATE_LAUNCH(AntialiasWeights<scalar_t>)       \
  DR_INSTANTIATE_LAUNCH(MarkCrossedPairs<scalar_t>)       \
  DR_INSTANTIATE_LAUNCH(AntialiasForward<scalar_t>)       \
  DR_INSTANTIATE_LAUNCH(AntialiasBackwardImage<scalar_t>) \
  DR_INSTANTIATE_SCATTER(scalar_t, AntialiasBackwardPositions<scalar_t>)
DR_INSTANTIATE_ANTIALIAS(float)
DR_INSTANTIATE_ANTIALIAS(double)
}  // namespace diffrender
