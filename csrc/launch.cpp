// What core/tensor.h and core/launch.h declare: the parts of host code that no kernel has to be compiled into.
#include "core/launch.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace diffrender {

void check_failed(const char* function, const char* file, int line, std::initializer_list<const char*> message) {
  std::string text = std::string(function) + ", " + file + ":" + std::to_string(line) + ", ";
  for (const char* const part : message) text += part;
  throw std::runtime_error(text);
}

Tensor new_empty(const Tensor& like, std::initializer_list<int64_t> sizes, std::optional<ScalarType> dtype) {
  const std::vector<int64_t> shape(sizes);
  return torch::stable::new_empty(like, {shape.data(), shape.size()}, dtype);
}

Tensor new_zeros(const Tensor& like, std::initializer_list<int64_t> sizes, std::optional<ScalarType> dtype) {
  const std::vector<int64_t> shape(sizes);
  return torch::stable::new_zeros(like, {shape.data(), shape.size()}, dtype);
}

Tensor as_contiguous(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

DeviceScope::DeviceScope(const Tensor& tensor) {
  if (tensor.is_cuda()) guard_.emplace(tensor.get_device_index());
}

namespace detail {
namespace {

// Depends on sizes alone, never on the number of threads, so that the order of every addition is always the same. More
// buffers balance better; each costs one pass over the target.
int64_t scatter_chunks(int64_t contributions, int64_t target_size) {
  const int64_t affordable = std::max<int64_t>(contributions / std::max<int64_t>(target_size, 1), 2);
  const int64_t useful = (contributions + 4095) / 4096;
  const bool sparse = contributions * 8 < target_size;  // clearing a second buffer costs more than all additions
  return sparse ? 1 : std::max<int64_t>(1, std::min({useful, affordable, int64_t(16)}));
}

}  // namespace

void run_tasks(int64_t n, const void* task, RunTask run) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t i = next.fetch_add(1); i < n; i = next.fetch_add(1)) run(task, i);
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

void run_ranges(int64_t n, int64_t piece, const void* functor, RunRange run) {
  const int64_t tasks = (n + piece - 1) / piece;
  parallel_tasks(tasks, [&](int64_t i) { run(functor, i * piece, std::min(n, (i + 1) * piece)); });
}

template <class scalar_t>
void scatter_fixed_point(const Tensor& grad, int64_t n, const void* functor, RunFixedPoint<scalar_t> run,
                         int64_t per_item, const int64_t* items_on_device) {
  const int64_t size = grad.numel();
  const Tensor fixed = new_zeros(grad, {size}, ScalarType::Long);
  const Tensor largest = new_zeros(grad, {1}, ScalarType::Long);
  const Tensor unit = new_empty(grad, {2}, ScalarType::Double);
  Sink<scalar_t> sink{mutable_data<scalar_t>(grad)};
  sink.largest = mutable_data<uint64_t>(largest);
  sink.fixed = mutable_data<int64_t>(fixed);
  sink.unit = mutable_data<double>(unit);
  sink.mode = ScatterMode::measure;
  run(functor, n, sink, grad);
  const int64_t contributions = items_on_device != nullptr ? per_item : n * per_item;
  launch(grad, 1, FixedPointUnit{sink.largest, mutable_data<double>(unit), contributions, items_on_device});
  sink.mode = ScatterMode::fixed;
  run(functor, n, sink, grad);
  launch(grad, size, FixedPointFinish<scalar_t>{sink.values, sink.fixed, sink.unit});
}

template <class scalar_t>
void scatter_cpu(const Tensor& grad, int64_t targets, int64_t n, const void* functor, RunScatter<scalar_t> run,
                 int64_t contributions) {
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
    run(functor, target * items + chunk * items / chunks, target * items + (chunk + 1) * items / chunks, buffer,
        offset);
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

template void scatter_fixed_point(const Tensor&, int64_t, const void*, RunFixedPoint<float>, int64_t, const int64_t*);
template void scatter_fixed_point(const Tensor&, int64_t, const void*, RunFixedPoint<double>, int64_t, const int64_t*);
template void scatter_cpu(const Tensor&, int64_t, int64_t, const void*, RunScatter<float>, int64_t);
template void scatter_cpu(const Tensor&, int64_t, int64_t, const void*, RunScatter<double>, int64_t);

}  // namespace detail
}  // namespace diffrender
