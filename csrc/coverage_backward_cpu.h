// Derivative of coverage on the CPU: which pixel goes which way.
#pragma once

#include "coverage_lanes.h"

namespace diffrender {

// Pixels for which one fragment stands: CoverageBackward::at_middle for their centres, which do not move.
class WholePixels {
 public:
  explicit WholePixels(const CoverageBackward& kernel) : kernel_(kernel) {}

  void add(TriangleSums::Slot& slot, int32_t column, int32_t row, int64_t k) {
    queue_.add(kernel_, slot, column, row, k);
    if (queue_.count == kRoom) finish();
  }

  [[gnu::noinline]] void finish() {
    queue_.pad();
    for (int first = 0; first < queue_.count; first += 4) {
      FourGradients gradients;
      FourFragments::load(queue_, first).at_middle(Four{}, Four{}, &gradients);
      gradients.add_to(queue_.slot + first, [&](int l) { return first + l < queue_.count; });
    }
    queue_.count = 0;
  }

 private:
  static constexpr int kRoom = 16;

  const CoverageBackward& kernel_;
  FragmentQueue<kRoom> queue_;
};

// Triangles that do not overlap others of their pixels: CoverageBackward::candidate for several at once.
class ApartFragments {
 public:
  ApartFragments(const CoverageBackward& kernel, TriangleSums* sums, const CoverageScratch& scratch)
      : kernel_(kernel), sums_(sums), scratch_(scratch) {}

  // Fragments k ... k + count - 1 of a pixel. False where they have to be clipped.
  bool add(const CoverageLists::PixelPlace& at, int64_t k, int64_t count) {
    const CoverageLists& lists = kernel_.lists;
    if (!kernel_.any_gradient(k, count)) return true;
    for (int64_t i = k; i < k + count; ++i) {
      if (!lists.has(i)) return false;
      const TriangleRecord& record = sums_->of(lists.triangles[i]).record;
      if (record.valid == 0 || record.crosses_depth != 0) return false;
    }
    const PixelSquare square = lists.square(at);
    for (int64_t i = k; i < k + count; ++i) {
      fragment_[queue_.count] = {at, i};
      square_[0][queue_.count] = square.left;
      square_[1][queue_.count] = square.right;
      square_[2][queue_.count] = square.top;
      square_[3][queue_.count] = square.bottom;
      queue_.add(kernel_, sums_->of(lists.triangles[i]), at.column, at.row, i);
      if (queue_.count == kRoom) finish();
    }
    return true;
  }

  [[gnu::noinline]] void finish() {
    queue_.pad();
    for (int first = 0; first < queue_.count; first += 4) {
      const FourFragments own = FourFragments::load(queue_, first);
      const auto border = [&](int n) -> Four { return load_lanes<FourInMemory>(square_[n] + first); };
      const PixelSquareOf<Four> square = {border(0), border(1), border(2), border(3)};
      const FourPieces piece = FourPieces::make(own.side, square);
      FourGradients gradients;
      const FourLine f = own.integrand(piece.moments, square.area(), &gradients);
      for (int n = 0; n < 3; ++n) {
        const FourLine along = CoverageBackward::along_edge(piece.x[n][0], piece.y[n][0], piece.x[n][1], piece.y[n][1],
                                                            piece.length[n], f);
        own.add_edge(n, along, piece.has_edge[n], &gradients);
      }
      const FourMask is_large = piece.moments.area >= kLeastArea;
      gradients.add_to(queue_.slot + first, [&](int l) { return first + l < queue_.count && is_large[l] != 0; });
      for (int i = first; i < std::min(first + 4, queue_.count); ++i) {
        if (is_large[i - first] == 0) clip(fragment_[i]);
      }
    }
    queue_.count = 0;
  }

 private:
  static constexpr int kRoom = 16;
  // Smaller parts are clipped, as in the forward pass, so that both see corners rounded in the same way: of a part as
  // narrow as 1e-11 pixels the fifth digit of the area depends on it.
  static constexpr double kLeastArea = 1e-5;

  struct Fragment {
    CoverageLists::PixelPlace at;
    int64_t k;
  };

  void clip(const Fragment& fragment) {
    const int32_t triangle = kernel_.lists.triangles[fragment.k];
    Candidate c;
    if (!c.make(sums_->of(triangle).record, fragment.at.column, fragment.at.row)) return;
    kernel_.lists.name(triangle, 0, &c);
    scratch_.gradients[0] = CandidateGradient{};
    kernel_.candidate(fragment.k, {&c, 1, true, kernel_.lists.square(fragment.at)}, 0, false, scratch_);
    sums_->add(fragment.at.item, fragment.at.column, fragment.at.row, c, scratch_.gradients[0]);
  }

  const CoverageBackward& kernel_;
  TriangleSums* sums_;
  const CoverageScratch scratch_;
  FragmentQueue<kRoom> queue_;
  Fragment fragment_[kRoom];
  double square_[4][kRoom] = {};
};

// CoverageBackward::star for several pixels at once.
class StarPixels {
 public:
  static constexpr int kMost = 4;  // fragments of a pixel that are taken

  StarPixels(const CoverageBackward& kernel, TriangleSums* sums, ApartFragments* apart)
      : kernel_(kernel), sums_(sums), apart_(apart), square_(PixelSquare::make(1, 1, 3, 3)) {}

  // Fragments k ... k + count - 1 of a pixel, of which number `center` is at its centre. False where they are something
  // else, or at the frame's own border.
  bool add(const CoverageLists::PixelPlace& at, int64_t k, int count, int center) {
    const CoverageLists& lists = kernel_.lists;
    if (at.column == 0 || at.column + 1 == lists.viewport.width || at.row == 0 || at.row + 1 == lists.viewport.height)
      return false;
    if (!kernel_.any_gradient(k, count)) return true;
    TriangleSums::Slot* slot[kMost];
    for (int i = 0; i < count; ++i) {
      if (!lists.has(k + i)) return false;
      slot[i] = &sums_->of(lists.triangles[k + i]);
      if (slot[i]->record.valid == 0 || slot[i]->record.crosses_depth != 0) return false;
    }
    const int32_t own = centers_.count;
    for (int i = 0; i < count; ++i) {
      if (i != center) owner_[others_.count] = own;
      (i == center ? centers_ : others_).add(kernel_, *slot[i], at.column, at.row, k + i);
    }
    pixel_[own] = {at, k, count};
    if (others_.count > kRoom - kMost) finish();
    return true;
  }

  [[gnu::noinline]] void finish() {
    centers_.pad();
    others_.pad();
    for (int i = others_.count; i % 4 != 0; ++i) owner_[i] = owner_[i - 1];
    const Moments all = square_.moments();
    for (int i = 0; i < centers_.count; ++i) {
      simple_[i] = true;
      rest_[0][i] = all.area;
      rest_[1][i] = all.x;
      rest_[2][i] = all.y;
    }
    for (int g = 0; 4 * g < others_.count; ++g) take_half(g);
    for (int first = 0; first < centers_.count; first += 4) add_center(first);
    for (int g = 0; 4 * g < others_.count; ++g) add_other(g);
    for (int i = 0; i < centers_.count; ++i) {
      // Not refused: our own `add` has checked the same.
      if (!simple_[i]) apart_->add(pixel_[i].at, pixel_[i].first, pixel_[i].count);
    }
    centers_.count = 0;
    others_.count = 0;
  }

 private:
  static constexpr int kRoom = 32;

  struct Pixel {
    CoverageLists::PixelPlace at;
    int64_t first;
    int count;
  };

  // What four of the others take of their pixels.
  DR_HD void take_half(int g) {
    const FourFragments& own = own_[g] = FourFragments::load(others_, 4 * g);
    FourLine line = {Four{}, Four{}, Four{}};
    FourMask cuts = {};
    for (int n = 0; n < 3; ++n) {
      const FourLine& side = own.side[n];
      const FourMask here = side.smallest() < -kSideTolerance;
      line = {here ? side.x : line.x, here ? side.y : line.y, here ? side.c : line.c};
      cuts -= here;
      cut_[g][n] = here;
    }
    const Four zero = {};
    half_[g] = half_square(
        PixelSquareOf<Four>{zero + square_.left, zero + square_.right, zero + square_.top, zero + square_.bottom},
        line);
    for (int l = 0; l < std::min(4, others_.count - 4 * g); ++l) {
      const int32_t owner = owner_[4 * g + l];
      simple_[owner] = simple_[owner] && cuts[l] == 1;
      rest_[0][owner] -= half_[g].moments.area[l];
      rest_[1][owner] -= half_[g].moments.x[l];
      rest_[2][owner] -= half_[g].moments.y[l];
    }
  }

  // The ones at the centres have what the others leave.
  DR_HD void add_center(int first) {
    const FourFragments own = FourFragments::load(centers_, first);
    const MomentsOf<Four> rest = {load_lanes<FourInMemory>(rest_[0] + first),
                                  load_lanes<FourInMemory>(rest_[1] + first),
                                  load_lanes<FourInMemory>(rest_[2] + first)};
    FourGradients gradients;
    const FourLine f = own.integrand(rest, square_.area(), &gradients);
    store_lanes<FourInMemory>(integrand_[0] + first, f.x);
    store_lanes<FourInMemory>(integrand_[1] + first, f.y);
    store_lanes<FourInMemory>(integrand_[2] + first, f.c);
    for (int l = 0; l < 4; ++l)
      simple_[first + l] = simple_[first + l] && !(rest_[0][first + l] < CoverageLists::kLeastRest);
    gradients.add_to(centers_.slot + first, [&](int l) { return first + l < centers_.count && simple_[first + l]; });
  }

  // The integral along the edges between the two, over the jump.
  DR_HD void add_other(int g) {
    const FourFragments& own = own_[g];
    const HalfSquareOf<Four>& half = half_[g];
    const int32_t* const owner = owner_ + 4 * g;
    const auto of_owner = [&](const double* values) {
      return Four{values[owner[0]], values[owner[1]], values[owner[2]], values[owner[3]]};
    };
    const FourLine f = {of_owner(integrand_[0]), of_owner(integrand_[1]), of_owner(integrand_[2])};
    FourGradients gradients;
    const FourLine jump = own.integrand(half.moments, square_.area(), &gradients).minus(f);
    const FourLine along = CoverageBackward::along_edge(half.x[0], half.y[0], half.x[1], half.y[1], jump);
    for (int n = 0; n < 3; ++n) own.add_edge(n, along, cut_[g][n], &gradients);
    const auto wanted = [&](int l) {
      return 4 * g + l < others_.count && simple_[owner[l]] && half.moments.area[l] >= kSmallestArea;
    };
    gradients.add_to(others_.slot + 4 * g, wanted);
  }

  const CoverageBackward& kernel_;
  TriangleSums* sums_;
  ApartFragments* apart_;
  const PixelSquare square_;
  FragmentQueue<kRoom> centers_, others_;
  int32_t owner_[kRoom];  // of each of the others: the place of its pixel's centre
  Pixel pixel_[kRoom];
  // Places beyond the last pixel are read as well, in lanes.
  bool simple_[kRoom] = {};
  double rest_[3][kRoom] = {};  // area, x, y
  double integrand_[3][kRoom];
  FourFragments own_[kRoom / 4];
  HalfSquareOf<Four> half_[kRoom / 4];
  FourMask cut_[kRoom / 4][3];
};

// The backward kernel on the CPU: one scratch per range of pixels.
struct CoverageBackwardCpu {
  CoverageBackward kernel;
  CoverageSetup setup;
  int64_t longest;

  void operator()(int64_t begin, int64_t end, const Sink<double>& sink) const {
    const CoverageLists& lists = kernel.lists;
    const int64_t fragments = lists.offsets[end] - lists.offsets[begin];
    if (fragments == 0) return;
    const std::unique_ptr<double[]> memory(new double[CoverageScratch::bytes(longest) / 8 + 1]);
    const auto scratch = CoverageScratch::at(reinterpret_cast<uint8_t*>(memory.get()), longest);
    TriangleSums sums(kernel, setup, sink, fragments);
    WholePixels whole(kernel);
    ApartFragments apart(kernel, &sums, scratch);
    StarPixels stars(kernel, &sums, &apart);
    const auto finish = [&] {
      whole.finish();
      stars.finish();
      apart.finish();
      sums.finish();
    };
    const bool has_middles = kernel.grad_barycentrics.given() || kernel.grad_depth.given();
    const int64_t width = lists.viewport.width;
    for (int64_t p = begin; p < end;) {
      auto at = lists.place(p);
      if (at.row == 0 && at.column == 0) finish();
      sums.begin_item(at.item);
      const int64_t row = p - at.column;
      for (const int64_t stop = std::min(end, row + width); p < stop; ++p) {
        const int64_t k = lists.offsets[p], count = lists.offsets[p + 1] - k;
        if (count == 0) continue;
        at.column = static_cast<int32_t>(p - row);
        if (count == 1 && kernel.kinds[k] == FragmentKind::whole && lists.has(k)) {
          if (has_middles) whole.add(sums.of(lists.triangles[k]), at.column, at.row, k);
          continue;
        }
        bool is_apart = false;
        int64_t center = -1;
        for (int64_t i = k; i < k + count; ++i) {
          is_apart = is_apart || kernel.kinds[i] == FragmentKind::apart;
          center = kernel.kinds[i] == FragmentKind::center ? i - k : center;
        }
        if (center >= 0 && count >= 2 && count <= StarPixels::kMost &&
            stars.add(at, k, static_cast<int>(count), static_cast<int>(center))) {
          continue;
        }
        if ((is_apart || center >= 0) && apart.add(at, k, count)) continue;
        kernel.pixel(p, scratch, sums);
      }
    }
    finish();
  }
};

}  // namespace diffrender
