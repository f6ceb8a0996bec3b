// Blocks of kLanes pixels as vector types, for the inner loops of the CPU. The compiler splits or fuses them into what
// the instruction set has. A comparison gives a mask of -1 and 0; `mask ? a : b` picks lane by lane.
#pragma once

#include "portable.h"

#if defined(__GNUC__) && !defined(__clang__)
// Every function that takes or returns these vectors is inlined: there is no calling convention to warn about.
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

namespace diffrender {

constexpr int kLanes = 8;

using IntLanes = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t)), aligned(4), may_alias));

template <class scalar_t>
struct LaneTypes;

template <>
struct LaneTypes<float> {
  using Values = float __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));
  using Mask = IntLanes;
};

template <>
struct LaneTypes<double> {
  using Values = double __attribute__((vector_size(kLanes * sizeof(double)), aligned(8), may_alias));
  using Mask = int64_t __attribute__((vector_size(kLanes * sizeof(int64_t)), aligned(8), may_alias));
};

template <class scalar_t>
using Lanes = typename LaneTypes<scalar_t>::Values;
template <class scalar_t>
using LaneMask = typename LaneTypes<scalar_t>::Mask;

constexpr IntLanes kLaneIndex = {0, 1, 2, 3, 4, 5, 6, 7};

// Loads and stores need no alignment. In a template argument clang forgets which alignment a type was given and takes
// that of a whole vector, so that there it takes a memcpy; of which g++ makes code that runs 1.4 times as long.
template <class Vector, class T>
DR_HD Vector load_lanes(const T* address) {
#if defined(__clang__)
  Vector result;
  __builtin_memcpy(&result, address, sizeof(Vector));
  return result;
#else
  return *reinterpret_cast<const Vector*>(address);
#endif
}

template <class Vector, class T>
DR_HD void store_lanes(T* address, const Vector& value) {
#if defined(__clang__)
  __builtin_memcpy(address, &value, sizeof(Vector));
#else
  *reinterpret_cast<Vector*>(address) = value;
#endif
}

// Lanes kIndex... of a followed by b.
template <int... kIndex, class Vector>
DR_HD Vector shuffle_lanes(const Vector& a, const Vector& b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, kIndex...);
#else
  using Index = decltype(a == b);
  return __builtin_shuffle(a, b, Index{kIndex...});
#endif
}

// a0 b0 a1 b1 ... of the first or the second half of the lanes.
template <class Vector>
DR_HD Vector interleave_low(const Vector& a, const Vector& b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
  using Index = decltype(a == b);
  return __builtin_shuffle(a, b, Index{0, 8, 1, 9, 2, 10, 3, 11});
#endif
}

template <class Vector>
DR_HD Vector interleave_high(const Vector& a, const Vector& b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  using Index = decltype(a == b);
  return __builtin_shuffle(a, b, Index{4, 12, 5, 13, 6, 14, 7, 15});
#endif
}

// Every second element of 2 kLanes of them.
template <class Vector>
DR_HD Vector even_lanes(const Vector& low, const Vector& high) {
#if defined(__clang__)
  return __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14);
#else
  using Index = decltype(low == high);
  return __builtin_shuffle(low, high, Index{0, 2, 4, 6, 8, 10, 12, 14});
#endif
}

template <class Vector>
DR_HD Vector odd_lanes(const Vector& low, const Vector& high) {
#if defined(__clang__)
  return __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15);
#else
  using Index = decltype(low == high);
  return __builtin_shuffle(low, high, Index{1, 3, 5, 7, 9, 11, 13, 15});
#endif
}

// Bit l is set where lane l of a mask is.
DR_HD uint32_t lane_bits(const IntLanes& mask) {
#if defined(__AVX__)
  using Floats = float __attribute__((vector_size(32), aligned(4), may_alias));
  return static_cast<uint32_t>(__builtin_ia32_movmskps256(reinterpret_cast<const Floats&>(mask)));
#else
  uint32_t bits = 0;
  for (int l = 0; l < kLanes; ++l) bits |= static_cast<uint32_t>(mask[l] & 1) << l;
  return bits;
#endif
}

DR_HD bool any_lane(const IntLanes& mask) { return lane_bits(mask) != 0; }

// First item after `begin` that differs from it in ids, at most `end`.
inline int64_t run_end(const int32_t* ids, int64_t begin, int64_t end) {
  const int32_t id = ids[begin];
  int64_t i = begin + 1;
  if (i < end && ids[i] != id) return i;  // spares small triangles the comparison of a block
  for (; i + kLanes <= end; i += kLanes) {
    const uint32_t differs = lane_bits(load_lanes<IntLanes>(ids + i) != id);
    if (differs != 0) return i + __builtin_ctz(differs);
  }
  while (i < end && ids[i] == id) ++i;
  return i;
}

template <class Vector>
DR_HD auto lane_sum(const Vector& v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

// reciprocal_or_zero() of vec.h.
template <class scalar_t>
DR_HD Lanes<scalar_t> reciprocal_or_zero_lanes(const Lanes<scalar_t>& value) {
  const Lanes<scalar_t> size = value < 0 ? -value : value;
  const Lanes<scalar_t> inverse = scalar_t(1) / value;
  return size >= kSmallestNormal<scalar_t> ? inverse : Lanes<scalar_t>{};
}

}  // namespace diffrender
