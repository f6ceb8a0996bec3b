"""The sRGB transfer curve, in both directions (IEC 61966-2-1), tone curves, and alpha, with gradients that stay finite.

Rendering is linear; files and screens are sRGB. Written as `where` over a bare power, the derivative at 0 is
0 * inf = NaN: here the power only ever sees values above the knee. Nothing clamps: `save_image` cuts off what a file
cannot hold, and a clamp inside of a loss would take the gradient of what is too bright.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from diffrender import _checks
from diffrender._constants import constant

_LINEAR_KNEE = 0.0031308
_SRGB_KNEE = 0.04045


def linear_to_srgb(linear: Tensor) -> Tensor:
    """Encodes linear values for display; no clamping, the curve continues above 1 and, as a line, below 0.

    Gradients:
        Exact: slope 12.92 up to the knee, black and negative values included.

    Example:
        >>> round(float(linear_to_srgb(torch.tensor(0.5))) * 255)
        188
    """
    _checks.check_picture("linear_to_srgb", "linear", linear)
    above_knee = linear > _LINEAR_KNEE
    base = torch.where(above_knee, linear, 1)
    return torch.where(above_knee, 1.055 * base ** (1 / 2.4) - 0.055, 12.92 * linear)


def srgb_to_linear(srgb: Tensor) -> Tensor:
    """Decodes sRGB values (0 to 1; bytes divided by 255) to linear ones, the inverse of `linear_to_srgb`.

    Exact gradients.

    Example:
        >>> round(float(srgb_to_linear(torch.tensor(188 / 255))), 4)
        0.5029
    """
    _checks.check_picture("srgb_to_linear", "srgb", srgb)
    above_knee = srgb > _SRGB_KNEE
    base = torch.where(above_knee, srgb, 1)
    return torch.where(above_knee, ((base + 0.055) / 1.055) ** 2.4, srgb / 12.92)


TONE_CURVES = ("linear", "reinhard", "log", "aces")


def tonemap(radiance: Tensor, operator: str = "reinhard", *, exposure: Tensor | float = 0.0) -> Tensor:
    """Compresses linear radiance of any range; the result is linear too, to be encoded by `linear_to_srgb`.

    Args:
        radiance: any shape, channel by channel.
        operator: for x = radiance * 2^exposure,
            "linear"    x
            "reinhard"  x / (1 + x), below 1
            "log"       log(1 + x), not bounded: the curve that `losses.log_srgb_l1` and nvdiffrec compare pictures by
            "aces"      (2.51 x^2 + 0.03 x) / (2.43 x^2 + 0.59 x + 0.14), Narkowicz's fit of the ACES film curve, which
                        passes 1 at x = 7.2 and ends at 1.033
        exposure: in stops, a number or a tensor that broadcasts.

    Returns:
        The shape of radiance. Negative values are mirrored, f(-x) = -f(x); infinity gives the limit of the curve.

    Gradients: exact, to radiance and exposure; finite everywhere, black, negative and huge values included.

    Raises:
        TypeError, ValueError: a wrong type, an unknown operator.

    Example:
        >>> tonemap(torch.tensor([0.0, 1.0, 3.0, -1.0]), "reinhard").tolist()
        [0.0, 0.5, 0.75, -0.5]
    """
    radiance = _checks.check_floating("tonemap", "radiance", radiance)
    _checks.check_choice("tonemap", "operator", operator, TONE_CURVES)
    x = radiance if isinstance(exposure, float) and exposure == 0 else radiance * 2**exposure
    if operator == "linear":
        return x
    if operator == "log":
        # abs has the derivative 0 at 0, where this curve has 1: each sign has a branch of its own.
        return torch.where(x < 0, -torch.log1p(torch.where(x < 0, -x, 0)), torch.log1p(torch.where(x < 0, 0, x)))
    # Beyond this the curves are at their limits, and squares would overflow.
    x = x.clamp(-1e15, 1e15)
    size = x.abs()
    if operator == "reinhard":
        return x / (1 + size)
    return x * (2.51 * size + 0.03) / (size * (2.43 * size + 0.59) + 0.14)


def over(image: Tensor, background: Tensor | float | Sequence[float]) -> Tensor:
    """A premultiplied picture over a background: color + (1 - alpha) background.

    Args:
        image: (..., C + 1), colors times alpha and alpha, as the renderer and `load_image` make them.
        background: a number, or what broadcasts with (..., C): a color, a picture.

    Returns:
        (..., C), without alpha.

    Gradients: exact, to both.

    Raises:
        TypeError, ValueError: a wrong type; a background that does not fit.

    Example:
        >>> over(torch.tensor([0.25, 0.0, 0.0, 0.5]), (0.0, 1.0, 1.0)).tolist()
        [0.25, 0.5, 0.5]
    """
    color, alpha = _color_and_alpha("over", image)
    if isinstance(background, Tensor) and background.dtype == torch.uint8:
        _checks.check_picture("over", "background", background)
    behind = constant(background, image)
    try:
        fits = torch.broadcast_shapes(behind.shape, color.shape)[-1] == color.shape[-1]
    except RuntimeError:
        fits = False
    if not fits:
        expected = f"be a number or broadcast with {_checks.shape_text(color)}"
        _checks.fail(ValueError, "over", "background", expected, _checks.shape_text(behind))
    return color + (1 - alpha) * behind


def unpremultiply(image: Tensor) -> Tensor:
    """Straight alpha of a premultiplied picture (..., C + 1): colors are divided by alpha, and 0 where that is 0.

    Gradients: exact where alpha is positive; where it is 0, colors have none.

    Example:
        >>> unpremultiply(torch.tensor([0.25, 0.0, 0.5, 0.5])).tolist()
        [0.5, 0.0, 1.0, 0.5]
    """
    color, alpha = _color_and_alpha("unpremultiply", image)
    is_seen = alpha > 0
    return torch.cat([torch.where(is_seen, color / torch.where(is_seen, alpha, 1), 0), alpha], -1)


def _color_and_alpha(function: str, image: Tensor) -> tuple[Tensor, Tensor]:
    image = _checks.check_floating(function, "image", image)
    if image.dim() < 1 or image.shape[-1] < 2:
        expected = "have shape (..., C + 1), colors and alpha"
        _checks.fail(ValueError, function, "image", expected, _checks.shape_text(image))
    return image[..., :-1], image[..., -1:]
