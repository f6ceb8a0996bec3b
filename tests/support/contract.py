"""Rows and examples of the contract table as pytest parameters, and what its tests have in common."""

import pytest
import torch

from tests.ops.contract import CONTRACTS
from tests.support.vocabulary import rnd

EXAMPLES = [pytest.param(c, e, id=f"{c.name}-{e.label}") for c in CONTRACTS for e in c.examples]
ROWS = [pytest.param(c, id=c.name) for c in CONTRACTS]
FIRST = [pytest.param(c, c.examples[0], id=c.name) for c in CONTRACTS]
FIXED = [pytest.param(c, c.examples[0], id=c.name) for c in CONTRACTS if not c.ragged]
RAGGED = [pytest.param(c, c.examples[0], id=c.name) for c in CONTRACTS if c.ragged]

# float32 against a float64 reference, relative to the largest true value. Barycentrics, crossings and their derivatives
# are ratios of cross products of corners a few pixels apart: of the 24 bits about 8 are lost to those differences.
FLOAT32_TOLERANCE = 2e-4
# float64: the same loss leaves 2^-53 * 2^8 = 3e-14; the rest is margin for longer sums.
FLOAT64_TOLERANCE = 1e-11

# Raised inside torch while it traces and generates code.
QUIET = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def cotangents(outputs, dtype=None):
    return [rnd(*x.shape, seed=100 + k, dtype=dtype or x.dtype) for k, x in enumerate(outputs)]


def with_grad(tensors):
    return [t.detach().clone().requires_grad_() for t in tensors]


def weighted_sum(outputs, weights):
    return sum((x * w).sum() for x, w in zip(outputs, weights, strict=True))


def gradients(call, tensors, weights):
    leaves = with_grad(tensors)
    return torch.autograd.grad(weighted_sum(call(*leaves), weights), leaves)


def strided_copy(x):
    return torch.stack([x, torch.zeros_like(x) + 9], -1)[..., 0]


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)
