"""Camera: perspective, orthographic and distorting cameras as plain tensors, differentiable in every number.

Frames: the world is right-handed; camera axes are x right, y up, looking down -z (OpenGL, glTF). Pixels are counted
from the top left corner of the picture: pixel (row 0, column 0) covers [0, 1] x [0, 1] and its centre is (0.5, 0.5).
How points become pixels is in `diffrender/_camera_projection.py`, distorting lenses are in `diffrender/_lens.py`.
Conversions from and to other libraries are in `diffrender/_camera_vision.py` and `_camera_scenes.py`. Plain torch;
autograd is right here and no slower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from diffrender import _checks, _lens
from diffrender._camera_projection import CameraProjection
from diffrender._camera_scenes import SceneConversions
from diffrender._camera_vision import VisionConversions
from diffrender._constants import constant
from diffrender.geometry.rotations import se3_exp
from diffrender.geometry.transforms import Vector, compose, transform_points, translation
from diffrender.geometry.transforms import look_at as _look_at

Number = float | Tensor


class Camera(CameraProjection, VisionConversions, SceneConversions):
    """A camera, or a batch of different ones that share their picture size and their kind.

    Use `Camera.perspective`, `Camera.orthographic` or one of the `Camera.from_...` to make one. All tensors have either
    no batch axis (one camera) or the same one, B.

    Attributes:
        focal_px: (2,) or (B, 2) focal lengths along x and y in pixels; orthographic: pixels per unit of length.
        principal_px: (2,) or (B, 2) principal point (column, row) in pixels from the top left corner.
        near, far: () or (B,) distances of the clipping planes along the view, near < far; for a fisheye lens, which
            also sees sideways, distances from the eye.
        camera_from_world: (4, 4) or (B, 4, 4) rigid transforms (the extrinsics).
        width, height: picture size in pixels.
        projection: "perspective" or "orthographic".
        distortion: None, or (K,) or (B, K) coefficients in the order of OpenCV.
        distortion_model: "radial_tangential" (K = 4, 5 or 8) or "fisheye" (K = 4); means nothing without distortion.

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
        projection: str = "perspective",
        distortion: Tensor | None = None,
        distortion_model: str = "radial_tangential",
    ):
        _checks.check_choice("Camera", "projection", projection, ("perspective", "orthographic"))
        _checks.check_choice("Camera", "distortion_model", distortion_model, tuple(_lens.MODELS))
        _checks.check_tensor("Camera", "camera_from_world", camera_from_world)
        if camera_from_world.shape[-2:] != (4, 4):
            actual, hint = _checks.shape_text(camera_from_world), "geometry.affine(rotation, translation) makes one."
            _checks.fail(ValueError, "Camera", "camera_from_world", "have shape (4, 4) or (B, 4, 4)", actual, hint)
        # Of mixed types the products would take the larger one, and the stages after them refuse that.
        for name, value in (("principal_px", principal_px), ("camera_from_world", camera_from_world)):
            _checks.check_same_type("Camera", name, value, "focal_px", focal_px)
        batches = [focal_px.shape[:-1], principal_px.shape[:-1], near.shape, far.shape]
        if distortion is not None:
            counts = _lens.MODELS[distortion_model]
            if distortion.ndim < 1 or distortion.shape[-1] not in counts:
                expected = f"have {', '.join(map(str, counts))} coefficients for the {distortion_model} model"
                is_longer = 8 in counts and distortion.ndim >= 1 and distortion.shape[-1] in (12, 14)
                hint = "Thin prism and tilt are not known; where they are 0, pass the first 8." if is_longer else ""
                _checks.fail(ValueError, "Camera", "distortion", expected, _checks.shape_text(distortion), hint)
            if projection == "orthographic":
                raise ValueError("Camera: distortion must be None for an orthographic camera, got coefficients.")
            batches.append(distortion.shape[:-1])
        batch = _checks.broadcast_shapes(*batches, camera_from_world.shape[:-2])
        if len(batch) > 1:
            raise ValueError(f"Camera: tensors must have at most one batch axis, got batch shape {tuple(batch)}.")
        self.focal_px = focal_px.expand(*batch, 2)
        self.principal_px = principal_px.expand(*batch, 2)
        self.near = near.expand(batch)
        self.far = far.expand(batch)
        self.camera_from_world = camera_from_world.expand(*batch, 4, 4)
        self.width, self.height = int(width), int(height)
        self.projection = projection
        self.distortion = None if distortion is None else distortion.expand(*batch, distortion.shape[-1])
        self.distortion_model = distortion_model

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
        _check_size("Camera.perspective", width, height)
        options = _tensor_options((*choices.values(), near, far, principal_px, camera_from_world), dtype, device)
        like = torch.empty((), **options)

        if focal_px is not None:
            focal = constant(focal_px, like)
            if not isinstance(focal_px, tuple) and focal.ndim < 2:
                focal = focal.unsqueeze(-1).expand(*focal.shape, 2)
            _require("Camera.perspective", (focal > 0).all(), "focal_px", "positive", focal_px)
        else:
            name, side = ("fov_x_deg", width) if fov_y_deg is None else ("fov_y_deg", height)
            angle = _per_camera("Camera.perspective", choices[name], name, like)
            inside = ((angle > 0) & (angle < 180)).all()
            _require("Camera.perspective", inside, name, "between 0 and 180", choices[name])
            focal = (side / 2 / torch.tan(angle * (math.pi / 360))).unsqueeze(-1)
            focal = focal.expand(*focal.shape[:-1], 2)

        near_plane = _per_camera("Camera.perspective", near, "near", like)
        far_plane = _per_camera("Camera.perspective", far, "far", like)
        in_order = ((near_plane > 0) & (near_plane < far_plane)).all()
        _require("Camera.perspective", in_order, "near", f"above 0 and below far={far}", near)
        middle = (width / 2, height / 2)
        return cls(
            focal_px=focal,
            principal_px=constant(middle if principal_px is None else principal_px, like),
            near=near_plane,
            far=far_plane,
            camera_from_world=torch.eye(4, **options) if camera_from_world is None else camera_from_world,
            width=width,
            height=height,
        )

    @classmethod
    def orthographic(
        cls,
        *,
        half_height: Number | None = None,
        half_width: Number | None = None,
        pixels_per_unit: Number | tuple[float, float] | None = None,
        width: int,
        height: int,
        near: Number = 0.1,
        far: Number = 100.0,
        principal_px: Tensor | tuple[float, float] | None = None,
        camera_from_world: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Camera:
        """A camera without perspective: rays are parallel, depth does not change sizes.

        Args:
            half_height, half_width, pixels_per_unit: exactly one. The distance from the middle to the upper or right
                border of the view in units of the world (glTF's ymag and xmag), or pixels per such unit (a tuple or a
                (B, 2) tensor for x and y).
            near, far: distances of the clipping planes along the view, near < far; near may be negative.
            Others as for `perspective`.

        Raises:
            ValueError: unless exactly one of the three is given, and on impossible values.

        Example:
            >>> camera = Camera.orthographic(half_width=2, width=64, height=64)
            >>> camera.project(torch.tensor([[1.0, 0.0, -3.0]])).tolist()
            [[48.0, 32.0]]
        """
        choices = {"half_height": half_height, "half_width": half_width, "pixels_per_unit": pixels_per_unit}
        given = [name for name, value in choices.items() if value is not None]
        if len(given) != 1:
            got = " and ".join(given) if given else "none"
            raise ValueError(
                f"Camera.orthographic: give exactly one of half_height, half_width and pixels_per_unit, got {got}."
            )
        _check_size("Camera.orthographic", width, height)
        options = _tensor_options((*choices.values(), near, far, principal_px, camera_from_world), dtype, device)
        like = torch.empty((), **options)
        value = choices[given[0]]
        if pixels_per_unit is not None:
            scale = constant(value, like)
            if not isinstance(value, tuple) and scale.ndim < 2:
                scale = scale.unsqueeze(-1).expand(*scale.shape, 2)
        else:
            half = _per_camera("Camera.orthographic", value, given[0], like)
            scale = ((height if half_height is not None else width) / 2 / half).unsqueeze(-1)
            scale = scale.expand(*scale.shape[:-1], 2)
        _require("Camera.orthographic", (scale > 0).all() & scale.isfinite().all(), given[0], "positive", value)
        near_plane = _per_camera("Camera.orthographic", near, "near", like)
        far_plane = _per_camera("Camera.orthographic", far, "far", like)
        _require("Camera.orthographic", (near_plane < far_plane).all(), "near", f"below far={far}", near)
        middle = (width / 2, height / 2)
        return cls(
            focal_px=scale,
            principal_px=constant(middle if principal_px is None else principal_px, like),
            near=near_plane,
            far=far_plane,
            camera_from_world=torch.eye(4, **options) if camera_from_world is None else camera_from_world,
            width=width,
            height=height,
            projection="orthographic",
        )

    @classmethod
    def stack(cls, cameras: Sequence[Camera]) -> Camera:
        """One batch of single cameras, in their order: what a DataLoader's `collate_fn` makes of a list of views.

        Gradients:
            To every tensor of the cameras, exact.

        Raises:
            ValueError: without cameras, on one with a batch axis, or where picture size, projection, lens model or the
                number of its coefficients differ.

        Example:
            >>> camera = Camera.perspective(fov_y_deg=40, width=64, height=48)
            >>> Camera.stack([camera.look_at([0.0, 0.0, 3.0]), camera.look_at([3.0, 0.0, 0.0])])
            Camera(2 cameras, 64 x 48 pixels, torch.float32, cpu)
        """
        if not cameras or any(camera.batch_size is not None for camera in cameras):
            actual = "none" if not cameras else "one with a batch axis"
            _checks.fail(ValueError, "Camera.stack", "cameras", "be single cameras, at least one", actual)
        first = cameras[0]
        for camera in cameras:
            if camera._kind() != first._kind():
                _checks.fail(ValueError, "Camera.stack", "cameras", "be of one kind", f"{first!r} and {camera!r}")
        fields = {name: [getattr(camera, name) for camera in cameras] for name in cls._TENSORS}
        return first._replace(**{name: torch.stack(t) for name, t in fields.items() if t[0] is not None})

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
        eye, target, up = (constant(vector, self.focal_px) for vector in (eye, target, up))
        return self.with_pose(_look_at(eye, target, up))

    def with_pose(self, camera_from_world: Tensor) -> Camera:
        """This camera with other extrinsics, (4, 4) or (B, 4, 4)."""
        return self._replace(camera_from_world=camera_from_world)

    def moved(self, twist: Tensor, *, center: Vector | None = None) -> Camera:
        """This camera moved by SE(3) increments (6,) or (B, 6) in its own frame: what to optimise for a pose.

        Args:
            twist: a translation and a rotation vector (`diffrender.geometry.se3_exp`), which points in the camera's
                frame undergo.
            center: (3,) or (B, 3) point of the world that stays where it is when the scene turns; default: the eye.
                For the pose of an object, give its middle. About the eye, a turn sweeps a distant object out of the
                picture, and an optimizer has to balance that by a translation at every step.

        At a twist of zero nothing changes and the derivatives are regular, so that an optimizer can start from there:

            >>> twist = torch.zeros(6, requires_grad=True)
            >>> camera = Camera.perspective(fov_y_deg=40, width=64, height=48).look_at([0.0, 0.0, 3.0])
            >>> camera.moved(twist).project(torch.zeros(1, 3)).tolist()
            [[32.0, 24.0]]
        """
        _checks.check_tensor("Camera.moved", "twist", twist)
        if twist.shape[-1:] != (6,) or twist.ndim > 2:
            hint = "A twist is a translation and a rotation vector."
            shape = _checks.shape_text(twist)
            _checks.fail(ValueError, "Camera.moved", "twist", "have shape (6,) or (B, 6)", shape, hint)
        _checks.check_same_type("Camera.moved", "twist", twist, "the camera", self.focal_px)
        increment = se3_exp(twist)
        if center is None:
            return self.with_pose(compose(increment, self.camera_from_world))
        point = constant(center, self.focal_px)
        middle = transform_points(self.camera_from_world, point.unsqueeze(-2)).squeeze(-2)
        return self.with_pose(compose(translation(middle), increment, translation(-middle), self.camera_from_world))

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

    def resized(self, width: int, height: int) -> Camera:
        """The same view on a picture of exactly this size; the axes may change by different factors."""
        _check_size("Camera.resized", width, height)
        factor = constant([width / self.width, height / self.height], self.focal_px)
        return self._replace(
            focal_px=self.focal_px * factor, principal_px=self.principal_px * factor, width=width, height=height
        )

    def cropped(self, box: tuple[int, int, int, int]) -> Camera:
        """The window `box` = (left, top, right, bottom) in pixels of this picture, right and bottom excluded.

        The window shows bit for bit what the picture shows there, up to the rounding of clip positions. It may reach
        beyond the picture.
        """
        left, top, right, bottom = box
        if right <= left or bottom <= top:
            raise ValueError(f"Camera.cropped: box must be (left, top, right, bottom) with an area, got {box}.")
        corner = constant([left, top], self.principal_px)
        return self._replace(principal_px=self.principal_px - corner, width=right - left, height=bottom - top)

    def to(self, *arguments: Any, **options: Any) -> Camera:
        """Moves and converts like `Tensor.to`: `.to("cuda")`, `.to(torch.float64)`."""
        return self._map(lambda tensor: tensor.to(*arguments, **options))

    def detach(self) -> Camera:
        """The same camera cut off from autograd."""
        return self._map(torch.Tensor.detach)

    def __getitem__(self, index: int | slice | Tensor) -> Camera:
        """Some cameras of a batch: an int gives one camera without batch axis, slices and index tensors a batch."""
        if self.batch_size is None:
            raise TypeError("Camera: only a batch of cameras can be indexed, got one camera without a batch axis.")
        return self._map(lambda tensor: tensor[index])

    def __len__(self) -> int:
        if self.batch_size is None:
            raise TypeError("Camera: only a batch of cameras has a length, got one camera without a batch axis.")
        return self.batch_size

    @property
    def batch_size(self) -> int | None:
        """B, or None for one camera without a batch axis."""
        return self.near.shape[0] if self.near.ndim else None

    _TENSORS = ("focal_px", "principal_px", "near", "far", "camera_from_world", "distortion")

    def _map(self, convert: Any) -> Camera:
        tensors = {name: getattr(self, name) for name in self._TENSORS}
        return self._replace(**{name: convert(t) for name, t in tensors.items() if t is not None})

    def _kind(self) -> tuple[Any, ...]:
        count = None if self.distortion is None else (self.distortion_model, self.distortion.shape[-1])
        return self.width, self.height, self.projection, count

    def _replace(self, **fields: Any) -> Camera:
        names = (*self._TENSORS, "width", "height", "projection", "distortion_model")
        return Camera(**{**{name: getattr(self, name) for name in names}, **fields})

    def __repr__(self) -> str:
        batch = "one camera" if self.batch_size is None else f"{self.batch_size} cameras"
        kind = "" if self.projection == "perspective" else "orthographic, "
        kind += "" if self.distortion is None else f"{self.distortion_model} distortion, "
        return f"Camera({batch}, {kind}{self.width} x {self.height} pixels, {self.near.dtype}, {self.near.device})"


def _check_size(function: str, width: int, height: int) -> None:
    if width < 1 or height < 1:
        raise ValueError(f"{function}: width and height must be at least 1, got {width} x {height}.")


def _tensor_options(arguments: Any, dtype: torch.dtype, device: Any) -> dict[str, Any]:
    """dtype and device of the first float tensor among the arguments, else the ones given."""
    floats = [a for a in arguments if isinstance(a, Tensor) and a.is_floating_point()]
    return {"dtype": floats[0].dtype if floats else dtype, "device": floats[0].device if floats else device}


def _per_camera(function: str, value: Any, name: str, like: Tensor) -> Tensor:
    """() for a number, (B,) for (B,) or (B, 1) numbers; one-element tensors count as a batch of one."""
    tensor = constant(value, like)
    if tensor.ndim > 2 or (tensor.ndim == 2 and tensor.shape[1] != 1):
        raise ValueError(f"{function}: {name} must be one number or (B,) numbers, got shape {tuple(tensor.shape)}.")
    return tensor.reshape(-1) if tensor.ndim else tensor


def _require(function: str, holds: Tensor, name: str, expected: str, value: Any) -> None:
    if _checks.can_read(holds) and not bool(holds):
        raise ValueError(f"{function}: {name} must be {expected}, got {value}.")
