// Host side of mip building and its backward, for both devices. Levels 1 ... last lie one after the other.
#include "mips.h"

#include "core/launch.h"
#include "core/tensor.h"

namespace diffrender {
namespace {

// Sizes of a texture (B, F, H, W, C) and its levels.
struct MipSizes {
  int64_t batch, faces, height, width, channels;

  int64_t level_height(int64_t level) const { return std::max<int64_t>(height >> level, 1); }
  int64_t level_width(int64_t level) const { return std::max<int64_t>(width >> level, 1); }
  int64_t level_size(int64_t level) const { return faces * level_height(level) * level_width(level) * channels; }
  MipRows rows(int64_t level, const Tensor& like) const {
    return {static_cast<int32_t>(faces), static_cast<int32_t>(level_height(level)),
            static_cast<int32_t>(level_width(level)), like.is_cuda()};
  }
  // Elements of an item before `level` (1 or more) in the packed levels.
  int64_t offset(int64_t level) const {
    int64_t sum = 0;
    for (int64_t l = 1; l < level; ++l) sum += level_size(l);
    return sum;
  }
};

Tensor build_mips(const Tensor& input, int64_t last) {
  const DeviceScope device(input);
  const Tensor texture = as_contiguous(input);
  DR_CHECK(texture.dim() == 5, "build_mips: texture must have shape (B, F, H, W, C)");
  const MipSizes sizes{texture.size(0), texture.size(1), texture.size(2), texture.size(3), texture.size(4)};
  DR_CHECK(sizes.height > 0 && sizes.width > 0 && last >= 0 && last < 32, "build_mips: wrong size");
  const int64_t texels = MipSizes{1, sizes.faces, sizes.height, sizes.width, 1}.offset(last + 1);
  const int64_t per_item = texels * sizes.channels;
  const Tensor mips = new_empty(texture, {sizes.batch, texels, sizes.channels});
  if (mips.numel() == 0) return mips;
  dispatch_floating(texture, [&](auto zero) {
    using scalar_t = decltype(zero);
    scalar_t* const packed = mutable_data<scalar_t>(mips);
    for (int64_t level = 1; level <= last; ++level) {
      const bool first = level == 1;
      launch(texture, sizes.rows(level, texture).count(sizes.batch),
             MipForward<scalar_t>{first ? data<scalar_t>(texture) : packed + sizes.offset(level - 1),
                                  packed + sizes.offset(level), first ? sizes.level_size(0) : per_item, per_item,
                                  static_cast<int32_t>(sizes.level_height(level - 1)),
                                  static_cast<int32_t>(sizes.level_width(level - 1)),
                                  static_cast<int32_t>(sizes.channels), sizes.rows(level, texture)});
    }
  });
  return mips;
}

// Gradient to the texture (B, F, H, W, C) from that of all levels.
Tensor build_mips_backward(const Tensor& grad_output, int64_t faces, int64_t height, int64_t width, int64_t last) {
  const DeviceScope device(grad_output);
  DR_CHECK(grad_output.dim() == 3, "build_mips: the gradient must have shape (B, N, C)");
  const MipSizes sizes{grad_output.size(0), faces, height, width, grad_output.size(2)};
  const Tensor grad = new_zeros(grad_output, {sizes.batch, faces, height, width, sizes.channels});
  if (last == 0 || grad.numel() == 0) return grad;
  const Tensor own = as_contiguous(grad_output);
  const Tensor sums = new_empty(own, {sizes.batch, own.size(1), sizes.channels});  // of every level but the last
  const int64_t per_item = sizes.offset(last + 1);
  DR_CHECK(own.numel() == sizes.batch * per_item, "build_mips: the gradient has another size than the levels");
  dispatch_floating(grad, [&](auto zero) {
    using scalar_t = decltype(zero);
    const scalar_t* const given = data<scalar_t>(own);
    scalar_t* const summed = mutable_data<scalar_t>(sums);
    for (int64_t level = last; level >= 1; --level) {
      const int64_t finer = level - 1, at = sizes.offset(level), finer_at = sizes.offset(finer);
      const bool is_base = finer == 0;
      launch(grad, sizes.rows(finer, grad).count(sizes.batch),
             MipBackward<scalar_t>{level == last ? given + at : summed + at, is_base ? nullptr : given + finer_at,
                                   is_base ? mutable_data<scalar_t>(grad) : summed + finer_at, per_item, per_item,
                                   is_base ? sizes.level_size(0) : per_item, static_cast<int32_t>(sizes.channels),
                                   sizes.rows(finer, grad)});
    }
  });
  return grad;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(diffrender, m) {
  m.def("build_mips(Tensor texture, int last_level) -> Tensor");
  m.def("build_mips_backward(Tensor grad_mips, int faces, int height, int width, int last_level) -> Tensor");
}

DR_REGISTER("build_mips", &build_mips)
DR_REGISTER("build_mips_backward", &build_mips_backward)

}  // namespace diffrender
