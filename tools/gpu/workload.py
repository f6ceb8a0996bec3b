"""One call of every op with gradients, for checks that look at how calls run rather than at what they return.

The calls are the first examples of the contract table, so a new op is checked as soon as it has its row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Call:
    """`run(*inputs)` returns outputs and gradients. `ragged`: sizes depend on values, so it waits for the device."""

    name: str
    inputs: list[Tensor]
    run: Callable[..., list[Tensor]]
    ragged: bool


def calls(device: str, dtype: torch.dtype = torch.float32) -> list[Call]:
    """One call per row of the contract table, with all tensors on `device`."""
    torch.set_default_device(device)  # before the rows are made, which happens at import
    from tests.ops.contract import CONTRACTS
    from tests.support.vocabulary import rnd

    result: list[Call] = []
    for contract in CONTRACTS:
        example = contract.examples[0]
        module = example.call.__module__.rsplit(".", 1)[-1]  # tells two rows of one op apart
        name = module if module.startswith(contract.name) else contract.name
        name += " 2" if name in [call.name for call in result] else ""
        inputs = example.tensors(dtype)
        weights = [rnd(*x.shape, seed=i, dtype=dtype) for i, x in enumerate(example.call(*inputs))]

        def run(*tensors: Tensor, example=example, weights=weights) -> list[Tensor]:
            leaves = [x.detach().requires_grad_() for x in tensors]
            outputs = example.call(*leaves)
            return [*outputs, *torch.autograd.grad(outputs, leaves, weights)]

        result.append(Call(name, inputs, run, contract.ragged))
    return result


def main() -> None:
    """Every op once, in both types and with both ways to sum: what compute-sanitizer looks at.

    Arguments: the device, and how many ops.
    """
    device, count = sys.argv[1], int(sys.argv[2])
    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        for dtype in (torch.float32, torch.float64):
            for call in calls(device, dtype)[:count]:
                for value in call.run(*call.inputs):
                    float(value.sum())
    print("workload: done")


if __name__ == "__main__":
    main()
