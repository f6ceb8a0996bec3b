"""Cameras of other libraries and files, in and out. `Camera` inherits these methods.

What differs is the direction of the camera's axes, on which side the rotation multiplies, where pixel (0, 0) is, and
how a field of view is written down. Every method says what its source means; docs/conventions.md has the table.
Camera axes:  OpenGL, Blender, NeRF, glTF, Kaolin: x right, y up, z backward (as here).
              OpenCV, COLMAP: x right, y down, z forward.   PyTorch3D, Mitsuba: x left, y up, z forward.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from diffrender import _checks
from diffrender.geometry.rotations import rotation_from_quaternion
from diffrender.geometry.transforms import affine, compose

if TYPE_CHECKING:
    from diffrender.camera import Camera

_Y_UP_FROM_Z_UP = [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, -1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]

# The numbers of COLMAP's camera models: positions of (fx, fy, cx, cy) and of the distortion coefficients, None for 0.
_COLMAP_MODELS: dict[str, tuple[tuple[int, ...], tuple[int | None, ...], bool]] = {
    "SIMPLE_PINHOLE": ((0, 0, 1, 2), (), False),
    "PINHOLE": ((0, 1, 2, 3), (), False),
    "SIMPLE_RADIAL": ((0, 0, 1, 2), (3, None, None, None), False),
    "RADIAL": ((0, 0, 1, 2), (3, 4, None, None), False),
    "OPENCV": ((0, 1, 2, 3), (4, 5, 6, 7), False),
    "FULL_OPENCV": ((0, 1, 2, 3), (4, 5, 6, 7, 8, 9, 10, 11), False),
    "SIMPLE_RADIAL_FISHEYE": ((0, 0, 1, 2), (3, None, None, None), True),
    "RADIAL_FISHEYE": ((0, 0, 1, 2), (3, 4, None, None), True),
    "OPENCV_FISHEYE": ((0, 1, 2, 3), (4, 5, 6, 7), True),
}


class CameraConversions:
    """The `from_...` and `to_...` methods of `Camera`."""

    @classmethod
    def from_opencv(
        cls,
        K: Any,
        R: Any,
        t: Any,
        width: int,
        height: int,
        *,
        distortion: Any = None,
        fisheye: bool = False,
        pixel_center: str = "integer",
        near: Any = 0.1,
        far: Any = 100.0,
    ) -> Camera:
        """A camera as OpenCV calibrates it: x_cam = R x_world + t with x right, y down, z forward.

        Args:
            K: (3, 3) or (B, 3, 3) intrinsic matrix without skew.
            R: (3, 3) or (B, 3, 3) rotation, or (3,) or (B, 3) rotation vector as `cv2.Rodrigues` takes it.
            t: (3,), (3, 1) or (B, 3) translation.
            width, height: picture size in pixels.
            distortion: None, or 4, 5 or 8 coefficients (k1, k2, p1, p2, k3, k4, k5, k6), (K,) or (B, K).
            fisheye: the 4 coefficients (k1, k2, k3, k4) belong to `cv2.fisheye`.
            pixel_center: "integer" if K counts from the centre of the first pixel, as OpenCV does: 0.5 is added to cx
                and cy. "half" if that centre is (0.5, 0.5) in K, as in COLMAP and in graphics.
            near, far: distances of the clipping planes.

        Gradients:
            To every tensor given, exact.

        Example:
            >>> K = torch.tensor([[60.0, 0.0, 31.5], [0.0, 60.0, 23.5], [0.0, 0.0, 1.0]])
            >>> camera = dr.Camera.from_opencv(K, torch.eye(3), torch.zeros(3), 64, 48)
            >>> camera.project(torch.tensor([[0.0, 0.0, 2.0]])).tolist()  # the centre of the picture
            [[32.0, 24.0]]
        """
        function = "Camera.from_opencv"
        _checks.check_choice(function, "pixel_center", pixel_center, ("integer", "half"))
        K, R, t, distortion = _tensors(K, R, t, distortion)
        _check_last_axes(function, "K", K, (3, 3))
        if R.shape[-2:] != (3, 3) and R.shape[-1:] == (3,):
            from diffrender.geometry.rotations import so3_exp

            R = so3_exp(R)
        _check_last_axes(function, "R", R, (3, 3))
        if t.ndim >= 2 and t.shape[-2:] == (3, 1):
            t = t.squeeze(-1)
        _check_last_axes(function, "t", t, (3,))
        skew = K[..., 0, 1]
        if _checks.can_read(skew) and bool((skew != 0).any()):
            raise ValueError(f"{function}: K must have no skew (K[0, 1] = 0), got {skew.detach().reshape(-1)[0]:g}.")
        principal = torch.stack([K[..., 0, 2], K[..., 1, 2]], -1)
        if pixel_center == "integer":
            principal = principal + 0.5
        return cls._from_parts(
            focal=torch.stack([K[..., 0, 0], K[..., 1, 1]], -1),
            principal=principal,
            camera_from_world=_flip_axes(affine(*_common_batch(R, t)), (1, -1, -1)),
            size=(width, height),
            planes=(near, far),
            distortion=distortion,
            distortion_model="fisheye" if fisheye else "radial_tangential",
        )

    def to_opencv(self, *, pixel_center: str = "integer") -> dict[str, Any]:
        """K, R, t, width, height, distortion and fisheye as `from_opencv` takes them (not for orthographic cameras)."""
        camera = self._perspective("to_opencv")
        _checks.check_choice("Camera.to_opencv", "pixel_center", pixel_center, ("integer", "half"))
        pose = _flip_axes(camera.camera_from_world, (1, -1, -1))
        return {
            "K": camera.intrinsics(pixel_center=pixel_center),
            "R": pose[..., :3, :3],
            "t": pose[..., :3, 3],
            "width": camera.width,
            "height": camera.height,
            "distortion": camera.distortion,
            "fisheye": camera.distortion is not None and camera.distortion_model == "fisheye",
        }

    def intrinsics(self, *, pixel_center: str = "half") -> Tensor:
        """The (3, 3) or (B, 3, 3) matrix K; its first pixel's centre is (0.5, 0.5) ("half") or (0, 0) ("integer")."""
        camera = self._perspective("intrinsics")
        _checks.check_choice("Camera.intrinsics", "pixel_center", pixel_center, ("integer", "half"))
        fx, fy = camera.focal_px.unbind(-1)
        cx, cy = (camera.principal_px - (0.5 if pixel_center == "integer" else 0.0)).unbind(-1)
        zero, one = torch.zeros_like(fx), torch.ones_like(fx)
        return torch.stack([fx, zero, cx, zero, fy, cy, zero, zero, one], -1).unflatten(-1, (3, 3))

    @classmethod
    def from_colmap(
        cls,
        model: str,
        parameters: Any,
        quaternion: Any,
        translation: Any,
        width: int,
        height: int,
        *,
        near: Any = 0.1,
        far: Any = 100.0,
    ) -> Camera:
        """A camera and image of a COLMAP reconstruction (cameras.txt and images.txt).

        Args:
            model: SIMPLE_PINHOLE, PINHOLE, SIMPLE_RADIAL, RADIAL, OPENCV, FULL_OPENCV, or SIMPLE_RADIAL_FISHEYE,
                RADIAL_FISHEYE, OPENCV_FISHEYE.
            parameters: (P,) or (B, P) numbers of that model, pixel centres at half-integers as COLMAP has them.
            quaternion: (4,) or (B, 4) QW, QX, QY, QZ, world to camera.
            translation: (3,) or (B, 3) TX, TY, TZ.
        """
        _checks.check_choice("Camera.from_colmap", "model", model, tuple(_COLMAP_MODELS))
        parameters, quaternion, translation = _tensors(parameters, quaternion, translation)
        pinhole, lens, fisheye = _COLMAP_MODELS[model]
        count = 1 + max(i for i in (*pinhole, *lens) if i is not None)
        _check_last_axes("Camera.from_colmap", "parameters", parameters, (count,))
        zero = torch.zeros_like(parameters[..., 0])
        fx, fy, cx, cy = (parameters[..., i] for i in pinhole)
        distortion = torch.stack([zero if i is None else parameters[..., i] for i in lens], -1) if lens else None
        return cls.from_opencv(
            torch.stack([fx, zero, cx, zero, fy, cy, zero, zero, zero + 1], -1).unflatten(-1, (3, 3)),
            rotation_from_quaternion(quaternion),
            translation,
            width,
            height,
            distortion=distortion,
            fisheye=fisheye,
            pixel_center="half",
            near=near,
            far=far,
        )

    @classmethod
    def from_pytorch3d(
        cls,
        R: Any,
        T: Any,
        focal_length: Any,
        principal_point: Any,
        width: int,
        height: int,
        *,
        in_ndc: bool = True,
        near: Any = 0.1,
        far: Any = 100.0,
    ) -> Camera:
        """A PyTorch3D `PerspectiveCameras`: rows of points times R, x_cam = x_world R + T, x left, y up, z forward.

        Args:
            R, T: (B, 3, 3) and (B, 3), or without the batch axis.
            focal_length: one number, (B,) or (B, 2).
            principal_point: (2,) or (B, 2).
            in_ndc: True if both are in PyTorch3D's NDC, where the shorter side of the picture spans 2 units, x counts
                to the left and y up; False if they are in pixels from the top left corner of the picture.
        """
        R, T, focal, principal = _tensors(R, T, focal_length, principal_point)
        _check_last_axes("Camera.from_pytorch3d", "R", R, (3, 3))
        _check_last_axes("Camera.from_pytorch3d", "T", T, (3,))
        if focal.shape[-1:] != (2,) or (focal.ndim == 1 and R.ndim == 3):
            focal = focal.unsqueeze(-1).expand(*focal.shape, 2)
        if in_ndc:
            half_side = min(width, height) / 2
            focal = focal * half_side
            principal = principal.new_tensor([width / 2, height / 2]) - principal * half_side
        return cls._from_parts(
            focal=focal,
            principal=principal,
            camera_from_world=_flip_axes(affine(*_common_batch(R.mT, T)), (-1, 1, -1)),
            size=(width, height),
            planes=(near, far),
        )

    def to_pytorch3d(self, *, in_ndc: bool = True) -> dict[str, Any]:
        """Arguments of PyTorch3D's `PerspectiveCameras`: R, T, focal_length, principal_point, image_size, in_ndc.

        All have a batch axis; image_size is (B, 2) as (height, width).
        """
        camera = self._perspective("to_pytorch3d")
        if camera.distortion is not None:
            raise ValueError("Camera.to_pytorch3d: the camera must have no distortion, got some.")
        pose = _flip_axes(camera.camera_from_world, (-1, 1, -1))
        focal, principal = camera.focal_px, camera.principal_px
        if in_ndc:
            half_side = min(camera.width, camera.height) / 2
            focal = focal / half_side
            principal = (principal.new_tensor([camera.width / 2, camera.height / 2]) - principal) / half_side
        R, T, focal, principal = (
            tensor if camera.batch_size is not None else tensor.unsqueeze(0)
            for tensor in (pose[..., :3, :3].mT, pose[..., :3, 3], focal, principal)
        )
        image_size = torch.tensor([[camera.height, camera.width]], device=R.device).expand(len(R), 2)
        return {
            "R": R,
            "T": T,
            "focal_length": focal,
            "principal_point": principal,
            "image_size": image_size,
            "in_ndc": in_ndc,
        }

    @classmethod
    def from_blender(
        cls,
        matrix_world: Any,
        width: int,
        height: int,
        *,
        lens_mm: Any = 50.0,
        sensor_width_mm: float = 36.0,
        sensor_height_mm: float = 24.0,
        sensor_fit: str = "AUTO",
        shift: tuple[float, float] = (0.0, 0.0),
        world: str = "y_up",
        near: Any = 0.1,
        far: Any = 100.0,
    ) -> Camera:
        """A Blender camera object with square pixels.

        Args:
            matrix_world: (4, 4) or (B, 4, 4) `camera.matrix_world`; a scale in it is removed.
            lens_mm, sensor_width_mm, sensor_height_mm, sensor_fit, shift: `camera.data.lens`, `.sensor_width`,
                `.sensor_height`, `.sensor_fit` ("AUTO", "HORIZONTAL", "VERTICAL") and (`.shift_x`, `.shift_y`).
            world: "y_up" turns Blender's z-up world to y-up, as its glTF and OBJ exporters do with the meshes;
                "z_up" leaves the world as it is.
        """
        _checks.check_choice("Camera.from_blender", "sensor_fit", sensor_fit, ("AUTO", "HORIZONTAL", "VERTICAL"))
        _checks.check_choice("Camera.from_blender", "world", world, ("y_up", "z_up"))
        matrix_world, lens = _tensors(matrix_world, lens_mm)
        # AUTO fits the sensor's width to the longer side; lens shifts are in units of the fitted side.
        if sensor_fit == "AUTO":
            side, sensor = max(width, height), sensor_width_mm
        else:
            side, sensor = (width, sensor_width_mm) if sensor_fit == "HORIZONTAL" else (height, sensor_height_mm)
        focal = (lens * (side / sensor)).unsqueeze(-1)
        principal = matrix_world.new_tensor([width / 2 - shift[0] * side, height / 2 + shift[1] * side])
        if world == "y_up":
            matrix_world = compose(matrix_world.new_tensor(_Y_UP_FROM_Z_UP), matrix_world)
        return cls._from_parts(
            focal=focal.expand(*focal.shape[:-1], 2),
            principal=principal,
            camera_from_world=_rigid_inverse("Camera.from_blender", matrix_world),
            size=(width, height),
            planes=(near, far),
        )

    @classmethod
    def from_nerf_transforms(
        cls,
        transforms: dict[str, Any] | str | os.PathLike[str],
        width: int | None = None,
        height: int | None = None,
        *,
        world: str = "as_stored",
        near: Any = 0.1,
        far: Any = 100.0,
    ) -> Camera:
        """The cameras of a `transforms.json` of the NeRF synthetic and instant-ngp kind, one for each frame.

        Args:
            transforms: the file or its parsed content: `frames[i].transform_matrix` (camera to world, OpenGL axes) and
                `camera_angle_x` (radians), or `fl_x`, `fl_y`, `cx`, `cy` (pixels from the corner) and `k1, k2, p1, p2`.
            width, height: picture size; default: `w` and `h` of the file.
            world: "as_stored", or "y_up" to turn a z-up world (Blender's, as in the synthetic data) to y-up.

        Raises:
            ValueError: naming what the file lacks.
        """
        function = "Camera.from_nerf_transforms"
        _checks.check_choice(function, "world", world, ("as_stored", "y_up"))
        name = "transforms"
        if not isinstance(transforms, dict):
            name = str(transforms)
            try:
                transforms = json.loads(Path(transforms).read_text(encoding="utf-8"))
            except ValueError as error:
                raise ValueError(f"{function}: {name} must be a JSON file, got {error}.") from None
        assert isinstance(transforms, dict)
        width, height = width or transforms.get("w"), height or transforms.get("h")
        if not width or not height:
            raise ValueError(f"{function}: {name} must give the picture size as w and h, got none. Pass width, height.")
        width, height = int(width), int(height)
        frames = transforms.get("frames") or []
        for index, frame in enumerate(frames):
            matrix = frame.get("transform_matrix")
            if matrix is None or len(matrix) not in (3, 4) or any(len(row) != 4 for row in matrix):
                raise ValueError(f"{function}: {name}, frame {index}: transform_matrix must be 4x4, got {matrix}.")
        if not frames:
            raise ValueError(f"{function}: {name} must have frames, got none.")
        bottom = [[0.0, 0.0, 0.0, 1.0]]
        world_from_camera = torch.tensor([frame["transform_matrix"][:3] + bottom for frame in frames])
        if world == "y_up":
            world_from_camera = compose(torch.tensor(_Y_UP_FROM_Z_UP), world_from_camera)

        def per_frame(key: str, default: float | None) -> Tensor:
            values = [frame.get(key, transforms.get(key, default)) for frame in frames]
            if None in values:
                frame = values.index(None)
                raise ValueError(f"{function}: {name}, frame {frame}: must have camera_angle_x or fl_x, got neither.")
            return torch.tensor(values, dtype=world_from_camera.dtype)

        if "camera_angle_x" in transforms and "fl_x" not in transforms:
            fx = per_frame("camera_angle_x", None)
            fx = width / 2 / torch.tan(fx / 2)
        else:
            fx = per_frame("fl_x", None)
        fy = per_frame("fl_y", None) if "fl_y" in transforms or "fl_y" in frames[0] else fx
        lens = [per_frame(key, 0.0) for key in ("k1", "k2", "p1", "p2", "k3")]
        distortion = torch.stack(lens, -1)
        return cls._from_parts(
            focal=torch.stack([fx, fy], -1),
            principal=torch.stack([per_frame("cx", width / 2), per_frame("cy", height / 2)], -1),
            camera_from_world=_rigid_inverse(function, world_from_camera),
            size=(width, height),
            planes=(near, far),
            distortion=distortion if bool((distortion != 0).any()) else None,
        )

    @classmethod
    def from_gltf(
        cls, camera: dict[str, Any], world_from_camera: Any, width: int, height: int, *, far: float = 1000.0
    ) -> Camera:
        """A camera object of a glTF file, perspective or orthographic, and the transform of its node.

        Args:
            camera: the JSON object: {"type": "perspective", "perspective": {"yfov": ..., "znear": ...}} and the like.
            world_from_camera: (4, 4) or (B, 4, 4) global transform of the node; a scale in it is removed.
            width, height: picture size. Where its shape is not the file's aspectRatio, the vertical field is kept.
            far: used where the file has no zfar (an infinite view).
        """
        kind = str(camera.get("type"))
        _checks.check_choice("Camera.from_gltf", "camera['type']", kind, ("perspective", "orthographic"))
        lens = camera.get(kind) or {}
        needed = ("yfov", "znear") if kind == "perspective" else ("xmag", "ymag", "znear", "zfar")
        for key in needed:
            if key not in lens:
                raise ValueError(f"Camera.from_gltf: camera must have {kind}.{key}, got {sorted(lens)}.")
        (world_from_camera,) = _tensors(world_from_camera)
        if kind == "perspective":
            focal = [height / 2 / math.tan(lens["yfov"] / 2)] * 2
        else:
            focal = [width / 2 / lens["xmag"], height / 2 / lens["ymag"]]
        return cls._from_parts(
            focal=world_from_camera.new_tensor(focal),
            principal=world_from_camera.new_tensor([width / 2, height / 2]),
            camera_from_world=_rigid_inverse("Camera.from_gltf", world_from_camera),
            size=(width, height),
            planes=(lens["znear"], lens.get("zfar", max(far, 2 * lens["znear"]))),
            projection=kind,
        )

    @classmethod
    def from_mitsuba(
        cls,
        to_world: Any,
        fov_deg: Any,
        width: int,
        height: int,
        *,
        fov_axis: str = "x",
        principal_point_offset: tuple[float, float] = (0.0, 0.0),
        near_clip: Any = 0.01,
        far_clip: Any = 10000.0,
    ) -> Camera:
        """A Mitsuba 3 `perspective` sensor: x left, y up, z forward.

        Args:
            to_world: (4, 4) or (B, 4, 4) camera to world.
            fov_deg, fov_axis: full field of view in degrees along "x", "y", "diagonal", "smaller" or "larger".
            principal_point_offset: `principal_point_offset_x` and `_y`, in parts of the width and the height, by which
                the principal point lies LEFT of and ABOVE the middle (as Mitsuba's rays have it).
            near_clip, far_clip: distances of the clipping planes.
        """
        _checks.check_choice("Camera.from_mitsuba", "fov_axis", fov_axis, ("x", "y", "diagonal", "smaller", "larger"))
        to_world, fov = _tensors(to_world, fov_deg)
        side = {
            "x": width,
            "y": height,
            "diagonal": math.hypot(width, height),
            "smaller": min(width, height),
            "larger": max(width, height),
        }[fov_axis]
        focal = (side / 2 / torch.tan(fov * (math.pi / 360))).unsqueeze(-1)
        offset_x, offset_y = principal_point_offset
        world_from_camera = to_world * to_world.new_tensor([-1.0, 1.0, -1.0, 1.0])
        return cls._from_parts(
            focal=focal.expand(*focal.shape[:-1], 2),
            principal=to_world.new_tensor([width * (0.5 - offset_x), height * (0.5 - offset_y)]),
            camera_from_world=_rigid_inverse("Camera.from_mitsuba", world_from_camera),
            size=(width, height),
            planes=(near_clip, far_clip),
        )

    @classmethod
    def from_kaolin(
        cls,
        view_matrix: Any,
        focal_x: Any,
        width: int,
        height: int,
        *,
        focal_y: Any = None,
        x0: Any = 0.0,
        y0: Any = 0.0,
        near: Any = 0.01,
        far: Any = 100.0,
    ) -> Camera:
        """A Kaolin `Camera` with pinhole intrinsics: OpenGL axes.

        Args:
            view_matrix: (4, 4) or (B, 4, 4) `camera.view_matrix()`, world to camera, column vectors.
            focal_x, focal_y: focal lengths in pixels; one number or (B,).
            x0, y0: principal point in pixels from the middle of the picture, to the right and UP.
        """
        focal_y = focal_x if focal_y is None else focal_y
        view, fx, fy, right, above = _tensors(view_matrix, focal_x, focal_y, x0, y0)
        fx, fy, right, above = torch.broadcast_tensors(fx, fy, right, above)
        return cls._from_parts(
            focal=torch.stack([fx, fy], -1),
            principal=torch.stack([width / 2 + right, height / 2 - above], -1),
            camera_from_world=view,
            size=(width, height),
            planes=(near, far),
        )

    @classmethod
    def _from_parts(
        cls,
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


def _tensors(*values: Any) -> list[Any]:
    """Values as float tensors of one dtype and device: those of the tensors among them, else float32. None stays."""
    given = [v for v in values if isinstance(v, Tensor)]
    dtype = torch.float32
    for tensor in given:
        dtype = torch.promote_types(dtype, tensor.dtype)
    device = given[0].device if given else None
    return [None if v is None else torch.as_tensor(v, dtype=dtype, device=device) for v in values]


def _check_last_axes(function: str, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.ndim > len(shape) + 1 or tuple(tensor.shape[-len(shape) :]) != shape:
        sizes = ", ".join(map(str, shape))
        single = f"({sizes},)" if len(shape) == 1 else f"({sizes})"
        _checks.fail(ValueError, function, name, f"have shape {single} or (B, {sizes})", _checks.shape_text(tensor))


def _common_batch(linear: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    batch = torch.broadcast_shapes(linear.shape[:-2], offset.shape[:-1])
    return linear.expand(*batch, 3, 3), offset.expand(*batch, 3)


def _flip_axes(camera_from_world: Tensor, signs: tuple[int, int, int]) -> Tensor:
    """The same pose for a camera frame whose axes point the other way where a sign is -1."""
    return camera_from_world * camera_from_world.new_tensor([*signs, 1]).unsqueeze(-1)


def _rigid_inverse(function: str, world_from_camera: Tensor) -> Tensor:
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
