"""What a camera sees: matrices, projection and rays of `Camera`, which inherits these methods.

With focal lengths f and principal point c in pixels, a point (X, Y, Z) of the camera frame with the depth -Z is seen at
x = cx - fx X / Z, y = cy + fy Y / Z by a perspective camera and at x = cx + fx X, y = cy - fy Y by an orthographic one,
whose f counts pixels per unit of length. Lens distortion: `diffrender/_lens.py`.

A rasterizer draws straight edges, a distorting lens bends them: its vertices are moved by the exact model, and
`split_edges` cuts the triangles until their edges follow the curves. The renderer does that by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diffrender import _checks, _lens
from diffrender._camera_explain import explained
from diffrender._constants import constant
from diffrender._lens_split import split_edges
from diffrender.geometry.mesh import Mesh
from diffrender.geometry.transforms import compose, transform_homogeneous, transform_points


class CameraProjection:
    """The methods of `Camera` that take points to pixels and back; its attributes are described there."""

    focal_px: Tensor
    principal_px: Tensor
    near: Tensor
    far: Tensor
    camera_from_world: Tensor
    width: int
    height: int
    projection: str
    distortion: Tensor | None
    distortion_model: str

    def detach(self) -> CameraProjection:
        raise NotImplementedError

    @property
    def clip_from_camera(self) -> Tensor:
        """(4, 4) or (B, 4, 4) projection to OpenGL clip space: y up, z/w = -1 on near and +1 on far.

        w is the depth, or 1 for an orthographic camera.

        Raises:
            ValueError: for a camera with distortion, which no matrix describes.
        """
        if self.distortion is not None:
            raise ValueError(
                "Camera: clip_from_camera must belong to a camera without distortion, which is no matrix, got one with "
                f"{self.distortion_model} distortion. Use clip_positions."
            )
        return self._undistorted_clip_from_camera()

    def _undistorted_clip_from_camera(self) -> Tensor:
        zero, one = torch.zeros_like(self.near), torch.ones_like(self.near)
        scale_x, scale_y = 2 * self.focal_px[..., 0] / self.width, 2 * self.focal_px[..., 1] / self.height
        shift_x = 1 - 2 * self.principal_px[..., 0] / self.width
        shift_y = 2 * self.principal_px[..., 1] / self.height - 1
        depth_range = self.near - self.far
        if self.projection == "orthographic":
            entries = [
                scale_x, zero, zero, -shift_x,
                zero, scale_y, zero, -shift_y,
                zero, zero, 2 / depth_range, (self.near + self.far) / depth_range,
                zero, zero, zero, one,
            ]  # fmt: skip
            return torch.stack(entries, -1).unflatten(-1, (4, 4))
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
        """World points (N, 3) or (B, N, 3) in clip space: (N, 4), or (B, N, 4) with a batch on either side.

        Gradients:
            To points and to every tensor of the camera, exact; distortion included.
        """
        if self.distortion is None:
            return transform_homogeneous(self.clip_from_world, points)
        x, y, z = transform_points(self.camera_from_world, points).unbind(-1)
        image = _lens.homogeneous_image(
            torch.stack([x, -y, -z], -1), self.distortion, self.distortion_model, self._frame_radius()
        )
        # The rest is what the undistorted camera does to the point (x', -y', -1) w of its own frame.
        image_x, image_y, w = image.unbind(-1)
        scale_x, scale_y, shift_x, shift_y, scale_z, shift_z = self._clip_coefficients()
        clip_x = scale_x * image_x - shift_x * w
        clip_y = -scale_y * image_y - shift_y * w
        return torch.stack([clip_x, clip_y, -scale_z * w + shift_z, w], -1)

    def project(self, points: Tensor) -> Tensor:
        """Where world points appear in the picture.

        Args:
            points: (N, 3), or (B, N, 3) with one set per camera.

        Returns:
            (N, 2) or (B, N, 2) pixels (x = column, y = row) from the top left corner, also outside of the picture.
            Points in the plane of the eye give inf or NaN; points behind it appear mirrored: ask `depth` first.
            With distortion, points where the lens model folds back are put further outside instead.

        Gradients:
            To points and to every tensor of the camera, exact.
        """
        clip = self.clip_positions(points)
        x = (clip[..., 0] / clip[..., 3] + 1) * (self.width / 2)
        y = (1 - clip[..., 1] / clip[..., 3]) * (self.height / 2)
        return torch.stack([x, y], -1)

    def depth(self, points: Tensor) -> Tensor:
        """Distance of world points along the viewing axis, (N,) or (B, N); negative behind the eye."""
        return -transform_points(self.camera_from_world, points)[..., 2]

    def explain(self, points: Tensor) -> str:
        """Why points do not show, in words: how many are in view, behind, nearer than near, beyond far, or beside it.

        For a picture that is empty or lacks something: `print(camera.explain(mesh.vertices))`. What other surfaces
        hide counts as in view. A batch gives one line per camera.

        Args:
            points: (N, 3), or (B, N, 3) with one set per camera.

        Raises:
            TypeError: points that are no tensor of floats.

        Example:
            >>> camera = dr.Camera.perspective(fov_y_deg=40, width=64, height=48).look_at([0.0, 0.0, 300.0])
            >>> camera.explain(dr.geometry.cube().vertices)
            '0 of 8 points are in view; 8 beyond far=100. They lie at depths from 299 to 301.'
        """
        points = _checks.check_floating("Camera.explain", "points", points)
        clip = self.detach().clip_positions(points.detach())
        is_perspective = self.projection == "perspective"
        is_fisheye = self.distortion is not None and self.distortion_model == "fisheye"
        return explained(clip, self.near.detach(), self.far.detach(), is_perspective, is_fisheye)

    def rays(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """The world rays that end in pixels: origins and unit directions, (N, 3) or (B, N, 3) each.

        Args:
            pixels: (N, 2) or (B, N, 2) as `project` gives them. `pixel_centers()` is the whole picture.

        Returns:
            Perspective: the eye, repeated, and directions. Orthographic: points of the plane through the camera, and
            its axis. NaN directions where a distorting lens shows nothing.

        Gradients:
            To pixels and to every tensor of the camera, exact up to second derivatives.
        """
        image = (pixels - self.principal_px.unsqueeze(-2)) / self.focal_px.unsqueeze(-2)
        x, y = image.unbind(-1)
        if self.projection == "orthographic":
            zero = torch.zeros_like(x)
            return self._to_world(torch.stack([x, -y, zero], -1), 1), self._to_world(
                torch.stack([zero, zero, zero - 1], -1), 0
            )
        if self.distortion is None:
            direction = torch.stack([x, -y, -torch.ones_like(x)], -1)
            direction = direction / (direction * direction).sum(-1, keepdim=True).sqrt()
        else:
            seen = _lens.undistorted_direction(image, self.distortion, self.distortion_model, self._frame_radius())
            direction = seen * constant([1.0, -1.0, -1.0], seen)
        directions = self._to_world(direction, 0)
        return self.eye.unsqueeze(-2).expand_as(directions), directions

    def unproject(self, pixels: Tensor, depth: Tensor) -> Tensor:
        """World points that appear in pixels at a depth: the inverse of `project` and `depth`.

        Args:
            pixels: (N, 2) or (B, N, 2).
            depth: (N,) or (B, N) distance along the viewing axis. Directions at or beyond 90 degrees from the axis,
                which only a fisheye lens sees, have none: use `rays` there.

        Gradients:
            To pixels, depth and every tensor of the camera, exact up to second derivatives.
        """
        origins, directions = self.rays(pixels)
        axis = -self.camera_from_world[..., None, 2, :3]
        return origins + directions * (depth / (directions * axis).sum(-1)).unsqueeze(-1)

    def pixel_centers(self) -> Tensor:
        """(height, width, 2) pixel coordinates (x, y) of the centres of all pixels."""
        options: dict[str, Any] = {"dtype": self.near.dtype, "device": self.near.device}
        y, x = torch.meshgrid(
            torch.arange(self.height, **options) + 0.5, torch.arange(self.width, **options) + 0.5, indexing="ij"
        )
        return torch.stack([x, y], -1)

    def depth_to_distance(self, depth: Tensor) -> Tensor:
        """Depth pictures (B, H, W, 1) or (H, W, 1) as distances from the eye (orthographic: unchanged)."""
        if self.projection == "orthographic":
            return depth
        _, directions = self.rays(self.pixel_centers().reshape(-1, 2))
        along = -(directions * self.camera_from_world[..., None, 2, :3]).sum(-1)
        return depth / along.unflatten(-1, (self.height, self.width)).unsqueeze(-1)

    def depth_to_zndc(self, depth: Tensor) -> Tensor:
        """Depth pictures (B, H, W, 1) or (H, W, 1) as z/w of clip space (`Fragments.depth`); not for fisheye lenses.

        Depth 0 (background) of a perspective camera becomes -inf.
        """
        if self.distortion is not None and self.distortion_model == "fisheye":
            raise ValueError("Camera.depth_to_zndc: a fisheye camera has z/w by distance, got a depth along the axis.")
        near, far = self.near.reshape(-1, 1, 1, 1), self.far.reshape(-1, 1, 1, 1)
        if not self.near.ndim:
            near, far = near[0], far[0]
        if self.projection == "orthographic":
            return (2 * depth - near - far) / (far - near)
        return ((far + near) - 2 * far * near / depth) / (far - near)

    def split_edges(self, mesh: Mesh, *, tolerance_px: float = 0.05, max_rounds: int = 10) -> tuple[Mesh, Tensor]:
        """`mesh` with edges cut where the lens bends them, and (T',) the triangle each new one came from.

        Straight edges between the exact images of their ends then stay within `tolerance_px` pixels of the curve that
        the lens shows, in the frame of every camera of this batch. Triangles that lie wholly where the lens model
        folds back are left out, and so is what remains around directions that no straight edge can follow: the eye
        itself, and straight behind a fisheye. Without distortion the mesh comes back as it is.

        Differentiable: a new vertex is the mean of two.
        """
        if self.distortion is None:
            return mesh, torch.arange(mesh.triangle_count, device=mesh.device, dtype=torch.int32)
        fixed = self.detach()
        size = constant([self.width / 2, self.height / 2], self.near)
        return split_edges(
            mesh, fixed.clip_positions, fixed._is_unseen, size, tolerance_px=tolerance_px, max_rounds=max_rounds
        )

    def _is_unseen(self, points: Tensor) -> Tensor:
        """(..., N) whether the lens model folds back where world points are."""
        x, y, z = transform_points(self.camera_from_world, points).unbind(-1)
        assert self.distortion is not None
        directions = torch.stack([x, -y, -z], -1)
        return _lens.is_beyond_reach(directions, self.distortion, self.distortion_model, self._frame_radius())

    def _frame_radius(self) -> Tensor:
        """(..., 1) normalised distance of the farthest corner of the frame from the principal point."""
        size = constant([self.width, self.height], self.principal_px)
        farthest = torch.maximum(self.principal_px.abs(), (size - self.principal_px).abs())
        return (farthest / self.focal_px).detach().norm(dim=-1, keepdim=True)

    def _clip_coefficients(self) -> tuple[Tensor, ...]:
        """The entries of the perspective matrix that are not constant, (..., 1) each."""
        matrix = self._undistorted_clip_from_camera().unsqueeze(-3)
        places = ((0, 0), (1, 1), (0, 2), (1, 2), (2, 2), (2, 3))
        return tuple(matrix[..., row, column] for row, column in places)

    def _to_world(self, vectors: Tensor, w: int) -> Tensor:
        """Camera-frame points (w = 1) or directions (w = 0), (..., N, 3), in the world. The extrinsics are rigid."""
        linear, offset = self.camera_from_world[..., None, :3, :3], self.camera_from_world[..., None, :3, 3]
        return (linear * (vectors - w * offset).unsqueeze(-1)).sum(-2)
