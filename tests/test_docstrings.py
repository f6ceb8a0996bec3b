"""Every example in a docstring runs and prints what it says."""

import doctest
import importlib
import pkgutil

import pytest
import torch

import diffrender as dr

MODULES = sorted(m.name for m in pkgutil.walk_packages(dr.__path__, "diffrender.") if not m.name.endswith("__main__"))


class Checker(doctest.OutputChecker):
    """Lines without an expected result may print one: methods that change a tensor return it."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return not want or super().check_output(want, got, optionflags)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(Checker(), optionflags=doctest.NORMALIZE_WHITESPACE)
    # Examples use the public names as a user has them: dr and torch.
    for test in doctest.DocTestFinder().find(module, globs={**vars(module), "dr": dr, "torch": torch}):
        runner.run(test)
    assert runner.failures == 0
