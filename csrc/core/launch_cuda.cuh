// Grid kernels behind launch.h and the macros that instantiate them. Includes no torch header: nvcc compiles it fast.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "portable.h"

// Weak, so that a library with CUDA kernels also loads where torch has no CUDA.
extern "C" __attribute__((weak)) int aoti_torch_get_current_cuda_stream(int32_t device_index, void** ret_stream);

namespace diffrender {

constexpr int kThreadsPerBlock = 256;
constexpr int64_t kMaximumBlocks = int64_t(1) << 30;

template <class F>
__global__ void __launch_bounds__(kThreadsPerBlock) range_kernel(int64_t n, const F functor) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) functor(i, i + 1);
}

template <class F, class scalar_t>
__global__ void __launch_bounds__(kThreadsPerBlock)
    scatter_kernel(int64_t n, const F functor, const Sink<scalar_t> sink) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    functor(i, i + 1, sink);
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

inline unsigned grid_size(int64_t n) {
  return static_cast<unsigned>(std::min((n + kThreadsPerBlock - 1) / kThreadsPerBlock, kMaximumBlocks));
}

template <class F>
void launch_cuda(int64_t n, const F& functor, int32_t device_index) {
  range_kernel<<<grid_size(n), kThreadsPerBlock, 0, current_stream(device_index)>>>(n, functor);
  check_cuda(cudaGetLastError());
}

template <class F, class scalar_t>
void launch_scatter_cuda(int64_t n, const F& functor, const Sink<scalar_t>& sink, int32_t device_index) {
  scatter_kernel<<<grid_size(n), kThreadsPerBlock, 0, current_stream(device_index)>>>(n, functor, sink);
  check_cuda(cudaGetLastError());
}

}  // namespace diffrender

#define DR_INSTANTIATE_LAUNCH(...) template void diffrender::launch_cuda(int64_t, const __VA_ARGS__&, int32_t);
#define DR_INSTANTIATE_SCATTER(scalar_t, ...)                                                                   \
  template void diffrender::launch_scatter_cuda(int64_t, const __VA_ARGS__&, const diffrender::Sink<scalar_t>&, \
                                                int32_t);
