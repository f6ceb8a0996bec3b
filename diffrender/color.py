"""The sRGB transfer curve, in both directions, with gradients that stay finite (IEC 61966-2-1).

Rendering is linear; files and screens are sRGB. Written as `where` over a bare power, the derivative at 0 is
0 * inf = NaN: here the power only ever sees values above the knee.
"""

import torch
from torch import Tensor

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
    above_knee = linear > _LINEAR_KNEE
    base = torch.where(above_knee, linear, 1)
    return torch.where(above_knee, 1.055 * base ** (1 / 2.4) - 0.055, 12.92 * linear)


def srgb_to_linear(srgb: Tensor) -> Tensor:
    """Decodes sRGB values (0 to 1) to linear ones, the inverse of `linear_to_srgb`. Exact gradients.

    Example:
        >>> round(float(srgb_to_linear(torch.tensor(188 / 255))), 4)
        0.5029
    """
    above_knee = srgb > _SRGB_KNEE
    base = torch.where(above_knee, srgb, 1)
    return torch.where(above_knee, ((base + 0.055) / 1.055) ** 2.4, srgb / 12.92)
