"""Checks that every shading model has to pass, over its own maps: masks, and that both bodies of the kernel agree."""

import torch

import diffrender as dr
from tests.ops.rows.shade import EYE, checked_mask, lights, surface
from tests.support.vocabulary import rnd

F64 = torch.float64


def check_background_is_ignored(op, material, dtype):
    """Pixels outside of the mask give exactly 0, and nothing that stands there reaches a value or a gradient."""
    mask = checked_mask(2)
    inputs = [x.to(dtype) for x in (*surface(2), *material)]
    packed = lights("dpsa", 2).to(dtype)

    def run(fill):
        leaves = [torch.where(mask[..., None], x, fill).requires_grad_() for x in inputs]
        values = packed.values.clone().requires_grad_()
        eye = EYE.to(dtype, copy=True).requires_grad_()
        image = op(*leaves, dr.PackedLights(packed.types, values), camera_position=eye, mask=mask)
        grads = torch.autograd.grad(image, [*leaves, values, eye], rnd(*image.shape, dtype=dtype), allow_unused=True)
        assert not image[~mask].any()
        assert not any(grad[~mask].any() for grad in grads[: len(leaves)])
        return [image, *grads]

    for poison in (float("nan"), float("inf"), 0.0, 3e38):
        assert all(torch.equal(a, b) for a, b in zip(run(poison), run(1.0), strict=True))


def check_drivers_agree(name, material, options, dtype, width):
    """The body that runs on a GPU, on the CPU, against the packets; and the order-free sums."""
    forward, backward = (getattr(torch.ops.diffrender, name + suffix) for suffix in ("", "_backward"))
    size = (3, width)
    maps = [x.to(dtype) for x in (*surface(2, size), EYE[None, None, None])]
    packed = lights("dpsa", 2).to(dtype)
    material = [x.to(dtype) for x in material(2, size)]
    inputs = (*maps, None, checked_mask(2, size).int() - 1, packed.values, packed.types, *material)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-12
    packets, single = (forward(*inputs, False, True, *options, driver) for driver in (0, 1))
    assert (packets - single).abs().max() <= tolerance * max(1.0, float(single.abs().max()))
    arguments = (*inputs, rnd(2, *size, 3, dtype=dtype), False, True, *options, *[True] * (4 + len(material)))
    first = backward(*arguments, 0, 0)
    for scatter, driver in ((0, 1), (1, 1)):
        for value, truth in zip(backward(*arguments, scatter, driver), first, strict=True):
            assert (value - truth).abs().max() <= tolerance * max(1.0, float(truth.abs().max()))
