"""Fixtures of all tests: a seed before each, and the number of threads put back after tests that change it."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


@pytest.fixture
def set_threads():
    """Sets the number of threads of torch for the rest of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
