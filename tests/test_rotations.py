"""Rotations and rigid motions as free numbers: against roma, inverses, and derivatives at the identity."""

import math

import pytest
import roma
import torch

from diffrender import geometry

F64 = torch.float64


def rotation_vectors() -> torch.Tensor:
    """Random axes with angles from 0 over the switch to the series up to almost half a turn."""
    axes = torch.nn.functional.normalize(torch.randn(60, 3, dtype=F64), dim=-1)
    angles = torch.cat([torch.tensor([0.0, 1e-12, 1e-6, 0.0999, 0.1, 0.1001, math.pi - 1e-5]), torch.rand(53) * 3.1])
    return axes * angles.to(F64)[:, None]


def test_so3_exp_and_log_agree_with_roma():
    vectors = rotation_vectors()
    rotations = geometry.so3_exp(vectors)
    torch.testing.assert_close(rotations, roma.rotvec_to_rotmat(vectors), atol=1e-12, rtol=0)
    torch.testing.assert_close(geometry.so3_log(rotations), vectors, atol=1e-9, rtol=0)
    torch.testing.assert_close(geometry.so3_log(rotations), roma.rotmat_to_rotvec(rotations), atol=1e-9, rtol=0)
    assert geometry.so3_log(torch.eye(3)).tolist() == [0, 0, 0]


def test_half_turns_have_a_logarithm():
    half_turns = geometry.so3_exp(math.pi * torch.nn.functional.normalize(torch.randn(20, 3, dtype=F64), dim=-1))
    vectors = geometry.so3_log(half_turns)
    torch.testing.assert_close(vectors.norm(dim=-1), torch.full((20,), math.pi, dtype=F64), atol=1e-7, rtol=0)
    torch.testing.assert_close(geometry.so3_exp(vectors), half_turns, atol=1e-7, rtol=0)


def test_quaternions_and_6d_agree_with_roma():
    rotations = roma.random_rotmat(50, dtype=F64)
    quaternions = geometry.quaternion_from_rotation(rotations)
    scalar_last = roma.rotmat_to_unitquat(rotations)
    expected = torch.cat([scalar_last[:, 3:], scalar_last[:, :3]], -1)
    torch.testing.assert_close(quaternions, expected * torch.where(expected[:, :1] < 0, -1, 1))
    torch.testing.assert_close(geometry.rotation_from_quaternion(-3 * quaternions), rotations)
    torch.testing.assert_close(geometry.rotation_from_6d(geometry.rotation_to_6d(rotations)), rotations)
    columns = torch.randn(20, 6, dtype=F64)
    torch.testing.assert_close(
        geometry.rotation_from_6d(columns), roma.special_gramschmidt(columns.unflatten(-1, (2, 3)).mT)
    )


def test_se3_exp_is_the_matrix_exponential_and_log_its_inverse():
    twists = torch.cat([torch.randn(60, 3, dtype=F64), rotation_vectors()], -1)
    zero = torch.zeros(60, dtype=F64)
    x, y, z = twists[:, 3:].unbind(-1)
    cross_matrix = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).reshape(60, 3, 3)
    generator = torch.cat([torch.cat([cross_matrix, twists[:, :3, None]], -1), torch.zeros(60, 1, 4, dtype=F64)], -2)
    transforms = geometry.se3_exp(twists)
    torch.testing.assert_close(transforms, torch.linalg.matrix_exp(generator), atol=1e-12, rtol=0)
    torch.testing.assert_close(geometry.se3_log(transforms), twists, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("angle", [0.0, 1e-7, 0.05, 0.1, 2.0])
def test_exponentials_have_exact_first_and_second_derivatives(angle):
    twist = torch.tensor([0.3, -0.2, 0.5, 0.6 * angle, 0.0, -0.8 * angle], dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(geometry.se3_exp, twist)
    assert torch.autograd.gradgradcheck(geometry.se3_exp, twist)
    assert torch.autograd.gradcheck(lambda v: geometry.se3_log(geometry.se3_exp(v)), twist)


def test_other_parametrisations_have_exact_derivatives():
    rotation = roma.random_rotmat(dtype=F64).requires_grad_()
    assert torch.autograd.gradcheck(geometry.quaternion_from_rotation, rotation)
    assert torch.autograd.gradcheck(geometry.so3_log, torch.eye(3, dtype=F64, requires_grad=True))
    numbers = torch.randn(6, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(geometry.rotation_from_6d, numbers)
    assert torch.autograd.gradcheck(geometry.rotation_from_quaternion, numbers[:4].detach().requires_grad_())


def test_float32_rotations_stay_rotations_for_tiny_and_large_angles():
    rotations = geometry.so3_exp(rotation_vectors().float())
    identity = torch.eye(3).expand_as(rotations)
    torch.testing.assert_close(rotations @ rotations.mT, identity, atol=1e-6, rtol=0)
    assert (torch.linalg.det(rotations) > 0.999).all()
