// GGX-filtered cube maps: every texel of the result is a mean of the environment over the hemisphere around it.
//
// With normal, view and reflection all equal to n (the split-sum approximation) light from l counts with
//   w = c D(n.h),   c = n.l > 0,   (n.h)^2 = (1 + c) / 2,   D ~ 1 / ((n.h)^2 (A - 1) + 1)^2,   A = roughness^4
// which in the squared chord q = |n - l|^2 = 2 - 2 c is w = (1 - q / 2) (A / (A + q (1 - A) / 4))^2, up to a constant
// that the mean cancels. For A = 1 that is the cosine: the mean is the irradiance divided by pi.
//
// w varies over distances of the order of sqrt(q + 4 A / (1 - A)), so that far from n coarse texels tell as much as
// fine ones. The environment comes as a pyramid of energies (radiance times solid angle), and w is split into bands,
// one per level: w = sum over m of w (up_m - up_m+1), where up_m(q) rises from 0 to 1 where texels of level m become
// small enough. Bands overlap and the split does not depend on where n lies between texels: no blocks, no seams.
//
// A rotation of the cube takes texels to texels, so that the weights around one of them are those around its 24 images:
// they are made around a quarter of face 0, and used for all images at once where that pays.
#pragma once

#include "cube.h"
#include "shade_math.h"
#include "warp_sums.h"

namespace diffrender {

// Which distances belong to which level. Distances are chords of the unit sphere.
template <class scalar_t>
struct FilterBands {
  static constexpr int kLevels = 14;

  int32_t finest, levels;  // finest level in use, levels of the pyramid
  // up_m(q) = scale q - offset, clamped to [0, 1]; one more than there are levels, for the end of the last band.
  scalar_t scale[kLevels + 1], offset[kLevels + 1];
  scalar_t inner[kLevels], outer[kLevels];  // where the band of a level begins and ends
  scalar_t reach[kLevels];                  // below this distance from a texel its children may matter

  // Texels of level m are used where half their diagonal is below `tolerance` times the distance over which w varies.
  [[gnu::noinline]] static FilterBands make(int64_t size, int32_t levels, double alpha_squared, double tolerance) {
    constexpr double kHorizon = 2;  // squared chord of a right angle
    const double rest = 1 - alpha_squared;
    const double width = rest > 0 && 4 * alpha_squared < rest ? 4 * alpha_squared / rest : 1;
    FilterBands bands{};
    bands.levels = levels;
    double low[kLevels + 1], high[kLevels + 1];
    for (int32_t m = 0; m <= levels; ++m) {
      const double radius = std::sqrt(2.0) / static_cast<double>(size >> m), needed = radius / tolerance;
      low[m] = needed * needed - width;
      high[m] = 1.3 * (low[m] + width) - width;  // the next level begins at 4 (low + width) - width
      if (m < levels && low[m] <= 0) bands.finest = m;
    }
    for (int32_t m = 0; m <= levels; ++m) {
      const bool whole = m <= bands.finest, none = m == levels || low[m] >= kHorizon;
      if (whole) low[m] = high[m] = 0;
      if (none && !whole) low[m] = high[m] = kHorizon;
      bands.scale[m] = scalar_t(whole || none ? 0 : 1 / (high[m] - low[m]));
      bands.offset[m] = scalar_t(whole ? -1 : none ? 0 : low[m] / (high[m] - low[m]));
    }
    for (int32_t m = 0; m < levels; ++m) {
      const double radius = std::sqrt(2.0) / static_cast<double>(size >> m);
      const double begin = std::fmin(high[m], kHorizon), end = std::fmin(high[m + 1], kHorizon);
      bands.inner[m] = scalar_t(std::sqrt(low[m]));
      bands.outer[m] = scalar_t(m < bands.finest || low[m] >= kHorizon ? 0 : std::sqrt(end));
      bands.reach[m] = scalar_t(std::sqrt(begin) + radius);
    }
    return bands;
  }

  template <class T>
  DR_HD T share(int32_t level, T q) const {
    const T up = clamped(q * T(scale[level]) - T(offset[level]));
    return up - clamped(q * T(scale[level + 1]) - T(offset[level + 1]));
  }

  template <class T>
  DR_HD static T clamped(T x) {
    return smaller(larger(x, T(scalar_t(0))), T(scalar_t(1)));
  }
};

// The rotations of the cube as they move texels. The first six take the frame of face 0 to that of each face; the
// others turn face 0 by one to three quarters before that.
struct CubeTurns {
  static constexpr int kCount = 24;
  // Of n x n texels, (column, row) goes to
  //   column' = along[0] column + along[1] row + along[2] (n - 1),   row' likewise by `across`.
  int8_t side[6][kCount], along[6][3][kCount], across[6][3][kCount];

  // Where texels lie in the six sides of a level one after another: at base + by_column column + by_row row.
  struct Map {
    int32_t base, by_column, by_row;
  };

  [[gnu::noinline]] static CubeTurns make() {
    using Frame = FaceFrame<float>;
    CubeTurns turns{};
    for (int32_t s = 0; s < 6; ++s) {
      for (int32_t i = 0; i < kCount; ++i) {
        const auto turned = [&](Vec3<float> v) {
          Vec3<float> local = Frame::from_world(0, Frame::to_world(s, v));
          for (int32_t quarter = 0; quarter < i / 6; ++quarter) local = {-local.y, local.x, local.z};
          return Frame::to_world(i % 6, local);
        };
        const int32_t to = Frame::face_of(turned({0, 0, 1}));
        const Vec3<float> a = Frame::from_world(to, turned({1, 0, 0})), b = Frame::from_world(to, turned({0, 1, 0}));
        turns.side[s][i] = static_cast<int8_t>(to);
        const auto fill = [&](int8_t (*rows)[kCount], float from_column, float from_row) {
          rows[0][i] = static_cast<int8_t>(from_column);
          rows[1][i] = static_cast<int8_t>(from_row);
          rows[2][i] = from_column + from_row < 0 ? 1 : 0;
        };
        fill(turns.along[s], a.x, b.x);
        fill(turns.across[s], a.y, b.y);
      }
    }
    return turns;
  }

  DR_HD Map map(int32_t s, int32_t n, int32_t i) const {
    const int32_t corner = across[s][2][i] * (n - 1) * n + along[s][2][i] * (n - 1);
    return {side[s][i] * n * n + corner, across[s][0][i] * n + along[s][0][i], across[s][1][i] * n + along[s][1][i]};
  }
};

// The texels of the pyramid that a texel of the result sees, or a packet of neighbouring ones, and with which weight.
template <class T>
struct EnvironmentFilter {
  using scalar_t = ScalarOf<T>;
  using Frame = FaceFrame<scalar_t>;
  static constexpr int kWidth = PacketIo<T>::kWidth;
  // How many images of a texel are handled at once: a processor's core saves their weights; a GPU needs the threads.
  static constexpr int kMostImages = kWidth > 1 ? CubeTurns::kCount : 1;
  static constexpr int kStack = 3 * FilterBands<scalar_t>::kLevels + 1;

  const scalar_t* nodes;  // [N / 6, 4] of one face, level by level: unit direction in its frame, solid angle
  FilterBands<scalar_t> bands;
  scalar_t alpha_squared;
  int32_t size;        // side of the finest level
  int32_t resolution;  // side of the result
  CubeTurns turns;

  // Neighbouring texels, and a sphere around their directions.
  struct Group {
    Vec3<scalar_t> direction[kWidth], middle;
    scalar_t spread;
  };

  // A quarter of face 0 and its images are all texels; with a middle row only whole faces are.
  DR_HD bool is_quartered() const { return kMostImages > 1 && resolution % 2 == 0; }
  DR_HD int32_t images() const { return kMostImages > 1 ? (is_quartered() ? CubeTurns::kCount : 6) : 1; }
  DR_HD int32_t block() const { return is_quartered() ? resolution / 2 : resolution; }
  DR_HD int64_t items() const { return int64_t(6) * resolution * resolution / images(); }
  DR_HD int64_t texels() const { return int64_t(6) * resolution * resolution; }

  // Items run over the texels of a block of face 0 in tiles of 4 x 2 where those fit: what is handled at once lies
  // close together.
  DR_HD Vec2<int32_t> texel(int64_t index) const {
    const int32_t k = static_cast<int32_t>(index), length = block();
    if (length % 4 != 0) return {k % length, k / length};
    const int32_t tile = k / 8, lane = k % 8, across = length / 4;
    return {4 * (tile % across) + lane % 4, 2 * (tile / across) + lane / 4};
  }

  // The texel of the result that an image of such a texel is.
  DR_HD int64_t place(int64_t index, int32_t image) const {
    const Vec2<int32_t> at = texel(index);
    const CubeTurns::Map map = turns.map(0, resolution, image);
    return map.base + map.by_column * at.x + map.by_row * at.y;
  }

  // Texels of face 0; lanes beyond `count` repeat the last.
  DR_HD Group group(int64_t index, int count) const {
    Group g;
    Vec3<scalar_t> sum{0, 0, 0};
    const scalar_t step = scalar_t(1) / static_cast<scalar_t>(resolution);
    for (int l = 0; l < kWidth; ++l) {
      const Vec2<int32_t> at = texel(index + (l < count ? l : count - 1));
      g.direction[l] = Frame::to_world(0, unit({(2 * at.x + 1) * step - 1, (2 * at.y + 1) * step - 1, 1}));
      sum = sum + g.direction[l];
    }
    g.middle = unit(sum);
    g.spread = 0;
    for (int l = 0; l < kWidth; ++l) {
      const Vec3<scalar_t> d = g.direction[l] - g.middle;
      const scalar_t distance = square_root(dot(d, d));
      g.spread = g.spread < distance ? distance : g.spread;
    }
    return g;
  }

  DR_HD static Vec3<scalar_t> unit(Vec3<scalar_t> v) { return (scalar_t(1) / square_root(dot(v, v))) * v; }
  DR_HD static scalar_t squared(scalar_t x) { return x * x; }

  // Calls visit(node, places, weight) for everything on one side of the cube that the group sees: `node` is a row of
  // `nodes`, `places` are the texels of the pyramid that it is for the images from `image` on.
  // kByWarp: the lanes of a warp walk together over what any of those sees that are `live`, and pass a weight of 0
  // where they see nothing themselves.
  template <bool kByWarp = false, class F>
  DR_HD void walk_side(int32_t side, int32_t image, const Group& group, const F& visit, bool live = true) const {
    const auto anyone = [](bool value) {
      if constexpr (kByWarp) return warp_any(value);
      return value;
    };
    scalar_t x[kWidth], y[kWidth], z[kWidth];
    for (int l = 0; l < kWidth; ++l) {
      const Vec3<scalar_t> d = Frame::from_world(side, group.direction[l]);
      x[l] = d.x, y[l] = d.y, z[l] = d.z;
    }
    const Vec3<T> to{PacketIo<T>::load(x, kWidth), PacketIo<T>::load(y, kWidth), PacketIo<T>::load(z, kWidth)};
    const Vec3<scalar_t> middle = Frame::from_world(side, group.middle);

    int32_t first[FilterBands<scalar_t>::kLevels];  // row of `nodes` where a level begins
    int32_t base[FilterBands<scalar_t>::kLevels][kMostImages], by_column[FilterBands<scalar_t>::kLevels][kMostImages],
        by_row[FilterBands<scalar_t>::kLevels][kMostImages];
    int32_t sum = 0;
    for (int32_t m = 0; m < bands.levels; ++m) {
      first[m] = sum;
      for (int32_t i = 0; i < kMostImages; ++i) {
        const CubeTurns::Map map = turns.map(side, size >> m, image + i);
        base[m][i] = 6 * sum + map.base, by_column[m][i] = map.by_column, by_row[m][i] = map.by_row;
      }
      sum += (size >> m) * (size >> m);
    }
    // Depth first: a texel that is taken from the stack leaves at most three siblings behind, per level.
    int32_t stack_level[kStack], stack_column[kStack], stack_row[kStack];
    const int32_t top = bands.levels - 1, top_size = size >> top;
    for (int32_t root = 0; root < top_size * top_size; ++root) {
      int32_t depth = 1;
      stack_level[0] = top, stack_column[0] = root % top_size, stack_row[0] = root / top_size;
      while (depth > 0) {
        --depth;
        const int32_t level = stack_level[depth], column = stack_column[depth], row = stack_row[depth];
        const int32_t side_length = size >> level, node = first[level] + row * side_length + column;
        const scalar_t* const at = nodes + 4 * static_cast<int64_t>(node);
        const Vec3<scalar_t> from_middle{middle.x - at[0], middle.y - at[1], middle.z - at[2]};
        const scalar_t distance = dot(from_middle, from_middle);
        if (anyone(live && level > bands.finest && distance < squared(bands.reach[level] + group.spread))) {
          for (int32_t child = 0; child < 4; ++child, ++depth) {
            stack_level[depth] = level - 1;
            stack_column[depth] = 2 * column + (child & 1);
            stack_row[depth] = 2 * row + (child >> 1);
          }
        }
        const scalar_t gap = bands.inner[level] - group.spread;
        const bool is_near = distance < squared(bands.outer[level] + group.spread) && bands.outer[level] > 0;
        const bool sees = live && is_near && !(gap > 0 && distance <= squared(gap));
        if (!anyone(sees)) continue;
        int32_t places[kMostImages];
        for (int32_t i = 0; i < kMostImages; ++i) {
          places[i] = base[level][i] + by_column[level][i] * column + by_row[level][i] * row;
        }
        visit(node, places, kByWarp && !sees ? T(scalar_t(0)) : weight(level, to, at));
      }
    }
  }

  // What light from a texel of the pyramid counts.
  DR_HD T weight(int32_t level, const Vec3<T>& to, const scalar_t* at) const {
    const Vec3<T> offset{to.x - T(at[0]), to.y - T(at[1]), to.z - T(at[2])};
    const T q = dot(offset, offset), cosine = T(scalar_t(1)) - T(scalar_t(0.5)) * q;
    const T ratio = T(alpha_squared) / (T(alpha_squared) + q * T((1 - alpha_squared) / 4));
    return larger(cosine, T(scalar_t(0))) * ratio * ratio * bands.share(level, q);
  }

  // Calls body(item, image, index, count) for groups of texels in a range over all items of a batch.
  template <class F>
  DR_HD void for_each_group(int64_t begin, int64_t end, const F& body) const {
    const int64_t per_block = static_cast<int64_t>(block()) * block(), blocks = items() / per_block;
    while (begin < end) {
      const int64_t which = begin / per_block, stop = (which + 1) * per_block < end ? (which + 1) * per_block : end;
      for (; begin < stop; begin += kWidth) {
        const int count = static_cast<int>(stop - begin < kWidth ? stop - begin : kWidth);
        body(which / blocks, static_cast<int32_t>(which % blocks), begin - which * per_block, count);
      }
      begin = stop;
    }
  }
};

// value_o = sum_j w_oj E_j / total_o,   total_o = sum_j w_oj (solid angle of j)
template <class T, int kChannels>
struct PrefilterForward {
  using scalar_t = ScalarOf<T>;
  static constexpr int kWidth = EnvironmentFilter<T>::kWidth, kMostImages = EnvironmentFilter<T>::kMostImages;

  EnvironmentFilter<T> filter;
  const scalar_t* pyramid;  // [B, N, C] energies
  scalar_t* values;         // [B, 6, R, R, C]
  scalar_t* total;          // [6, R, R]
  int64_t pyramid_texels;
  int32_t channels, first;  // handles channels first ... first + kChannels - 1

  DR_HD void operator()(int64_t begin, int64_t end) const {
    const int32_t images = filter.images();
    filter.for_each_group(begin, end, [&](int64_t item, int32_t image, int64_t index, int count) {
      const auto group = filter.group(index, count);
      const scalar_t* const energies = pyramid + item * pyramid_texels * channels + first;
      T sum[kMostImages][kChannels], whole = T(scalar_t(0));
      for (int i = 0; i < kMostImages; ++i) {
        for (int c = 0; c < kChannels; ++c) sum[i][c] = T(scalar_t(0));
      }
      for (int32_t side = 0; side < 6; ++side) {
        filter.walk_side(side, image, group, [&](int32_t node, const int32_t* places, const T& weight) {
          whole += weight * T(filter.nodes[4 * static_cast<int64_t>(node) + 3]);
          for (int i = 0; i < images; ++i) {
            const scalar_t* const energy = energies + static_cast<int64_t>(places[i]) * channels;
            for (int c = 0; c < kChannels; ++c) sum[i][c] += weight * T(energy[c]);
          }
        });
      }
      scalar_t result[kChannels + 1][kWidth];
      PacketIo<T>::store(result[kChannels], whole, kWidth);
      for (int i = 0; i < images; ++i) {
        for (int c = 0; c < kChannels; ++c) PacketIo<T>::store(result[c], sum[i][c] / whole, kWidth);
        for (int l = 0; l < count; ++l) {
          const int64_t place = filter.place(index + l, image + i);
          scalar_t* const out = values + (item * filter.texels() + place) * channels + first;
          for (int c = 0; c < kChannels; ++c) out[c] = result[c][l];
          if (item == 0 && first == 0) total[place] = result[kChannels][l];
        }
      }
    });
  }
};

// The transpose: grad_E_j = sum_o w_oj grad_value_o / total_o. The weights depend on nothing but the sizes. On a GPU
// the texels of a warp, which lie next to each other, see nearly the same of the pyramid: they walk over it together
// and sum what they have for a texel of it.
template <class T, int kChannels>
struct PrefilterBackward {
  using scalar_t = ScalarOf<T>;
  static constexpr int kWidth = EnvironmentFilter<T>::kWidth, kMostImages = EnvironmentFilter<T>::kMostImages;

  static constexpr int kPackets = kMostImages * kChannels / kWidth;

  EnvironmentFilter<T> filter;
  const scalar_t* grad_values;  // [B, 6, R, R, C]
  const scalar_t* total;        // [6, R, R]
  int64_t pyramid_texels;
  int32_t channels, first;

  static constexpr int kValues = kChannels;  // launch_scatter hands it to whole warps

  DR_HD void operator()(int64_t begin, int64_t end, const Sink<scalar_t>& sink) const {
    if constexpr (kHasWarps && kWidth == 1) {
      by_warp(begin, end, sink);
    } else {
      by_group(begin, end, sink);
    }
  }

  DR_HD void by_group(int64_t begin, int64_t end, const Sink<scalar_t>& sink) const {
    const int32_t images = filter.images();
    filter.for_each_group(begin, end, [&](int64_t item, int32_t image, int64_t index, int count) {
      const auto group = filter.group(index, count);
      // By texel, so that the sum over texels is one of packets.
      T grad[kWidth][kPackets];
      for (int l = 0; l < kWidth; ++l) {
        scalar_t own[kPackets * kWidth] = {};  // [i kChannels + c]
        for (int i = 0; i < (l < count ? images : 0); ++i) {
          const int64_t place = filter.place(index + l, image + i);
          const scalar_t* const in = grad_values + (item * filter.texels() + place) * channels + first;
          for (int c = 0; c < kChannels; ++c) own[i * kChannels + c] = in[c] / total[place];
        }
        for (int k = 0; k < kPackets; ++k) grad[l][k] = PacketIo<T>::load(own + k * kWidth, kWidth);
      }
      const int64_t energies = item * pyramid_texels * channels + first;
      for (int32_t side = 0; side < 6; ++side) {
        filter.walk_side(side, image, group, [&](int32_t, const int32_t* places, const T& weight) {
          scalar_t weights[kWidth], result[kPackets * kWidth];
          PacketIo<T>::store(weights, weight, kWidth);
          for (int k = 0; k < kPackets; ++k) {
            T sum = T(scalar_t(0));
            for (int l = 0; l < kWidth; ++l) sum += T(weights[l]) * grad[l][k];
            PacketIo<T>::store(result + k * kWidth, sum, kWidth);
          }
          for (int i = 0; i < images; ++i) {
            const int64_t place = energies + static_cast<int64_t>(places[i]) * channels;
            for (int c = 0; c < kChannels; ++c) accumulate(sink, place + c, result[i * kChannels + c]);
          }
        });
      }
    });
  }

  DR_HD void by_warp(int64_t begin, int64_t end, const Sink<scalar_t>& sink) const {
    typename EnvironmentFilter<T>::Group group{};
    scalar_t grad[kChannels] = {};
    int64_t own_item = 0;
    int32_t own_image = 0;
    bool live = false;
    filter.for_each_group(begin, end, [&](int64_t item, int32_t image, int64_t index, int) {
      group = filter.group(index, 1);
      own_item = item;
      own_image = image;
      const int64_t place = filter.place(index, image);
      const scalar_t* const in = grad_values + (item * filter.texels() + place) * channels + first;
      for (int c = 0; c < kChannels; ++c) {
        live = live || in[c] != 0;
        grad[c] = in[c] / total[place];
      }
    });
    if (!warp_any(live)) return;
    // A node is the same texel of the pyramid for all lanes of one image and item.
    const LaneGroup together = LaneGroup::of(live, own_item * CubeTurns::kCount + own_image);
    const int64_t energies = own_item * pyramid_texels * channels + first;
    for (int32_t side = 0; side < 6; ++side) {
      filter.template walk_side<true>(
          side, own_image, group,
          [&](int32_t, const int32_t* places, scalar_t weight) {
            scalar_t values[kChannels];
            for (int c = 0; c < kChannels; ++c) values[c] = weight != 0 ? weight * grad[c] : scalar_t(0);
            add_group(sink, together, energies + static_cast<int64_t>(places[0]) * channels, values);
          },
          live);
    }
  }
};

}  // namespace diffrender
