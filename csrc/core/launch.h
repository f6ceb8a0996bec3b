// Runs a kernel functor over a range of items, on the device of a tensor. The CPU branch is here; the CUDA branch calls
// templates that only the .cu files instantiate (launch_cuda.cuh), so that host code is shared by both devices.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "portable.h"
#include "scatter.h"
#include "tensor.h"

namespace diffrender {

template <class F>
void launch_cuda(int64_t n, const F& functor, int32_t device_index);

template <class F, class scalar_t>
void launch_scatter_cuda(int64_t n, const F& functor, const Sink<scalar_t>& sink, int32_t device_index);

// Calls task(0) ... task(n - 1) on the threads of torch, each taking the next one that is free. The result may not
// depend on which thread runs which task.
template <class F>
void parallel_tasks(int64_t n, const F& task) {
  std::atomic<int64_t> next{0};
  // Never inlined: the body of a kernel is compiled once, not once for each way to get here.
  const auto work = [&]() __attribute__((noinline)) {
    for (int64_t i = next.fetch_add(1); i < n; i = next.fetch_add(1)) task(i);
  };
  const int64_t threads = std::min<int64_t>(torch::stable::get_num_threads(), n);
  if (threads <= 1) {
    work();
    return;
  }
  torch::stable::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) work();
  });
}

// Cuts [0, n) into pieces of about `piece` items and calls body(begin, end) for each, in parallel.
template <class F>
void parallel_ranges(int64_t n, int64_t piece, const F& body) {
  const int64_t tasks = (n + piece - 1) / piece;
  parallel_tasks(tasks, [&](int64_t i) { body(i * piece, std::min(n, (i + 1) * piece)); });
}

constexpr int64_t kItemsPerPiece = 16384;

namespace detail {

template <class F>
void launch_on_cuda([[maybe_unused]] const Tensor& like, [[maybe_unused]] int64_t n,
                    [[maybe_unused]] const F& functor) {
#if defined(DIFFRENDER_CUDA)
  launch_cuda(n, functor, like.get_device_index());
#else
  DR_CHECK(false, "this build of diffrender has no CUDA kernels");
#endif
}

}  // namespace detail

// functor(begin, end) for ranges that together cover [0, n); on CUDA one item per thread, on the CPU `piece` at a time.
template <class F>
void launch(const Tensor& like, int64_t n, const F& functor, int64_t piece = kItemsPerPiece) {
  if (n <= 0) return;
  if (like.is_cuda()) {
    detail::launch_on_cuda(like, n, functor);
    return;
  }
  parallel_ranges(n, piece, [&](int64_t begin, int64_t end) { functor(begin, end); });
}

// launch() for functors made for the GPU alone, which on the CPU, under test, run in order on one thread. Cold:
// compiled for size, which takes less time.
template <class F>
[[gnu::cold]] void launch_in_order(const Tensor& like, int64_t n, const F& functor) {
  if (n <= 0) return;
  if (like.is_cuda()) {
    detail::launch_on_cuda(like, n, functor);
    return;
  }
  functor(int64_t(0), n);
}

// Which sums a scatter uses. On the CPU `native` is already the same for any number of threads.
enum class ScatterAlgorithm : int64_t { native = 0, fixed_point = 1 };

namespace detail {

// The order-free sum: every contribution becomes a multiple of one power of two, chosen from the largest of them, and
// integers add up to the same total in any order. On the CPU it runs on one thread, so that its logic is tested there.
// per_item: how often an item may add to the same element; items_on_device: see scatter_without_buffers. Cold on the
// CPU: see launch_in_order.
template <class scalar_t, class F>
[[gnu::cold]] void scatter_fixed_point(const Tensor& grad, int64_t n, const F& functor, int64_t per_item = 1,
                                       const int64_t* items_on_device = nullptr) {
  const int64_t size = grad.numel();
  const Tensor fixed = new_zeros(grad, {size}, ScalarType::Long);
  const Tensor largest = new_zeros(grad, {1}, ScalarType::Long);
  const Tensor unit = new_empty(grad, {2}, ScalarType::Double);
  Sink<scalar_t> sink{mutable_data<scalar_t>(grad)};
  sink.largest = mutable_data<uint64_t>(largest);
  sink.fixed = mutable_data<int64_t>(fixed);
  sink.unit = mutable_data<double>(unit);
  for (const ScatterMode mode : {ScatterMode::measure, ScatterMode::fixed}) {
    sink.mode = mode;
    if (grad.is_cuda()) {
#if defined(DIFFRENDER_CUDA)
      launch_scatter_cuda(n, functor, sink, grad.get_device_index());
#endif
    } else {
      functor(int64_t(0), n, sink);
    }
    if (mode == ScatterMode::measure) {
      const int64_t contributions = items_on_device != nullptr ? per_item : n * per_item;
      launch(grad, 1, FixedPointUnit{sink.largest, mutable_data<double>(unit), contributions, items_on_device});
    }
  }
  launch(grad, size, FixedPointFinish<scalar_t>{sink.values, sink.fixed, sink.unit});
}

// Private buffers per target on the CPU. Depends on sizes alone, never on the number of threads, so that the order of
// every addition is always the same. More buffers balance better; each costs one pass over the target.
inline int64_t scatter_chunks(int64_t contributions, int64_t target_size) {
  const int64_t affordable = std::max<int64_t>(contributions / std::max<int64_t>(target_size, 1), 2);
  const int64_t useful = (contributions + 4095) / 4096;
  const bool sparse = contributions * 8 < target_size;  // clearing a second buffer costs more than all additions
  return sparse ? 1 : std::max<int64_t>(1, std::min({useful, affordable, int64_t(16)}));
}

template <class scalar_t, class F>
void scatter_cpu(const Tensor& grad, int64_t targets, int64_t n, const F& functor, int64_t contributions = -1) {
  if (n <= 0 || grad.numel() == 0) return;
  const int64_t target_size = grad.numel() / targets;
  const int64_t items = n / targets;
  const int64_t chunks = scatter_chunks((contributions < 0 ? n : contributions) / targets, target_size);
  scalar_t* const output = mutable_data<scalar_t>(grad);
  const std::unique_ptr<scalar_t[]> scratch(new scalar_t[targets * (chunks - 1) * target_size]);
  parallel_tasks(targets * chunks, [&](int64_t task) {
    const int64_t target = task / chunks, chunk = task % chunks;
    const int64_t offset = target * target_size;
    scalar_t* buffer = output + offset;
    if (chunk > 0) {
      buffer = scratch.get() + (target * (chunks - 1) + chunk - 1) * target_size;
      std::memset(buffer, 0, sizeof(scalar_t) * target_size);
    }
    functor(target * items + chunk * items / chunks, target * items + (chunk + 1) * items / chunks,
            Sink<scalar_t>{buffer, offset});
  });
  if (chunks == 1) return;
  parallel_ranges(targets * target_size, kItemsPerPiece, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t target = begin / target_size;
      const int64_t stop = std::min(end, (target + 1) * target_size);
      const int64_t first = begin - target * target_size;
      for (int64_t chunk = 0; chunk + 1 < chunks; ++chunk) {
        const scalar_t* const part = scratch.get() + (target * (chunks - 1) + chunk) * target_size + first;
        for (int64_t i = 0; i < stop - begin; ++i) output[begin + i] += part[i];
      }
      begin = stop;
    }
  });
}

}  // namespace detail

// Of launch_scatter below what the CPU needs no private buffers for: CUDA, and the order-free sum on both.
// items_on_device [1]: how many items there are that may add `per_item` times to the same element, where that is not n
// because the n threads of `functor` share out what only the device has counted; null: n.
template <class scalar_t, class F>
void scatter_without_buffers(const Tensor& grad, int64_t n, ScatterAlgorithm algorithm, const F& functor,
                             int64_t per_item = 1, const int64_t* items_on_device = nullptr) {
  if (n <= 0 || grad.numel() == 0) return;
  if (algorithm == ScatterAlgorithm::fixed_point) {
    detail::scatter_fixed_point<scalar_t>(grad, n, functor, per_item, items_on_device);
    return;
  }
#if defined(DIFFRENDER_CUDA)
  launch_scatter_cuda(n, functor, Sink<scalar_t>{mutable_data<scalar_t>(grad)}, grad.get_device_index());
#else
  DR_CHECK(false, "this build of diffrender has no CUDA kernels");
#endif
}

// functor(begin, end, sink) for ranges that together cover [0, n); what it adds through accumulate(sink, ...) ends in
// `grad`, which must be zero on entry. `targets` = number of equal parts of `grad` of which items [t n / targets,
// (t + 1) n / targets) write only part t: the batch size for a batched gradient, 1 for one that the batch shares.
// `contributions` = about how many items write anything; it only decides how the CPU splits the work.
template <class scalar_t, class F>
void launch_scatter(const Tensor& grad, int64_t targets, int64_t n, ScatterAlgorithm algorithm, const F& functor,
                    int64_t contributions = -1) {
  if (algorithm == ScatterAlgorithm::fixed_point || grad.is_cuda()) {
    scatter_without_buffers<scalar_t>(grad, n, algorithm, functor);
    return;
  }
  detail::scatter_cpu<scalar_t>(grad, targets, n, functor, contributions);
}

}  // namespace diffrender
