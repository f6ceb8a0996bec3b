"""Small tensors beside the arguments: the right values, made without a copy from the host where that matters."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import diffrender as dr
from diffrender import _constants


class DeviceCopies(TorchDispatchMode):
    """Counts copies between devices, which meta tensors make visible without a GPU."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        source = next((a for a in args if isinstance(a, torch.Tensor)), None)
        target = kwargs.get("device")
        if source is not None and target is not None and torch.device(target).type != source.device.type:
            self.count += 1
        return func(*args, **kwargs)


@pytest.mark.parametrize("values", [0.5, 3, [0.25, 1.0], ((1.0, 2.0), (3.0, 4.0)), np.array([0.1, 0.2]), []])
def test_constant_is_what_as_tensor_makes(values):
    like = torch.zeros(1, dtype=torch.float64)
    assert torch.equal(_constants.constant(values, like), torch.as_tensor(values, dtype=torch.float64))


def test_constant_on_another_device_copies_nothing():
    like = torch.zeros(1, device="meta")
    with DeviceCopies() as copies:
        result = _constants.constant([[0.0, 0.5], [1.0, 2.0]], like)
    assert result.shape == (2, 2)
    assert result.device.type == "meta"
    assert copies.count == 0
    with DeviceCopies() as copies:
        assert _constants.constant(np.zeros(1000), like).shape == (1000,)
    assert copies.count == 1  # too many to write one by one


@pytest.mark.parametrize("bad", ["red", [1.0, [2.0]], object()])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_constant_refuses_what_is_no_number(bad, device):
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        _constants.constant(bad, torch.zeros(1, device=device))


def test_table_is_made_once_per_type():
    calls = []

    def make(size):
        calls.append(size)
        return torch.arange(size, dtype=torch.float64)

    single, double = torch.zeros(1), torch.zeros(1, dtype=torch.float64)
    first = _constants.table(make, 5, like=single)
    assert first.dtype == torch.float32
    assert _constants.table(make, 5, like=single) is first
    assert _constants.table(make, 5, like=double).dtype == torch.float64
    assert _constants.table(make, 6, like=single, dtype=torch.int64).tolist() == [0, 1, 2, 3, 4, 5]
    assert calls == [5, 5, 6]


def test_table_made_in_inference_mode_does_not_reach_later_graphs():
    """Fault: a kept inference tensor can not be saved for the backward pass."""
    values = torch.rand(1, 6, 4, 4, 3, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        dr.prefilter_environment(values, 0.5, 4)
    leaf = values.requires_grad_()
    dr.prefilter_environment(leaf, 0.5, 4).sum().backward()
    assert leaf.grad.any()


def test_numbers_for_a_fake_device_are_not_looked_at():
    """torch.export and FakeTensorMode: a camera of numbers on a GPU that is not there."""
    with FakeTensorMode():
        camera = dr.Camera.perspective(fov_y_deg=40, width=8, height=6, device="cuda").look_at([0.0, 0.0, 3.0])
        assert camera.camera_from_world.device.type == "cuda"
        assert _constants.constant([1.0, 2.0], camera.focal_px).shape == (2,)
