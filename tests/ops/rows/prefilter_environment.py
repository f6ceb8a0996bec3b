"""Row of the contract table: prefilter_environment."""

import torch

import diffrender as dr
from diffrender.ops.prefilter_environment import _energies, _filter
from tests.ops.rows.base import F64, BadCall, Contract, EmptyCall, Example
from tests.reference.prefilter_environment import prefilter_environment as reference
from tests.support.vocabulary import rnd

TOLERANCE = 0.05  # that of the op for small results


def contract() -> Contract:
    return Contract(
        name="prefilter_environment",
        examples=[
            example("odd side, one level", (6, 3, 3, 2), 0.5, 2),
            example("levels of 8, 4, 2 and 1", (6, 8, 8, 1), 0.3, 4, tolerance=0.3),
            example("batch and four channels", (2, 6, 4, 4, 4), 0.7, 3, tolerance=0.4),
            example("levels of 6 and 3", (6, 6, 6, 3), 1.0, 1),
            example("finest levels unused", (6, 8, 8, 2), 0.9, 2, tolerance=0.5),
            example("narrow lobe", (6, 4, 4, 3), 0.1, 4),
        ],
        dispatcher_calls=dispatcher_calls,
        bad_calls=bad_calls(),
        empty_calls=[
            EmptyCall("no items", empty((0, 6, 4, 4, 3)), [(0, 6, 2, 2, 3)]),
            EmptyCall("no channels", empty((6, 4, 4, 0)), [(6, 2, 2, 0)]),
        ],
        large=example("large", (6, 16, 16, 3), 0.25, 16, tolerance=0.15),
        second_derivative=True,
    )


def example(label, shape, roughness, size, tolerance=None) -> Example:
    """With the tolerance of the op only the finest level of maps as small as these counts: larger ones reach more."""

    def call(environment):
        if tolerance is None:
            return (dr.prefilter_environment(environment, roughness, size),)
        batch = environment if environment.dim() == 5 else environment[None]
        values = _filter(_energies(batch), roughness, size, tolerance)
        return (values if environment.dim() == 5 else values[0],)

    def truth(environment):
        return (reference(environment, roughness, size, tolerance=tolerance or TOLERANCE),)

    return Example(label, {"environment": rnd(*shape, dtype=F64)}, call, truth)


def dispatcher_calls(dtype):
    op = torch.ops.diffrender
    for shape, size, roughness in (((2, 6, 4, 4, 4), 3, 0.5), ((1, 6, 3, 3, 3), 4, 1.0)):
        energies = _energies(rnd(*shape, dtype=dtype))
        options = (roughness**4, 0.3)
        yield op.prefilter_environment.default, (*energies, size, *options, 0)
        total = 1 + torch.rand(6, size, size, dtype=dtype)
        grad = rnd(shape[0], 6, size, size, shape[-1], dtype=dtype)
        yield op.prefilter_environment_backward.default, (grad, total, *energies[1:], *options, 0, 0)


def bad_calls() -> list[BadCall]:
    sky = torch.zeros(6, 4, 4, 3)

    def bad(label, error, message, environment=sky, roughness=0.5, size=2):
        return BadCall(label, lambda: dr.prefilter_environment(environment, roughness, size), error, message)

    name = "prefilter_environment: "
    return [
        bad("a panorama", ValueError, name + r"environment must have shape \(B, 6, S, S, C\) or \(6, S, S, C\), got "
            r"\(4, 8, 3\). dr.cube_from_lat_long", torch.zeros(4, 8, 3)),
        bad("oblong faces", ValueError, name + "environment must have shape", sky[:, :3]),
        bad("five faces", ValueError, name + "environment must have shape", sky[:5]),
        bad("no texels", ValueError, name + "environment must have at least one texel", sky[:, :0, :0]),
        bad("integers", TypeError, name + "environment must be float32 or float64", sky.long()),
        bad("a mirror", ValueError, name + r"roughness must lie in \[0.01, 1\], got 0.0", roughness=0.0),
        bad("too rough", ValueError, name + "roughness must lie in", roughness=1.5),
        bad("no size", ValueError, name + r"size must lie in \[1, 8192\], got 0", size=0),
        bad("size of a wrong type", TypeError, name + "size must be an int, got float", size=2.0),
        bad("sizes that do not fit", ValueError, name + r"size must give one side per roughness \(2\), got 3",
            roughness=(0.5, 1.0), size=(4, 2, 1)),
    ]  # fmt: skip


def empty(shape):
    def run():
        environment = torch.zeros(shape, dtype=F64, requires_grad=True)
        return [environment], [dr.prefilter_environment(environment, 0.5, 2)]

    return run
