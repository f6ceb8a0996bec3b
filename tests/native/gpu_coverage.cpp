// Coverage as a GPU computes it, on emulated threads and warps: lists of candidates by blocks, what each candidate
// shows, and gradients summed within warps; compared with a loop that takes one pixel after the other. Prints what
// failed; exit status 0 when nothing did. tests/test_native.py compiles this with sanitizers.
#include "coverage.h"
#include "coverage_backward.h"
#include "support.h"

namespace {

std::vector<int64_t> sums_before(const std::vector<int64_t>& counts) {
  std::vector<int64_t> sums(counts.size() + 1);
  for (size_t i = 0; i < counts.size(); ++i) sums[i + 1] = sums[i] + counts[i];
  return sums;
}

constexpr int32_t kUntouched = -7;

// Lists of triangles per pixel, ascending.
struct Lists {
  std::vector<int64_t> offsets;
  std::vector<int32_t> triangles;
};

struct CoverageScene {
  Scene<double> scene;
  std::vector<PixelBox> boxes;
  std::vector<TriangleRecord> records;
  std::vector<DepthRange> ranges;

  explicit CoverageScene(const Scene<double>& given)
      : scene(given), boxes(given.batch * given.triangles.size() / 3), records(boxes.size()), ranges(boxes.size()) {
    CoverageSetup{scene.mesh(), scene.viewport(), boxes.data(), records.data(), ranges.data()}(0, boxes.size());
  }

  int64_t triangles() const { return scene.triangles.size() / 3; }

  CoverageLists lists(const Lists& of) const {
    return {scene.mesh(), scene.viewport(), records.data(), ranges.data(), of.offsets.data(), of.triangles.data()};
  }

  Lists candidates_by_loop() const {
    Lists result{{0}, {}};
    for (int64_t pixel = 0; pixel < scene.pixels(); ++pixel) {
      const int64_t size = int64_t(scene.width) * scene.height, item = pixel / size, within = pixel - item * size;
      const int32_t column = within % scene.width, row = within / scene.width;
      for (int64_t t = 0; t < triangles(); ++t) {
        PixelBox box = boxes[item * triangles() + t];
        if (column < box.column_begin || column >= box.column_end || row < box.row_begin || row >= box.row_end)
          continue;
        for_each_touched_run(records[item * triangles() + t], box, [&](int32_t r, int32_t first, int32_t last) {
          if (r == row && first <= column && column <= last) result.triangles.push_back(t);
        });
      }
      result.offsets.push_back(result.triangles.size());
    }
    return result;
  }

  // capacity: of all lists; -1: as many as there are. Behind them is one entry that nobody may touch.
  Lists candidates_by_blocks(std::mt19937& random, int64_t capacity = -1) const {
    constexpr int64_t kThreads = 16;
    std::vector<int64_t> blocks(boxes.size()), counts(scene.pixels());
    launch_emulated(blocks.size(), CoverageBlockCount{boxes.data(), blocks.data()}, random);
    const std::vector<int64_t> block_offsets = sums_before(blocks);
    CoverageCandidates kernel{
        boxes.data(), records.data(), counts.data(), nullptr, 0, static_cast<int32_t>(triangles()),
        scene.width,  scene.height};
    const auto run = [&] {
      launch_emulated(
          kThreads, CoverageBlocks{kernel, block_offsets.data(), static_cast<int64_t>(boxes.size()), kThreads}, random);
    };
    run();
    Lists result{sums_before(counts), {}};
    if (capacity < 0) capacity = result.offsets.back();
    for (int64_t& offset : result.offsets) offset = std::min(offset, capacity);
    result.triangles.assign(capacity + 1, kUntouched);
    launch_emulated(counts.size(), CoveragePlaces{result.offsets.data(), counts.data()}, random);
    kernel.candidates = result.triangles.data();
    kernel.capacity = capacity;
    run();
    launch_emulated(counts.size(), CoverageSort{result.offsets.data(), result.triangles.data()}, random);
    expect(result.triangles.back() == kUntouched, "lists stay within their memory");
    result.triangles.pop_back();
    return result;
  }
};

// With room for half of the candidates each list that remains holds candidates of its pixel, each of them once.
void test_short_lists(const CoverageScene& scene, const Lists& truth, std::mt19937& random) {
  const Lists lists = scene.candidates_by_blocks(random, truth.triangles.size() / 2);
  const auto at = [](const Lists& of, int64_t i) { return of.triangles.begin() + i; };
  for (size_t p = 0; p + 1 < truth.offsets.size(); ++p) {
    const auto begin = at(lists, lists.offsets[p]), end = at(lists, lists.offsets[p + 1]);
    expect(std::adjacent_find(begin, end, std::greater_equal<int32_t>()) == end, "a short list ascends");
    expect(std::includes(at(truth, truth.offsets[p]), at(truth, truth.offsets[p + 1]), begin, end), "a short list");
  }
}

void test_sort(std::mt19937& random) {
  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> values, truth;
  for (const int64_t count : {1, 0, 2, 24, 25, 26, 100, 1000, 31}) {
    const size_t first = truth.size();
    for (int64_t i = 0; i < count; ++i) truth.push_back(random() % 500);
    values.insert(values.end(), truth.begin() + first, truth.end());
    std::sort(truth.begin() + first, truth.end());
    offsets.push_back(truth.size());
  }
  launch_emulated(offsets.size() - 1, CoverageSort{offsets.data(), values.data()}, random);
  expect(values == truth, "lists of all lengths are sorted");
}

struct Fragments {
  Lists lists;
  std::vector<double> weight;
  std::vector<FragmentKind> kind;
};

int64_t longest(const Lists& lists) {
  int64_t result = 0;
  for (size_t i = 1; i < lists.offsets.size(); ++i) {
    result = std::max(result, lists.offsets[i] - lists.offsets[i - 1]);
  }
  return result;
}

// `workers` with memory of their own, for all lists.
CoverageWorkers make_workers(const Lists& lists, int64_t workers, std::vector<double>* memory) {
  const int64_t capacity = longest(lists);
  memory->resize(workers * CoverageScratch::bytes(capacity) / 8 + 1);
  return {reinterpret_cast<uint8_t*>(memory->data()), workers, static_cast<int64_t>(lists.offsets.size()) - 1, 0,
          capacity};
}

// `empty`: places of the result that are left over.
Fragments show(const CoverageScene& scene, const Lists& lists, int64_t empty, std::mt19937& random) {
  const int64_t count = lists.triangles.size(), pixels = scene.scene.pixels();
  std::vector<int64_t> counts(pixels);
  std::vector<double> weight(count), barycentrics(2 * count), depth(count), memory;
  std::vector<FragmentKind> kind(count);
  const CoverageForward kernel{
      scene.lists(lists), false, counts.data(), {weight.data(), barycentrics.data(), depth.data(), kind.data()}};
  const CoverageWorkers workers = make_workers(lists, 13, &memory);
  launch_emulated(workers.workers, CoverageForwardWorkers{kernel, workers}, random);
  Fragments result{{sums_before(counts), {}}, {}, {}};
  const int64_t seen = result.lists.offsets.back() + empty;
  result.lists.triangles.resize(seen);
  result.weight.resize(seen);
  std::vector<double> new_barycentrics(2 * seen), new_depth(seen);
  result.kind.resize(seen);
  const CoverageCompact compact{pixels,
                                seen,
                                lists.offsets.data(),
                                lists.triangles.data(),
                                weight.data(),
                                barycentrics.data(),
                                depth.data(),
                                reinterpret_cast<const uint8_t*>(kind.data()),
                                result.lists.offsets.data(),
                                result.lists.triangles.data(),
                                result.weight.data(),
                                new_barycentrics.data(),
                                new_depth.data(),
                                reinterpret_cast<uint8_t*>(result.kind.data())};
  launch_emulated(pixels + seen, compact, random);
  for (int64_t k = seen - empty; k < seen; ++k) {
    expect(result.lists.triangles[k] == -1 && result.weight[k] == 0, "an empty place");
  }
  result.weight.resize(seen - empty);
  return result;
}

void test_gradient(const CoverageScene& scene, const Fragments& seen, std::mt19937& random) {
  std::uniform_real_distribution<double> unit(-1, 1);
  const int64_t count = seen.lists.triangles.size(), size = scene.scene.positions.size();
  std::vector<double> weight(count), barycentrics(2 * count), depth(count), memory;
  for (double& x : weight) x = unit(random);
  for (double& x : barycentrics) x = unit(random);
  for (double& x : depth) x = unit(random);
  const int64_t without = count / 3;  // of the fragments have no gradient
  std::fill_n(weight.begin(), without, 0.0);
  std::fill_n(barycentrics.begin(), 2 * without, 0.0);
  std::fill_n(depth.begin(), without, 0.0);
  const CoverageBackward kernel{scene.lists(seen.lists),
                                seen.kind.data(),
                                {weight.data(), true},
                                {barycentrics.data(), true},
                                {depth.data(), true}};

  std::vector<double> truth(size);
  const CoverageWorkers one = make_workers(seen.lists, 1, &memory);
  const int64_t alone = additions_of([&] {
    const Sink<double> sink{truth.data()};
    one.run(0, 1, seen.lists.offsets.data(),
            [&](int64_t p, const CoverageScratch& scratch) { kernel.pixel(p, scratch, CornersAtOnce{kernel, sink}); });
  });
  const double largest = largest_of(truth);
  for (const int64_t workers : {64, 45}) {
    const CoverageBackwardWorkers by_warps{kernel, make_workers(seen.lists, workers, &memory)};
    std::vector<double> sums(size);
    const int64_t together = additions_of([&] { scatter_emulated(workers, by_warps, Sink<double>{sums.data()}); });
    expect(2 * together < alone, "lanes add up before they add to memory");
    expect(largest > 0 && largest_difference(truth, sums) < 1e-9 * largest, "gradient by warps");
  }
  const CoverageBackwardWorkers by_warps{kernel, make_workers(seen.lists, 45, &memory)};
  expect_order_free(45, by_warps, 3 * count, truth, 1e-9 * largest, "coverage");
}

}  // namespace

int main() {
  std::mt19937 random(7);
  const CoverageScene scene(make_scene<double>(40, 21, 15, random));
  const Lists truth = scene.candidates_by_loop(), lists = scene.candidates_by_blocks(random);
  expect(longest(truth) > 3, "triangles lie over each other");
  expect(lists.offsets == truth.offsets && lists.triangles == truth.triangles, "candidates by blocks");
  test_sort(random);
  test_short_lists(scene, truth, random);
  const Fragments seen = show(scene, lists, 9, random);
  double area = 0;
  for (const double weight : seen.weight) area += weight;
  expect(area > 0.2 * scene.scene.pixels() && area <= scene.scene.pixels() * (1 + 1e-9), "visible area");
  for (const double weight : seen.weight) expect(weight > 0 && weight <= 1, "every fragment is seen");
  test_gradient(scene, seen, random);
  if (failures == 0) std::printf("gpu_coverage agrees\n");
  return failures == 0 ? 0 : 1;
}
