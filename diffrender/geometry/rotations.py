"""Rotations and rigid motions as numbers that an optimizer may change freely: so(3), SE(3), quaternions, 6-D.

Rotations are (..., 3, 3) and act on column vectors; `affine(rotation, offset)` makes a 4x4 transform of one. Vectors of
so(3) are axis times angle in radians; a twist (..., 6) of SE(3) holds the translational part first, then the rotation.
Quaternions are (w, x, y, z) with the scalar first, as in COLMAP and PyTorch3D (glTF, SciPy and roma have it last).

With K the cross-product matrix of w and t = |w|^2 (Rodrigues; Eade, "Lie groups for 2D and 3D transformations"):

    exp(w) = I + A K + B K^2          A = sin|w| / |w|     B = (1 - cos|w|) / t
    V(w)   = I + B K + C K^2          C = (1 - A) / t      translation of the twist = V(w) v
    V^-1   = I - K/2 + D K^2          D = (1 - A / (2 B)) / t

All four are smooth in t and computed from their series where t is small, so that values and derivatives of any order
are right at and next to the identity. Plain torch; logarithms near half a turn are right in value, but jump there.
"""

import torch
from torch import Tensor

from diffrender.geometry.normals import safe_normalize
from diffrender.geometry.transforms import affine

_SERIES_BELOW = 1e-2  # of t: the first neglected term is t^5 / 11! or smaller, below the rounding of float64


def so3_exp(rotation_vectors: Tensor) -> Tensor:
    """Rotations (..., 3, 3) by |w| radians about w, for rotation vectors (..., 3). Exact gradients, at zero too.

    Example:
        >>> so3_exp(torch.tensor([0.0, 0.0, torch.pi / 2])).round(decimals=3)[0].tolist()
        [0.0, -1.0, 0.0]
    """
    sine, versine, _, _ = _coefficients((rotation_vectors * rotation_vectors).sum(-1))
    return _polynomial(rotation_vectors, sine, versine)


def so3_log(rotations: Tensor) -> Tensor:
    """Rotation vectors (..., 3) with |w| <= pi of rotations (..., 3, 3), the inverse of `so3_exp`.

    Gradients:
        Exact, at the identity too; at half a turn the result jumps to the opposite vector.
    """
    quaternion = quaternion_from_rotation(rotations)
    real, imaginary = quaternion[..., :1], quaternion[..., 1:]
    squared = (imaginary * imaginary).sum(-1, keepdim=True)
    # 2 atan2(s, c) / s, as the series of atan in q = s / c where that is small: a root has no derivative at zero.
    is_small = squared < 1e-4
    length = torch.where(is_small, 1, squared).sqrt()
    ratio = torch.where(is_small, squared / torch.where(is_small, real, 1) ** 2, 0)
    series = 2 * (1 - ratio / 3 + ratio**2 / 5 - ratio**3 / 7 + ratio**4 / 9) / torch.where(is_small, real, 1)
    return imaginary * torch.where(is_small, series, 2 * torch.atan2(length, real) / length)


def se3_exp(twists: Tensor) -> Tensor:
    """Rigid transforms (..., 4, 4) of twists (..., 6) = (translational part, rotation vector). Exact gradients.

    Example:
        >>> se3_exp(torch.tensor([1.0, 2.0, 3.0, 0.0, 0.0, 0.0]))[:3, 3].tolist()
        [1.0, 2.0, 3.0]
    """
    velocity, rotation_vectors = twists[..., :3], twists[..., 3:]
    sine, versine, rest, _ = _coefficients((rotation_vectors * rotation_vectors).sum(-1))
    offset = (_polynomial(rotation_vectors, versine, rest) * velocity.unsqueeze(-2)).sum(-1)
    return affine(_polynomial(rotation_vectors, sine, versine), offset)


def se3_log(transforms: Tensor) -> Tensor:
    """Twists (..., 6) of rigid transforms (..., 4, 4), the inverse of `se3_exp` for turns below half a turn."""
    rotation_vectors = so3_log(transforms[..., :3, :3])
    _, _, _, inverse = _coefficients((rotation_vectors * rotation_vectors).sum(-1))
    half = torch.full_like(inverse, -0.5)
    velocity = (_polynomial(rotation_vectors, half, inverse) * transforms[..., None, :3, 3]).sum(-1)
    return torch.cat([velocity, rotation_vectors], -1)


def rotation_from_quaternion(quaternions: Tensor) -> Tensor:
    """Rotations (..., 3, 3) of quaternions (..., 4) = (w, x, y, z), which need not be unit length.

    Raises nothing: the zero quaternion gives the identity, with zero gradient.
    """
    w, x, y, z = safe_normalize(quaternions).unbind(-1)
    entries = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(entries, -1).unflatten(-1, (3, 3))


def quaternion_from_rotation(rotations: Tensor) -> Tensor:
    """Unit quaternions (..., 4) = (w, x, y, z) with w >= 0 of rotations (..., 3, 3).

    Gradients:
        Exact: 4 q q^T is linear in the rotation, and q is the row of its largest diagonal entry (at least 1) over the
        root of that entry, so nothing is divided by a small number.
    """
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = (row.unbind(-1) for row in rotations.unbind(-2))
    products = [
        1 + xx + yy + zz, zy - yz, xz - zx, yx - xy,
        zy - yz, 1 + xx - yy - zz, xy + yx, xz + zx,
        xz - zx, xy + yx, 1 - xx + yy - zz, yz + zy,
        yx - xy, xz + zx, yz + zy, 1 - xx - yy + zz,
    ]  # fmt: skip
    outer = torch.stack(products, -1).unflatten(-1, (4, 4))  # 4 q q^T
    largest = outer.detach().diagonal(dim1=-2, dim2=-1).argmax(-1)
    row = torch.take_along_dim(outer, largest[..., None, None], -2).squeeze(-2)
    quaternion = row / (2 * torch.take_along_dim(row, largest[..., None], -1).sqrt())
    return torch.where(quaternion[..., :1] < 0, -quaternion, quaternion)


def rotation_from_6d(columns: Tensor) -> Tensor:
    """Rotations (..., 3, 3) whose first two columns are the orthonormalised (..., 6) = (column 0, column 1).

    Zhou et al., "On the continuity of rotation representations": no jumps and no double cover, so it is the one to
    optimise over large turns. (PyTorch3D takes the six numbers as rows, which gives the transpose.)
    """
    first = safe_normalize(columns[..., :3])
    second = columns[..., 3:] - (first * columns[..., 3:]).sum(-1, keepdim=True) * first
    second = safe_normalize(second)
    return torch.stack([first, second, torch.linalg.cross(first, second)], -1)


def rotation_to_6d(rotations: Tensor) -> Tensor:
    """The first two columns (..., 6) of rotations (..., 3, 3)."""
    return torch.cat([rotations[..., :, 0], rotations[..., :, 1]], -1)


def _polynomial(rotation_vectors: Tensor, linear: Tensor, quadratic: Tensor) -> Tensor:
    """I + linear K + quadratic K^2, with K^2 = w w^T - |w|^2 I."""
    x, y, z = rotation_vectors.unbind(-1)
    zero = torch.zeros_like(x)
    cross_matrix = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3))
    identity = torch.eye(3, dtype=x.dtype, device=x.device)
    squared = (rotation_vectors * rotation_vectors).sum(-1)[..., None, None]
    outer = rotation_vectors.unsqueeze(-1) * rotation_vectors.unsqueeze(-2)
    return identity + linear[..., None, None] * cross_matrix + quadratic[..., None, None] * (outer - squared * identity)


def _coefficients(t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A, B, C and D of the module's docstring for squared angles t."""
    is_small = t < _SERIES_BELOW
    safe = torch.where(is_small, 1, t)
    angle = safe.sqrt()
    small = torch.where(is_small, t, 0)
    a = torch.where(is_small, _series(small, 1, -1 / 6, 1 / 120, -1 / 5040, 1 / 362880), angle.sin() / angle)
    # 1 - cos loses digits, 2 sin^2 of half the angle does not.
    b = torch.where(
        is_small, _series(small, 1 / 2, -1 / 24, 1 / 720, -1 / 40320, 1 / 3628800), 2 * (angle / 2).sin() ** 2 / safe
    )
    c = torch.where(is_small, _series(small, 1 / 6, -1 / 120, 1 / 5040, -1 / 362880, 1 / 39916800), (1 - a) / safe)
    d = torch.where(
        is_small, _series(small, 1 / 12, 1 / 720, 1 / 30240, 1 / 1209600, 1 / 47900160), (1 - a / (2 * b)) / safe
    )
    return a, b, c, d


def _series(t: Tensor, *coefficients: float) -> Tensor:
    result = torch.full_like(t, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * t + coefficient
    return result
