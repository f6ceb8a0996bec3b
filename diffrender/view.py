"""Pictures of a mesh without a scene around it: a camera that frames it, and light from beside that camera.

camera = dr.frame_camera(mesh, width=512, height=512)
result = dr.Renderer((512, 512))(mesh, camera, dr.studio_lights(camera))
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import _checks
from .camera import Camera
from .geometry.mesh import Mesh
from .lights import AmbientLight, DirectionalLight, Light


def frame_camera(
    mesh: Mesh,
    *,
    width: int,
    height: int,
    azimuth_deg: float | Tensor = 30.0,
    elevation_deg: float | Tensor = 20.0,
    fov_y_deg: float = 35.0,
    margin: float = 1.05,
) -> Camera:
    """A perspective camera that looks at the middle of a mesh and shows all of it.

    Args:
        mesh: vertices (V, 3), y up.
        width, height: picture size in pixels.
        azimuth_deg: angle about the y axis; 0 looks from +z, 90 from +x. A tensor (B,) makes B cameras.
        elevation_deg: angle above the xz plane.
        fov_y_deg: vertical field of view.
        margin: room around the mesh's bounding sphere, 1 = none.

    Raises:
        ValueError: for a mesh without finite vertices.

    Example:
        >>> camera = dr.frame_camera(dr.geometry.icosphere(1), width=64, height=64)
        >>> camera.project(torch.zeros(1, 3)).round().tolist()
        [[32.0, 32.0]]
    """
    points = mesh.vertices.detach()[mesh.triangles.long().unique()] if mesh.triangle_count else mesh.vertices.detach()
    points = points[points.isfinite().all(-1)]
    if points.shape[0] == 0:
        _checks.fail(ValueError, "frame_camera", "mesh", "have triangles with finite corners", "none")
    center = (points.amin(0) + points.amax(0)) / 2
    radius = max(float((points - center).norm(dim=-1).max()), 1e-6)
    half_y = math.radians(fov_y_deg) / 2
    half_x = math.atan(math.tan(half_y) * width / height)
    distance = margin * radius / math.sin(min(half_x, half_y))
    azimuth, elevation = (torch.deg2rad(torch.as_tensor(a, dtype=mesh.dtype)) for a in (azimuth_deg, elevation_deg))
    azimuth, elevation = torch.broadcast_tensors(azimuth, elevation)
    toward = torch.stack(
        [azimuth.sin() * elevation.cos(), elevation.sin(), azimuth.cos() * elevation.cos()], -1
    )  # fmt: skip
    eye = center + distance * toward.to(center)
    near, far = distance - 1.02 * radius, distance + 1.02 * radius
    camera = Camera.perspective(
        fov_y_deg=fov_y_deg, width=width, height=height, near=near, far=far, dtype=mesh.dtype, device=mesh.device
    )
    return camera.look_at(eye, target=center.expand_as(eye))


def studio_lights(camera: Camera, *, brightness: float = 1.0) -> list[Light]:
    """A key light from above the camera's left shoulder, a weaker one from the right, and some light from everywhere.

    Args:
        camera: one or B of them; each has its own lights.
        brightness: of all lights; with 1, white surfaces that face the key light come out nearly white.

    Example:
        >>> lights = dr.studio_lights(dr.frame_camera(dr.geometry.cube(), width=8, height=8))
        >>> len(lights)
        3
    """
    right, up, back = camera.camera_from_world[..., :3, :3].detach().unbind(-2)
    key, fill = 0.5 * right - 0.7 * up - back, -1.5 * right - 0.1 * up - 0.6 * back
    return [
        DirectionalLight(key, 2.3 * brightness),
        DirectionalLight(fill, 0.6 * brightness),
        AmbientLight(torch.full((3,), 0.22 * brightness, dtype=right.dtype, device=right.device)),
    ]
