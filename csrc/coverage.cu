#include "coverage.h"

#include "core/launch_cuda.cuh"
#include "coverage_backward.h"

DR_INSTANTIATE_LAUNCH(diffrender::CoverageSetup)
DR_INSTANTIATE_LAUNCH(diffrender::CoverageBlockCount)
DR_INSTANTIATE_LAUNCH(diffrender::CoverageBlocks)
DR_INSTANTIATE_LAUNCH(diffrender::CoveragePlaces)
DR_INSTANTIATE_LAUNCH(diffrender::CoverageSort)
DR_INSTANTIATE_LAUNCH(diffrender::CoverageForwardWorkers)
DR_INSTANTIATE_LAUNCH(diffrender::CoverageCompact)
DR_INSTANTIATE_SCATTER(double, diffrender::CoverageBackwardWorkers)
