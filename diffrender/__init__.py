"""Differentiable rendering of triangle meshes for PyTorch, on CPU and CUDA."""

from . import _library

_library.load()

from . import compat, distributed, geometry, io, losses, metrics, optim  # noqa: E402
from ._checks import set_checks  # noqa: E402
from .camera import Camera  # noqa: E402
from .color import linear_to_srgb, over, srgb_to_linear, tonemap, unpremultiply  # noqa: E402
from .environment import EnvironmentLight, PrefilteredEnvironment  # noqa: E402
from .geometry import Mesh  # noqa: E402
from .host_memory import keep_freed_memory  # noqa: E402
from .io import load_image, load_mesh, save_image, save_mesh  # noqa: E402
from .lights import (  # noqa: E402
    AmbientLight,
    DirectionalLight,
    PackedLights,
    PointLight,
    SpotLight,
    pack_lights,
)
from .materials import Material, MaterialSample  # noqa: E402
from .ops.antialias import antialias  # noqa: E402
from .ops.build_mips import build_mips  # noqa: E402
from .ops.composite import composite  # noqa: E402
from .ops.coverage import Coverage, coverage  # noqa: E402
from .ops.cube_from_lat_long import cube_from_lat_long  # noqa: E402
from .ops.fragments_at import fragments_at  # noqa: E402
from .ops.interpolate import interpolate  # noqa: E402
from .ops.irradiance_sh import irradiance_sh, sh_from_environment, window_sh  # noqa: E402
from .ops.perturb_normals import perturb_normals  # noqa: E402
from .ops.prefilter_environment import prefilter_environment  # noqa: E402
from .ops.rasterize import Fragments, rasterize  # noqa: E402
from .ops.shade_blinn_phong import shade_blinn_phong  # noqa: E402
from .ops.shade_lambert import shade_lambert  # noqa: E402
from .ops.shade_metallic_roughness import (  # noqa: E402
    roughness_from_unbounded,
    shade_metallic_roughness,
    unbounded_from_roughness,
)
from .ops.split_sum import split_sum  # noqa: E402
from .ops.texture import texture  # noqa: E402
from .ops.texture_cube import texture_cube  # noqa: E402
from .ops.topology import edge_topology  # noqa: E402
from .recompute import saved_bytes  # noqa: E402
from .renderer import Renderer, RenderResult  # noqa: E402
from .view import frame_camera, studio_lights  # noqa: E402

__all__ = [
    "AmbientLight",
    "Camera",
    "Coverage",
    "DirectionalLight",
    "EnvironmentLight",
    "Fragments",
    "Material",
    "MaterialSample",
    "Mesh",
    "PackedLights",
    "PointLight",
    "PrefilteredEnvironment",
    "RenderResult",
    "Renderer",
    "SpotLight",
    "antialias",
    "build_mips",
    "compat",
    "composite",
    "coverage",
    "cube_from_lat_long",
    "distributed",
    "edge_topology",
    "fragments_at",
    "frame_camera",
    "geometry",
    "interpolate",
    "io",
    "irradiance_sh",
    "keep_freed_memory",
    "linear_to_srgb",
    "load_image",
    "load_mesh",
    "losses",
    "metrics",
    "optim",
    "over",
    "pack_lights",
    "perturb_normals",
    "prefilter_environment",
    "rasterize",
    "roughness_from_unbounded",
    "save_image",
    "save_mesh",
    "saved_bytes",
    "set_checks",
    "sh_from_environment",
    "shade_blinn_phong",
    "shade_lambert",
    "shade_metallic_roughness",
    "split_sum",
    "srgb_to_linear",
    "studio_lights",
    "texture",
    "texture_cube",
    "tonemap",
    "unbounded_from_roughness",
    "unpremultiply",
    "window_sh",
]

__version__ = "0.1.0"
