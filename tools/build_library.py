"""Compiles csrc/ into the shared libraries under diffrender/_lib.

Every csrc/*.cpp is compiled once per x86-64 level (other machines: once), every csrc/*.cu once in all, and each level
is linked into one library: libdiffrender_baseline.so, libdiffrender_avx2.so, and on request libdiffrender_avx512.so. It
uses the LibTorch stable ABI only, so that one file serves every Python and every torch >= 2.10. Objects live in build/
and are compiled again when their source, a header they include (compiler-written dependency files) or their command
changed.

Environment:
  CXX                    C++ compiler, default g++
  MAX_JOBS               compilers run at once, default the CPUs this process may use
  DIFFRENDER_CUDA        0 = never, 1 = always (an error without nvcc), unset = when nvcc is found
  CUDA_HOME              where bin/nvcc is; otherwise PATH is searched
  TORCH_CUDA_ARCH_LIST   as in torch: "8.0;9.0+PTX"; default: all of DEFAULT_CUDA_ARCHS that nvcc knows, plus PTX
  DIFFRENDER_LEVELS      a subset of "baseline avx2 avx512"; default: the better of the first two that this machine runs
  DIFFRENDER_CXXFLAGS    extra compiler and linker flags, e.g. "-g -fsanitize=address"
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = Path("csrc")  # relative to ROOT: the compilers run there, so that __FILE__ holds no path of this machine
PRECOMPILED = SOURCES / "core/precompiled.h"
OBJECTS = Path("build/objects")
LIBRARIES = Path("diffrender/_lib")

MINIMUM_TORCH = (2, 10)
TORCH_TARGET_VERSION = "0x020a000000000000"  # the stable ABI of MINIMUM_TORCH

LEVEL_FLAGS = {
    "baseline": ["-march=x86-64-v2"],
    "avx2": ["-march=x86-64-v3", "-mno-fma"],
    "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512", "-mno-fma"],
}
# AVX-512 is built on request only: blocks of kLanes = 8 floats fill an AVX2 register; no gain was measured.
DEFAULT_LEVELS = ("baseline", "avx2")  # what a wheel for any machine needs; see chosen_levels
# No fast-math and no contraction: both devices and all levels have to agree on coverage bit for bit. The two -fno flags
# drop errno and trap bookkeeping only, which changes no result.
CXX_FLAGS = [
    "-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-ffp-contract=off",
    "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd",
    "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror=return-type",
    f"-DTORCH_TARGET_VERSION={TORCH_TARGET_VERSION}",
]  # fmt: skip
NVCC_FLAGS = [
    "-std=c++20", "-O3", "--fmad=false", "--extended-lambda", "-cudart", "static",
    "-Xcompiler", "-fPIC,-fvisibility=hidden,-ffp-contract=off", "-DDIFFRENDER_CUDA",
]  # fmt: skip
# libtorch.so is kept as a dependency although nothing is taken from it: in a CUDA build of torch it leads the loader to
# libtorch_cuda.so, where the weak stream getter lives.
LINK_FLAGS = ["-shared", "-Wl,-z,defs", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-Wl,--as-needed"]

DEFAULT_CUDA_ARCHS = ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"]


class BuildError(Exception):
    """A build that cannot go on; the text says what to do."""


@dataclass(frozen=True)
class Torch:
    """Where the installed torch keeps headers and libraries; found without the seconds that importing it takes."""

    version: str
    include: Path
    lib: Path


@dataclass(frozen=True)
class Cuda:
    nvcc: str
    version: str
    archs: list[str]
    gencode: list[str]
    lib_folders: list[str]


@dataclass(frozen=True)
class Compilation:
    label: str
    output: Path
    command: list[str]  # without the dependency file and output options
    signature: str  # what else the output depends on: compiler and torch versions


def build(root: Path = ROOT) -> list[Path]:
    """Brings diffrender/_lib up to date and returns the libraries in it (none while csrc/ holds no source)."""
    start = time.monotonic()
    # Long files first: the last one to be compiled must not keep one processor busy alone.
    cpp = sorted((root / SOURCES).glob("*.cpp"), key=lambda path: (-path.stat().st_size, path.name))
    if not cpp:
        print("diffrender: csrc/ holds no .cpp file yet, nothing to build")
        return []
    (root / OBJECTS).mkdir(parents=True, exist_ok=True)
    (root / LIBRARIES).mkdir(parents=True, exist_ok=True)
    with open(root / OBJECTS / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two builds in one tree would write the same objects
        torch = find_torch()
        cxx = shlex.split(os.environ.get("CXX", "g++"))
        cxx_version = first_line([*cxx, "--version"])
        cuda, cuda_reason = find_cuda()
        levels = chosen_levels()
        print(f"diffrender: {cxx_version}, torch {torch.version}, levels {' '.join(levels)}, {cuda_reason}", flush=True)

        extra = shlex.split(os.environ.get("DIFFRENDER_CXXFLAGS", ""))
        signature = f"{cxx_version} | torch {torch.version}"
        host = host_compilations(cpp, cxx, levels, torch, extra, cuda is not None, signature)
        device = device_compilations(sorted((root / SOURCES).glob("*.cu")), cuda) if cuda else []
        is_gcc = "Free Software Foundation" in output_of([*cxx, "--version"])  # under whatever name
        with_header = is_gcc and (root / PRECOMPILED).is_file()
        headers = {level: precompile(root, per_level) for level, per_level in host.items()} if with_header else {}
        compiled = run_all(headers, host, device, root)

        libraries = []
        for level, per_level in host.items():
            objects = [c.output for c in per_level] + [c.output for c in device]
            libraries.append(link(level, objects, cxx, torch, cuda, extra, root))
        remove_stale(root, libraries)
        write_build_info(root, cxx_version, torch, levels, cuda)
    seconds = time.monotonic() - start
    print(f"diffrender: {compiled} compiled, {len(libraries)} libraries in {LIBRARIES} ({seconds:.1f} s)", flush=True)
    return libraries


def find_torch() -> Torch:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError("torch is not installed in this Python. Run `make setup`, or install torch>=2.10 first.")
    folder = Path(spec.origin).parent
    match = re.search(r"__version__ = '([^']+)'", (folder / "version.py").read_text())
    version = match.group(1) if match else "0"
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < MINIMUM_TORCH:
        raise BuildError(f"torch must be 2.10 or newer (LibTorch stable ABI), got {version}.")
    return Torch(version, folder / "include", folder / "lib")


def chosen_levels() -> list[str]:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return ["baseline"]
    asked = os.environ.get("DIFFRENDER_LEVELS", "").replace(",", " ").split()
    unknown = [level for level in asked if level not in LEVEL_FLAGS]
    if unknown:
        raise BuildError(f"DIFFRENDER_LEVELS must name levels of {', '.join(LEVEL_FLAGS)}, got {', '.join(unknown)}.")
    return [level for level in LEVEL_FLAGS if level in (asked or (this_level(),))]


def this_level() -> str:
    """The best of DEFAULT_LEVELS that this machine runs: a build from source is for the machine that it is built on."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return DEFAULT_LEVELS[0]
    return "avx2" if {"avx2", "fma", "bmi1", "bmi2", "f16c"} <= flags else "baseline"


# ---- CUDA


def find_cuda() -> tuple[Cuda | None, str]:
    """The CUDA toolkit to build with, and one phrase saying what was decided and why."""
    wish = os.environ.get("DIFFRENDER_CUDA", "")
    if wish not in ("", "0", "1"):
        raise BuildError(f"DIFFRENDER_CUDA must be 0 or 1, got {wish!r}.")
    if wish == "0":
        return None, "CPU only (DIFFRENDER_CUDA=0)"
    nvcc = find_nvcc()
    if nvcc is None:
        if wish == "1":
            raise BuildError("DIFFRENDER_CUDA=1, but there is no nvcc on PATH or in CUDA_HOME/bin.")
        return None, "CPU only (no nvcc on PATH or in CUDA_HOME)"
    release = re.search(r"release ([\d.]+)", output_of([nvcc, "--version"]))
    version = release.group(1) if release else "unknown"
    archs, gencode = gencode_flags(os.environ.get("TORCH_CUDA_ARCH_LIST", ""), known_archs(nvcc))
    cuda = Cuda(nvcc, version, archs, gencode, cuda_lib_folders(nvcc))
    return cuda, f"CUDA {version} for {' '.join(archs)}"


def find_nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME")
    if home:
        candidate = Path(home) / "bin" / "nvcc"
        if candidate.is_file():
            return str(candidate)
    return shutil.which("nvcc")


def known_archs(nvcc: str) -> list[str]:
    """What `nvcc --list-gpu-arch` prints, as "9.0"."""
    found = re.findall(r"compute_(\d+)(\d)\b", output_of([nvcc, "--list-gpu-arch"]))
    return [f"{major}.{minor}" for major, minor in sorted(found, key=lambda pair: (int(pair[0]), int(pair[1])))]


def gencode_flags(arch_list: str, known: list[str]) -> tuple[list[str], list[str]]:
    """nvcc options for a TORCH_CUDA_ARCH_LIST; an empty list means the default archs plus PTX of the newest of them."""
    asked = arch_list.replace(",", " ").replace(";", " ").split()
    if not asked:
        asked = [arch for arch in DEFAULT_CUDA_ARCHS if arch in known]
        if not asked:
            raise BuildError(f"this nvcc knows none of {', '.join(DEFAULT_CUDA_ARCHS)}. Set TORCH_CUDA_ARCH_LIST.")
        asked[-1] += "+PTX"
    archs, flags = [], []
    for entry in asked:
        match = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", entry)
        if match is None or f"{match[1]}.{match[2]}" not in known:
            raise BuildError(
                f"TORCH_CUDA_ARCH_LIST must hold entries like 8.0 or 9.0+PTX that this nvcc knows "
                f"({', '.join(known)}), got {entry!r}."
            )
        number = match[1] + match[2] + match[3]
        archs.append("sm_" + number)
        flags += ["-gencode", f"arch=compute_{number},code=sm_{number}"]
        if match[4]:
            archs.append("compute_" + number)
            flags += ["-gencode", f"arch=compute_{number},code=compute_{number}"]
    return archs, flags


def cuda_lib_folders(nvcc: str) -> list[str]:
    """The -L options nvcc itself would link with: right also where nvcc is a wrapper script or a distribution's."""
    dry_run = output_of([nvcc, "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull])
    line = re.search(r"^#\$ LIBRARIES=(.*)$", dry_run, re.MULTILINE)
    return shlex.split(line.group(1)) if line else []


# ---- compiling and linking


def host_compilations(
    sources: list[Path], cxx: list[str], levels: list[str], torch: Torch, extra: list[str], cuda: bool, signature: str
) -> dict[str, list[Compilation]]:
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    common = [
        *cxx, *CXX_FLAGS, "-isystem", str(torch.include), f"-ffile-prefix-map={torch.include}=torch/include",
        *(["-DDIFFRENDER_CUDA"] if cuda else []),
    ]  # fmt: skip
    result = {}
    for level in levels:
        flags = [*common, *(LEVEL_FLAGS[level] if x86 else []), *extra]
        folder = OBJECTS / (f"{level}-cuda" if cuda else level)  # builds with and without keep their objects
        result[level] = [
            Compilation(
                f"{level} {source.name}",
                folder / f"{source.name}.o",
                [*flags, "-c", str(SOURCES / source.name)],
                signature,
            )
            for source in sources
        ]
    return result


def precompile(root: Path, per_level: list[Compilation]) -> Compilation:
    """The compilation of the common header, with the options of a level's sources."""
    first = per_level[0]
    output = first.output.parent / f"{PRECOMPILED.name}.gch"
    (root / output).parent.mkdir(parents=True, exist_ok=True)
    # What the compiler falls back to where it finds its own result unfit.
    fallback = root / output.with_suffix("")
    text = f'#include "{os.path.relpath(PRECOMPILED, output.parent)}"\n'
    if not fallback.is_file() or fallback.read_text() != text:
        fallback.write_text(text)
    options = first.command[:-2]  # without -c SOURCE
    level = first.label.split()[0]
    return Compilation(
        f"{level} {PRECOMPILED.name}", output, [*options, "-x", "c++-header", str(PRECOMPILED)], first.signature
    )


def with_precompiled(compilation: Compilation, root: Path) -> Compilation:
    header = compilation.output.parent / PRECOMPILED.name
    command = [*compilation.command[:-2], "-include", str(header), *compilation.command[-2:]]
    # Dependency files leave out what came with the precompiled header: a new one makes all that used it stale.
    made = (root / f"{header}.gch.stamp").stat().st_mtime_ns
    signature = f"{compilation.signature} | {PRECOMPILED.name} {made}"
    return Compilation(compilation.label, compilation.output, command, signature)


def device_compilations(sources: list[Path], cuda: Cuda) -> list[Compilation]:
    host_compiler = os.environ.get("CXX", "")
    ccbin = ["-ccbin", host_compiler] if host_compiler and " " not in host_compiler else []
    flags = [cuda.nvcc, *NVCC_FLAGS, *ccbin, *cuda.gencode]
    folder = OBJECTS / "-".join(["cuda", *cuda.archs])
    return [
        Compilation(
            f"cuda {source.name}",
            folder / f"{source.name}.o",
            [*flags, "-c", str(SOURCES / source.name)],
            f"nvcc {cuda.version}",
        )
        for source in sources
    ]


def run_all(
    headers: dict[str, Compilation], host: dict[str, list[Compilation]], device: list[Compilation], root: Path
) -> int:
    """Compiles what is out of date, several at once; shows the messages of each and raises when one failed.

    The header of a level comes first and keeps one processor busy; meanwhile another begins with a source that does
    without it. The others of the level follow the header.
    """
    jobs = int(os.environ.get("MAX_JOBS") or len(os.sched_getaffinity(0)))

    def run(job: Compilation, header: Future[bool] | None) -> bool:
        if header is not None:
            header.result()
            job = with_precompiled(job, root)
        if not is_stale(job, root):
            return False
        result, seconds = compile_one(job, root)
        print(f"  {job.label} {seconds:.1f} s", flush=True)
        if result.stdout:
            print(result.stdout, file=sys.stderr, flush=True)
        if result.returncode != 0:
            raise BuildError(job.label)
        return True

    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        waited_for = {level: pool.submit(run, header, None) for level, header in headers.items()}
        futures = list(waited_for.values())
        plain = [per_level[1] for level, per_level in host.items() if level in headers and len(per_level) > 2]
        futures += [pool.submit(run, job, None) for job in [*plain, *device]]
        for level, per_level in host.items():
            futures += [pool.submit(run, job, waited_for.get(level)) for job in per_level if job not in plain]
    failed = sorted({str(error) for future in futures if isinstance(error := future.exception(), BuildError)})
    if failed:
        raise BuildError(f"compiling failed: {', '.join(failed)}. The compiler's messages stand above.")
    return sum(future.result() for future in futures)


def compile_one(job: Compilation, root: Path) -> tuple[subprocess.CompletedProcess[str], float]:
    output = root / job.output
    output.parent.mkdir(parents=True, exist_ok=True)
    stamp = Path(f"{output}.stamp")
    stamp.unlink(missing_ok=True)  # an interrupted or failed compilation must not count as done
    began_ns = time.time_ns()
    start = time.monotonic()
    command = [*job.command, "-MMD", "-MF", f"{job.output}.d", "-o", str(job.output)]
    result = subprocess.run(command, cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if result.returncode == 0:
        # An edit made while the compiler ran has to count as newer than the object, so the stamp bears the start time.
        stamp.write_text(signature_of(job))
        os.utime(stamp, ns=(began_ns, began_ns))
    return result, time.monotonic() - start


def is_stale(job: Compilation, root: Path) -> bool:
    output, stamp, dependencies = (root / f"{job.output}{suffix}" for suffix in ("", ".stamp", ".d"))
    if not (output.is_file() and stamp.is_file() and dependencies.is_file()):
        return True
    if stamp.read_text() != signature_of(job):
        return True
    compiled_ns = stamp.stat().st_mtime_ns
    for name in dependency_files(dependencies.read_text()):
        path = root / name
        if not path.is_file() or path.stat().st_mtime_ns >= compiled_ns:
            return True
    return False


def dependency_files(text: str) -> list[str]:
    """Prerequisites of the one rule in a compiler-written make file; spaces in names are escaped there."""
    _, _, prerequisites = text.replace("\\\n", " ").partition(": ")
    return [name.replace("\\ ", " ") for name in re.split(r"(?<!\\)\s+", prerequisites) if name]


def signature_of(job: Compilation) -> str:
    return hashlib.sha256("\0".join([job.signature, *job.command]).encode()).hexdigest()


def link(
    level: str, objects: list[Path], cxx: list[str], torch: Torch, cuda: Cuda | None, extra: list[str], root: Path
) -> Path:
    library = LIBRARIES / f"libdiffrender_{level}.so"
    command = [*cxx, *map(str, objects), *extra, f"-L{torch.lib}", *LINK_FLAGS]
    if cuda:
        command += [*cuda.lib_folders, "-lcudart_static", "-ldl", "-lrt", "-lpthread", "-Wl,--exclude-libs,ALL"]
    stamp = root / OBJECTS / f"{library.name}.stamp"
    signature = hashlib.sha256("\0".join([*command, torch.version]).encode()).hexdigest()
    newest_object_ns = max((root / path).stat().st_mtime_ns for path in objects)
    if (
        (root / library).is_file()
        and stamp.is_file()
        and stamp.read_text() == signature
        and (root / library).stat().st_mtime_ns > newest_object_ns
    ):
        return library
    # Linked beside the target and moved over it: a process that has the old library mapped keeps it whole.
    unfinished = OBJECTS / f"{library.name}.new"
    result = subprocess.run(
        [*command, "-o", str(unfinished)], cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if result.returncode != 0:
        raise BuildError(f"linking {library.name} failed:\n{result.stdout}")
    os.replace(root / unfinished, root / library)
    stamp.write_text(signature)
    return library


def remove_stale(root: Path, libraries: list[Path]) -> None:
    """Libraries of levels that were not built now come from other sources than the rest: away with them."""
    for path in (root / LIBRARIES).glob("libdiffrender_*.so"):
        if path.name not in {library.name for library in libraries}:
            path.unlink()


def write_build_info(root: Path, cxx_version: str, torch: Torch, levels: list[str], cuda: Cuda | None) -> None:
    info = {
        "compiler": cxx_version,
        "torch": torch.version,
        "levels": levels,
        "cuda": {"version": cuda.version, "archs": cuda.archs} if cuda else None,
    }
    (root / LIBRARIES / "build_info.json").write_text(json.dumps(info, indent=2) + "\n")


# ---- small helpers


def output_of(command: list[str]) -> str:
    try:
        result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    except OSError as error:
        raise BuildError(f"cannot run {command[0]}: {error.strerror}. Is it installed?") from error
    if result.returncode != 0:
        raise BuildError(f"`{shlex.join(command)}` failed:\n{result.stdout}")
    return result.stdout


def first_line(command: list[str]) -> str:
    return output_of(command).splitlines()[0]


if __name__ == "__main__":
    try:
        build()
    except BuildError as error:
        sys.exit(f"diffrender: {error}")
