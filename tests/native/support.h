// What the tests of this folder share: launches on emulated threads, and a scene.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "rasterize_gpu.h"

using namespace diffrender;

inline int failures = 0;

inline void expect(bool condition, const char* what, const char* type = "") {
  if (condition) return;
  std::printf("FAILED: %s %s\n", what, type);
  ++failures;
}

constexpr int kThreads = 4;

// Items in random order on several threads: what a grid of thread blocks does, as far as memory can tell.
template <class F>
void launch_emulated(int64_t n, const F& functor, std::mt19937& random) {
  std::vector<int64_t> order(n);
  for (int64_t i = 0; i < n; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = t; i < n; i += kThreads) functor(order[i], order[i] + 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// body(lane) on 32 threads that form a warp, for `warps` warps at once.
inline void run_warps(int warps, const std::function<void(int warp, int lane)>& body) {
  std::vector<emulated::Warp> meeting(warps);
  std::vector<std::thread> threads;
  for (int w = 0; w < warps; ++w) {
    for (int l = 0; l < emulated::kLanesOfWarp; ++l) {
      threads.emplace_back([&, w, l] {
        emulated::this_lane = {&meeting[w], l};
        body(w, l);
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

// The loop of scatter_kernel in core/launch_cuda.cuh with two warps.
template <class F, class scalar_t>
void scatter_emulated(int64_t n, const F& functor, const Sink<scalar_t>& sink) {
  constexpr int kWarps = 2;
  run_warps(kWarps, [&](int warp, int lane) {
    for (int64_t i = warp * 32 + lane; i - lane < n; i += kWarps * 32) {
      functor(std::min(i, n), std::min(i + 1, n), sink);
    }
  });
}

// Additions to memory that `body` makes.
inline int64_t additions_of(const std::function<void()>& body) {
  const int64_t before = emulated::additions.load();
  body();
  return emulated::additions.load() - before;
}

// The largest absolute value, and the largest difference of two arrays.
template <class scalar_t>
scalar_t largest_of(const std::vector<scalar_t>& values) {
  scalar_t largest = 0;
  for (const scalar_t value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

template <class scalar_t>
scalar_t largest_difference(const std::vector<scalar_t>& a, const std::vector<scalar_t>& b) {
  scalar_t largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

// Order-free sums of a scatter kernel over n items: the same bits whichever warp comes first, and within `tolerance` of
// the plain sums. contributions: as in FixedPointUnit.
template <class F, class scalar_t>
void expect_order_free(int64_t n, const F& functor, int64_t contributions, const std::vector<scalar_t>& truth,
                       double tolerance, const char* name) {
  std::vector<scalar_t> first;
  for (int round = 0; round < 2; ++round) {
    std::vector<scalar_t> values(truth.size());
    std::vector<int64_t> fixed(truth.size());
    uint64_t maximum = 0;
    double unit[2];
    Sink<scalar_t> sink{values.data(), 0, ScatterMode::measure, &maximum, fixed.data(), unit};
    scatter_emulated(n, functor, sink);
    FixedPointUnit{&maximum, unit, contributions, nullptr}(0, 1);
    sink.mode = ScatterMode::fixed;
    scatter_emulated(n, functor, sink);
    FixedPointFinish<scalar_t>{values.data(), fixed.data(), unit}(0, truth.size());
    if (round == 0) first = values;
    expect(values == first, "order-free sums are the same bits", name);
    expect(largest_difference(values, truth) <= tolerance, "order-free sums", name);
  }
}

// ---- a scene: triangles of all sizes, some behind the camera, some not finite, copies of others

template <class scalar_t>
struct Scene {
  std::vector<scalar_t> positions;
  std::vector<int32_t> triangles;
  int32_t width, height, batch;

  RasterMesh<scalar_t> mesh() const {
    const int32_t vertices = static_cast<int32_t>(positions.size() / 4 / batch);
    return {positions.data(), triangles.data(),
            nullptr,          int64_t(vertices) * 4,
            vertices,         static_cast<int32_t>(triangles.size() / 3),
            Cull::none};
  }
  Viewport<scalar_t> viewport() const { return Viewport<scalar_t>::make(width, height); }
  int64_t pixels() const { return int64_t(batch) * width * height; }
};

template <class scalar_t>
Scene<scalar_t> make_scene(int count, int32_t width, int32_t height, std::mt19937& random) {
  std::uniform_real_distribution<double> unit(-1, 1);
  Scene<scalar_t> scene{{}, {}, width, height, 2};
  for (int t = 0; t < count; ++t) {
    for (int k = 0; k < 3; ++k) scene.triangles.push_back(3 * t + k);
  }
  scene.triangles[1] = 1000000;  // an index that does not exist
  for (int item = 0; item < scene.batch; ++item) {
    for (int t = 0; t < count; ++t) {
      const double size = std::pow(10.0, 1.3 * unit(random) - 0.7), x = unit(random), y = unit(random);
      for (int k = 0; k < 3; ++k) {
        const double w = 1.5 + unit(random);
        double v[4] = {(x + size * unit(random)) * w, (y + size * unit(random)) * w, 0.9 * unit(random) * w, w};
        if (t % 11 == 5) v[3] *= k == 0 ? -1 : 1;
        if (t % 13 == 7) v[0] *= 1e6;
        if (t % 17 == 9 && k == 1) v[1] = std::nan("");
        for (const double value : v) scene.positions.push_back(static_cast<scalar_t>(value));
      }
    }
    const int64_t first = scene.positions.size() - 12 * count;
    for (int i = 0; i < 12; ++i) scene.positions[first + 12 * 3 + i] = scene.positions[first + 12 * 2 + i];
  }
  return scene;
}

// The nearest triangle of every pixel by a loop over all of them; of equal keys the lowest index.
template <class scalar_t>
std::vector<int32_t> nearest_by_loop(const Scene<scalar_t>& scene) {
  std::vector<int32_t> result(scene.pixels(), -1);
  std::vector<scalar_t> best(scene.pixels(), scalar_t(3));
  const auto mesh = scene.mesh();
  const GpuRasterizer<scalar_t> rasterizer{mesh, scene.viewport(), nullptr, {}, {}, 0};
  for (int64_t item = 0; item < scene.batch; ++item) {
    for (int32_t t = 0; t < mesh.triangle_count; ++t) {
      typename GpuRasterizer<scalar_t>::Projected p;
      if (!rasterizer.project(item, t, &p)) continue;
      for (int i = 1; i + 1 < p.corners; ++i) {
        ScreenTriangle part;
        if (!rasterizer.make_part(p, i, &part)) continue;
        for (int32_t row = part.row_begin; row < part.row_end; ++row) {
          for (int32_t column = part.column_begin; column < part.column_end; ++column) {
            scalar_t key;
            if (!covers(part, column, row)) continue;
            if (!visibility_key(mesh, rasterizer.viewport, item, t, column, row, &key)) continue;
            const int64_t pixel = (item * scene.height + row) * scene.width + column;
            if (key < best[pixel]) best[pixel] = key, result[pixel] = t;
          }
        }
      }
    }
  }
  return result;
}
