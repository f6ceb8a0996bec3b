"""`python -m diffrender fit`: results, wrong input, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import make_dataclass
from pathlib import Path

import imageio.v3 as imageio
import pytest
import torch

import diffrender as dr
from diffrender import cli, fit, fit_report

ROOT = Path(__file__).resolve().parent.parent
STAR_KNOT = ROOT / "assets" / "star_knot.obj"
QUICK = ["--views", "5", "--size", "48", "--threads", "1", "--quiet"]


@pytest.fixture(autouse=True)
def _fewer_samples(monkeypatch):
    monkeypatch.setattr(fit_report, "SURFACE_SAMPLES", 5_000)


def run(*arguments: object) -> int:
    return cli.main(["fit", *map(str, arguments)])


def environment() -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def test_fit_writes_everything_it_promises(tmp_path, capsys, monkeypatch, set_threads):
    stages = (fit.Stage(0.5, None, 2, 5, 20.0), fit.Stage(0.5, 0.05, 1, 5, 16.0))  # most time is spent on fine meshes
    coarse = make_dataclass("Coarse", [("stages", tuple, stages)], bases=(fit.FitSettings,), frozen=True)
    monkeypatch.setattr(fit, "FitSettings", coarse)
    out = tmp_path / "new" / "folder"
    assert run("--mesh", STAR_KNOT, "--out", out, "--steps", 12, "--seed", 3, "--edges", "segments", *QUICK) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "Chamfer distance" in printed.out
    assert f"Results in {out}" in printed.out
    videos = [name for name in ("turntable.mp4", "turntable.gif") if (out / name).is_file()]
    assert len(videos) == 1
    expected = {"before.png", "after.png", "progress.png", "loss.png", "mesh.obj", "mesh.ply", "mesh.glb"}
    assert {path.name for path in out.iterdir()} == expected | {"report.json", "report.md", *videos}

    report = json.loads((out / "report.json").read_text())
    assert (report["steps"], report["views"], report["size"], report["interrupted"]) == (12, 5, 48, False)
    assert (report["settings"]["seed"], report["settings"]["edges"]) == (3, "segments")
    assert report["chamfer_ratio"] == pytest.approx(report["start"]["chamfer"] / report["final"]["chamfer"])
    assert report["chamfer_ratio"] > 1
    assert len(report["final"]["silhouette_iou_unseen"]) == 4
    assert report["chamfer_floor"] < report["final"]["chamfer"]
    text = (out / "report.md").read_text()
    assert "symmetric Chamfer distance" in text
    assert "after.png" in text

    # Reference above, recovered below, four unseen views, on white.
    after = imageio.imread(out / "after.png")
    assert after.shape == (96, 192, 3)
    assert (after[0] == 255).all()
    assert (after[:48].reshape(-1, 3) < 250).any(1).mean() > 0.05
    assert not (after[:48] == after[48:]).all()

    # The mesh lies where the source lies.
    source, recovered = dr.load_mesh(STAR_KNOT), dr.load_mesh(out / "mesh.obj")
    assert (recovered.vertices.mean(0) - source.vertices.mean(0)).norm() < 0.3
    scale = recovered.vertices.amax() - recovered.vertices.amin()
    assert scale == pytest.approx(float(source.vertices.amax() - source.vertices.amin()), rel=0.5)
    for suffix in (".ply", ".glb"):
        other = dr.load_mesh(out / f"mesh{suffix}")
        torch.testing.assert_close(other.vertices, recovered.vertices, atol=1e-5, rtol=1e-5)


def wrong_inputs(folder: Path) -> dict[str, tuple[list[object], str]]:
    def written(name: str, text: str) -> Path:
        (folder / name).write_text(text)
        return folder / name

    out, file = folder / "out", written("file", "in the way")
    triangle = "v 0 0 0\nv 1 0 0\nv 0 1 0\n"
    return {
        "missing file": (["--mesh", folder / "none.obj", "--out", out], "none.obj', which does not exist"),
        "folder": (["--mesh", folder, "--out", out], "must end in one of"),
        "not a mesh": (["--mesh", written("text.obj", "once upon a time\n"), "--out", out], "Is it an OBJ file?"),
        "bytes": (["--mesh", written("bytes.ply", "\x00\x01\x02"), "--out", out], "must be a .ply file"),
        "unknown kind": (["--mesh", written("mesh.txt", triangle), "--out", out], "must end in one of .obj"),
        "empty mesh": (["--mesh", written("empty.obj", triangle), "--out", out], "must hold at least one face"),
        "empty file": (["--mesh", written("nothing.obj", ""), "--out", out], "must hold OBJ vertices"),
        "one point": (["--mesh", written("p.obj", "v 1 1 1\nf 1 1 1\n"), "--out", out], "must have an extent"),
        "line": (["--mesh", written("l.obj", "v 0 0 0\nv 1 2 3\nf 1 2 2\n"), "--out", out], "triangles with an area"),
        "NaN": (["--mesh", written("n.obj", "v nan 0 0\nv 1 2 3\nf 1 2 2\n"), "--out", out], "finite vertices"),
        "file as folder": (["--mesh", STAR_KNOT, "--out", file], "--out must be a folder that can be written"),
        "below a file": (["--mesh", STAR_KNOT, "--out", file / "out"], "--out must be a folder that can be written"),
        "unwritable": (
            ["--mesh", STAR_KNOT, "--out", "/proc/diffrender"],
            "--out must be a folder that can be written",
        ),
        "device": (["--mesh", STAR_KNOT, "--out", out, "--device", "abacus"], "--device must be cpu or cuda"),
    }


@pytest.mark.parametrize(
    "case",
    [
        "missing file", "folder", "not a mesh", "bytes", "unknown kind", "empty mesh", "empty file", "one point",
        "line", "NaN", "file as folder", "below a file", "unwritable", "device",
    ],
)  # fmt: skip
def test_wrong_input_is_one_line_and_exit_code_2(tmp_path, capsys, case):
    arguments, message = wrong_inputs(tmp_path)[case]
    assert run(*arguments, *QUICK) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("diffrender fit: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "--out", "x"], "the following arguments are required: --mesh"),
        (["fit", "--mesh", "a.obj", "--out", "x", "--size", "47"], "must be even and from 16 to 4096, got 47"),
        (["fit", "--mesh", "a.obj", "--out", "x", "--size", "1000000"], "from 16 to 4096, got 1000000"),
        (["fit", "--mesh", "a.obj", "--out", "x", "--seed", str(10**30)], "must be from -9223372036854775808"),
        (["fit", "--mesh", "a.obj", "--out", "x", "--threads", "0"], "must be from 1 to 1024, got 0"),
        (["fit", "--mesh", "a.obj", "--out", "x", "--steps", "-1"], "must be from 0 to 1000000000, got -1"),
        (["fit", "--mesh", "a.obj", "--out", "x", "--views", "many"], "invalid integer value: 'many'"),
        (["paint"], "invalid choice: 'paint'"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_wrong_options_are_one_line_and_exit_code_2(capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_missing_packages_are_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    assert run("--mesh", STAR_KNOT, "--out", tmp_path, *QUICK) == 2
    assert "pip install diffrender-torch[fit]" in capsys.readouterr().err


def test_the_module_runs_and_explains_itself():
    command = [sys.executable, "-m", "diffrender", "fit", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    assert "recovers its shape from those pictures alone" in " ".join(result.stdout.split())


@pytest.fixture
def heeds_ctrl_c():
    """A shell makes what it starts in the background deaf to SIGINT, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_ctrl_c_at(step: int, times: int, monkeypatch) -> None:
    """Makes the progress bar raise SIGINT when it hears of that step."""
    update = cli._Progress.update

    def and_interrupt(self, number, difference):
        update(self, number, difference)
        if number == step:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(cli._Progress, "update", and_interrupt)


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_stops_cleanly_with_what_there_is(tmp_path, capsys, monkeypatch, set_threads):
    press_ctrl_c_at(5, 1, monkeypatch)
    assert run("--mesh", STAR_KNOT, "--out", tmp_path, "--steps", 1000, *QUICK) == 130
    printed = capsys.readouterr()
    assert printed.err == "Stopped after 5 of 1000 steps; writing what there is.\n"
    assert "Chamfer distance" in printed.out
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["interrupted"], report["steps"]) == (True, 5)
    assert report["final"]["image_error"]["silhouette"] < report["start"]["image_error"]["silhouette"]
    assert (tmp_path / "after.png").is_file()
    assert "stopped early" in (tmp_path / "report.md").read_text()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_a_second_ctrl_c_stops_at_once(tmp_path, capsys, monkeypatch, set_threads):
    press_ctrl_c_at(2, 2, monkeypatch)
    assert run("--mesh", STAR_KNOT, "--out", tmp_path, "--steps", 1000, *QUICK) == 130
    assert capsys.readouterr().err == "diffrender fit: interrupted.\n"
    assert not (tmp_path / "report.json").exists()


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_reaches_the_command_from_outside(tmp_path):
    """As from a terminal: no traceback, and a report, whatever the command is doing at that moment."""
    command = [sys.executable, "-m", "diffrender", "fit", "--mesh", str(STAR_KNOT), "--out", str(tmp_path / "out")]
    command += ["--views", "4", "--size", "48", "--steps", "100000", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()) as job:
        deadline = time.monotonic() + 120
        while not (tmp_path / "out").is_dir() and time.monotonic() < deadline:
            time.sleep(0.05)
        job.send_signal(signal.SIGINT)
        _, errors = job.communicate(timeout=120)
    assert job.returncode == 130, errors
    assert "Traceback" not in errors
    assert "of 100000 steps; writing what there is" in errors
    assert json.loads((tmp_path / "out" / "report.json").read_text())["interrupted"]
