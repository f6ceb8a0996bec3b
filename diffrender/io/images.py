"""Loading and saving images.

In memory, pictures are linear floats with premultiplied alpha, row 0 on top; in files they are what the format calls
for: sRGB bytes with straight alpha, linear 16-bit numbers or floats. What `save_image` writes, `load_image` gives back,
up to the rounding of the format.

8-bit formats go through Pillow and imageio, 16-bit PNG and Radiance HDR through readers of our own, OpenEXR through its
package.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffrender import _checks
from diffrender._extras import require
from diffrender.color import linear_to_srgb, over, srgb_to_linear, unpremultiply
from diffrender.io.hdr import read_exr, read_hdr, write_exr, write_hdr
from diffrender.io.png16 import is_png16, read_png16, write_png16

_BYTE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff")
_FLOAT_SUFFIXES = (".exr", ".hdr")


def load_image(
    path: str | os.PathLike[str],
    *,
    colorspace: str = "auto",
    alpha: str = "premultiplied",
    background: Tensor | float | tuple[float, ...] | list[float] | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Loads a picture as floats.

    Args:
        path: .exr, .hdr, or any format that Pillow reads (PNG, JPEG, TIFF, WebP, ...), with 8 or 16 bits.
        colorspace: "srgb" decodes colors to linear; "linear" takes the stored values (normal maps, roughness, depth).
            "auto" decodes 8-bit files and leaves 16-bit and float files, which hold data or linear light, as they are.
        alpha: "premultiplied", as the renderer makes it (colors behind alpha 0 vanish), or "straight", as stored.
        background: a number or a color of the result's channels to composite over; the result then has no alpha.
        dtype, device: of the result.

    Returns:
        (H, W, C), row 0 on top; C = 1 (grey), 2 (grey + alpha), 3 or 4 (RGB + alpha). Integers are divided by their
        largest value (255 or 65535); floats keep values outside of [0, 1]. Alpha is never decoded. Palettes become
        colors. The pixel grid is the stored one, to which camera intrinsics refer: EXIF orientation is not applied.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: naming the file, if it is no picture or broken, and on unknown options.
        ImportError: naming the missing extra.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/a.png"
        >>> save_image(path, torch.full((4, 6, 3), 0.5))
        >>> load_image(path).shape, round(float(load_image(path).mean()), 2)
        (torch.Size([4, 6, 3]), 0.5)
    """
    _checks.check_choice("load_image", "colorspace", colorspace, ("auto", "srgb", "linear"))
    _checks.check_choice("load_image", "alpha", alpha, ("premultiplied", "straight"))
    if not Path(path).is_file():
        raise FileNotFoundError(f"load_image: path must name a file, got {str(path)!r}, which does not exist.")
    suffix = Path(path).suffix.lower()
    if suffix in _FLOAT_SUFFIXES:
        pixels = read_exr(path) if suffix == ".exr" else read_hdr(path)
    else:
        pixels = decode_image(Path(path).read_bytes(), str(path))
    image = floats_from_pixels(
        pixels, decode=colorspace == "srgb" or (colorspace == "auto" and pixels.dtype == np.uint8)
    )
    if image.shape[-1] in (2, 4) and (alpha == "premultiplied" or background is not None) and suffix != ".exr":
        image = torch.cat([image[..., :-1] * image[..., -1:], image[..., -1:]], -1)
    elif suffix == ".exr" and image.shape[-1] in (2, 4) and alpha == "straight" and background is None:
        image = unpremultiply(image)
    if background is not None:
        image = _over(image, background)
    return image.to(dtype=dtype, device=device)


def decode_image(data: bytes, name: str) -> np.ndarray:
    """(H, W, C) uint8, uint16 or float32 samples of a file's bytes, as stored; `name` is for messages.

    Raises:
        ValueError: if the bytes are no picture, or a broken one.
    """
    if is_png16(data):
        return read_png16(data, name)
    pillow = require("PIL.Image", "io", used_by="load_image")
    try:
        with pillow.open(io.BytesIO(data)) as picture:
            bits = getattr(picture, "tag_v2", {}).get(258, (8,))
            if picture.mode in ("RGB", "RGBA") and max(bits) > 8:
                raise ValueError("color of more than 8 bits per channel is read from PNG, EXR and HDR only")
            if picture.mode == "P":
                picture = picture.convert("RGBA" if "transparency" in picture.info else "RGB")
            elif picture.mode == "1":
                picture = picture.convert("L")
            elif picture.mode in ("CMYK", "YCbCr", "LAB", "HSV", "RGBX"):
                picture = picture.convert("RGB")
            elif picture.mode in ("PA", "La", "RGBa"):
                picture = picture.convert("RGBA")
            elif picture.mode in ("RGB", "L") and "transparency" in picture.info:
                picture = picture.convert("RGBA" if picture.mode == "RGB" else "LA")
            pixels = np.asarray(picture)
    # Pillow's decoders raise SyntaxError and struct errors next to OSError where a file is broken.
    except (OSError, SyntaxError, ValueError, IndexError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"load_image: {name} must be a picture, got one that Pillow cannot read ({reason})."
        ) from error
    if pixels.dtype == np.int32:  # "I": 16-bit values in a wider type
        if pixels.min() < 0 or pixels.max() > 65535:
            raise ValueError(f"load_image: {name} must have 8 or 16 bits per channel, got values to {pixels.max()}.")
        pixels = pixels.astype(np.uint16)
    if pixels.dtype.kind == "u" and pixels.dtype.itemsize == 2:
        pixels = pixels.astype(np.uint16)  # to the byte order of this machine
    if pixels.dtype == np.float32 or pixels.dtype in (np.uint8, np.uint16):
        return pixels if pixels.ndim == 3 else pixels[..., None]
    raise ValueError(f"load_image: {name} must hold bytes, 16-bit numbers or floats, got {pixels.dtype}.")


def floats_from_pixels(pixels: np.ndarray, *, decode: bool) -> Tensor:
    """Samples (H, W, C) as float64 in [0, 1], or as they are if floats; with `decode`, sRGB colors become linear."""
    values = torch.from_numpy(np.array(pixels, dtype=np.float64))
    if pixels.dtype.kind == "u":
        values = values / np.iinfo(pixels.dtype).max
    if not decode:
        return values
    color_count = values.shape[-1] - (values.shape[-1] in (2, 4))
    return torch.cat([srgb_to_linear(values[..., :color_count]), values[..., color_count:]], -1)


def image_to_uint8(image: Tensor, *, encode: str = "srgb") -> np.ndarray:
    """Rounds a float image to 8 bits.

    Args:
        image: (H, W, C), (1, H, W, C) or (H, W), row 0 on top, 1, 2 (grey + alpha), 3 or 4 (RGB + alpha) channels.
            Colours are linear and, where there is alpha, premultiplied, as the renderer makes them.
        encode: "srgb" for linear colours, or "none" for values that are stored as they are (normals, masks, data).
            Alpha is never encoded.

    Returns:
        uint8 (H, W, C), or (H, W) for one channel; straight (not premultiplied) alpha; clamped to [0, 1], NaN as 0.

    Raises:
        TypeError, ValueError: on a dtype, shape or encoding that is none of these.
    """
    pixels = (_encoded("image_to_uint8", image, encode) * 255).round().to(torch.uint8).numpy()
    return pixels[..., 0] if pixels.shape[-1] == 1 else pixels


def save_image(path: str | os.PathLike[str], image: Tensor, *, encode: str = "auto", bits: int = 8) -> None:
    """Writes an image; the suffix of `path` chooses the format.

    Args:
        path: file to write (PNG, JPEG, GIF, BMP, TIFF, or EXR and HDR for linear floats); its folder must exist.
        image: as for `image_to_uint8`: linear, premultiplied; straight alpha in the file, except EXR. EXR takes 1 to 4
            channels, HDR 3.
        encode: "srgb" or "none" as there. "auto" is what `load_image` expects: "srgb" for 8 bits, else "none".
            EXR and HDR files are never encoded.
        bits: 8, or 16 for PNG.

    Raises:
        ValueError: on another suffix, or an image that is none.
        ImportError: without the extra `io`, or `exr` for EXR.

    Example:
        >>> import tempfile, pathlib
        >>> save_image(pathlib.Path(tempfile.mkdtemp()) / "grey.png", torch.full((4, 6, 3), 0.5))  # stored as 188
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (*_BYTE_SUFFIXES, *_FLOAT_SUFFIXES):
        suffixes = ", ".join((*_BYTE_SUFFIXES, *_FLOAT_SUFFIXES))
        raise ValueError(f"save_image: path must end in one of {suffixes}, got {str(path)!r}.")
    if bits != 8 and not (bits == 16 and suffix == ".png"):
        raise ValueError(f"save_image: bits must be 8, or 16 for .png, got {bits} for {suffix}.")
    if suffix in _FLOAT_SUFFIXES:
        pixels = _checked("save_image", image).numpy()
        if suffix == ".hdr" and pixels.shape[-1] != 3:
            raise ValueError(f"save_image: image must have 3 channels for .hdr, got {pixels.shape[-1]}.")
        return write_exr(path, pixels) if suffix == ".exr" else write_hdr(path, pixels)
    if encode == "auto":
        encode = "srgb" if bits == 8 else "none"
    if bits == 16:
        return write_png16(
            Path(path), (_encoded("save_image", image, encode) * 65535).round().numpy().astype(np.uint16)
        )
    pixels = image_to_uint8(image, encode=encode)
    require("imageio.v3", "io", used_by="save_image").imwrite(os.fspath(path), pixels)


def _checked(function: str, image: Any) -> Tensor:
    """(H, W, C) float64 on the CPU."""
    if not isinstance(image, Tensor) or not image.is_floating_point():
        actual = image.dtype if isinstance(image, Tensor) else type(image).__name__
        raise TypeError(f"{function}: image must be a float tensor, got {actual}.")
    if image.ndim == 2:
        image = image.unsqueeze(-1)
    if image.ndim == 4 and image.shape[0] == 1:  # the renderer's picture of one camera
        image = image.squeeze(0)
    if image.ndim != 3 or image.shape[-1] not in (1, 2, 3, 4):
        hint = " Save the items of a batch one by one." if image.ndim == 4 else ""
        raise ValueError(f"{function}: image must have shape (H, W, 1 to 4), got {tuple(image.shape)}.{hint}")
    return image.detach().cpu().double()


def _encoded(function: str, image: Tensor, encode: str) -> Tensor:
    """What a file stores, in [0, 1]: straight alpha, colors encoded."""
    if encode not in ("srgb", "none"):
        raise ValueError(f'{function}: encode must be "srgb" or "none", got {encode!r}.')
    image = _checked(function, image).nan_to_num(nan=0.0)
    color_count = image.shape[-1] - (image.shape[-1] % 2 == 0)
    color, alpha = image[..., :color_count], image[..., color_count:].clamp(0, 1)
    if alpha.shape[-1]:
        color = unpremultiply(torch.cat([color, alpha], -1))[..., :-1]
    color = color.clamp(0, 1)
    return torch.cat([linear_to_srgb(color) if encode == "srgb" else color, alpha], -1)


def _over(image: Tensor, background: Tensor | float | tuple[float, ...] | list[float]) -> Tensor:
    """Premultiplied pictures over a background; those without alpha cover it."""
    if image.shape[-1] not in (2, 4):
        return image
    behind = torch.as_tensor(background, dtype=image.dtype)
    if behind.ndim > 1 or (behind.ndim == 1 and len(behind) != image.shape[-1] - 1):
        expected = f"be a number or have shape ({image.shape[-1] - 1},)"
        _checks.fail(ValueError, "load_image", "background", expected, _checks.shape_text(behind))
    return over(image, behind)
