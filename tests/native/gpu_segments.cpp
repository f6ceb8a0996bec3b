// Gradients of edge segments as a GPU adds them (segments_threads.h, segments_sums.h), on emulated warps, compared with
// a loop that adds every piece by itself. Prints what failed; exit status 0 when nothing did.
// tests/test_native.py compiles this with sanitizers.
#include "segments_blend.h"
#include "segments_marks_cpu.h"
#include "support.h"

namespace {

constexpr int64_t kEmulatedThreads = 64;

// Every place and every piece by itself.
template <class Source, class Use, class scalar_t>
void scatter_by_loop(const SumPieces<Source, Use>& kernel, int64_t places, const Sink<scalar_t>& sink) {
  for (int64_t place = 0; place < places; ++place) {
    kernel.source.visit_place(
        place, [](int64_t) { return true; },
        [&](const EdgePiece& piece) {
          typename Use::Sum sum;
          kernel.use.add(piece, &sum);
          if (!sum.empty()) kernel.use.flush(sum, sink);
        });
  }
}

// `threads`: what the launch gets; `places`: what they look at. `fewer`: lanes are expected to have places in common.
template <class scalar_t, class Source, class Use>
void test_sum(const char* name, const SumPieces<Source, Use>& kernel, int64_t threads, int64_t places, int64_t size,
              bool fewer) {
  std::vector<scalar_t> truth(size), sums(size);
  const int64_t alone =
      additions_of([&] { scatter_by_loop<Source, Use, scalar_t>(kernel, places, Sink<scalar_t>{truth.data()}); });
  const int64_t together = additions_of([&] { scatter_emulated(threads, kernel, Sink<scalar_t>{sums.data()}); });
  expect(fewer ? 2 * together < alone : together <= alone, "lanes add up before they add to memory", name);
  const scalar_t largest = largest_of(truth), tolerance = largest * scalar_t(sizeof(scalar_t) == 8 ? 1e-12 : 2e-5);
  expect(largest > 0 && largest_difference(truth, sums) <= tolerance, "sums by warps", name);
  expect_order_free(threads, kernel, places * kPiecesPerCrossing, truth, tolerance, name);
}

// What segments.cpp keeps of a scene whose triangles share no vertices.
template <class scalar_t>
struct SegmentScene {
  Scene<scalar_t> scene;
  std::vector<double> positions;
  std::vector<int32_t> id, topology;
  std::vector<int8_t> facing;
  std::vector<uint8_t> edges, crossings;
  std::vector<int64_t> before;
  SegmentMesh mesh;

  explicit SegmentScene(const Scene<scalar_t>& given)
      : scene(given),
        positions(given.positions.begin(), given.positions.end()),
        id(nearest_by_loop(given)),
        topology(given.triangles.size(), -1),
        facing(given.batch * given.triangles.size() / 3),
        edges(facing.size()),
        crossings(given.pixels()),
        before(facing.size() + 1) {
    const auto from = scene.mesh();
    mesh = {{positions.data(), from.triangles, nullptr, from.item_stride, from.vertex_count, from.triangle_count,
             from.cull},
            Viewport<double>::make(scene.width, scene.height),
            topology.data(),
            nullptr,
            facing.data(),
            from.triangle_count};
    const int64_t count = facing.size();
    std::vector<int64_t> pairs(count);
    TriangleFacing<scalar_t>{from, facing.data()}(0, count);
    MarkEdges{mesh, edges.data()}(0, count);
    MarkCrossings{mesh, id.data(), crossings.data()}(0, scene.pixels());
    CountPairs{mesh, edges.data(), pairs.data()}(0, count);
    for (int64_t i = 0; i < count; ++i) before[i + 1] = before[i] + pairs[i];
  }

  EdgePairs edge_pairs() const {
    return {{mesh, id.data(), false}, {}, edges.data(), before.data(), static_cast<int64_t>(facing.size()),
            kEmulatedThreads};
  }
  CrossingPixels crossing_pixels() const { return {{mesh, id.data()}, {}, crossings.data()}; }
};

// Two triangles in front of the others, which cut through each other along an upright line.
template <class scalar_t>
void add_crossing(Scene<scalar_t>& scene) {
  const int64_t stride = scene.positions.size() / scene.batch;
  for (int item = 0; item < scene.batch; ++item) {
    for (int t = 0; t < 2; ++t) {
      const double slope = t == 0 ? 0.1 : -0.1;
      const double corners[3][2] = {{-0.8, -0.9 + 0.1 * t}, {0.8, -0.8 - 0.1 * item}, {0.1, 0.7 + 0.2 * t}};
      for (int k = 0; k < 3; ++k) {
        const double v[4] = {corners[k][0], corners[k][1], slope * corners[k][0] - 0.9, 1};
        for (int c = 0; c < 4; ++c) scene.positions[item * stride + 12 * t + 4 * k + c] = static_cast<scalar_t>(v[c]);
      }
    }
  }
  for (int k = 0; k < 6; ++k) scene.triangles[k] = k;
}

template <class scalar_t>
void test_segments(int32_t channels) {
  std::mt19937 random(5);
  auto scene = make_scene<scalar_t>(9, 11, 8, random);
  add_crossing(scene);
  const SegmentScene<scalar_t> s(scene);
  const int64_t pixels = s.scene.pixels(), size = s.scene.positions.size(), pairs = s.before.back();
  std::uniform_real_distribution<scalar_t> unit(-1, 1);
  std::vector<scalar_t> image(pixels * channels), grad(pixels * channels), nothing(pixels * channels);
  for (scalar_t& x : image) x = unit(random);
  for (scalar_t& x : grad) x = unit(random);
  // A third of the picture has no gradient.
  for (int64_t i = 0; i < pixels * channels / 3; ++i) grad[i] = 0;
  const EdgePairs edges = s.edge_pairs();
  const CrossingPixels crossings = s.crossing_pixels();
  const BlendPiece<scalar_t> blend{image.data(), channels, s.scene.width};
  const BlendBackwardImage<scalar_t> to_image{grad.data(), channels, s.scene.width};
  const EdgeBackward<scalar_t> to_edges{{s.mesh, s.id.data(), image.data(), grad.data(), channels}};
  const CrossingBackward<scalar_t> to_crossings{to_edges.jump};
  const int64_t values = pixels * channels;
  test_sum<scalar_t>("edges: picture", SumPieces{edges, blend}, edges.threads, pairs, values, false);
  test_sum<scalar_t>("edges: colors", SumPieces{edges, to_image}, edges.threads, pairs, values, false);
  test_sum<scalar_t>("edges: vertices", SumPieces{edges, to_edges}, edges.threads, pairs, size, true);
  test_sum<scalar_t>("crossings: picture", SumPieces{crossings, blend}, pixels, pixels, values, false);
  test_sum<scalar_t>("crossings: colors", SumPieces{crossings, to_image}, pixels, pixels, values, false);
  test_sum<scalar_t>("crossings: vertices", SumPieces{crossings, to_crossings}, pixels, pixels, size, false);

  EdgeBackward<scalar_t> without = to_edges;
  without.jump.grad_result = nothing.data();
  std::vector<scalar_t> sums(size);
  const int64_t additions =
      additions_of([&] { scatter_emulated(edges.threads, SumPieces{edges, without}, Sink<scalar_t>{sums.data()}); });
  expect(additions == 0, "without a gradient nothing is added");
}

// The marks that the CPU makes block by block, from any pixel to any other, against those of one pixel after the other.
void test_marks(int32_t width, std::mt19937& random) {
  auto scene = make_scene<float>(40, width, 14, random);
  add_crossing(scene);
  const SegmentScene<float> s(scene);
  std::vector<int32_t> topology = s.topology;
  topology[1] = 5;  // the two that cross, as if they were neighbours
  topology[5] = 1;
  SegmentMesh mesh = s.mesh;
  mesh.topology = topology.data();
  std::vector<uint8_t> truth(s.id.size());
  const MarkCrossings kernel{mesh, s.id.data(), truth.data()};
  const int64_t pixels = s.scene.pixels();
  kernel(0, pixels);
  const auto count = [](const std::vector<uint8_t>& marks) { return std::count(marks.begin(), marks.end(), 1); };
  expect(0 < count(truth) && count(truth) < count(s.crossings), "neighbours across an edge do not cross");
  for (int round = 0; round < 5; ++round) {
    std::vector<uint8_t> marks(truth.size());
    const MarkCrossingsCpu blocks{{mesh, s.id.data(), marks.data()}};
    for (int64_t begin = 0; begin < pixels;) {
      const int64_t end = round == 0 ? pixels : std::min<int64_t>(pixels, begin + 1 + random() % (2 * width));
      blocks(begin, end);
      begin = end;
    }
    expect(marks == truth, "marks of crossings made in blocks");
  }
}

// Which triangles a tree of boxes finds at each pixel, against a look at all boxes.
void test_tree(int64_t count, std::mt19937& random) {
  constexpr int32_t kWidth = 23, kHeight = 17, kItems = 2;
  std::vector<PixelBox> boxes(kItems * count);
  for (PixelBox& box : boxes) {
    const int32_t left = random() % kWidth, top = random() % kHeight;
    box = {left, std::min<int32_t>(kWidth, left + random() % 9), top, std::min<int32_t>(kHeight, top + random() % 9)};
  }
  TriangleTree tree{nullptr, nullptr, 0, static_cast<int32_t>(count), 0};
  do {
    tree.nodes_per_item += tree.nodes_of(tree.levels);
  } while (tree.nodes_of(tree.levels++) > 1);
  std::vector<int64_t> keys(boxes.size()), order(boxes.size());
  std::vector<PixelBox> nodes(kItems * tree.nodes_per_item);
  std::vector<int32_t> leaves(boxes.size());
  launch_emulated(keys.size(), CurvePlaces{boxes.data(), keys.data(), tree.triangles, kWidth, kHeight}, random);
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return keys[a] < keys[b]; });
  const TreeLeaves place{boxes.data(), order.data(), nodes.data(), leaves.data(), tree.nodes_per_item, tree.triangles};
  launch_emulated(leaves.size(), place, random);
  int64_t first = 0;
  for (int32_t level = 1; level < tree.levels; ++level) {
    const TreeLevel up{nodes.data(), tree.nodes_per_item, first, tree.nodes_of(level - 1)};
    launch_emulated(kItems * tree.nodes_of(level), up, random);
    first += tree.nodes_of(level - 1);
  }
  tree.nodes = nodes.data();
  tree.leaves = leaves.data();
  for (int32_t item = 0; item < kItems; ++item) {
    for (int32_t pixel = 0; pixel < kWidth * kHeight; ++pixel) {
      const int32_t column = pixel % kWidth, row = pixel / kWidth;
      std::vector<int32_t> found, truth;
      tree.visit(item, column, row, [&](int32_t triangle) {
        found.push_back(triangle);
        return true;
      });
      for (int32_t t = 0; t < count; ++t) {
        const PixelBox& b = boxes[item * count + t];
        if (column >= b.column_begin && column < b.column_end && row >= b.row_begin && row < b.row_end) {
          truth.push_back(t);
        }
      }
      std::sort(found.begin(), found.end());
      expect(found == truth, "the tree finds the boxes of a pixel");
      int calls = 0;
      tree.visit(item, column, row, [&](int32_t) { return ++calls < 2; });
      expect(calls == std::min<int>(2, truth.size()), "the search stops when it is told");
    }
  }
}

}  // namespace

int main() {
  std::mt19937 random(6);
  for (const int64_t count : {1, 2, 8, 9, 64, 65, 150}) test_tree(count, random);
  for (const int32_t width : {9, 33, 150}) test_marks(width, random);
  test_segments<float>(5);
  test_segments<double>(3);
  if (failures == 0) std::printf("gpu_segments agrees\n");
  return failures == 0 ? 0 : 1;
}
