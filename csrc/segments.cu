#include "core/launch_cuda.cuh"
#include "segments_blend.h"

namespace diffrender {
DR_INSTANTIATE_LAUNCH(MarkEdges)
DR_INSTANTIATE_LAUNCH(CountPairs)
DR_INSTANTIATE_LAUNCH(MarkCrossings)
DR_INSTANTIATE_LAUNCH(TriangleBoxes)
DR_INSTANTIATE_LAUNCH(CurvePlaces)
DR_INSTANTIATE_LAUNCH(TreeLeaves)
DR_INSTANTIATE_LAUNCH(TreeLevel)
DR_INSTANTIATE_LAUNCH(UsePieces<EdgePairs, MarkParted>)
DR_INSTANTIATE_LAUNCH(UsePieces<CrossingPixels, MarkParted>)
#define DR_INSTANTIATE_SEGMENTS(scalar_t)                                                   \
  DR_INSTANTIATE_LAUNCH(TriangleFacing<scalar_t>)                                           \
  DR_INSTANTIATE_SCATTER(scalar_t, SumPieces<EdgePairs, BlendPiece<scalar_t>>)              \
  DR_INSTANTIATE_SCATTER(scalar_t, SumPieces<CrossingPixels, BlendPiece<scalar_t>>)         \
  DR_INSTANTIATE_SCATTER(scalar_t, SumPieces<EdgePairs, BlendBackwardImage<scalar_t>>)      \
  DR_INSTANTIATE_SCATTER(scalar_t, SumPieces<CrossingPixels, BlendBackwardImage<scalar_t>>) \
  DR_INSTANTIATE_SCATTER(scalar_t, SumPieces<EdgePairs, EdgeBackward<scalar_t>>)            \
  DR_INSTANTIATE_SCATTER(scalar_t, SumPieces<CrossingPixels, CrossingBackward<scalar_t>>)
DR_INSTANTIATE_SEGMENTS(float)
DR_INSTANTIATE_SEGMENTS(double)
}  // namespace diffrender
