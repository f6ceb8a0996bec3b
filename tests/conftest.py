"""Fixtures of all tests: a seed before each, and the number of threads put back after tests that change it; and the
device that they run on (tests/support/device.py)."""

import os

import pytest
import torch

from tests.support.device import DETERMINISTIC, DEVICE


def pytest_configure(config):
    if DEVICE.type == "cpu":
        return
    torch.set_default_device(DEVICE)
    if DETERMINISTIC:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
        torch.use_deterministic_algorithms(True, warn_only=True)
        # References use operations of torch that have no deterministic variant; ours all have.
        config.addinivalue_line("filterwarnings", "ignore:.*deterministic:UserWarning")


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


@pytest.fixture
def set_threads():
    """Sets the number of threads of torch for the rest of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
