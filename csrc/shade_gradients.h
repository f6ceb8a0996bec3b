// Launches of kernels over pixels, and where the gradients of their inputs go. Host side, for both devices.
#pragma once

#include <type_traits>

#include "core/launch.h"
#include "core/tensor.h"
#include "shade.h"
#include "shade_packet.h"

namespace diffrender {

// Which body runs: packets of pixels on the CPU and one pixel per thread on CUDA; or the latter everywhere, for tests.
enum class ShadeDriver : int64_t { automatic = 0, one_by_one = 1 };

// A kernel over packets of kLanes pixels instead of single ones.
template <class scalar_t, class Kernel>
struct ShadePackets {
  Kernel kernel;

  void operator()(int64_t begin, int64_t end) const {
    for_each_packet<kLanes>(kernel.in.pixels_per_item, begin, end, [&](int64_t item, int64_t pixel, int count) {
      kernel.template packet<Packet<scalar_t>>(item, pixel, count);
    });
  }

  void operator()(int64_t begin, int64_t end, const Sink<scalar_t>& sink) const {
    for_each_packet<kLanes>(kernel.in.pixels_per_item, begin, end, [&](int64_t item, int64_t pixel, int count) {
      kernel.template packet<Packet<scalar_t>>(item, pixel, count, sink);
    });
  }
};

// float in packets; float64 one by one: its packets would double the time to compile for a type meant for checks.
template <class scalar_t>
constexpr bool kInPackets = std::is_same_v<scalar_t, float>;

// Runs a kernel that writes pixels only.
template <class scalar_t, class Kernel>
void launch_pixels(const Tensor& like, int64_t pixels, const Kernel& kernel, int64_t driver) {
  if constexpr (kInPackets<scalar_t>) {
    if (!like.is_cuda() && static_cast<ShadeDriver>(driver) != ShadeDriver::one_by_one) {
      const ShadePackets<scalar_t, Kernel> packets{kernel};
      parallel_ranges(pixels, kItemsPerPiece, [&](int64_t begin, int64_t end) { packets(begin, end); });
      return;
    }
  }
  launch(like, pixels, kernel);
}

inline bool is_picture(const Tensor& map) { return map.size(1) * map.size(2) != 1; }

// Gradients of maps, and of a small table that all pixels of an item read (lights, coefficients): a tensor like each,
// or an empty one where nobody needs it.
class ShadeGradients {
 public:
  // `table` is [B or 1, N, M]; its elements are the first sums of an item.
  ShadeGradients(const Tensor& table, int64_t batch, int64_t height, int64_t width)
      : table_(table), batch_(batch), height_(height), width_(width) {
    slots_ = static_cast<int32_t>(table.size(1) * table.size(2));
  }

  // To be called for every map in turn; the order of the results.
  int add(const Tensor& map, bool needed) {
    Part part;
    const int64_t channels = map.size(3);
    part.result = new_empty(map, {needed ? map.size(0) : 0, map.size(1), map.size(2), channels});
    part.needed = needed;
    if (needed && !is_picture(map)) {
      part.slot = slots_;
      slots_ += static_cast<int32_t>(channels);
    } else if (needed && map.size(0) != batch_) {
      part.items = new_empty(map, {batch_, map.size(1), map.size(2), channels});
    }
    parts_.push_back(part);
    return static_cast<int>(parts_.size()) - 1;
  }

  template <class scalar_t>
  ShadeGrad<scalar_t> target(int i) const {
    const Part& part = parts_[i];
    if (!part.needed) return {};
    if (part.slot >= 0) return {nullptr, part.slot};
    return {mutable_data<scalar_t>(part.items.has_value() ? *part.items : part.result), -1};
  }

  // Runs the kernel, whose fields that concern sums are set here, and makes all results.
  template <class scalar_t, class Kernel>
  void run(Kernel kernel, bool need_table, int64_t algorithm, int64_t driver) {
    const Tensor& like = table_;
    const auto scatter = static_cast<ScatterAlgorithm>(algorithm);
    const bool in_packets = kInPackets<scalar_t> && !like.is_cuda() && scatter == ScatterAlgorithm::native &&
                            static_cast<ShadeDriver>(driver) != ShadeDriver::one_by_one;
    // Private sums for every piece of an item, whose number depends on sizes alone: the same bits for any number of
    // threads.
    const int64_t pixels = height_ * width_;
    const int64_t pieces = in_packets ? std::clamp<int64_t>(pixels / 4096, 1, 64) : 1;
    kernel.slots = std::max(slots_, 1);
    kernel.spread = in_packets ? kLanes : 32;
    const Tensor sums = new_zeros(like, {batch_, pieces, kernel.slots, kernel.spread});
    if constexpr (kInPackets<scalar_t>) {
      if (in_packets) run_packets<scalar_t>(ShadePackets<scalar_t, Kernel>{kernel}, sums, pixels, pieces);
    }
    if (!in_packets) launch_scatter<scalar_t>(sums, batch_, batch_ * pixels, scatter, kernel);
    table_grad_ = new_empty(like, {need_table ? like.size(0) : 0, like.size(1), like.size(2)});
    if (need_table) collect<scalar_t>(sums, table_grad_, 0, kernel);
    for (const Part& part : parts_) {
      if (part.slot >= 0) collect<scalar_t>(sums, part.result, part.slot, kernel);
      if (part.items.has_value()) {
        const int64_t size = part.result.numel();
        launch(like, size,
               ShadeSumItems<scalar_t>{data<scalar_t>(*part.items), mutable_data<scalar_t>(part.result), size, batch_});
      }
    }
  }

  const Tensor& operator[](int i) const { return parts_[i].result; }
  const Tensor& table() const { return table_grad_; }

 private:
  struct Part {
    Tensor result;
    bool needed = false;
    int32_t slot = -1;            // first sum of a map that the pixels share
    std::optional<Tensor> items;  // gradient of every item, of a picture that the batch shares
  };

  template <class scalar_t, class Packets>
  void run_packets(const Packets& packets, const Tensor& sums, int64_t pixels, int64_t pieces) const {
    const int64_t size = packets.kernel.slots * packets.kernel.spread;
    scalar_t* const values = mutable_data<scalar_t>(sums);
    parallel_tasks(batch_ * pieces, [&](int64_t task) {
      const int64_t item = task / pieces, piece = task % pieces;
      const Sink<scalar_t> sink{values + task * size, item * size};
      packets(item * pixels + piece * pixels / pieces, item * pixels + (piece + 1) * pixels / pieces, sink);
    });
  }

  template <class scalar_t, class Kernel>
  void collect(const Tensor& sums, const Tensor& result, int32_t slot, const Kernel& kernel) const {
    const int64_t rows = result.size(0), size = rows == 0 ? 0 : result.numel() / rows;
    const ShadeCollect<scalar_t> kernel_sums{data<scalar_t>(sums),
                                             mutable_data<scalar_t>(result),
                                             size,
                                             batch_,
                                             sums.size(1),
                                             slot,
                                             kernel.slots,
                                             kernel.spread,
                                             rows == 1};
    launch(sums, result.numel(), kernel_sums);
  }

  Tensor table_;
  int64_t batch_, height_, width_;
  std::vector<Part> parts_;
  int32_t slots_ = 0;
  Tensor table_grad_;
};

}  // namespace diffrender
