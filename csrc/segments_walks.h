// Edge walk, part 14: the two walks as the host starts them, over lists on the CPU and without them on the GPU.
#pragma once

#include "core/compact.h"
#include "segments_blend.h"
#include "segments_host.h"
#include "segments_lists.h"

namespace diffrender {

// Items per task on the CPU, for kernels that spend about a microsecond on each.
constexpr int64_t kHeavyPiece = 256;

// Visible pieces of one kind, and the memory behind them.
struct Pieces {
  Tensor first, further;
  PieceList list;
};

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
inline Pieces visible_pieces(const Tensor& like, Pieces&& found) {
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
// they themselves, if there is room for all; else -1. Few pictures have more; their backward pass walks again. The
// outline of a smooth mesh has about as many pieces as it crosses pixels and as it has edges. Both grow with a square
// root, and there is room for either as long as a picture has less than some million pixels and triangles.
inline int64_t room_for_pieces(const SegmentTensors& t) {
  return 768 + t.triangle_id.numel() / 128 + t.batch() * t.triangles.size(0) / 64;
}

inline Tensor nothing_kept(const SegmentTensors& t) {
  constexpr int64_t kWords = sizeof(EdgePiece) / 8;
  const int64_t words = t.triangle_id.is_cuda() ? 0 : 2 + kWords * room_for_pieces(t);
  const Tensor kept = new_zeros(t.triangle_id, {words}, ScalarType::Long);
  if (words > 0) mutable_data<int64_t>(kept)[0] = -1;
  return kept;
}

inline Tensor keep_pieces(const SegmentTensors& t, const PieceList& edges, const PieceList& crossings) {
  const Tensor kept = nothing_kept(t);
  int64_t* const counts = mutable_data<int64_t>(kept);
  const bool fits = edges.count + crossings.count <= room_for_pieces(t);
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
inline std::optional<std::pair<Pieces, Pieces>> kept_pieces(const Tensor& kept) {
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

// The edge walk of one call: builds the lists that forward and backward share.
class ListWalk {
 public:
  ListWalk(const SegmentTensors& tensors, const SegmentMarks& marks)
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
  const SegmentMarks& marks_;
  Tensor segments_;
  std::optional<Tensor> boxes_;  // of the triangles, where visibility is "exact"
  SegmentMesh mesh_;
};

// The same without lists (segments_threads.h), so that the host waits for nothing.
class ThreadWalk {
 public:
  ThreadWalk(const SegmentTensors& t, const SegmentMarks& marks)
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
  const SegmentMarks& marks_;
  const int32_t* ids_;
  SegmentMesh mesh_;
  Tensor before_, nodes_, leaves_;
  TriangleTree tree_{};
};

// Who walks without lists: the GPU, and under test, where order-free sums are asked for, the CPU.
inline bool walks_without_lists(const SegmentTensors& t, ScatterAlgorithm algorithm) {
  return t.positions.is_cuda() || algorithm == ScatterAlgorithm::fixed_point;
}

}  // namespace diffrender
