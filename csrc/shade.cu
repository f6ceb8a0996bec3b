#include "shade.h"

#include "core/launch_cuda.cuh"

namespace diffrender {
DR_INSTANTIATE_LAUNCH(ShadeCollect<float>)
DR_INSTANTIATE_LAUNCH(ShadeCollect<double>)
DR_INSTANTIATE_LAUNCH(ShadeSumItems<float>)
DR_INSTANTIATE_LAUNCH(ShadeSumItems<double>)
}  // namespace diffrender
