"""Cameras of Blender, NeRF data sets, glTF, Mitsuba and Kaolin. `Camera` inherits these methods.

What differs is the direction of the camera's axes and how a field of view is written down. Every method says what its
source means; docs/conventions.md has the table. Camera axes: Mitsuba has x to the left, y up and z forward; the others
x to the right, y up and z backward, as here.
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
from diffrender._camera_parts import CameraParts, rigid_inverse, tensors
from diffrender.geometry.transforms import compose

if TYPE_CHECKING:
    from diffrender.camera import Camera

_Y_UP_FROM_Z_UP = [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, -1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]


class SceneConversions(CameraParts):
    """The `from_...` methods of `Camera` for files and renderers."""

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
        matrix_world, lens = tensors(matrix_world, lens_mm)
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
            "Camera.from_blender",
            focal=focal.expand(*focal.shape[:-1], 2),
            principal=principal,
            camera_from_world=rigid_inverse("Camera.from_blender", matrix_world),
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
            "Camera.from_nerf_transforms",
            focal=torch.stack([fx, fy], -1),
            principal=torch.stack([per_frame("cx", width / 2), per_frame("cy", height / 2)], -1),
            camera_from_world=rigid_inverse(function, world_from_camera),
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
        (world_from_camera,) = tensors(world_from_camera)
        if kind == "perspective":
            focal = [height / 2 / math.tan(lens["yfov"] / 2)] * 2
        else:
            focal = [width / 2 / lens["xmag"], height / 2 / lens["ymag"]]
        return cls._from_parts(
            "Camera.from_gltf",
            focal=world_from_camera.new_tensor(focal),
            principal=world_from_camera.new_tensor([width / 2, height / 2]),
            camera_from_world=rigid_inverse("Camera.from_gltf", world_from_camera),
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
        to_world, fov = tensors(to_world, fov_deg)
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
            "Camera.from_mitsuba",
            focal=focal.expand(*focal.shape[:-1], 2),
            principal=to_world.new_tensor([width * (0.5 - offset_x), height * (0.5 - offset_y)]),
            camera_from_world=rigid_inverse("Camera.from_mitsuba", world_from_camera),
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
        view, fx, fy, right, above = tensors(view_matrix, focal_x, focal_y, x0, y0)
        fx, fy, right, above = torch.broadcast_tensors(fx, fy, right, above)
        return cls._from_parts(
            "Camera.from_kaolin",
            focal=torch.stack([fx, fy], -1),
            principal=torch.stack([width / 2 + right, height / 2 - above], -1),
            camera_from_world=view,
            size=(width, height),
            planes=(near, far),
        )
