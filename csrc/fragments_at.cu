#include "fragments_at.h"

#include "core/launch_cuda.cuh"

namespace diffrender {
DR_INSTANTIATE_LAUNCH(FragmentsAt<float>)
DR_INSTANTIATE_LAUNCH(FragmentsAt<double>)
}  // namespace diffrender
