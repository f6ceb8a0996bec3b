// A GPU made of CPU threads, for core/portable.h: real atomics, and warps whose lanes are threads that meet at a
// barrier. The bodies in csrc/ run on it unchanged, so that their logic and their memory accesses can be tested without
// a GPU.
#pragma once

#include <array>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstring>

namespace emulated {

constexpr int kLanesOfWarp = 32;

// Where the lanes of one warp exchange values.
struct Warp {
  std::barrier<> meeting{kLanesOfWarp};
  std::array<uint64_t, kLanesOfWarp> values{};
};

struct Lane {
  Warp* warp = nullptr;
  int number = 0;
};

inline thread_local Lane this_lane;

// What every lane of the warp passed, for each of them to look at.
inline std::array<uint64_t, kLanesOfWarp> exchange(uint64_t value) {
  Warp& warp = *this_lane.warp;
  warp.values[this_lane.number] = value;
  warp.meeting.arrive_and_wait();
  const std::array<uint64_t, kLanesOfWarp> all = warp.values;
  warp.meeting.arrive_and_wait();  // nobody writes again before everybody has read
  return all;
}

inline int warp_lane() { return this_lane.number; }

inline uint32_t warp_match(uint64_t key) {
  const auto all = exchange(key);
  uint32_t lanes = 0;
  for (int i = 0; i < kLanesOfWarp; ++i) lanes |= all[i] == key ? uint32_t(1) << i : 0;
  return lanes;
}

inline uint32_t warp_ballot(bool value) {
  const auto all = exchange(value ? 1 : 0);
  uint32_t lanes = 0;
  for (int i = 0; i < kLanesOfWarp; ++i) lanes |= all[i] != 0 ? uint32_t(1) << i : 0;
  return lanes;
}

inline bool warp_any(bool value) { return warp_ballot(value) != 0; }

template <class T>
T warp_read(T value, int lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  const uint64_t read = exchange(bits)[lane];
  std::memcpy(&value, &read, sizeof(T));
  return value;
}

template <class T>
T read(const T* address) {
  return std::atomic_ref<T>(*const_cast<T*>(address)).load(std::memory_order_relaxed);
}

template <class T>
void atomic_min(T* address, T value) {
  std::atomic_ref<T> target(*address);
  for (T seen = target.load(std::memory_order_relaxed); value < seen && !target.compare_exchange_weak(seen, value);) {
  }
}

template <class T>
void atomic_max(T* address, T value) {
  std::atomic_ref<T> target(*address);
  for (T seen = target.load(std::memory_order_relaxed); value > seen && !target.compare_exchange_weak(seen, value);) {
  }
}

inline std::atomic<int64_t> additions{0};  // how many there were, of floats and integers

template <class T>
T atomic_add(T* address, T value) {
  additions.fetch_add(1, std::memory_order_relaxed);
  return std::atomic_ref<T>(*address).fetch_add(value, std::memory_order_relaxed);
}

}  // namespace emulated
