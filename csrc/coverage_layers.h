// Pixels at the silhouette of a closed surface: its front layer hides all of the back one, without subtracting.
//
// Where every side that cuts the pixel is an edge between two candidates, in opposite directions as in any oriented
// surface, the number of candidates of one winding less that of the other is the same all over the pixel: crossing an
// edge between two of the same winding trades one for the other, and at a silhouette both end on the same side. Let a
// and b = a - n be the numbers of the front and of the back layer at a point. If no two of the front layer overlap, a
// is 0 or 1, so b <= a where n >= 0: the back layer reaches nowhere beyond the front one. If it is nowhere in front of
// it, it is not seen, and each of the front layer shows all that it has within the pixel.
#pragma once

#include "coverage_lists.h"

namespace diffrender {

// Winding of the front layer, as the sign of D, where the candidates are what the introduction demands and n >= 0.
// 0 elsewhere. Whether it is in front is not known then. The partners have been looked for.
DR_HD_CALL int front_layer(const Candidate* candidates, int count) {
  int front = 0, balance = 0;
  double nearest = kLargest<double>;
  int front_at_center = 0;
  for (int i = 0; i < count; ++i) {
    const Candidate& c = candidates[i];
    const int winding = c.record->determinant > 0 ? 1 : -1;
    const double inside = c.distance_inside();
    for (int s = 0; s < c.sides; ++s) {
      if (c.side_name[s] >= kNear) return 0;
    }
    for (int k = 0; k < 3; ++k) {
      if (c.partner[k] == kOpen) return 0;
      if (c.partner[k] == kNoPartner) continue;
      const Candidate& other = candidates[c.partner[k]];
      if ((other.record->determinant > 0) == (winding > 0)) continue;
      // A silhouette: both lie on its inner side, from where it has no depth of its own to where it is seen.
      const Line behind = c.depth.minus(other.depth);
      const double rise = behind.x * c.side[k].x + behind.y * c.side[k].y;
      const int seen = rise > 0 ? -winding : (rise < 0 ? winding : 0);
      if (seen == 0 || seen == -front) return 0;
      front = seen;
    }
    if (magnitude(inside) < kOnEdge) return 0;
    if (inside < 0) continue;
    balance += winding;
    if (c.depth.c < nearest) {
      nearest = c.depth.c;
      front_at_center = winding;
    }
  }
  if (front == 0) front = front_at_center;
  return front * balance >= 0 ? front : 0;
}

// What the pixel shows of candidate i of the front layer, less what others of the layer hide. False where the back
// layer hides some of it too. `whole` becomes false where anything has been taken away from it and not all.
DR_HD_CALL bool front_moments(const PixelCandidates& pixel, int i, Piece* stack, Moments* m, bool* whole) {
  const Candidate* const candidates = pixel.list;
  const bool side = candidates[i].record->determinant > 0;
  // Across an edge of it lies what does not overlap it, or is behind it.
  const auto is_partner = [&](int j) {
    const int32_t* const partner = candidates[i].partner;
    return j == partner[0] || j == partner[1] || j == partner[2];
  };
  const auto is_behind = [&](int j) { return (candidates[j].record->determinant > 0) != side; };
  bool result = true;
  for_each_visible_piece(
      pixel, i, stack, [&](int j) { return is_behind(j) || is_partner(j); },
      [&](const Piece& piece) {
        add_moments(piece, m);
        for (int k = 0; k < piece.count; ++k) {
          *whole = *whole && (piece.label[k] == kPixelSide || piece.label[k] >> 4 == i);
        }
        Piece* const free = stack + 8 * pixel.count;  // the last places, see stack_bound
        for (int j = 0; j < pixel.count && result; ++j) {
          int top = 0;
          if (!is_behind(j) || is_partner(j)) continue;
          result = subtract(candidates, i, j, piece, free, &top) && top == 0;
        }
      });
  return result;
}

}  // namespace diffrender
