"""Saving images: linear floats become sRGB-encoded 8-bit files.

Through imageio. Formats with linear floats (EXR, HDR) are not written.
"""

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from diffrender._extras import require
from diffrender.color import linear_to_srgb

_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff")


def image_to_uint8(image: Tensor, *, encode: str = "srgb") -> np.ndarray:
    """Rounds a float image to 8 bits.

    Args:
        image: (H, W, C) or (H, W), row 0 on top, 1, 2 (grey + alpha), 3 or 4 (RGB + alpha) channels. Colours are linear
            and, where there is alpha, premultiplied, as the renderer makes them.
        encode: "srgb" for linear colours, or "none" for values that are stored as they are (normals, masks, data).
            Alpha is never encoded.

    Returns:
        uint8 (H, W, C), or (H, W) for one channel; straight (not premultiplied) alpha; clamped to [0, 1], NaN as 0.

    Raises:
        TypeError, ValueError: on a dtype, shape or encoding that is none of these.
    """
    if encode not in ("srgb", "none"):
        raise ValueError(f'image_to_uint8: encode must be "srgb" or "none", got {encode!r}.')
    if not isinstance(image, Tensor) or not image.is_floating_point():
        raise TypeError(f"image_to_uint8: image must be a float tensor, got {getattr(image, 'dtype', type(image))}.")
    if image.ndim == 2:
        image = image.unsqueeze(-1)
    if image.ndim != 3 or image.shape[-1] not in (1, 2, 3, 4):
        hint = " Save the items of a batch one by one." if image.ndim == 4 else ""
        raise ValueError(f"image_to_uint8: image must have shape (H, W, 1 to 4), got {tuple(image.shape)}.{hint}")

    image = image.detach().cpu().double().nan_to_num(nan=0.0)
    color_count = image.shape[-1] - (image.shape[-1] % 2 == 0)
    color, alpha = image[..., :color_count], image[..., color_count:].clamp(0, 1)
    if alpha.shape[-1]:
        color = torch.where(alpha > 0, color / torch.where(alpha > 0, alpha, 1), 0)
    color = color.clamp(0, 1)
    if encode == "srgb":
        color = linear_to_srgb(color)
    pixels = (torch.cat([color, alpha], -1) * 255).round().to(torch.uint8).numpy()
    return pixels[..., 0] if pixels.shape[-1] == 1 else pixels


def save_image(path: str | os.PathLike[str], image: Tensor, *, encode: str = "srgb") -> None:
    """Writes an image; the suffix of `path` chooses the format (PNG, JPEG, GIF, BMP, TIFF, 8 bits each).

    Args:
        path: file to write; its folder must exist.
        image, encode: as for `image_to_uint8`: linear (premultiplied) colours in, sRGB and straight alpha in the file.

    Raises:
        ValueError: on another suffix, or an image that is none.
        ImportError: without the extra `io`.

    Example:
        >>> import tempfile, pathlib
        >>> save_image(pathlib.Path(tempfile.mkdtemp()) / "grey.png", torch.full((4, 6, 3), 0.5))  # stored as 188
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise ValueError(f"save_image: path must end in one of {', '.join(_SUFFIXES)}, got {str(path)!r}.")
    pixels = image_to_uint8(image, encode=encode)
    require("imageio.v3", "io", used_by="save_image").imwrite(os.fspath(path), pixels)
