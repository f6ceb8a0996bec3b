#include "core/launch_cuda.cuh"
#include "rasterize_gpu.h"

namespace diffrender {
#define DR_INSTANTIATE_RASTERIZE(scalar_t)       \
  DR_INSTANTIATE_LAUNCH(GpuRasterizer<scalar_t>) \
  DR_INSTANTIATE_LAUNCH(GpuDrawQueue<scalar_t>)  \
  DR_INSTANTIATE_LAUNCH(GpuResolve<scalar_t>)    \
  DR_INSTANTIATE_SCATTER(scalar_t, RasterizeBackward<scalar_t>)
DR_INSTANTIATE_LAUNCH(FillOnes)
}  // namespace diffrender

DR_INSTANTIATE_RASTERIZE(float)
DR_INSTANTIATE_RASTERIZE(double)
