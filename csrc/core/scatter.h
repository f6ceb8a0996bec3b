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
template <class Functor, class scalar_t>
DR_HD void scatter_in_order(const Functor& functor, int64_t begin, int64_t end, const Sink<scalar_t>& sink) {
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

// Adds the values of all lanes of `peers`, which holds this lane; the lowest of them ends up with the sum. In every
// round each remaining lane takes over the next one, so a group of m lanes needs ceil(log2(m)) rounds, and the order of
// the additions depends on nothing but who is in the group. The other lanes of a group end up with parts that nobody
// needs.
template <class scalar_t, int kCount>
DR_HD void sum_in_lowest_lane(uint32_t peers, scalar_t (&values)[kCount]) {
  const int lane = warp_lane();
  const uint32_t below = (uint32_t(1) << lane) - 1;
  uint32_t above = peers & ~below & ~(uint32_t(1) << lane);  // lanes of the group that this one has not got yet
  int place = count_lanes(peers & below);
  while (warp_any(above != 0)) {
    const int next = above != 0 ? lowest_lane(above) : lane;
    for (int i = 0; i < kCount; ++i) {
      const scalar_t taken = warp_read(values[i], next);
      if (above != 0) values[i] += taken;
    }
    above &= ~warp_ballot((place & 1) != 0);  // those went to the lane before them
    place >>= 1;
  }
}

// scatter_in_order for a GPU, where a range is one item, or none: the lanes of a warp that have the same group add up
// before one of them writes. Where all contributions of the warp are zero, nothing is added up at all.
template <class Functor, class scalar_t>
DR_HD void scatter_by_warp(const Functor& functor, int64_t begin, int64_t end, const Sink<scalar_t>& sink) {
  constexpr uint64_t kNobody = ~uint64_t(0);
  scalar_t sum[Functor::kValues] = {};
  decltype(functor.load(0, 0)) shared;
  shared.valid = false;
  uint64_t key = kNobody;
  bool live = false;
  if (begin < end) {
    const int64_t batch_item = begin / functor.pixels_per_item();
    const int32_t group = functor.group(begin);
    if (group >= 0) shared = functor.load(group, batch_item);
    if (shared.valid) {
      functor.contribute(shared, begin, sum);
      for (int i = 0; i < Functor::kValues; ++i) live = live || sum[i] != 0;
      if (live) key = static_cast<uint64_t>(batch_item) << 32 | static_cast<uint32_t>(group);
    }
  }
  if (!warp_any(live)) return;
  const uint32_t peers = warp_match(key);
  sum_in_lowest_lane(peers, sum);
  if (live && warp_lane() == lowest_lane(peers)) functor.flush(shared, sum, sink);
}

// Functors of scatter_runs: a GPU hands them to whole warps.
template <class Functor>
concept TakesRuns = requires { Functor::kValues; };

template <class Functor, class scalar_t>
DR_HD void scatter_runs(const Functor& functor, int64_t begin, int64_t end, const Sink<scalar_t>& sink) {
  if constexpr (kHasWarps) {
    scatter_by_warp(functor, begin, end, sink);
  } else {
    scatter_in_order(functor, begin, end, sink);
  }
}

// Chooses the power of two that integer sums are multiples of.
struct FixedPointUnit {
  const uint64_t* largest;  // [1] bits of the largest contribution, as a double
  double* unit;             // [2] step, reciprocal of the step
  int64_t contributions;    // upper bound on what one element may receive
  const int64_t* times;     // [1] a further factor of it that only the device knows, or null

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
    for (int64_t rest = contributions * (times == nullptr ? 1 : *times); rest > 0; rest /= 2) ++bits;
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
