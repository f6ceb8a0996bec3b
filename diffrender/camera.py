"""Camera: pinhole cameras as plain tensors, one or a batch, differentiable in every number.

Frames: the world is right-handed; camera axes are x right, y up, looking down -z (OpenGL, glTF). Pixels are counted
from the top left corner of the picture: pixel (row 0, column 0) covers [0, 1] x [0, 1] and its centre is (0.5, 0.5).
With focal lengths f and principal point c in those pixels, a point (X, Y, Z) of the camera frame is seen at
x = cx - fx X / Z, y = cy + fy Y / Z, with the depth -Z.

Plain torch; autograd is right here and no slower.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from diffrender import _checks
from diffrender.geometry.transforms import Vector, compose, transform_homogeneous
from diffrender.geometry.transforms import look_at as _look_at

Number = float | Tensor


class Camera:
    """A pinhole camera, or a batch of them that share their picture size.

    Use `Camera.perspective` to make one. All tensors have either no batch axis (one camera) or the same one, B.

    Attributes:
        focal_px: (2,) or (B, 2) focal lengths along x and y in pixels.
        principal_px: (2,) or (B, 2) principal point (column, row) in pixels from the top left corner.
        near, far: () or (B,) distances of the clipping planes along the view, 0 < near < far.
        camera_from_world: (4, 4) or (B, 4, 4) rigid transforms (the extrinsics).
        width, height: picture size in pixels.

    Example:
        >>> camera = Camera.perspective(fov_y_deg=40, width=64, height=48).look_at([0.0, 0.0, 3.0])
        >>> camera.project(torch.zeros(1, 3)).tolist()
        [[32.0, 24.0]]
    """

    def __init__(
        self,
        *,
        focal_px: Tensor,
        principal_px: Tensor,
        near: Tensor,
        far: Tensor,
        camera_from_world: Tensor,
        width: int,
        height: int,
    ):
        batches = {t.shape[:-1] for t in (focal_px, principal_px)} | {near.shape, far.shape}
        batch = torch.broadcast_shapes(*batches, camera_from_world.shape[:-2])
        if len(batch) > 1:
            raise ValueError(f"Camera: tensors must have at most one batch axis, got batch shape {tuple(batch)}.")
        self.focal_px = focal_px.expand(*batch, 2)
        self.principal_px = principal_px.expand(*batch, 2)
        self.near = near.expand(batch)
        self.far = far.expand(batch)
        self.camera_from_world = camera_from_world.expand(*batch, 4, 4)
        self.width, self.height = int(width), int(height)

    @classmethod
    def perspective(
        cls,
        *,
        fov_y_deg: Number | None = None,
        fov_x_deg: Number | None = None,
        focal_px: Number | tuple[float, float] | None = None,
        width: int,
        height: int,
        near: Number = 0.1,
        far: Number = 100.0,
        principal_px: Tensor | tuple[float, float] | None = None,
        camera_from_world: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Camera:
        """A perspective camera from exactly one of the vertical or horizontal field of view or the focal length.

        Args:
            fov_y_deg, fov_x_deg: full opening angle in degrees, between 0 and 180.
            focal_px: focal length in pixels, the same along x and y; a tuple (fx, fy) or a (B, 2) tensor for two.
            width, height: picture size in pixels.
            near, far: distances of the clipping planes along the view.
            principal_px: (column, row) of the principal point from the top left corner; default: the middle.
            camera_from_world: (4, 4) or (B, 4, 4); default: the identity (at the origin, looking down -z).
            dtype, device: of the result where no argument is a float tensor; tensors keep theirs.

        Numbers may be Python numbers or tensors of shape (), (1,), (B,) or (B, 1): one per camera.

        Raises:
            ValueError: unless exactly one of fov_y_deg, fov_x_deg and focal_px is given, and on impossible values.
        """
        choices = {"fov_y_deg": fov_y_deg, "fov_x_deg": fov_x_deg, "focal_px": focal_px}
        given = [name for name, value in choices.items() if value is not None]
        if len(given) != 1:
            got = " and ".join(given) if given else "none"
            raise ValueError(f"Camera.perspective: give exactly one of fov_y_deg, fov_x_deg and focal_px, got {got}.")
        if width < 1 or height < 1:
            raise ValueError(f"Camera.perspective: width and height must be at least 1, got {width} x {height}.")

        arguments = (*choices.values(), near, far, principal_px, camera_from_world)
        floats = [a for a in arguments if isinstance(a, Tensor) and a.is_floating_point()]
        options: dict[str, Any] = {
            "dtype": floats[0].dtype if floats else dtype,
            "device": floats[0].device if floats else device,
        }

        if focal_px is not None:
            focal = torch.as_tensor(focal_px, **options)
            if not isinstance(focal_px, tuple) and focal.ndim < 2:
                focal = focal.unsqueeze(-1).expand(*focal.shape, 2)
            _require((focal > 0).all(), "focal_px", "positive", focal_px)
        else:
            name, side = ("fov_x_deg", width) if fov_y_deg is None else ("fov_y_deg", height)
            angle = _per_camera(choices[name], name, **options)
            _require(((angle > 0) & (angle < 180)).all(), name, "between 0 and 180", choices[name])
            focal = (side / 2 / torch.tan(angle * (math.pi / 360))).unsqueeze(-1)
            focal = focal.expand(*focal.shape[:-1], 2)

        near_plane, far_plane = _per_camera(near, "near", **options), _per_camera(far, "far", **options)
        _require(((near_plane > 0) & (near_plane < far_plane)).all(), "near", f"above 0 and below far={far}", near)
        middle = (width / 2, height / 2)
        return cls(
            focal_px=focal,
            principal_px=torch.as_tensor(middle if principal_px is None else principal_px, **options),
            near=near_plane,
            far=far_plane,
            camera_from_world=torch.eye(4, **options) if camera_from_world is None else camera_from_world,
            width=width,
            height=height,
        )

    def look_at(
        self,
        eye: Vector,
        target: Vector = (0.0, 0.0, 0.0),
        up: Vector = (0.0, 1.0, 0.0),
    ) -> Camera:
        """This camera moved to `eye` and turned to `target`; (B, 3) arguments give a batch of cameras.

        Safe at the poles: where `up` is parallel to the view, `diffrender.geometry.look_at` says which way is up.

        Raises:
            ValueError: if an eye lies at its target.
        """
        pose = _look_at(eye, target, up)
        return self.with_pose(pose.to(dtype=self.focal_px.dtype, device=self.focal_px.device))

    def with_pose(self, camera_from_world: Tensor) -> Camera:
        """This camera with other extrinsics, (4, 4) or (B, 4, 4)."""
        return self._replace(camera_from_world=camera_from_world)

    def scaled(self, factor: float) -> Camera:
        """The same view on a picture `factor` times as wide and high; sides are rounded to whole pixels.

        Rounding changes the frame by less than a pixel and never the focal length.
        """
        width, height = round(self.width * factor), round(self.height * factor)
        if width < 1 or height < 1:
            raise ValueError(f"Camera.scaled: factor must leave at least one pixel, got {factor}.")
        return self._replace(
            focal_px=self.focal_px * factor, principal_px=self.principal_px * factor, width=width, height=height
        )

    def to(self, *arguments: Any, **options: Any) -> Camera:
        """Moves and converts like `Tensor.to`: `.to("cuda")`, `.to(torch.float64)`."""
        return self._replace(**{name: getattr(self, name).to(*arguments, **options) for name in self._TENSORS})

    def __getitem__(self, index: int | slice | Tensor) -> Camera:
        """Some cameras of a batch: an int gives one camera without batch axis, slices and index tensors a batch."""
        if self.batch_size is None:
            raise TypeError("Camera: only a batch of cameras can be indexed, got one camera without a batch axis.")
        return self._replace(**{name: getattr(self, name)[index] for name in self._TENSORS})

    def __len__(self) -> int:
        if self.batch_size is None:
            raise TypeError("Camera: only a batch of cameras has a length, got one camera without a batch axis.")
        return self.batch_size

    @property
    def batch_size(self) -> int | None:
        """B, or None for one camera without a batch axis."""
        return self.near.shape[0] if self.near.ndim else None

    @property
    def clip_from_camera(self) -> Tensor:
        """(4, 4) or (B, 4, 4) projection to OpenGL clip space: y up, w = depth, z/w = -1 on near and +1 on far."""
        zero, one = torch.zeros_like(self.near), torch.ones_like(self.near)
        scale_x, scale_y = 2 * self.focal_px[..., 0] / self.width, 2 * self.focal_px[..., 1] / self.height
        shift_x = 1 - 2 * self.principal_px[..., 0] / self.width
        shift_y = 2 * self.principal_px[..., 1] / self.height - 1
        depth_range = self.near - self.far
        scale_z, shift_z = (self.near + self.far) / depth_range, 2 * self.near * self.far / depth_range
        entries = [
            scale_x, zero, shift_x, zero,
            zero, scale_y, shift_y, zero,
            zero, zero, scale_z, shift_z,
            zero, zero, -one, zero,
        ]  # fmt: skip
        return torch.stack(entries, -1).unflatten(-1, (4, 4))

    @property
    def clip_from_world(self) -> Tensor:
        """(4, 4) or (B, 4, 4): clip_from_camera after camera_from_world."""
        return compose(self.clip_from_camera, self.camera_from_world)

    @property
    def eye(self) -> Tensor:
        """(3,) or (B, 3) world position of the camera."""
        linear, offset = self.camera_from_world[..., :3, :3], self.camera_from_world[..., :3, 3]
        return -(linear * offset.unsqueeze(-1)).sum(-2)

    def clip_positions(self, points: Tensor) -> Tensor:
        """World points (N, 3) or (B, N, 3) in clip space: (N, 4), or (B, N, 4) with a batch on either side."""
        return transform_homogeneous(self.clip_from_world, points)

    def project(self, points: Tensor) -> Tensor:
        """Where world points appear in the picture.

        Args:
            points: (N, 3), or (B, N, 3) with one set per camera.

        Returns:
            (N, 2) or (B, N, 2) pixels (x = column, y = row) from the top left corner, also outside of the picture.
            Points in the plane of the eye give inf or NaN; points behind it appear mirrored: ask `depth` first.

        Gradients:
            To points and to every tensor of the camera, exact.
        """
        clip = self.clip_positions(points)
        x = (clip[..., 0] / clip[..., 3] + 1) * (self.width / 2)
        y = (1 - clip[..., 1] / clip[..., 3]) * (self.height / 2)
        return torch.stack([x, y], -1)

    def depth(self, points: Tensor) -> Tensor:
        """Distance of world points along the viewing axis, (N,) or (B, N); negative behind the eye."""
        return self.clip_positions(points)[..., 3]

    _TENSORS = ("focal_px", "principal_px", "near", "far", "camera_from_world")

    def _replace(self, **fields: Any) -> Camera:
        current = {name: getattr(self, name) for name in (*self._TENSORS, "width", "height")}
        return Camera(**{**current, **fields})

    def __repr__(self) -> str:
        batch = "one camera" if self.batch_size is None else f"{self.batch_size} cameras"
        return f"Camera({batch}, {self.width} x {self.height} pixels, {self.near.dtype}, {self.near.device})"


def _per_camera(value: Any, name: str, **options: Any) -> Tensor:
    """() for a number, (B,) for (B,) or (B, 1) numbers; one-element tensors count as a batch of one."""
    tensor = torch.as_tensor(value, **options)
    if tensor.ndim > 2 or (tensor.ndim == 2 and tensor.shape[1] != 1):
        raise ValueError(
            f"Camera.perspective: {name} must be one number or (B,) numbers, got shape {tuple(tensor.shape)}."
        )
    return tensor.reshape(-1) if tensor.ndim else tensor


def _require(holds: Tensor, name: str, expected: str, value: Any) -> None:
    if _checks.can_read(holds) and not bool(holds):
        raise ValueError(f"Camera.perspective: {name} must be {expected}, got {value}.")
