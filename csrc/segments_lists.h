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
      if (pixels[i] > 0) PieceFinder{clipper.in, nullptr, false}.look_around(segments + i);
    }
  }
};

// Calls body(pair, segment, walk, aside or null) for the edge-pixel pairs [begin, end); pair offsets[e] is the first of
// edge e.
template <class F>
void for_each_pair(const SegmentMesh& in, const EdgeSegment* segments, const int64_t* offsets, int64_t edges,
                   int64_t begin, int64_t end, const F& body) {
  int64_t low = 0, high = edges;  // the last edge with offsets[e] <= begin
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (offsets[middle] <= begin ? low : high) = middle;
  }
  for (int64_t pair = begin, edge = low; pair < end; ++edge) {
    const int64_t stop = offsets[edge + 1] < end ? offsets[edge + 1] : end;
    if (pair >= stop) continue;
    PixelWalk walk(segments[edge], in.viewport.width, in.viewport.height);
    walk.seek(static_cast<int32_t>(pair - offsets[edge]));
    // Telling triangles apart pays where enough pixels see the same ones.
    std::optional<AsideTriangles> aside;
    if (offsets[edge + 1] - offsets[edge] >= 4) aside.emplace(in, segments[edge]);
    for (; pair < stop; ++pair) {
      body(pair, segments[edge], walk, aside.has_value() ? &*aside : nullptr);
      walk.advance();
    }
  }
}

// First pass over the edge-pixel pairs: keeps the first visible piece of each and counts the rest.
// Second pass: finds the pieces of pairs that have more than one again and stores the rest behind the first ones.
struct FindEdgePieces {
  PieceFinder finder;
  const EdgeSegment* segments;  // [N]
  const int64_t* offsets;       // [N + 1] first pair of each edge
  int64_t edges;                // N
  EdgePiece* pieces;            // [pairs], in the second pass [extra pieces]
  int64_t* extra;               // [pairs + 1] first pass: pieces beyond the first; second pass: the sums before each
  bool second_pass;

  void operator()(int64_t begin, int64_t end) const {
    for_each_pair(finder.in, segments, offsets, edges, begin, end,
                  [&](int64_t pair, const EdgeSegment& segment, const PixelWalk& walk, AsideTriangles* aside) {
                    if (second_pass && extra[pair + 1] == extra[pair]) return;
                    int64_t found = 0;
                    if (!second_pass) pieces[pair].pixel = -1;
                    finder.visit(
                        segment, walk,
                        [&](const EdgePiece& piece) {
                          EdgePiece* const place = second_pass ? pieces + extra[pair] + found - 1 : pieces + pair;
                          if ((found > 0) == second_pass) {
                            *place = piece;
                            place->segment = static_cast<int32_t>(&segment - segments);
                          }
                          ++found;
                        },
                        aside);
                    if (!second_pass) extra[pair] = found > 1 ? found - 1 : 0;
                  });
  }
};

// Like FindEdgePieces, over marked pixels.
struct FindCrossingPieces {
  CrossingFinder finder;
  const int64_t* marked;  // [N] pixels
  EdgePiece* pieces;      // [N], in the second pass [extra pieces]
  int64_t* extra;         // [N + 1]
  bool second_pass;

  void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      if (second_pass && extra[i + 1] == extra[i]) continue;
      int64_t found = 0;
      if (!second_pass) pieces[i].pixel = -1;
      finder.visit(marked[i], [&](const EdgePiece& piece) {
        if (second_pass) {
          if (found > 0) pieces[extra[i] + found - 1] = piece;
        } else if (found == 0) {
          pieces[i] = piece;
        }
        ++found;
      });
      if (!second_pass) extra[i] = found > 1 ? found - 1 : 0;
    }
  }
};

// Pieces in two parts: the first of every edge-pixel pair (or marked pixel), then the further ones.
struct PieceList {
  EdgePiece* first;    // [first_count]
  EdgePiece* further;  // [count - first_count]
  int64_t first_count, count;

  const EdgePiece& at(int64_t i) const { return edit(i); }
  EdgePiece& edit(int64_t i) const { return i < first_count ? first[i] : further[i - first_count]; }

  template <class F>
  void for_each_place(int64_t begin, int64_t end, const F& body) const {
    for (int64_t i = begin; i < end; ++i) body(i);
  }

  // body(piece) if it is visible, and wants(its pixel).
  template <class Wants, class F>
  void visit_place(int64_t i, const Wants& wants, const F& body) const {
    const EdgePiece& piece = at(i);
    if (piece.pixel >= 0 && wants(piece.pixel)) body(piece);
  }
};

constexpr int64_t kNoPixel = INT64_MAX;

struct PieceKeys {
  PieceList list;
  int64_t* keys;  // [count] pixel, or kNoPixel

  void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) keys[i] = list.at(i).pixel < 0 ? kNoPixel : list.at(i).pixel;
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
      if (keys[i] == kNoPixel || (i > 0 && keys[i - 1] == keys[i])) continue;
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
      if (piece.pixel < 0) continue;
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

// Drops hidden pieces and gives the others their colours; those of crossings have theirs.
struct FinishPieces {
  PieceFinder finder;
  PieceList list;
  const EdgeSegment* segments;  // null: crossings
  const ExactQuery* queries;    // [count]

  void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      EdgePiece& piece = list.edit(i);
      if (piece.pixel < 0) continue;
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
      if (pixel < 0) continue;
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
