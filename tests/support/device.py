"""The device that tests run on: DIFFRENDER_TEST_DEVICE, "cpu" where it is not set.

The conftest makes it the default device before any test module is imported, so that tensors made without a device, also
those that rows of the contract table hold, are there. Random numbers and NumPy arrays come from the CPU and are moved.
On CUDA the tests run with deterministic algorithms, because many of them compare gradients bit for bit;
DIFFRENDER_TEST_DETERMINISTIC=0 turns that off, for those that do not.
"""

import os

import numpy as np
import torch
from torch import Tensor

DEVICE = torch.device(os.environ.get("DIFFRENDER_TEST_DEVICE", "cpu"))
DETERMINISTIC = DEVICE.type == "cuda" and os.environ.get("DIFFRENDER_TEST_DETERMINISTIC", "1") != "0"
# Of gradients that are computed twice: order-free sums are the same bits, atomic ones are not.
NONDETERMINISM = 1e-10 if DEVICE.type == "cuda" and not DETERMINISTIC else 0.0


def here(tensor: Tensor) -> Tensor:
    """A tensor from the CPU on the device of the tests."""
    return tensor.to(torch.get_default_device())


def from_numpy(array: np.ndarray) -> Tensor:
    return here(torch.from_numpy(array))


def to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()
