#include "mips.h"

#include "core/launch_cuda.cuh"

namespace diffrender {
DR_INSTANTIATE_LAUNCH(MipForward<float>)
DR_INSTANTIATE_LAUNCH(MipForward<double>)
DR_INSTANTIATE_LAUNCH(MipBackward<float>)
DR_INSTANTIATE_LAUNCH(MipBackward<double>)
}  // namespace diffrender
