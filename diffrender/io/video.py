"""Saving videos: mp4 through imageio-ffmpeg, gif through Pillow where that is not installed."""

import importlib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from diffrender._extras import require


def video_suffix() -> str:
    """The best format there is: .mp4 where imageio-ffmpeg is installed and finds its program, else .gif."""
    try:
        importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        return ".gif"
    return ".mp4"


def save_video(path: str | os.PathLike[str], frames: Iterable[np.ndarray], *, fps: float = 24.0) -> None:
    """Writes frames as a looping .gif or as an .mp4 (H.264) that browsers play.

    Args:
        path: file to write, ending in .mp4 or .gif.
        frames: (H, W, 3) uint8 arrays of one size, as `image_to_uint8` makes them; consumed one by one. H.264 needs
            even sides: an odd last row or column is repeated.
        fps: frames per second.

    Raises:
        ValueError: on another suffix, or without frames.
        ImportError: without the extra `io`.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".mp4", ".gif"):
        raise ValueError(f"save_video: path must end in .mp4 or .gif, got {str(path)!r}.")
    frame_iterator = iter(frames)
    first = next(frame_iterator, None)
    if first is None:
        raise ValueError("save_video: frames must hold at least one frame, got none.")

    imageio = require("imageio.v2", "io", used_by="save_video")
    if suffix == ".mp4":
        require("imageio_ffmpeg", "io", used_by="save_video")
        # yuv420p is the only pixel format that every player knows.
        options = {"fps": fps, "codec": "libx264", "quality": 8, "pixelformat": "yuv420p", "macro_block_size": 2}
        options["ffmpeg_log_level"] = "error"
    else:
        options = {"duration": 1000 / fps, "loop": 0}
    with imageio.get_writer(os.fspath(path), **options) as writer:
        writer.append_data(_even_sides(first) if suffix == ".mp4" else first)
        for frame in frame_iterator:
            writer.append_data(_even_sides(frame) if suffix == ".mp4" else frame)


def _even_sides(frame: np.ndarray) -> np.ndarray:
    height, width = frame.shape[:2]
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge") if height % 2 or width % 2 else frame
