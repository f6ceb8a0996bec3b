"""fragments_at: bit for bit what rasterize gives, in bands as well; beside triangles, what the reference gives."""

import itertools

import pytest
import torch

import diffrender as dr
from tests.reference.fragments_at import fragments_at as reference_fragments_at
from tests.support.scenes import random_scene
from tests.support.vocabulary import relative_error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("derivatives", [False, True])
def test_values_and_gradients_are_those_of_rasterize(dtype: torch.dtype, derivatives: bool) -> None:
    for seed in range(12):
        positions, triangles, size = random_scene(seed)
        positions = positions.to(dtype).requires_grad_()
        fragments = dr.rasterize(positions, triangles, size, derivatives=derivatives)
        again = dr.fragments_at(positions, triangles, fragments.triangle_id, derivatives=derivatives)
        generator = torch.Generator().manual_seed(seed)
        pairs = [(a, b) for a, b in zip(fragments[1:], again[1:], strict=True) if a is not None]
        for a, b in pairs:
            assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
        grads = [torch.randn(a.shape, generator=generator, dtype=dtype) for a, _ in pairs]
        first = torch.autograd.grad([a for a, _ in pairs], positions, grads)[0]
        second = torch.autograd.grad([b for _, b in pairs], positions, grads)[0]
        assert torch.equal(first.nan_to_num(7.0), second.nan_to_num(7.0))


@pytest.mark.parametrize("derivatives", [False, True])
def test_bands_put_together_are_the_image(derivatives: bool) -> None:
    for seed in range(6):
        positions, triangles, size = random_scene(seed)
        positions = positions.float()
        fragments = dr.rasterize(positions, triangles, size, derivatives=derivatives)
        cuts = sorted({0, size[0] // 3, size[0] // 2, size[0]})
        bands = [
            dr.fragments_at(
                positions, triangles, fragments.triangle_id[:, a:b].contiguous(), height=size[0], first_row=a,
                derivatives=derivatives,
            )
            for a, b in itertools.pairwise(cuts)
        ]  # fmt: skip
        for index in range(1, 4 if derivatives else 3):
            whole, joined = fragments[index], torch.cat([band[index] for band in bands], 1)
            assert whole is not None
            assert torch.equal(whole.nan_to_num(7.0), joined.nan_to_num(7.0))


def test_ids_that_are_no_triangles_are_background() -> None:
    positions = torch.tensor([[-1.0, -1.0, 0.5, 1.0], [1.0, -1.0, 0.5, 1.0], [-1.0, 1.0, 0.5, 1.0]])
    ids = torch.tensor([[[0, 1, 7, -1, -5, 2**31 - 1, -(2**31), 0, 0]]], dtype=torch.int32)
    fragments = dr.fragments_at(positions, torch.tensor([[0, 1, 2]]), ids, derivatives=True)
    shown = ids == 0
    assert torch.equal(fragments.depth == 1, ~shown)
    assert (fragments.depth[shown] == 0.5).all()
    assert (fragments.barycentrics[~shown] == 0).all()
    assert fragments.derivatives is not None
    assert (fragments.derivatives[~shown] == 0).all()


@pytest.mark.parametrize("derivatives", [False, True])
@pytest.mark.parametrize("rows", [(0, 9), (2, 7)])
def test_planes_go_on_beside_their_triangles(rows: tuple[int, int], derivatives: bool) -> None:
    """Any triangle at any pixel, some of them reaching behind the camera: values and gradient of the reference."""
    first, last = rows
    options = {"height": 9, "first_row": first, "derivatives": derivatives}
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        positions = torch.randn(2, 12, 4, generator=generator, dtype=torch.float64)
        positions[..., 3] = positions[..., 3].abs() + 0.5 * positions[..., 3]  # most w above 0, some below
        triangles = torch.stack([torch.randperm(12, generator=generator)[:3] for _ in range(8)])
        ids = torch.randint(-1, 9, (2, last - first, 7), generator=generator, dtype=torch.int32)
        results = []
        for function in (dr.fragments_at, reference_fragments_at):
            leaf = positions.clone().requires_grad_()
            fragments = function(leaf, triangles, ids, **options)
            floats = [x for x in fragments[1:] if x is not None]
            cotangent = torch.Generator().manual_seed(seed)
            grads = [torch.randn(x.shape, generator=cotangent, dtype=torch.float64) for x in floats]
            results.append((floats, torch.autograd.grad(floats, leaf, grads)[0]))
        (values, gradient), (expected, truth) = results
        assert len(values) == (3 if derivatives else 2)
        for a, b in zip(values, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
        assert relative_error(gradient, truth) < 1e-8, seed
        assert (values[0].abs() > 1).any()  # beside it indeed
