"""4x4 transforms of points, directions and normals; column vectors, `M @ x`, named target_from_source.

The products are written as multiply-adds, not as `@`: a matmul of positions becomes half precision under autocast and
10-bit TF32 on recent GPUs, which moves silhouettes by pixels. Plain torch, differentiable in every argument.
"""

import math

import torch
from torch import Tensor

from diffrender import _checks
from diffrender._constants import constant, joined
from diffrender.geometry.normals import safe_normalize

Vector = Tensor | list[float] | tuple[float, float, float]


def compose(*transforms: Tensor) -> Tensor:
    """The product of (..., 4, 4) transforms, the last applied first: compose(clip_from_camera, camera_from_world)."""
    result = transforms[0]
    for transform in transforms[1:]:
        result = (result.unsqueeze(-1) * transform.unsqueeze(-3)).sum(-2)
    return result


def transform_homogeneous(target_from_source: Tensor, points: Tensor) -> Tensor:
    """Applies (..., 4, 4) transforms to (..., N, 3) points (w = 1); the result (..., N, 4) keeps its w."""
    columns = target_from_source.unsqueeze(-3)  # (..., 1, 4, 4), broadcasts over the points
    x, y, z = points[..., 0:1], points[..., 1:2], points[..., 2:3]
    return x * columns[..., 0] + y * columns[..., 1] + z * columns[..., 2] + columns[..., 3]


def transform_points(target_from_source: Tensor, points: Tensor) -> Tensor:
    """Applies affine (..., 4, 4) transforms to (..., N, 3) points. The last row is taken to be (0, 0, 0, 1).

    Example:
        >>> transform_points(translation([0.0, 0.0, 2.0]), torch.zeros(1, 3)).tolist()
        [[0.0, 0.0, 2.0]]
    """
    return transform_homogeneous(target_from_source, points)[..., :3]


def transform_directions(target_from_source: Tensor, directions: Tensor) -> Tensor:
    """Applies the linear part of (..., 4, 4) transforms to (..., N, 3) directions, which translations leave alone."""
    columns = target_from_source.unsqueeze(-3)[..., :3, :]
    x, y, z = directions[..., 0:1], directions[..., 1:2], directions[..., 2:3]
    return x * columns[..., 0] + y * columns[..., 1] + z * columns[..., 2]


def transform_normals(target_from_source: Tensor, normals: Tensor) -> Tensor:
    """Applies the inverse transpose of the linear part to (..., N, 3) normals and makes them unit length again.

    Under a mirroring transform the normals keep pointing to the outside (the winding of the triangles turns over). A
    singular transform gives the limit where there is one, else zero.
    """
    linear = target_from_source[..., :3, :3]
    # The cofactor matrix is det * inverse transpose, defined for singular matrices too; its rows are cross products.
    row0, row1, row2 = linear.unbind(-2)
    cofactors = torch.stack(
        [torch.linalg.cross(row1, row2), torch.linalg.cross(row2, row0), torch.linalg.cross(row0, row1)], -2
    )
    orientation = (row0 * cofactors[..., 0, :]).sum(-1).detach().sign()[..., None, None]
    normal_from_normal = affine(cofactors * torch.where(orientation == 0, 1, orientation), torch.zeros_like(row0))
    return safe_normalize(transform_directions(normal_from_normal, normals))


def translation(offset: Vector) -> Tensor:
    """A (..., 4, 4) translation by (..., 3) offsets."""
    offset = _as_float_tensor(offset)
    linear = torch.eye(3, dtype=offset.dtype, device=offset.device).expand(*offset.shape[:-1], 3, 3)
    return affine(linear, offset)


def scaling(factors: Vector | float) -> Tensor:
    """A (..., 4, 4) scaling by one number or by (..., 3) factors along x, y and z."""
    factors = _as_float_tensor(factors)
    if factors.ndim == 0:
        factors = factors.expand(3)
    return affine(torch.diag_embed(factors), torch.zeros_like(factors))


def rotation(axis: Vector, angle: Tensor | float) -> Tensor:
    """A (..., 4, 4) rotation about (..., 3) axes, which need not be unit length, by `angle` radians, right-handed."""
    axis = safe_normalize(_as_float_tensor(axis))
    angle = constant(angle, axis)
    # Rodrigues: R = I + sin(a) K + (1 - cos(a)) K K with K the cross-product matrix of the axis, K K = n n^T - I.
    zero = torch.zeros_like(axis[..., 0])
    x, y, z = axis.unbind(-1)
    cross_matrix = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3))
    identity = torch.eye(3, dtype=axis.dtype, device=axis.device)
    outer = axis.unsqueeze(-1) * axis.unsqueeze(-2)
    sine, versine = angle.sin()[..., None, None], (1 - angle.cos())[..., None, None]
    linear = identity + sine * cross_matrix + versine * (outer - identity)
    return affine(linear, torch.zeros_like(linear[..., 0]))


def affine(linear: Tensor, offset: Tensor) -> Tensor:
    """Joins (..., 3, 3) linear parts and (..., 3) offsets into (..., 4, 4) transforms."""
    upper = torch.cat([linear, offset.unsqueeze(-1)], -1)
    last_row = constant([0.0, 0.0, 0.0, 1.0], upper)
    return torch.cat([upper, last_row.expand(*upper.shape[:-2], 1, 4)], -2)


def look_at(
    eye: Vector,
    target: Vector = (0.0, 0.0, 0.0),
    up: Vector = (0.0, 1.0, 0.0),
) -> Tensor:
    """camera_from_world of cameras at `eye` that look at `target`: camera axes x right, y up, looking down -z.

    Args:
        eye, target, up: (3,) or (B, 3) world positions and the world direction that shall point up in the picture;
            they broadcast against each other.

    Returns:
        (4, 4) or (B, 4, 4) rigid transforms with determinant +1.

        Where `up` is parallel to the view (or zero), world -z points up instead, which is where a camera that rises
        over the pole of a y-up world from the front arrives; where -z is parallel as well, world +y.

    Gradients:
        To eye, target and up, exact. At a pole, the gradient is that of the fall-back.

    Raises:
        ValueError: if an eye lies at its target (checked on the CPU).

    Example:
        >>> transform_points(look_at([0.0, 0.0, 5.0]), torch.zeros(1, 3)).tolist()
        [[0.0, 0.0, -5.0]]
    """
    eye, target, up = _common_vectors(eye, target, up)
    forward = safe_normalize(target - eye)
    # Where values cannot be looked at (on a GPU, inside vmap) the rotation is zero and nothing is drawn.
    if _checks.can_read(forward) and bool((forward.detach() == 0).all(-1).any()):
        raise ValueError("look_at: eye must differ from target, got the same point. Move the eye away.")

    # The smallest sine that a normalised float vector can tell from zero is a few eps.
    parallel_below = 8 * torch.finfo(forward.dtype).eps
    up = safe_normalize(up)
    for fallback in ([0.0, 0.0, -1.0], [0.0, 1.0, 0.0]):
        sine = torch.linalg.cross(forward.detach(), up.detach()).norm(dim=-1, keepdim=True)
        up = torch.where(sine > parallel_below, up, constant(fallback, up))

    right = safe_normalize(torch.linalg.cross(forward, up))
    camera_up = torch.linalg.cross(right, forward)
    camera_from_world_linear = torch.stack([right, camera_up, -forward], -2)
    offset = -(camera_from_world_linear * eye.unsqueeze(-2)).sum(-1)
    return affine(camera_from_world_linear, offset)


def orbit_eyes(count: int, distance: float, *, elevation_deg: float = 20.0) -> Tensor:
    """(count, 3) eye positions on a level circle about the origin, the first on +z, turning towards +x."""
    angles = torch.arange(count, dtype=torch.float64) * (2 * math.pi / max(count, 1))
    elevation = math.radians(elevation_deg)
    level = math.cos(elevation) * distance
    height = torch.full_like(angles, math.sin(elevation) * distance)
    return torch.stack([angles.sin() * level, height, angles.cos() * level], -1).float()


def _common_vectors(*vectors: Vector) -> list[Tensor]:
    """Brings (3,) and (B, 3) vectors to one shape, float type and device; tensors decide over plain numbers."""
    tensors = [v for v in vectors if isinstance(v, Tensor)]
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    like = torch.empty((), dtype=dtype, device=tensors[0].device if tensors else None)
    converted = [constant(v, like) for v in vectors]
    for tensor in converted:
        if tensor.ndim not in (1, 2) or tensor.shape[-1] != 3:
            raise ValueError(f"look_at: eye, target and up must have shape (3,) or (B, 3), got {tuple(tensor.shape)}.")
    return list(torch.broadcast_tensors(*converted))


def _as_float_tensor(values: Vector | float) -> Tensor:
    values = joined(values)
    return values if isinstance(values, Tensor) else torch.as_tensor(values, dtype=torch.float32)
