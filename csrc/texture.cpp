// Host side of 2-D texture sampling and its backward, for both devices.
#include "texture_host.h"
#include "texture_pad_cpu.h"
#include "texture_plane.h"
#include "texture_second.h"

namespace diffrender {
namespace {

// Contiguous inputs of one call.
struct PlaneCall {
  Tensor texture, texcoords;                      // (B or 1, H, W, C), (B, H, W, 2)
  std::optional<Tensor> mips, derivatives, bias;  // (B or 1, N, C), (B, H, W, 4), (B, H, W)
  TextureFilter filter;
  TextureWrap wrap_u, wrap_v;
  int64_t anisotropy;
  TextureShape shape;

  [[gnu::cold]] PlaneCall(const Tensor& input, const std::optional<Tensor>& packed_mips, const Tensor& coordinates,
                          const std::optional<Tensor>& steps, const std::optional<Tensor>& level_bias,
                          int64_t filter_mode, int64_t u_mode, int64_t v_mode, int64_t last_level, int64_t taps)
      : texture(as_contiguous(input)),
        texcoords(as_contiguous(coordinates)),
        mips(dense(packed_mips)),
        derivatives(dense(steps)),
        bias(dense(level_bias)),
        filter(static_cast<TextureFilter>(filter_mode)),
        wrap_u(static_cast<TextureWrap>(u_mode)),
        wrap_v(static_cast<TextureWrap>(v_mode)),
        anisotropy(taps) {
    DR_CHECK(texture.dim() == 4, "texture: texture must have shape (B, H, W, C)");
    DR_CHECK(texcoords.dim() == 4 && texcoords.size(3) == 2, "texture: texcoords must have shape (B, H, W, 2)");
    DR_CHECK(texture.size(0) == 1 || texture.size(0) == texcoords.size(0), "texture: batch sizes differ");
    DR_CHECK(texture.size(1) > 0 && texture.size(2) > 0, "texture: texture has no texels");
    DR_CHECK(last_level >= 0 && last_level < kMaxTextureLevels, "texture: too many levels");
    DR_CHECK(taps >= 1 && filter_mode >= 0 && filter_mode < 4 && u_mode >= 0 && u_mode < 4 && v_mode >= 0 && v_mode < 4,
             "texture: unknown mode");
    shape = {texture.size(0), 1, texture.size(1), texture.size(2), texture.size(3), last_level};
    const int64_t lookups = texcoords.numel() / 2;
    for (const auto* other : {&mips, &derivatives, &bias}) {
      DR_CHECK(!other->has_value() || (*other)->scalar_type() == texture.scalar_type(), "texture: types differ");
    }
    DR_CHECK(texcoords.scalar_type() == texture.scalar_type(), "texture: types differ");
    DR_CHECK(!mips || mips->numel() == shape.batch * shape.mip_texels() * shape.channels, "texture: size of mips");
    DR_CHECK(!derivatives || derivatives->numel() == 4 * lookups, "texture: size of derivatives");
    DR_CHECK(!bias || bias->numel() == lookups, "texture: size of bias");
  }

  static std::optional<Tensor> dense(const std::optional<Tensor>& tensor) {
    return tensor.has_value() ? std::optional<Tensor>(as_contiguous(*tensor)) : std::nullopt;
  }

  int64_t lookups() const { return texcoords.numel() / 2; }
  bool uses_mips() const { return filter == TextureFilter::mip_nearest || filter == TextureFilter::mip_linear; }

  // The same sampler on padded copies of small levels, which `storage` keeps.
  template <class Sampler>
  Sampler padded(const Sampler& sampler, std::optional<Tensor>* storage) const {
    Sampler result = sampler;
    if (filter != TextureFilter::nearest) {
      result.levels = pad_small_levels(sampler.levels, shape, wrap_u, wrap_v, lookups(), texture, storage);
    }
    return result;
  }

  // Calls f(sampler) with or without mip levels.
  template <class scalar_t, class F>
  void with_sampler(const F& f) const {
    const PlaneMapping<scalar_t> mapping{data<scalar_t>(texcoords), data_or_null<scalar_t>(derivatives),
                                         data_or_null<scalar_t>(bias), wrap_u, wrap_v};
    const auto levels = texture_levels<scalar_t>(shape, texture, mips ? &*mips : nullptr);
    const int64_t per_item = texcoords.size(1) * texcoords.size(2);
    const int32_t taps = static_cast<int32_t>(anisotropy);
    if (uses_mips()) {
      f(TextureSampler<scalar_t, PlaneMapping<scalar_t>, true>{mapping, levels, per_item, filter, taps});
    } else {
      f(TextureSampler<scalar_t, PlaneMapping<scalar_t>, false>{mapping, levels, per_item, filter, 1});
    }
  }
};

Tensor texture(const Tensor& input, const std::optional<Tensor>& mips, const Tensor& texcoords,
               const std::optional<Tensor>& derivatives, const std::optional<Tensor>& bias, int64_t filter,
               int64_t wrap_u, int64_t wrap_v, int64_t last, int64_t anisotropy) {
  const DeviceScope device(input);
  const PlaneCall call(input, mips, texcoords, derivatives, bias, filter, wrap_u, wrap_v, last, anisotropy);
  const Tensor values =
      new_empty(call.texture, {texcoords.size(0), texcoords.size(1), texcoords.size(2), call.shape.channels});
  dispatch_floating(call.texture, [&](auto zero) {
    call.with_sampler<decltype(zero)>([&](const auto& sampler) {
      std::optional<Tensor> storage;
      texture_forward(call.padded(sampler, &storage), values, call.lookups());
    });
  });
  return values;
}

// Gradients to texture, mips, texcoords, derivatives and bias; one that is not needed comes back empty.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> texture_backward(
    const Tensor& input, const std::optional<Tensor>& mips, const Tensor& texcoords,
    const std::optional<Tensor>& derivatives, const std::optional<Tensor>& bias, const Tensor& grad_output,
    int64_t filter, int64_t wrap_u, int64_t wrap_v, int64_t last, int64_t anisotropy, bool need_texture, bool need_mips,
    bool need_texcoords, bool need_derivatives, bool need_bias, int64_t algorithm) {
  const DeviceScope device(input);
  const PlaneCall call(input, mips, texcoords, derivatives, bias, filter, wrap_u, wrap_v, last, anisotropy);
  const Tensor grad_values = as_contiguous(grad_output);
  DR_CHECK(grad_values.numel() == call.lookups() * call.shape.channels, "texture: the gradient has another size");
  const int64_t b = texcoords.size(0), h = texcoords.size(1), w = texcoords.size(2);
  const auto& shape = call.shape;
  const Tensor& like = call.texture;
  need_mips = need_mips && call.mips.has_value();
  const Tensor grad_texture =
      new_empty(like, {need_texture ? shape.batch : 0, shape.height, shape.width, shape.channels});
  const Tensor grad_mips = new_empty(like, {need_mips ? shape.batch : 0, shape.mip_texels(), shape.channels});
  const Tensor grad_texcoords = new_empty(like, {need_texcoords ? b : 0, h, w, 2});
  const Tensor grad_derivatives = new_empty(like, {need_derivatives ? b : 0, h, w, 4});
  const Tensor grad_bias = new_empty(like, {need_bias ? b : 0, h, w});
  dispatch_floating(like, [&](auto zero) {
    using scalar_t = decltype(zero);
    call.with_sampler<scalar_t>([&](const auto& sampler) {
      const auto pointer = [](bool needed, const Tensor& grad) {
        return needed ? mutable_data<scalar_t>(grad) : nullptr;
      };
      if (need_texcoords || need_derivatives || need_bias) {
        std::optional<Tensor> storage;
        texture_backward_coordinates(call.padded(sampler, &storage), grad_values, call.lookups(),
                                     pointer(need_texcoords, grad_texcoords),
                                     pointer(need_derivatives, grad_derivatives), pointer(need_bias, grad_bias));
      }
      if (need_texture || need_mips) {
        texture_backward_texels(sampler, shape, grad_values, call.lookups(), need_texture ? &grad_texture : nullptr,
                                need_mips ? &grad_mips : nullptr, static_cast<ScatterAlgorithm>(algorithm));
      }
    });
  });
  return {grad_texture, grad_mips, grad_texcoords, grad_derivatives, grad_bias};
}

// Second derivative of the linear filter without mips: gradients to grad_values, texture and texcoords of
// <cotangent, grad_texcoords>.
std::tuple<Tensor, Tensor, Tensor> texture_backward_twice(const Tensor& input, const Tensor& texcoords,
                                                          const Tensor& grad_output, const Tensor& cotangent_texcoords,
                                                          int64_t wrap_u, int64_t wrap_v, int64_t algorithm) {
  const DeviceScope device(input);
  const PlaneCall call(input, {}, texcoords, {}, {}, static_cast<int64_t>(TextureFilter::linear), wrap_u, wrap_v, 0, 1);
  const Tensor grad_values = as_contiguous(grad_output), cotangent = as_contiguous(cotangent_texcoords);
  DR_CHECK(grad_values.numel() == call.lookups() * call.shape.channels, "texture: the gradient has another size");
  DR_CHECK(cotangent.numel() == 2 * call.lookups(), "texture: the cotangent has another size");
  const int64_t b = texcoords.size(0), h = texcoords.size(1), w = texcoords.size(2);
  const auto& shape = call.shape;
  const Tensor to_grad = new_empty(call.texture, {b, h, w, shape.channels});
  const Tensor to_texture = new_empty(call.texture, {shape.batch, shape.height, shape.width, shape.channels});
  const Tensor to_texcoords = new_empty(call.texture, {b, h, w, 2});
  const Tensor sums = new_zeros(to_texture, {to_texture.numel()}, ScalarType::Double);
  dispatch_floating(call.texture, [&](auto zero) {
    using scalar_t = decltype(zero);
    using Mapping = PlaneMapping<scalar_t>;
    call.with_sampler<scalar_t>([&](const auto& sampler) {
      if constexpr (std::is_same_v<std::decay_t<decltype(sampler)>, TextureSampler<scalar_t, Mapping, false>>) {
        const scalar_t *const g = data<scalar_t>(grad_values), *const u = data<scalar_t>(cotangent);
        launch(sums, call.lookups(),
               TextureBackwardTwice<scalar_t, Mapping>{sampler, g, u, mutable_data<scalar_t>(to_grad),
                                                       mutable_data<scalar_t>(to_texcoords)});
        launch_scatter<double>(sums, shape.batch, call.lookups(), static_cast<ScatterAlgorithm>(algorithm),
                               TextureBackwardTwiceTexels<scalar_t, Mapping>{sampler, g, u});
      }
    });
    launch(sums, sums.numel(), RoundSums<scalar_t>{data<double>(sums), mutable_data<scalar_t>(to_texture)});
  });
  return {to_grad, to_texture, to_texcoords};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(diffrender, m) {
  m.def(
      "texture(Tensor texture, Tensor? mips, Tensor texcoords, Tensor? derivatives, Tensor? bias, int filter, "
      "int wrap_u, int wrap_v, int last_level, int anisotropy) -> Tensor");
  m.def(
      "texture_backward(Tensor texture, Tensor? mips, Tensor texcoords, Tensor? derivatives, Tensor? bias, "
      "Tensor grad_values, int filter, int wrap_u, int wrap_v, int last_level, int anisotropy, bool need_texture, "
      "bool need_mips, bool need_texcoords, bool need_derivatives, bool need_bias, int scatter) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "texture_backward_twice(Tensor texture, Tensor texcoords, Tensor grad_values, Tensor cotangent_texcoords, "
      "int wrap_u, int wrap_v, int scatter) -> (Tensor, Tensor, Tensor)");
}

DR_REGISTER("texture", &texture)
DR_REGISTER("texture_backward", &texture_backward)
DR_REGISTER("texture_backward_twice", &texture_backward_twice)

}  // namespace diffrender
