// Lists of unknown length, on the CPU (a GPU would make the host wait for how long they are): indices of marks, sums
// before each count. On both devices: number of marks, running sums, order by key. All of them deterministic.
#pragma once

#include <array>
#include <utility>

#include "launch.h"

namespace diffrender {

namespace detail {

template <class... Args>
std::array<StableIValue, sizeof...(Args)> call_aten(const char* name, const char* overload, const Args&... args) {
  std::array<StableIValue, sizeof...(Args)> stack{torch::stable::detail::from(args)...};
  DR_CHECK(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION) == 0, name, " failed");
  return stack;
}

inline Tensor as_tensor(StableIValue value) { return torch::stable::detail::to<Tensor>(value); }

// Calls body(i) for the marks that are set in [begin, end).
template <class F>
void for_each_mark(const uint8_t* marks, int64_t begin, int64_t end, const F& body) {
  for (int64_t i = begin; i < end;) {
    if (i + 8 <= end && load_word(marks + i) == 0) {
      i += 8;
      continue;
    }
    for (const int64_t stop = std::min(end, i + 8); i < stop; ++i) {
      if (marks[i] != 0) body(i);
    }
  }
}

}  // namespace detail

// How many of the marks (N,) uint8 are set, if each is 1: (1,) int64 on the device, which is not waited for.
inline Tensor count_marks(const Tensor& marks) {
  const std::optional<ScalarType> type = ScalarType::Long;
  return detail::as_tensor(detail::call_aten("aten::sum", "", marks, type)[0]);
}

// Indices of the marks (N,) uint8 on the CPU that are set, ascending: (M,) int64.
inline Tensor marked_indices(const Tensor& marks) {
  DR_CHECK(!marks.is_cuda(), "marked_indices: the host would wait for the device");
  const int64_t n = marks.numel();
  constexpr int64_t kPiece = 65536;
  const uint8_t* const values = data<uint8_t>(marks);
  std::vector<int64_t> before((n + kPiece - 1) / kPiece + 1, 0);
  parallel_ranges(n, kPiece, [&](int64_t begin, int64_t end) {
    int64_t count = 0;
    detail::for_each_mark(values, begin, end, [&](int64_t) { ++count; });
    before[begin / kPiece + 1] = count;
  });
  for (size_t i = 1; i < before.size(); ++i) before[i] += before[i - 1];
  const Tensor result = new_empty(marks, {before.back()}, ScalarType::Long);
  int64_t* const out = mutable_data<int64_t>(result);
  parallel_ranges(n, kPiece, [&](int64_t begin, int64_t end) {
    int64_t place = before[begin / kPiece];
    if (place == before[begin / kPiece + 1]) return;
    detail::for_each_mark(values, begin, end, [&](int64_t i) { out[place++] = i; });
  });
  return result;
}

// (N,) int64 counts -> (N + 1,) sum of all counts before each, the sum of all at the end. Does not wait for the device.
inline Tensor running_sums(const Tensor& counts) {
  const int64_t n = counts.numel();
  Tensor sums = new_zeros(counts, {n + 1}, ScalarType::Long);
  if (counts.is_cuda() && n > 0) {
    const std::optional<ScalarType> same_type;
    const Tensor running = detail::as_tensor(detail::call_aten("aten::cumsum", "", counts, int64_t(0), same_type)[0]);
    Tensor rest = torch::stable::narrow(sums, 0, 1, n);
    torch::stable::copy_(rest, running);
    return sums;
  }
  const int64_t* const in = data<int64_t>(counts);
  int64_t* const out = mutable_data<int64_t>(sums);
  for (int64_t i = 0; i < n; ++i) out[i + 1] = out[i] + in[i];
  return sums;
}

// running_sums on the CPU, and the sum of all.
inline std::pair<Tensor, int64_t> sums_before(const Tensor& counts) {
  DR_CHECK(!counts.is_cuda(), "sums_before: the host would wait for the device");
  Tensor sums = running_sums(counts);
  return {sums, data<int64_t>(sums)[counts.numel()]};
}

// Sorts (N,) int64 keys; equal keys keep their order. Returns the sorted keys and where each of them was.
inline std::pair<Tensor, Tensor> sort_keys(const Tensor& keys) {
  const std::optional<bool> stable = true;
  const auto results = detail::call_aten("aten::sort", "stable", keys, stable, int64_t(0), false);
  return {detail::as_tensor(results[0]), detail::as_tensor(results[1])};
}

}  // namespace diffrender
