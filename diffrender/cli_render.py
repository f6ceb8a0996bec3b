"""Command line: `python -m diffrender render FILE -o out.png`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from .environment import EnvironmentLight
from .geometry.mesh import Mesh
from .io import image_to_uint8, load_mesh, save_image, save_video
from .renderer import Renderer, RenderResult
from .view import frame_camera, studio_lights

_PICTURES = (".png", ".jpg", ".jpeg", ".exr", ".hdr")
_PANORAMAS = (".hdr", ".exr", ".png", ".jpg", ".jpeg")


def add_command(commands: Any) -> None:
    """Adds `render` to the sub-commands of a parser."""
    command = commands.add_parser(
        "render",
        help="a picture of a mesh file",
        description="Renders a mesh file (.obj, .ply, .glb, .gltf, ...) with its materials, framed and lit by itself.",
    )
    command.add_argument("mesh", metavar="FILE", help="mesh to render")
    command.add_argument(
        "-o", "--out", required=True, metavar="PICTURE", help="picture to write: .png, .jpg, .exr, .hdr"
    )
    command.add_argument("--size", type=_size, default=(512, 512), metavar="WxH", help="in pixels (default 512x512)")
    command.add_argument("--azimuth", type=float, default=30.0, help="degrees about the vertical (default %(default)s)")
    command.add_argument("--elevation", type=float, default=20.0, help="degrees above the ground (default %(default)s)")
    command.add_argument("--samples", type=_samples, default=2, help="N x N samples a pixel (default %(default)s)")
    command.add_argument(
        "--background", type=_background, default="automatic", metavar="COLOR",
        help='one or three linear numbers ("0.2" or "0.1,0.2,0.3"), or none for transparent (default: 1, or as --env)',
    )  # fmt: skip
    light = command.add_mutually_exclusive_group()
    light.add_argument("--unlit", action="store_true", help="show base colors without light")
    light.add_argument(
        "--env", metavar="PANORAMA",
        help="light from a panorama, twice as wide as high: .hdr, .exr, .png, .jpg; it is the background, too",
    )  # fmt: skip
    command.add_argument(
        "--exposure", type=float, default=0.0, metavar="STOPS",
        help="brightens the light, that of --env too, by 2^STOPS (default %(default)s)",
    )  # fmt: skip
    command.add_argument("--turntable", metavar="VIDEO", help="also write a turn about the vertical: .mp4 or .gif")
    command.add_argument("--frames", type=_samples, default=72, help="of the turntable (default %(default)s)")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        OSError: with one line for the user, whatever was wrong with the files.
    """
    try:
        return _run(options)
    except (ValueError, ImportError) as error:
        raise OSError(str(error)) from error


def _run(options: argparse.Namespace) -> int:
    files = ((options.out, _PICTURES), (options.turntable, (".mp4", ".gif")), (options.env, _PANORAMAS))
    for path, suffixes in files:
        if path is not None and Path(path).suffix.lower() not in suffixes:
            raise ValueError(f"{path}: file must end in {', '.join(suffixes)}.")
    mesh = load_mesh(options.mesh)
    with torch.no_grad():
        environment = None
        if options.env is not None:
            environment = EnvironmentLight.from_file(options.env, intensity=2.0**options.exposure)
        if options.background == "automatic":
            options.background = 1.0 if environment is None else environment
        result = _picture(mesh, options, environment, options.azimuth)
        assert result.color is not None
        color = result.color[0]
        if options.background is None:
            assert result.alpha is not None
            color = torch.cat([color, result.alpha[0]], -1)
        save_image(options.out, color)
        print(f"{options.out}: {options.size[0]} x {options.size[1]}, {mesh.triangle_count} triangles")
        if options.turntable is not None:
            angles = [options.azimuth + 360.0 * k / options.frames for k in range(options.frames)]
            frames = (_frame(mesh, options, environment, angle) for angle in angles)
            save_video(options.turntable, (image_to_uint8(frame) for frame in frames))
            print(f"{options.turntable}: {options.frames} frames")
    return 0


def _frame(
    mesh: Mesh, options: argparse.Namespace, environment: EnvironmentLight | None, azimuth: float
) -> torch.Tensor:
    background = 1.0 if options.background is None else None
    color = _picture(mesh, options, environment, azimuth, background).color
    assert color is not None
    return color[0]


def _picture(
    mesh: Mesh,
    options: argparse.Namespace,
    environment: EnvironmentLight | None,
    azimuth: float,
    background: Any = None,
) -> RenderResult:
    width, height = options.size
    camera = frame_camera(mesh, width=width, height=height, azimuth_deg=azimuth, elevation_deg=options.elevation)
    renderer = Renderer(
        (height, width), edges="pairs", samples=options.samples, outputs=("color", "alpha"), recompute=False
    )
    lights: Any = environment
    if environment is None and not options.unlit:
        lights = studio_lights(camera, brightness=2.0**options.exposure)
    return renderer(mesh, camera, lights, background=options.background if background is None else background)


def _size(text: str) -> tuple[int, int]:
    numbers = [int(part) for part in text.lower().split("x")]
    if len(numbers) == 1:
        numbers *= 2
    if len(numbers) != 2 or not all(1 <= number <= 16384 for number in numbers):
        raise argparse.ArgumentTypeError(f"must be like 512 or 640x480, sides up to 16384, got {text!r}")
    return numbers[0], numbers[1]


def _samples(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 10_000:
        raise argparse.ArgumentTypeError(f"must be from 1 to 10000, got {value}")
    return value


def _background(text: str) -> float | list[float] | str | None:
    if text in ("none", "automatic"):
        return None if text == "none" else text
    numbers = [float(part) for part in text.split(",")]
    if len(numbers) not in (1, 3):
        raise argparse.ArgumentTypeError(f"must be one number, three, or none, got {text!r}")
    return numbers[0] if len(numbers) == 1 else numbers


_size.__name__ = "size"
_samples.__name__ = "integer"
_background.__name__ = "color"
