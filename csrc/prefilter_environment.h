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
#pragma once

#include "cube.h"
#include "shade_math.h"

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

// The texels of the pyramid that a texel of the result sees, or a packet of neighbouring ones, and with which weight.
template <class T>
struct EnvironmentFilter {
  using scalar_t = ScalarOf<T>;
  using Frame = FaceFrame<scalar_t>;
  static constexpr int kWidth = PacketIo<T>::kWidth;
  static constexpr int kStack = 3 * FilterBands<scalar_t>::kLevels + 1;

  const scalar_t* nodes;  // [N / 6, 4] of one face, level by level: unit direction in its frame, solid angle
  FilterBands<scalar_t> bands;
  scalar_t alpha_squared;
  int32_t size;        // side of the finest level
  int32_t resolution;  // side of the result

  // Neighbouring texels, and a sphere around their directions.
  struct Group {
    Vec3<scalar_t> direction[kWidth], middle;
    scalar_t spread;
  };

  DR_HD int64_t texels() const { return static_cast<int64_t>(resolution) * resolution; }

  // Items run over the texels of a face in tiles of 4 x 2 where those fit: what is handled at once lies close together.
  DR_HD Vec2<int32_t> texel(int64_t index) const {
    const int32_t k = static_cast<int32_t>(index);
    if (resolution % 4 != 0) return {k % resolution, k / resolution};
    const int32_t tile = k / 8, lane = k % 8, across = resolution / 4;
    return {4 * (tile % across) + lane % 4, 2 * (tile / across) + lane / 4};
  }

  DR_HD int64_t row_major(int64_t index) const {
    const Vec2<int32_t> at = texel(index);
    return static_cast<int64_t>(at.y) * resolution + at.x;
  }

  // Lanes beyond `count` repeat the last texel.
  DR_HD Group group(int32_t face, int64_t index, int count) const {
    Group g;
    Vec3<scalar_t> sum{0, 0, 0};
    const scalar_t step = scalar_t(1) / static_cast<scalar_t>(resolution);
    for (int l = 0; l < kWidth; ++l) {
      const Vec2<int32_t> at = texel(index + (l < count ? l : count - 1));
      g.direction[l] = Frame::to_world(face, unit({(2 * at.x + 1) * step - 1, (2 * at.y + 1) * step - 1, 1}));
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

  // Calls visit(node, place, weight) for everything on one face that the group sees: `node` is a row of `nodes`,
  // `place` the texel of the pyramid.
  template <class F>
  DR_HD void walk_face(int32_t side, const Group& group, const F& visit) const {
    scalar_t x[kWidth], y[kWidth], z[kWidth];
    for (int l = 0; l < kWidth; ++l) {
      const Vec3<scalar_t> d = Frame::from_world(side, group.direction[l]);
      x[l] = d.x, y[l] = d.y, z[l] = d.z;
    }
    const Vec3<T> to{PacketIo<T>::load(x, kWidth), PacketIo<T>::load(y, kWidth), PacketIo<T>::load(z, kWidth)};
    const Vec3<scalar_t> middle = Frame::from_world(side, group.middle);

    int32_t first[FilterBands<scalar_t>::kLevels];  // row of `nodes` where a level begins
    int32_t sum = 0;
    for (int32_t m = 0; m < bands.levels; ++m) {
      first[m] = sum;
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
        const int32_t side_length = size >> level, local = row * side_length + column, node = first[level] + local;
        const scalar_t* const at = nodes + 4 * static_cast<int64_t>(node);
        const Vec3<scalar_t> from_middle{middle.x - at[0], middle.y - at[1], middle.z - at[2]};
        const scalar_t distance = dot(from_middle, from_middle);
        if (level > bands.finest && distance < squared(bands.reach[level] + group.spread)) {
          for (int32_t child = 0; child < 4; ++child, ++depth) {
            stack_level[depth] = level - 1;
            stack_column[depth] = 2 * column + (child & 1);
            stack_row[depth] = 2 * row + (child >> 1);
          }
        }
        const scalar_t gap = bands.inner[level] - group.spread;
        const bool is_near = distance < squared(bands.outer[level] + group.spread) && bands.outer[level] > 0;
        if (!is_near || (gap > 0 && distance <= squared(gap))) continue;
        visit(node, 6 * first[level] + side * side_length * side_length + local, weight(level, to, at));
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

  // Calls body(item, face, index, count) for groups of texels of one face in a range over all items.
  template <class F>
  DR_HD void for_each_group(int64_t begin, int64_t end, const F& body) const {
    const int64_t per_face = texels();
    while (begin < end) {
      const int64_t which = begin / per_face, stop = (which + 1) * per_face < end ? (which + 1) * per_face : end;
      for (; begin < stop; begin += kWidth) {
        const int count = static_cast<int>(stop - begin < kWidth ? stop - begin : kWidth);
        body(which / 6, static_cast<int32_t>(which % 6), begin - which * per_face, count);
      }
      begin = stop;
    }
  }
};

// value_o = sum_j w_oj E_j / total_o,   total_o = sum_j w_oj (solid angle of j)
template <class T, int kChannels>
struct PrefilterForward {
  using scalar_t = ScalarOf<T>;

  EnvironmentFilter<T> filter;
  const scalar_t* pyramid;  // [B, N, C] energies
  scalar_t* values;         // [B, 6, R, R, C]
  scalar_t* total;          // [6, R, R]
  int64_t pyramid_texels;
  int32_t channels, first;  // handles channels first ... first + kChannels - 1

  DR_HD void operator()(int64_t begin, int64_t end) const {
    filter.for_each_group(begin, end, [&](int64_t item, int32_t face, int64_t index, int count) {
      const auto group = filter.group(face, index, count);
      const scalar_t* const energies = pyramid + item * pyramid_texels * channels + first;
      T sum[kChannels], whole = T(scalar_t(0));
      for (int c = 0; c < kChannels; ++c) sum[c] = T(scalar_t(0));
      for (int32_t side = 0; side < 6; ++side) {
        filter.walk_face(side, group, [&](int32_t node, int32_t place, const T& weight) {
          const scalar_t* const energy = energies + static_cast<int64_t>(place) * channels;
          whole += weight * T(filter.nodes[4 * static_cast<int64_t>(node) + 3]);
          for (int c = 0; c < kChannels; ++c) sum[c] += weight * T(energy[c]);
        });
      }
      scalar_t result[kChannels + 1][EnvironmentFilter<T>::kWidth];
      PacketIo<T>::store(result[kChannels], whole, EnvironmentFilter<T>::kWidth);
      for (int c = 0; c < kChannels; ++c) PacketIo<T>::store(result[c], sum[c] / whole, EnvironmentFilter<T>::kWidth);
      for (int l = 0; l < count; ++l) {
        const int64_t place = face * filter.texels() + filter.row_major(index + l);
        scalar_t* const out = values + (item * 6 * filter.texels() + place) * channels + first;
        for (int c = 0; c < kChannels; ++c) out[c] = result[c][l];
        if (item == 0 && first == 0) total[place] = result[kChannels][l];
      }
    });
  }
};

// The transpose: grad_E_j = sum_o w_oj grad_value_o / total_o. The weights depend on nothing but the sizes.
template <class T, int kChannels>
struct PrefilterBackward {
  using scalar_t = ScalarOf<T>;

  EnvironmentFilter<T> filter;
  const scalar_t* grad_values;  // [B, 6, R, R, C]
  const scalar_t* total;        // [6, R, R]
  int64_t pyramid_texels;
  int32_t channels, first;

  DR_HD void operator()(int64_t begin, int64_t end, const Sink<scalar_t>& sink) const {
    filter.for_each_group(begin, end, [&](int64_t item, int32_t face, int64_t index, int count) {
      const auto group = filter.group(face, index, count);
      scalar_t loaded[kChannels][EnvironmentFilter<T>::kWidth] = {};
      for (int l = 0; l < count; ++l) {
        const int64_t place = face * filter.texels() + filter.row_major(index + l);
        const scalar_t* const in = grad_values + (item * 6 * filter.texels() + place) * channels + first;
        for (int c = 0; c < kChannels; ++c) loaded[c][l] = in[c] / total[place];
      }
      T grad[kChannels];
      for (int c = 0; c < kChannels; ++c) grad[c] = PacketIo<T>::load(loaded[c], EnvironmentFilter<T>::kWidth);
      const int64_t energies = item * pyramid_texels * channels + first;
      for (int32_t side = 0; side < 6; ++side) {
        filter.walk_face(side, group, [&](int32_t, int32_t place, const T& weight) {
          for (int c = 0; c < kChannels; ++c) {
            accumulate(sink, energies + static_cast<int64_t>(place) * channels + c, sum_of_lanes(weight * grad[c]));
          }
        });
      }
    });
  }
};

}  // namespace diffrender
