#include "shade_blinn_phong.h"

#include "core/launch_cuda.cuh"

namespace diffrender {
#define DR_INSTANTIATE_BLINN_PHONG(scalar_t)                          \
  DR_INSTANTIATE_LAUNCH(ShadeForward<scalar_t, BlinnPhong<scalar_t>>) \
  DR_INSTANTIATE_SCATTER(scalar_t, ShadeBackward<scalar_t, BlinnPhong<scalar_t>>)
DR_INSTANTIATE_BLINN_PHONG(float)
DR_INSTANTIATE_BLINN_PHONG(double)
}  // namespace diffrender
