"""What the argument checks share."""

import pytest
import torch

import diffrender as dr
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


def test_sequences_of_tensors_keep_the_gradient():
    """torch.as_tensor takes their values and says nothing."""
    a, b = (torch.tensor(x, requires_grad=True) for x in (60.0, 50.0))
    camera = dr.Camera.perspective(focal_px=(a, b), width=64, height=48, principal_px=[a / 2, 24.0])
    pixel = camera.project(torch.tensor([[0.3, 0.6, -3.0]]))
    torch.testing.assert_close(torch.stack(torch.autograd.grad(pixel.sum(), (a, b))), torch.tensor([0.6, -0.2]))

    x = torch.tensor(0.3, requires_grad=True)

    def slope(values: torch.Tensor) -> float:
        return float(torch.autograd.grad(values.sum(), x)[0])

    assert slope(camera.look_at((x, 0.1, 5.0)).eye) == pytest.approx(1, abs=1e-5)
    assert slope(dr.geometry.translation([x, 2 * x, 1.0])) == pytest.approx(3)
    assert slope(dr.Material([x, 2 * x, 0.1]).albedo) == pytest.approx(3)
    assert slope(dr.AmbientLight([x, x, x]).color) == pytest.approx(3)
    assert dr.Material([0.1, 0.2, 0.3]).albedo.dtype == torch.float32
