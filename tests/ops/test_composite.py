"""composite: what only this op has to hold. The contract table has the rest."""

import pytest
import torch

import diffrender as dr
from tests.ops.rows.composite import COUNTS, SIZE, list_of, offsets_of
from tests.reference import composite as reference_composite
from tests.support.vocabulary import relative_error, rnd, uniform

F64 = torch.float64
OFFSETS = offsets_of(COUNTS)


def arguments(unused=0, channels=3, dtype=F64):
    count = sum(COUNTS) + unused
    return rnd(count, channels, seed=1, dtype=dtype), uniform(count, low=0.1, high=0.5, seed=2, dtype=dtype)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 8, 9, 64])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_every_channel_count(channels, dtype):
    leaves = [x.requires_grad_() for x in arguments(2, channels, dtype)]
    results = []
    for composite in (dr.composite, reference_composite.composite):
        image = composite(leaves[0], list_of(leaves[1], OFFSETS))
        cotangent = rnd(*image.shape, seed=3, dtype=dtype).to(image.dtype)
        results.append([image, *torch.autograd.grad((image * cotangent).sum(), leaves)])
    for value, truth in zip(*results, strict=True):
        assert relative_error(value, truth) < (1e-6 if dtype == torch.float32 else 1e-14)


def test_values_of_four_axes_are_the_same():
    values, weight = arguments()
    coverage = list_of(weight, OFFSETS)
    assert torch.equal(dr.composite(values[None, None], coverage), dr.composite(values, coverage))


@pytest.mark.parametrize("channels", [1, 3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_what_lies_beyond_the_last_fragment_does_not_matter(channels, dtype):
    values, weight = arguments(5, channels, dtype)
    used = sum(COUNTS)
    truth = dr.composite(values[:used], list_of(weight[:used], OFFSETS), background=0.7)
    hidden = values.clone()
    hidden[used:] = torch.nan
    leaves = [hidden.requires_grad_(), torch.cat([weight[:used], torch.zeros(5, dtype=dtype)]).requires_grad_()]
    image = dr.composite(leaves[0], list_of(leaves[1], OFFSETS), background=0.7)
    assert torch.equal(image, truth)
    for grad in torch.autograd.grad(image.square().sum(), leaves):
        assert grad[:used].any()
        assert (grad[used:] == 0).all()


def test_a_nan_stays_in_its_pixel():
    values, weight = arguments()
    values[2] = torch.nan  # the only fragment of the third pixel
    image = dr.composite(values, list_of(weight, OFFSETS)).view(-1, 3)
    assert image.isnan().any(-1).nonzero().flatten().tolist() == [2]


@pytest.mark.parametrize("background", [None, 0.25])
def test_third_derivative(background):
    leaves = [x.requires_grad_() for x in arguments(1)]
    results = []
    for composite in (dr.composite, reference_composite.composite):
        image = composite(leaves[0], list_of(leaves[1], OFFSETS), background=background)
        first = torch.autograd.grad((image**3).sum(), leaves, create_graph=True)
        loss = sum((grad * rnd(*grad.shape, seed=4, dtype=F64)).sum() for grad in first)
        second = torch.autograd.grad(loss, leaves, create_graph=True)
        loss = sum((grad * rnd(*grad.shape, seed=5, dtype=F64)).sum() for grad in second)
        results.append(torch.autograd.grad(loss, leaves))
    for grad, truth in zip(*results, strict=True):
        assert truth.any()
        assert relative_error(grad, truth) < 1e-13


@pytest.mark.parametrize("shift", [-4, 4, 10**15, -(10**15)])
def test_offsets_that_fit_no_list_stay_within_its_memory(shift):
    values, weight = arguments()
    coverage = list_of(weight, OFFSETS)
    coverage = coverage._replace(offsets=coverage.offsets + shift)
    leaves = [values.requires_grad_(), weight.requires_grad_()]
    image = dr.composite(leaves[0], coverage._replace(weight=leaves[1]))
    assert torch.isfinite(image).all()
    outside = (torch.arange(len(weight)) < coverage.offsets[0]) | (torch.arange(len(weight)) >= coverage.offsets[-1])
    grads = torch.autograd.grad(image.sum(), leaves)
    for grad in grads:
        assert outside.any()
        assert not grad[outside].any()
        assert bool((grad[~outside] != 0).all())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of torch's own decompositions
@pytest.mark.parametrize("channels", [1, 5])
def test_hessian_by_forward_over_reverse_is_that_of_the_reference(channels):
    values, weight = arguments(2, channels)
    found = []
    for composite in (dr.composite, reference_composite.composite):

        def cubed(values, weight, composite=composite):
            return composite(values, list_of(weight, OFFSETS)).pow(3).sum()

        found.append(torch.func.hessian(cubed, argnums=(0, 1))(values, weight))
    for row, truth_row in zip(*found, strict=True):
        for block, truth in zip(row, truth_row, strict=True):
            assert truth.any()
            assert relative_error(block, truth) < 1e-13


@pytest.mark.parametrize("background", [0.3, rnd(3, seed=4, dtype=F64)])
def test_background_of_one_color_gets_what_is_left(background):
    leaves = [x.requires_grad_() for x in arguments(2)]
    if isinstance(background, torch.Tensor):
        leaves.append(background.clone().requires_grad_())
    results = []
    for composite in (dr.composite, reference_composite.composite):
        behind = leaves[2] if len(leaves) == 3 else background
        image = composite(leaves[0], list_of(leaves[1], OFFSETS), background=behind)
        cotangent = rnd(*image.shape, seed=3, dtype=F64)
        results.append([image, *torch.autograd.grad((image * cotangent).sum(), leaves)])
    for value, truth in zip(*results, strict=True):
        assert relative_error(value, truth) < 1e-14


class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
    """Elements of what operations return in memory of its own."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {x.data_ptr() for x in args if isinstance(x, torch.Tensor)}
        tensors = [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
        self.found += [x.numel() for x in tensors if x.data_ptr() not in given]
        return result


def test_forward_keeps_nothing_but_its_arguments_and_makes_nothing_of_their_size():
    offsets = offsets_of([50] * (SIZE[0] * SIZE[1]))
    values, weight = rnd(600, 7, dtype=F64).requires_grad_(), rnd(600, seed=1, dtype=F64).requires_grad_()
    saved = []
    coverage = list_of(weight, offsets)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x), Sizes() as sizes:
        image = dr.composite(values, coverage)
    assert sizes.found == [image.numel()]
    assert {x.data_ptr() for x in saved} == {x.data_ptr() for x in (values, weight, offsets)}
