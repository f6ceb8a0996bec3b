// What differs between a CPU and a GPU build of a kernel body. Everything else in csrc/ is written once.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>

// tests/native defines this to a header with atomics and warps made of CPU threads: the bodies below run on those.
#if defined(DR_EMULATED_GPU)
#include DR_EMULATED_GPU
#endif

#if defined(__CUDACC__)
#define DR_HD __host__ __device__ __forceinline__
#define DR_HD_CALL inline __host__ __device__ __noinline__  // a function that is long and called from several places
#else
#define DR_HD inline __attribute__((always_inline))
#define DR_HD_CALL inline __attribute__((noinline))
#endif

namespace diffrender {

// How a scatter adds its contributions; see launch_scatter in launch.h.
enum class ScatterMode : int32_t {
  direct,   // CPU: plain addition into a private buffer. CUDA: floating-point atomics, order not fixed.
  measure,  // first pass of the order-free sum: only find the largest magnitude
  fixed,    // second pass of the order-free sum: integer additions, which commute exactly
};

// Where a scatter kernel adds. `index - offset` addresses `values`, so that a kernel always speaks of elements of the
// whole gradient tensor while the CPU may hand it a private buffer that holds only one batch item.
template <class scalar_t>
struct Sink {
  scalar_t* values;    // [.] running sums (in `fixed` mode: only what is not finite)
  int64_t offset = 0;  // element of the gradient tensor that values[0] stands for
  ScatterMode mode = ScatterMode::direct;
  uint64_t* largest = nullptr;   // [1] bits of the largest finite magnitude, as a double
  int64_t* fixed = nullptr;      // [.] sums in units of *unit
  const double* unit = nullptr;  // [2] size of one integer step, and its reciprocal
};

// As constants: device code may not call std::numeric_limits.
template <class scalar_t>
constexpr scalar_t kLargest = std::numeric_limits<scalar_t>::max();
template <class scalar_t>
constexpr scalar_t kSmallestNormal = std::numeric_limits<scalar_t>::min();

// Items that a body keeps in arrays at once: many on the CPU, one on the GPU, where a thread has one item.
#if defined(__CUDA_ARCH__)
template <int kOnCpu>
constexpr int kItemsAtOnce = 1;
#else
template <int kOnCpu>
constexpr int kItemsAtOnce = kOnCpu;
#endif

DR_HD uint64_t double_bits(double value) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint64_t>(__double_as_longlong(value));
#else
  return __builtin_bit_cast(uint64_t, value);
#endif
}

DR_HD uint32_t float_bits(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  return __builtin_bit_cast(uint32_t, value);
#endif
}

// Atomic on the GPU. On the CPU these run single-threaded or on memory that one thread owns: no atomics there.
DR_HD void atomic_min(uint64_t* address, uint64_t value) {
#if defined(__CUDA_ARCH__)
  atomicMin(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value));
#elif defined(DR_EMULATED_GPU)
  emulated::atomic_min(address, value);
#else
  *address = value < *address ? value : *address;
#endif
}

DR_HD void atomic_min(uint32_t* address, uint32_t value) {
#if defined(__CUDA_ARCH__)
  atomicMin(address, value);
#elif defined(DR_EMULATED_GPU)
  emulated::atomic_min(address, value);
#else
  *address = value < *address ? value : *address;
#endif
}

// A value that other threads change meanwhile.
DR_HD uint64_t read_shared(const uint64_t* address) {
#if defined(DR_EMULATED_GPU)
  return emulated::read(address);
#else
  return *const_cast<const volatile uint64_t*>(address);
#endif
}

DR_HD void atomic_max(uint64_t* address, uint64_t value) {
#if defined(__CUDA_ARCH__)
  // Most values do not raise the maximum: a plain read first spares almost every atomic.
  if (value > read_shared(address)) {
    atomicMax(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value));
  }
#elif defined(DR_EMULATED_GPU)
  emulated::atomic_max(address, value);
#else
  *address = value > *address ? value : *address;
#endif
}

// Calls body(index, item) for a range of indices of which every item has `per_item`. A division per range, not per
// index: 64-bit divisions cost more than most bodies.
template <class F>
DR_HD void for_each_index(int64_t begin, int64_t end, int64_t per_item, const F& body) {
  while (begin < end) {
    const int64_t item = begin / per_item, stop = (item + 1) * per_item;
    for (const int64_t last = end < stop ? end : stop; begin < last; ++begin) body(begin, item);
  }
}

// Eight bytes from any address, which a GPU has to read one by one.
DR_HD uint64_t load_word(const uint8_t* bytes) {
#if defined(__CUDA_ARCH__)
  uint64_t word = 0;
  for (int i = 0; i < 8; ++i) word |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  return word;
#else
  uint64_t word;
  __builtin_memcpy(&word, bytes, sizeof(word));
  return word;
#endif
}

// Several threads may set the same flag at once, all to the same value.
DR_HD void set_flag(uint8_t* flag) {
#if defined(__CUDA_ARCH__)
  *flag = 1;
#else
  __atomic_store_n(flag, uint8_t(1), __ATOMIC_RELAXED);
#endif
}

// Returns the value before the addition.
DR_HD uint64_t atomic_add(uint64_t* address, uint64_t value) {
#if defined(__CUDA_ARCH__)
  return atomicAdd(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value));
#elif defined(DR_EMULATED_GPU)
  return emulated::atomic_add(address, value);
#else
  const uint64_t before = *address;
  *address = before + value;
  return before;
#endif
}

// On the GPU adding nothing costs as much as adding something: zeros are left out.
template <class scalar_t>
DR_HD void atomic_add_floating(scalar_t* address, scalar_t value) {
#if defined(__CUDA_ARCH__)
  if (value != 0) atomicAdd(address, value);
#elif defined(DR_EMULATED_GPU)
  if (value != 0) emulated::atomic_add(address, value);
#else
  *address += value;
#endif
}

// Warps: 32 threads that take these steps together. Every lane of the warp has to call each of them.
#if defined(__CUDA_ARCH__)
constexpr bool kHasWarps = true;
constexpr uint32_t kWholeWarp = 0xffffffffu;
DR_HD int warp_lane() { return static_cast<int>(threadIdx.x & 31u); }
DR_HD bool warp_any(bool value) { return __any_sync(kWholeWarp, value) != 0; }
DR_HD uint32_t warp_ballot(bool value) { return __ballot_sync(kWholeWarp, value); }
DR_HD uint32_t warp_match(uint64_t key) {  // the lanes that have the same key
  return __match_any_sync(kWholeWarp, static_cast<unsigned long long>(key));
}
template <class scalar_t>
DR_HD scalar_t warp_read(scalar_t value, int lane) {
  return __shfl_sync(kWholeWarp, value, lane);
}
DR_HD int lowest_lane(uint32_t lanes) { return __ffs(static_cast<int>(lanes)) - 1; }
DR_HD int count_lanes(uint32_t lanes) { return __popc(lanes); }
#elif defined(DR_EMULATED_GPU)
constexpr bool kHasWarps = true;
using emulated::warp_any, emulated::warp_ballot, emulated::warp_lane, emulated::warp_match, emulated::warp_read;
DR_HD int lowest_lane(uint32_t lanes) { return __builtin_ctz(lanes); }
DR_HD int count_lanes(uint32_t lanes) { return __builtin_popcount(lanes); }
#else
constexpr bool kHasWarps = false;  // and nothing that calls these is compiled
int warp_lane();
bool warp_any(bool value);
uint32_t warp_ballot(bool value);
uint32_t warp_match(uint64_t key);
template <class scalar_t>
scalar_t warp_read(scalar_t value, int lane);
int lowest_lane(uint32_t lanes);
int count_lanes(uint32_t lanes);
#endif

// Adds one contribution to element `index` of the gradient tensor.
template <class scalar_t>
DR_HD void accumulate(const Sink<scalar_t>& sink, int64_t index, scalar_t value) {
  if (sink.mode == ScatterMode::direct) {
    atomic_add_floating(sink.values + (index - sink.offset), value);
    return;
  }
  const double magnitude = ::fabs(static_cast<double>(value));  // 0 of -0, whose bits would be the largest of all
  const bool finite = magnitude <= static_cast<double>(kLargest<scalar_t>);
  if (sink.mode == ScatterMode::measure) {
    // Positive doubles order like their bit patterns.
    if (finite) atomic_max(sink.largest, double_bits(magnitude));
    return;
  }
  if (finite) {
    const int64_t steps = static_cast<int64_t>(::rint(static_cast<double>(value) * sink.unit[1]));
    atomic_add(reinterpret_cast<uint64_t*>(sink.fixed + (index - sink.offset)), static_cast<uint64_t>(steps));
  } else {
    // inf and NaN absorb everything, whatever the order.
    atomic_add_floating(sink.values + (index - sink.offset), value);
  }
}

}  // namespace diffrender
