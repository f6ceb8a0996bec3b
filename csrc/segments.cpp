// Host side of antialias over edge segments and its backward, for both devices.
#include "segments_walks.h"

namespace diffrender {
namespace {

void check_image(const Tensor& image, const SegmentTensors& t) {
  DR_CHECK(image.dim() == 4 && image.size(0) == t.triangle_id.size(0) && image.size(1) == t.triangle_id.size(1) &&
               image.size(2) == t.triangle_id.size(2),
           "segments: image must have shape (B, H, W, C)");
}

// `picture` becomes `source` and what `use` makes of the pieces, each no further than `reach` pixels from its own.
template <class scalar_t, class Use>
void copy_and_add(const Tensor& source, const Pieces& edges, const Pieces& crossings, const Use& use, int64_t reach,
                  const Tensor& picture) {
  if (picture.numel() == 0) return;
  const int64_t pixels = picture.numel() / use.channels;
  const PieceBands of_edges(edges.list, pixels, reach), of_crossings(crossings.list, pixels, reach);
  run(PieceBands::kMost,
      CopyAndAdd<scalar_t, Use>{data<scalar_t>(source), pixels, of_edges, of_crossings, use,
                                mutable_data<scalar_t>(picture)},
      1);
}

std::tuple<Tensor, Tensor, Tensor> segments_marked(const Tensor& visible, const Tensor& clip_positions,
                                                   const Tensor& triangles, const Tensor& topology,
                                                   const std::optional<Tensor>& ranges,
                                                   const std::optional<Tensor>& seams, int64_t cull) {
  const DeviceScope device(clip_positions);
  const SegmentTensors tensors(visible, clip_positions, triangles, topology, ranges, seams, cull, false);
  const SegmentMarks marks(tensors);
  return {marks.facing, marks.edges, marks.crossings};
}

// `facing`, `edges` and `crossings` are the results of segments_marked. Returns the picture and what keep_pieces keeps.
std::tuple<Tensor, Tensor> antialias_segments(const Tensor& input, const Tensor& visible, const Tensor& clip_positions,
                                              const Tensor& triangles, const Tensor& topology,
                                              const std::optional<Tensor>& ranges, const std::optional<Tensor>& seams,
                                              int64_t cull, bool exact, const Tensor& facing, const Tensor& edges,
                                              const Tensor& crossings, int64_t algorithm) {
  const DeviceScope device(input);
  const Tensor image = as_contiguous(input);
  const SegmentTensors tensors(visible, clip_positions, triangles, topology, ranges, seams, cull, exact);
  check_image(image, tensors);
  const SegmentMarks marks(tensors, facing, edges, crossings);
  Tensor result = new_empty(image, {image.size(0), image.size(1), image.size(2), image.size(3)});
  const auto scatter = static_cast<ScatterAlgorithm>(algorithm);
  const Tensor kept = dispatch_floating(image, [&](auto zero) {
    using scalar_t = decltype(zero);
    const BlendPiece<scalar_t> blend{data<scalar_t>(image), static_cast<int32_t>(image.size(3)),
                                     static_cast<int32_t>(image.size(2))};
    if (walks_without_lists(tensors, scatter)) {
      torch::stable::copy_(result, image);
      ThreadWalk(tensors, marks).scatter<scalar_t>(result, scatter, blend, blend);
      return nothing_kept(tensors);
    }
    ListWalk walk(tensors, marks);
    const Pieces of_edges = walk.edges(), of_crossings = walk.crossings();
    copy_and_add<scalar_t>(image, of_edges, of_crossings, blend, 0, result);
    return keep_pieces(tensors, of_edges, of_crossings);
  });
  return {result, kept};
}

// Gradients to image and clip_positions; one that is not needed comes back empty. `blended`: whether the forward pass
// mixed colours (forward "area") or left the image as it was ("identity"). `pieces`: what the forward pass kept,
// or nothing.
std::tuple<Tensor, Tensor> antialias_segments_backward(
    const Tensor& input, const Tensor& visible, const Tensor& clip_positions, const Tensor& triangles,
    const Tensor& topology, const std::optional<Tensor>& ranges, const std::optional<Tensor>& seams, int64_t cull,
    bool exact, const Tensor& facing, const Tensor& edges, const Tensor& crossings, const Tensor& pieces,
    const Tensor& grad_output, bool blended, bool need_image, bool need_positions, int64_t algorithm) {
  const DeviceScope device(input);
  const Tensor image = as_contiguous(input), grad_result = as_contiguous(grad_output), given = as_contiguous(pieces);
  const SegmentTensors tensors(visible, clip_positions, triangles, topology, ranges, seams, cull, exact);
  check_image(image, tensors);
  const SegmentMarks marks(tensors, facing, edges, crossings);
  const auto scatter = static_cast<ScatterAlgorithm>(algorithm);
  Tensor grad_image = new_empty(image, {need_image ? image.size(0) : 0, image.size(1), image.size(2), image.size(3)});
  const bool copies = need_image && (!blended || walks_without_lists(tensors, scatter));
  if (copies) torch::stable::copy_(grad_image, grad_result);
  const Tensor grad_positions =
      new_zeros(image, {need_positions ? tensors.positions.size(0) : 0, tensors.positions.size(1), 4});
  if (!need_positions && !(need_image && blended)) return {grad_image, grad_positions};
  dispatch_floating(image, [&](auto zero) {
    using scalar_t = decltype(zero);
    const int32_t channels = static_cast<int32_t>(image.size(3)), width = static_cast<int32_t>(image.size(2));
    const scalar_t* const grad = data<scalar_t>(grad_result);
    const BlendBackwardImage<scalar_t> to_image{grad, channels, width};
    const auto jump = [&](const SegmentMesh& mesh) {
      return ColorJump<scalar_t>{mesh, data<int32_t>(tensors.triangle_id), data<scalar_t>(image), grad, channels};
    };
    if (walks_without_lists(tensors, scatter)) {
      const ThreadWalk walk(tensors, marks);
      if (need_image && blended) walk.scatter<scalar_t>(grad_image, scatter, to_image, to_image);
      if (!need_positions) return;
      walk.scatter<scalar_t>(grad_positions, scatter, EdgeBackward<scalar_t>{jump(walk.mesh())},
                             CrossingBackward<scalar_t>{jump(walk.mesh())});
      return;
    }
    ListWalk walk(tensors, marks);
    KeptPieces found(given);
    const Pieces of_edges = found.edges.has_value() ? std::move(*found.edges) : walk.edges(found.at_edges);
    const Pieces of_crossings =
        found.crossings.has_value() ? std::move(*found.crossings) : walk.crossings(found.at_crossings);
    if (need_image && blended) {
      copy_and_add<scalar_t>(grad_result, of_edges, of_crossings, to_image, width + 1, grad_image);
    }
    if (!need_positions) return;
    const auto add = [&](const PieceList& list, const auto& use) {
      using Use = std::decay_t<decltype(use)>;
      // A piece takes as long as many additions: a second buffer pays early.
      detail::scatter_cpu<scalar_t>(grad_positions, 1, list.count, SumPieces<PieceList, Use>{list, use},
                                    16 * list.count);
    };
    add(of_edges.list, EdgeBackward<scalar_t>{jump(walk.mesh())});
    add(of_crossings.list, CrossingBackward<scalar_t>{jump(walk.mesh())});
  });
  return {grad_image, grad_positions};
}

// Which neighbouring pixels, to the right and downwards, a visible discontinuity parts: (B, H, W, 2) uint8.
Tensor segments_parted(const Tensor& visible, const Tensor& clip_positions, const Tensor& triangles,
                       const Tensor& topology, const std::optional<Tensor>& ranges, const std::optional<Tensor>& seams,
                       int64_t cull, bool exact, int64_t algorithm) {
  const DeviceScope device(clip_positions);
  const SegmentTensors tensors(visible, clip_positions, triangles, topology, ranges, seams, cull, exact);
  const Tensor& ids = tensors.triangle_id;
  const Tensor result = new_zeros(clip_positions, {ids.size(0), ids.size(1), ids.size(2), 2}, ScalarType::Byte);
  const SegmentMarks marks(tensors);
  const MarkParted mark{mutable_data<uint8_t>(result), static_cast<int32_t>(ids.size(2)),
                        static_cast<int32_t>(ids.size(1))};
  if (walks_without_lists(tensors, static_cast<ScatterAlgorithm>(algorithm))) {
    ThreadWalk(tensors, marks).visit(mark);
    return result;
  }
  ListWalk walk(tensors, marks);
  for (const Pieces& pieces : {walk.edges(), walk.crossings()}) {
    run(pieces.list.count, UsePieces<PieceList, MarkParted>{pieces.list, mark});
  }
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(diffrender, m) {
  m.def(
      "segments_parted(Tensor triangle_id, Tensor clip_positions, Tensor triangles, Tensor topology, Tensor? ranges, "
      "Tensor? seams, int cull, bool exact, int scatter=0) -> Tensor");
  m.def(
      "segments_marked(Tensor triangle_id, Tensor clip_positions, Tensor triangles, Tensor topology, Tensor? ranges, "
      "Tensor? seams, int cull) -> (Tensor, Tensor, Tensor)");
  m.def(
      "antialias_segments(Tensor image, Tensor triangle_id, Tensor clip_positions, Tensor triangles, Tensor topology, "
      "Tensor? ranges, Tensor? seams, int cull, bool exact, Tensor facing, Tensor edges, Tensor crossings, "
      "int scatter=0) -> (Tensor, Tensor)");
  m.def(
      "antialias_segments_backward(Tensor image, Tensor triangle_id, Tensor clip_positions, Tensor triangles, "
      "Tensor topology, Tensor? ranges, Tensor? seams, int cull, bool exact, Tensor facing, Tensor edges, "
      "Tensor crossings, Tensor pieces, Tensor grad_result, bool blended, bool need_image, bool need_positions, int "
      "scatter) -> (Tensor, Tensor)");
}

DR_REGISTER("segments_parted", &segments_parted)
DR_REGISTER("segments_marked", &segments_marked)
DR_REGISTER("antialias_segments", &antialias_segments)
DR_REGISTER("antialias_segments_backward", &antialias_segments_backward)

}  // namespace diffrender
