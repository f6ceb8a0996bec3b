"""Builds the compiled library before the Python files are collected; everything else is in pyproject.toml.

`python setup.py build_library` builds in place, which is what `make build` does. `pip install .` and `make wheel` go
through the same step. tools/build_library.py lists the environment variables that change it.
"""

import shutil
import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))
from build_library import BuildError, build  # noqa: E402


class BuildLibrary(Command):
    description = "compile csrc/ into diffrender/_lib"
    user_options: ClassVar[list] = []

    def initialize_options(self):
        pass

    def finalize_options(self):
        pass

    def run(self):
        try:
            build()
        except BuildError as error:
            sys.exit(f"diffrender: {error}")


class BuildPython(build_py):
    """The libraries are package data, so they have to exist before the data files are listed."""

    def run(self):
        self.run_command("build_library")
        for earlier in (ROOT / "build").glob("lib*"):
            shutil.rmtree(earlier)  # setuptools would pack modules that are long deleted from here
        self.data_files = self._get_data_files()
        super().run()


class OneWheel(bdist_wheel):
    """The library names no Python: one wheel per platform serves every CPython >= 3.10."""

    def get_tag(self):
        _, _, platform_tag = super().get_tag()
        return "py3", "none", platform_tag


class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True


setup(
    distclass=BinaryDistribution,
    cmdclass={"build_library": BuildLibrary, "build_py": BuildPython, "bdist_wheel": OneWheel},
)
