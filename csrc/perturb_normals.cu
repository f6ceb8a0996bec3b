#include "perturb_normals.h"

#include "core/launch_cuda.cuh"

namespace diffrender {
DR_INSTANTIATE_LAUNCH(PerturbNormalsForward<float>)
DR_INSTANTIATE_LAUNCH(PerturbNormalsForward<double>)
DR_INSTANTIATE_SCATTER(float, PerturbNormalsBackward<float>)
DR_INSTANTIATE_SCATTER(double, PerturbNormalsBackward<double>)
}  // namespace diffrender
