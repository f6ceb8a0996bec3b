"""Loading and saving meshes.

OBJ, glTF and the PLY writer are our own (they keep order, index tables, digits, materials and colors); the other
formats go through trimesh with its processing switched off.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffrender._extras import require
from diffrender.geometry._arrays import warn_of_lost_digits
from diffrender.geometry.mesh import Mesh
from diffrender.geometry.transforms import transform_points
from diffrender.geometry.weld import weld
from diffrender.io.gltf import read_gltf
from diffrender.io.gltf_writer import one_index_table, write_glb
from diffrender.io.obj import read_obj, write_obj
from diffrender.io.unsaved import warn_of_what_is_lost

_LOADABLE = (".obj", ".ply", ".glb", ".gltf", ".stl", ".off")
_SAVABLE = (".obj", ".ply", ".glb")


def load_mesh(
    path: str | os.PathLike[str],
    *,
    recenter: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Mesh:
    """Loads a triangle mesh with its materials; polygons are cut into triangles of the same area.

    Args:
        path: .obj, .ply, .glb, .gltf, .stl or .off file.
        recenter: move the middle of the vertices' bounds to the origin before digits are lost, and keep where it was in
            `mesh.offset`: for coordinates of maps, which are large compared with the size of the mesh.
        dtype: float32, or float64 to keep all digits of large coordinates.
        device: where the tensors shall lie; default: the CPU.

    Returns:
        For OBJ: vertices in the order of the `v` lines, duplicates and unused ones included, triangles in the order of
        the `f` lines, texcoords and normals with their own index tables, per-vertex colors where every `v` has them,
        and the materials of the MTL file.
        For glTF: all instances of the scene, moved to their places and joined, with texcoords, normals (flat ones where
        the file has none), the file's tangents, linear colors and materials; attributes that only some parts have are
        filled in.
        For STL, which knows no connectivity: vertices at the same place are one (`geometry.weld`), triangles without
        area because of it are left out, and each has its own normal, which shades it flat;
        `mesh.replace(normals=None)` shades smoothly, as does `mesh.with_vertices` in a fit.
        For the others: one vertex table with texcoords and colors where every part has them.
        Where vertices were split for normals or seams (glTF, often PLY), neighbours are apart for mesh losses and
        preconditioners: `geometry.weld(mesh)` joins them.
        Texcoords count from the top left (files that count from the bottom are turned over); colors are taken as the
        file holds them, without decoding. `mesh.material` is one `Material`, or a list that `mesh.material_ids` chooses
        from.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: on an unknown suffix, a file that is not what its suffix says, or one without triangles.
        ImportError: for PLY, STL, OFF and for pictures without the extra `io`.

    Example:
        >>> import tempfile, diffrender.geometry as geometry
        >>> path = tempfile.mkdtemp() + "/cube.obj"
        >>> save_mesh(path, geometry.cube())
        >>> load_mesh(path)
        Mesh(vertices (8, 3), 12 triangles, with texcoords, torch.float32, cpu)
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _LOADABLE:
        raise ValueError(f"load_mesh: path must end in one of {', '.join(_LOADABLE)}, got {str(path)!r}.")
    if not Path(path).is_file():
        raise FileNotFoundError(f"load_mesh: path must name a file, got {str(path)!r}, which does not exist.")
    if suffix in (".gltf", ".glb"):
        mesh = read_gltf(path, dtype=dtype)
    else:
        mesh = read_obj(path, dtype=dtype) if suffix == ".obj" else _read_with_trimesh(path)
    if recenter:
        low, high = mesh.vertices.aminmax(dim=0)
        offset = (low + high) / 2
        mesh = mesh.replace(vertices=mesh.vertices - offset, offset=offset)
    hint = "Pass recenter=True or dtype=torch.float64."
    warn_of_lost_digits(f"load_mesh: {path}", mesh.vertices, dtype, hint, stacklevel=3)
    floats = ("vertices", "texcoords", "normals", "tangents", "colors")
    present = {name: getattr(mesh, name) for name in floats if getattr(mesh, name) is not None}
    mesh = mesh.replace(**{name: tensor.to(dtype) for name, tensor in present.items()})
    return mesh if device is None else mesh.to(device)


def save_mesh(path: str | os.PathLike[str], mesh: Mesh) -> None:
    """Saves one mesh; the suffix of `path` chooses the format.

    Args:
        path: .obj (own index tables, all digits; materials in an .mtl file, pictures in PNG files beside it), .ply
            (binary, colors as bytes, no materials) or .glb (all in one file, float32).
        mesh: vertices (V, 3). PLY and GLB know one index table only: there, vertices are repeated along texcoord seams.
            Metallic and roughness are one picture in GLB: the smaller map is enlarged, linear between its texels. MTL
            knows no sides: both show.

    Warns:
        UserWarning: of all that the format has no place for, such as materials in PLY, and alpha mode "MASK" and
            occlusion in OBJ.

    Raises:
        ValueError: on another suffix, a batch of shapes, vertex colors that are none (1, 3 or 4 channels are), or
            materials that differ between the items of a batch.
        ImportError: for materials with pictures, without the extra `io`.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _SAVABLE:
        raise ValueError(f"save_mesh: path must end in one of {', '.join(_SAVABLE)}, got {str(path)!r}.")
    if mesh.vertices.ndim != 2:
        raise ValueError(
            f"save_mesh: mesh must hold one shape (V, 3), got {tuple(mesh.vertices.shape)}. Save the items one by one."
        )
    if mesh.colors is not None and mesh.colors.shape[-1] not in (1, 3, 4):
        raise ValueError(f"save_mesh: mesh must have colors of 1, 3 or 4 channels, got {mesh.colors.shape[-1]}.")
    mesh = mesh.detach().to("cpu")
    warn_of_what_is_lost(path, mesh)
    if mesh.colors is not None and mesh.colors.shape[-1] == 1:
        mesh = mesh.replace(colors=mesh.colors.expand(-1, 3))
    if mesh.offset is not None:  # where the vertices were before `load_mesh(recenter=True)`
        floats = {name: getattr(mesh, name) for name in ("texcoords", "normals", "colors")}
        floats = {name: tensor.double() for name, tensor in floats.items() if tensor is not None}
        mesh = mesh.replace(vertices=mesh.vertices.double() + mesh.offset, offset=None, **floats)
    if suffix == ".obj":
        write_obj(path, mesh)
    elif suffix == ".ply":
        _write_ply(path, one_index_table(mesh))
    else:
        write_glb(path, mesh)


def _read_with_trimesh(path: str | os.PathLike[str]) -> Mesh:
    trimesh = require("trimesh", "io", used_by=f"load_mesh of {Path(path).suffix}")
    try:
        scene = trimesh.load_scene(os.fspath(path), process=False, maintain_order=True)
        parts = [_part(scene, trimesh, node) for node in scene.graph.nodes_geometry]
    except ImportError:
        raise
    # trimesh's readers raise whatever their parsing ran into: there is no common base class to name.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"load_mesh: {path} must be a {Path(path).suffix} file, got one that trimesh cannot read ({reason})."
        ) from error
    parts = [part for part in parts if part is not None]
    if not parts or not sum(part.triangle_count for part in parts):
        raise ValueError(f"load_mesh: {path} must hold at least one triangle, got none.")
    mesh = _join(parts)
    return _welded_flat(path, mesh) if Path(path).suffix.lower() == ".stl" else mesh


def _welded_flat(path: str | os.PathLike[str], mesh: Mesh) -> Mesh:
    """Separate triangles as a mesh that looks the same and knows which of them touch."""
    mesh = weld(mesh)
    if not mesh.triangle_count:
        raise ValueError(f"load_mesh: {path} must hold a triangle with three different corners, got none.")
    own = torch.arange(mesh.triangle_count)[:, None].expand(-1, 3)
    return mesh.replace(normals=mesh.triangle_normals(), normal_triangles=own)


def _part(scene: Any, trimesh: Any, node: str) -> Mesh | None:
    """One placed instance of a scene's geometry; None for points and paths."""
    world_from_node, name = scene.graph[node]
    geometry = scene.geometry[name]
    if not isinstance(geometry, trimesh.Trimesh):
        return None
    place = torch.tensor(np.asarray(world_from_node), dtype=torch.float64)
    vertices = transform_points(place, torch.tensor(np.asarray(geometry.vertices), dtype=torch.float64))
    triangles = torch.tensor(np.asarray(geometry.faces), dtype=torch.int64)
    if torch.linalg.det(place[:3, :3]) < 0:
        triangles = triangles[:, [0, 2, 1]]  # a mirrored instance keeps its outside
    texcoords = colors = None
    texcoord_array = getattr(geometry.visual, "uv", None)
    if texcoord_array is not None and len(texcoord_array) == len(vertices):
        u, v = torch.tensor(np.asarray(texcoord_array), dtype=torch.float64).unbind(-1)
        texcoords = torch.stack([u, 1 - v], -1)  # trimesh counts v from the bottom in every format
    if "_ply_raw" in geometry.metadata:
        colors = _ply_colors(geometry.metadata["_ply_raw"]["vertex"]["data"])
    elif geometry.visual.kind == "vertex":
        colors = torch.tensor(np.asarray(geometry.visual.vertex_colors)[:, :3] / 255, dtype=torch.float64)
    return Mesh(vertices, triangles, texcoords=texcoords, colors=colors)


def _ply_colors(vertex_data: Any) -> Tensor | None:
    """The colors of a PLY file as stored: trimesh rounds floats to bytes and drops colors beside texcoords."""
    names = vertex_data.keys() if isinstance(vertex_data, dict) else vertex_data.dtype.names
    if not {"red", "green", "blue"} <= set(names):
        return None
    channels = [np.asarray(vertex_data[name]).reshape(-1) for name in ("red", "green", "blue")]
    scaled = [c / np.iinfo(c.dtype).max if c.dtype.kind in "iu" else c for c in channels]
    return torch.tensor(np.stack(scaled, -1), dtype=torch.float64)


def _join(parts: list[Mesh]) -> Mesh:
    """One mesh of all parts; an attribute that some part lacks is dropped."""
    if len(parts) == 1:
        return parts[0]
    offsets = np.cumsum([0] + [part.vertex_count for part in parts[:-1]]).tolist()

    def joined(name: str) -> Tensor | None:
        tensors = [getattr(part, name) for part in parts]
        return None if any(tensor is None for tensor in tensors) else torch.cat(tensors)

    triangles = torch.cat([part.triangles + offset for part, offset in zip(parts, offsets, strict=True)])
    return Mesh(
        torch.cat([part.vertices for part in parts]), triangles, texcoords=joined("texcoords"), colors=joined("colors")
    )


def _write_ply(path: str | os.PathLike[str], mesh: Mesh) -> None:
    """Binary little-endian PLY with the property names that other programs expect."""
    real = "<f8" if mesh.dtype == torch.float64 else "<f4"
    columns: list[tuple[str, str, Tensor]] = [(name, real, mesh.vertices[:, k]) for k, name in enumerate("xyz")]
    if mesh.normals is not None:
        columns += [(name, real, mesh.normals[:, k]) for k, name in enumerate(("nx", "ny", "nz"))]
    if mesh.texcoords is not None:
        columns += [("s", real, mesh.texcoords[:, 0]), ("t", real, 1 - mesh.texcoords[:, 1])]
    if mesh.colors is not None:
        levels = (mesh.colors[:, :3].clamp(0, 1) * 255).round().to(torch.uint8)
        columns += [(name, "u1", levels[:, k]) for k, name in enumerate(("red", "green", "blue"))]
    vertex_rows = np.empty(mesh.vertex_count, dtype=[(name, kind) for name, kind, _ in columns])
    for name, _, values in columns:
        vertex_rows[name] = values.numpy()
    face_rows = np.empty(mesh.triangle_count, dtype=[("count", "u1"), ("corners", "<i4", 3)])
    face_rows["count"], face_rows["corners"] = 3, mesh.triangles.numpy()

    type_names = {"<f8": "double", "<f4": "float", "u1": "uchar"}
    header = ["ply", "format binary_little_endian 1.0", "comment written by diffrender"]
    header += [f"element vertex {mesh.vertex_count}"]
    header += [f"property {type_names[kind]} {name}" for name, kind, _ in columns]
    header += [f"element face {mesh.triangle_count}", "property list uchar int vertex_indices", "end_header"]
    with open(path, "wb") as file:
        file.write(("\n".join(header) + "\n").encode("ascii"))
        file.write(vertex_rows.tobytes())
        file.write(face_rows.tobytes())
