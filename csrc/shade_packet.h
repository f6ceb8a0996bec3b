// kLanes pixels as one number, for the shading kernels on the CPU. Included by host files only.
#pragma once

#include "core/lanes.h"
#include "shade_math.h"

namespace diffrender {

template <class scalar_t>
struct PacketMask {
  LaneMask<scalar_t> v;

  DR_HD friend PacketMask operator&(PacketMask a, PacketMask b) { return {a.v & b.v}; }
  DR_HD friend PacketMask operator|(PacketMask a, PacketMask b) { return {a.v | b.v}; }
  DR_HD friend PacketMask operator!(PacketMask a) { return {~a.v}; }
};

// A struct around the compiler's vector type: template arguments would lose the attributes of the bare one.
template <class scalar_t>
struct Packet {
  Lanes<scalar_t> v;

  Packet() = default;
  DR_HD Packet(scalar_t value) : v(value - Lanes<scalar_t>{}) {}
  DR_HD explicit Packet(Lanes<scalar_t> lanes) : v(lanes) {}

  DR_HD friend Packet operator+(Packet a, Packet b) { return Packet(a.v + b.v); }
  DR_HD friend Packet operator-(Packet a, Packet b) { return Packet(a.v - b.v); }
  DR_HD friend Packet operator*(Packet a, Packet b) { return Packet(a.v * b.v); }
  DR_HD friend Packet operator/(Packet a, Packet b) { return Packet(a.v / b.v); }
  DR_HD friend Packet operator-(Packet a) { return Packet(-a.v); }
  DR_HD friend PacketMask<scalar_t> operator<(Packet a, Packet b) { return {a.v < b.v}; }
  DR_HD friend PacketMask<scalar_t> operator>(Packet a, Packet b) { return {a.v > b.v}; }
  DR_HD friend PacketMask<scalar_t> operator>=(Packet a, Packet b) { return {a.v >= b.v}; }
  DR_HD Packet& operator+=(Packet b) {
    v += b.v;
    return *this;
  }
  DR_HD Packet& operator-=(Packet b) {
    v -= b.v;
    return *this;
  }
};

template <class scalar_t>
DR_HD Packet<scalar_t> select(PacketMask<scalar_t> mask, Packet<scalar_t> a, Packet<scalar_t> b) {
  return Packet<scalar_t>(mask.v ? a.v : b.v);
}

DR_HD bool any(PacketMask<float> mask) { return any_lane(mask.v); }
DR_HD bool any(PacketMask<double> mask) { return any_lane(__builtin_convertvector(mask.v, IntLanes)); }

template <class scalar_t>
DR_HD scalar_t sum_of_lanes(Packet<scalar_t> value) {
  const scalar_t low = (value.v[0] + value.v[1]) + (value.v[2] + value.v[3]);
  return low + ((value.v[4] + value.v[5]) + (value.v[6] + value.v[7]));
}

// The loop is unrolled and becomes vector instructions.
template <class scalar_t>
DR_HD Packet<scalar_t> square_root(Packet<scalar_t> value) {
  Packet<scalar_t> result;
  for (int l = 0; l < kLanes; ++l) result.v[l] = square_root(static_cast<scalar_t>(value.v[l]));
  return result;
}

// ln(x) of normal x > 0, to 2 units in the last place: x = 2^e m with m in [sqrt(1/2), sqrt(2)), and with f = m - 1 the
// odd part of the series of ln((1 + q) / (1 - q)), q = f / (2 + f), whose next term is below 2^-26.
DR_HD Packet<float> logarithm(Packet<float> x) {
  using Values = Lanes<float>;
  const IntLanes bits = reinterpret_cast<const IntLanes&>(x.v);
  // Subtracting the bits of sqrt(1/2) makes the exponent field round where m leaves its interval.
  const IntLanes exponent = (bits - 0x3f3504f3) >> 23;
  const IntLanes mantissa = bits - (exponent << 23);
  const Values f = reinterpret_cast<const Values&>(mantissa) - 1.0f;
  const Values q = f / (f + 2.0f), q2 = q * q;
  const Values series =
      q2 * (0.666666667f + q2 * (0.4f + q2 * (0.285714286f + q2 * (0.222222222f + q2 * 0.181818182f))));
  const Values e = __builtin_convertvector(exponent, Values);
  // 2 q + q series = f - q (f - series): f is exact, the rest is small.
  return Packet<float>(e * 0.693359375f + (f - (q * (f - series) + e * 2.12194440e-4f)));
}

// e^y for y <= 88, to 2 units in the last place; 0 below e^-87: y = n ln 2 + r with |r| <= ln(2) / 2, Taylor in r.
DR_HD Packet<float> exponential(Packet<float> y) {
  using Values = Lanes<float>;
  const Values clamped = y.v < -87.0f ? -87.0f - Values{} : y.v;
  // Adding 1.5 * 2^23 rounds to an integer.
  const Values n = (clamped * 1.44269504f + 12582912.0f) - 12582912.0f;
  const Values r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  const Values tail =
      0.5f +
      r * (0.166666667f + r * (0.0416666667f + r * (8.33333333e-3f + r * (1.38888889e-3f + r * 1.98412698e-4f))));
  const Values power = 1.0f + (r + r * r * tail);
  const IntLanes scaled = reinterpret_cast<const IntLanes&>(power) + (__builtin_convertvector(n, IntLanes) << 23);
  return Packet<float>(y.v < -87.0f ? Values{} : reinterpret_cast<const Values&>(scaled));
}

// The angle of (x, y) in [-pi, pi], to 2.5e-7; 0 of (0, 0). With a = smaller / larger of |x|, |y| it is atan(a) = a
// P(a^2), P fitted at Chebyshev nodes (off by 3e-10), and the rest is symmetry.
DR_HD Packet<float> arc_tangent(Packet<float> y, Packet<float> x) {
  using Values = Lanes<float>;
  constexpr float kPoly[] = {1.0f,          -0.333333224f,   0.199995965f,  -0.142790481f,
                             0.110537849f,  -0.0879611745f,  0.0671011433f, -0.044273667f,
                             0.0222034547f, -0.00716616493f, 0.00108449277f};
  const Values across = x.v < 0.0f ? -x.v : x.v, up = y.v < 0.0f ? -y.v : y.v;
  const LaneMask<float> is_steep = up > across;
  const Values large = is_steep ? up : across, small = is_steep ? across : up;
  const Values a = small / (large > 0.0f ? large : 1.0f - Values{}), square = a * a;
  Values series = kPoly[10] - Values{};
  for (int k = 9; k >= 0; --k) series = series * square + kPoly[k];
  Values angle = a * series;
  angle = is_steep ? 1.57079633f - angle : angle;
  angle = x.v < 0.0f ? 3.14159265f - angle : angle;
  return Packet<float>(y.v < 0.0f ? -angle : angle);
}

// kLanes vectors x0 y0 z0 x1 y1 z1 ... to components and back, from and to three blocks of kLanes elements.
template <class scalar_t>
struct Triples {
  using Values = Lanes<scalar_t>;
  using Index = LaneMask<scalar_t>;

  DR_HD static Values pick(Values a, Values b, Index index) {
#if defined(__clang__)
    Values result;
    for (int l = 0; l < kLanes; ++l) result[l] = index[l] < kLanes ? a[index[l]] : b[index[l] - kLanes];
    return result;
#else
    return __builtin_shuffle(a, b, index);
#endif
  }

  DR_HD static Vec3<Packet<scalar_t>> load(const scalar_t* p) {
    const Values a = load_lanes<Values>(p), b = load_lanes<Values>(p + kLanes), c = load_lanes<Values>(p + 2 * kLanes);
    return {Packet<scalar_t>(pick(pick(a, b, Index{0, 3, 6, 9, 12, 15, 0, 0}), c, Index{0, 1, 2, 3, 4, 5, 10, 13})),
            Packet<scalar_t>(pick(pick(a, b, Index{1, 4, 7, 10, 13, 0, 0, 0}), c, Index{0, 1, 2, 3, 4, 8, 11, 14})),
            Packet<scalar_t>(pick(pick(a, b, Index{2, 5, 8, 11, 14, 0, 0, 0}), c, Index{0, 1, 2, 3, 4, 9, 12, 15}))};
  }

  DR_HD static void store(scalar_t* p, const Vec3<Packet<scalar_t>>& t) {
    const Values x = t.x.v, y = t.y.v, z = t.z.v;
    store_lanes(p, pick(pick(x, y, Index{0, 8, 0, 1, 9, 0, 2, 10}), z, Index{0, 1, 8, 3, 4, 9, 6, 7}));
    store_lanes(p + kLanes, pick(pick(x, y, Index{0, 3, 11, 0, 4, 12, 0, 5}), z, Index{10, 1, 2, 11, 4, 5, 12, 7}));
    store_lanes(p + 2 * kLanes,
                pick(pick(x, y, Index{13, 0, 6, 14, 0, 7, 15, 0}), z, Index{0, 13, 2, 3, 14, 5, 6, 15}));
  }
};

// `count` <= kLanes pixels; lanes beyond them read as 0 and are not written.
template <class scalar_t>
struct PacketIo<Packet<scalar_t>> {
  using Scalar = scalar_t;
  using Mask = PacketMask<scalar_t>;
  using Values = Lanes<scalar_t>;
  static constexpr int kWidth = kLanes;

  DR_HD static Mask from_int(IntLanes mask) { return {__builtin_convertvector(mask, LaneMask<scalar_t>)}; }

  DR_HD static Mask first(int count) { return from_int(kLaneIndex < count); }

  DR_HD static Mask inside(const int32_t* triangle_id, int count) {
    if (count == kLanes) return from_int(load_lanes<IntLanes>(triangle_id) >= 0);
    int32_t padded[kLanes];
    for (int l = 0; l < kLanes; ++l) padded[l] = l < count ? triangle_id[l] : -1;
    return from_int(load_lanes<IntLanes>(padded) >= 0);
  }

  DR_HD static Packet<scalar_t> load(const scalar_t* values, int count) {
    if (count == kLanes) return Packet<scalar_t>(load_lanes<Values>(values));
    scalar_t padded[kLanes] = {};
    for (int i = 0; i < count; ++i) padded[i] = values[i];
    return Packet<scalar_t>(load_lanes<Values>(padded));
  }

  DR_HD static Vec3<Packet<scalar_t>> load3(const scalar_t* values, int count) {
    if (count == kLanes) return Triples<scalar_t>::load(values);
    scalar_t padded[3 * kLanes] = {};
    for (int i = 0; i < 3 * count; ++i) padded[i] = values[i];
    return Triples<scalar_t>::load(padded);
  }

  DR_HD static Packet<scalar_t> load_strided(const scalar_t* values, int64_t stride, int count) {
    Packet<scalar_t> result(scalar_t(0));
    for (int i = 0; i < count; ++i) result.v[i] = values[i * stride];
    return result;
  }

  DR_HD static void store_strided(scalar_t* values, int64_t stride, const Packet<scalar_t>& value, int count) {
    for (int i = 0; i < count; ++i) values[i * stride] = value.v[i];
  }

  DR_HD static void store(scalar_t* values, const Packet<scalar_t>& value, int count) {
    if (count == kLanes) {
      store_lanes(values, value.v);
      return;
    }
    for (int i = 0; i < count; ++i) values[i] = value.v[i];
  }

  DR_HD static void store3(scalar_t* values, const Vec3<Packet<scalar_t>>& value, int count) {
    if (count == kLanes) {
      Triples<scalar_t>::store(values, value);
      return;
    }
    scalar_t padded[3 * kLanes];
    Triples<scalar_t>::store(padded, value);
    for (int i = 0; i < 3 * count; ++i) values[i] = padded[i];
  }

  // One partial sum per lane: no horizontal addition until the very end.
  DR_HD static void add(const Sink<scalar_t>& sink, int64_t slot, int32_t, int64_t, const Packet<scalar_t>& value) {
    scalar_t* const sums = sink.values + (slot * kLanes - sink.offset);
    store_lanes(sums, load_lanes<Values>(sums) + value.v);
  }
};

}  // namespace diffrender
