"""The scenes every benchmark renders: bumpy spheres of growing triangle count, and two triangles that fill the screen.

The sphere is an icosphere (4 ** level * 20 triangles) whose radius is a smooth sum of waves, scaled so that it covers
about 66 percent of a square image. The camera stands at distance 3.2 on the +z axis and looks down -z with a vertical
field of view of 40 degrees. Level 4, 6 and 8 are the scenes "5k", "80k" and "1.3M"; "levelN" names any other level.
"big" is a quad of two triangles, slightly tilted in depth, which overlaps the frame by one percent on every side.

Everything is made by numpy from formulas; spheres are cached below the system's directory for temporary files, because
the subdivision of the largest takes seconds.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CAMERA_DISTANCE = 3.2
FOV_Y_DEG = 40.0
NEAR, FAR = 0.1, 100.0

SPHERE_LEVELS = {"5k": 4, "80k": 6, "1.3M": 8}
SCENE_NAMES = ("5k", "80k", "1.3M", "big")

# Raised whenever the formulas below change, so that no old file is read.
_CACHE_VERSION = 1
# Mean radius for which the bumpy sphere covers 66 percent of the image (its bumps reach a little beyond it).
_SPHERE_RADIUS = 0.996


@dataclass(frozen=True)
class Scene:
    """One mesh in world space; the camera is the same for all.

    Attributes:
        name: the name it was asked for by.
        vertices: (V, 3) float32, world space.
        triangles: (T, 3) int32, counter-clockwise seen from outside.
        colors: (V, 3) float32 in [0, 1].
    """

    name: str
    vertices: np.ndarray
    triangles: np.ndarray
    colors: np.ndarray

    @property
    def clip_positions(self) -> np.ndarray:
        """(V, 4) float32 clip-space positions, computed in double precision and rounded once."""
        homogeneous = np.concatenate([self.vertices, np.ones_like(self.vertices[:, :1])], axis=1).astype(np.float64)
        return (homogeneous @ clip_from_world().T).astype(np.float32)


def make_scene(name: str) -> Scene:
    """Build the scene "5k", "80k", "1.3M", "big" or "levelN".

    Raises:
        ValueError: for any other name.
    """
    if name == "big":
        return _two_big_triangles()
    match = re.fullmatch(r"level(\d)", name)
    if name not in SPHERE_LEVELS and match is None:
        raise ValueError(f"make_scene: name must be one of {', '.join(SCENE_NAMES)} or levelN, got {name!r}.")
    level = SPHERE_LEVELS[name] if match is None else int(match.group(1))
    path = Path(tempfile.gettempdir()) / f"diffrender-benchmarks-{os.getuid()}" / f"sphere{level}_v{_CACHE_VERSION}.npz"
    if not path.exists():
        vertices, triangles = _bumpy_sphere(level)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written under another name first: a reader never sees half a file.
        partial = path.with_suffix(f".{os.getpid()}.npz")
        np.savez(partial, vertices=vertices, triangles=triangles)
        os.replace(partial, path)
    with np.load(path) as arrays:
        vertices, triangles = arrays["vertices"], arrays["triangles"]
    return Scene(name, vertices, triangles, _colors(vertices))


def clip_from_world() -> np.ndarray:
    """(4, 4) float64 OpenGL view-projection matrix, applied to column vectors, for a square image."""
    focal = 1.0 / np.tan(np.radians(FOV_Y_DEG) / 2.0)
    clip_from_camera = np.zeros((4, 4))
    clip_from_camera[0, 0] = clip_from_camera[1, 1] = focal
    clip_from_camera[2, 2] = (FAR + NEAR) / (NEAR - FAR)
    clip_from_camera[2, 3] = 2.0 * FAR * NEAR / (NEAR - FAR)
    clip_from_camera[3, 2] = -1.0
    camera_from_world = np.eye(4)
    camera_from_world[2, 3] = -CAMERA_DISTANCE
    return clip_from_camera @ camera_from_world


def camera_rays(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Primary rays through the pixel centres of a size x size image, top row first.

    Returns:
        origins (size * size, 3) and directions (size * size, 3), float32, world space. A direction has length 1 along
        the viewing axis, so that the ray parameter of a hit is its depth.
    """
    ndc = (2.0 * np.arange(size) + 1.0) / size - 1.0
    half_height = np.tan(np.radians(FOV_Y_DEG) / 2.0)
    directions = np.empty((size, size, 3), np.float32)
    directions[..., 0] = half_height * ndc[None, :]
    directions[..., 1] = -half_height * ndc[:, None]
    directions[..., 2] = -1.0
    origins = np.zeros((size * size, 3), np.float32)
    origins[:, 2] = CAMERA_DISTANCE
    return origins, directions.reshape(-1, 3)


def _bumpy_sphere(level: int) -> tuple[np.ndarray, np.ndarray]:
    """Vertices (V, 3) float32 and triangles (T, 3) int32 of the icosphere with a wavy radius."""
    directions, triangles = _icosphere(level)
    x, y, z = directions.T
    waves = 0.05 * np.sin(5.0 * x + 1.0) * np.sin(4.0 * y + 2.0) + 0.04 * np.sin(7.0 * z + 3.0) * np.sin(6.0 * x)
    waves += 0.02 * np.sin(11.0 * y) * np.sin(9.0 * z + 1.0)
    vertices = directions * (_SPHERE_RADIUS * (1.0 + waves))[:, None]
    return vertices.astype(np.float32), triangles.astype(np.int32)


def _icosphere(level: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vertices (V, 3) float64 and triangles (T, 3) int64 of an icosahedron subdivided `level` times."""
    golden = (1.0 + np.sqrt(5.0)) / 2.0
    short = [(-1, golden), (1, golden), (-1, -golden), (1, -golden)]
    vertices = np.array([(a, b, 0) for a, b in short] + [(0, a, b) for a, b in short] + [(b, 0, a) for a, b in short])
    vertices /= np.linalg.norm(vertices, axis=1, keepdims=True)
    # Two corners of an icosahedron are neighbours where their directions have the largest product, 1 / sqrt(5).
    near = np.abs(vertices @ vertices.T - 1.0 / np.sqrt(5.0)) < 1e-6
    triangles = [
        (i, j, k) if np.dot(np.cross(vertices[i], vertices[j]), vertices[k]) > 0 else (i, k, j)
        for i in range(12)
        for j in range(i + 1, 12)
        for k in range(j + 1, 12)
        if near[i, j] and near[j, k] and near[i, k]
    ]
    triangles = np.array(triangles, np.int64)
    for _ in range(level):
        vertices, triangles = _subdivide(vertices, triangles)
    return vertices, triangles


def _subdivide(vertices: np.ndarray, triangles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split every triangle in four at its edge midpoints; the four stay neighbours in memory."""
    edges = np.sort(triangles[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2), axis=1)
    keys, inverse = np.unique(edges[:, 0] * len(vertices) + edges[:, 1], return_inverse=True)
    midpoints = vertices[keys // len(vertices)] + vertices[keys % len(vertices)]
    midpoints /= np.linalg.norm(midpoints, axis=1, keepdims=True)
    a, b, c = triangles.T
    ab, bc, ca = (inverse.reshape(-1, 3) + len(vertices)).T
    children = np.stack([a, ab, ca, b, bc, ab, c, ca, bc, ab, bc, ca], axis=1)
    return np.concatenate([vertices, midpoints]), children.reshape(-1, 3)


def _two_big_triangles() -> Scene:
    ndc = 1.01 * np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    depths = np.array([3.0, 3.2, 3.4, 3.2])
    half_height = np.tan(np.radians(FOV_Y_DEG) / 2.0)
    vertices = np.empty((4, 3), np.float32)
    vertices[:, :2] = ndc * (half_height * depths)[:, None]
    vertices[:, 2] = CAMERA_DISTANCE - depths
    triangles = np.array([[0, 1, 2], [0, 2, 3]], np.int32)
    return Scene("big", vertices, triangles, _colors(vertices))


def _colors(vertices: np.ndarray) -> np.ndarray:
    """(V, 3) float32 smooth colours in [0, 1]."""
    return (0.5 + 0.45 * np.sin(vertices * 4.0 + np.array([0.0, 1.0, 2.0]))).astype(np.float32)
