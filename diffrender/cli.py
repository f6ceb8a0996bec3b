"""Command line: `python -m diffrender fit|render|info ...`.

Wrong input ends with one line on the error stream and exit code 2. The first Ctrl-C ends the optimisation and lets the
command write what it has (exit code 130); a second one ends it at once.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch

from diffrender import cli_render, fit, fit_report, info
from diffrender._extras import require
from diffrender.geometry import Mesh
from diffrender.io import load_mesh

EXIT_WRONG_INPUT = 2
EXIT_INTERRUPTED = 130  # what shells report for a command that SIGINT ended
UNSEEN_VIEWS = 4
MOST_PIXELS = 4096  # sides of the fitted pictures


class InputError(Exception):
    """What the user gave cannot be used; the message is one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except (InputError, OSError) as error:
        print(f"diffrender {options.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_WRONG_INPUT
    except KeyboardInterrupt:
        print(f"diffrender {options.command}: interrupted.", file=sys.stderr)
        return EXIT_INTERRUPTED


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (--help shows the options)", file=sys.stderr)
        sys.exit(EXIT_WRONG_INPUT)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="diffrender", description="Differentiable rendering of triangle meshes.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    command = commands.add_parser(
        "fit",
        help="recover a shape from pictures of it",
        description="Renders pictures of a mesh from all sides, then recovers its shape from those pictures alone, "
        "starting from a sphere, and reports how close it came.",
    )
    command.add_argument("--mesh", required=True, metavar="FILE", help="source mesh: .obj, .ply, .glb, .stl or .off")
    command.add_argument("--out", required=True, metavar="DIR", help="folder for the results; made where missing")
    command.add_argument("--views", type=_whole(1, 10_000), default=16, help="fitted views (default %(default)s)")
    command.add_argument(
        "--size", type=_even, default=256, help="picture sides in pixels, even and at least 16 (default %(default)s)"
    )
    command.add_argument(
        "--steps", type=_whole(0, 10**9), default=fit.FitSettings.steps, help="gradient steps (default %(default)s)"
    )
    command.add_argument(
        "--seed", type=_whole(-(2**63), 2**63 - 1), default=0, help="of the order of views (default %(default)s)"
    )
    command.add_argument(
        "--edges",
        choices=("pairs", "segments", "coverage"),
        default=fit.FitSettings.edges,
        help="how outlines move vertices: see Renderer (default %(default)s)",
    )
    command.add_argument(
        "--threads",
        type=_whole(1, 1024),
        default=1,
        help="CPU threads (default %(default)s; while other programs use the cores, more of them are far slower)",
    )
    command.add_argument("--device", default="cpu", help="cpu or cuda (default %(default)s)")
    command.add_argument("--quiet", action="store_true", help="no progress bar")
    command.set_defaults(run=_run_fit)

    cli_render.add_command(commands)

    command = commands.add_parser("info", help="versions, devices and kernels: what is installed, built and loaded")
    command.set_defaults(run=_run_info)
    return parser


def _run_info(_: argparse.Namespace) -> int:
    info.main()
    return 0


def _run_fit(options: argparse.Namespace) -> int:
    started = time.perf_counter()
    with _Interruption() as interruption:
        try:
            for module in ("rich", "matplotlib", "scipy", "trimesh", "imageio"):
                require(module, "fit", used_by="fit")
            device = _device(options.device)
            source, placement = _load_source(options.mesh)
            folder = _output_folder(options.out)
        except (ValueError, OSError, ImportError) as error:
            raise InputError(str(error)) from error
        torch.set_num_threads(options.threads)

        source = source.to(device)
        scene_radius = float(source.vertices.norm(dim=-1).max())
        fitted = _photograph_from(fit.spread_directions(options.views), source, options.size, scene_radius)
        unseen = _photograph_from(fit.spread_directions(UNSEEN_VIEWS, turn_rad=1.0), source, options.size, scene_radius)
        prepared = time.perf_counter()

        settings = fit.FitSettings(steps=options.steps, seed=options.seed, edges=options.edges)
        with _Progress(options.steps, quiet=options.quiet) as progress:
            recovery = fit.recover(fitted, settings, on_step=progress.update, should_stop=interruption.requested)
    recovered = time.perf_counter()
    interrupted = recovery.steps < options.steps
    if interrupted:
        print(f"Stopped after {recovery.steps} of {options.steps} steps; writing what there is.", file=sys.stderr)

    files = fit_report.write_meshes(folder, recovery, placement)
    start = fit_report.measure(recovery.snapshots[0], source, fitted, unseen)
    final = fit_report.measure(recovery.mesh, source, fitted, unseen)
    floor = fit_report.chamfer_floor(source)
    files += fit_report.write_pictures(folder, source, recovery, unseen.cameras)
    files += fit_report.write_loss_plot(folder, recovery)
    files += fit_report.write_turntable(folder, source, recovery, options.size, scene_radius)
    reported = time.perf_counter()
    report = fit_report.build_report(
        options.mesh,
        settings,
        recovery,
        start,
        final,
        chamfer_floor=floor,
        views=options.views,
        size=options.size,
        interrupted=interrupted,
        seconds={
            "prepare": prepared - started,
            "fit": recovered - prepared,
            "report": reported - recovered,
            "total": reported - started,
        },
    )
    files += fit_report.write_report(folder, report)
    _print_summary(report, folder, files)
    return EXIT_INTERRUPTED if interrupted else 0


def _photograph_from(directions: torch.Tensor, source: Mesh, size: int, scene_radius: float) -> fit.Pictures:
    cameras = fit.cameras_around(directions.to(source.vertices), size, scene_radius)
    with torch.no_grad():
        return fit.photograph(source, cameras, scene_radius)


def _load_source(path: str) -> tuple[Mesh, fit.Placement]:
    mesh = load_mesh(path, dtype=torch.float64)  # large coordinates are centred before they lose digits
    try:
        normalized, placement = fit.normalize(mesh)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    normalized = normalized.to(torch.float32)
    if not bool((normalized.triangle_normals().norm(dim=-1) > 0).any()):
        raise ValueError(f"{path}: mesh must have triangles with an area, got none.")
    return normalized, placement


def _output_folder(path: str) -> Path:
    """Makes the folder and tries it, so that an unwritable one is known before the work and not after it."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OSError(f"--out must be a folder that can be written, got {path!r} ({reason}).") from error
    return folder


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device must be cpu or cuda, got {name!r}.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device must be cpu on this machine, got 'cuda': torch finds no CUDA device.")
    return device


def _print_summary(report: dict[str, Any], folder: Path, files: list[str]) -> None:
    start, final = report["start"], report["final"]
    chamfer, f_score = (f"{start[name]:.5f} -> {final[name]:.5f}" for name in ("chamfer", "f_score"))
    print(f"Chamfer distance  {chamfer}  ({report['chamfer_ratio']:.1f} times lower)")
    print(f"F-score           {f_score}  (within {report['f_score_threshold']})")
    iou = ", ".join(f"{value:.4f}" for value in final["silhouette_iou_unseen"])
    print(f"Silhouette IoU    {iou}  (views that were not fitted)")
    print(f"Time              {report['seconds']['fit']:.0f} s of {report['seconds']['total']:.0f} s for the fit")
    print(f"Results in {folder}: {', '.join(files)}")


class _Interruption:
    """Turns the first Ctrl-C into a request to stop; after it, Ctrl-C works as usual again."""

    def __init__(self) -> None:
        self._requested = False

    def requested(self) -> bool:
        return self._requested

    def __enter__(self) -> _Interruption:
        self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._requested = True
        signal.signal(signal.SIGINT, self._previous)


class _Progress:
    """A progress bar with the current differences, on the error stream."""

    def __init__(self, steps: int, *, quiet: bool):
        rich_progress = require("rich.progress", "fit", used_by="fit")
        console = require("rich.console", "fit", used_by="fit").Console(stderr=True, quiet=quiet)
        self._bar = rich_progress.Progress(
            rich_progress.TextColumn("fit"),
            rich_progress.BarColumn(bar_width=14),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TextColumn("{task.fields[difference]}"),
            rich_progress.TimeElapsedColumn(),
            rich_progress.TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task("fit", total=steps, difference="")

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, step: int, difference: torch.Tensor) -> None:
        # Short enough, with the times, for a terminal of 80 columns.
        silhouette, _, shading = difference.tolist()
        text = f"silhouette {silhouette:.4f} normals {shading:.4f}"
        self._bar.update(self._task, completed=step, difference=text)


def _whole(least: int, most: int) -> Any:
    def parse(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be from {least} to {most}, got {value}")
        return value

    parse.__name__ = "integer"  # argparse names the type in its message
    return parse


def _even(text: str) -> int:
    value = int(text)
    if not 16 <= value <= MOST_PIXELS or value % 2:
        raise argparse.ArgumentTypeError(f"must be even and from 16 to {MOST_PIXELS}, got {value}")
    return value


_even.__name__ = "integer"
