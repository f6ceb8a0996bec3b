"""The shading kernels on a GPU against the CPU, and their order-free sums."""

import pytest
import torch

import diffrender as dr
from tests.ops.contract import CONTRACTS
from tests.support.vocabulary import relative_error, rnd

F64 = torch.float64
ROWS = [pytest.param(c, id=c.name) for c in CONTRACTS if c.name.startswith(("shade_", "irradiance_", "perturb_"))]

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def raw_results(contract, dtype, device):
    """Results of all raw kernel calls of a row, on the CPU."""
    for op, arguments in contract.dispatcher_calls(dtype):
        moved = [a.to(device) if isinstance(a, torch.Tensor) else a for a in arguments]
        result = op(*moved)
        yield [x.cpu() for x in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("contract", ROWS)
def test_r17_cpu_and_cuda_agree(contract, dtype):
    tolerance = 1e-4 if dtype == torch.float32 else 1e-11
    for values, others in zip(raw_results(contract, dtype, "cpu"), raw_results(contract, dtype, "cuda"), strict=True):
        for value, other in zip(values, others, strict=True):
            assert torch.isfinite(other).all()
            assert value.shape == other.shape
            assert not value.any() or relative_error(other, value) < tolerance


def test_deterministic_sums_are_reproducible():
    size = (256, 256)
    maps = [rnd(2, *size, 3, seed=k).cuda() for k in range(2)]
    lamp = dr.PointLight(torch.tensor([0.1, 0.2, 3.0], device="cuda"))

    def gradient():
        values = lamp.pack().values.requires_grad_()
        table = dr.PackedLights(lamp.pack().types, values)
        image = dr.shade_metallic_roughness(*maps, 0.5, 0.3, 0.4, table, camera_position=(0.0, 0.0, 4.0))
        return torch.autograd.grad(image.sum(), values)[0]

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        first = gradient()
        assert all(torch.equal(gradient(), first) for _ in range(3))
    finally:
        torch.use_deterministic_algorithms(before)
