// Gradients of texels as a GPU adds them (TextureBackwardTexels, TextureBackwardTwiceTexels), on emulated warps,
// compared with a loop that adds every lookup by itself. Prints what failed; exit status 0 when nothing did.
// tests/test_native.py compiles this with sanitizers.
#include "mips.h"
#include "support.h"
#include "texture_backward.h"
#include "texture_cube.h"
#include "texture_plane.h"
#include "texture_second.h"

namespace {

constexpr int64_t kRows = 5, kColumns = 9, kItems = 2, kLookups = kItems * kRows * kColumns;

// Lookups of a picture, along whose rows the coordinates move by `step` of the texture per pixel. Some are NaN.
std::vector<double> make_lookups(int coordinates, double step, std::mt19937& random) {
  std::uniform_real_distribution<double> unit(-1, 1);
  std::vector<double> result;
  for (int64_t i = 0; i < kLookups; ++i) {
    const double row = i / kColumns % kRows, column = i % kColumns;
    const double at[3] = {column * step - 0.2, row * step + 0.1, 0.7 - 0.2 * step * column};
    for (int k = 0; k < coordinates; ++k) result.push_back(at[k] + 0.01 * step * unit(random));
    if (i % 37 == 5) result.back() = std::nan("");
  }
  return result;
}

struct Texels {
  std::vector<double> base, mips;
  TextureLevels<double> levels{};

  Texels(int32_t faces, int32_t width, int32_t height, int32_t channels, int32_t last, bool shared) {
    levels.width = width;
    levels.height = height;
    levels.channels = channels;
    levels.last = last;
    const auto size = [&](int32_t level) {
      return int64_t(faces) * levels.level_width(level) * levels.level_height(level);
    };
    int64_t packed = 0;
    for (int32_t level = 1; level <= last; ++level) {
      levels.offset[level] = packed;
      packed += size(level);
    }
    levels.base_stride = shared ? 0 : size(0) * channels;
    levels.mips_stride = shared ? 0 : packed * channels;
    base.resize((shared ? 1 : kItems) * size(0) * channels);
    mips.resize((shared ? 1 : kItems) * packed * channels);
    levels.base = base.data();
    levels.mips = mips.data();
  }
};

// times: additions to memory that neighbours spare, at least. per_item: additions of an item to one element, at most;
// 0: leave out the order-free sums, which take five times as long.
template <class F, class Loop>
void test_sum(const char* name, int64_t size, const F& functor, int64_t per_item, double times, const Loop& loop) {
  std::vector<double> truth(size), sums(size);
  const int64_t alone = additions_of([&] { loop(Sink<double>{truth.data()}); });
  const int64_t together = additions_of([&] { scatter_emulated(kLookups, functor, Sink<double>{sums.data()}); });
  expect(times * together <= alone, "lanes add up before they add to memory", name);
  const double tolerance = 1e-12 * largest_of(truth);
  expect(tolerance > 0 && largest_difference(truth, sums) <= tolerance, "sums by warps", name);
  if (per_item > 0) expect_order_free(kLookups, functor, kLookups * per_item, truth, tolerance, name);
}

std::vector<double> make_gradient(int channels, std::mt19937& random) {
  std::uniform_real_distribution<double> unit(-1, 1);
  std::vector<double> grad(kLookups * channels);
  for (double& x : grad) x = unit(random);
  std::fill_n(grad.begin() + 20 * channels, 50 * channels, 0.0);  // of a whole warp, and of parts
  for (size_t i = 0; i < grad.size(); i += 7 * channels) std::fill_n(grad.begin() + i, channels, 0.0);
  return grad;
}

template <class Mapping, bool kMips>
void test_texels(const char* name, const TextureSampler<double, Mapping, kMips>& sampler, const Texels& texels,
                 int64_t per_item, double times, std::mt19937& random) {
  const std::vector<double> grad = make_gradient(sampler.levels.channels, random);
  for (const bool base : {true, false}) {
    if (!base && texels.mips.empty()) continue;
    const TextureBackwardTexels<double, Mapping, kMips> functor{sampler, grad.data(), base};
    test_sum(name, base ? texels.base.size() : texels.mips.size(), functor, per_item, times,
             [&](const Sink<double>& sink) {
               sampler.for_each_share(0, kLookups, [&](const TextureShares<double>& shares) {
                 add_shares(sampler.levels, shares, grad.data(), base, sink);
               });
             });
    const std::vector<double> nothing(grad.size());
    TextureBackwardTexels<double, Mapping, kMips> without = functor;
    without.grad_values = nothing.data();
    std::vector<double> sums(base ? texels.base.size() : texels.mips.size());
    const int64_t additions = additions_of([&] { scatter_emulated(kLookups, without, Sink<double>{sums.data()}); });
    expect(additions == 0, "without a gradient nothing is added", name);
  }
}

void test_planes() {
  std::mt19937 random(3);
  using Sampler = TextureSampler<double, PlaneMapping<double>, false>;
  const auto test = [&](TextureWrap wrap, TextureFilter filter, bool shared, double step, int64_t per_item,
                        double times) {
    const std::vector<double> lookups = make_lookups(2, step, random);
    const Texels texels(1, 7, 5, 5, 0, shared);
    const PlaneMapping<double> mapping{lookups.data(), nullptr, nullptr, wrap, TextureWrap::repeat};
    test_texels("plane", Sampler{mapping, texels.levels, kRows * kColumns, filter, 1}, texels, per_item, times, random);
  };
  test(TextureWrap::repeat, TextureFilter::linear, false, 0.02, 4, 4);  // magnified
  test(TextureWrap::repeat, TextureFilter::nearest, true, 0.02, 0, 4);
  test(TextureWrap::zero, TextureFilter::linear, true, 0.3, 0, 1);  // and out of the texture
}

// Steps of a pixel from 1/2 to 8 texels: every level, and between them.
void test_mips() {
  std::mt19937 random(6);
  using Sampler = TextureSampler<double, PlaneMapping<double>, true>;
  const std::vector<double> lookups = make_lookups(2, 0.02, random);
  std::vector<double> steps;
  for (int64_t i = 0; i < kLookups; ++i) {
    const double texel = std::pow(2.0, i % kColumns * 0.5 - 1) / 16;
    for (const double x : {texel, 0.2 * texel, -0.1 * texel, 0.4 * texel}) steps.push_back(x);
  }
  const PlaneMapping<double> mapping{lookups.data(), steps.data(), nullptr, TextureWrap::repeat, TextureWrap::clamp};
  const Texels own(1, 16, 12, 3, 3, false), shared(1, 16, 12, 3, 3, true);
  const int64_t pixels = kRows * kColumns;
  test_texels("mips", Sampler{mapping, own.levels, pixels, TextureFilter::mip_linear, 2}, own, 16, 1, random);
  test_texels("mips", Sampler{mapping, shared.levels, pixels, TextureFilter::mip_nearest, 1}, shared, 0, 1, random);
}

void test_cubes() {
  std::mt19937 random(4);
  const std::vector<double> lookups = make_lookups(3, 0.15, random);
  std::vector<double> bias(kLookups);
  for (int64_t i = 0; i < kLookups; ++i) bias[i] = i % 5 * 0.6;
  const CubeMapping<double> plain{lookups.data(), nullptr, nullptr}, biased{lookups.data(), nullptr, bias.data()};
  const Texels one(6, 3, 3, 3, 0, false), all(6, 8, 8, 4, 3, true);
  test_texels(
      "cube",
      TextureSampler<double, CubeMapping<double>, false>{plain, one.levels, kRows * kColumns, TextureFilter::linear, 1},
      one, 0, 2, random);
  test_texels("cube with mips",
              TextureSampler<double, CubeMapping<double>, true>{biased, all.levels, kRows * kColumns,
                                                                TextureFilter::mip_linear, 1},
              all, 0, 1, random);
}

void test_second_derivative() {
  std::mt19937 random(5);
  const std::vector<double> lookups = make_lookups(2, 0.02, random), grad = make_gradient(3, random),
                            cotangent = make_gradient(2, random);
  const Texels texels(1, 7, 5, 3, 0, false);
  const PlaneMapping<double> mapping{lookups.data(), nullptr, nullptr, TextureWrap::repeat, TextureWrap::mirror};
  const TextureSampler<double, PlaneMapping<double>, false> sampler{mapping, texels.levels, kRows * kColumns,
                                                                    TextureFilter::linear, 1};
  const TextureBackwardTwiceTexels<double, PlaneMapping<double>> functor{sampler, grad.data(), cotangent.data()};
  test_sum("second derivative", texels.base.size(), functor, 0, 4, [&](const Sink<double>& sink) {
    sampler.for_each_share(0, kLookups, [&](const TextureShares<double>& shares) { functor.add(shares, sink); });
  });
}

// Mips by texels, in any order, as a GPU makes them, and by rows: the same bits, also where sizes are odd or 1.
void test_mip_levels() {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> unit(-1, 1);
  constexpr int32_t kFaces = 2, kChannels = 3;
  for (const auto& [height, width] : {std::pair(7, 10), std::pair(1, 5), std::pair(6, 1)}) {
    const int32_t rows = std::max(height / 2, 1), columns = std::max(width / 2, 1);
    const int64_t fine_size = kFaces * height * width * kChannels, coarse_size = kFaces * rows * columns * kChannels;
    std::vector<double> fine(kItems * fine_size), coarse(kItems * coarse_size), own(fine.size());
    for (double& x : fine) x = unit(random);
    for (double& x : own) x = unit(random);
    std::vector<double> back(fine.size()), other = coarse, other_back = back;
    MipForward<double> down{fine.data(), coarse.data(), fine_size, coarse_size, height, width, kChannels, {}};
    down.out_rows = {kFaces, rows, columns, false};
    down(0, down.out_rows.count(kItems));
    MipBackward<double> up{coarse.data(), own.data(), back.data(), coarse_size, fine_size, fine_size, kChannels, {}};
    up.out_rows = {kFaces, height, width, false};
    up(0, up.out_rows.count(kItems));
    down.coarse = other.data();
    down.out_rows.by_texel = true;
    launch_emulated(down.out_rows.count(kItems), down, random);
    up.fine = other_back.data();
    up.out_rows.by_texel = true;
    launch_emulated(up.out_rows.count(kItems), up, random);
    expect(largest_of(coarse) > 0 && other == coarse, "mips by texels");
    expect(largest_of(back) > 0 && other_back == back, "gradient of mips by texels");
  }
}

}  // namespace

int main() {
  test_planes();
  test_mips();
  test_cubes();
  test_second_derivative();
  test_mip_levels();
  if (failures == 0) std::printf("gpu_texture agrees\n");
  return failures == 0 ? 0 : 1;
}
