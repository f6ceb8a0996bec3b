"""Mesh: a plain container of the tensors that describe triangle meshes of one topology.

It holds, it checks, it caches what depends on the triangles alone; nothing here is a parameter or a module. During an
optimisation `mesh.with_vertices(new_vertices)` gives the mesh of the step and shares those caches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diffrender import _checks
from diffrender.geometry import normals as _normals
from diffrender.geometry import tangents as _tangents
from diffrender.geometry._arrays import Array, as_tensors
from diffrender.geometry.topology import Edges, adjacent_triangles, unique_edges


class Mesh:
    """Triangle mesh.

    NumPy arrays may stand for tensors everywhere, as trimesh, Open3D or meshio have them: `dr.Mesh(other.vertices,
    other.faces)`. They are copied; floats take the type and device of the float tensors among the arguments, float32 on
    the CPU without one (for float64, pass `torch.as_tensor(vertices)`), and indices may be integers of any kind.

    Args:
        vertices: (V, 3) positions, float32 or float64, or (B, V, 3): B shapes of one topology.
        triangles: (T, 3) int32 or int64 indices of vertices, counter-clockwise seen from the outside; kept as int32.
        texcoords: (U, 2) or (B, U, 2), (0, 0) the top left corner of the picture, v down.
        texcoord_triangles: (T, 3) indices of texcoords; default: `triangles`.
        normals: (N, 3) or (B, N, 3) unit normals to shade with; default: `vertex_normals()` of the positions.
        normal_triangles: (T, 3) indices of normals; default: `triangles`.
        tangents: (N, 4) or (B, N, 4) unit tangents and sides for normal maps, those that a file's maps were baked for;
            default: those of the texcoords, see `vertex_tangents`.
        tangent_triangles: (T, 3) indices of tangents; default: `triangles`.
        colors: (V, C) or (B, V, C) linear values per vertex. The fourth of four is alpha, which multiplies that of
            materials of alpha mode "BLEND" and "MASK".
        material: what the surface is made of: one for all triangles, or a list of them chosen by `material_ids`. The
            mesh only carries it.
        material_ids: (T,) integer places in the list of materials, kept as int32; default: 0 for all triangles.
        offset: (3,) float64, what to add to the vertices for their places in the file, where `load_mesh` moved them.

    Raises:
        TypeError: on a wrong dtype.
        ValueError: on a wrong shape or device, or (on the CPU) an index out of range.

    Example:
        >>> mesh = Mesh(torch.eye(3), torch.tensor([[0, 1, 2]]))
        >>> mesh.vertex_normals().shape, mesh.triangles.dtype
        (torch.Size([3, 3]), torch.int32)
    """

    def __init__(
        self,
        vertices: Array,
        triangles: Array,
        *,
        texcoords: Array | None = None,
        texcoord_triangles: Array | None = None,
        normals: Array | None = None,
        normal_triangles: Array | None = None,
        tangents: Array | None = None,
        tangent_triangles: Array | None = None,
        colors: Array | None = None,
        material: Any = None,
        material_ids: Array | None = None,
        offset: Array | None = None,
    ):
        given = as_tensors(
            vertices=vertices, triangles=triangles, texcoords=texcoords, texcoord_triangles=texcoord_triangles,
            normals=normals, normal_triangles=normal_triangles, tangents=tangents, tangent_triangles=tangent_triangles,
            colors=colors, material_ids=material_ids, offset=offset,
        )  # fmt: skip
        like = given["vertices"]
        self.vertices = _check_floats("vertices", like, 3, like)
        self.triangles = _check_triangles("triangles", given["triangles"], None, "vertices", like)
        self.texcoords = _optional_floats("texcoords", given["texcoords"], 2, like)
        self.normals = _optional_floats("normals", given["normals"], 3, like)
        self.tangents = _optional_floats("tangents", given["tangents"], 4, like)
        self.colors = _optional_floats("colors", given["colors"], None, like)
        if self.colors is not None and self.colors.shape[-2] != self.vertices.shape[-2]:
            raise ValueError(
                f"Mesh: colors must have one row per vertex ({self.vertices.shape[-2]}), got {self.colors.shape[-2]}."
            )
        self.texcoord_triangles = self._attribute_triangles("texcoord", self.texcoords, given["texcoord_triangles"])
        self.normal_triangles = self._attribute_triangles("normal", self.normals, given["normal_triangles"])
        self.tangent_triangles = self._attribute_triangles("tangent", self.tangents, given["tangent_triangles"])
        self.material = material
        self.material_ids = _check_material_ids(given["material_ids"], material, self.triangles)
        self.offset: Tensor | None = given["offset"]
        self._cache: dict[str, Any] = {}

    @property
    def materials(self) -> list[Any]:
        """`material` as a list, empty without one: triangle t is made of `materials[material_ids[t]]`."""
        if self.material is None:
            return []
        return list(self.material) if isinstance(self.material, (list, tuple)) else [self.material]

    def fields_per_triangle(self, rows: Tensor) -> dict[str, Any]:
        """Constructor arguments that follow the triangles alone, for a mesh whose triangle t comes from `rows[t]`."""
        ids = None if self.material_ids is None else self.material_ids[rows.long()]
        return {"material": self.material, "material_ids": ids}

    @property
    def vertex_count(self) -> int:
        return self.vertices.shape[-2]

    @property
    def triangle_count(self) -> int:
        return self.triangles.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.vertices.dtype

    @property
    def device(self) -> torch.device:
        return self.vertices.device

    def with_vertices(self, vertices: Tensor, **replaced: Any) -> Mesh:
        """The same mesh at other positions (any batch axis), sharing the topology caches.

        The stored normals and tangents belong to the old positions and are dropped; other keyword arguments replace
        fields.
        """
        dropped = ("normals", "normal_triangles", "tangents", "tangent_triangles")
        return self.replace(vertices=vertices, **{**dict.fromkeys(dropped), **replaced})

    def replace(self, **fields: Any) -> Mesh:
        """A copy with some constructor arguments replaced; tensors are shared, not copied.

        An attribute replaced by None takes its index table with it.
        """
        arguments = as_tensors(like=self.vertices, **{**self._fields(), **fields})
        for attribute in ("texcoord", "normal", "tangent"):
            if arguments[f"{attribute}s"] is None and f"{attribute}_triangles" not in fields:
                arguments[f"{attribute}_triangles"] = None
        mesh = Mesh(**arguments)
        if mesh.vertex_count == self.vertex_count and "triangles" not in fields:
            mesh._cache = self._cache
        return mesh

    def to(self, *arguments: Any, **options: Any) -> Mesh:
        """Moves and converts like `Tensor.to`: `.to("cuda")`, `.to(torch.float64)`; index tensors keep their type."""
        moved: dict[str, Any] = {}
        for name, tensor in self._fields().items():
            if name == "offset":
                moved[name] = tensor
            elif name == "material":
                moved[name] = _move_materials(tensor, *arguments, **options)
            elif tensor is not None and not tensor.is_floating_point():
                device = torch.empty(0, dtype=self.dtype, device=self.device).to(*arguments, **options).device
                moved[name] = tensor.to(device)
            else:
                moved[name] = None if tensor is None else tensor.to(*arguments, **options)
        return Mesh(**moved)

    def detach(self) -> Mesh:
        """The same mesh cut off from autograd."""
        tensors = {name: t for name, t in self._fields().items() if isinstance(t, Tensor) and t.is_floating_point()}
        return self.replace(**{name: tensor.detach() for name, tensor in tensors.items()})

    def vertex_normals(self, *, weighting: str = "area") -> Tensor:
        """Smooth unit normals of the shape of `vertices`, differentiable: see `diffrender.geometry.vertex_normals`."""
        return _normals.vertex_normals(self.vertices, self.triangles, weighting=weighting)

    def triangle_normals(self) -> Tensor:
        """Flat unit normals (..., T, 3), differentiable; zero for degenerate triangles."""
        return _normals.triangle_normals(self.vertices, self.triangles)

    def vertex_tangents(self) -> tuple[Tensor, Tensor]:
        """Tangents (..., K, 4) for normal maps and their rows (T, 3): the mesh's own, where it has some.

        Otherwise those of the texcoords, differentiable: see `diffrender.geometry.vertex_tangents`.

        Raises:
            ValueError: for a mesh without tangents and texcoords.
        """
        if self.tangents is not None and self.tangent_triangles is not None:
            return self.tangents, self.tangent_triangles
        if self.texcoords is None:
            raise ValueError("Mesh.vertex_tangents: the mesh must have texcoords, got none.")
        return _tangents.tangents_with(
            self.vertices,
            self.triangles,
            self.texcoords,
            self.texcoord_triangles,
            self.normals,
            self.normal_triangles,
            self._cache,
        )

    def edges(self) -> Edges:
        """The undirected edges by vertex index (`diffrender.geometry.unique_edges`), computed once per topology."""
        return self._cached("edges", lambda: unique_edges(self.triangles))

    def adjacent_triangles(self) -> Tensor:
        """(P, 2) pairs of triangles that share an edge, computed once per topology."""
        return self._cached("adjacent_triangles", lambda: adjacent_triangles(self.edges()))

    def edge_topology(self) -> Tensor:
        """`diffrender.edge_topology` of this mesh, (T, 3) int32, computed at the first call and kept.

        Vertices at bit-equal positions at that first call count as one, so that uv seams and split vertices are not
        borders; meshes made by `with_vertices` share the result, and with it these welds.
        """
        from diffrender import edge_topology  # not at the top: diffrender imports this module first

        return self._cached("edge_topology", lambda: edge_topology(self.triangles, self.vertices))

    def _cached(self, name: str, build: Any) -> Any:
        if name not in self._cache:
            # A tensor made under inference mode could not be used in a later training step.
            with torch.inference_mode(False), torch.no_grad():
                self._cache[name] = build()
        return self._cache[name]

    def _attribute_triangles(self, name: str, attribute: Tensor | None, triangles: Tensor | None) -> Tensor | None:
        if attribute is None:
            if triangles is not None:
                raise ValueError(f"Mesh: {name}_triangles must come with {name}s, got none.")
            return None
        indices = self.triangles if triangles is None else triangles
        hint = "" if triangles is not None else f" Pass {name}_triangles?"
        return _check_triangles(f"{name}_triangles", indices, self.triangle_count, f"{name}s", attribute, hint)

    def _fields(self) -> dict[str, Any]:
        """The constructor's arguments; index tables that merely follow `triangles` are left out and go on following."""

        def own(table: Tensor | None) -> Tensor | None:
            return None if table is self.triangles else table

        return {
            "vertices": self.vertices,
            "triangles": self.triangles,
            "texcoords": self.texcoords,
            "texcoord_triangles": own(self.texcoord_triangles),
            "normals": self.normals,
            "normal_triangles": own(self.normal_triangles),
            "tangents": self.tangents,
            "tangent_triangles": own(self.tangent_triangles),
            "colors": self.colors,
            "material": self.material,
            "material_ids": self.material_ids,
            "offset": self.offset,
        }

    def __repr__(self) -> str:
        extras = [name for name in ("texcoords", "normals", "tangents", "colors") if getattr(self, name) is not None]
        with_extras = f", with {', '.join(extras)}" if extras else ""
        shape = tuple(self.vertices.shape)
        return f"Mesh(vertices {shape}, {self.triangle_count} triangles{with_extras}, {self.dtype}, {self.device})"


def _check_floats(name: str, tensor: Tensor, width: int | None, like: Tensor) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"Mesh: {name} must be a tensor or an array, got {type(tensor).__name__}.")
    if tensor.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"Mesh: {name} must be float32 or float64, got {tensor.dtype}.")
    if tensor.ndim not in (2, 3) or (width is not None and tensor.shape[-1] != width):
        wanted = "C" if width is None else width
        raise ValueError(f"Mesh: {name} must have shape (N, {wanted}) or (B, N, {wanted}), got {tuple(tensor.shape)}.")
    if tensor.dtype != like.dtype:
        raise TypeError(f"Mesh: {name} must be {like.dtype} as vertices are, got {tensor.dtype}.")
    if tensor.device != like.device:
        raise ValueError(f"Mesh: {name} is on {tensor.device} but vertices is on {like.device}. Move one of them.")
    return _trainable(tensor)


def _trainable(tensor: Tensor) -> Tensor:
    """What inference mode made cannot be saved for a backward pass: a copy of it can."""
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled() or not tensor.is_inference():
        return tensor
    return tensor.clone()


def _optional_floats(name: str, tensor: Tensor | None, width: int | None, like: Tensor) -> Tensor | None:
    return None if tensor is None else _check_floats(name, tensor, width, like)


def _check_material_ids(ids: Tensor | None, material: Any, triangles: Tensor) -> Tensor | None:
    if ids is None:
        return None
    if material is None:
        raise ValueError("Mesh: material_ids must come with material, got none.")
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"Mesh: material_ids must be int32 or int64, got {getattr(ids, 'dtype', type(ids).__name__)}.")
    if ids.shape != (triangles.shape[0],):
        expected = f"have one number per triangle ({triangles.shape[0]},)"
        raise ValueError(f"Mesh: material_ids must {expected}, got {tuple(ids.shape)}.")
    if ids.device != triangles.device:
        raise ValueError(f"Mesh: material_ids is on {ids.device} but triangles is on {triangles.device}. Move one.")
    count = len(material) if isinstance(material, (list, tuple)) else 1
    if ids.numel() and _checks.can_read(ids):
        low, high = (int(x) for x in ids.aminmax())
        if low < 0 or high >= count:
            wrong = low if low < 0 else high
            raise ValueError(f"Mesh: material_ids refers to material {wrong} but there are {count}.")
    return ids.to(torch.int32)


def _move_materials(material: Any, *arguments: Any, **options: Any) -> Any:
    if isinstance(material, (list, tuple)):
        return [_move_materials(item, *arguments, **options) for item in material]
    return material.to(*arguments, **options) if hasattr(material, "to") else material


def _check_triangles(
    name: str, triangles: Tensor, count: int | None, target_name: str, target: Tensor, hint: str = ""
) -> Tensor:
    if not isinstance(triangles, Tensor):
        raise TypeError(f"Mesh: {name} must be a tensor or an array, got {type(triangles).__name__}.")
    if triangles.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"Mesh: {name} must be int32 or int64, got {triangles.dtype}.")
    if triangles.ndim != 2 or triangles.shape[1] != 3:
        transpose = " Transpose it?" if triangles.ndim == 2 and triangles.shape[0] == 3 else ""
        raise ValueError(f"Mesh: {name} must have shape (T, 3), got {tuple(triangles.shape)}.{transpose}")
    if count is not None and triangles.shape[0] != count:
        raise ValueError(f"Mesh: {name} must have one row per triangle ({count}), got {triangles.shape[0]}.")
    if triangles.device != target.device:
        where = f"{name} is on {triangles.device} but {target_name} is on {target.device}"
        raise ValueError(f"Mesh: {where}. Move one of them.")
    if triangles.numel() and _checks.can_read(triangles):
        low, high = (int(x) for x in triangles.aminmax())
        if low < 0 or high >= target.shape[-2]:
            worst = low if low < 0 else high
            raise ValueError(f"Mesh: {name} refers to row {worst} but {target_name} has {target.shape[-2]} rows.{hint}")
    return _trainable(triangles.to(torch.int32))
