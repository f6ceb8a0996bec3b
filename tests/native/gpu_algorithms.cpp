// The algorithms made for GPUs on emulated ones (emulated_gpu.h), compared with plain loops: work splitting and packed
// minimum of the rasterizer, sums within warps, order-free sums. Prints what failed; exit status 0 when nothing did.
// tests/test_native.py compiles this with sanitizers.
#include "antialias.h"
#include "composite.h"
#include "interpolate.h"
#include "support.h"

namespace {

// ---- rasterizer

// draw_gpu of rasterize.cpp on emulated threads. *queued: how many triangles were cut into pieces.
template <class scalar_t>
std::vector<int32_t> nearest_by_gpu(const Scene<scalar_t>& scene, int64_t capacity, std::mt19937& random,
                                    int64_t* queued) {
  constexpr bool kWide = sizeof(scalar_t) == 8;
  const int64_t pixels = scene.pixels();
  std::vector<uint64_t> nearest(pixels);
  std::vector<uint64_t> winner((pixels + 1) / 2);
  std::vector<int64_t> begin(capacity), triangle(capacity);
  GpuRasterizer<scalar_t> rasterizer{scene.mesh(), scene.viewport(), nullptr, {}, {}, 0};
  rasterizer.buffer = {nearest.data(), reinterpret_cast<uint32_t*>(winner.data())};
  launch_emulated(pixels, FillOnes{nearest.data()}, random);
  launch_emulated(winner.size(), FillOnes{winner.data()}, random);
  for (int pass = 0; pass < (kWide ? 2 : 1); ++pass) {
    uint64_t counter = 0;
    rasterizer.queue = {&counter, begin.data(), triangle.data(), capacity};
    rasterizer.pass = pass;
    launch_emulated(int64_t(scene.batch) * rasterizer.mesh.triangle_count, rasterizer, random);
    *queued = std::min<int64_t>(counter >> kQueueCountShift, capacity);
    expect(std::is_sorted(begin.begin(), begin.begin() + *queued),
           "entries of the queue are in the order of their pieces");
    launch_emulated(16, GpuDrawQueue<scalar_t>{rasterizer, 16}, random);
  }
  std::vector<int32_t> id(pixels);
  std::vector<scalar_t> barycentrics(2 * pixels), depth(pixels), derivatives(4 * pixels);
  const FragmentOutput<scalar_t> output{id.data(), barycentrics.data(), depth.data(), derivatives.data()};
  launch_emulated(pixels, GpuResolve<scalar_t>{rasterizer.mesh, rasterizer.viewport, rasterizer.buffer, output},
                  random);
  return id;
}

template <class scalar_t>
void test_rasterizer(const char* type) {
  std::mt19937 random(1);
  const auto scene = make_scene<scalar_t>(60, 70, 50, random);
  const auto truth = nearest_by_loop(scene);
  expect(std::count(truth.begin(), truth.end(), -1) < scene.pixels() / 2, "the scene covers something", type);
  int64_t queued = 0, most = 0;
  for (const int64_t capacity : {1000, 1000, 3, 0}) {
    expect(nearest_by_gpu(scene, capacity, random, &queued) == truth, "GPU rasterizer equals the loop", type);
    most = std::max(most, queued);
  }
  expect(most > 5, "large triangles are cut into pieces", type);
}

// Whatever the frame and however many triangles fill it, the counter of the queue does not overflow.
void test_queue_capacity() {
  for (int64_t side = 16; side <= int64_t(1) << 21; side *= 2) {
    for (int64_t triangles = 1; triangles < int64_t(1) << 31; triangles *= 2) {
      const int64_t capacity = queue_capacity(triangles, side, side), pieces = (side / 16) * (side / 8);
      const int64_t additions = std::min(triangles, capacity + kThreadsAtOnce);
      expect(capacity >= 0 && capacity <= std::min(triangles, kQueueCapacity), "capacity of the queue");
      if (capacity == 0) continue;
      expect(additions < (int64_t(1) << 43) / pieces && additions < int64_t(1) << 21, "room in the counter");
    }
    if (side <= 16384) expect(queue_capacity(1 << 20, side, side) == 1 << 20, "a full queue for usual frames");
  }
}

// Every kind of key in random order on several threads: smallest key first, then the lowest id.
void test_packed_minimum() {
  std::mt19937 random(2);
  std::vector<float> keys = {0.0f, 0.25f, -0.25f, 1.0f, -1.0f, 1e-30f, -1e-30f, 0.25f, -0.75f, -0.75f};
  for (int round = 0; round < 200; ++round) {
    std::shuffle(keys.begin(), keys.end(), random);
    const int count = 1 + round % static_cast<int>(keys.size());
    uint64_t nearest = kNothingDrawn;
    const VisibilityBuffer buffer{&nearest, nullptr};
    struct Offer {
      VisibilityBuffer buffer;
      const float* keys;
      void operator()(int64_t begin, int64_t) const { buffer.offer(0, keys[begin], static_cast<int32_t>(begin), 0); }
    };
    launch_emulated(count, Offer{buffer, keys.data()}, random);
    const auto best = std::min_element(keys.begin(), keys.begin() + count) - keys.begin();
    expect(buffer.triangle(0, 0.0f) == best, "packed minimum");
  }
}

// ---- sums within a warp

void test_warp_sums() {
  std::mt19937 random(3);
  for (int pattern = 0; pattern < 24; ++pattern) {
    uint64_t keys[32];
    int64_t values[32], expected[32] = {};
    for (int i = 0; i < 32; ++i) {
      keys[i] = pattern == 0 ? 7 : pattern == 1 ? i : pattern == 2 ? i % 2 : random() % (1 + pattern);
      values[i] = random() % 1000;
    }
    for (int i = 0; i < 32; ++i) {
      for (int j = 0; j < 32; ++j) expected[i] += keys[i] == keys[j] ? values[j] : 0;
    }
    int64_t sums[32][2];
    uint32_t groups[32];
    run_warps(1, [&](int, int lane) {
      int64_t mine[2] = {values[lane], -2 * values[lane]};
      groups[lane] = warp_match(keys[lane]);
      sum_in_lowest_lane(groups[lane], mine);
      sums[lane][0] = mine[0];
      sums[lane][1] = mine[1];
    });
    for (int i = 0; i < 32; ++i) {
      if (lowest_lane(groups[i]) != i) continue;
      expect(sums[i][0] == expected[i] && sums[i][1] == -2 * expected[i], "sum of a group of lanes");
    }
  }
}

template <class scalar_t, class F>
void test_scatter(const char* name, int64_t n, int64_t size, const F& functor) {
  std::vector<scalar_t> truth(size), sums(size);
  scatter_in_order(functor, 0, n, Sink<scalar_t>{truth.data()});
  scatter_emulated(n, functor, Sink<scalar_t>{sums.data()});
  const scalar_t largest = largest_of(truth), tolerance = largest * scalar_t(sizeof(scalar_t) == 8 ? 1e-12 : 1e-4);
  expect(largest > 0 && largest_difference(truth, sums) <= tolerance, "sums by warps", name);
  expect_order_free(n, functor, n, truth, tolerance, name);
}

// Antialias by pairs: its gradient to the positions by warps, against one pixel after the other.
template <class scalar_t>
void test_antialias(const char* type) {
  std::mt19937 random(8);
  const auto scene = make_scene<scalar_t>(10, 19, 14, random);
  const auto mesh = scene.mesh();
  const std::vector<int32_t> id = nearest_by_loop(scene), topology(scene.triangles.size(), -1);
  const int64_t pixels = scene.pixels(), triangles = scene.batch * mesh.triangle_count, size = scene.positions.size();
  std::vector<int8_t> facing(triangles);
  std::vector<uint8_t> silhouette(triangles), crossed(2 * pixels);
  TriangleFacing<scalar_t>{mesh, facing.data()}(0, triangles);
  OutlineEdges<scalar_t>{mesh, topology.data(), facing.data(), silhouette.data()}(0, triangles);
  launch_emulated(triangles,
                  MarkCrossedPairs<scalar_t>{mesh, scene.viewport(), silhouette.data(), crossed.data(), pixels,
                                             mesh.triangle_count},
                  random);
  std::uniform_real_distribution<scalar_t> unit(-1, 1);
  std::vector<scalar_t> image(2 * pixels), grads(2 * pixels), weights(4 * pixels), expected(4 * pixels);
  for (scalar_t& x : image) x = unit(random);
  for (scalar_t& x : grads) x = unit(random);
  std::fill_n(grads.begin(), pixels / 2, scalar_t(0));
  AntialiasBackwardPositions<scalar_t> kernel{{mesh, scene.viewport(), id.data(), silhouette.data(),
                                               mesh.triangle_count, topology.data(), crossed.data(), pixels},
                                              image.data(),
                                              grads.data(),
                                              2,
                                              expected.data()};
  std::vector<scalar_t> truth(size), sums(size);
  const int64_t alone = additions_of([&] {
    const Sink<scalar_t> sink{truth.data()};
    for_each_near_outline(kernel.in, 0, pixels, [&](int64_t pixel) { kernel.add_pixel(pixel, sink); });
  });
  kernel.weights = weights.data();
  const int64_t together = additions_of([&] { scatter_emulated(pixels, kernel, Sink<scalar_t>{sums.data()}); });
  expect(together < alone, "antialias: lanes add up before they add to memory", type);
  expect(weights == expected, "antialias: weights of pairs", type);
  const scalar_t largest = largest_of(truth), error = largest_difference(truth, sums);
  expect(largest > 0 && error <= largest * (sizeof(scalar_t) == 8 ? 1e-12 : 1e-4), "antialias: sums by warps", type);
}

template <class scalar_t>
void test_scatters(const char* type) {
  std::mt19937 random(4);
  const auto scene = make_scene<scalar_t>(8, 13, 9, random);
  std::vector<int32_t> id = nearest_by_loop(scene);
  const int64_t n = scene.pixels(), vertices = scene.positions.size() / 4;
  std::uniform_real_distribution<scalar_t> unit(-1, 1);
  std::vector<scalar_t> weights(2 * n), grads(3 * n);
  for (scalar_t& x : weights) x = unit(random);
  for (scalar_t& x : grads) x = unit(random);
  for (int64_t i = 40; i < 80; ++i) grads[3 * i] = grads[3 * i + 1] = grads[3 * i + 2] = 0;  // a warp without gradient
  std::fill(weights.begin() + 80, weights.begin() + 160, scalar_t(0));
  test_scatter<scalar_t>(
      type, n, 4 * vertices,
      RasterizeBackward<scalar_t>{scene.mesh(), scene.viewport(), id.data(), weights.data(), grads.data(), nullptr});
  const InterpolateInput<scalar_t> in{nullptr,
                                      scene.triangles.data(),
                                      id.data(),
                                      weights.data(),
                                      n / scene.batch,
                                      vertices / scene.batch * 3,
                                      static_cast<int32_t>(vertices / scene.batch),
                                      scene.mesh().triangle_count,
                                      3,
                                      scalar_t(1)};
  test_scatter<scalar_t>(type, n, 3 * vertices, InterpolateBackwardAttributes<scalar_t, 3>{in, grads.data(), 0});
}

// ---- composite

// A pixel of many fragments, some of none, and places beyond the last fragment.
template <class scalar_t, int kChannels>
void test_composite(int64_t channels, const char* type) {
  std::mt19937 random(7);
  std::uniform_real_distribution<scalar_t> unit(-1, 1);
  const std::vector<int64_t> offsets = {0, 0, 3, 4, 4, 40, 41, 47};
  const int64_t pixels = offsets.size() - 1, used = offsets.back(), count = used + 9;
  const auto numbers = [&](int64_t n) {
    std::vector<scalar_t> values(n);
    for (scalar_t& x : values) x = unit(random);
    return values;
  };
  const auto values = numbers(count * channels), weight = numbers(count), grad = numbers(pixels * channels);
  std::vector<scalar_t> image(pixels * channels), grad_values(count * channels, 5), grad_weight(count, 5);
  auto sum = image, to_values = grad_values, to_weight = grad_weight;
  std::fill(to_values.begin(), to_values.end(), scalar_t(0));
  std::fill(to_weight.begin(), to_weight.end(), scalar_t(0));
  for (int64_t p = 0; p < pixels; ++p) {
    for (int64_t k = offsets[p]; k < offsets[p + 1]; ++k) {
      for (int64_t c = 0; c < channels; ++c) {
        sum[p * channels + c] += weight[k] * values[k * channels + c];
        to_values[k * channels + c] = weight[k] * grad[p * channels + c];
        to_weight[k] += values[k * channels + c] * grad[p * channels + c];
      }
    }
  }
  const CompositeRows<kChannels> rows{channels};
  const PixelFragments fragments{offsets.data(), count};
  launch_emulated(pixels * channels,
                  CompositeForward<scalar_t, kChannels>{rows, fragments, values.data(), weight.data(), image.data()},
                  random);
  launch_emulated(
      count,
      CompositeBackwardUnused<scalar_t>{offsets.data(), pixels, channels, grad_values.data(), grad_weight.data()},
      random);
  launch_emulated(
      pixels * channels,
      CompositeBackwardValues<scalar_t, kChannels>{rows, fragments, weight.data(), grad.data(), grad_values.data()},
      random);
  launch_emulated(
      pixels,
      CompositeBackwardWeights<scalar_t, kChannels>{rows, fragments, values.data(), grad.data(), grad_weight.data()},
      random);
  expect(image == sum, "composite equals the loop", type);
  expect(grad_values == to_values, "the gradient of its values does", type);
  const scalar_t rounding = 100 * std::numeric_limits<scalar_t>::epsilon();  // sums of lanes have another order
  for (int64_t k = 0; k < count; ++k) {
    expect(std::abs(grad_weight[k] - to_weight[k]) <= rounding, "the gradient of its weights does", type);
  }
}

}  // namespace

int main() {
  test_rasterizer<float>("float");
  test_rasterizer<double>("double");
  test_queue_capacity();
  test_packed_minimum();
  test_warp_sums();
  test_antialias<float>("float");
  test_antialias<double>("double");
  test_scatters<float>("float");
  test_scatters<double>("double");
  test_composite<float, 3>(3, "float");
  test_composite<float, 0>(19, "float");
  test_composite<double, 0>(5, "double");
  if (failures == 0) std::printf("gpu_algorithms agrees\n");
  return failures == 0 ? 0 : 1;
}
