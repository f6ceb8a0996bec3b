#include "cube_from_lat_long.h"

#include "core/launch_cuda.cuh"

namespace diffrender {
DR_INSTANTIATE_LAUNCH(CubeFromLatLongForward<float>)
DR_INSTANTIATE_LAUNCH(CubeFromLatLongForward<double>)
DR_INSTANTIATE_SCATTER(float, CubeFromLatLongBackward<float>)
DR_INSTANTIATE_SCATTER(double, CubeFromLatLongBackward<double>)
}  // namespace diffrender
