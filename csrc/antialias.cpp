// Host side of antialias over pixel pairs and its backward, for both devices.
#include "antialias.h"

#include "core/launch.h"
#include "core/tensor.h"

namespace diffrender {
namespace {

template <class scalar_t>
RasterMesh<scalar_t> antialias_mesh(const Tensor& positions, const Tensor& triangles) {
  return {data<scalar_t>(positions),
          data<int32_t>(triangles),
          nullptr,
          positions.size(0) == 1 ? 0 : positions.size(1) * 4,
          static_cast<int32_t>(positions.size(1)),
          static_cast<int32_t>(triangles.size(0)),
          Cull::none};
}

// Input of the pixel kernels. Marks the pairs that need a look on the way, into memory that the caller keeps.
template <class scalar_t>
AntialiasInput<scalar_t> antialias_input(const Tensor& positions, const Tensor& triangles, const Tensor& triangle_id,
                                         const Tensor& silhouette, const Tensor& topology, const Tensor& crossed) {
  const auto mesh = antialias_mesh<scalar_t>(positions, triangles);
  const auto viewport = Viewport<scalar_t>::make(triangle_id.size(2), triangle_id.size(1));
  const int64_t pixels = triangle_id.numel(), per_item = triangles.size(0);
  launch(positions, per_item * triangle_id.size(0),
         MarkCrossedPairs<scalar_t>{mesh, viewport, data<uint8_t>(silhouette), mutable_data<uint8_t>(crossed), pixels,
                                    per_item});
  return {mesh,
          viewport,
          data<int32_t>(triangle_id),
          data<uint8_t>(silhouette),
          positions.size(0) == 1 ? 0 : per_item,
          data<int32_t>(topology),
          data<uint8_t>(crossed),
          pixels};
}

void check_antialias(const Tensor& image, const Tensor& triangle_id, const Tensor& positions, const Tensor& triangles) {
  DR_CHECK(image.dim() == 4 && triangle_id.dim() == 3, "antialias: image must have shape (B, H, W, C)");
  DR_CHECK(image.size(0) == triangle_id.size(0) && image.size(1) == triangle_id.size(1) &&
               image.size(2) == triangle_id.size(2),
           "antialias: image and triangle_id differ in size");
  DR_CHECK(triangle_id.scalar_type() == ScalarType::Int && triangles.scalar_type() == ScalarType::Int,
           "antialias: triangles and triangle_id must be int32");
  DR_CHECK(positions.dim() == 3 && positions.size(2) == 4, "antialias: clip_positions must have shape (B, V, 4)");
  DR_CHECK(positions.size(0) == 1 || positions.size(0) == image.size(0), "antialias: batch sizes differ");
  DR_CHECK(triangles.dim() == 2 && triangles.size(1) == 3, "antialias: triangles must have shape (T, 3)");
  DR_CHECK(image.scalar_type() == positions.scalar_type(), "antialias: image and clip_positions differ in type");
}

// The blended image, and the outline bits of every triangle for the backward pass.
std::tuple<Tensor, Tensor> antialias_pairs(const Tensor& input, const Tensor& visible, const Tensor& clip_positions,
                                           const Tensor& triangle_indices, const Tensor& edge_topology) {
  const DeviceScope device(input);
  const Tensor image = as_contiguous(input), triangle_id = as_contiguous(visible);
  const Tensor positions = as_contiguous(clip_positions), triangles = as_contiguous(triangle_indices);
  const Tensor topology = as_contiguous(edge_topology);
  check_antialias(image, triangle_id, positions, triangles);
  DR_CHECK(topology.scalar_type() == ScalarType::Int && topology.numel() == triangles.numel(),
           "antialias: topology must be int32 of the shape of triangles");
  const Tensor silhouette = new_empty(image, {positions.size(0), triangles.size(0)}, ScalarType::Byte);
  const Tensor result = new_empty(image, {image.size(0), image.size(1), image.size(2), image.size(3)});
  dispatch_floating(image, [&](auto zero) {
    using scalar_t = decltype(zero);
    const auto mesh = antialias_mesh<scalar_t>(positions, triangles);
    const Tensor facing = new_empty(image, {silhouette.numel()}, ScalarType::Char);
    launch(image, silhouette.numel(), TriangleFacing<scalar_t>{mesh, mutable_data<int8_t>(facing)});
    launch(
        image, silhouette.numel(),
        OutlineEdges<scalar_t>{mesh, data<int32_t>(topology), data<int8_t>(facing), mutable_data<uint8_t>(silhouette)});
    const Tensor crossed = new_zeros(image, {2 * triangle_id.numel()}, ScalarType::Byte);
    const auto in = antialias_input<scalar_t>(positions, triangles, triangle_id, silhouette, topology, crossed);
    launch(image, triangle_id.numel(),
           AntialiasForward<scalar_t>{in, data<scalar_t>(image), mutable_data<scalar_t>(result),
                                      static_cast<int32_t>(image.size(3))});
  });
  return {result, silhouette};
}

// Gradients to image and clip_positions; one that is not needed comes back empty.
std::tuple<Tensor, Tensor> antialias_pairs_backward(const Tensor& input, const Tensor& visible,
                                                    const Tensor& clip_positions, const Tensor& triangle_indices,
                                                    const Tensor& edge_topology, const Tensor& outline,
                                                    const Tensor& grad_output, bool need_image, bool need_positions,
                                                    int64_t algorithm) {
  const DeviceScope device(input);
  const Tensor image = as_contiguous(input), triangle_id = as_contiguous(visible);
  const Tensor positions = as_contiguous(clip_positions), triangles = as_contiguous(triangle_indices);
  const Tensor topology = as_contiguous(edge_topology), silhouette = as_contiguous(outline);
  const Tensor grad_result = as_contiguous(grad_output);
  check_antialias(image, triangle_id, positions, triangles);
  const Tensor grad_image =
      new_empty(image, {need_image ? image.size(0) : 0, image.size(1), image.size(2), image.size(3)});
  const Tensor grad_positions = new_zeros(image, {need_positions ? positions.size(0) : 0, positions.size(1), 4});
  dispatch_floating(image, [&](auto zero) {
    using scalar_t = decltype(zero);
    const Tensor crossed = new_zeros(image, {2 * triangle_id.numel()}, ScalarType::Byte);
    const auto in = antialias_input<scalar_t>(positions, triangles, triangle_id, silhouette, topology, crossed);
    const int32_t channels = static_cast<int32_t>(image.size(3));
    const scalar_t* const grad = data<scalar_t>(grad_result);
    // Fresh memory of which only the pixels near an outline are ever touched.
    const Tensor pair_weights = new_empty(image, {need_image ? triangle_id.numel() : 0, 4});
    scalar_t* const weights = need_image ? mutable_data<scalar_t>(pair_weights) : nullptr;
    if (need_positions) {
      launch_scatter<scalar_t>(grad_positions, positions.size(0), triangle_id.numel(),
                               static_cast<ScatterAlgorithm>(algorithm),
                               AntialiasBackwardPositions<scalar_t>{in, data<scalar_t>(image), grad, channels, weights},
                               triangle_id.numel() / 32);  // outlines are thin
    } else if (need_image) {
      launch(image, triangle_id.numel(), AntialiasWeights<scalar_t>{in, weights});
    }
    if (need_image) {
      launch(image, triangle_id.numel(),
             AntialiasBackwardImage<scalar_t>{in, weights, grad, mutable_data<scalar_t>(grad_image), channels});
    }
  });
  return {grad_image, grad_positions};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(diffrender, m) {
  m.def(
      "antialias_pairs(Tensor image, Tensor triangle_id, Tensor clip_positions, Tensor triangles, Tensor topology) "
      "-> (Tensor, Tensor)");
  m.def(
      "antialias_pairs_backward(Tensor image, Tensor triangle_id, Tensor clip_positions, Tensor triangles, "
      "Tensor topology, Tensor silhouette, Tensor grad_result, bool need_image, bool need_positions, int scatter) -> "
      "(Tensor, Tensor)");
}

DR_REGISTER("antialias_pairs", &antialias_pairs)
DR_REGISTER("antialias_pairs_backward", &antialias_pairs_backward)

}  // namespace diffrender
