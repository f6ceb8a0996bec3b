// Sums that a GPU makes within warps before it adds to memory, of vertex normals and their gradient, of gradients of
// panoramas and of filtered environments: on emulated warps, compared with a loop that adds everything by itself.
// Prints what failed; exit status 0 when nothing did. tests/test_native.py compiles this with sanitizers.
#include "cube_from_lat_long.h"
#include "prefilter_environment.h"
#include "support.h"
#include "vertex_normals.h"

namespace {

std::vector<double> random_values(int64_t count, std::mt19937& random) {
  std::uniform_real_distribution<double> unit(-1, 1);
  std::vector<double> values(count);
  for (double& x : values) x = unit(random);
  return values;
}

// times: additions to memory that the lanes of a warp spare, at least. per_item: additions of an item to one element,
// at most; 0: leave out the order-free sums, which take five times as long.
template <class F, class Loop>
void test_sum(const char* name, int64_t n, int64_t size, const F& functor, int64_t per_item, double times,
              const Loop& loop) {
  std::vector<double> truth(size), sums(size);
  const int64_t alone = additions_of([&] { loop(Sink<double>{truth.data()}); });
  const int64_t together = additions_of([&] { scatter_emulated(n, functor, Sink<double>{sums.data()}); });
  expect(together > 0 && times * together <= alone, "lanes add up before they add to memory", name);
  const double tolerance = 1e-13 * largest_of(truth);
  expect(tolerance > 0 && largest_difference(truth, sums) <= tolerance, "sums by warps", name);
  // Integers leave one bit for every doubling of what an element may receive.
  if (per_item > 0) expect_order_free(n, functor, n * per_item, truth, tolerance * per_item, name);
}

template <class F>
void expect_no_additions(const char* name, int64_t n, int64_t size, const F& functor) {
  std::vector<double> sums(size);
  const int64_t additions = additions_of([&] { scatter_emulated(n, functor, Sink<double>{sums.data()}); });
  expect(additions == 0, "without a gradient nothing is added", name);
}

// Two poses of a grid of squares, each cut in two, one after another as meshes have them; one index does not exist, one
// triangle has no area.
void test_vertex_normals() {
  std::mt19937 random(8);
  constexpr int32_t kSide = 6, kVertices = (kSide + 1) * (kSide + 1), kItems = 2;
  std::vector<int32_t> triangles;
  for (int32_t i = 0; i < kSide * kSide; ++i) {
    const int32_t a = i / kSide * (kSide + 1) + i % kSide, b = a + 1, c = a + kSide + 1, d = c + 1;
    for (const int32_t corner : {a, b, c, c, b, d}) triangles.push_back(corner);
  }
  triangles[3 * 7 + 1] = kVertices;
  triangles[3 * 9 + 1] = triangles[3 * 9];
  const int64_t count = triangles.size() / 3, n = kItems * count;
  std::vector<double> vertices = random_values(kItems * kVertices * 3, random);
  for (int32_t i = 0; i < kItems * kVertices; ++i) {
    vertices[3 * i] = 0.2 * vertices[3 * i] + i % kVertices % (kSide + 1);
    vertices[3 * i + 1] = 0.2 * vertices[3 * i + 1] + i % kVertices / (kSide + 1);
  }
  const NormalsMesh<double> mesh{vertices.data(), triangles.data(), kVertices, count};
  const auto each_corner = [&](const auto& functor, auto size, const Sink<double>& sink) {
    double values[decltype(size)::value];
    for (int64_t i = 0; i < n; ++i) {
      const auto t = functor.load(i / count, i % count);
      for (int k = 0; t.valid && k < 3; ++k) {
        functor.values(t, k, values);
        for (int c = 0; c < size; ++c) accumulate(sink, t.row[k] * size + c, values[c]);
      }
    }
  };
  const VertexNormalsSum<double> forward{mesh};
  test_sum("vertex normals", n, kItems * kVertices * 4, forward, 1, 1.5,
           [&](const Sink<double>& sink) { each_corner(forward, std::integral_constant<int, 4>(), sink); });
  std::vector<double> grad = random_values(kItems * kVertices * 3, random);
  const VertexNormalsBackward<double> backward{mesh, grad.data()};
  test_sum("gradient of vertex normals", n, grad.size(), backward, 1, 1.5,
           [&](const Sink<double>& sink) { each_corner(backward, std::integral_constant<int, 3>(), sink); });
  std::fill(grad.begin(), grad.end(), 0.0);
  expect_no_additions("gradient of vertex normals", n, grad.size(), backward);
}

// Texels without a gradient among others, of a whole warp and of parts.
void clear_some(std::vector<double>& grad, int64_t channels) {
  const int64_t texels = grad.size() / channels;
  for (int64_t i = 0; i < texels; ++i) {
    if (i % 5 == 3 || (i >= 32 && i < 62)) std::fill_n(grad.begin() + i * channels, channels, 0.0);
  }
}

void test_panoramas() {
  std::mt19937 random(9);
  constexpr int64_t kItems = 2;
  // Cubes finer than the panorama, where texels share its texels, and coarser, where parts of texels do. The texels at
  // the poles, in the middle of their faces, have a thousand parts: most of them get no gradient.
  const auto test = [&](int32_t height, int32_t width, int32_t size, int32_t channels, int poles, int64_t per_item,
                        double times) {
    std::vector<double> grad = random_values(kItems * 6 * size * size * channels, random);
    clear_some(grad, channels);
    for (int64_t face = 2 + poles; face < kItems * 6; ++face) {
      if (face % 6 != 2 && face % 6 != 3) continue;
      std::fill_n(grad.begin() + (face * size * size + size * size / 2) * channels, channels, 0.0);
    }
    const CubeFromLatLongBackward<double> functor{{height, width, size}, grad.data(), channels};
    const int64_t n = kItems * 6 * size * size, elements = kItems * height * width * channels;
    test_sum("panorama", n, elements, functor, per_item, times,
             [&](const Sink<double>& sink) { functor.one_by_one(0, n, sink); });
    std::fill(grad.begin(), grad.end(), 0.0);
    expect_no_additions("panorama", n, elements, functor);
  };
  test(2, 4, 5, 3, 1, 0, 3);
  test(4, 7, 3, 1, 0, 4 * 16, 2);
}

// What prefilter_environment makes in Python: unit directions of the texels of face 0, and solid angles.
std::vector<double> make_nodes(int32_t size, int32_t levels) {
  std::vector<double> nodes;
  for (int32_t m = 0; m < levels; ++m) {
    const int32_t side = size >> m;
    for (int32_t i = 0; i < side * side; ++i) {
      const double x = (2.0 * (i % side) + 1) / side - 1, y = (2.0 * (i / side) + 1) / side - 1;
      const double squared = x * x + y * y + 1, length = std::sqrt(squared);
      for (const double v : {x / length, y / length, 1 / length, 4.0 / (side * side * squared * length)}) {
        nodes.push_back(v);
      }
    }
  }
  return nodes;
}

template <int kChannels>
void test_environment(int32_t resolution, double roughness, int32_t channels, int64_t items, int64_t per_item,
                      double times, std::mt19937& random) {
  constexpr int32_t kSize = 4, kLevels = 3;
  const std::vector<double> nodes = make_nodes(kSize, kLevels);
  const double alpha_squared = std::pow(roughness, 4);
  const EnvironmentFilter<double> filter{nodes.data(),  FilterBands<double>::make(kSize, kLevels, alpha_squared, 0.5),
                                         alpha_squared, kSize,
                                         resolution,    CubeTurns::make()};
  const int64_t texels = filter.texels(), n = items * texels, pyramid = 6 * static_cast<int64_t>(nodes.size()) / 4;
  const std::vector<double> energies = random_values(items * pyramid * channels, random);
  std::vector<double> values(n * channels), total(texels);
  const int32_t first = channels - kChannels;
  for (int32_t c = 0; c < channels; c += kChannels) {  // the forward pass makes the total
    launch_emulated(
        n,
        PrefilterForward<double, kChannels>{filter, energies.data(), values.data(), total.data(), pyramid, channels, c},
        random);
  }
  expect(*std::min_element(total.begin(), total.end()) > 0, "every texel sees something");
  std::vector<double> grad = random_values(n * channels, random);
  clear_some(grad, channels);
  const PrefilterBackward<double, kChannels> functor{filter, grad.data(), total.data(), pyramid, channels, first};
  test_sum("environment", n, items * pyramid * channels, functor, per_item, times,
           [&](const Sink<double>& sink) { functor.by_group(0, n, sink); });
  std::fill(grad.begin(), grad.end(), 0.0);
  expect_no_additions("environment", n, items * pyramid * channels, functor);
}

void test_environments() {
  std::mt19937 random(10);
  test_environment<3>(3, 0.3, 3, 1, 0, 3, random);
  test_environment<1>(2, 0.8, 2, 2, 1, 1.5, random);
}

}  // namespace

int main() {
  test_vertex_normals();
  test_panoramas();
  test_environments();
  if (failures == 0) std::printf("gpu_sums agrees\n");
  return failures == 0 ? 0 : 1;
}
