"""Cameras of OpenCV, COLMAP and PyTorch3D, in and out. `Camera` inherits these methods.

What differs is the direction of the camera's axes, on which side the rotation multiplies, and where pixel (0, 0) is.
Every method says what its source means; docs/conventions.md has the table. Camera axes: OpenCV and COLMAP have x to the
right, y down and z forward, PyTorch3D x to the left, y up and z forward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from diffrender import _checks
from diffrender._camera_parts import CameraParts, check_last_axes, common_batch, flip_axes, tensors
from diffrender.geometry.rotations import rotation_from_quaternion, so3_exp
from diffrender.geometry.transforms import affine

if TYPE_CHECKING:
    from diffrender.camera import Camera

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


class VisionConversions(CameraParts):
    """The `from_...` and `to_...` methods of `Camera` for libraries of computer vision."""

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
            R: (3, 3) or (B, 3, 3) rotation, or a rotation vector as `cv2.Rodrigues` takes it: (3,), (3, 1), (B, 3) or
                (B, 3, 1). Three vectors without the last axis look like a matrix, and are refused.
            t: (3,), (3, 1), (B, 3) or (B, 3, 1) translation.
            width, height: picture size in pixels.
            distortion: None, or 4, 5 or 8 coefficients (k1, k2, p1, p2, k3, k4, k5, k6), (K,), (K, 1) or (B, K). Of
                longer rows that OpenCV makes (thin prism, tilt), the first 8 where the others are 0.
            fisheye: the 4 coefficients (k1, k2, k3, k4) belong to `cv2.fisheye`.
            pixel_center: "integer" if K counts from the centre of the first pixel, as OpenCV does: 0.5 is added to cx
                and cy. "half" if that centre is (0.5, 0.5) in K, as in COLMAP and in graphics.
            near, far: distances of the clipping planes, in the unit of t: a scene in millimetres needs others, for
                example near=50, far=5000; beyond far nothing shows.

        Gradients:
            To every tensor given, exact.

        Raises:
            ValueError: on wrong shapes, skew, or an R that is no rotation.

        Example:
            >>> K = torch.tensor([[60.0, 0.0, 31.5], [0.0, 60.0, 23.5], [0.0, 0.0, 1.0]])
            >>> camera = dr.Camera.from_opencv(K, torch.eye(3), torch.zeros(3), 64, 48)
            >>> camera.project(torch.tensor([[0.0, 0.0, 2.0]])).tolist()  # the centre of the picture
            [[32.0, 24.0]]
        """
        function = "Camera.from_opencv"
        _checks.check_choice(function, "pixel_center", pixel_center, ("integer", "half"))
        K, R, t, distortion = tensors(K, R, t, distortion)
        check_last_axes(function, "K", K, (3, 3))
        if distortion is not None and distortion.ndim == 2 and distortion.shape[-1] == 1:
            distortion = distortion.squeeze(-1)
        if R.shape[-2:] == (3, 1):
            R = so3_exp(R.squeeze(-1))
        elif R.shape[-2:] != (3, 3) and R.shape[-1:] == (3,):
            R = so3_exp(R)
        t = t.squeeze(-1) if t.shape[-2:] == (3, 1) else t
        check_last_axes(function, "R", R, (3, 3))
        _check_rotation(function, R)
        check_last_axes(function, "t", t, (3,))
        skew = K[..., 0, 1]
        if _checks.can_read(skew) and bool((skew != 0).any()):
            raise ValueError(f"{function}: K must have no skew (K[0, 1] = 0), got {skew.detach().reshape(-1)[0]:g}.")
        principal = torch.stack([K[..., 0, 2], K[..., 1, 2]], -1)
        if pixel_center == "integer":
            principal = principal + 0.5
        return cls._from_parts(
            "Camera.from_opencv",
            focal=torch.stack([K[..., 0, 0], K[..., 1, 1]], -1),
            principal=principal,
            camera_from_world=flip_axes(affine(*common_batch(R, t)), (1, -1, -1)),
            size=(width, height),
            planes=(near, far),
            distortion=distortion,
            distortion_model="fisheye" if fisheye else "radial_tangential",
        )

    def to_opencv(self, *, pixel_center: str = "integer") -> dict[str, Any]:
        """K, R, t, width, height, distortion and fisheye as `from_opencv` takes them (not for orthographic cameras)."""
        camera = self._perspective("to_opencv")
        _checks.check_choice("Camera.to_opencv", "pixel_center", pixel_center, ("integer", "half"))
        pose = flip_axes(camera.camera_from_world, (1, -1, -1))
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
        parameters, quaternion, translation = tensors(parameters, quaternion, translation)
        pinhole, lens, fisheye = _COLMAP_MODELS[model]
        count = 1 + max(i for i in (*pinhole, *lens) if i is not None)
        check_last_axes("Camera.from_colmap", "parameters", parameters, (count,))
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
        R, T, focal, principal = tensors(R, T, focal_length, principal_point)
        check_last_axes("Camera.from_pytorch3d", "R", R, (3, 3))
        check_last_axes("Camera.from_pytorch3d", "T", T, (3,))
        if focal.shape[-1:] != (2,) or (focal.ndim == 1 and R.ndim == 3):
            focal = focal.unsqueeze(-1).expand(*focal.shape, 2)
        if in_ndc:
            half_side = min(width, height) / 2
            focal = focal * half_side
            principal = principal.new_tensor([width / 2, height / 2]) - principal * half_side
        return cls._from_parts(
            "Camera.from_pytorch3d",
            focal=focal,
            principal=principal,
            camera_from_world=flip_axes(affine(*common_batch(R.mT, T)), (-1, 1, -1)),
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
        pose = flip_axes(camera.camera_from_world, (-1, 1, -1))
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


def _check_rotation(function: str, rotation: Tensor) -> None:
    """Refuses what is far from any rotation; a few rounded digits, or an optimiser's way, are let pass."""
    if not _checks.can_read(rotation):
        return
    matrix = rotation.detach()
    product = matrix @ matrix.mT
    off = (product - torch.eye(3, dtype=product.dtype, device=product.device)).abs()
    if bool((off > 0.1).any()) or bool((torch.linalg.det(matrix) < 0).any()):
        hint = "For three rotation vectors, pass R[..., None]." if tuple(rotation.shape) == (3, 3) else ""
        _checks.fail(ValueError, function, "R", "be a rotation", "a matrix whose rows are not", hint)
