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

// Adds the normal of every triangle, and its size, to its corners.
template <class scalar_t>
struct VertexNormalsSum {
  NormalsMesh<scalar_t> mesh;

  DR_HD void operator()(int64_t begin, int64_t end, const Sink<scalar_t>& sums) const {  // [B, V, 4]
    for_each_index(begin, end, mesh.triangle_count, [&](int64_t i, int64_t item) {
      const auto t = mesh.load(item, i - item * mesh.triangle_count);
      if (!t.valid) return;
      for (int k = 0; k < 3; ++k) {
        accumulate(sums, t.row[k] * 4, t.normal.x);
        accumulate(sums, t.row[k] * 4 + 1, t.normal.y);
        accumulate(sums, t.row[k] * 4 + 2, t.normal.z);
        accumulate(sums, t.row[k] * 4 + 3, t.size);
      }
    });
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

  DR_HD void operator()(int64_t begin, int64_t end, const Sink<scalar_t>& grad_vertices) const {  // [B, V, 3]
    for_each_index(begin, end, mesh.triangle_count, [&](int64_t i, int64_t item) {
      const auto t = mesh.load(item, i - item * mesh.triangle_count);
      if (!t.valid) return;
      Vec3<scalar_t> sum{0, 0, 0};
      for (int k = 0; k < 3; ++k) {
        const scalar_t* const g = grad_sums + t.row[k] * 3;
        sum = sum + Vec3<scalar_t>{g[0], g[1], g[2]};
      }
      // Also what keeps corners that are not finite, whose normals are 0, from making 0 * NaN.
      if (sum.x == 0 && sum.y == 0 && sum.z == 0) return;
      Vec3<scalar_t> grad[3] = {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}};
      cross_backward(t.edge1, t.edge2, sum, &grad[1], &grad[2]);
      grad[0] = scalar_t(-1) * (grad[1] + grad[2]);
      for (int k = 0; k < 3; ++k) {
        accumulate(grad_vertices, t.row[k] * 3, grad[k].x);
        accumulate(grad_vertices, t.row[k] * 3 + 1, grad[k].y);
        accumulate(grad_vertices, t.row[k] * 3 + 2, grad[k].z);
      }
    });
  }
};

}  // namespace diffrender
