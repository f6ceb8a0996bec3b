// Edge walk, part 11: the walk of the CPU, over lists: edges, the pixels that they cross, visible pieces, pieces sorted
// by pixel. They share what they find between the picture and both gradients. For visibility "exact" see part 6.
#pragma once

#include <optional>
#include <vector>

#include "segments_exact.h"
#include "segments_sums.h"

namespace diffrender {

// Clips marked edges and counts the pixels that they cross.
struct ClipEdges {
  EdgeClipper clipper;
  const uint8_t* marks;   // of MarkEdges
  const int64_t* marked;  // [N] where they are not 0
  EdgeSegment* segments;  // [3 N]
  int64_t* pixels;        // [3 N]

  void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t triangle = marked[i / 3];
      const int32_t k = static_cast<int32_t>(i - i / 3 * 3);
      pixels[i] = (marks[triangle] >> k & 1) != 0 ? clipper.clip(triangle, k, segments + i) : 0;
    }
  }
};

// Which edge-pixel pairs, or marked pixels, have visible pieces: a bit for each.
struct PlaceBits {
  static constexpr int64_t kBits = 64;
  const uint64_t* words;  // null: not known
  int64_t count;          // words

  static int64_t words_of(int64_t places) { return (places + kBits - 1) / kBits; }

  // The first place of [begin, end) that may have some, or end.
  int64_t next(int64_t begin, int64_t end) const {
    if (words == nullptr || begin >= end) return begin;
    for (int64_t i = begin / kBits; i * kBits < end; ++i) {
      const uint64_t left = i * kBits < begin ? words[i] >> (begin % kBits) << (begin % kBits) : words[i];
      if (left != 0) return std::min(end, i * kBits + __builtin_ctzll(left));
    }
    return end;
  }
};

// Calls body(pair, segment, walk, aside or null) for the edge-pixel pairs [begin, end) that are wanted; pair offsets[e]
// is the first of edge e.
template <class F>
void for_each_pair(const SegmentMesh& in, const EdgeSegment* segments, const int64_t* offsets, int64_t edges,
                   int64_t begin, int64_t end, const PlaceBits& wanted, const F& body) {
  int64_t low = 0, high = edges;  // the last edge with offsets[e] <= begin
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (offsets[middle] <= begin ? low : high) = middle;
  }
  for (int64_t edge = low; edge < edges && offsets[edge] < end; ++edge) {
    const int64_t first = offsets[edge], stop = std::min(offsets[edge + 1], end);
    int64_t pair = wanted.next(std::max(first, begin), stop);
    if (pair >= stop) continue;
    EdgeSegment segment = segments[edge];
    PixelWalk walk(segment, in.viewport.width, in.viewport.height);
    walk.seek(static_cast<int32_t>(pair - first));
    // Telling triangles apart pays where enough pixels see the same ones.
    std::optional<AsideTriangles> aside;
    if (offsets[edge + 1] - first >= 4) aside.emplace(in, segment);
    while (true) {
      body(pair, edge, segment, walk, aside.has_value() ? &*aside : nullptr);
      const int64_t next = wanted.next(pair + 1, stop);
      if (next >= stop) break;
      for (; pair < next; ++pair) walk.advance();
    }
  }
}

// Visible pieces of a range of pairs or pixels: the first of each, then what else there is.
struct FoundPieces {
  std::vector<EdgePiece> first, further;
  uint64_t* visible;  // bit i: place i has some; zero on entry, and no word belongs to two ranges

  void take(int64_t place, const EdgePiece& piece) {
    uint64_t& word = visible[place / PlaceBits::kBits];
    const uint64_t bit = uint64_t(1) << place % PlaceBits::kBits;
    ((word & bit) == 0 ? first : further).push_back(piece);
    word |= bit;
  }
};

struct FindEdgePieces {
  PieceFinder finder;
  const EdgeSegment* segments;  // [N]
  const int64_t* offsets;       // [N + 1] first pair of each edge
  int64_t edges;                // N
  PlaceBits wanted;

  void operator()(int64_t begin, int64_t end, FoundPieces* out) const {
    for_each_pair(finder.in, segments, offsets, edges, begin, end, wanted,
                  [&](int64_t pair, int64_t edge, EdgeSegment& segment, const PixelWalk& walk, AsideTriangles* aside) {
                    const auto body = [&](EdgePiece& piece) {
                      piece.segment = static_cast<int32_t>(edge);
                      out->take(pair, piece);
                    };
                    finder.visit(&segment, walk, body, aside);
                  });
  }
};

// The same over marked pixels.
struct FindCrossingPieces {
  CrossingFinder finder;
  const int64_t* marked;  // [N] pixels
  PlaceBits wanted;

  void operator()(int64_t begin, int64_t end, FoundPieces* out) const {
    for (int64_t i = wanted.next(begin, end); i < end; i = wanted.next(i + 1, end)) {
      finder.visit(marked[i], [&](const EdgePiece& piece) { out->take(i, piece); });
    }
  }
};

struct PieceList {
  EdgePiece* pieces;
  int64_t count;

  const EdgePiece& at(int64_t i) const { return pieces[i]; }

  template <class F>
  void for_each_place(int64_t begin, int64_t end, const F& body) const {
    for (int64_t i = begin; i < end; ++i) body(i);
  }

  template <class Wants, class F>
  void visit_place(int64_t i, const Wants& wants, const F& body) const {
    if (wants(pieces[i].pixel)) body(pieces[i]);
  }
};

struct PieceKeys {
  PieceList list;
  int64_t* keys;  // [count] pixel

  void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) keys[i] = list.at(i).pixel;
  }
};

// Squares of pixels, for a first look at whether there are pieces in a box.
struct Tiles {
  static constexpr int32_t kSide = 8;
  int32_t columns, rows;

  Tiles(int32_t width, int32_t height) : columns((width + kSide - 1) / kSide), rows((height + kSide - 1) / kSide) {}

  int64_t count() const { return static_cast<int64_t>(columns) * rows; }
};

// Where the pieces of each pixel begin among the sorted ones, and which tiles have any.
struct MarkSlots {
  const int64_t* keys;  // [count] sorted
  int32_t* slots;       // [B, H, W] 1 + the first; zero on entry
  uint8_t* tiles;       // [B, tiles]; zero on entry
  int32_t width, height;

  void operator()(int64_t begin, int64_t end) const {
    const Tiles grid(width, height);
    for (int64_t i = begin; i < end; ++i) {
      if (i > 0 && keys[i - 1] == keys[i]) continue;
      slots[keys[i]] = static_cast<int32_t>(i) + 1;
      const int64_t line = keys[i] / width, item = line / height, column = keys[i] - line * width;
      set_flag(tiles + (item * grid.rows + (line - item * height) / Tiles::kSide) * grid.columns +
               column / Tiles::kSide);
    }
  }
};

// Marks the triangles whose box touches a tile that has pieces.
struct MarkWanted {
  const PixelBox* boxes;  // [B, T]
  const uint8_t* tiles;   // [B, tiles]
  uint8_t* wanted;        // [B, T]
  int32_t triangle_count, width, height;

  void operator()(int64_t begin, int64_t end) const {
    const Tiles grid(width, height);
    for_each_index(begin, end, triangle_count, [&](int64_t i, int64_t item) {
      const PixelBox& box = boxes[i];
      bool found = false;
      if (!box.empty()) {
        for (int32_t row = box.row_begin / Tiles::kSide; row <= (box.row_end - 1) / Tiles::kSide; ++row) {
          const uint8_t* const line = tiles + item * grid.count() + static_cast<int64_t>(row) * grid.columns;
          for (int32_t k = box.column_begin / Tiles::kSide; k <= (box.column_end - 1) / Tiles::kSide; ++k)
            found |= line[k] != 0;
        }
      }
      wanted[i] = found ? 1 : 0;
    });
  }
};

struct MakeQueries {
  SegmentMesh in;
  PieceList list;
  const EdgeSegment* segments;  // null: crossings
  ExactQuery* queries;          // [count]

  void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      const EdgePiece& piece = list.at(i);
      queries[i] = make_query(in, piece, segments != nullptr ? segments + piece.segment : nullptr);
    }
  }
};

// Every triangle with pieces near its box looks for those in its pixels, in two passes over what is behind: first the
// depth, then who has it. Passes only take minima and set flags, so their order does not matter, and a range of items
// is one band of rows, which owns the pieces in it.
struct ExactVisibility {
  SegmentMesh in;
  PieceList list;
  const EdgeSegment* segments;  // null: crossings
  const int64_t* keys;          // [count] sorted pixels
  const int64_t* order;         // [count] index into list
  const int32_t* slots;         // of MarkSlots
  const PixelBox* boxes;        // [B, T]
  const int64_t* wanted;        // [wanted_count] which of them
  int64_t wanted_count;
  ExactQuery* queries;  // [count]
  int32_t bands;        // of rows
  bool second_pass;

  // Items are (band, wanted triangle).
  void operator()(int64_t begin, int64_t end) const {
    for_each_index(begin, end, wanted_count, [&](int64_t i, int64_t band) {
      const int64_t which = wanted[i - band * wanted_count], height = in.viewport.height;
      const int64_t item = which / in.mesh.triangle_count;
      const int32_t triangle = static_cast<int32_t>(which - item * in.mesh.triangle_count);
      PixelBox box = boxes[which];
      box.row_begin = maximum(box.row_begin, static_cast<int32_t>(band * height / bands));
      box.row_end = minimum(box.row_end, static_cast<int32_t>((band + 1) * height / bands));
      for (int32_t row = box.row_begin; row < box.row_end; ++row) {
        const int64_t first = (item * height + row) * in.viewport.width;
        for (int32_t column = box.column_begin; column < box.column_end; ++column) {
          const int32_t slot = slots[first + column];
          if (slot > 0) look(item, triangle, first + column, {column + 0.5, row + 0.5}, slot - 1);
        }
      }
    });
  }

  void look(int64_t item, int32_t triangle, int64_t pixel, Vec2<double> centre, int64_t first) const {
    ScreenFace face;
    if (!in.face(item, triangle, centre, &face)) return;
    for (int64_t k = first; k < list.count && keys[k] == pixel; ++k) {
      const EdgePiece& piece = list.at(order[k]);
      const EdgeSegment* const segment = segments != nullptr ? segments + piece.segment : nullptr;
      ExactQuery& query = queries[order[k]];
      if (query.hidden != 0 || is_own(in, piece, segment, triangle)) continue;
      if (!second_pass && hides(face, piece, query)) query.hidden = 1;
      uint64_t key;
      if (segment == nullptr || !shows_beyond(face, query, &key)) continue;
      if (!second_pass) {
        query.depth = key < query.depth ? key : query.depth;
      } else if (query.depth == key) {
        query.back = static_cast<uint32_t>(triangle) < query.back ? static_cast<uint32_t>(triangle) : query.back;
      }
    }
  }
};

// Marks hidden pieces (pixel = -1) and gives the others their colours; those of crossings have theirs.
struct FinishPieces {
  PieceFinder finder;
  PieceList list;
  const EdgeSegment* segments;  // null: crossings
  const ExactQuery* queries;    // [count]

  void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      EdgePiece& piece = list.pieces[i];
      const ExactQuery& query = queries[i];
      const bool shows = query.hidden == 0 &&
                         (segments == nullptr || finish_piece(finder, segments[piece.segment], query.back, &piece));
      if (!shows) piece.pixel = -1;
    }
  }
};

// Pieces by where in a picture they may add something: in bands of 2^shift pixels, in their order within each.
struct PieceBands {
  static constexpr int64_t kMost = 64;
  const PieceList& list;
  int shift = 12;
  std::vector<int32_t> pieces[kMost];

  // `reach`: how far from its pixel a piece adds something.
  PieceBands(const PieceList& given, int64_t pixels, int64_t reach) : list(given) {
    while (pixels > kMost << shift) ++shift;
    for (int64_t i = 0; i < list.count; ++i) {
      const int64_t pixel = list.at(i).pixel;
      const int64_t first = std::max<int64_t>(pixel - reach, 0) >> shift;
      const int64_t last = std::min(pixel + reach, pixels - 1) >> shift;
      for (int64_t band = first; band <= last; ++band) pieces[band].push_back(static_cast<int32_t>(i));
    }
  }
};

// A picture and what BlendPiece or BlendBackwardImage makes of pieces added to it, band by band: a band is still in the
// cache when its pieces come. No pixel belongs to two threads, and how many bands there are makes no difference to any
// sum.
template <class scalar_t, class Use>
struct CopyAndAdd {
  const scalar_t* source;  // [B, H, W, C]
  int64_t pixels;          // B H W
  const PieceBands &edges, &crossings;
  Use use;
  scalar_t* picture;  // [B, H, W, C]

  void operator()(int64_t begin, int64_t end) const {
    for (int64_t band = begin; band < end; ++band) {
      const int64_t first = band << edges.shift, last = std::min(pixels, (band + 1) << edges.shift);
      if (first >= last) return;
      std::copy(source + first * use.channels, source + last * use.channels, picture + first * use.channels);
      for (const PieceBands* const bands : {&edges, &crossings}) {
        for (const int32_t i : bands->pieces[band]) add(bands->list.at(i), first, last);
      }
    }
  }

  void add(const EdgePiece& piece, int64_t first, int64_t last) const {
    if (!use.wants(piece.pixel)) return;
    typename Use::Sum sum;
    use.add(piece, &sum);
    if (!sum.empty()) use.flush_within(sum, first, last, Sink<scalar_t>{picture});
  }
};

}  // namespace diffrender
