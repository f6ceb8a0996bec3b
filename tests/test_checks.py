"""What the argument checks share."""

import pytest
import torch

from diffrender import _checks


def test_broadcast_shapes_is_that_of_torch():
    generator = torch.Generator().manual_seed(0)

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    refused = 0
    for _ in range(300):
        shapes = [tuple((0, 1, 1, 2, 3)[integer(0, 5)] for _ in range(integer(0, 4))) for _ in range(integer(1, 4))]
        try:
            truth = tuple(torch.broadcast_shapes(*shapes))
        except RuntimeError:
            refused += 1
            with pytest.raises(RuntimeError, match="do not fit together"):
                _checks.broadcast_shapes(*shapes)
            continue
        assert _checks.broadcast_shapes(*shapes) == truth, shapes
    assert 20 < refused < 280
