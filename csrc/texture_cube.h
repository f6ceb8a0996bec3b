// Directions into a cube map: six square faces +X -X +Y -Y +Z -Z in OpenGL's orientation, filtered across their seams.
#pragma once

#include "cube.h"
#include "texture.h"

namespace diffrender {

// The texel next to a face: across each side (s < 0, s > 1, t < 0, t > 1) lies a face whose column and row are 0, the
// last, k or last - k, where k counts along the side.
DR_HD int32_t texel_across(int32_t face, int32_t side, int32_t k, int32_t size) {
  // One octal digit triple per side: face, column, row, with column and row 0 = first, 1 = last, 2 = k, 3 = last - k.
  constexpr int32_t table[6][4] = {
      {0412, 0502, 0213, 0312},  // +X
      {0512, 0402, 0202, 0303},  // -X
      {0120, 0030, 0530, 0420},  // +Y
      {0131, 0021, 0421, 0531},  // -Y
      {0112, 0002, 0221, 0320},  // +Z
      {0012, 0102, 0230, 0331},  // -Z
  };
  const int32_t entry = table[face][side], last = size - 1;
  const auto place = [&](int32_t rule) { return rule == 0 ? 0 : rule == 1 ? last : rule == 2 ? k : last - k; };
  return ((entry >> 6) * size + place(entry & 7)) * size + place((entry >> 3) & 7);
}

template <class scalar_t>
struct CubeMapping {
  static constexpr int kCoordinates = 3, kDerivatives = 6;
  static constexpr bool kFirstTapTells = false;  // a square across a seam may begin on either face

  const scalar_t* directions;   // [B, H, W, 3]
  const scalar_t* derivatives;  // [B, H, W, 6] (x_X, x_Y, y_X, y_Y, z_X, z_Y) per pixel step, or null
  const scalar_t* bias;         // [B, H, W], or null

  bool repeats_u() const { return false; }
  bool repeats_v() const { return false; }

  DR_HD Vec3<scalar_t> direction(int64_t lookup) const {
    const scalar_t* const d = directions + 3 * lookup;
    return {d[0], d[1], d[2]};
  }

  DR_HD void locate(int64_t first, int n, scalar_t* u, scalar_t* v, int32_t* faces) const {
    for (int i = 0; i < n; ++i) {
      const Vec3<scalar_t> d = direction(first + i);
      const int32_t face = FaceFrame<scalar_t>::face_of(d);
      faces[i] = face;
      u[i] = v[i] = 0;
      if (face < 0) continue;
      const Vec3<scalar_t> f = FaceFrame<scalar_t>::from_world(face, d);
      u[i] = scalar_t(0.5) + scalar_t(0.5) * (f.x / f.z);
      v[i] = scalar_t(0.5) + scalar_t(0.5) * (f.y / f.z);
    }
  }

  // The projection at a direction and its footprint:
  //   s_X = h (a_X - p along_X), t_X = h (b_X - q along_X),   p = a / along, q = b / along, h = 1 / (2 along)
  struct Projection {
    scalar_t p, q, h;
    Vec3<scalar_t> step_X, step_Y;  // the direction's steps in the frame of the face

    DR_HD Footprint<scalar_t> footprint(scalar_t size) const {
      return Footprint<scalar_t>::make(size * h * (step_X.x - p * step_X.z), size * h * (step_Y.x - p * step_Y.z),
                                       size * h * (step_X.y - q * step_X.z), size * h * (step_Y.y - q * step_Y.z), 1);
    }
  };

  DR_HD Projection project(int64_t lookup, int32_t face) const {
    using Frame = FaceFrame<scalar_t>;
    const Vec3<scalar_t> f = Frame::from_world(face, direction(lookup));
    Projection result{f.x / f.z, f.y / f.z, scalar_t(0.5) / f.z, {0, 0, 0}, {0, 0, 0}};
    if (derivatives == nullptr) return result;
    const scalar_t* const d = derivatives + 6 * lookup;
    result.step_X = Frame::from_world(face, {d[0], d[2], d[4]});
    result.step_Y = Frame::from_world(face, {d[1], d[3], d[5]});
    return result;
  }

  DR_HD void measure(int64_t first, int n, const TextureLevels<scalar_t>& levels, int32_t,
                     TextureBlock<scalar_t, true>* block) const {
    for (int i = 0; i < n; ++i) {
      scalar_t level = 0;
      if (derivatives != nullptr && block->face[i] >= 0) {
        level = project(first + i, block->face[i]).footprint(static_cast<scalar_t>(levels.width)).level();
      }
      block->level[i] = bias != nullptr ? level + bias[first + i] : level;
    }
  }

  // Bilinear between texels of one face, or of two faces at a seam; off a corner of the cube there is no texel.
  DR_HD_STEP void linear(const scalar_t* u, const scalar_t* v, const int32_t* face, int n, const LevelSizes& sizes,
                         TextureTaps<scalar_t>* taps) const {
    for (int i = 0; i < n; ++i) {
      const int32_t size = sizes.width[taps->one_level ? 0 : i], last = size - 1;
      const scalar_t scale = static_cast<scalar_t>(size);
      const scalar_t x = u[i] * scale - scalar_t(0.5), y = v[i] * scale - scalar_t(0.5);
      const scalar_t whole_x = std::floor(x), whole_y = std::floor(y);
      const int32_t x0 = static_cast<int32_t>(whole_x), y0 = static_cast<int32_t>(whole_y);
      taps->x[i] = x - whole_x;
      taps->y[i] = y - whole_y;
      taps->slope_x[i] = taps->slope_y[i] = scale;
      taps->column[i] = x0;
      taps->row[i] = face[i] * size + y0;
      const int32_t base = taps->row[i] * size + x0;
      const int32_t offsets[4] = {0, 1, size, size + 1};
      if (face[i] >= 0 && x0 >= 0 && y0 >= 0 && x0 < last && y0 < last) {
        taps->tap[0][i] = base;
        taps->regular[i] = 1;
        continue;
      }
      int32_t any = 0;
      for (int k = 0; k < 4; ++k) {
        const int32_t column = x0 + (k & 1), row = y0 + (k >> 1);
        const bool off_x = column < 0 || column > last, off_y = row < 0 || row > last;
        int32_t tap = base + offsets[k];
        if (face[i] < 0) {
          tap = kTapOutside;
        } else if (off_x && off_y) {
          tap = kTapCorner;
        } else if (off_x) {
          tap = texel_across(face[i], column < 0 ? 0 : 1, row, size);
        } else if (off_y) {
          tap = texel_across(face[i], row < 0 ? 2 : 3, column, size);
        }
        taps->tap[k][i] = tap;
        any |= tap;
      }
      taps->regular[i] = any < 0 ? any : 0;
    }
  }

  // No seams are mended: the texel of the face that the direction lies in.
  DR_HD int32_t nearest(scalar_t u, scalar_t v, int32_t face, int32_t width, int32_t) const {
    if (face < 0) return kTapOutside;
    const int32_t last = width - 1;
    const int32_t x = static_cast<int32_t>(u * static_cast<scalar_t>(width));
    const int32_t y = static_cast<int32_t>(v * static_cast<scalar_t>(width));
    return (face * width + (y < last ? y : last)) * width + (x < last ? x : last);
  }

  // Directions move the position and, because the projection stretches towards the corners, the footprint as well:
  //   s = 1/2 + p / 2:            grad_a += h grad_s, grad_along -= h p grad_s   (likewise b, t, q)
  //   s_X = h (a_X - p along_X):  grad_a_X += h grad_s_X, grad_along_X -= h p grad_s_X
  //     through p (dp/da = 2h, dp/dalong = -2 h p):       grad_p = -h along_X grad_s_X
  //     through h (dh/dalong = -2 h^2):                   grad_along += -2 h (s_X grad_s_X)
  template <bool kMips>
  DR_HD void pull_back(int64_t first, int n, const int32_t* face, const TextureLevels<scalar_t>& levels, int32_t,
                       const scalar_t* grad_s, const scalar_t* grad_t, const scalar_t* grad_level, const scalar_t*,
                       const scalar_t*, scalar_t* grad_directions, scalar_t* grad_derivatives,
                       scalar_t* grad_bias) const {
    for (int i = 0; i < n; ++i) {
      pull_back_one<kMips>(first + i, face[i], levels, grad_s[i], grad_t[i], kMips ? grad_level[i] : scalar_t(0),
                           grad_directions, grad_derivatives);
      if (kMips && grad_bias != nullptr) grad_bias[first + i] = face[i] >= 0 ? grad_level[i] : scalar_t(0);
    }
  }

  template <bool kMips>
  DR_HD void pull_back_one(int64_t lookup, int32_t face, const TextureLevels<scalar_t>& levels, scalar_t grad_s,
                           scalar_t grad_t, scalar_t grad_level, scalar_t* grad_directions,
                           scalar_t* grad_derivatives) const {
    using Frame = FaceFrame<scalar_t>;
    Vec3<scalar_t> to_direction{0, 0, 0}, to_X{0, 0, 0}, to_Y{0, 0, 0};
    if (face >= 0) {
      const Projection at = project(lookup, face);
      Vec3<scalar_t> grad{at.h * grad_s, at.h * grad_t, -at.h * (at.p * grad_s + at.q * grad_t)};
      if (kMips && derivatives != nullptr) {
        const scalar_t size = static_cast<scalar_t>(levels.width), h = at.h, p = at.p, q = at.q;
        scalar_t g[4] = {0, 0, 0, 0};  // to s_X, s_Y, t_X, t_Y
        at.footprint(size).backward(1, grad_level, scalar_t(0), scalar_t(0), g);
        for (int k = 0; k < 4; ++k) g[k] *= size;
        to_X = Frame::to_world(face, {h * g[0], h * g[2], -h * (p * g[0] + q * g[2])});
        to_Y = Frame::to_world(face, {h * g[1], h * g[3], -h * (p * g[1] + q * g[3])});
        const scalar_t grad_p = -h * (at.step_X.z * g[0] + at.step_Y.z * g[1]);
        const scalar_t grad_q = -h * (at.step_X.z * g[2] + at.step_Y.z * g[3]);
        const scalar_t stretch = h * ((at.step_X.x - p * at.step_X.z) * g[0] + (at.step_Y.x - p * at.step_Y.z) * g[1] +
                                      (at.step_X.y - q * at.step_X.z) * g[2] + (at.step_Y.y - q * at.step_Y.z) * g[3]);
        grad.x += 2 * h * grad_p;
        grad.y += 2 * h * grad_q;
        grad.z -= 2 * h * (p * grad_p + q * grad_q + stretch);
      }
      to_direction = Frame::to_world(face, grad);
    }
    if (grad_directions != nullptr) {
      scalar_t* const out = grad_directions + 3 * lookup;
      out[0] = to_direction.x, out[1] = to_direction.y, out[2] = to_direction.z;
    }
    if (kMips && grad_derivatives != nullptr) {
      scalar_t* const out = grad_derivatives + 6 * lookup;
      out[0] = to_X.x, out[1] = to_Y.x, out[2] = to_X.y, out[3] = to_Y.y, out[4] = to_X.z, out[5] = to_Y.z;
    }
  }
};

}  // namespace diffrender
