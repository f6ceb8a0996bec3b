#include "irradiance_sh.h"

#include "core/launch_cuda.cuh"

namespace diffrender {
DR_INSTANTIATE_LAUNCH(IrradianceShForward<float>)
DR_INSTANTIATE_LAUNCH(IrradianceShForward<double>)
DR_INSTANTIATE_SCATTER(float, IrradianceShBackward<float>)
DR_INSTANTIATE_SCATTER(double, IrradianceShBackward<double>)
}  // namespace diffrender
