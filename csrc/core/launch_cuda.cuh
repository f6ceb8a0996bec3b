// Grid kernels behind launch.h and the macros that instantiate them. Includes no torch header: nvcc compiles it fast.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "scatter.h"

// Weak, so that a library with CUDA kernels also loads where torch has no CUDA.
extern "C" __attribute__((weak)) int aoti_torch_get_current_cuda_stream(int32_t device_index, void** ret_stream);

namespace diffrender {

constexpr int kThreadsPerBlock = 256;
// At least: without the number ptxas spills registers to fit more, which costs more than it gains.
constexpr int kBlocksPerMultiprocessor = 1;
constexpr int64_t kMaximumBlocks = int64_t(1) << 30;

template <class F>
__global__ void __launch_bounds__(kThreadsPerBlock, kBlocksPerMultiprocessor) range_kernel(int64_t n, const F functor) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) functor(i, i + 1);
}

template <class F, class scalar_t>
__global__ void __launch_bounds__(kThreadsPerBlock, kBlocksPerMultiprocessor)
    scatter_kernel(int64_t n, const F functor, const Sink<scalar_t> sink) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if constexpr (TakesRuns<F>) {
    // All lanes of a warp stay together to the end: those beyond the last item get an empty range.
    for (; i - warp_lane() < n; i += stride) functor(i < n ? i : n, i < n ? i + 1 : n, sink);
  } else {
    for (; i < n; i += stride) functor(i, i + 1, sink);
  }
}

inline void check_cuda(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(status));
}

inline cudaStream_t current_stream(int32_t device_index) {
  void* stream = nullptr;
  if (!aoti_torch_get_current_cuda_stream) throw std::runtime_error("this torch has no CUDA support");
  if (aoti_torch_get_current_cuda_stream(device_index, &stream) != 0) {
    throw std::runtime_error("torch did not give its current CUDA stream");
  }
  return static_cast<cudaStream_t>(stream);
}

// The CUDA runtime inside this library is another one than torch's, for which the guard of a host function sets the
// device.
inline void use_device(int32_t device_index) {
  int current = -1;
  check_cuda(cudaGetDevice(&current));
  if (current != device_index) check_cuda(cudaSetDevice(device_index));
}

inline unsigned grid_size(int64_t n) {
  return static_cast<unsigned>(std::min((n + kThreadsPerBlock - 1) / kThreadsPerBlock, kMaximumBlocks));
}

template <class F>
void launch_cuda(int64_t n, const F& functor, int32_t device_index) {
  use_device(device_index);
  range_kernel<<<grid_size(n), kThreadsPerBlock, 0, current_stream(device_index)>>>(n, functor);
  check_cuda(cudaGetLastError());
}

template <class F, class scalar_t>
void launch_scatter_cuda(int64_t n, const F& functor, const Sink<scalar_t>& sink, int32_t device_index) {
  use_device(device_index);
  scatter_kernel<<<grid_size(n), kThreadsPerBlock, 0, current_stream(device_index)>>>(n, functor, sink);
  check_cuda(cudaGetLastError());
}

}  // namespace diffrender

#define DR_INSTANTIATE_LAUNCH(...) template void diffrender::launch_cuda(int64_t, const __VA_ARGS__&, int32_t);
#define DR_INSTANTIATE_SCATTER(scalar_t, ...)                                                                   \
  template void diffrender::launch_scatter_cuda(int64_t, const __VA_ARGS__&, const diffrender::Sink<scalar_t>&, \
                                                int32_t);
