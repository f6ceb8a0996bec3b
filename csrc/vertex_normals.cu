#include "vertex_normals.h"

#include "core/launch_cuda.cuh"

namespace diffrender {
DR_INSTANTIATE_LAUNCH(VertexNormalsFinish<float>)
DR_INSTANTIATE_LAUNCH(VertexNormalsFinish<double>)
DR_INSTANTIATE_LAUNCH(VertexNormalsBackwardSums<float>)
DR_INSTANTIATE_LAUNCH(VertexNormalsBackwardSums<double>)
DR_INSTANTIATE_SCATTER(float, VertexNormalsSum<float>)
DR_INSTANTIATE_SCATTER(double, VertexNormalsSum<double>)
DR_INSTANTIATE_SCATTER(float, VertexNormalsBackward<float>)
DR_INSTANTIATE_SCATTER(double, VertexNormalsBackward<double>)
}  // namespace diffrender
