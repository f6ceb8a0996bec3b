// Runs a kernel functor over a range of items, on the device of a tensor. The CPU branch is here; the CUDA branch calls
// templates that only the .cu files instantiate (launch_cuda.cuh), so that host code is shared by both devices.
#pragma once

#include "portable.h"
#include "scatter.h"
#include "tensor.h"

namespace diffrender {

template <class F>
void launch_cuda(int64_t n, const F& functor, int32_t device_index);

template <class F, class scalar_t>
void launch_scatter_cuda(int64_t n, const F& functor, const Sink<scalar_t>& sink, int32_t device_index);

namespace detail {

// What launch.cpp holds knows kernels by address only. It is compiled once, not once for each of them, and the body of
// a kernel is compiled away from the host function that starts it.
using RunTask = void (*)(const void* task, int64_t i);
using RunRange = void (*)(const void* functor, int64_t begin, int64_t end);
template <class scalar_t>
using RunScatter = void (*)(const void* functor, int64_t begin, int64_t end, scalar_t* values, int64_t offset);
template <class scalar_t>
using RunFixedPoint = void (*)(const void* functor, int64_t n, const Sink<scalar_t>& sink, const Tensor& grad);

void run_tasks(int64_t n, const void* task, RunTask run);
void run_ranges(int64_t n, int64_t piece, const void* functor, RunRange run);

}  // namespace detail

// Calls task(0) ... task(n - 1) on the threads of torch, each taking the next one that is free. The result may not
// depend on which thread runs which task.
template <class F>
void parallel_tasks(int64_t n, const F& task) {
  detail::run_tasks(n, &task, [](const void* erased, int64_t i) { (*static_cast<const F*>(erased))(i); });
}

// Cuts [0, n) into pieces of about `piece` items and calls body(begin, end) for each, in parallel.
template <class F>
void parallel_ranges(int64_t n, int64_t piece, const F& body) {
  detail::run_ranges(n, piece, &body, [](const void* erased, int64_t begin, int64_t end) {
    const F own = *static_cast<const F*>(erased);  // a copy, which no store of the kernel can be thought to change
    own(begin, end);
  });
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
  parallel_ranges(n, piece, functor);
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
// per_item: how often an item may add to the same element; items_on_device: see scatter_without_buffers.
template <class scalar_t>
void scatter_fixed_point(const Tensor& grad, int64_t n, const void* functor, RunFixedPoint<scalar_t> run,
                         int64_t per_item, const int64_t* items_on_device);

// Private buffers, whose number depends on sizes alone, added up in their order.
template <class scalar_t>
void scatter_cpu(const Tensor& grad, int64_t targets, int64_t n, const void* functor, RunScatter<scalar_t> run,
                 int64_t contributions);

template <class scalar_t, class F>
void scatter_cpu(const Tensor& grad, int64_t targets, int64_t n, const F& functor, int64_t contributions = -1) {
  scatter_cpu<scalar_t>(
      grad, targets, n, &functor,
      [](const void* erased, int64_t begin, int64_t end, scalar_t* values, int64_t offset) {
        const F own = *static_cast<const F*>(erased);  // see parallel_ranges
        own(begin, end, Sink<scalar_t>{values, offset});
      },
      contributions);
}

// Cold on the CPU: see launch_in_order.
template <class scalar_t, class F>
[[gnu::cold]] void run_fixed_point(const void* erased, int64_t n, const Sink<scalar_t>& sink, const Tensor& grad) {
  const F& functor = *static_cast<const F*>(erased);
  if (!grad.is_cuda()) {
    functor(int64_t(0), n, sink);
    return;
  }
#if defined(DIFFRENDER_CUDA)
  launch_scatter_cuda(n, functor, sink, grad.get_device_index());
#endif
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
    detail::scatter_fixed_point<scalar_t>(grad, n, &functor, &detail::run_fixed_point<scalar_t, F>, per_item,
                                          items_on_device);
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
