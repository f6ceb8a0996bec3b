"""Pictures of linear floats: Radiance HDR by a reader and writer of our own, OpenEXR through the package OpenEXR.

A Radiance pixel is three mantissas and one common exponent, v = m 2^(e - 136): about 1% of the largest channel, no
negative values. Files come flat or with each channel of a row run-length coded.
"""

import os
from pathlib import Path

import numpy as np

from diffrender._extras import require

_LONGEST_RUN_CODED = 32767
_SHORTEST_RUN_CODED = 8


def read_hdr(path: str | os.PathLike[str]) -> np.ndarray:
    """(H, W, 3) float32 of a Radiance file, row 0 on top.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """
    data = Path(path).read_bytes()
    header, separator, body = data.partition(b"\n\n")
    size, newline, body = body.partition(b"\n")
    if not data.startswith(b"#?") or not separator or not newline:
        raise ValueError(
            f"load_image: {path} must be a Radiance HDR file (it begins with #?RADIANCE), got another one."
        )
    for line in header.split(b"\n"):
        if line.startswith(b"FORMAT=") and line.strip() != b"FORMAT=32-bit_rle_rgbe":
            raise ValueError(
                f"load_image: {path} must have FORMAT=32-bit_rle_rgbe, got {line.decode(errors='replace')}."
            )
    words = size.split()
    if len(words) != 4 or words[0][1:] != b"Y" or words[2][1:] != b"X" or not (words[1] + words[3]).isdigit():
        raise ValueError(
            f"load_image: {path} must give its size as `-Y H +X W`, got {size.decode(errors='replace')!r}."
        )
    height, width = int(words[1]), int(words[3])
    rgbe = np.empty((height, width, 4), np.uint8)
    position = 0
    for y in range(height):
        position = _read_row(body, position, rgbe[y], f"{path}, row {y}")
    if words[0][:1] == b"+":
        rgbe = rgbe[::-1]
    if words[2][:1] == b"-":
        rgbe = rgbe[:, ::-1]
    scale = np.ldexp(np.float32(1), rgbe[..., 3:].astype(np.int32) - 136)
    return np.where(rgbe[..., 3:] > 0, rgbe[..., :3] * scale, 0).astype(np.float32)


def write_hdr(path: str | os.PathLike[str], pixels: np.ndarray) -> None:
    """Writes (H, W, 3) floats; negative values and NaN become 0, values beyond the format its largest."""
    height, width, _ = pixels.shape
    values = np.clip(np.nan_to_num(pixels.astype(np.float64), nan=0.0, posinf=1e38), 0, 1e38)
    largest = values.max(-1)
    # largest = fraction 2^exponent with fraction in [0.5, 1). Rounding up to 256 would overflow a byte: next exponent.
    _, exponent = np.frexp(largest)
    exponent += np.rint(largest * 2.0 ** (8 - exponent)) > 255
    exponent = np.maximum(exponent, -127)
    mantissa = np.rint(values * 2.0 ** (8 - exponent)[..., None]).clip(0, 255)
    rgbe = np.concatenate([mantissa, (exponent + 128)[..., None]], -1).astype(np.uint8)
    rgbe[mantissa.max(-1) == 0] = 0
    chunks = [b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n", f"-Y {height} +X {width}\n".encode()]
    for row in rgbe:
        if not _SHORTEST_RUN_CODED <= width <= _LONGEST_RUN_CODED:
            chunks.append(row.tobytes())
            continue
        chunks.append(bytes([2, 2, width >> 8, width & 255]))
        for channel in row.T:
            # Stretches of up to 128 bytes as they are: valid run-length code without a search for runs.
            for start in range(0, width, 128):
                stretch = channel[start : start + 128].tobytes()
                chunks.append(bytes([len(stretch)]) + stretch)
    Path(path).write_bytes(b"".join(chunks))


def _read_row(body: bytes, position: int, row: np.ndarray, where: str) -> int:
    """Fills (W, 4) with the row that begins at `position` and returns where the next one begins."""
    width = len(row)
    start = body[position : position + 4]
    is_run_coded = _SHORTEST_RUN_CODED <= width <= _LONGEST_RUN_CODED and start[:2] == b"\2\2" and start[2:3] < b"\x80"
    if not is_run_coded:
        return _read_flat_row(body, position, row, where)
    if len(start) < 4 or start[2] * 256 + start[3] != width:
        raise ValueError(f"load_image: {where}: the row must be {width} pixels wide, got {start[2] * 256 + start[3]}.")
    position += 4
    for channel in range(4):
        x = 0
        while x < width:
            count = body[position] if position < len(body) else 0
            is_run = count > 128
            count = count - 128 if is_run else count
            stretch = body[position + 1 : position + 2 + (0 if is_run else count - 1)]
            if count == 0 or x + count > width or len(stretch) < (1 if is_run else count):
                raise ValueError(f"load_image: {where}: channel {channel} must hold {width} bytes, got broken data.")
            row[x : x + count, channel] = np.frombuffer(stretch, np.uint8)
            position += 1 + len(stretch)
            x += count
    return position


def _read_flat_row(body: bytes, position: int, row: np.ndarray, where: str) -> int:
    """Four bytes a pixel; (1, 1, 1, n) repeats the pixel before n times, 256 n times after another such mark."""
    x, shift = 0, 0
    while x < len(row):
        pixel = body[position : position + 4]
        if len(pixel) < 4:
            raise ValueError(f"load_image: {where}: the row must hold {len(row)} pixels, got {x} before the file ends.")
        position += 4
        if pixel[:3] == b"\1\1\1" and x > 0:
            count = pixel[3] << shift
            row[x : x + count] = row[x - 1]
            x, shift = x + count, shift + 8
        else:
            row[x] = np.frombuffer(pixel, np.uint8)
            x, shift = x + 1, 0
    return position


def read_exr(path: str | os.PathLike[str]) -> np.ndarray:
    """(H, W, C) float32 in the order R, G, B, A by the names of the channels; C = 1 for Y or a lone channel.

    Pixels of the display window that the file holds no data for are 0.

    Raises:
        ImportError: without the package OpenEXR.
        ValueError: naming the file, and the channels where they are no picture.
    """
    openexr = require("OpenEXR", "exr", used_by="load_image of .exr")
    try:
        file = openexr.File(os.fspath(path), separate_channels=True)
        channels, header = file.channels(), file.header()
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(
            f"load_image: {path} must be an OpenEXR file, got one that cannot be read ({error})."
        ) from error
    wanted = next(
        (n for n in (["R", "G", "B", "A"], ["R", "G", "B"], ["Y", "A"], ["Y"]) if set(n) <= set(channels)), None
    )
    if wanted is None and len(channels) == 1:
        wanted = list(channels)
    if wanted is None:  # one layer, as in "diffuse.R"
        layers = {name.rpartition(".")[0] for name in channels}
        if len(layers) == 1:
            layer = layers.pop()
            names = [f"{layer}.{c}" for c in "RGBA" if f"{layer}.{c}" in channels]
            wanted = names if len(names) >= 3 else None
    if wanted is None:
        raise ValueError(
            f"load_image: {path} must have channels R, G, B or Y, or a single one, got {sorted(channels)}."
        )
    pixels = np.stack([channels[name].pixels.astype(np.float32) for name in wanted], -1)
    (x0, y0), (x1, y1) = header["displayWindow"]
    (left, top), (right, bottom) = header["dataWindow"]
    if (x0, y0, x1, y1) == (left, top, right, bottom):
        return pixels
    shown = np.zeros((y1 - y0 + 1, x1 - x0 + 1, pixels.shape[-1]), np.float32)
    rows = slice(max(top, y0) - y0, min(bottom, y1) - y0 + 1)
    columns = slice(max(left, x0) - x0, min(right, x1) - x0 + 1)
    inside = pixels[max(y0 - top, 0) : min(bottom, y1) - top + 1, max(x0 - left, 0) : min(right, x1) - left + 1]
    shown[rows, columns] = inside
    return shown


def write_exr(path: str | os.PathLike[str], pixels: np.ndarray) -> None:
    """Writes (H, W, C) as float32 channels: Y, Y + A, R G B or R G B A for C = 1 to 4."""
    openexr = require("OpenEXR", "exr", used_by="save_image of .exr")
    names = {1: "Y", 2: "YA", 3: "RGB", 4: "RGBA"}[pixels.shape[-1]]
    channels = {name: np.ascontiguousarray(pixels[..., k], np.float32) for k, name in enumerate(names)}
    header = {"compression": openexr.ZIP_COMPRESSION, "type": openexr.scanlineimage}
    openexr.File(header, channels).write(os.fspath(path))
