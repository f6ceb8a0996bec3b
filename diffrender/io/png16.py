"""PNG pictures of 16 bits per channel: Pillow and imageio read those with color as 8 bits, without a word.

Rows hold big-endian samples, each byte filtered against its left and upper neighbours (PNG specification, section 9).
The filters "none", "sub" and "up" are undone a row at a time; "average" and "Paeth" depend on the byte before and take
a Python loop, some seconds for a million color pixels. Not handled: interlaced files; palettes never have 16 bits.
"""

import struct
import zlib
from pathlib import Path

import numpy as np

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # of the color types grey, RGB, grey + alpha, RGB + alpha


def is_png16(data: bytes) -> bool:
    """Whether a file's bytes begin like a PNG of 16 bits per channel."""
    return data[:8] == _SIGNATURE and data[12:16] == b"IHDR" and len(data) > 25 and data[24] == 16


def read_png16(data: bytes, name: str) -> np.ndarray:
    """(H, W, C) uint16 samples of a file's bytes.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """
    header, compressed = b"", b""
    position = 8
    while position + 8 <= len(data):
        length, kind = struct.unpack(">I4s", data[position : position + 8])
        chunk = data[position + 8 : position + 8 + length]
        if kind == b"IHDR":
            header = chunk
        elif kind == b"IDAT":
            compressed += chunk
        elif kind == b"IEND":
            break
        position += 12 + length
    width, height, _, color_type, _, _, interlaced = struct.unpack(">IIBBBBB", header[:13].ljust(13, b"\0"))
    if color_type not in _CHANNELS or interlaced:
        found = "an interlaced file" if interlaced else f"color type {color_type}"
        raise ValueError(f"load_image: {name} must be a 16-bit PNG without interlacing or palette, got {found}.")
    channels = _CHANNELS[color_type]
    row_bytes = 2 * channels * width
    try:
        raw = zlib.decompress(compressed)
    except zlib.error as error:
        raise ValueError(f"load_image: {name} must hold a complete PNG picture, got broken data ({error}).") from None
    if len(raw) < height * (row_bytes + 1):
        expected = f"{height} rows of {row_bytes} bytes"
        raise ValueError(f"load_image: {name} must hold {expected}, got {len(raw)} bytes in all.")
    lines = np.frombuffer(raw, np.uint8, height * (row_bytes + 1)).reshape(height, row_bytes + 1)
    rows = np.zeros((height, row_bytes), np.uint8)
    above = np.zeros(row_bytes, np.uint8)
    for y in range(height):
        above = rows[y] = _unfilter(int(lines[y, 0]), lines[y, 1:], above, 2 * channels, f"{name}, row {y}")
    return rows.view(">u2").astype(np.uint16).reshape(height, width, channels)


def write_png16(path: Path, pixels: np.ndarray) -> None:
    """Writes (H, W, C) uint16 samples, C = 1 to 4, with the filter "up"."""
    height, width, channels = pixels.shape
    color_type = {count: kind for kind, count in _CHANNELS.items()}[channels]
    rows = pixels.astype(">u2").reshape(height, -1).view(np.uint8)
    filtered = np.diff(rows, axis=0, prepend=np.zeros((1, rows.shape[1]), np.uint8))
    lines = np.concatenate([np.full((height, 1), 2, np.uint8), filtered], 1)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 16, color_type, 0, 0, 0)
    path.write_bytes(
        _SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines.tobytes())) + chunk(b"IEND", b"")
    )


def _unfilter(kind: int, line: np.ndarray, above: np.ndarray, step: int, where: str) -> np.ndarray:
    """The bytes of a row from its filtered bytes, the row above, and the number of bytes of a pixel."""
    if kind == 0:
        return line
    if kind == 1:
        return np.cumsum(line.reshape(-1, step), axis=0, dtype=np.uint8).reshape(-1)
    if kind == 2:
        return line + above
    if kind not in (3, 4):
        raise ValueError(f"load_image: {where}: the filter must be 0 to 4, got {kind}.")
    source, upper, result = line.tolist(), above.tolist(), [0] * len(line)
    for i, value in enumerate(source):
        left = result[i - step] if i >= step else 0
        up = upper[i]
        if kind == 3:
            predicted = (left + up) // 2
        else:
            corner = upper[i - step] if i >= step else 0
            estimate = left + up - corner
            to_left, to_up, to_corner = abs(estimate - left), abs(estimate - up), abs(estimate - corner)
            if to_left <= to_up and to_left <= to_corner:
                predicted = left
            else:
                predicted = up if to_up <= to_corner else corner
        result[i] = (value + predicted) & 255
    return np.array(result, np.uint8)
