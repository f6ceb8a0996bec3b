#include "core/launch_cuda.cuh"
#include "segments_blend.h"

namespace diffrender {
#define DR_INSTANTIATE_SEGMENTS(scalar_t)                        \
  DR_INSTANTIATE_LAUNCH(TriangleFacing<scalar_t>)                \
  DR_INSTANTIATE_LAUNCH(MarkEdges<scalar_t>)                     \
  DR_INSTANTIATE_LAUNCH(ClipEdges<scalar_t>)                     \
  DR_INSTANTIATE_LAUNCH(FindEdgePieces<scalar_t>)                \
  DR_INSTANTIATE_LAUNCH(MarkCrossings<scalar_t>)                 \
  DR_INSTANTIATE_LAUNCH(FindCrossingPieces<scalar_t>)            \
  DR_INSTANTIATE_LAUNCH(BlendPieces<scalar_t>)                   \
  DR_INSTANTIATE_SCATTER(scalar_t, BlendBackwardImage<scalar_t>) \
  DR_INSTANTIATE_SCATTER(scalar_t, EdgeBackward<scalar_t>)       \
  DR_INSTANTIATE_SCATTER(scalar_t, CrossingBackward<scalar_t>)
DR_INSTANTIATE_SEGMENTS(float)
DR_INSTANTIATE_SEGMENTS(double)
DR_INSTANTIATE_LAUNCH(PieceKeys)
}  // namespace diffrender
