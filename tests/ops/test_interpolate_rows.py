"""The CPU's blocks of pixels give what the portable kernel body gives, wherever runs of pixels begin and end."""

import pytest
import torch

import diffrender  # noqa: F401  # loads the compiled ops


def _inputs(channels: int, pixels: tuple[int, int, int], run: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    batch, height, width = pixels
    count = batch * height * width
    attributes = torch.randn((batch, 9, channels), generator=generator)
    triangles = torch.randint(0, 9, (7, 3), generator=generator, dtype=torch.int32)
    lengths = torch.randint(1, run + 1, (count,), generator=generator)
    ids = torch.randint(-1, 7, (count,), generator=generator, dtype=torch.int32)
    triangle_id = ids.repeat_interleave(lengths)[:count].reshape(pixels).contiguous()
    weights = torch.rand((*pixels, 2), generator=generator)
    grad = torch.randn((*pixels, channels), generator=generator)
    return attributes, triangles, triangle_id, weights, grad


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("run", [1, 3, 8, 40])
def test_blocks_equal_the_formula(channels: int, run: int) -> None:
    for seed, pixels in enumerate([(1, 1, 1), (1, 3, 7), (2, 5, 13), (3, 9, 31)]):
        attributes, triangles, triangle_id, weights, grad = _inputs(channels, pixels, run, seed)
        values = torch.ops.diffrender.interpolate(attributes, triangles, triangle_id, weights, 1.0)
        covered = (triangle_id >= 0)[..., None]
        w = torch.cat([weights, 1 - weights.sum(-1, keepdim=True)], -1)
        item = torch.arange(pixels[0])[:, None, None, None]
        corner = triangles.long()[triangle_id.clamp(min=0).long()]
        expected = (attributes[item, corner] * w[..., None]).sum(-2) * covered
        torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-6)

        arguments = (attributes, triangles, triangle_id, weights, grad, 1.0)
        native = torch.ops.diffrender.interpolate_backward(*arguments, True, True, 0)
        portable = torch.ops.diffrender.interpolate_backward(*arguments, True, True, 1)
        for name, a, b in zip(("attributes", "weights"), native, portable, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=lambda text, n=name: f"grad_{n}: {text}")
        alone = torch.ops.diffrender.interpolate_backward(*arguments, True, False, 0)[0]
        assert torch.equal(alone, native[0])


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_values_of_other_runs_do_not_leak_into_a_block(channels: int) -> None:
    """A block of eight pixels reaches into the next run, whose weights and gradients may not be finite."""
    attributes, triangles, _, weights, grad = _inputs(channels, (1, 1, 16), 1, 0)
    triangle_id = torch.tensor([0] * 5 + [1] * 11, dtype=torch.int32).reshape(1, 1, 16)
    weights[0, 0, 5:] = torch.inf
    grad[0, 0, 5:] = torch.nan
    triangles = torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.int32)
    grad_attributes, grad_weights = torch.ops.diffrender.interpolate_backward(
        attributes, triangles, triangle_id, weights, grad, 1.0, True, True, 0
    )
    assert grad_attributes[0, :3].isfinite().all()
    assert grad_weights[0, 0, :5].isfinite().all()
    assert not grad_attributes[0, 3:6].isfinite().any()


def test_no_vertices_give_zero_weights_gradient() -> None:
    triangle_id = torch.full((1, 2, 9), -1, dtype=torch.int32)
    weights = torch.rand(1, 2, 9, 2)
    result = torch.ops.diffrender.interpolate_backward(
        torch.zeros(1, 0, 3), torch.zeros(0, 3, dtype=torch.int32), triangle_id, weights, torch.rand(1, 2, 9, 3), 1.0,
        True, True, 0,
    )  # fmt: skip
    assert result[0].shape == (1, 0, 3)
    assert torch.equal(result[1], torch.zeros_like(weights))
