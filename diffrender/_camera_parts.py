"""What the conversions of cameras share: `_camera_vision.py` and `_camera_scenes.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from diffrender import _checks
from diffrender._constants import constant
from diffrender.geometry.transforms import affine

if TYPE_CHECKING:
    from diffrender.camera import Camera


class CameraParts:
    """Makes a `Camera` of its parts."""

    @classmethod
    def _from_parts(
        cls,
        function: str,
        *,
        focal: Tensor,
        principal: Tensor,
        camera_from_world: Tensor,
        size: tuple[int, int],
        planes: tuple[Any, Any],
        **lens: Any,
    ) -> Camera:
        from diffrender.camera import Camera

        options: dict[str, Any] = {"dtype": focal.dtype, "device": focal.device}
        near, far = (torch.as_tensor(plane, **options) for plane in planes)
        near, far = (plane.reshape(-1) if plane.ndim else plane for plane in (near, far))
        # Planes in the wrong order would show nothing, or mirror the depth.
        above_zero = lens.get("projection") != "orthographic"
        in_order = ((near > (0 if above_zero else -math.inf)) & (near < far)).all()
        if _checks.can_read(in_order) and not bool(in_order):
            least = "above 0 and " if above_zero else ""
            raise ValueError(f"{function}: near must be {least}below far={planes[1]}, got {planes[0]}.")
        return Camera(
            focal_px=focal,
            principal_px=principal,
            near=near,
            far=far,
            camera_from_world=camera_from_world,
            width=size[0],
            height=size[1],
            **lens,
        )

    def _perspective(self, function: str) -> Camera:
        camera: Any = self
        if camera.projection != "perspective":
            raise ValueError(f"Camera.{function}: the camera must be a perspective one, got an orthographic one.")
        return camera


def tensors(*values: Any) -> list[Any]:
    """Values as float tensors of one dtype and device: those of the tensors among them, else float32. None stays."""
    # torch warns of lists of arrays, which is what calibrations of several cameras are.
    values = tuple(np.stack(v) if isinstance(v, (list, tuple)) and _are_arrays(v) else v for v in values)
    given = [v for v in values if isinstance(v, Tensor)]
    dtype = torch.float32
    for tensor in given:
        dtype = torch.promote_types(dtype, tensor.dtype)
    device = given[0].device if given else None
    return [None if v is None else torch.as_tensor(v, dtype=dtype, device=device) for v in values]


def _are_arrays(values: Sequence[Any]) -> bool:
    return len(values) > 0 and all(isinstance(value, np.ndarray) for value in values)


def check_last_axes(function: str, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.ndim > len(shape) + 1 or tuple(tensor.shape[-len(shape) :]) != shape:
        sizes = ", ".join(map(str, shape))
        single = f"({sizes},)" if len(shape) == 1 else f"({sizes})"
        _checks.fail(ValueError, function, name, f"have shape {single} or (B, {sizes})", _checks.shape_text(tensor))


def common_batch(linear: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    batch = _checks.broadcast_shapes(linear.shape[:-2], offset.shape[:-1])
    return linear.expand(*batch, 3, 3), offset.expand(*batch, 3)


def flip_axes(camera_from_world: Tensor, signs: tuple[int, int, int]) -> Tensor:
    """The same pose for a camera frame whose axes point the other way where a sign is -1."""
    return camera_from_world * constant([*signs, 1], camera_from_world).unsqueeze(-1)


def rigid_inverse(function: str, world_from_camera: Tensor) -> Tensor:
    """camera_from_world of (..., 4, 4) camera-to-world transforms, whose axes are made unit length."""
    if world_from_camera.shape[-2:] != (4, 4):
        _checks.fail(
            ValueError, function, "the pose", "have shape (4, 4) or (B, 4, 4)", _checks.shape_text(world_from_camera)
        )
    linear, offset = world_from_camera[..., :3, :3], world_from_camera[..., :3, 3]
    rotation = (linear / linear.norm(dim=-2, keepdim=True)).mT
    if _checks.can_read(rotation) and bool((torch.linalg.det(rotation.detach()) <= 0).any()):
        raise ValueError(f"{function}: the pose must be a rotation and a translation, got one that mirrors.")
    return affine(rotation, -(rotation * offset.unsqueeze(-2)).sum(-1))
