#include "coverage.h"

#include "core/launch_cuda.cuh"

#define DR_INSTANTIATE_COVERAGE(scalar_t)                             \
  DR_INSTANTIATE_LAUNCH(diffrender::CoverageSetup<scalar_t>)          \
  DR_INSTANTIATE_LAUNCH(diffrender::CoverageCompact<scalar_t>)        \
  DR_INSTANTIATE_LAUNCH(diffrender::CoverageForwardWorkers<scalar_t>) \
  DR_INSTANTIATE_SCATTER(scalar_t, diffrender::CoverageBackwardWorkers<scalar_t>)
DR_INSTANTIATE_COVERAGE(float)
DR_INSTANTIATE_COVERAGE(double)
DR_INSTANTIATE_LAUNCH(diffrender::CoverageBlockCount)
DR_INSTANTIATE_LAUNCH(diffrender::CoverageSort)
DR_INSTANTIATE_LAUNCH(diffrender::CoveragePlaces)
DR_INSTANTIATE_LAUNCH(diffrender::CoverageBlocks)
