"""The CUDA side as far as sources and libraries tell: registered ops, instantiated functors, code for each chip."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diffrender import _library, info
from tools import build_library, cuda_report

ROOT = Path(__file__).resolve().parents[1]
HEADERS = sorted([*ROOT.glob("csrc/*.h"), *ROOT.glob("csrc/core/*.h")])
BUILT = json.loads((_library.LIBRARY_FOLDER / "build_info.json").read_text())["cuda"]
needs_cuda_build = pytest.mark.skipif(BUILT is None, reason="the library was built without CUDA")


def schemas(text: str) -> set[str]:
    """Names in m.def(...), whose string may be cut over lines."""
    return set(re.findall(r'm\.def\(\s*"(\w+)\(', text))


def test_every_op_is_registered_for_both_devices_by_one_line():
    for path in sorted(ROOT.glob("csrc/*.cpp")):
        text = path.read_text()
        assert "STABLE_TORCH_LIBRARY_IMPL" not in text, path.name  # DR_REGISTER names both devices
        assert schemas(text) == set(re.findall(r'DR_REGISTER\("(\w+)"', text)), path.name


def test_every_op_of_the_library_is_declared_in_the_sources():
    declared = set().union(*(schemas(path.read_text()) for path in ROOT.glob("csrc/*.cpp")))
    for path in ROOT.glob("diffrender/ops/*.py"):  # compositions of torch ops, for every device
        declared |= set(re.findall(r'_library\.define\("(\w+)\(', path.read_text()))
    assert declared == set(info.collect()["operators"])


def device_functors() -> dict[str, str]:
    """Structs with a device `operator()` over a range of items, and the file of each."""
    found = {}
    for path in HEADERS:
        name = ""
        for line in path.read_text().splitlines():
            if match := re.match(r"(?:template .*)?struct (\w+)", line):
                name = match[1]
            if re.match(r"  DR_HD void operator\(\)\(int64_t", line):
                found[name] = path.name
    return found


def test_every_functor_has_an_instantiation():
    """What a .cu file does not instantiate fails when a build with CUDA is linked; here no nvcc is needed to see it."""
    functors = device_functors()
    assert {"GpuRasterizer", "InterpolateForward", "FixedPointUnit", "SumPieces", "UsePieces"} < set(functors)
    instances = "\n".join(path.read_text() for path in ROOT.glob("csrc/*.cu"))
    missing = {name: file for name, file in functors.items() if not re.search(rf"\b{name}\b", instances)}
    assert missing == {}


# Scatters whose lanes need no sum: neighbouring pixels add to different places of what is spread over 32.
SPREAD = {"ShadeBackward", "IrradianceShBackward", "PerturbNormalsBackward"}


def test_every_scatter_sums_within_a_warp_first():
    """launch_scatter hands those with `kValues` to whole warps; tests/native runs each of them on emulated ones."""
    sources = "\n".join(path.read_text() for path in ROOT.glob("csrc/*.cu"))
    sources = re.sub(r"#define DR_INSTANTIATE_SCATTER.*", "", sources)
    scatters = set(re.findall(r"DR_INSTANTIATE_SCATTER\(\w+, (?:diffrender::)?(\w+)", sources))
    assert {"RasterizeBackward", "SumPieces", "VertexNormalsSum", "PrefilterBackward"} < scatters
    structs = {}
    for path in HEADERS:
        for name, body in re.findall(r"\nstruct (\w+)[^;\n]*\{\n(.*?)\n\};", path.read_text(), re.DOTALL):
            structs[name] = body
    together = {name for name in scatters if re.search(r"static constexpr int kValues\b", structs[name])}
    assert scatters - together == SPREAD
    assert all("GradWriter" in structs[name] for name in SPREAD)
    emulated = "\n".join(path.read_text() for path in ROOT.glob("tests/native/*.cpp"))
    assert {name for name in together if name not in emulated} == set()


def test_no_host_function_waits_for_the_device():
    """Copies to the host, operators of torch that have to know how long their result is, and memory of CUDA's own."""
    waits = (
        r"DeviceType::CPU|aten::(nonzero|item|_local_scalar_dense|masked_select|_?unique)|cudaMem(cpy|set)|[sS]ynchronize"
        r"|cuda(Malloc|Free|Host)|from_blob"
    )
    found = {}
    for path in [*HEADERS, *ROOT.glob("csrc/*.c*"), *ROOT.glob("csrc/core/*.cuh")]:
        code = re.sub(r"//.*", "", path.read_text())
        if match := re.search(waits, code):
            found[path.name] = match[0]
    assert found == {}


def test_only_one_header_knows_the_device_macro():
    named = [path.name for path in HEADERS if "__CUDA_ARCH__" in path.read_text()]
    assert named == ["portable.h"]


@needs_cuda_build
def test_built_library_has_a_kernel_for_every_op_on_cuda():
    operators = info.collect()["operators"]
    assert [name for name, devices in operators.items() if "cuda" not in devices] == []


def find_cuobjdump() -> str:
    """PATH, the CUDA toolkit, or NVIDIA's packages for Python."""
    folders = [Path(home) / "bin" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    folders += [folder / "bin" for base in sys.path for folder in Path(base).glob("nvidia/cu*")]
    for candidate in [shutil.which("cuobjdump"), *(folder / "cuobjdump" for folder in folders)]:
        if candidate is not None and Path(candidate).is_file():
            return str(candidate)
    pytest.skip("no cuobjdump: pip install nvidia-cuda-cuobjdump")


def code_inside(path: Path) -> set[str]:
    """ "sm_80" for machine code, "compute_80" for PTX."""
    tool = find_cuobjdump()
    listed = [
        subprocess.run([tool, option, path], capture_output=True, text=True).stdout for option in ("-lelf", "-lptx")
    ]
    machine, ptx = (set(re.findall(r"\.(sm_\d+[af]?)\.", text)) for text in listed)
    return machine | {arch.replace("sm_", "compute_") for arch in ptx}


@needs_cuda_build
def test_built_library_has_code_for_every_architecture():
    for level in _library.built_levels():
        assert code_inside(_library.library_path(level)) == set(BUILT["archs"])


@pytest.mark.slow
def test_objects_have_code_for_every_architecture_asked(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0;9.0+PTX")
    monkeypatch.delenv("DIFFRENDER_CUDA", raising=False)
    cuda, reason = build_library.find_cuda()
    if cuda is None:
        pytest.skip(f"no nvcc: {reason}")
    (job,) = build_library.device_compilations([ROOT / "csrc" / "scatter.cu"], cuda)
    output = tmp_path / "scatter.o"
    subprocess.run([*job.command, "-o", str(output)], cwd=ROOT, check=True)
    assert code_inside(output) == {"sm_80", "sm_90", "compute_90"}


# ---- the report of registers and spills

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z6kernelIfEvPT_' for 'sm_80'
ptxas info    : Function properties for _Z6kernelIfEvPT_
    24 bytes stack frame, 8 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 24 bytes cumulative stack size, 392 bytes cmem[0]
ptxas info    : Compiling entry function '_Z6kernelIdEvPT_' for 'sm_80'
ptxas info    : Function properties for _Z6kernelIdEvPT_
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 62 registers, used 0 barriers, 392 bytes cmem[0]
"""


def test_report_reads_what_ptxas_says():
    single, double = cuda_report.parse("a.cu", LOG)
    assert (single.registers, single.stack_bytes, single.spill_store_bytes, single.spill_load_bytes) == (40, 24, 8, 16)
    assert single.spills
    assert not double.spills
    assert cuda_report.cell(single) == "40 / 24 / 24"


def test_report_compiles_once_and_names_what_spills(monkeypatch, tmp_path, capsys):
    """From end to end, with a compiler that only prints; a second run finds the log of the first."""
    if shutil.which("c++filt") is None:
        pytest.skip("no c++filt")
    folder = tmp_path / "tools"
    folder.mkdir()
    compiler, calls = folder / "nvcc", tmp_path / "calls"
    compiler.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --list-gpu-arch ] && { echo compute_80; exit 0; }\n'
        f"echo called >> {calls}\n"
        'while [ "$1" != -MF ]; do shift; done\n'
        f'touch "$4"; echo "$4: " > "$2"; cat {tmp_path / "log"}\n'
    )
    compiler.chmod(0o755)
    (tmp_path / "log").write_text(LOG)
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "a.cu").touch()
    monkeypatch.setattr(cuda_report, "ROOT", tmp_path)
    monkeypatch.setattr(build_library, "find_nvcc", lambda: str(compiler))
    monkeypatch.setattr(sys, "argv", ["cuda_report", "--check"])
    for _ in range(2):
        assert cuda_report.main() == 1
        printed = capsys.readouterr()
        assert "| sm_80 |" in printed.out
        assert "40 / 24 / 24" in printed.out
        assert printed.err.count("float32 kernel spills") == 1
        assert "float32 kernel spills on sm_80: void kernel<float>" in printed.err
    assert calls.read_text() == "called\n"


def test_report_names_kernels_by_their_functor():
    if shutil.which("c++filt") is None:
        pytest.skip("no c++filt")
    mangled = (
        "_ZN10diffrender14scatter_kernelINS_17RasterizeBackwardIfEEfEEvlT_NS_4SinkIT0_EE",
        "_ZN10diffrender12range_kernelINS_18InterpolateForwardIdLi3EEEEEvlT_",
    )
    assert cuda_report.readable(list(mangled)) == ["RasterizeBackward<float>, float", "InterpolateForward<double, 3>"]


def test_report_replaces_only_what_stands_between_its_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{cuda_report.BEGIN}\nold\n{cuda_report.END}\nafter\n")
    cuda_report.write_between_markers(page, "new")
    assert page.read_text() == f"before\n{cuda_report.BEGIN}\nnew\n{cuda_report.END}\nafter\n"
    page.write_text("no markers")
    with pytest.raises(build_library.BuildError, match="holds no lines"):
        cuda_report.write_between_markers(page, "new")
