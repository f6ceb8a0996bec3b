// Host side of antialias over edge segments and its backward, for both devices.
#include "segments_blend.h"

#include "core/compact.h"
#include "core/launch.h"
#include "core/tensor.h"
#include "segments_lists.h"
#include "segments_marks_cpu.h"

namespace diffrender {
namespace {

// Items per task on the CPU, for kernels that spend about a microsecond on each, and about ten nanoseconds.
constexpr int64_t kHeavyPiece = 256, kTrianglePiece = 4096;

struct SegmentTensors {
  Tensor positions, triangles, triangle_id, topology;
  std::optional<Tensor> ranges, seams;
  Cull cull;
  bool exact;  // visibility

  SegmentTensors(const Tensor& visible, const Tensor& clip_positions, const Tensor& indices, const Tensor& edges,
                 const std::optional<Tensor>& item_ranges, const std::optional<Tensor>& seam_indices, int64_t culling,
                 bool exact_visibility)
      : positions(as_contiguous(clip_positions)),
        triangles(as_contiguous(indices)),
        triangle_id(as_contiguous(visible)),
        topology(as_contiguous(edges)),
        cull(static_cast<Cull>(culling)),
        exact(exact_visibility) {
    if (item_ranges.has_value()) ranges = as_contiguous(*item_ranges);
    if (seam_indices.has_value()) seams = as_contiguous(*seam_indices);
    DR_CHECK(triangle_id.dim() == 3 && triangle_id.scalar_type() == ScalarType::Int,
             "segments: triangle_id must be (B, H, W) int32");
    DR_CHECK(positions.dim() == 3 && positions.size(2) == 4, "segments: clip_positions must have shape (B, V, 4)");
    DR_CHECK(positions.scalar_type() == ScalarType::Float || positions.scalar_type() == ScalarType::Double,
             "segments: clip_positions must be float32 or float64");
    DR_CHECK(positions.size(0) == 1 || positions.size(0) == triangle_id.size(0), "segments: batch sizes differ");
    DR_CHECK(triangles.dim() == 2 && triangles.size(1) == 3 && triangles.scalar_type() == ScalarType::Int,
             "segments: triangles must be (T, 3) int32");
    DR_CHECK(triangles.size(0) < (int64_t(1) << 31) / 3, "segments: too many triangles");
    DR_CHECK(topology.numel() == triangles.numel() && topology.scalar_type() == ScalarType::Int,
             "segments: topology must be int32 of the shape of triangles");
    DR_CHECK(!seams.has_value() || (seams->numel() == triangles.numel() && seams->scalar_type() == ScalarType::Int),
             "segments: seams must be int32 of the shape of triangles");
    DR_CHECK(
        !ranges.has_value() || (ranges->numel() == 2 * triangle_id.size(0) && ranges->scalar_type() == ScalarType::Int),
        "segments: ranges must be (B, 2) int32");
  }

  int64_t batch() const { return triangle_id.size(0); }
};

// Visible pieces of one kind, and the memory behind them.
struct Pieces {
  Tensor first, further;
  PieceList list;
};

template <class T>
Tensor new_structs(const Tensor& like, int64_t n) {
  static_assert(sizeof(T) % 8 == 0);
  return new_empty(like, {n * static_cast<int64_t>(sizeof(T) / 8)}, ScalarType::Long);
}

// The lists are the CPU's alone.
template <class T>
void run(int64_t n, const T& functor, int64_t piece = kItemsPerPiece) {
  parallel_ranges(n, piece, [&](int64_t begin, int64_t end) { functor(begin, end); });
}

template <class T>
void run_heavy(int64_t n, const T& functor) {
  run(n, functor, kHeavyPiece);
}

// `make(pieces, extra, second_pass)` gives the functor that looks at `items` pairs or pixels.
template <class F>
Pieces find_pieces(const Tensor& like, int64_t items, const F& make) {
  Pieces result;
  result.first = new_structs<EdgePiece>(like, items);
  const Tensor counts = new_empty(like, {items}, ScalarType::Long);
  run_heavy(items, make(mutable_data<EdgePiece>(result.first), mutable_data<int64_t>(counts), false));
  const auto [sums, extra] = sums_before(counts);
  result.further = new_structs<EdgePiece>(like, extra);
  if (extra > 0) {
    run_heavy(items, make(mutable_data<EdgePiece>(result.further), mutable_data<int64_t>(sums), true));
  }
  result.list = {mutable_data<EdgePiece>(result.first), mutable_data<EdgePiece>(result.further), items, items + extra};
  return result;
}

// The visible ones of them alone, in a row, so that later passes get no more than they need.
Pieces visible_pieces(const Tensor& like, Pieces&& found) {
  constexpr int64_t kPiece = 2048;
  std::vector<int64_t> before((found.list.count + kPiece - 1) / kPiece + 1, 0);
  const auto each = [&](int64_t begin, int64_t end, const auto& body) {
    for (int64_t i = begin; i < end; ++i) found.list.visit_place(i, [](int64_t) { return true; }, body);
  };
  parallel_ranges(found.list.count, kPiece, [&](int64_t begin, int64_t end) {
    each(begin, end, [&](const EdgePiece&) { ++before[begin / kPiece + 1]; });
  });
  for (size_t i = 1; i < before.size(); ++i) before[i] += before[i - 1];
  Pieces result;
  result.first = new_structs<EdgePiece>(like, before.back());
  EdgePiece* const pieces = mutable_data<EdgePiece>(result.first);
  result.list = {pieces, nullptr, before.back(), before.back()};
  parallel_ranges(found.list.count, kPiece, [&](int64_t begin, int64_t end) {
    EdgePiece* next = pieces + before[begin / kPiece];
    each(begin, end, [&](const EdgePiece& piece) { *next++ = piece; });
  });
  return result;
}

// Visible pieces that the forward pass on the CPU keeps for the backward pass: how many of edges and of crossings, then
// they themselves, if there is room for all; else -1. Few pictures have more; their backward pass walks again.
int64_t room_for_pieces(int64_t pixels) { return 768 + pixels / 128; }

Tensor nothing_kept(const Tensor& like) {
  constexpr int64_t kWords = sizeof(EdgePiece) / 8;
  const int64_t words = like.is_cuda() ? 0 : 2 + kWords * room_for_pieces(like.numel());
  const Tensor kept = new_zeros(like, {words}, ScalarType::Long);
  if (words > 0) mutable_data<int64_t>(kept)[0] = -1;
  return kept;
}

Tensor keep_pieces(const Tensor& triangle_id, const PieceList& edges, const PieceList& crossings) {
  const Tensor kept = nothing_kept(triangle_id);
  int64_t* const counts = mutable_data<int64_t>(kept);
  const bool fits = edges.count + crossings.count <= room_for_pieces(triangle_id.numel());
  counts[0] = fits ? edges.count : -1;
  counts[1] = fits ? crossings.count : -1;
  if (fits) {
    EdgePiece* const pieces = reinterpret_cast<EdgePiece*>(counts + 2);
    std::copy_n(edges.first, edges.count, pieces);
    std::copy_n(crossings.first, crossings.count, pieces + edges.count);
  }
  return kept;
}

// The two lists that keep_pieces kept, if it did.
std::optional<std::pair<Pieces, Pieces>> kept_pieces(const Tensor& kept) {
  if (kept.is_cuda() || kept.numel() < 2) return std::nullopt;
  // PieceList may write, but nobody does after the walk.
  int64_t* const counts = const_cast<int64_t*>(data<int64_t>(kept));
  const int64_t edges = counts[0], crossings = counts[1];
  if (edges < 0) return std::nullopt;
  DR_CHECK(crossings >= 0 && 2 + static_cast<int64_t>(sizeof(EdgePiece) / 8) * (edges + crossings) <= kept.numel(),
           "segments: pieces have another size");
  EdgePiece* const pieces = reinterpret_cast<EdgePiece*>(counts + 2);
  return std::pair(Pieces{kept, kept, {pieces, nullptr, edges, edges}},
                   Pieces{kept, kept, {pieces + edges, nullptr, crossings, crossings}});
}

SegmentMesh mesh_of(const SegmentTensors& t, const Tensor& facing) {
  const int64_t items = t.positions.size(0), triangles = t.triangles.size(0);
  const bool single = t.positions.scalar_type() == ScalarType::Float;
  return {{{single ? nullptr : data<double>(t.positions), data<int32_t>(t.triangles), data_or_null<int32_t>(t.ranges),
            items == 1 ? 0 : t.positions.size(1) * 4, static_cast<int32_t>(t.positions.size(1)),
            static_cast<int32_t>(triangles), t.cull},
           single ? data<float>(t.positions) : nullptr},
          Viewport<double>::make(t.triangle_id.size(2), t.triangle_id.size(1)),
          data<int32_t>(t.topology),
          data_or_null<int32_t>(t.seams),
          data<int8_t>(facing),
          items == 1 ? 0 : triangles};
}

// What forward and backward both have to know of every triangle and pixel. It costs more to find than all the rest
// where discontinuities are few, and takes a byte each to keep.
struct Marks {
  Tensor facing;     // (B or 1, T) int8, of TriangleFacing
  Tensor edges;      // (B, T) uint8, of MarkEdges
  Tensor crossings;  // (B, H, W) uint8, of MarkCrossings

  explicit Marks(const SegmentTensors& t)
      : facing(new_empty(t.positions, {t.positions.size(0), t.triangles.size(0)}, ScalarType::Char)),
        edges(new_empty(t.positions, {t.batch(), t.triangles.size(0)}, ScalarType::Byte)),
        crossings(new_zeros(t.positions, {t.batch(), t.triangle_id.size(1), t.triangle_id.size(2)}, ScalarType::Byte)) {
    const SegmentMesh mesh = mesh_of(t, facing);
    dispatch_floating(t.positions, [&](auto zero) {
      using scalar_t = decltype(zero);
      const RasterMesh<scalar_t> given{data<scalar_t>(t.positions),
                                       mesh.mesh.triangles,
                                       mesh.mesh.ranges,
                                       mesh.mesh.item_stride,
                                       mesh.mesh.vertex_count,
                                       mesh.mesh.triangle_count,
                                       t.cull};
      launch(t.positions, facing.numel(), TriangleFacing<scalar_t>{given, mutable_data<int8_t>(facing)},
             kTrianglePiece);
    });
    launch(t.positions, edges.numel(), MarkEdges{mesh, mutable_data<uint8_t>(edges)}, kTrianglePiece);
    const MarkCrossings mark{mesh, data<int32_t>(t.triangle_id), mutable_data<uint8_t>(crossings)};
    if (t.positions.is_cuda()) {
      launch(t.positions, crossings.numel(), mark);
    } else {
      run(crossings.numel(), MarkCrossingsCpu{mark});
    }
  }

  Marks(const SegmentTensors& t, const Tensor& side, const Tensor& edge, const Tensor& crossing)
      : facing(as_contiguous(side)), edges(as_contiguous(edge)), crossings(as_contiguous(crossing)) {
    const int64_t triangles = t.triangles.size(0);
    DR_CHECK(facing.scalar_type() == ScalarType::Char && facing.numel() == t.positions.size(0) * triangles,
             "segments: facing must be (B, T) int8");
    DR_CHECK(edges.scalar_type() == ScalarType::Byte && edges.numel() == t.batch() * triangles,
             "segments: edges must be (B, T) uint8");
    DR_CHECK(crossings.scalar_type() == ScalarType::Byte && crossings.numel() == t.triangle_id.numel(),
             "segments: crossings must be (B, H, W) uint8");
  }
};

Tensor triangle_boxes(const SegmentTensors& t, const SegmentMesh& mesh) {
  const int64_t count = t.batch() * t.triangles.size(0);
  const Tensor boxes = new_structs<PixelBox>(t.positions, count);
  launch(t.positions, count, TriangleBoxes{mesh, mutable_data<PixelBox>(boxes)});
  return boxes;
}

// The edge walk of one call: builds the lists that forward and backward share.
class Walk {
 public:
  Walk(const SegmentTensors& tensors, const Marks& marks)
      : t_(tensors), marks_(marks), mesh_(mesh_of(tensors, marks.facing)) {}

  const SegmentMesh& mesh() const { return mesh_; }

  Pieces edges() {
    const Tensor marked = marked_indices(marks_.edges);
    const int64_t edges = 3 * marked.numel();
    segments_ = new_structs<EdgeSegment>(t_.positions, edges);
    const Tensor pixels = new_empty(t_.positions, {edges}, ScalarType::Long);
    EdgeSegment* const segments = mutable_data<EdgeSegment>(segments_);
    run_heavy(
        edges,
        ClipEdges{
            {mesh_}, data<uint8_t>(marks_.edges), data<int64_t>(marked), segments, mutable_data<int64_t>(pixels)});
    const auto [offsets, pairs] = sums_before(pixels);
    const int64_t* const first_pair = data<int64_t>(offsets);
    const PieceFinder finder{mesh_, data<int32_t>(t_.triangle_id), t_.exact};
    Pieces result = find_pieces(t_.positions, pairs, [&](EdgePiece* pieces, int64_t* extra, bool second_pass) {
      return FindEdgePieces{finder, segments, first_pair, edges, pieces, extra, second_pass};
    });
    if (t_.exact) look_at_all_triangles(finder, result.list, segments);
    return visible_pieces(t_.positions, std::move(result));
  }

  Pieces crossings() {
    const int32_t* const ids = data<int32_t>(t_.triangle_id);
    const Tensor marked = marked_indices(marks_.crossings);
    const int64_t* const pixels = data<int64_t>(marked);
    Pieces result = find_pieces(t_.positions, marked.numel(), [&](EdgePiece* pieces, int64_t* extra, bool second_pass) {
      return FindCrossingPieces{{mesh_, ids}, pixels, pieces, extra, second_pass};
    });
    if (t_.exact) look_at_all_triangles({mesh_, ids, true}, result.list, nullptr);
    return visible_pieces(t_.positions, std::move(result));
  }

 private:
  // Visibility "exact" (segments_exact.h). `segments` is null for crossings.
  void look_at_all_triangles(const PieceFinder& finder, const PieceList& list, const EdgeSegment* segments) {
    const Tensor& like = t_.positions;
    const int64_t triangles = t_.triangles.size(0);
    if (list.count == 0 || triangles == 0) return;
    if (!boxes_.has_value()) boxes_ = triangle_boxes(t_, mesh_);
    const PixelBox* const boxes = data<PixelBox>(*boxes_);
    const int32_t width = mesh_.viewport.width, height = mesh_.viewport.height;
    const Tensor keys = new_empty(like, {list.count}, ScalarType::Long);
    run(list.count, PieceKeys{list, mutable_data<int64_t>(keys)});
    const auto [sorted, order] = sort_keys(keys);
    const Tensor slots = new_zeros(like, {t_.triangle_id.numel()}, ScalarType::Int);
    const Tensor tiles = new_zeros(like, {t_.batch() * Tiles(width, height).count()}, ScalarType::Byte);
    run(list.count,
        MarkSlots{data<int64_t>(sorted), mutable_data<int32_t>(slots), mutable_data<uint8_t>(tiles), width, height});
    const Tensor marks = new_empty(like, {t_.batch() * triangles}, ScalarType::Byte);
    run(marks.numel(), MarkWanted{boxes, data<uint8_t>(tiles), mutable_data<uint8_t>(marks),
                                  static_cast<int32_t>(triangles), width, height});
    const Tensor wanted = marked_indices(marks);
    const Tensor memory = new_structs<ExactQuery>(like, list.count);
    ExactQuery* const queries = mutable_data<ExactQuery>(memory);
    run_heavy(list.count, MakeQueries{mesh_, list, segments, queries});
    // Every band looks at every wanted box: few of them, but enough for the threads.
    const int64_t bands = std::min<int64_t>(height, 16);
    for (const bool second_pass : {false, true}) {
      if (second_pass && segments == nullptr) break;
      run(bands * wanted.numel(),
          ExactVisibility{mesh_, list, segments, data<int64_t>(sorted), data<int64_t>(order), data<int32_t>(slots),
                          boxes, data<int64_t>(wanted), wanted.numel(), queries, static_cast<int32_t>(bands),
                          second_pass},
          std::max<int64_t>(1, wanted.numel()));
    }
    run_heavy(list.count, FinishPieces{finder, list, segments, queries});
  }

  const SegmentTensors& t_;
  const Marks& marks_;
  Tensor segments_;
  std::optional<Tensor> boxes_;  // of the triangles, where visibility is "exact"
  SegmentMesh mesh_;
};

// The same without lists (segments_threads.h), so that the host waits for nothing.
class ThreadWalk {
 public:
  ThreadWalk(const SegmentTensors& t, const Marks& marks)
      : like_(t.positions), marks_(marks), ids_(data<int32_t>(t.triangle_id)), mesh_(mesh_of(t, marks.facing)) {
    const int64_t triangles = marks.edges.numel();
    const Tensor pairs = new_empty(like_, {triangles}, ScalarType::Long);
    launch(like_, triangles, CountPairs{mesh_, data<uint8_t>(marks.edges), mutable_data<int64_t>(pairs)});
    before_ = running_sums(pairs);
    if (t.exact && triangles > 0) build_tree(t);
  }

  // Adds what `of_edge` and `of_crossing` make of each piece.
  template <class scalar_t, class OfEdge, class OfCrossing>
  void scatter(const Tensor& grad, ScatterAlgorithm algorithm, const OfEdge& of_edge,
               const OfCrossing& of_crossing) const {
    const EdgePairs pairs = edges();
    scatter_without_buffers<scalar_t>(grad, pairs.threads, algorithm, SumPieces<EdgePairs, OfEdge>{pairs, of_edge},
                                      kPiecesPerPair, pairs.before + pairs.triangles);
    std::optional<Tensor> marked;
    if (algorithm == ScatterAlgorithm::fixed_point) marked = count_marks(marks_.crossings);
    scatter_without_buffers<scalar_t>(grad, marks_.crossings.numel(), algorithm,
                                      SumPieces<CrossingPixels, OfCrossing>{crossings(), of_crossing},
                                      kPiecesPerCrossing, data_or_null<int64_t>(marked));
  }

  template <class Use>
  void visit(const Use& use) const {
    const EdgePairs pairs = edges();
    launch_in_order(like_, pairs.threads, UsePieces<EdgePairs, Use>{pairs, use});
    launch_in_order(like_, marks_.crossings.numel(), UsePieces<CrossingPixels, Use>{crossings(), use});
  }

  const SegmentMesh& mesh() const { return mesh_; }

 private:
  EdgePairs edges() const {
    return {{mesh_, ids_, tree_.given()}, tree_,
            data<uint8_t>(marks_.edges),  data<int64_t>(before_),
            marks_.edges.numel(),         like_.is_cuda() ? kPairThreads : 64};
  }

  CrossingPixels crossings() const { return {{mesh_, ids_}, tree_, data<uint8_t>(marks_.crossings)}; }

  // Visibility "exact" (segments_tree.h).
  void build_tree(const SegmentTensors& t) {
    const int32_t triangles = mesh_.mesh.triangle_count;
    tree_ = {nullptr, nullptr, 0, triangles, 0};
    do {
      tree_.nodes_per_item += tree_.nodes_of(tree_.levels);
    } while (tree_.nodes_of(tree_.levels++) > 1);
    const Tensor boxes = triangle_boxes(t, mesh_), keys = new_empty(like_, {t.batch() * triangles}, ScalarType::Long);
    launch(like_, keys.numel(),
           CurvePlaces{data<PixelBox>(boxes), mutable_data<int64_t>(keys), triangles, mesh_.viewport.width,
                       mesh_.viewport.height});
    const Tensor order = sort_keys(keys).second;
    nodes_ = new_structs<PixelBox>(like_, t.batch() * tree_.nodes_per_item);
    leaves_ = new_empty(like_, {keys.numel()}, ScalarType::Int);
    PixelBox* const nodes = mutable_data<PixelBox>(nodes_);
    launch(like_, keys.numel(),
           TreeLeaves{data<PixelBox>(boxes), data<int64_t>(order), nodes, mutable_data<int32_t>(leaves_),
                      tree_.nodes_per_item, triangles});
    int64_t first = 0;
    for (int32_t level = 1; level < tree_.levels; ++level) {
      const int64_t below = tree_.nodes_of(level - 1);
      launch(like_, t.batch() * tree_.nodes_of(level), TreeLevel{nodes, tree_.nodes_per_item, first, below});
      first += below;
    }
    tree_.nodes = nodes;
    tree_.leaves = data<int32_t>(leaves_);
  }

  const Tensor& like_;
  const Marks& marks_;
  const int32_t* ids_;
  SegmentMesh mesh_;
  Tensor before_, nodes_, leaves_;
  TriangleTree tree_{};
};

// Who walks without lists: the GPU, and under test, where order-free sums are asked for, the CPU.
bool walks_without_lists(const SegmentTensors& t, ScatterAlgorithm algorithm) {
  return t.positions.is_cuda() || algorithm == ScatterAlgorithm::fixed_point;
}

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
  const Marks marks(tensors);
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
  const Marks marks(tensors, facing, edges, crossings);
  Tensor result = new_empty(image, {image.size(0), image.size(1), image.size(2), image.size(3)});
  const auto scatter = static_cast<ScatterAlgorithm>(algorithm);
  const Tensor kept = dispatch_floating(image, [&](auto zero) {
    using scalar_t = decltype(zero);
    const BlendPiece<scalar_t> blend{data<scalar_t>(image), static_cast<int32_t>(image.size(3)),
                                     static_cast<int32_t>(image.size(2))};
    if (walks_without_lists(tensors, scatter)) {
      torch::stable::copy_(result, image);
      ThreadWalk(tensors, marks).scatter<scalar_t>(result, scatter, blend, blend);
      return nothing_kept(tensors.triangle_id);
    }
    Walk walk(tensors, marks);
    const Pieces of_edges = walk.edges(), of_crossings = walk.crossings();
    copy_and_add<scalar_t>(image, of_edges, of_crossings, blend, 0, result);
    return keep_pieces(tensors.triangle_id, of_edges.list, of_crossings.list);
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
  const Marks marks(tensors, facing, edges, crossings);
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
    Walk walk(tensors, marks);
    const auto found = kept_pieces(given);
    const Pieces of_edges = found.has_value() ? found->first : walk.edges();
    const Pieces of_crossings = found.has_value() ? found->second : walk.crossings();
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
  const Marks marks(tensors);
  const MarkParted mark{mutable_data<uint8_t>(result), static_cast<int32_t>(ids.size(2)),
                        static_cast<int32_t>(ids.size(1))};
  if (walks_without_lists(tensors, static_cast<ScatterAlgorithm>(algorithm))) {
    ThreadWalk(tensors, marks).visit(mark);
    return result;
  }
  Walk walk(tensors, marks);
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
