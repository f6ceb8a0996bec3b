// Edge walk, part 14: the two walks as the host starts them, over lists on the CPU and without them on the GPU.
#pragma once

#include "core/compact.h"
#include "segments_blend.h"
#include "segments_host.h"
#include "segments_lists.h"

namespace diffrender {

// Items per task on the CPU, for kernels that spend about a microsecond on each.
constexpr int64_t kHeavyPiece = 256;

// Visible pieces of one kind, the memory behind them, and where they were found.
struct Pieces {
  Tensor memory;
  PieceList list;
  std::vector<uint64_t> places;  // words of PlaceBits
};

template <class T>
void run_heavy(int64_t n, const T& functor) {
  run(n, functor, kHeavyPiece);
}

// What `find(begin, end, out)` finds in `items` pairs or pixels, in the order of FoundPieces.
template <class F>
Pieces find_pieces(const Tensor& like, int64_t items, const F& find) {
  static_assert(kHeavyPiece % PlaceBits::kBits == 0);
  std::vector<uint64_t> places(PlaceBits::words_of(items));
  std::vector<FoundPieces> found((items + kHeavyPiece - 1) / kHeavyPiece, {{}, {}, places.data()});
  run_heavy(items, [&](int64_t begin, int64_t end) { find(begin, end, &found[begin / kHeavyPiece]); });
  int64_t count = 0;
  for (const FoundPieces& f : found) count += static_cast<int64_t>(f.first.size() + f.further.size());
  Pieces result{new_structs<EdgePiece>(like, count), {}, std::move(places)};
  EdgePiece* next = mutable_data<EdgePiece>(result.memory);
  result.list = {next, count};
  for (const auto part : {&FoundPieces::first, &FoundPieces::further}) {
    for (const FoundPieces& f : found) next = std::copy((f.*part).begin(), (f.*part).end(), next);
  }
  return result;
}

// What the forward pass on the CPU keeps for the backward pass. First how many pieces there are of edges and of
// crossings, then they themselves, if there is room for all. Else kPlacesKept, how many words of PlaceBits there are of
// edges, and both kinds' words: the backward pass looks again, but only where something is visible. Else kNothingKept.
//
// The outline of a smooth mesh has about as many pieces as it crosses pixels and as it has edges. Both grow with a
// square root, and there is room for either as long as a picture has less than some million pixels and triangles.
constexpr int64_t kNothingKept = -1, kPlacesKept = -2;

inline int64_t room_for_pieces(const SegmentTensors& t) {
  return 768 + t.triangle_id.numel() / 128 + t.batch() * t.triangles.size(0) / 64;
}

inline Tensor nothing_kept(const SegmentTensors& t) {
  constexpr int64_t kWords = sizeof(EdgePiece) / 8;
  const int64_t words = t.triangle_id.is_cuda() ? 0 : 2 + kWords * room_for_pieces(t);
  const Tensor kept = new_zeros(t.triangle_id, {words}, ScalarType::Long);
  if (words > 0) mutable_data<int64_t>(kept)[0] = kNothingKept;
  return kept;
}

inline Tensor keep_pieces(const SegmentTensors& t, const Pieces& edges, const Pieces& crossings) {
  const Tensor kept = nothing_kept(t);
  int64_t* const counts = mutable_data<int64_t>(kept);
  if (edges.list.count + crossings.list.count <= room_for_pieces(t)) {
    counts[0] = edges.list.count;
    counts[1] = crossings.list.count;
    EdgePiece* const pieces = reinterpret_cast<EdgePiece*>(counts + 2);
    std::copy_n(edges.list.pieces, edges.list.count, pieces);
    std::copy_n(crossings.list.pieces, crossings.list.count, pieces + edges.list.count);
  } else if (2 + static_cast<int64_t>(edges.places.size() + crossings.places.size()) <= kept.numel()) {
    counts[0] = kPlacesKept;
    counts[1] = static_cast<int64_t>(edges.places.size());
    const auto rest = std::copy(edges.places.begin(), edges.places.end(), counts + 2);
    std::copy(crossings.places.begin(), crossings.places.end(), rest);
  }
  return kept;
}

// What keep_pieces kept.
struct KeptPieces {
  std::optional<Pieces> edges, crossings;
  PlaceBits at_edges{}, at_crossings{};

  explicit KeptPieces(const Tensor& kept) {
    if (kept.is_cuda() || kept.numel() < 2) return;
    // PieceList may write, but nobody does after the walk.
    int64_t* const counts = const_cast<int64_t*>(data<int64_t>(kept));
    const int64_t first = counts[0], second = counts[1], room = kept.numel() - 2;
    if (first == kNothingKept) return;
    if (first == kPlacesKept) {
      DR_CHECK(second >= 0 && second <= room, "segments: pieces have another size");
      const uint64_t* const words = reinterpret_cast<const uint64_t*>(counts + 2);
      at_edges = {words, second};
      at_crossings = {words + second, room - second};
      return;
    }
    DR_CHECK(first >= 0 && second >= 0 && static_cast<int64_t>(sizeof(EdgePiece) / 8) * (first + second) <= room,
             "segments: pieces have another size");
    EdgePiece* const pieces = reinterpret_cast<EdgePiece*>(counts + 2);
    edges = Pieces{kept, {pieces, first}, {}};
    crossings = Pieces{kept, {pieces + first, second}, {}};
  }
};

// The edge walk of one call: builds the lists that forward and backward share.
class ListWalk {
 public:
  ListWalk(const SegmentTensors& tensors, const SegmentMarks& marks)
      : t_(tensors), marks_(marks), mesh_(mesh_of(tensors, marks.facing)) {}

  const SegmentMesh& mesh() const { return mesh_; }

  // `wanted`: pairs and pixels that may have pieces, where that is known.
  Pieces edges(const PlaceBits& wanted = {}) {
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
    check_size(wanted, pairs);
    const PieceFinder finder{mesh_, data<int32_t>(t_.triangle_id), t_.exact};
    Pieces result =
        find_pieces(t_.positions, pairs, FindEdgePieces{finder, segments, data<int64_t>(offsets), edges, wanted});
    if (t_.exact) look_at_all_triangles(finder, &result.list, segments);
    return result;
  }

  Pieces crossings(const PlaceBits& wanted = {}) {
    const int32_t* const ids = data<int32_t>(t_.triangle_id);
    const Tensor marked = marked_indices(marks_.crossings);
    check_size(wanted, marked.numel());
    Pieces result =
        find_pieces(t_.positions, marked.numel(), FindCrossingPieces{{mesh_, ids}, data<int64_t>(marked), wanted});
    if (t_.exact) look_at_all_triangles({mesh_, ids, true}, &result.list, nullptr);
    return result;
  }

 private:
  static void check_size(const PlaceBits& wanted, int64_t places) {
    DR_CHECK(wanted.words == nullptr || PlaceBits::words_of(places) <= wanted.count,
             "segments: pieces have another size");
  }

  // Visibility "exact" (segments_exact.h): takes hidden pieces out of a list. `segments` is null for crossings.
  void look_at_all_triangles(const PieceFinder& finder, PieceList* pieces, const EdgeSegment* segments) {
    const Tensor& like = t_.positions;
    const PieceList& list = *pieces;
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
    const auto is_hidden = [](const EdgePiece& piece) { return piece.pixel < 0; };
    pieces->count = std::remove_if(list.pieces, list.pieces + list.count, is_hidden) - list.pieces;
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
