"""Saving videos: mp4 through imageio-ffmpeg, gif through Pillow where that is not installed."""

import importlib
import os
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np
from torch import Tensor

from diffrender import _checks
from diffrender._extras import require
from diffrender.io.images import image_to_uint8


def video_suffix() -> str:
    """The best format there is: .mp4 where imageio-ffmpeg is installed and finds its program, else .gif."""
    try:
        importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        return ".gif"
    return ".mp4"


def save_video(path: str | os.PathLike[str], frames: Iterable[Tensor | np.ndarray], *, fps: float = 24.0) -> None:
    """Writes frames as a looping .gif or as an .mp4 (H.264) that browsers play.

    Args:
        path: file to write, ending in .mp4 or .gif.
        frames: pictures of one size, consumed one by one: float tensors of linear colours, (H, W, 3) or (H, W, 1), as
            `save_image` takes them, a batch (B, H, W, C) or a list; or uint8 arrays, as `image_to_uint8` makes them.
            H.264 needs even sides: an odd last row or column is repeated.
        fps: frames per second.

    Raises:
        TypeError, ValueError: on frames that are none of these or of different sizes, on another suffix, or without
            frames.
        ImportError: without the extra `io`.

    Example:
        >>> import tempfile
        >>> save_video(tempfile.mkdtemp() + "/fade.gif", [torch.full((8, 8, 3), k / 4) for k in range(5)], fps=5)
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".mp4", ".gif"):
        raise ValueError(f"save_video: path must end in .mp4 or .gif, got {str(path)!r}.")
    frame_iterator = iter(frames)
    first = next(frame_iterator, None)
    if first is None:
        raise ValueError("save_video: frames must hold at least one frame, got none.")
    pixels = _bytes(first)

    imageio = require("imageio.v2", "io", used_by="save_video")
    if suffix == ".mp4":
        require("imageio_ffmpeg", "io", used_by="save_video")
        # yuv420p is the only pixel format that every player knows.
        options = {"fps": fps, "codec": "libx264", "quality": 8, "pixelformat": "yuv420p", "macro_block_size": 2}
        options["ffmpeg_log_level"] = "error"
    else:
        options = {"duration": 1000 / fps, "loop": 0}
    with imageio.get_writer(os.fspath(path), **options) as writer:
        for number, frame in enumerate(chain([pixels], map(_bytes, frame_iterator))):
            if frame.shape != pixels.shape:
                sizes = f"{pixels.shape}, but {frame.shape} at {number}"
                _checks.fail(ValueError, "save_video", "frames", "have one size", sizes)
            writer.append_data(_even_sides(frame) if suffix == ".mp4" else frame)


def _bytes(frame: Tensor | np.ndarray) -> np.ndarray:
    """(H, W, 3) uint8."""
    if isinstance(frame, Tensor):
        frame = image_to_uint8(frame)
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8:
        actual = f"{frame.dtype} array" if isinstance(frame, np.ndarray) else type(frame).__name__
        expected, hint = "be float tensors or uint8 arrays", "torch.as_tensor makes a tensor of float pictures."
        _checks.fail(TypeError, "save_video", "frames", expected, actual, hint)
    if frame.ndim == 2:
        frame = np.repeat(frame[..., None], 3, -1)
    if frame.ndim != 3 or frame.shape[2] != 3:
        expected, hint = "have shape (H, W, 3), (H, W, 1) or (H, W)", "dr.over puts RGBA over a background."
        _checks.fail(ValueError, "save_video", "frames", expected, str(tuple(frame.shape)), hint)
    return frame


def _even_sides(frame: np.ndarray) -> np.ndarray:
    height, width = frame.shape[:2]
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge") if height % 2 or width % 2 else frame
