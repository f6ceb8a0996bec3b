// The only file that names the torch API: LibTorch stable ABI, torch >= 2.10.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <initializer_list>
#include <optional>
#include <tuple>
#include <vector>

namespace diffrender {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Internal invariants only: what a user can get wrong is checked in Python, with a message made for users.
#define DR_CHECK(condition, ...) STD_TORCH_CHECK(condition, __VA_ARGS__)

inline Tensor new_empty(const Tensor& like, std::initializer_list<int64_t> sizes,
                        std::optional<ScalarType> dtype = {}) {
  const std::vector<int64_t> shape(sizes);
  return torch::stable::new_empty(like, {shape.data(), shape.size()}, dtype);
}

inline Tensor new_zeros(const Tensor& like, std::initializer_list<int64_t> sizes,
                        std::optional<ScalarType> dtype = {}) {
  const std::vector<int64_t> shape(sizes);
  return torch::stable::new_zeros(like, {shape.data(), shape.size()}, dtype);
}

inline Tensor as_contiguous(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

template <class T>
const T* data(const Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

template <class T>
T* mutable_data(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

// Pointer of an optional tensor, null where it is absent.
template <class T>
const T* data_or_null(const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? data<T>(*tensor) : nullptr;
}

// Calls f(float()) or f(double()) by the scalar type.
template <class F>
auto dispatch_floating(const Tensor& tensor, F&& f) {
  if (tensor.scalar_type() == ScalarType::Double) return f(double());
  DR_CHECK(tensor.scalar_type() == ScalarType::Float, "expected float32 or float64");
  return f(float());
}

// Makes the device of `tensor` current for the launches of a host function. Nothing to do on the CPU.
class DeviceScope {
 public:
  explicit DeviceScope(const Tensor& tensor) {
    if (tensor.is_cuda()) guard_.emplace(tensor.get_device_index());
  }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

// What torch is given to call. GCC would otherwise compile the body of a host function twice, once as itself and once
// inside torch's caller, which takes its address.
template <auto function>
struct HostFunction;

template <class Result, class... Arguments, Result (*function)(Arguments...)>
struct HostFunction<function> {
  [[gnu::noinline]] static Result call(Arguments... arguments) {
    return function(std::forward<Arguments>(arguments)...);
  }
};

#define DR_BOX(function) TORCH_BOX(&HostFunction<function>::call)

// Registers one host function for the devices that this build supports.
#if defined(DIFFRENDER_CUDA)
#define DR_REGISTER(name, function)                                                 \
  STABLE_TORCH_LIBRARY_IMPL(diffrender, CPU, m) { m.impl(name, DR_BOX(function)); } \
  STABLE_TORCH_LIBRARY_IMPL(diffrender, CUDA, m) { m.impl(name, DR_BOX(function)); }
#else
#define DR_REGISTER(name, function) \
  STABLE_TORCH_LIBRARY_IMPL(diffrender, CPU, m) { m.impl(name, DR_BOX(function)); }
#endif

}  // namespace diffrender
