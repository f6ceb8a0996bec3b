"""The functions of nvdiffrast on the ops of this library: `import diffrender.compat.nvdiffrast as dr`.

A script written for `import nvdiffrast.torch as dr` runs with this import, on the CPU or a GPU. Shapes, row order (row
0 is the bottom), the float channel of ids, derivatives, modes and defaults are those of nvdiffrast 0.4.
`diffrender.compat.install_as_nvdiffrast()` serves code that imports nvdiffrast by its own name. docs/from_nvdiffrast.md
compares the two interfaces.

What works here and is refused there: float64, the CPU, arrays that are not contiguous, int64 indices, `ranges` on any
device and positions (V, 4) without them, empty meshes and batches, mips of textures with odd sides, any number of
diff_attrs, `rasterize` or another peeler while a DepthPeeler is active.

What differs on purpose, and follows nvdiffrast with `exact_legacy=True` (an argument of the calls concerned, or for all
of them `set_exact_legacy(True)`):

1. Position gradients of `rasterize` are exact. There, an absolute 1e-6 is added to (twice) the area of every triangle
   in clip units, which shrinks the gradient of small triangles.
2. The depth z/w has a gradient. There it has none.
3. Coverage is decided on vertices rounded to 1/256 pixel, not 1/16; pixels next to an edge may differ. Depth is
   compared in the type of pos, not as an integer of 32 bits.
4. DepthPeeler shows coincident surfaces one after the other. There, all but one are lost.
5. An index outside of the vertices, or a range outside of `tri`, raises (on the CPU). There, such triangles are
   skipped.
6. Triangles without area have rast_db 0, not NaN or infinity. rast_db is that of the weights before they are cut.
7. `antialias` follows the way from one pixel to the next over the mesh until it meets a silhouette, which need not
   belong to a triangle that shows at a pixel's centre; weighs edges by their normal instead of asking for at most 45
   degrees; and never adds more than a pixel's whole: results stay between the input colours. There, up to four terms
   are summed. At an edge of more than two triangles all are silhouettes.

What differs in both: an error is raised, never returned; `RasterizeGLContext` says that it is deprecated at log level
0; float64 holds ids as plain numbers. Not reproduced by `exact_legacy`: the rounding of cuts at the frustum (see
_legacy_rasterize.py), and the choice among more than two triangles at an edge.
"""

from ._antialias import TopologyHash, antialias, antialias_construct_topology_hash
from ._context import (
    RasterizeCudaContext,
    RasterizeGLContext,
    get_exact_legacy,
    get_log_level,
    set_exact_legacy,
    set_log_level,
)
from ._interpolate import interpolate
from ._layout import triangle_ids
from ._rasterize import DepthPeeler, rasterize
from ._texture import MipStack, texture, texture_construct_mip

__all__ = [
    "DepthPeeler",
    "MipStack",
    "RasterizeCudaContext",
    "RasterizeGLContext",
    "TopologyHash",
    "antialias",
    "antialias_construct_topology_hash",
    "get_exact_legacy",
    "get_log_level",
    "interpolate",
    "rasterize",
    "set_exact_legacy",
    "set_log_level",
    "texture",
    "texture_construct_mip",
    "triangle_ids",
]
