// Area-weighted vertex normals of a shared topology, and their gradient.
//
//   n_t = (p_1 - p_0) x (p_2 - p_0)       of every triangle, of the length 2 * area; 0 if degenerate
//   s_v = sum of n_t around vertex v      N_v = s_v / |s_v|, or 0
//
// Two rules keep noise from becoming a direction with a huge gradient: a triangle is degenerate if its n_t is below the
// rounding error of its coordinates, and a sum counts as 0 if it is below that of its summands, whose largest
// components are summed next to it.
#pragma once

#include <cmath>
#include <limits>

#include "core/portable.h"
#include "core/vec.h"
#include "warp_sums.h"

namespace diffrender {

template <class scalar_t>
constexpr scalar_t kEpsilon = std::numeric_limits<scalar_t>::epsilon();

template <class scalar_t>
struct NormalsMesh {
  const scalar_t* vertices;  // [B, V, 3]
  const int32_t* triangles;  // [T, 3]
  int64_t vertex_count, triangle_count;

  // A triangle of an item: rows of its corners in [B, V], edges from corner 0, and n_t.
  struct Corner {
    int64_t row[3];
    Vec3<scalar_t> edge1, edge2, normal;
    scalar_t size;  // largest component of the normal
    bool valid;
  };

  DR_HD static scalar_t absolute(scalar_t value) { return value < 0 ? -value : value; }
  // Of two numbers, one of which may be NaN, the result is one too: it has to reach the sum as it does in the formula.
  DR_HD static scalar_t larger(scalar_t a, scalar_t b) { return a > b || a != a ? a : b; }
  DR_HD static scalar_t size_of(Vec3<scalar_t> v) {
    return larger(larger(absolute(v.x), absolute(v.y)), absolute(v.z));
  }

  DR_HD Vec3<scalar_t> vertex(int64_t row) const {
    const scalar_t* const v = vertices + row * 3;
    return {v[0], v[1], v[2]};
  }

  DR_HD Corner load(int64_t item, int64_t triangle) const {
    Corner t;
    t.valid = true;
    for (int k = 0; k < 3; ++k) {
      const int32_t index = triangles[triangle * 3 + k];
      t.valid = t.valid && index >= 0 && index < vertex_count;
      t.row[k] = item * vertex_count + index;
    }
    if (!t.valid) return t;
    const Vec3<scalar_t> a = vertex(t.row[0]), b = vertex(t.row[1]), c = vertex(t.row[2]);
    t.edge1 = b - a;
    t.edge2 = c - a;
    t.normal = cross(t.edge1, t.edge2);
    t.size = size_of(t.normal);
    // A coordinate c is known to about eps * |c|, so a cross product of edges e is known to about eps * |c| * |e|.
    const scalar_t coordinate = larger(larger(size_of(a), size_of(b)), size_of(c));
    const scalar_t edge = larger(size_of(t.edge1), size_of(t.edge2));
    t.valid = !(t.size <= 4 * kEpsilon<scalar_t> * coordinate * edge);
    return t;
  }
};

// Adds what each triangle has for the rows of its corners, of kSize elements. The functor offers
//   load(item, triangle): a Corner, not valid if it adds nothing      values(corner, k, out): for corner k
// On a GPU the lanes of a warp, whose triangles follow each other in the mesh, sum what they have for the same vertex
// in the same place first.
template <int kSize, class Functor, class scalar_t>
DR_HD void add_to_corners(const Functor& functor, int64_t triangle_count, int64_t begin, int64_t end,
                          const Sink<scalar_t>& sink) {
  scalar_t values[kSize];
  if constexpr (kHasWarps) {
    typename Functor::Corner t{};
    if (begin < end) {
      const int64_t item = begin / triangle_count;
      t = functor.load(item, begin - item * triangle_count);
    }
    if (!warp_any(t.valid)) return;
    for (int k = 0; k < 3; ++k) {
      const LaneGroup group = LaneGroup::of(t.valid, t.valid ? t.row[k] : 0);
      for (int c = 0; c < kSize; ++c) values[c] = 0;
      if (t.valid) functor.values(t, k, values);
      add_group(sink, group, t.valid ? t.row[k] * kSize : 0, values);
    }
  } else {
    for_each_index(begin, end, triangle_count, [&](int64_t i, int64_t item) {
      const auto t = functor.load(item, i - item * triangle_count);
      for (int k = 0; t.valid && k < 3; ++k) {
        functor.values(t, k, values);
        for (int c = 0; c < kSize; ++c) accumulate(sink, t.row[k] * kSize + c, values[c]);
      }
    });
  }
}

// Adds the normal of every triangle, and its size, to its corners.
template <class scalar_t>
struct VertexNormalsSum {
  NormalsMesh<scalar_t> mesh;

  static constexpr int kValues = 4;  // launch_scatter hands it to whole warps

  using Corner = typename NormalsMesh<scalar_t>::Corner;

  DR_HD Corner load(int64_t item, int64_t triangle) const { return mesh.load(item, triangle); }
  DR_HD void values(const Corner& t, int, scalar_t (&out)[kValues]) const {
    out[0] = t.normal.x, out[1] = t.normal.y, out[2] = t.normal.z, out[3] = t.size;
  }

  DR_HD void operator()(int64_t begin, int64_t end, const Sink<scalar_t>& sums) const {  // [B, V, 4]
    add_to_corners<kValues>(*this, mesh.triangle_count, begin, end, sums);
  }
};

// A sum as a direction: normal = scaled / length, scaled = sum / scale. Scaling by the largest component keeps the
// squares of very short and very long sums in range.
template <class scalar_t>
struct Direction {
  Vec3<scalar_t> normal;
  scalar_t scale, length;
  bool valid;

  DR_HD explicit Direction(const scalar_t* sum) : normal{0, 0, 0}, scale(0), length(1) {
    const Vec3<scalar_t> s{sum[0], sum[1], sum[2]};
    scale = NormalsMesh<scalar_t>::size_of(s);
    valid = scale > 4 * kEpsilon<scalar_t> * sum[3] && scale <= kLargest<scalar_t>;
    if (!valid) return;
    const Vec3<scalar_t> scaled{s.x / scale, s.y / scale, s.z / scale};
    length = std::sqrt(dot(scaled, scaled));
    normal = {scaled.x / length, scaled.y / length, scaled.z / length};
  }
};

template <class scalar_t>
struct VertexNormalsFinish {
  const scalar_t* sums;  // [B * V, 4]
  scalar_t* normals;     // [B * V, 3]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      const Vec3<scalar_t> normal = Direction<scalar_t>(sums + i * 4).normal;
      normals[i * 3] = normal.x;
      normals[i * 3 + 1] = normal.y;
      normals[i * 3 + 2] = normal.z;
    }
  }
};

// Gradient to s_v from G, that to N_v. Of s / |s| the part along N is lost, the rest shrinks by the length:
//   grad_s = (G - N (N . G)) / |s|
template <class scalar_t>
struct VertexNormalsBackwardSums {
  const scalar_t* sums;  // [B * V, 4]
  const scalar_t* grad;  // [B * V, 3]
  scalar_t* grad_sums;   // [B * V, 3]

  DR_HD void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      const Direction<scalar_t> d(sums + i * 4);
      scalar_t* const out = grad_sums + i * 3;
      out[0] = out[1] = out[2] = 0;
      if (!d.valid) continue;
      const Vec3<scalar_t> g{grad[i * 3], grad[i * 3 + 1], grad[i * 3 + 2]};
      const Vec3<scalar_t> across = g - dot(d.normal, g) * d.normal;
      out[0] = across.x / d.length / d.scale;
      out[1] = across.y / d.length / d.scale;
      out[2] = across.z / d.length / d.scale;
    }
  }
};

// Gradient to the vertices. With G = the sum of grad_s over the three corners, n = e_1 x e_2 gives
//   grad_e1 = e_2 x G,  grad_e2 = G x e_1,  to the corners  -(grad_e1 + grad_e2), grad_e1, grad_e2
template <class scalar_t>
struct VertexNormalsBackward {
  NormalsMesh<scalar_t> mesh;
  const scalar_t* grad_sums;  // [B * V, 3]

  static constexpr int kValues = 3;  // launch_scatter hands it to whole warps

  struct Corner : NormalsMesh<scalar_t>::Corner {
    Vec3<scalar_t> grad1, grad2;  // of the edges
  };

  DR_HD Corner load(int64_t item, int64_t triangle) const {
    Corner t{mesh.load(item, triangle), {0, 0, 0}, {0, 0, 0}};
    if (!t.valid) return t;
    Vec3<scalar_t> sum{0, 0, 0};
    for (int k = 0; k < 3; ++k) {
      const scalar_t* const g = grad_sums + t.row[k] * 3;
      sum = sum + Vec3<scalar_t>{g[0], g[1], g[2]};
    }
    // Also what keeps corners that are not finite, whose normals are 0, from making 0 * NaN.
    t.valid = !(sum.x == 0 && sum.y == 0 && sum.z == 0);
    if (t.valid) cross_backward(t.edge1, t.edge2, sum, &t.grad1, &t.grad2);
    return t;
  }
  DR_HD void values(const Corner& t, int k, scalar_t (&out)[kValues]) const {
    const Vec3<scalar_t> grad = k == 0 ? scalar_t(-1) * (t.grad1 + t.grad2) : k == 1 ? t.grad1 : t.grad2;
    out[0] = grad.x, out[1] = grad.y, out[2] = grad.z;
  }

  DR_HD void operator()(int64_t begin, int64_t end, const Sink<scalar_t>& grad_vertices) const {  // [B, V, 3]
    add_to_corners<kValues>(*this, mesh.triangle_count, begin, end, grad_vertices);
  }
};

}  // namespace diffrender
