// Host side of vertex normals and their backward, for both devices.
#include "vertex_normals.h"

#include "core/launch.h"
#include "core/tensor.h"

namespace diffrender {
namespace {

template <class scalar_t>
NormalsMesh<scalar_t> normals_mesh(const Tensor& vertices, const Tensor& triangles) {
  return {data<scalar_t>(vertices), data<int32_t>(triangles), vertices.size(1), triangles.size(0)};
}

void check_normals(const Tensor& vertices, const Tensor& triangles) {
  DR_CHECK(vertices.dim() == 3 && vertices.size(2) == 3, "vertex_normals: vertices must have shape (B, V, 3)");
  DR_CHECK(triangles.dim() == 2 && triangles.size(1) == 3, "vertex_normals: triangles must have shape (T, 3)");
  DR_CHECK(triangles.scalar_type() == ScalarType::Int, "vertex_normals: triangles must be int32");
}

// Normals (B, V, 3), and the sums (B, V, 4) that they are the directions of.
std::tuple<Tensor, Tensor> vertex_normals(const Tensor& positions, const Tensor& triangle_indices, int64_t algorithm) {
  const DeviceScope device(positions);
  const Tensor vertices = as_contiguous(positions), triangles = as_contiguous(triangle_indices);
  check_normals(vertices, triangles);
  const int64_t batch = vertices.size(0), rows = batch * vertices.size(1);
  const Tensor normals = new_empty(vertices, {batch, vertices.size(1), 3});
  const Tensor sums = new_zeros(vertices, {batch, vertices.size(1), 4});
  dispatch_floating(vertices, [&](auto zero) {
    using scalar_t = decltype(zero);
    launch_scatter<scalar_t>(sums, batch, batch * triangles.size(0), static_cast<ScatterAlgorithm>(algorithm),
                             VertexNormalsSum<scalar_t>{normals_mesh<scalar_t>(vertices, triangles)});
    launch(vertices, rows, VertexNormalsFinish<scalar_t>{data<scalar_t>(sums), mutable_data<scalar_t>(normals)});
  });
  return {normals, sums};
}

Tensor vertex_normals_backward(const Tensor& positions, const Tensor& triangle_indices, const Tensor& given_sums,
                               const Tensor& grad_output, int64_t algorithm) {
  const DeviceScope device(positions);
  const Tensor vertices = as_contiguous(positions), triangles = as_contiguous(triangle_indices);
  const Tensor sums = as_contiguous(given_sums), grad_normals = as_contiguous(grad_output);
  check_normals(vertices, triangles);
  const int64_t batch = vertices.size(0), rows = batch * vertices.size(1);
  DR_CHECK(sums.numel() == rows * 4 && grad_normals.numel() == rows * 3,
           "vertex_normals: sizes of the gradient differ");
  const Tensor grad_sums = new_empty(vertices, {batch, vertices.size(1), 3});
  const Tensor grad = new_zeros(vertices, {batch, vertices.size(1), 3});
  dispatch_floating(vertices, [&](auto zero) {
    using scalar_t = decltype(zero);
    launch(vertices, rows,
           VertexNormalsBackwardSums<scalar_t>{data<scalar_t>(sums), data<scalar_t>(grad_normals),
                                               mutable_data<scalar_t>(grad_sums)});
    launch_scatter<scalar_t>(
        grad, batch, batch * triangles.size(0), static_cast<ScatterAlgorithm>(algorithm),
        VertexNormalsBackward<scalar_t>{normals_mesh<scalar_t>(vertices, triangles), data<scalar_t>(grad_sums)});
  });
  return grad;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(diffrender, m) {
  m.def("vertex_normals(Tensor vertices, Tensor triangles, int scatter) -> (Tensor, Tensor)");
  m.def(
      "vertex_normals_backward(Tensor vertices, Tensor triangles, Tensor sums, Tensor grad_normals, int scatter) -> "
      "Tensor");
}

DR_REGISTER("vertex_normals", &vertex_normals)
DR_REGISTER("vertex_normals_backward", &vertex_normals_backward)

}  // namespace diffrender
