"""Registers, stack and spills of every CUDA kernel, as ptxas reports them: `python tools/cuda_report.py`.

    --archs 8.0 9.0      compute capabilities to compile for; default 8.0
    --write docs/cuda.md puts the table between the two marker lines of that file
    --check              exit status 1 when a float32 kernel spills and is not in ALLOWED_SPILLS
    --only shade texture only the .cu files whose names begin so

Every csrc/*.cu is compiled once per capability with the options of the build and -Xptxas -v into
build/objects/cuda-report-*; what did not change since is not compiled again. Needs nvcc (CUDA_HOME or PATH), no GPU.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import build_library  # noqa: E402
from tools.build_library import BuildError, Compilation  # noqa: E402

BEGIN, END = "<!-- kernels: begin -->", "<!-- kernels: end -->"

# Kernels that may spill in float32, each with its reason.
ALLOWED_SPILLS: dict[str, str] = {}


@dataclass(frozen=True)
class Kernel:
    """What ptxas says about one kernel on one architecture."""

    source: str
    name: str  # functor with its template arguments
    arch: str
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int

    @property
    def is_float32(self) -> bool:
        return "double" not in self.name

    @property
    def spills(self) -> bool:
        return self.spill_store_bytes + self.spill_load_bytes > 0


def parse(source: str, log: str) -> list[Kernel]:
    """The kernels of one compilation's output with -Xptxas -v."""
    kernels: list[Kernel] = []
    entry, arch = "", ""
    properties: dict[str, tuple[int, ...]] = {}
    last_function = ""
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)' for '(sm_\w+)'", line):
            entry, arch = match.groups()
            properties = {}
        elif match := re.search(r"Function properties for (\S+)", line):
            last_function = match[1]
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            properties[last_function] = tuple(int(number) for number in match.groups())
        elif (match := re.search(r"Used (\d+) registers", line)) and entry:
            # Functions that are called and not inlined have properties of their own; a kernel answers for all of them.
            own = properties.get(entry, (0, 0, 0))
            called = [numbers for name, numbers in properties.items() if name != entry]
            stores, loads = (own[k] + sum(numbers[k] for numbers in called) for k in (1, 2))
            kernels.append(Kernel(source, entry, arch, int(match[1]), own[0], stores, loads))
            entry = ""
    return kernels


def readable(names: list[str]) -> list[str]:
    """Mangled kernel names -> the functor that each runs."""
    tool = shutil.which("c++filt") or shutil.which("cu++filt")
    if tool is None:
        raise BuildError("c++filt is not there. Install binutils.")
    text = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    result = []
    for line in text.splitlines():
        match = re.match(r"void diffrender::(?:range|scatter|warp_scatter)_kernel<(.*)>\(", line)
        functor = match[1] if match else line
        result.append(functor.replace("diffrender::", "").replace(" >", ">").strip())
    return result


def compilations(archs: list[str], prefixes: list[str]) -> list[Compilation]:
    nvcc = build_library.find_nvcc()
    if nvcc is None:
        raise BuildError("there is no nvcc on PATH or in CUDA_HOME/bin.")
    jobs = []
    for arch in archs:
        _, gencode = build_library.gencode_flags(arch, build_library.known_archs(nvcc))
        cuda = build_library.Cuda(nvcc, "", [], [*gencode, "-Xptxas", "-v"], [])
        for job in build_library.device_compilations(sorted((ROOT / build_library.SOURCES).glob("*.cu")), cuda):
            if not prefixes or job.output.name.startswith(tuple(prefixes)):
                output = build_library.OBJECTS / f"cuda-report-{arch}" / job.output.name
                jobs.append(Compilation(job.label, output, job.command, "report"))
    return jobs


def collect(archs: list[str], prefixes: list[str]) -> list[Kernel]:
    """Compiles what is out of date and returns the kernels, in the order of the files."""
    kernels = []
    for job in compilations(archs, prefixes):
        log = ROOT / f"{job.output}.log"
        if build_library.is_stale(job, ROOT) or not log.is_file():
            result, seconds = build_library.compile_one(job, ROOT)
            if result.returncode != 0:
                raise BuildError(f"{job.label} failed:\n{result.stdout}")
            log.write_text(result.stdout)
            print(f"  {job.output.name} {seconds:.0f} s", file=sys.stderr, flush=True)
        kernels += parse(job.output.name.removesuffix(".o"), log.read_text())
    names = readable([kernel.name for kernel in kernels])
    return [
        Kernel(k.source, name, k.arch, k.registers, k.stack_bytes, k.spill_store_bytes, k.spill_load_bytes)
        for k, name in zip(kernels, names, strict=True)
    ]


def table(kernels: list[Kernel]) -> str:
    """One Markdown row per kernel, the architectures side by side as `registers / stack / spilled bytes`."""
    archs = sorted({kernel.arch for kernel in kernels})
    rows: dict[tuple[str, str], dict[str, Kernel]] = {}
    for kernel in kernels:
        rows.setdefault((kernel.source, kernel.name), {})[kernel.arch] = kernel
    lines = ["| kernel | " + " | ".join(archs) + " |", "| --- |" + " --- |" * len(archs)]
    for (source, name), per_arch in rows.items():
        cells = [cell(per_arch[arch]) if arch in per_arch else "-" for arch in archs]
        lines.append(f"| {source.removesuffix('.cu')}: `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(kernel: Kernel) -> str:
    spilled = kernel.spill_store_bytes + kernel.spill_load_bytes
    return f"{kernel.registers} / {kernel.stack_bytes} / {spilled}"


def write_between_markers(path: Path, text: str) -> None:
    content = path.read_text()
    if BEGIN not in content or END not in content:
        raise BuildError(f"{path} holds no lines {BEGIN} and {END}.")
    before, rest = content.split(BEGIN, 1)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archs", nargs="+", default=["8.0"])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--write", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    try:
        kernels = collect(options.archs, options.only)
        text = table(kernels)
        if options.write is not None:
            write_between_markers(options.write, text)
        else:
            print(text)
    except BuildError as error:
        sys.exit(f"cuda_report: {error}")
    spilling = [k for k in kernels if k.is_float32 and k.spills and k.name not in ALLOWED_SPILLS]
    for kernel in spilling:
        print(f"float32 kernel spills on {kernel.arch}: {kernel.name}: {cell(kernel)}", file=sys.stderr)
    return 1 if options.check and spilling else 0


if __name__ == "__main__":
    sys.exit(main())
