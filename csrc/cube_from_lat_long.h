// Lat-long panorama to cube map: every texel is the mean of the panorama over the solid angle that it covers.
//
// The panorama is bilinear between its texel centres, around the seam at +-180 degrees and over the poles: beyond the
// first and the last row lies the same row on the opposite meridian. The mean is a midpoint sum over n x n parts of
// the texel, weighted by their solid angles, with parts no wider than half of the panorama's texels there: n grows
// towards the poles, where meridians meet.
#pragma once

#include "cube.h"
#include "shade_math.h"
#include "warp_sums.h"

namespace diffrender {

constexpr double kPi = 3.14159265358979323846;

// The four texels around a direction and their weights.
template <class scalar_t>
struct LatLongTaps {
  int64_t index[4];
  scalar_t weight[4];
};

// On the type of a single number, or of a packet of parts of a texel.
template <class T>
struct LatLongSampler {
  using scalar_t = ScalarOf<T>;
  static constexpr int kWidth = PacketIo<T>::kWidth;
  static constexpr int32_t kMostParts = 32;  // along an axis; only texels next to a pole need as many

  int32_t height, width, size;

  // Where directions lie in the panorama, in texels from the centre of the first one. Row 0 looks up, the middle column
  // to -z, columns go on to +x.
  DR_HD Vec2<T> position(const Vec3<T>& d) const {
    const T theta = arc_tangent(square_root(d.x * d.x + d.z * d.z), d.y), phi = arc_tangent(d.x, -d.z);
    const T half = T(scalar_t(0.5));
    return {(phi * T(scalar_t(1 / (2 * kPi))) + half) * T(static_cast<scalar_t>(width)) - half,
            theta * T(static_cast<scalar_t>(height) / scalar_t(kPi)) - half};
  }

  DR_HD LatLongTaps<scalar_t> taps(scalar_t x, scalar_t y) const {
    const scalar_t floor_y = std::floor(y), part = y - floor_y;
    const int32_t row = static_cast<int32_t>(floor_y);
    LatLongTaps<scalar_t> t;
    for (int k = 0; k < 2; ++k) {
      const int32_t wanted = row + k;
      const bool over_pole = wanted < 0 || wanted >= height;
      const int64_t line = static_cast<int64_t>(wanted < 0 ? 0 : wanted >= height ? height - 1 : wanted) * width;
      const scalar_t shifted = over_pole ? x + scalar_t(0.5) * static_cast<scalar_t>(width) : x;
      const scalar_t floor_x = std::floor(shifted), beyond = shifted - floor_x;
      const int32_t column = wrapped(static_cast<int32_t>(floor_x));
      const scalar_t share = k == 0 ? 1 - part : part;
      t.index[2 * k] = line + column;
      t.index[2 * k + 1] = line + wrapped(column + 1);
      t.weight[2 * k] = share * (1 - beyond);
      t.weight[2 * k + 1] = share * beyond;
    }
    return t;
  }

  // Columns are at most one and a half rounds away.
  DR_HD int32_t wrapped(int32_t column) const {
    if (column < 0) return column + width;
    return column >= width ? column - width : column;
  }

  // A texel cut into n x n parts.
  struct Parts {
    int32_t face, n;
    scalar_t u0, v0, step, total;  // of all solid angles
  };

  DR_HD Parts cut(int32_t face, int32_t row, int32_t column) const {
    const scalar_t h = scalar_t(2) / static_cast<scalar_t>(size);
    const scalar_t u0 = static_cast<scalar_t>(column) * h - 1, v0 = static_cast<scalar_t>(row) * h - 1;
    const int32_t n = parts(face, u0 + h / 2, v0 + h / 2, h);
    Parts p{face, n, u0, v0, h / static_cast<scalar_t>(n), 0};
    scalar_t share[kWidth];
    for (int32_t k = 0; k < n * n; k += kWidth) {
      PacketIo<T>::store(share, solid_angle(part(p, k)), kWidth);
      for (int32_t l = 0; l < kWidth && k + l < n * n; ++l) p.total += share[l];
    }
    return p;
  }

  // Calls visit(taps, share) for the parts of a texel; shares add up to 1.
  template <class F>
  DR_HD void for_each_part(int32_t face, int32_t row, int32_t column, const F& visit) const {
    const Parts p = cut(face, row, column);
    const int32_t count = p.n * p.n;
    for (int32_t k = 0; k < count; k += kWidth) visit_parts(p, k, count, visit);
  }

  // Those of parts k to k + kWidth - 1 that are before `count`.
  template <class F>
  DR_HD void visit_parts(const Parts& p, int32_t k, int32_t count, const F& visit) const {
    scalar_t share[kWidth], x[kWidth], y[kWidth];
    const Vec3<T> at = part(p, k);
    const Vec2<T> where = position(FaceFrame<T>::to_world(p.face, at));
    PacketIo<T>::store(share, solid_angle(at) / T(p.total), kWidth);
    PacketIo<T>::store(x, where.x, kWidth);
    PacketIo<T>::store(y, where.y, kWidth);
    for (int32_t l = 0; l < kWidth && k + l < count; ++l) visit(taps(x[l], y[l]), share[l]);
  }

  // Parts k to k + kWidth - 1, those of a texel and some beyond its last row.
  DR_HD static Vec3<T> part(const Parts& p, int32_t k) {
    scalar_t u[kWidth], v[kWidth];
    for (int32_t l = 0, i = k % p.n, j = k / p.n; l < kWidth; ++l) {
      u[l] = p.u0 + (static_cast<scalar_t>(i) + scalar_t(0.5)) * p.step;
      v[l] = p.v0 + (static_cast<scalar_t>(j) + scalar_t(0.5)) * p.step;
      if (++i == p.n) i = 0, ++j;
    }
    return {PacketIo<T>::load(u, kWidth), PacketIo<T>::load(v, kWidth), T(scalar_t(1))};
  }

  // Up to a constant.
  DR_HD static T solid_angle(const Vec3<T>& at) {
    const T squared = at.x * at.x + at.y * at.y + at.z * at.z;
    return T(scalar_t(1)) / (squared * square_root(squared));
  }

  DR_HD int32_t parts(int32_t face, scalar_t u, scalar_t v, scalar_t h) const {
    const scalar_t length = std::sqrt(1 + u * u + v * v), angle = h / length;  // of a side, at most
    const Vec3<scalar_t> d = FaceFrame<scalar_t>::to_world(face, {u, v, 1});
    const scalar_t sine = std::sqrt(d.x * d.x + d.z * d.z) / length - angle * scalar_t(0.70710678);
    const scalar_t tall = scalar_t(kPi) / static_cast<scalar_t>(height);
    const scalar_t wide = scalar_t(2 * kPi) / static_cast<scalar_t>(width) * (sine > 0 ? sine : scalar_t(0));
    const scalar_t widest = (tall < wide ? tall : wide) * scalar_t(0.5);
    const scalar_t least = widest * static_cast<scalar_t>(kMostParts);
    if (angle >= least) return kMostParts;
    return static_cast<int32_t>(std::ceil(angle * static_cast<scalar_t>(kMostParts) / least));
  }

  // Calls body(item, texel, face, row, column) over a range of texels of all items.
  template <class F>
  DR_HD void for_each_texel(int64_t begin, int64_t end, const F& body) const {
    for_each_index(begin, end, static_cast<int64_t>(size) * size, [&](int64_t index, int64_t which) {
      const int32_t local = static_cast<int32_t>(index - which * size * size);
      body(which / 6, index, static_cast<int32_t>(which % 6), local / size, local % size);
    });
  }
};

// kChannels: their number where it is known, or 0.
template <class T, int kChannels = 0>
struct CubeFromLatLongForward {
  using scalar_t = ScalarOf<T>;

  LatLongSampler<T> sampler;
  const scalar_t* panorama;  // [B, H, W, C]
  scalar_t* cube;            // [B, 6, S, S, C], zero on entry
  int32_t channels;

  DR_HD void operator()(int64_t begin, int64_t end) const {
    const int64_t per_item = static_cast<int64_t>(sampler.height) * sampler.width * channels;
    sampler.for_each_texel(begin, end, [&](int64_t item, int64_t texel, int32_t face, int32_t row, int32_t column) {
      const scalar_t* const from = panorama + item * per_item;
      scalar_t* const out = cube + texel * channels;
      scalar_t known[kChannels + 1] = {};  // in registers
      scalar_t* const sum = kChannels > 0 ? known : out;
      const int32_t count = kChannels > 0 ? kChannels : channels;
      sampler.for_each_part(face, row, column, [&](const LatLongTaps<scalar_t>& taps, scalar_t share) {
        for (int k = 0; k < 4; ++k) {
          const scalar_t weight = share * taps.weight[k];
          const scalar_t* const in = from + taps.index[k] * count;
          for (int32_t c = 0; c < count; ++c) sum[c] += weight * in[c];
        }
      });
      for (int32_t c = 0; c < kChannels; ++c) out[c] = known[c];
    });
  }
};

// The transpose. On a GPU the lanes of a warp share out the parts of all their texels, one after another, and sum what
// they have for the same texel of the panorama: parts next to each other fall on the same ones, and so do texels where
// the cube is the finer of the two.
template <class T, int kChannels = 0>
struct CubeFromLatLongBackward {
  using scalar_t = ScalarOf<T>;
  using Parts = typename LatLongSampler<T>::Parts;

  LatLongSampler<T> sampler;
  const scalar_t* grad_cube;  // [B, 6, S, S, C]
  int32_t channels;

  static constexpr int kValues = kChannelsAtOnce;  // launch_scatter hands it to whole warps

  DR_HD void operator()(int64_t begin, int64_t end, const Sink<scalar_t>& sink) const {
    if constexpr (kHasWarps && LatLongSampler<T>::kWidth == 1) {
      by_warp(begin, end, sink);
    } else {
      one_by_one(begin, end, sink);
    }
  }

  DR_HD int64_t per_item() const { return static_cast<int64_t>(sampler.height) * sampler.width * channels; }

  DR_HD void one_by_one(int64_t begin, int64_t end, const Sink<scalar_t>& sink) const {
    sampler.for_each_texel(begin, end, [&](int64_t item, int64_t texel, int32_t face, int32_t row, int32_t column) {
      const scalar_t* const grad = grad_cube + texel * channels;
      const int32_t count = kChannels > 0 ? kChannels : channels;
      sampler.for_each_part(face, row, column, [&](const LatLongTaps<scalar_t>& taps, scalar_t share) {
        for (int k = 0; k < 4; ++k) {
          const scalar_t weight = share * taps.weight[k];
          const int64_t to = item * per_item() + taps.index[k] * count;
          for (int32_t c = 0; c < count; ++c) accumulate(sink, to + c, weight * grad[c]);
        }
      });
    });
  }

  DR_HD void by_warp(int64_t begin, int64_t end, const Sink<scalar_t>& sink) const {
    Parts own{0, 0, 0, 0, 0, 1};
    int64_t own_start = 0, own_grad = 0;
    sampler.for_each_texel(begin, end, [&](int64_t item, int64_t texel, int32_t face, int32_t row, int32_t column) {
      bool any = false;
      for (int32_t c = 0; c < channels; ++c) any = any || grad_cube[texel * channels + c] != 0;
      if (any) own = sampler.cut(face, row, column);
      own_start = item * per_item();
      own_grad = texel * channels;
    });
    // Lane l has the parts from `before` on of those of all lanes, which are at most 32^3.
    const int lane = warp_lane();
    int32_t behind = own.n * own.n;
    for (int step = 1; step < 32; step *= 2) {
      const int32_t more = warp_read(behind, lane < step ? lane : lane - step);
      behind += lane < step ? 0 : more;
    }
    const int32_t before = behind - own.n * own.n, count = warp_read(behind, 31);
    for (int32_t first = 0; first < count; first += 32) {
      const int32_t place = first + lane;
      int owner = 0;  // the last lane whose parts begin at `place` or before: lanes without any have no last part
      for (int step = 16; step > 0; step /= 2) {
        const int32_t start = warp_read(before, owner + step);
        if (start <= place) owner += step;
      }
      const Parts parts{warp_read(own.face, owner), warp_read(own.n, owner),    warp_read(own.u0, owner),
                        warp_read(own.v0, owner),   warp_read(own.step, owner), warp_read(own.total, owner)};
      const int64_t start = warp_read(own_start, owner);
      const int32_t part = place - warp_read(before, owner);
      const bool live = place < count;
      LatLongTaps<scalar_t> taps{};
      scalar_t share = 0;
      if (live) {
        sampler.visit_parts(parts, part, part + 1, [&](const LatLongTaps<scalar_t>& found, scalar_t whole) {
          taps = found;
          share = whole;
        });
      }
      const scalar_t* const grad = grad_cube + warp_read(own_grad, owner);
      for (int k = 0; k < 4; ++k) {
        const scalar_t weight = share * taps.weight[k];
        add_channels_by_warp(sink, live, start + taps.index[k] * channels, channels,
                             [&](int32_t c) { return weight * grad[c]; });
      }
    }
  }
};

}  // namespace diffrender
