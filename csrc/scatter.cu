#include "core/launch_cuda.cuh"
#include "core/scatter.h"

namespace diffrender {
DR_INSTANTIATE_LAUNCH(FixedPointUnit)
DR_INSTANTIATE_LAUNCH(FixedPointFinish<float>)
DR_INSTANTIATE_LAUNCH(FixedPointFinish<double>)
}  // namespace diffrender
