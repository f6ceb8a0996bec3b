"""One wheel for every CPython and every torch: installed into fresh environments, imported, a picture rendered.

The interpreter of the tests is always one of them. Others are found as python3.10, python3.11, ... on the PATH and
through DIFFRENDER_TEST_PYTHONS (a list like PATH), where they have torch >= 2.10 and NumPy; the new environment borrows
those and nothing else.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diffrender import _library
from tools import build_library

ROOT = Path(__file__).resolve().parents[1]

PROBE = """
import importlib.util, json, re, sys, sysconfig
folders = {}
for name in ("torch", "numpy"):
    spec = importlib.util.find_spec(name)
    folders[name] = None if spec is None or spec.origin is None else sysconfig.get_paths()["purelib"]
version = ""
if folders["torch"]:
    import torch
    version = torch.__version__
print(json.dumps({"python": list(sys.version_info[:2]), "torch": version, "numpy": folders["numpy"] is not None,
                  "site": folders["torch"]}))
"""

RENDER = """
import json, sys, torch
import diffrender as dr
from diffrender import info
corners = torch.tensor([[-0.8, -0.8, 0.0, 1.0], [0.8, -0.8, 0.0, 1.0], [-0.8, 0.8, 0.0, 1.0]], requires_grad=True)
triangles = torch.tensor([[0, 1, 2]])
fragments = dr.rasterize(corners, triangles, (64, 64))
image = dr.interpolate(torch.eye(3), triangles, fragments)
image = dr.antialias(image, fragments, corners, triangles)
image.square().sum().backward()
result = {"file": dr.__file__, "covered": int((fragments.triangle_id >= 0).sum())}
result |= {"sum": round(float(image.detach().sum()), 3), "grad": round(float(corners.grad.norm()), 3)}
operators = info.collect()["operators"]
print(json.dumps(result | {"operators": len(operators), "cuda": sum("cuda" in x for x in operators.values())}))
"""


def probe(interpreter: str) -> dict | None:
    """What an interpreter has, or None where it does not start."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([interpreter, "-c", PROBE], env=environment, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def interpreters() -> list[tuple[str, dict]]:
    """Those that have what the wheel needs, each combination of versions once; the one of the tests first."""
    named = [path for path in os.environ.get("DIFFRENDER_TEST_PYTHONS", "").split(os.pathsep) if path]
    found = [shutil.which(f"python3.{minor}") for minor in range(10, 16)]
    usable: dict[tuple, tuple[str, dict]] = {}
    for path in [sys.executable, *named, *[path for path in found if path]]:
        has = probe(path)
        if has is None or not has["numpy"] or has["python"] < [3, 10]:
            continue
        if tuple(int(part) for part in has["torch"].split(".")[:2] if part) >= (2, 10):
            usable.setdefault((*has["python"], has["torch"]), (path, has))
    return list(usable.values())


def arch_list(archs: list[str]) -> str:
    """What TORCH_CUDA_ARCH_LIST has to be for a build to have these: sm_90, compute_90 -> 9.0+PTX."""
    machine, ptx = ([a.split("_")[1] for a in archs if a.startswith(kind)] for kind in ("sm_", "compute_"))
    return ";".join(f"{number[:-1]}.{number[-1]}{'+PTX' * (number in ptx)}" for number in machine)


def test_arch_list_is_that_of_the_build():
    known = ["7.5", "8.0", "9.0", "12.0"]
    for given in ("8.0", "7.5;9.0+PTX", "8.0;12.0+PTX"):
        archs, _ = build_library.gencode_flags(given, known)
        assert arch_list(archs) == given


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")
def test_one_wheel_runs_in_fresh_environments(tmp_path):
    wheels = tmp_path / "wheels"
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "--wheel-dir"]
    # As the library of this tree was built, so that nothing is compiled again: with CUDA kernels if it has them.
    info = json.loads((_library.LIBRARY_FOLDER / "build_info.json").read_text())
    as_built = {"DIFFRENDER_CUDA": "0" if info["cuda"] is None else "1", "DIFFRENDER_LEVELS": " ".join(info["levels"])}
    if info["cuda"] is not None:
        as_built["TORCH_CUDA_ARCH_LIST"] = arch_list(info["cuda"]["archs"])
    subprocess.run([*command, str(wheels), str(ROOT)], env={**os.environ, **as_built}, check=True)
    (wheel,) = wheels.glob("diffrender_torch-*-py3-none-*.whl")

    results = {}
    for number, (interpreter, has) in enumerate(interpreters()):
        home = tmp_path / f"environment{number}"
        subprocess.run([interpreter, "-m", "venv", "--without-pip", str(home)], check=True)
        python = home / "bin" / "python"
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
        subprocess.run([*pip, str(wheel)], check=True)
        (site,) = home.glob("lib/python3.*/site-packages")
        (site / "borrowed.pth").write_text(has["site"] + "\n")
        hidden = ("PYTHONPATH", "DIFFRENDER_CPU_LEVEL")
        environment = {key: value for key, value in os.environ.items() if key not in hidden}
        render = [python, "-c", RENDER]
        done = subprocess.run(render, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{has}: {done.stderr[-2000:]}"
        result = json.loads(done.stdout)
        assert Path(result.pop("file")).is_relative_to(site)
        results[f"Python {has['python']}, torch {has['torch']}"] = result
    print("\n".join(f"{name}: {result}" for name, result in results.items()))
    assert len({json.dumps(result) for result in results.values()}) == 1, results
    result = next(iter(results.values()))
    assert result["covered"] > 1000
    assert result["cuda"] == (0 if info["cuda"] is None else result["operators"])
    if len({name.split(",", 2)[1] for name in results}) < 2:
        pytest.skip("only one CPython here has torch: name others in DIFFRENDER_TEST_PYTHONS")
