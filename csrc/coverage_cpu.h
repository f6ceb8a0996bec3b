// The CPU's way from triangles to fragments: strips of a few rows, whose runs, lists and fragments stay in a cache.
//
// A strip takes its triangles in order and notes the run of pixels that each touches in each row. Along a run it is
// cheap to tell, for several pixels at once, which sides of the triangle cut the pixel and whether it has the centre.
// Where that is enough to see that a pixel lies inside of a smooth surface, which is so almost everywhere, nothing is
// done with the candidates but what has to be written; CoverageForward::show looks at the others.
#pragma once

#include <cstring>

#include "core/lanes.h"
#include "coverage.h"
#include "coverage_pairs_cpu.h"
#include "coverage_strips.h"

namespace diffrender {

// Makes the fragments of strips, one after the other in the same memory.
class StripWorker {
 public:
  StripWorker(const CoverageForward& kernel, const PixelBox* boxes, FragmentBlocks* blocks)
      : kernel_(kernel), boxes_(boxes), blocks_(blocks) {}

  // `ends` of each pixel: how many fragments the strip has up to there.
  void run(int64_t item, int64_t strip, const int32_t* triangles, int64_t count, StripFragments* out, int64_t* ends) {
    const CoverageLists& lists = kernel_.lists;
    item_ = item;
    records_ = lists.records + item * lists.mesh.triangle_count;
    width_ = lists.viewport.width;
    first_row_ = static_cast<int32_t>(strip * kStripRows);
    rows_ = std::min(static_cast<int32_t>(kStripRows), lists.viewport.height - first_row_);
    pixels_ = static_cast<int64_t>(rows_) * width_;
    if (count == 0) {
      std::fill_n(ends, pixels_, 0);
      return;
    }
    note_runs(triangles, count);
    place_lists(out);
    fill_lists();
    for (int32_t row = 0; row < rows_; ++row) {
      for (int32_t column = 0; column < width_; ++column) {
        const int64_t p = static_cast<int64_t>(row) * width_ + column;
        if (place_[2 * p + 1] > begin_of(2 * p)) pixel(p, {item, column, first_row_ + row}, out);
        ends[p] = out->count;
      }
    }
    pairs_.finish(out);
    blocks_->keep(out->count * out->bytes_each());
  }

 private:
  struct Run {
    int32_t triangle, side, start, length;
  };

  // What touches the pixels of a strip, by the winding of the triangles. A run is added a block of pixels at a time;
  // blocks reach beyond the run, which changes nothing there, and beyond the last pixel, for which there is room.
  struct Touched {
    std::vector<int32_t> count[2];
    std::vector<float> nearest[2], farthest[2];

    void clear(int64_t pixels) {
      for (int side = 0; side < 2; ++side) {
        count[side].assign(pixels + kLanes, 0);
        nearest[side].assign(pixels + kLanes, kLargest<float>);
        farthest[side].assign(pixels + kLanes, -kLargest<float>);
      }
    }

    void add(int side, int64_t start, int32_t length, const DepthRange& range) {
      using Depths = Lanes<float>;
      int32_t* const counts = count[side].data() + start;
      float *const low = nearest[side].data() + start, *const high = farthest[side].data() + start;
      for (int32_t k = 0; k < length; k += kLanes) {
        const IntLanes in_run = kLaneIndex < length - k;
        const Depths nothing = Depths{} + kLargest<float>, before_low = load_lanes<Depths>(low + k),
                     before_high = load_lanes<Depths>(high + k);
        const Depths here_low = in_run ? Depths{} + range.low : nothing,
                     here_high = in_run ? Depths{} + range.high : -nothing;
        store_lanes(counts + k, load_lanes<IntLanes>(counts + k) - in_run);
        store_lanes(low + k, here_low < before_low ? here_low : before_low);
        store_lanes(high + k, here_high > before_high ? here_high : before_high);
      }
    }

    int32_t all(int64_t p) const { return count[0][p] + count[1][p]; }

    // Which winding lies in front of the other on the whole pixel; 2 where neither does. See
    // CoverageLists::front_winding.
    int front(int64_t p) const {
      if (count[0][p] == 0 || count[1][p] == 0) return count[1][p] > 0 ? 1 : 0;
      if (nearest[0][p] > 1e30f || nearest[1][p] > 1e30f) return 2;
      return farthest[1][p] < nearest[0][p] ? 1 : (farthest[0][p] < nearest[1][p] ? 0 : 2);
    }
  };

  // Bits 0 to 2: sides that cut the pixel; then:
  static constexpr int32_t kCuts = 7, kHasCenter = 8, kSpecial = 16;
  static constexpr int kMost = 8;  // candidates of a pixel that are compared here

  struct Entry {
    int32_t triangle, flags;
  };

  // Pixels next to each other, as many as one register holds: the compiler takes comparisons of longer ones apart.
  static constexpr int kColumns = 4;
  using Columns = double __attribute__((vector_size(kColumns * 8)));
  using Flags = int64_t __attribute__((vector_size(kColumns * 8)));

  void note_runs(const int32_t* triangles, int64_t count) {
    runs_.clear();
    touched_.clear(pixels_);
    const DepthRange* const ranges = kernel_.lists.ranges + item_ * kernel_.lists.mesh.triangle_count;
    for (int64_t n = 0; n < count; ++n) {
      const int32_t t = triangles[n];
      PixelBox part = boxes_[item_ * kernel_.lists.mesh.triangle_count + t];
      part.row_begin = maximum(part.row_begin, first_row_);
      part.row_end = minimum(part.row_end, first_row_ + rows_);
      const DepthRange range = ranges[t];
      const int side = range.winding > 0 ? 1 : 0;
      for (int32_t row = part.row_begin; row < part.row_end; row += kColumns) {
        Columns first, last;
        touched_rows(records_[t], part, row - part.row_begin, &first, &last);
        for (int32_t r = 0; r < std::min(kColumns, part.row_end - row); ++r) {
          if (!(first[r] <= last[r])) continue;
          int32_t begin = static_cast<int32_t>(first[r]);
          begin += begin < first[r] ? 1 : 0;
          const int32_t length = static_cast<int32_t>(last[r]) - begin + 1;
          if (length <= 0) continue;
          const int32_t start = (row + r - first_row_) * width_ + part.column_begin + begin;
          runs_.push_back({t, side, start, length});
          touched_.add(side, start, length, range);
        }
      }
    }
  }

  // for_each_touched_run for rows row, row + 1, ... of the part: the ends of their runs, not rounded yet.
  static void touched_rows(const TriangleRecord& record, const PixelBox& part, int32_t row, Columns* first,
                           Columns* last) {
    const Columns rows = Columns{0, 1, 2, 3} + row;
    *first = Columns{};
    *last = Columns{} + (part.column_end - part.column_begin - 1);
    for (int k = 0; k < 3; ++k) {
      Line side = record.side[k].moved(part.column_begin - record.column, part.row_begin - record.row);
      side.c += side.reach() + kCandidateMargin;
      const Columns value = side.y * rows + side.c, zero = -value * (1 / side.x);
      if (side.x > 0) {
        *first = zero > *first ? zero : *first;
      } else if (side.x < 0) {
        *last = zero < *last ? zero : *last;
      } else {
        *last = value < Columns{} ? Columns{} - 1 : *last;
      }
    }
  }

  // Two lists per pixel, one per winding, and room for what they may show.
  [[gnu::noinline]] void place_lists(StripFragments* out) {
    place_.resize(2 * pixels_);
    front_.resize(pixels_ + kLanes);
    int32_t longest = 0;
    int64_t sum = 0;
    for (int64_t p = 0; p < pixels_; ++p) {
      const int32_t both = touched_.all(p);
      front_[p] = static_cast<uint8_t>(touched_.front(p));
      place_[2 * p] = sum;
      place_[2 * p + 1] = sum + touched_.count[0][p];
      sum += both;
      longest = maximum(longest, both);
    }
    out->memory = blocks_->reserve(sum * out->bytes_each());
    out->candidates = sum;
    out->longest = longest;
    if (static_cast<int64_t>(entries_.size()) < sum) entries_.resize(sum);
    if (longest <= longest_) return;
    longest_ = longest;
    scratch_.reset(new double[CoverageScratch::bytes(longest) / 8 + 1]);
    merged_.resize(longest);
    values_.resize(4 * longest);
    kinds_.resize(longest);
  }

  [[gnu::noinline]] void fill_lists() {
    for (const Run& run : runs_) {
      if (!is_needed(run)) {
        for (int32_t k = 0; k < run.length; ++k) add(run, k, 0);
        continue;
      }
      const TriangleRecord& record = records_[run.triangle];
      const int32_t row = run.start / width_;
      const double u = run.start - row * width_ - record.column, v = first_row_ + row - record.row;
      for (int32_t first = 0; first < run.length; first += kColumns) {
        const Flags flags = flags_along(record, u + first, v);
        for (int32_t k = first; k < std::min(first + kColumns, run.length); ++k)
          add(run, k, static_cast<int32_t>(flags[k - first]));
      }
    }
  }

  // Whether the other winding is not in front all along the run.
  bool is_needed(const Run& run) const {
    const uint64_t other = run.side == 0 ? 0x0101010101010101 : 0;
    uint64_t differs = 0;
    for (int32_t k = 0; k < run.length; k += 8) {
      uint64_t front;
      std::memcpy(&front, &front_[run.start + k], 8);
      const int32_t beyond = std::max(0, k + 8 - run.length);  // pixels that are not of the run
      differs |= (front ^ other) << 8 * beyond;
    }
    return differs != 0;
  }

  void add(const Run& run, int32_t k, int32_t flags) {
    entries_[place_[2 * (run.start + static_cast<int64_t>(k)) + run.side]++] = {run.triangle, flags};
  }

  // Candidate::make for the pixels u, u + 1, ... right of and v below that of the record.
  static Flags flags_along(const TriangleRecord& record, double u, double v) {
    const Columns columns = Columns{0, 1, 2, 3} + u;
    const int64_t special = record.crosses_depth != 0 ? kSpecial : 0;
    Flags flags = {special, special, special, special};
    const Columns on_edge = {kOnEdge, kOnEdge, kOnEdge, kOnEdge};
    Columns inside = Columns{} + kLargest<double>;
    for (int k = 0; k < 3; ++k) {
      const Line& side = record.side[k];
      const double reach = side.reach();
      const Columns distance = side.c + side.x * columns + side.y * v;
      const Columns farthest = distance + reach, nearest = distance - reach;
      const Columns limit = {kSideTolerance, kSideTolerance, kSideTolerance, kSideTolerance};
      const Flags reaches = farthest > limit, cuts = nearest < -limit;
      flags |= (~reaches & kSpecial) | (cuts & (int64_t(1) << k));  // beyond the side it is not a candidate
      inside = distance < inside ? distance : inside;
    }
    // Of two neighbours at whose edge the centre lies, rounding may give it to none.
    const Flags has = inside >= on_edge, is_near = ~has & (inside > -on_edge);
    return flags | (has & kHasCenter) | (is_near & kSpecial);
  }

  // After the lists are filled each place is the end of its list.
  int64_t begin_of(int64_t list) const { return list == 0 ? 0 : place_[list - 1]; }

  void pixel(int64_t p, const CoverageLists::PixelPlace& at, StripFragments* out) {
    const int side = front_[p];
    if (side < 2) {
      const int64_t begin = begin_of(2 * p + side);
      const int count = static_cast<int>(place_[2 * p + side] - begin);
      const int center = smooth_surface(&entries_[begin], count, at);
      if (center >= 0) {
        if (count == 1 || kernel_.merge) {
          append_center(entries_[begin + center].triangle, at, out);
        } else if (!append_pair(&entries_[begin], count, center, at, out) &&
                   !append_star(&entries_[begin], count, center, at, out)) {
          append_parts(&entries_[begin], count, center, at, out);
        }
        return;
      }
    }
    append_any(p, at, out);
  }

  // Which candidate has the centre where CoverageForward::find would find one that covers the pixel, or a smooth
  // surface. -1 where it does not, or where it takes more than this to tell.
  int smooth_surface(const Entry* list, int count, const CoverageLists::PixelPlace& at) const {
    if (count == 1) return (list[0].flags & (kCuts | kSpecial | kHasCenter)) == kHasCenter ? 0 : -1;
    if (count > kMost) return -1;
    int center = 0, centers = 0;
    for (int i = 0; i < count; ++i) {
      if ((list[i].flags & kSpecial) != 0 || (list[i].flags & kCuts) == 0) return -1;
      const bool here = (list[i].flags & kHasCenter) != 0;
      center = here ? i : center;
      centers += here ? 1 : 0;
    }
    if (centers != 1) return -1;
    return has_partners(list, count, at) ? center : -1;
  }

  // CoverageLists::find_partners: whether each side that cuts the pixel has one, or misses it.
  bool has_partners(const Entry* list, int count, const CoverageLists::PixelPlace& at) const {
    CutEdge edges[3 * kMost];
    int found = 0;
    for (int i = 0; i < count; ++i) {
      const int32_t* const corners = kernel_.lists.mesh.triangles + static_cast<int64_t>(list[i].triangle) * 3;
      for (int32_t cuts = list[i].flags & kCuts; cuts != 0; cuts &= cuts - 1)
        edges[found++] = CutEdge::make(corners, __builtin_ctz(cuts), i);
    }
    if (found == 2) return edges[0].from == edges[1].to && edges[0].to == edges[1].from;
    match_edges(edges, found);
    for (const CutEdge* e = edges; e < edges + found; ++e) {
      if (e->partner == kOpen) return false;
      if (e->partner == kNoPartner && !kernel_.lists.misses_pixel(at, e->from, e->to)) return false;
    }
    return true;
  }

  [[gnu::noinline]] void append_center(int32_t triangle, const CoverageLists::PixelPlace& at,
                                       StripFragments* out) const {
    const TriangleRecord& r = records_[triangle];
    const double u = at.column - r.column, v = at.row - r.row;
    double e[3];
    for (int k = 0; k < 3; ++k) e[k] = r.slope[k] * r.side[k].moved(u, v).c;
    const double inverse = reciprocal_or_zero(e[0] + e[1] + e[2]);
    out->append(triangle, FragmentKind::whole, 1, e[0] * inverse, e[1] * inverse, r.depth.moved(u, v).c);
  }

  // append_star for two triangles, in lanes; false where that may leave one out, and at the frame's own border.
  bool append_pair(const Entry* list, int count, int center, const CoverageLists::PixelPlace& at, StripFragments* out) {
    if (count != 2 || at.column == 0 || at.column + 1 == width_ || at.row == 0 ||
        at.row + 1 == kernel_.lists.viewport.height)
      return false;
    const Entry& other = list[1 - center];
    const int32_t cuts = other.flags & kCuts;
    if ((cuts & (cuts - 1)) != 0) return false;
    const TriangleRecord& record = records_[other.triangle];
    const int side = __builtin_ctz(cuts);
    const Line line = record.side[side].moved(at.column - record.column, at.row - record.row);
    if (!(line.largest() > PairPixels::kLeastReach)) return false;
    const int64_t place = out->count;
    for (int i = 0; i < 2; ++i) out->append(list[i].triangle, i == center ? FragmentKind::center : FragmentKind::any);
    pairs_.add(record, side, records_[list[center].triangle], center == 1, at.column, at.row, out, place);
    return true;
  }

  // append_parts where each of the others lies beyond one side of the one at the centre; false where not, or where they
  // leave little of it.
  bool append_star(const Entry* list, int count, int center, const CoverageLists::PixelPlace& at,
                   StripFragments* out) const {
    const PixelSquare square = kernel_.lists.square(at);
    Moments parts[kMost], rest = square.moments();
    for (int i = 0; i < count; ++i) {
      const int32_t cuts = list[i].flags & kCuts;
      if (i == center) continue;
      if ((cuts & (cuts - 1)) != 0) return false;
      const TriangleRecord& r = records_[list[i].triangle];
      const Line line = r.side[__builtin_ctz(cuts)].moved(at.column - r.column, at.row - r.row);
      parts[i] = half_square(square, line).moments;
      rest = rest.minus(parts[i]);
    }
    if (rest.area < CoverageLists::kLeastRest) return false;
    parts[center] = rest;
    const double area = square.area();
    for (int i = 0; i < count; ++i) {
      if (!(parts[i].area >= 10 * kSmallestArea)) continue;
      const TriangleRecord& r = records_[list[i].triangle];
      const double u = at.column - r.column, v = at.row - r.row;
      const Line side[3] = {r.side[0].moved(u, v), r.side[1].moved(u, v), r.side[2].moved(u, v)};
      const Shown shown = Shown::of(r, side, r.depth.moved(u, v), parts[i], area);
      out->append(list[i].triangle, i == center ? FragmentKind::center : FragmentKind::any, shown.weight,
                  shown.barycentrics[0], shown.barycentrics[1], shown.depth);
    }
    return true;
  }

  void append_parts(const Entry* list, int count, int center, const CoverageLists::PixelPlace& at,
                    StripFragments* out) {
    const CoverageScratch scratch = CoverageScratch::at(reinterpret_cast<uint8_t*>(scratch_.get()), longest_);
    const FragmentArrays here = cleared(count);
    for (int i = 0; i < count; ++i) {
      Candidate& c = scratch.candidates[i];
      c.make(records_[list[i].triangle], at.column, at.row);
      kernel_.lists.name(merged_[i] = list[i].triangle, i, &c);
    }
    CoverageForward::show_parts({scratch.candidates, count, true, kernel_.lists.square(at)}, center, scratch.stack,
                                here);
    append(count, here, out);
  }

  void append_any(int64_t p, const CoverageLists::PixelPlace& at, StripFragments* out) {
    const int64_t begin = begin_of(2 * p), middle = place_[2 * p], end = place_[2 * p + 1];
    int count = 0;
    for (int64_t a = begin, b = middle; a < middle || b < end;) {
      const bool first = b == end || (a < middle && entries_[a].triangle < entries_[b].triangle);
      merged_[count++] = entries_[first ? a++ : b++].triangle;
    }
    const CoverageScratch scratch = CoverageScratch::at(reinterpret_cast<uint8_t*>(scratch_.get()), longest_);
    const FragmentArrays here = cleared(count);
    kernel_.show({merged_.data(), count}, at, scratch, here);
    append(count, here, out);
  }

  FragmentArrays cleared(int count) {
    const FragmentArrays here = {values_.data(), values_.data() + 2 * longest_, values_.data() + longest_,
                                 kinds_.data()};
    for (int k = 0; k < count; ++k) here.clear(k);
    return here;
  }

  // Those of merged_ that are seen.
  void append(int count, const FragmentArrays& from, StripFragments* out) const {
    for (int k = 0; k < count; ++k) {
      if (!(from.weight[k] > 0)) continue;
      out->append(merged_[k], from.kind[k], from.weight[k], from.barycentrics[2 * k], from.barycentrics[2 * k + 1],
                  from.depth[k]);
    }
  }

  const CoverageForward& kernel_;
  const PixelBox* boxes_;
  FragmentBlocks* blocks_;
  const TriangleRecord* records_ = nullptr;
  int64_t item_ = 0, pixels_ = 0, longest_ = 0;
  int32_t width_ = 0, first_row_ = 0, rows_ = 0;
  PairPixels pairs_;
  std::vector<Run> runs_;
  Touched touched_;
  std::vector<uint8_t> front_;  // Touched::front, and room for kLanes more
  std::vector<int64_t> place_;  // [2 pixels] where the next entry of each list goes
  std::vector<Entry> entries_;
  // Of one pixel, for up to longest_ candidates:
  std::unique_ptr<double[]> scratch_;
  std::vector<int32_t> merged_;
  std::vector<double> values_;
  std::vector<FragmentKind> kinds_;
};

}  // namespace diffrender
