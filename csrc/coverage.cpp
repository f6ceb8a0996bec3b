// Host side of coverage and its backward, for both devices. All floats are float64: exact regions need its digits.
#include "coverage.h"

#include <atomic>

#include "core/launch.h"
#include "core/tensor.h"
#include "coverage_backward_cpu.h"
#include "coverage_cpu.h"

namespace diffrender {
namespace {

constexpr int64_t kBlockThreads = int64_t(1) << 18;            // of the GPU
constexpr int64_t kMaximumWorkers = 32768;                     // of the GPU
constexpr int64_t kScratchBytes = int64_t(512) * 1024 * 1024;  // for all of them

RasterMesh<double> coverage_mesh(const Tensor& positions, const Tensor& triangles, const std::optional<Tensor>& ranges,
                                 int64_t cull) {
  DR_CHECK(positions.dim() == 3 && positions.size(2) == 4, "coverage: clip_positions must have shape (B, V, 4)");
  DR_CHECK(positions.scalar_type() == ScalarType::Double, "coverage: clip_positions must be float64");
  DR_CHECK(triangles.dim() == 2 && triangles.size(1) == 3, "coverage: triangles must have shape (T, 3)");
  DR_CHECK(triangles.scalar_type() == ScalarType::Int, "coverage: triangles must be int32");
  return {data<double>(positions),
          data<int32_t>(triangles),
          data_or_null<int32_t>(ranges),
          positions.size(0) == 1 ? 0 : positions.size(1) * 4,
          static_cast<int32_t>(positions.size(1)),
          static_cast<int32_t>(triangles.size(0)),
          static_cast<Cull>(cull)};
}

FragmentKind* kinds_of(const Tensor& tensor) { return reinterpret_cast<FragmentKind*>(mutable_data<uint8_t>(tensor)); }
PixelBox* boxes_of(const Tensor& tensor) { return static_cast<PixelBox*>(tensor.mutable_data_ptr()); }

// One tensor holds the records of all triangles and, behind them, the depth ranges of all triangles.
constexpr int64_t kRecordBytes = sizeof(TriangleRecord) + sizeof(DepthRange);

TriangleRecord* records_of(const Tensor& tensor) { return static_cast<TriangleRecord*>(tensor.mutable_data_ptr()); }
DepthRange* ranges_of(const Tensor& tensor) {
  return reinterpret_cast<DepthRange*>(records_of(tensor) + tensor.numel() / kRecordBytes);
}

// Pixel boxes (B, T, 4), records (B, T, bytes) and the number of 16 x 16 blocks in each box (B, T).
std::tuple<Tensor, Tensor, Tensor> coverage_setup(const Tensor& clip_positions, const Tensor& triangle_indices,
                                                  const std::optional<Tensor>& item_ranges, int64_t height,
                                                  int64_t width, int64_t cull) {
  const DeviceScope device(clip_positions);
  const Tensor positions = as_contiguous(clip_positions), triangles = as_contiguous(triangle_indices);
  std::optional<Tensor> ranges;
  if (item_ranges.has_value()) ranges = as_contiguous(*item_ranges);
  const int64_t batch = ranges.has_value() ? ranges->size(0) : positions.size(0), count = triangles.size(0);
  const Tensor boxes = new_empty(positions, {batch, count, 4}, ScalarType::Int);
  const Tensor records = new_empty(positions, {batch, count, kRecordBytes}, ScalarType::Byte);
  const Tensor blocks = new_empty(positions, {batch, count}, ScalarType::Long);
  launch(positions, batch * count,
         CoverageSetup{coverage_mesh(positions, triangles, ranges, cull), Viewport<double>::make(width, height),
                       boxes_of(boxes), records_of(records), ranges_of(records)});
  launch(positions, batch * count, CoverageBlockCount{boxes_of(boxes), mutable_data<int64_t>(blocks)});
  return {boxes, records, blocks};
}

// How many fragments there are, how many candidates, and how many of those the pixel with most has.
struct ListSizes {
  int64_t fragments, candidates, longest;
};

void check_capacity(const ListSizes& found, const ListSizes& room) {
  const auto check = [](int64_t needed, int64_t given, const char* what) {
    if (needed <= given) return;
    const std::string numbers = std::to_string(needed) + what + ", got " + std::to_string(given);
    throw std::runtime_error("coverage: capacity must be at least " + numbers + ".");
  };
  check(found.candidates, room.candidates, " candidates");
  check(found.longest, room.longest, " candidates in one pixel");
  check(found.fragments, room.fragments, " fragments");
}

// All fragments on the CPU: triangle, weight, barycentrics, depth, offsets, kinds; and ListSizes (3).
// With a capacity the lists have that length, and more than it, of candidates too, is an error; without one it is -1.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> coverage_fragments(
    const Tensor& clip_positions, const Tensor& triangle_indices, const std::optional<Tensor>& item_ranges,
    int64_t height, int64_t width, int64_t cull, bool merge, bool is_double, int64_t capacity,
    int64_t candidate_capacity, int64_t pixel_capacity) {
  DR_CHECK(!clip_positions.is_cuda(), "coverage_fragments: on CUDA the lists have to be made one by one");
  const Tensor positions = as_contiguous(clip_positions), triangles = as_contiguous(triangle_indices);
  const auto [boxes, records, blocks_of_boxes] = coverage_setup(positions, triangles, item_ranges, height, width, cull);
  const int64_t batch = boxes.size(0), pixels = height * width;
  const CoverageStrips strips(boxes_of(boxes), batch, triangles.size(0), height);
  const int64_t tasks = batch * strips.per_item;
  const CoverageForward kernel{
      {coverage_mesh(positions, triangles, std::nullopt, 0), Viewport<double>::make(width, height), records_of(records),
       ranges_of(records), nullptr, nullptr},
      merge,
      nullptr,
      {}};
  const Tensor offsets = new_empty(boxes, {batch * pixels + 1}, ScalarType::Long);
  int64_t* const ends = mutable_data<int64_t>(offsets) + 1;
  ends[-1] = 0;
  const auto first_pixel = [&](int64_t strip) {
    return (strip / strips.per_item * height + strip % strips.per_item * kStripRows) * width;
  };
  const int64_t workers = std::min<int64_t>(torch::stable::get_num_threads(), tasks);
  std::vector<StripFragments> found(tasks);
  std::vector<FragmentBlocks> blocks(workers);
  std::atomic<int64_t> next{0};
  parallel_tasks(workers, [&](int64_t thread) {
    StripWorker worker(kernel, boxes_of(boxes), &blocks[thread]);
    for (int64_t i = next.fetch_add(1); i < tasks; i = next.fetch_add(1)) {
      found[i].is_double = is_double;
      worker.run(i / strips.per_item, i % strips.per_item, strips.triangles.get() + strips.offsets[i],
                 strips.offsets[i + 1] - strips.offsets[i], &found[i], ends + first_pixel(i));
    }
  });
  std::vector<int64_t> first(tasks + 1, 0);
  ListSizes sizes = {0, 0, 0};
  for (int64_t i = 0; i < tasks; ++i) {
    first[i + 1] = first[i] + found[i].count;
    sizes.candidates += found[i].candidates;
    sizes.longest = std::max(sizes.longest, found[i].longest);
  }
  sizes.fragments = first[tasks];
  const bool is_limited = capacity >= 0;
  if (is_limited) check_capacity(sizes, {capacity, candidate_capacity, pixel_capacity});
  const int64_t total = is_limited ? capacity : first[tasks], float_bytes = is_double ? 8 : 4;
  const ScalarType type = is_double ? ScalarType::Double : ScalarType::Float;
  const Tensor triangle_id = new_empty(triangles, {total}, ScalarType::Int);
  const Tensor weight = new_empty(positions, {total}, type), depth = new_empty(positions, {total}, type);
  const Tensor barycentrics = new_empty(positions, {total, 2}, type),
               kinds = new_empty(boxes, {total}, ScalarType::Byte);
  const Tensor numbers = new_empty(boxes, {3}, ScalarType::Long);
  *static_cast<ListSizes*>(numbers.mutable_data_ptr()) = sizes;
  dispatch_floating(weight, [&](auto like) {
    using T = decltype(like);
    parallel_tasks(tasks, [&](int64_t i) {
      const int64_t to = first[i];
      FragmentOutput<T>{mutable_data<int32_t>(triangle_id) + to, mutable_data<T>(weight) + to,
                        mutable_data<T>(depth) + to, mutable_data<T>(barycentrics) + 2 * to, kinds_of(kinds) + to}
          .copy(found[i].values<T>(), found[i].count);
      const int64_t row = i % strips.per_item * kStripRows;
      int64_t* const end = ends + first_pixel(i);
      for (int64_t p = 0; p < std::min(kStripRows, height - row) * width; ++p) end[p] += to;
    });
  });
  const int64_t empty = total - first[tasks];
  if (empty > 0) {
    const auto fill = [&](const Tensor& of, int value, int64_t bytes) {
      std::memset(static_cast<uint8_t*>(of.mutable_data_ptr()) + first[tasks] * bytes, value, empty * bytes);
    };
    fill(triangle_id, 0xff, 4);  // -1
    fill(weight, 0, float_bytes);
    fill(barycentrics, 0, 2 * float_bytes);
    fill(kinds, 0, 1);
    dispatch_floating(depth, [&](auto like) {
      auto* const values = mutable_data<decltype(like)>(depth);
      std::fill(values + first[tasks], values + total, 1);
    });
  }
  return {triangle_id, weight, barycentrics, depth, offsets, kinds, numbers};
}

// Adds 1 to counts[pixel] for every triangle that touches it, and where there is a list to fill, writes the triangle to
// list[counts[pixel]] first.
void add_candidates(const Tensor& boxes, const Tensor& records, const Tensor& block_offsets, const Tensor& counts,
                    int32_t* list, int64_t capacity, int64_t height, int64_t width) {
  const int64_t batch = boxes.size(0), triangles = boxes.size(1);
  const CoverageCandidates kernel{boxes_of(boxes),
                                  records_of(records),
                                  mutable_data<int64_t>(counts),
                                  list,
                                  capacity,
                                  static_cast<int32_t>(triangles),
                                  static_cast<int32_t>(width),
                                  static_cast<int32_t>(height)};
  const int64_t threads = boxes.is_cuda() ? kBlockThreads : 64;
  launch_in_order(boxes, threads, CoverageBlocks{kernel, data<int64_t>(block_offsets), batch * triangles, threads});
}

// Number of candidates of each pixel.
Tensor coverage_count(const Tensor& pixel_boxes, const Tensor& triangle_records, const Tensor& blocks, int64_t height,
                      int64_t width) {
  const DeviceScope device(pixel_boxes);
  const Tensor boxes = as_contiguous(pixel_boxes), records = as_contiguous(triangle_records);
  const Tensor counts = new_zeros(boxes, {boxes.size(0) * height * width}, ScalarType::Long);
  add_candidates(boxes, records, as_contiguous(blocks), counts, nullptr, 0, height, width);
  return counts;
}

// Candidates of all pixels, each list in ascending order. `total`: the length of all lists, of which there may be
// fewer; what would come after it is left out, and no offset may be larger.
Tensor coverage_fill(const Tensor& pixel_boxes, const Tensor& triangle_records, const Tensor& blocks,
                     const Tensor& list_offsets, int64_t total, int64_t height, int64_t width) {
  const DeviceScope device(pixel_boxes);
  const Tensor boxes = as_contiguous(pixel_boxes), records = as_contiguous(triangle_records);
  const Tensor offsets = as_contiguous(list_offsets);
  const int64_t pixels = boxes.size(0) * height * width;
  DR_CHECK(offsets.numel() == pixels + 1, "coverage: offsets have another size");
  const Tensor places = new_empty(boxes, {pixels}, ScalarType::Long);
  const Tensor list = new_empty(boxes, {total}, ScalarType::Int);
  launch_in_order(boxes, pixels, CoveragePlaces{data<int64_t>(offsets), mutable_data<int64_t>(places)});
  add_candidates(boxes, records, as_contiguous(blocks), places, mutable_data<int32_t>(list), total, height, width);
  launch_in_order(boxes, pixels, CoverageSort{data<int64_t>(offsets), mutable_data<int32_t>(list)});
  return list;
}

CoverageLists coverage_lists(const Tensor& positions, const Tensor& triangles, const Tensor& records,
                             const Tensor& offsets, const Tensor& list, int64_t height, int64_t width) {
  DR_CHECK(list.scalar_type() == ScalarType::Int && offsets.scalar_type() == ScalarType::Long,
           "coverage: lists must be int32 and offsets int64");
  DR_CHECK((offsets.numel() - 1) % (height * width) == 0, "coverage: offsets have another size");
  return {coverage_mesh(positions, triangles, std::nullopt, 0),
          Viewport<double>::make(width, height),
          records_of(records),
          nullptr,
          data<int64_t>(offsets),
          data<int32_t>(list)};
}

// Calls run(workers) for the pixels of short, middle and long lists in turn: the longer the lists, the more memory
// takes a worker and the fewer there are.
template <class F>
void for_each_length(const Tensor& like, int64_t pixels, int64_t longest, const F& run) {
  int64_t shortest = 0;
  for (const int64_t limit : {int64_t(8), int64_t(32), longest}) {
    const int64_t capacity = std::min(limit, longest), bytes = CoverageScratch::bytes(capacity);
    if (capacity <= shortest) continue;
    const int64_t count = std::max<int64_t>(1, std::min({pixels, kMaximumWorkers, kScratchBytes / bytes}));
    const Tensor memory = new_empty(like, {(count * bytes + 7) / 8}, ScalarType::Double);
    run(CoverageWorkers{static_cast<uint8_t*>(memory.mutable_data_ptr()), count, pixels, shortest, capacity});
    shortest = capacity;
  }
}

// What each candidate shows: number of those seen in each pixel (B H W), weight (N), barycentrics (N, 2), depth (N),
// FragmentKind (N).
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> coverage_clip(
    const Tensor& clip_positions, const Tensor& triangle_indices, const Tensor& triangle_records,
    const Tensor& list_offsets, const Tensor& candidates, int64_t longest, int64_t height, int64_t width, bool merge) {
  const DeviceScope device(clip_positions);
  const Tensor positions = as_contiguous(clip_positions), triangles = as_contiguous(triangle_indices);
  const Tensor offsets = as_contiguous(list_offsets), list = as_contiguous(candidates);
  const Tensor records = as_contiguous(triangle_records);
  const int64_t total = list.numel(), pixels = offsets.numel() - 1;
  const Tensor weight = new_empty(positions, {total}), depth = new_empty(positions, {total});
  const Tensor barycentrics = new_empty(positions, {total, 2}), counts = new_zeros(offsets, {pixels});
  const Tensor kinds = new_empty(positions, {total}, ScalarType::Byte);
  CoverageLists lists = coverage_lists(positions, triangles, records, offsets, list, height, width);
  lists.ranges = ranges_of(records);
  const CoverageForward kernel{
      lists,
      merge,
      mutable_data<int64_t>(counts),
      {mutable_data<double>(weight), mutable_data<double>(barycentrics), mutable_data<double>(depth), kinds_of(kinds)}};
  for_each_length(positions, total > 0 ? pixels : 0, longest, [&](const CoverageWorkers& workers) {
    launch_in_order(positions, workers.workers, CoverageForwardWorkers{kernel, workers});
  });
  return {counts, weight, barycentrics, depth, kinds};
}

// Only the candidates that are seen: triangle, weight, barycentrics, depth, kind. `total`: the length of the result;
// if there are fewer, its end shows nothing, and what would come after it is left out.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> coverage_compact(const Tensor& list_offsets,
                                                                    const Tensor& candidates, const Tensor& weights,
                                                                    const Tensor& weights_of_corners,
                                                                    const Tensor& depths, const Tensor& kinds,
                                                                    const Tensor& fragment_offsets, int64_t total) {
  const DeviceScope device(weights);
  const Tensor offsets = as_contiguous(list_offsets), list = as_contiguous(candidates), depth = as_contiguous(depths);
  const Tensor weight = as_contiguous(weights), barycentrics = as_contiguous(weights_of_corners);
  const Tensor kind = as_contiguous(kinds), new_offsets = as_contiguous(fragment_offsets);
  const Tensor triangle_id = new_empty(weight, {total}, ScalarType::Int);
  const Tensor new_weight = new_empty(weight, {total}), new_depth = new_empty(weight, {total});
  const Tensor new_barycentrics = new_empty(weight, {total, 2}), new_kind = new_empty(kind, {total});
  const int64_t pixels = offsets.numel() - 1;
  launch_in_order(weight, pixels + total,
                  CoverageCompact{pixels, total, data<int64_t>(offsets), data<int32_t>(list), data<double>(weight),
                                  data<double>(barycentrics), data<double>(depth), data<uint8_t>(kind),
                                  data<int64_t>(new_offsets), mutable_data<int32_t>(triangle_id),
                                  mutable_data<double>(new_weight), mutable_data<double>(new_barycentrics),
                                  mutable_data<double>(new_depth), mutable_data<uint8_t>(new_kind)});
  return {triangle_id, new_weight, new_barycentrics, new_depth, new_kind};
}

Tensor coverage_backward(const Tensor& clip_positions, const Tensor& triangle_indices, const Tensor& list_offsets,
                         const Tensor& visible, const Tensor& kinds, int64_t longest, int64_t height, int64_t width,
                         const std::optional<Tensor>& grad_weight, const std::optional<Tensor>& grad_barycentrics,
                         const std::optional<Tensor>& grad_depth, int64_t algorithm) {
  const DeviceScope device(clip_positions);
  const Tensor positions = as_contiguous(clip_positions), triangles = as_contiguous(triangle_indices);
  const Tensor offsets = as_contiguous(list_offsets), list = as_contiguous(visible);
  const auto dense = [](const std::optional<Tensor>& grad) {
    return grad.has_value() ? std::optional<Tensor>(as_contiguous(*grad)) : std::nullopt;
  };
  const Tensor kind = as_contiguous(kinds);
  const auto gw = dense(grad_weight), gb = dense(grad_barycentrics), gd = dense(grad_depth);
  const auto values = [](const std::optional<Tensor>& grad) {
    if (!grad.has_value()) return FloatArray{nullptr, true};
    const bool is_double = grad->scalar_type() == ScalarType::Double;
    DR_CHECK(is_double || grad->scalar_type() == ScalarType::Float, "coverage: gradients must be float32 or float64");
    return FloatArray{grad->const_data_ptr(), is_double};
  };
  const Tensor grad = new_zeros(positions, {positions.size(0), positions.size(1), 4});
  const int64_t pixels = offsets.numel() - 1, batch = pixels / (height * width);
  if (list.numel() == 0) return grad;
  const bool in_order = !positions.is_cuda() && static_cast<ScatterAlgorithm>(algorithm) == ScatterAlgorithm::native;
  // On the CPU a triangle gets its record where it is first seen.
  const int64_t kept = in_order ? 0 : batch * triangles.size(0);
  const Tensor boxes = new_empty(positions, {kept, 4}, ScalarType::Int);
  const Tensor records = new_empty(positions, {kept, sizeof(TriangleRecord)}, ScalarType::Byte);
  const CoverageLists lists = coverage_lists(positions, triangles, records, offsets, list, height, width);
  const CoverageSetup setup{lists.mesh, lists.viewport, boxes_of(boxes), records_of(records), nullptr};
  const CoverageBackward kernel{lists, kinds_of(kind), values(gw), values(gb), values(gd)};
  if (in_order) {
    detail::scatter_cpu<double>(grad, positions.size(0), pixels, CoverageBackwardCpu{kernel, setup, longest},
                                12 * list.numel());
    return grad;
  }
  launch(positions, kept, setup);
  for_each_length(positions, pixels, longest, [&](const CoverageWorkers& workers) {
    const int64_t per_worker = 3 * list.numel() / workers.workers + 1;  // additions to one corner, at most
    scatter_without_buffers<double>(grad, workers.workers, static_cast<ScatterAlgorithm>(algorithm),
                                    CoverageBackwardWorkers{kernel, workers}, per_worker);
  });
  return grad;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(diffrender, m) {
  m.def(
      "coverage_setup(Tensor clip_positions, Tensor triangles, Tensor? ranges, int height, int width, int cull) "
      "-> (Tensor, Tensor, Tensor)");
  m.def(
      "coverage_fragments(Tensor clip_positions, Tensor triangles, Tensor? ranges, int height, int width, int cull, "
      "bool merge, bool is_double, int capacity, int candidate_capacity, "
      "int pixel_capacity) -> (Tensor, Tensor, Tensor, Tensor, Tensor, "
      "Tensor, Tensor)");
  m.def("coverage_count(Tensor boxes, Tensor records, Tensor block_offsets, int height, int width) -> Tensor");
  m.def(
      "coverage_fill(Tensor boxes, Tensor records, Tensor block_offsets, Tensor offsets, int total, "
      "int height, int width) -> Tensor");
  m.def(
      "coverage_clip(Tensor clip_positions, Tensor triangles, Tensor records, Tensor offsets, Tensor candidates, "
      "int longest, int height, int width, bool merge) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "coverage_compact(Tensor offsets, Tensor candidates, Tensor weight, Tensor barycentrics, Tensor depth, "
      "Tensor kind, Tensor new_offsets, int total) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "coverage_backward(Tensor clip_positions, Tensor triangles, Tensor offsets, Tensor triangle_id, Tensor kind, "
      "int longest, int height, int width, Tensor? grad_weight, Tensor? grad_barycentrics, Tensor? grad_depth, "
      "int scatter) -> Tensor");
}

DR_REGISTER("coverage_setup", &coverage_setup)
DR_REGISTER("coverage_fragments", &coverage_fragments)
DR_REGISTER("coverage_count", &coverage_count)
DR_REGISTER("coverage_fill", &coverage_fill)
DR_REGISTER("coverage_clip", &coverage_clip)
DR_REGISTER("coverage_compact", &coverage_compact)
DR_REGISTER("coverage_backward", &coverage_backward)

}  // namespace diffrender
