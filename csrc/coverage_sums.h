// Derivative of coverage on the CPU: one sum per triangle, which is handed on to the corners at the end.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "coverage_backward.h"

namespace diffrender {

// The triangles that a range of pixels shows, each with its record and the gradients of its lines over all of those
// pixels, relative to the first pixel of its box. A triangle gets its place where it is first asked for, so that those
// next to each other on the screen are next to each other in memory.
class TriangleSums {
 public:
  struct alignas(64) Slot {
    TriangleRecord record;
    CandidateGradient sum;
    int32_t triangle;
  };

  // `fragments`: of the whole range.
  TriangleSums(const CoverageBackward& kernel, const CoverageSetup& setup, const Sink<double>& sink, int64_t fragments)
      : kernel_(kernel), setup_(setup), sink_(sink) {
    // A place for every triangle where that is not much more than there can be, and twice those otherwise.
    const int64_t wanted = std::min<int64_t>(kernel.lists.mesh.triangle_count, 2 * fragments);
    int64_t size = 64;
    while (size < wanted) size *= 2;
    mask_ = static_cast<uint32_t>(size - 1);
    table_.assign(size, kNobody);
  }

  // The item that what follows belongs to. What has been added up before has to be handed on first.
  void begin_item(int64_t item) { item_ = item; }

  Slot& of(int32_t triangle) {
    uint32_t place = static_cast<uint32_t>(triangle) & mask_;
    for (; table_[place] != kNobody; place = (place + 1) & mask_) {
      Slot& slot = at(table_[place]);
      if (slot.triangle == triangle) return slot;
    }
    return add_slot(triangle, place);
  }

  // For CoverageBackward::pixel.
  const TriangleRecord& record(int64_t, int32_t triangle) { return of(triangle).record; }

  void add(int64_t, int32_t column, int32_t row, const Candidate& c, const CandidateGradient& g) {
    CandidateGradient& sum = of(c.triangle).sum;
    const double u = column - c.record->column, v = row - c.record->row;
    for (int k = 0; k < 3; ++k) add_moved(&sum.edge[k], g.edge[k], u, v);
    add_moved(&sum.depth, g.depth, u, v);
  }

  void finish() {
    for (int32_t i = 0; i < count_; ++i) {
      const Slot& slot = at(i);
      const TriangleRecord& r = slot.record;
      if (r.valid != 0) kernel_.flush(item_, r.column, r.row, slot.triangle, r, r.side, r.depth, slot.sum, sink_);
    }
    if (count_ > 0) std::fill(table_.begin(), table_.end(), kNobody);
    count_ = 0;
  }

 private:
  static constexpr int32_t kNobody = -1, kBlock = 64;

  Slot& at(int32_t i) { return blocks_[i / kBlock][i % kBlock]; }

  [[gnu::noinline]] Slot& add_slot(int32_t triangle, uint32_t place) {
    if (count_ == static_cast<int32_t>(blocks_.size()) * kBlock) blocks_.emplace_back(new Slot[kBlock]);
    table_[place] = count_;
    Slot& slot = at(count_++);
    slot.sum = CandidateGradient{};
    slot.triangle = triangle;
    setup_.make(item_, triangle, &slot.record);
    return slot;
  }

  const CoverageBackward& kernel_;
  const CoverageSetup& setup_;
  const Sink<double>& sink_;
  uint32_t mask_;
  std::vector<int32_t> table_;  // number of the slot, by triangle; the next free place where another has it
  std::vector<std::unique_ptr<Slot[]>> blocks_;
  int32_t count_ = 0;
  int64_t item_ = 0;
};

}  // namespace diffrender
