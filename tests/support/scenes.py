"""Small meshes, cameras and random scenes; everything is made from a seed and nothing from the library under test."""

import math

import numpy as np
import torch

from tests.support.device import from_numpy

CUBE_TRIANGLES = torch.tensor(
    [
        [0, 2, 1], [1, 2, 3], [4, 5, 6], [5, 7, 6], [0, 1, 4], [1, 5, 4],
        [2, 6, 3], [3, 6, 7], [0, 4, 2], [2, 4, 6], [1, 3, 5], [3, 7, 5],
    ],
    dtype=torch.int32,
)  # fmt: skip


def cube(half=1.0, dtype=torch.float32):
    """Vertices (8, 3) and outward counter-clockwise triangles (12, 3) of an axis-aligned cube; x is the lowest bit."""
    corners = [[(k & 1) * 2 - 1, (k >> 1 & 1) * 2 - 1, (k >> 2 & 1) * 2 - 1] for k in range(8)]
    return half * torch.tensor(corners, dtype=dtype), CUBE_TRIANGLES


def icosphere(levels=1, dtype=torch.float32):
    """Unit sphere: an icosahedron whose triangles are cut in four `levels` times. 10 * 4^levels + 2 vertices."""
    p = (1 + 5**0.5) / 2
    vertices = [
        (-1, p, 0), (1, p, 0), (-1, -p, 0), (1, -p, 0), (0, -1, p), (0, 1, p),
        (0, -1, -p), (0, 1, -p), (p, 0, -1), (p, 0, 1), (-p, 0, -1), (-p, 0, 1),
    ]  # fmt: skip
    triangles = [
        (0, 11, 5), (0, 5, 1), (0, 1, 7), (0, 7, 10), (0, 10, 11), (1, 5, 9), (5, 11, 4),
        (11, 10, 2), (10, 7, 6), (7, 1, 8), (3, 9, 4), (3, 4, 2), (3, 2, 6), (3, 6, 8),
        (3, 8, 9), (4, 9, 5), (2, 4, 11), (6, 2, 10), (8, 6, 7), (9, 8, 1),
    ]  # fmt: skip
    vertices = [tuple(c / math.hypot(*v) for c in v) for v in vertices]
    for _ in range(levels):
        middles: dict[tuple[int, int], int] = {}

        def middle(a, b, middles=middles):
            edge = (min(a, b), max(a, b))
            if edge not in middles:
                point = [(x + y) / 2 for x, y in zip(vertices[a], vertices[b], strict=True)]
                middles[edge] = len(vertices)
                vertices.append(tuple(c / math.hypot(*point) for c in point))
            return middles[edge]

        finer = []
        for a, b, c in triangles:
            ab, bc, ca = middle(a, b), middle(b, c), middle(c, a)
            finer += [(a, ab, ca), (b, bc, ab), (c, ca, bc), (ab, bc, ca)]
        triangles = finer
    return torch.tensor(vertices, dtype=dtype), torch.tensor(triangles, dtype=torch.int32)


def perspective(fov_x_deg, height, width, near=0.1, far=100.0, dtype=torch.float64):
    """clip_from_camera (4, 4), OpenGL: the camera looks down -z, y is up; square pixels."""
    fx = 1 / math.tan(math.radians(fov_x_deg) / 2)
    rows = [
        [fx, 0, 0, 0],
        [0, fx * width / height, 0, 0],
        [0, 0, (far + near) / (near - far), 2 * far * near / (near - far)],
        [0, 0, -1, 0],
    ]
    return torch.tensor(rows, dtype=dtype)


def pixel_rays(fov_x_deg, height, width):
    """Camera-space directions (H, W, 3) through pixel centres, with z = -1."""
    tan_x = math.tan(math.radians(fov_x_deg) / 2)
    x = ((2 * torch.arange(width, dtype=torch.float64) + 1) / width - 1) * tan_x
    y = (1 - (2 * torch.arange(height, dtype=torch.float64) + 1) / height) * tan_x * height / width
    y, x = torch.meshgrid(y, x, indexing="ij")
    return torch.stack([x, y, -torch.ones_like(x)], -1)


def rigid(pose):
    """camera_from_world (4, 4) of six numbers: shift and axis-angle; differentiable."""
    shift, turn = pose[:3], pose[3:]
    zero = torch.zeros_like(turn[0])
    generator = torch.stack([zero, -turn[2], turn[1], turn[2], zero, -turn[0], -turn[1], turn[0], zero]).reshape(3, 3)
    rotation = torch.linalg.matrix_exp(generator)
    top = torch.cat([rotation, shift[:, None]], 1)
    return torch.cat([top, torch.tensor([[0, 0, 0, 1]], dtype=pose.dtype)])


def to_clip(vertices, clip_from_world):
    """(V, 3) -> (V, 4), or (B, V, 4) for a batch of matrices."""
    homogeneous = torch.cat([vertices, torch.ones_like(vertices[..., :1])], -1)
    return homogeneous @ clip_from_world.to(vertices.dtype).transpose(-1, -2)


def random_rotations(count, seed=0):
    """(count, 3, 3) float64 rotations, uniformly distributed."""
    matrices = np.random.default_rng(seed).standard_normal((count, 3, 3))
    q, r = np.linalg.qr(matrices)
    q = q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]
    return from_numpy(q * np.sign(np.linalg.det(q))[:, None, None])


def random_scene(seed, dtype=torch.float32):
    """Clip positions (V, 4), triangles (T, 3) and (H, W): ordinary triangles and every kind of nuisance.

    About a third of the triangles are degenerate, huge, behind the camera, crossing its plane, coincident, or have a
    NaN or infinite coordinate. No two different surfaces agree in depth by construction; exact copies do, and are
    decided by the index.
    """
    rng = np.random.default_rng(seed)
    height, width = int(rng.integers(1, 40)), int(rng.integers(1, 40))
    count = int(rng.integers(1, 40))
    w = rng.uniform(0.5, 3, (count, 3, 1))
    centre = rng.uniform(-1.2, 1.2, (count, 1, 3))
    size = 10 ** rng.uniform(-2, 0.3, (count, 1, 1))
    xyz = (centre + size * rng.standard_normal((count, 3, 3))) * w
    corners = np.concatenate([xyz, w], -1)
    kinds = rng.integers(0, 24, count)
    for t, kind in enumerate(kinds):
        if kind == 0:
            corners[t, 1] = corners[t, 0]  # two equal corners
        elif kind == 1:
            corners[t, 2] = 0.5 * (corners[t, 0] + corners[t, 1])  # collinear
        elif kind == 2:
            corners[t, :, :2] *= 10 ** rng.uniform(3, 8)  # huge
        elif kind == 3:
            corners[t, :, 3] *= -1  # behind the camera
        elif kind == 4:
            corners[t, rng.integers(0, 3), 3] *= -1  # crosses the plane of the eye
        elif kind == 5:
            corners[t, rng.integers(0, 3), rng.integers(0, 4)] = rng.choice([np.nan, np.inf, -np.inf])
        elif kind == 6 and t > 0:
            corners[t] = corners[t - 1]  # coincident with its predecessor
        elif kind == 7:
            corners[t, rng.integers(0, 3), 3] = 0  # a corner at infinity
    positions = from_numpy(corners.reshape(-1, 4)).to(dtype)
    return positions, torch.arange(3 * count, dtype=torch.int32).reshape(-1, 3), (height, width)


# --- triangulations of a square on the 1/256 pixel lattice: a snapped corner is exactly where it wa


def lattice_to_clip(points, size):
    """Lattice points (N, 2) in 1/256 pixels of a size x size frame -> (N, 4); exact in float32 for powers of two."""
    ndc = points.astype(np.float64) / (128 * size)
    xyzw = np.stack([ndc[:, 0] - 1, 1 - ndc[:, 1], np.zeros(len(ndc)), np.ones(len(ndc))], -1)
    return from_numpy(xyzw)


def jittered_grid(cells, size, seed, margin=3):
    """Grid of the frame plus a margin of pixels; jitter under 1/4 cell keeps every quad convex. points, triangles."""
    rng = np.random.default_rng(seed)
    lines = np.linspace(-margin * 256, (size + margin) * 256, cells + 1)
    y, x = np.meshgrid(lines, lines, indexing="ij")
    points = np.stack([x, y], -1)
    jitter = int(0.24 * (lines[1] - lines[0]))
    points = np.rint(points) + rng.integers(-jitter, jitter + 1, points.shape)
    name = np.arange((cells + 1) ** 2).reshape(cells + 1, cells + 1)
    a, b, c, d = (n.reshape(-1) for n in (name[:-1, :-1], name[:-1, 1:], name[1:, 1:], name[1:, :-1]))
    flip = rng.integers(0, 2, len(a)).astype(bool)
    first = np.where(flip[:, None], np.stack([a, b, c], -1), np.stack([a, b, d], -1))
    second = np.where(flip[:, None], np.stack([a, c, d], -1), np.stack([b, c, d], -1))
    return points.reshape(-1, 2), shuffled(np.concatenate([first, second]), rng)


def random_subdivision(count, size, seed, margin=3):
    """Triangulation of the same square by splitting random triangles at random lattice points: slivers of all sizes."""
    rng = np.random.default_rng(seed)
    low, high = -margin * 256, (size + margin) * 256
    points = [(low, low), (high, low), (high, high), (low, high)]
    triangles = [(0, 1, 2), (0, 2, 3)]
    while len(triangles) < count:
        t = int(rng.integers(len(triangles)))
        a, b, c = triangles[t]
        u, v = sorted(rng.random(2))
        point = tuple(round(u * points[a][i] + (v - u) * points[b][i] + (1 - v) * points[c][i]) for i in range(2))
        pieces = [(a, b, len(points)), (b, c, len(points)), (c, a, len(points))]
        points.append(point)
        areas = [orientation(*(points[k] for k in piece)) for piece in pieces]
        if min(areas) <= 0:  # rounded onto an edge or outside
            points.pop()
            continue
        triangles[t] = pieces[0]
        triangles += pieces[1:]
    return np.array(points), shuffled(np.array(triangles), rng)


def orientation(a, b, c):
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def shuffled(triangles, rng):
    """Random order of triangles, of corners within each, and of winding."""
    triangles = triangles[rng.permutation(len(triangles))]
    order = np.argsort(rng.random(triangles.shape), axis=1)
    return np.take_along_axis(triangles, order, axis=1).astype(np.int32)
