"""Meshes, primitives, normals and transforms: plain tensors and plain torch, differentiable where it makes sense."""

from diffrender.geometry.mesh import Mesh
from diffrender.geometry.normals import (
    safe_normalize,
    triangle_area_vectors,
    triangle_corners,
    triangle_normals,
    vertex_normals,
)
from diffrender.geometry.packing import PackedMeshes, pack_meshes
from diffrender.geometry.primitives import cube, icosphere, quad, torus
from diffrender.geometry.remesh import remesh
from diffrender.geometry.rotations import (
    quaternion_from_rotation,
    rotation_from_6d,
    rotation_from_quaternion,
    rotation_to_6d,
    se3_exp,
    se3_log,
    so3_exp,
    so3_log,
)
from diffrender.geometry.subdivide import subdivide, subdivide_triangles
from diffrender.geometry.tangents import vertex_tangents
from diffrender.geometry.topology import Edges, adjacent_triangles, laplacian_matrix, unique_edges
from diffrender.geometry.transforms import (
    affine,
    compose,
    look_at,
    orbit_eyes,
    rotation,
    scaling,
    transform_directions,
    transform_homogeneous,
    transform_normals,
    transform_points,
    translation,
)
from diffrender.geometry.weld import weld, weld_vertices

__all__ = [
    "Edges",
    "Mesh",
    "PackedMeshes",
    "adjacent_triangles",
    "affine",
    "compose",
    "cube",
    "icosphere",
    "laplacian_matrix",
    "look_at",
    "orbit_eyes",
    "pack_meshes",
    "quad",
    "quaternion_from_rotation",
    "remesh",
    "rotation",
    "rotation_from_6d",
    "rotation_from_quaternion",
    "rotation_to_6d",
    "safe_normalize",
    "scaling",
    "se3_exp",
    "se3_log",
    "so3_exp",
    "so3_log",
    "subdivide",
    "subdivide_triangles",
    "torus",
    "transform_directions",
    "transform_homogeneous",
    "transform_normals",
    "transform_points",
    "translation",
    "triangle_area_vectors",
    "triangle_corners",
    "triangle_normals",
    "unique_edges",
    "vertex_normals",
    "vertex_tangents",
    "weld",
    "weld_vertices",
]
