"""No result depends on what its memory held before: every raw call with fresh memory filled by torch (NaN, largest
integer), and without. Calls whose last arguments choose a driver or an algorithm take the GPU's as well, so that the
scratch memory of those is looked at on the CPU."""

import pytest
import torch

from tests.ops.contract import CONTRACTS


def variants(op, arguments):
    names = [argument.name for argument in op._schema.arguments]
    complete = [*arguments, *(argument.default_value for argument in op._schema.arguments[len(arguments) :])]
    yield complete
    for name in {"scatter", "driver"} & set(names):
        yield [1 if given == name else value for given, value in zip(names, complete, strict=True)]


def results(op, arguments, filled):
    torch.use_deterministic_algorithms(filled)  # with torch.utils.deterministic.fill_uninitialized_memory
    try:
        assert not filled or torch.empty(3).isnan().all()
        values = op(*arguments)
    finally:
        torch.use_deterministic_algorithms(False)
    return values if isinstance(values, tuple) else (values,)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_results_do_not_depend_on_what_memory_held(contract):
    for dtype in (torch.float32, torch.float64):
        for op, arguments in contract.dispatcher_calls(dtype):
            for complete in variants(op, arguments):
                pairs = zip(results(op, complete, False), results(op, complete, True), strict=True)
                for k, (plain, filled) in enumerate(pairs):
                    assert torch.equal(plain, filled) or torch.allclose(plain, filled, 0, 0, equal_nan=True), (op, k)
