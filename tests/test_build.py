"""The build and the loader: incremental compilation, CUDA options, levels, the error messages, the wheel."""

import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch

import diffrender
from diffrender import _library
from tools import build_library

ROOT = Path(__file__).resolve().parent.parent
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )


# ---- choosing and loading a library


def test_choose_level_takes_the_highest_that_is_built_and_supported():
    everything = ["baseline", "avx2", "avx512"]
    assert _library.choose_level("", ["baseline", "avx2"], everything) == "avx2"
    assert _library.choose_level("", everything, ["baseline", "avx2"]) == "avx2"
    assert _library.choose_level("", everything, everything) == "avx512"
    assert _library.choose_level("baseline", everything, everything) == "baseline"


@pytest.mark.parametrize(
    ("requested", "supported", "built", "message"),
    [
        ("", ["baseline"], [], r"no compiled library in .*_lib\. Build it with `make build`"),
        ("", ["baseline"], ["avx2"], r"this CPU supports baseline, but only avx2 is built"),
        ("sse9", ["baseline"], ["baseline"], r"must be one of baseline, avx2, avx512, got 'sse9'"),
        ("avx2", ["baseline", "avx2"], ["baseline"], r"that is built \(baseline\), got 'avx2'"),
        ("avx2", ["baseline"], ["baseline", "avx2"], r"that this CPU supports \(baseline\), got 'avx2'"),
    ],
)
def test_choose_level_says_why_and_what_to_do(requested, supported, built, message):
    with pytest.raises(ImportError, match=message):
        _library.choose_level(requested, supported, built)


@pytest.mark.parametrize(
    ("capability", "levels"),
    [
        ("DEFAULT", ["baseline"]),
        ("NO AVX", ["baseline"]),
        ("SVE256", ["baseline"]),
        ("AVX2", ["baseline", "avx2"]),
        ("AVX512", ["baseline", "avx2", "avx512"]),
    ],
)
def test_supported_levels_follow_the_capability_that_torch_reports(monkeypatch, capability, levels):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert _library.supported_levels() == levels


def test_load_without_a_built_library_names_the_cure(monkeypatch, tmp_path):
    monkeypatch.setattr(_library, "loaded_level", None)
    monkeypatch.setattr(_library, "LIBRARY_FOLDER", tmp_path)
    with pytest.raises(ImportError, match="make build"):
        _library.load()


def test_load_of_a_broken_library_is_one_import_error(monkeypatch, tmp_path):
    (tmp_path / "libdiffrender_baseline.so").write_bytes(b"not a library")
    monkeypatch.setattr(_library, "loaded_level", None)
    monkeypatch.setattr(_library, "LIBRARY_FOLDER", tmp_path)
    monkeypatch.delenv("DIFFRENDER_CPU_LEVEL", raising=False)
    with pytest.raises(ImportError, match=r"does not load with torch .*make build"):
        _library.load()
    assert _library.loaded_level is None


@pytest.mark.parametrize("version", ["2.9.1", "1.13.0+cpu"])
def test_load_with_an_old_torch_asks_for_an_upgrade(monkeypatch, version):
    monkeypatch.setattr(_library, "loaded_level", None)
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(ImportError, match="torch must be 2.10 or newer"):
        _library.load()


@pytest.mark.parametrize("level", _library.LEVELS)
def test_cpu_level_variable_picks_the_library(level):
    if level not in _library.built_levels() or level not in _library.supported_levels():
        pytest.skip(f"{level} is not built or not supported by this CPU")
    code = "import diffrender, torch; print(diffrender._library.loaded_level, torch.ops.diffrender.rasterize)"
    result = run_python(code, DIFFRENDER_CPU_LEVEL=level)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [level, "diffrender.rasterize"]


def test_unknown_cpu_level_stops_the_import_with_one_clear_line():
    result = run_python("import diffrender", DIFFRENDER_CPU_LEVEL="sse9")
    assert result.returncode == 1
    assert "ImportError: diffrender: DIFFRENDER_CPU_LEVEL must be one of" in result.stderr.splitlines()[-1]


@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm on this machine")
def test_library_needs_only_the_stable_c_interface_of_torch():
    for level in _library.built_levels():
        command = ["nm", "-D", "--undefined-only", str(_library.library_path(level))]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        symbols = [line.split()[-1] for line in lines]
        assert [name for name in symbols if name.startswith(("aoti_torch_", "torch_"))]
        # Mangled names of these namespaces would tie the library to one torch release.
        assert [name for name in symbols if name.startswith(("_ZN2at", "_ZN3c10", "_ZN5torch", "_ZNK3c10"))] == []


# ---- options of the build


def test_gencode_flags_default_to_the_known_architectures_and_ptx_of_the_newest():
    archs, flags = build_library.gencode_flags("", ["7.5", "8.0", "8.7", "9.0"])
    assert archs == ["sm_75", "sm_80", "sm_90", "compute_90"]
    assert flags[-2:] == ["-gencode", "arch=compute_90,code=compute_90"]
    assert "arch=compute_80,code=sm_80" in flags


def test_gencode_flags_follow_the_arch_list():
    archs, flags = build_library.gencode_flags("8.0;9.0a+PTX", ["8.0", "9.0"])
    assert archs == ["sm_80", "sm_90a", "compute_90a"]
    assert [flag for flag in flags if flag != "-gencode"] == [
        "arch=compute_80,code=sm_80",
        "arch=compute_90a,code=sm_90a",
        "arch=compute_90a,code=compute_90a",
    ]


@pytest.mark.parametrize("arch_list", ["9.9", "Hopper", "80;90"])
def test_gencode_flags_refuse_what_nvcc_does_not_know(arch_list):
    with pytest.raises(build_library.BuildError, match="TORCH_CUDA_ARCH_LIST must hold entries like 8.0"):
        build_library.gencode_flags(arch_list, ["8.0", "9.0"])


def test_find_cuda_says_what_it_decided(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("DIFFRENDER_CUDA", "0")
    assert build_library.find_cuda() == (None, "CPU only (DIFFRENDER_CUDA=0)")
    monkeypatch.delenv("DIFFRENDER_CUDA")
    assert build_library.find_cuda() == (None, "CPU only (no nvcc on PATH or in CUDA_HOME)")
    monkeypatch.setenv("DIFFRENDER_CUDA", "1")
    with pytest.raises(build_library.BuildError, match="DIFFRENDER_CUDA=1, but there is no nvcc"):
        build_library.find_cuda()
    monkeypatch.setenv("DIFFRENDER_CUDA", "yes")
    with pytest.raises(build_library.BuildError, match="DIFFRENDER_CUDA must be 0 or 1, got 'yes'"):
        build_library.find_cuda()


def test_unknown_levels_are_refused(monkeypatch):
    monkeypatch.setattr(build_library.platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("DIFFRENDER_LEVELS", "avx2, sse9")
    with pytest.raises(build_library.BuildError, match="got sse9"):
        build_library.chosen_levels()


def test_other_machines_than_x86_have_one_level_without_march(monkeypatch):
    monkeypatch.setattr(build_library.platform, "machine", lambda: "aarch64")
    assert build_library.chosen_levels() == ["baseline"]
    torch_paths = build_library.find_torch()
    jobs = build_library.host_compilations([Path("a.cpp")], ["g++"], ["baseline"], torch_paths, [], False, "")
    assert not [flag for flag in jobs["baseline"][0].command if flag.startswith("-march")]


def test_no_flag_allows_fast_math():
    flags = " ".join(build_library.CXX_FLAGS + build_library.NVCC_FLAGS)
    assert "-ffp-contract=off" in flags
    assert "--fmad=false" in flags
    assert "fast-math" not in flags
    assert "fast_math" not in flags


def test_dependency_files_reads_both_compilers_rules():
    assert build_library.dependency_files("a.o: csrc/a.cpp \\\n csrc/with\\ space.h\n") == [
        "csrc/a.cpp",
        "csrc/with space.h",
    ]
    assert build_library.dependency_files("a.o : a.cu \\\n    /cuda/cuda_runtime.h \n") == [
        "a.cu",
        "/cuda/cuda_runtime.h",
    ]


# ---- incremental compilation, on a project of two small files


@pytest.fixture
def small_project(monkeypatch, tmp_path):
    monkeypatch.setenv("DIFFRENDER_LEVELS", "baseline")
    monkeypatch.setenv("DIFFRENDER_CUDA", "0")
    core = tmp_path / "csrc" / "core"
    core.mkdir(parents=True)
    (core / "shared.h").write_text("inline int shared() { return 1; }\n")
    (tmp_path / "csrc" / "one.cpp").write_text('#include "core/shared.h"\nint one() { return shared(); }\n')
    (tmp_path / "csrc" / "two.cpp").write_text("int two() { return 2; }\n")
    return tmp_path


def compiled_labels(capsys) -> list[str]:
    lines = capsys.readouterr().out.splitlines()
    return sorted(line.strip().rsplit(" ", 2)[0] for line in lines if line.startswith("  "))


@needs_compiler
def test_build_compiles_again_only_what_changed(small_project, capsys):
    libraries = build_library.build(small_project)
    assert [path.name for path in libraries] == ["libdiffrender_baseline.so"]
    assert compiled_labels(capsys) == ["baseline one.cpp", "baseline two.cpp"]
    library = small_project / libraries[0]
    linked_ns = library.stat().st_mtime_ns

    build_library.build(small_project)
    assert compiled_labels(capsys) == []
    assert library.stat().st_mtime_ns == linked_ns

    os.utime(small_project / "csrc" / "core" / "shared.h", ns=(time.time_ns(), time.time_ns()))
    build_library.build(small_project)
    assert compiled_labels(capsys) == ["baseline one.cpp"]
    assert library.stat().st_mtime_ns > linked_ns


@needs_compiler
def test_build_precompiles_the_common_header_with_gcc(small_project, capsys):
    """A changed header that only the precompiled one includes reaches every source."""
    if "Free Software Foundation" not in build_library.output_of([os.environ.get("CXX", "g++"), "--version"]):
        pytest.skip("only GCC reads its precompiled headers this way")
    core = small_project / "csrc" / "core"
    (core / "precompiled.h").write_text('#include "common.h"\n')
    (core / "common.h").write_text("#pragma once\nconstexpr int kCommon = 1;\n")
    (small_project / "csrc" / "two.cpp").write_text(
        '#include "core/common.h"\nstatic_assert(kCommon == 1);\nint two() { return 2; }\n'
    )
    (small_project / "csrc" / "three.cpp").write_text("int three();\n")
    build_library.build(small_project)
    # one.cpp, the second longest, goes without the header, beside it.
    assert compiled_labels(capsys) == [
        "baseline one.cpp", "baseline precompiled.h", "baseline three.cpp", "baseline two.cpp"
    ]  # fmt: skip
    assert "precompiled" not in (small_project / build_library.OBJECTS / "baseline/one.cpp.o.d").read_text()
    build_library.build(small_project)
    assert compiled_labels(capsys) == []
    (core / "common.h").write_text("#pragma once\nconstexpr int kCommon = 2;\n")
    with pytest.raises(build_library.BuildError, match=r"baseline two\.cpp"):
        build_library.build(small_project)


@needs_compiler
def test_build_compiles_again_when_the_flags_change(small_project, capsys, monkeypatch):
    build_library.build(small_project)
    capsys.readouterr()
    monkeypatch.setenv("DIFFRENDER_CXXFLAGS", "-DANOTHER")
    build_library.build(small_project)
    assert compiled_labels(capsys) == ["baseline one.cpp", "baseline two.cpp"]


@needs_compiler
def test_build_removes_libraries_of_levels_it_did_not_build(small_project):
    folder = small_project / build_library.LIBRARIES
    folder.mkdir(parents=True)
    (folder / "libdiffrender_avx2.so").write_bytes(b"from older sources")
    build_library.build(small_project)
    assert sorted(path.name for path in folder.iterdir()) == ["build_info.json", "libdiffrender_baseline.so"]


@needs_compiler
def test_failed_compilation_names_the_file_and_is_tried_again(small_project, capsys):
    broken = small_project / "csrc" / "two.cpp"
    broken.write_text("int two() { }\n")  # no return: an error by -Werror=return-type
    with pytest.raises(build_library.BuildError, match=r"compiling failed: baseline two\.cpp"):
        build_library.build(small_project)
    assert "return-type" in capsys.readouterr().err
    broken.write_text("int two() { return 2; }\n")
    build_library.build(small_project)
    assert compiled_labels(capsys) == ["baseline two.cpp"]


@needs_compiler
def test_undefined_function_fails_at_link_time(small_project):
    (small_project / "csrc" / "two.cpp").write_text("int missing();\nint two() { return missing(); }\n")
    with pytest.raises(build_library.BuildError, match=r"(?s)linking libdiffrender_baseline\.so failed.*missing"):
        build_library.build(small_project)


def test_build_without_sources_says_so(tmp_path, capsys):
    (tmp_path / "csrc").mkdir()
    assert build_library.build(tmp_path) == []
    assert "nothing to build" in capsys.readouterr().out


# ---- the wheel


@pytest.mark.slow
@needs_compiler
def test_wheel_serves_every_python_and_runs_outside_the_source_tree(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("csrc", "tools", "diffrender"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("_lib", "__pycache__"))
    (source / "diffrender" / "deleted.py").write_text("")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "--wheel-dir"]
    environment = {**os.environ, "DIFFRENDER_LEVELS": "baseline", "DIFFRENDER_CUDA": "0"}
    subprocess.run([*command, str(tmp_path / "first"), str(source)], env=environment, check=True)
    (source / "diffrender" / "deleted.py").unlink()
    subprocess.run([*command, str(tmp_path / "second"), str(source)], env=environment, check=True)

    (wheel,) = (tmp_path / "second").glob("*.whl")
    version = diffrender.__version__
    assert wheel.name.startswith(f"diffrender_torch-{version}-py3-none-linux_")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"diffrender_torch-{version}.dist-info/METADATA").decode()
        archive.extractall(tmp_path / "installed")
    libraries = {"diffrender/_lib/libdiffrender_baseline.so", "diffrender/_lib/build_info.json"}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "diffrender").rglob("*.py")}
    assert {name for name in names if ".dist-info/" not in name} == modules | libraries | {"diffrender/py.typed"}
    assert "Requires-Dist: torch>=2.10" in metadata
    assert "License-Expression: Apache-2.0" in metadata

    code = "import diffrender; print(diffrender.__file__, diffrender._library.loaded_level)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    environment.pop("DIFFRENDER_CPU_LEVEL", None)
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == [str(tmp_path / "installed" / "diffrender" / "__init__.py"), "baseline"]
