"""What the examples of this folder share: matrices, random poses, meshes, pictures.

Arrays are read from the folder named by DIFFRENDER_TEST_DATA (or ../shared/data next to the project) if it has a folder
nvdiffrast_samples; else they are made here, of the same kind.
"""

import os
from pathlib import Path

import numpy as np
import torch

import diffrender

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = Path(os.environ.get("DIFFRENDER_TEST_DATA", ROOT.parent / "shared" / "data")) / "nvdiffrast_samples"


# --- matrices --------------------------------------------------------------------------------------


def projection(x=0.4, near=1.0, far=50.0):
    """clip_from_camera of focal length near / x on both axes, OpenGL depth."""
    return torch.tensor(
        [
            [near / x, 0, 0, 0],
            [0, near / x, 0, 0],
            [0, 0, -(far + near) / (far - near), -2 * far * near / (far - near)],
            [0, 0, -1, 0],
        ]
    )


def translation(x, y, z):
    matrix = torch.eye(4)
    matrix[:3, 3] = torch.tensor([x, y, z], dtype=torch.float32)
    return matrix


def random_pose(shift, generator):
    """A random rotation and a shift of up to +-shift along each axis."""
    x, y = torch.randn(2, 3, generator=generator)
    x = torch.nn.functional.normalize(x, dim=0)
    z = torch.nn.functional.normalize(torch.linalg.cross(x, y), dim=0)
    matrix = torch.eye(4)
    matrix[:3, :3] = torch.stack([x, torch.linalg.cross(z, x), z])
    matrix[:3, 3] = shift * (2 * torch.rand(3, generator=generator) - 1)
    return matrix


def to_clip(matrix, positions):
    """(V, 3) -> (1, V, 4)."""
    ones = torch.ones_like(positions[:, :1])
    return (torch.cat([positions, ones], 1) @ matrix.T)[None]


# --- meshes ----------------------------------------------------------------------------------------


def load(name):
    """Arrays of NAME.npz in their stored order, or None."""
    path = SAMPLES / f"{name}.npz"
    if not path.exists():
        return None
    with np.load(path) as arrays:
        return [arrays[key] for key in arrays.files]


def as_tensors(arrays):
    """tri, positions (V, 3), color_tri, colors as int32 and float32."""
    tri, positions, color_tri, colors = arrays
    return (
        torch.from_numpy(tri.astype(np.int32)),
        torch.from_numpy(positions[:, :3].astype(np.float32)),
        torch.from_numpy(color_tri.astype(np.int32)),
        torch.from_numpy(colors.astype(np.float32)),
    )


def cube(kind="c"):
    """Cube of side 1: tri (12, 3), positions, color_tri (12, 3), colors.

    "c": 8 vertices, each with the color of its corner. "p": 24 vertices, each face with its own four and one color.
    """
    stored = load(f"cube_{kind}")
    if stored is not None:
        return as_tensors(stored)
    corners = np.array([[k & 1, k >> 1 & 1, k >> 2 & 1] for k in range(8)], dtype=np.float32)
    quads = np.array([[0, 2, 3, 1], [4, 5, 7, 6], [0, 1, 5, 4], [2, 6, 7, 3], [0, 4, 6, 2], [1, 3, 7, 5]])
    if kind == "c":
        tri = np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])
        return as_tensors([tri, corners - 0.5, tri, corners])
    own = np.arange(24).reshape(6, 4)
    tri = np.concatenate([own[:, [0, 1, 2]], own[:, [0, 2, 3]]])
    face = np.tile(np.arange(6)[:, None], (2, 3))
    colors = np.array(
        [[0.9, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.2, 0.9], [0.9, 0.9, 0.1], [0.1, 0.8, 0.8], [0.8, 0.8, 0.8]]
    )
    return as_tensors([tri, corners[quads].reshape(-1, 3) - 0.5, face, colors])


def blob(side):
    """A round object to reflect an environment: tri, positions, normals (V, 3), environment (6, side, side, 3)."""
    stored = load("envphong")
    if stored is not None:
        tri, positions, normals, faces = stored
        environment = torch.from_numpy(faces[:, ::-1].copy()).float() / 255
        step = environment.shape[1] // side
        environment = environment.unflatten(1, (side, step)).unflatten(3, (side, step)).mean((2, 4))
        tensors = (torch.from_numpy(a[:, :3].copy()) for a in (tri.astype(np.int32), positions, normals))
        return *tensors, environment
    mesh = diffrender.geometry.icosphere(5)
    x, y, z = mesh.vertices.unbind(1)
    bumped = mesh.with_vertices(mesh.vertices * (1 + 0.15 * torch.sin(3 * x) * torch.cos(2 * y - z))[:, None])
    wave = torch.linspace(0, 3 * torch.pi, side)
    pattern = torch.stack([torch.sin(wave)[:, None] * torch.cos(k * wave)[None] for k in range(1, 7)])
    environment = 0.5 + 0.4 * torch.stack([pattern, pattern.roll(2, 0), pattern.roll(4, 0)], -1)
    return bumped.triangles.int(), bumped.vertices, bumped.vertex_normals(), environment


def uv_sphere(rows=48, columns=96):
    """Unit sphere: tri, positions (V, 3) and texture coordinates (V, 2); seam vertices are doubled."""
    v, u = torch.meshgrid(torch.linspace(0, 1, rows + 1), torch.linspace(0, 1, columns + 1), indexing="ij")
    theta, phi = torch.pi * v, 2 * torch.pi * u
    positions = torch.stack([theta.sin() * phi.cos(), theta.cos(), -theta.sin() * phi.sin()], -1).reshape(-1, 3)
    a = (torch.arange(rows)[:, None] * (columns + 1) + torch.arange(columns)).flatten()
    b, c, d = a + 1, a + columns + 1, a + columns + 2
    tri = torch.cat([torch.stack([a, c, b], 1), torch.stack([b, c, d], 1)])
    return tri.int(), positions, torch.stack([u, v], -1).reshape(-1, 2)


# --- pictures ----------------------------------------------------------------------------------------


def save_pictures(path, *pictures):
    """Pictures (H, W, 3) side by side. Row 0 of the functions is the bottom: turned over for display."""
    diffrender.save_image(path, torch.cat([p.detach().flip(0).clamp(0, 1) for p in pictures], 1))
