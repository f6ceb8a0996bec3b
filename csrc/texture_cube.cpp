// Host side of cube map sampling and its backward, for both devices.
#include "texture_cube.h"

#include "texture_host.h"

namespace diffrender {
namespace {

// Contiguous inputs of one call.
struct CubeCall {
  Tensor texture, directions;                     // (B or 1, 6, S, S, C), (B, H, W, 3)
  std::optional<Tensor> mips, derivatives, bias;  // (B or 1, N, C), (B, H, W, 6), (B, H, W)
  TextureFilter filter;
  TextureShape shape;

  [[gnu::cold]] CubeCall(const Tensor& input, const std::optional<Tensor>& packed_mips, const Tensor& lookups,
                         const std::optional<Tensor>& steps, const std::optional<Tensor>& level_bias,
                         int64_t filter_mode, int64_t last_level)
      : texture(as_contiguous(input)),
        directions(as_contiguous(lookups)),
        mips(dense(packed_mips)),
        derivatives(dense(steps)),
        bias(dense(level_bias)),
        filter(static_cast<TextureFilter>(filter_mode)) {
    DR_CHECK(texture.dim() == 5 && texture.size(1) == 6 && texture.size(2) == texture.size(3) && texture.size(2) > 0,
             "texture_cube: texture must have shape (B, 6, S, S, C)");
    DR_CHECK(directions.dim() == 4 && directions.size(3) == 3, "texture_cube: directions must have shape (B, H, W, 3)");
    DR_CHECK(texture.size(0) == 1 || texture.size(0) == directions.size(0), "texture_cube: batch sizes differ");
    DR_CHECK(last_level >= 0 && last_level < kMaxTextureLevels, "texture_cube: too many levels");
    DR_CHECK(filter_mode >= 0 && filter_mode < 4, "texture_cube: unknown mode");
    shape = {texture.size(0), 6, texture.size(2), texture.size(3), texture.size(4), last_level};
    for (const auto* other : {&mips, &derivatives, &bias}) {
      DR_CHECK(!other->has_value() || (*other)->scalar_type() == texture.scalar_type(), "texture_cube: types differ");
    }
    DR_CHECK(directions.scalar_type() == texture.scalar_type(), "texture_cube: types differ");
    DR_CHECK(!mips || mips->numel() == shape.batch * shape.mip_texels() * shape.channels, "texture_cube: size of mips");
    DR_CHECK(!derivatives || derivatives->numel() == 6 * count(), "texture_cube: size of derivatives");
    DR_CHECK(!bias || bias->numel() == count(), "texture_cube: size of bias");
  }

  static std::optional<Tensor> dense(const std::optional<Tensor>& tensor) {
    return tensor.has_value() ? std::optional<Tensor>(as_contiguous(*tensor)) : std::nullopt;
  }

  int64_t count() const { return directions.numel() / 3; }

  // Calls f(sampler) with or without mip levels.
  template <class scalar_t, class F>
  void with_sampler(const F& f) const {
    using Mapping = CubeMapping<scalar_t>;
    const Mapping mapping{data<scalar_t>(directions), data_or_null<scalar_t>(derivatives),
                          data_or_null<scalar_t>(bias)};
    const auto levels = texture_levels<scalar_t>(shape, texture, mips ? &*mips : nullptr);
    const int64_t per_item = directions.size(1) * directions.size(2);
    if (filter == TextureFilter::mip_nearest || filter == TextureFilter::mip_linear) {
      f(TextureSampler<scalar_t, Mapping, true>{mapping, levels, per_item, filter, 1});
    } else {
      f(TextureSampler<scalar_t, Mapping, false>{mapping, levels, per_item, filter, 1});
    }
  }
};

Tensor texture_cube(const Tensor& input, const std::optional<Tensor>& mips, const Tensor& directions,
                    const std::optional<Tensor>& derivatives, const std::optional<Tensor>& bias, int64_t filter,
                    int64_t last) {
  const DeviceScope device(input);
  const CubeCall call(input, mips, directions, derivatives, bias, filter, last);
  const Tensor values =
      new_empty(call.texture, {directions.size(0), directions.size(1), directions.size(2), call.shape.channels});
  dispatch_floating(call.texture, [&](auto zero) {
    call.with_sampler<decltype(zero)>([&](const auto& sampler) { texture_forward(sampler, values, call.count()); });
  });
  return values;
}

// Gradients to texture, mips, directions, derivatives and bias; one that is not needed comes back empty.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> texture_cube_backward(
    const Tensor& input, const std::optional<Tensor>& mips, const Tensor& directions,
    const std::optional<Tensor>& derivatives, const std::optional<Tensor>& bias, const Tensor& grad_output,
    int64_t filter, int64_t last, bool need_texture, bool need_mips, bool need_directions, bool need_derivatives,
    bool need_bias, int64_t algorithm) {
  const DeviceScope device(input);
  const CubeCall call(input, mips, directions, derivatives, bias, filter, last);
  const Tensor grad_values = as_contiguous(grad_output);
  DR_CHECK(grad_values.numel() == call.count() * call.shape.channels, "texture_cube: the gradient has another size");
  const int64_t b = directions.size(0), h = directions.size(1), w = directions.size(2);
  const auto& shape = call.shape;
  const Tensor& like = call.texture;
  need_mips = need_mips && call.mips.has_value();
  const Tensor grad_texture =
      new_empty(like, {need_texture ? shape.batch : 0, 6, shape.height, shape.width, shape.channels});
  const Tensor grad_mips = new_empty(like, {need_mips ? shape.batch : 0, shape.mip_texels(), shape.channels});
  const Tensor grad_directions = new_empty(like, {need_directions ? b : 0, h, w, 3});
  const Tensor grad_derivatives = new_empty(like, {need_derivatives ? b : 0, h, w, 6});
  const Tensor grad_bias = new_empty(like, {need_bias ? b : 0, h, w});
  dispatch_floating(like, [&](auto zero) {
    using scalar_t = decltype(zero);
    call.with_sampler<scalar_t>([&](const auto& sampler) {
      const auto pointer = [](bool needed, const Tensor& grad) {
        return needed ? mutable_data<scalar_t>(grad) : nullptr;
      };
      if (need_directions || need_derivatives || need_bias) {
        texture_backward_coordinates(sampler, grad_values, call.count(), pointer(need_directions, grad_directions),
                                     pointer(need_derivatives, grad_derivatives), pointer(need_bias, grad_bias));
      }
      if (need_texture || need_mips) {
        texture_backward_texels(sampler, shape, grad_values, call.count(), need_texture ? &grad_texture : nullptr,
                                need_mips ? &grad_mips : nullptr, static_cast<ScatterAlgorithm>(algorithm));
      }
    });
  });
  return {grad_texture, grad_mips, grad_directions, grad_derivatives, grad_bias};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(diffrender, m) {
  m.def(
      "texture_cube(Tensor texture, Tensor? mips, Tensor directions, Tensor? derivatives, Tensor? bias, int filter, "
      "int last_level) -> Tensor");
  m.def(
      "texture_cube_backward(Tensor texture, Tensor? mips, Tensor directions, Tensor? derivatives, Tensor? bias, "
      "Tensor grad_values, int filter, int last_level, bool need_texture, bool need_mips, bool need_directions, "
      "bool need_derivatives, bool need_bias, int scatter) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
}

DR_REGISTER("texture_cube", &texture_cube)
DR_REGISTER("texture_cube_backward", &texture_cube_backward)

}  // namespace diffrender
