// The torch API that host functions use: LibTorch stable ABI, torch >= 2.10. What is not a template is in launch.cpp.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <initializer_list>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace diffrender {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

[[noreturn, gnu::cold]] void check_failed(const char* function, const char* file, int line,
                                          std::initializer_list<const char*> message);

// Internal invariants only: what a user can get wrong is checked in Python, with a message made for users. The message
// is one or more C strings. (torch's own macro compiles a new function for every length of every message.)
#define DR_CHECK(condition, ...)                                               \
  do {                                                                         \
    if (!(condition)) [[unlikely]]                                             \
      ::diffrender::check_failed(__func__, __FILE__, __LINE__, {__VA_ARGS__}); \
  } while (false)

Tensor new_empty(const Tensor& like, std::initializer_list<int64_t> sizes, std::optional<ScalarType> dtype = {});
Tensor new_zeros(const Tensor& like, std::initializer_list<int64_t> sizes, std::optional<ScalarType> dtype = {});
Tensor as_contiguous(const Tensor& tensor);

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
  explicit DeviceScope(const Tensor& tensor);

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

// What torch is given to call: takes the arguments of a host function from the stack and leaves its results there. As
// TORCH_BOX, which would compile the body of the function twice, and every conversion inside it. Cold: compiled for
// size, and with it the host function, which takes a third less time; kernels are not affected.
template <auto function>
struct HostFunction;

template <class Result, class... Arguments, Result (*function)(Arguments...)>
struct HostFunction<function> {
  [[gnu::cold]] static void boxed(StableIValue* stack, uint64_t arguments, uint64_t results) {
    call(stack, arguments, results, std::index_sequence_for<Arguments...>());
  }

 private:
  template <size_t... i>
  static void call(StableIValue* stack, uint64_t arguments, uint64_t results, std::index_sequence<i...>) {
    DR_CHECK(arguments == sizeof...(Arguments), "the schema has another number of arguments than its host function");
    store(stack, results, function(torch::stable::detail::to<std::remove_cvref_t<Arguments>>(stack[i])...));
  }

  template <class T>
  static void store(StableIValue* stack, uint64_t results, const T& value) {
    DR_CHECK(results == 1, "the schema has another number of results than its host function");
    stack[0] = torch::stable::detail::from(value);
  }

  template <class... T>
  static void store(StableIValue* stack, uint64_t results, const std::tuple<T...>& values) {
    DR_CHECK(results == sizeof...(T), "the schema has another number of results than its host function");
    std::apply([&](const T&... value) { ((*stack++ = torch::stable::detail::from(value)), ...); }, values);
  }
};

#define DR_BOX(function) &HostFunction<function>::boxed

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
