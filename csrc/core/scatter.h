// Functors around scatter kernels: runs of pixels of one triangle summed before they are written, and the two small
// steps of the order-free sum.
#pragma once

#include "portable.h"

namespace diffrender {

// Scatters a functor whose neighbouring items mostly belong to the same group (the pixels of one triangle): their
// contributions are summed in registers and added to memory once per run. The functor offers
//   pixels_per_item(): items of one batch item      group(item): the group of an item, negative = nothing to do
//   load(group, batch_item): what its items share   contribute(shared, item, sum[kValues]): adds one item
//   flush(shared, sum, sink): adds a run to memory
// On the GPU a range is one item; the warp can still combine lanes of equal group in flush.
template <class Functor, class scalar_t>
DR_HD void scatter_runs(const Functor& functor, int64_t begin, int64_t end, const Sink<scalar_t>& sink) {
  const int64_t per_item = functor.pixels_per_item();
  for (int64_t i = begin; i < end;) {
    const int64_t batch_item = i / per_item;
    // A run may not cross into the next batch item, where the same id means other vertices.
    const int64_t item_end = end < (batch_item + 1) * per_item ? end : (batch_item + 1) * per_item;
    while (i < item_end) {
      const int32_t group = functor.group(i);
      const auto shared = functor.load(group, batch_item);
      if (!shared.valid) {
        ++i;
        continue;
      }
      scalar_t sum[Functor::kValues] = {};
      do {
        functor.contribute(shared, i, sum);
        ++i;
      } while (i < item_end && functor.group(i) == group);
      functor.flush(shared, sum, sink);
    }
  }
}

// Chooses the power of two that integer sums are multiples of.
struct FixedPointUnit {
  const uint64_t* largest;  // [1] bits of the largest contribution, as a double
  double* unit;             // [2] step, reciprocal of the step
  int64_t contributions;    // upper bound on what one element may receive

  DR_HD void operator()(int64_t, int64_t) const {
    double magnitude = 0;
#if defined(__CUDACC__)
    // memcpy of eight bytes: the one bit cast that host and device compilers both know.
    memcpy(&magnitude, largest, sizeof(double));
#else
    __builtin_memcpy(&magnitude, largest, sizeof(double));
#endif
    int exponent = 0;  // magnitude < 2^exponent
    (void)frexp(magnitude, &exponent);
    int bits = 1;  // one for the sign
    for (int64_t rest = contributions; rest > 0; rest /= 2) ++bits;
    int step = exponent + bits - 62;
    step = step < -1000 ? -1000 : step;
    unit[0] = ldexp(1.0, step);
    unit[1] = ldexp(1.0, -step);
  }
};

template <class scalar_t>
struct FixedPointFinish {
  scalar_t* values;      // [N]
  const int64_t* fixed;  // [N]
  const double* unit;    // [2]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) values[i] += static_cast<scalar_t>(static_cast<double>(fixed[i]) * unit[0]);
  }
};

}  // namespace diffrender
