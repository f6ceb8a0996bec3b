"""Contract table: one row per op, checked by test_contract*.py. A new op adds a file of rows/ and a line here.

A row (tests/ops/rows/base.py) gives small examples of the op as functions of its float arguments, the raw dispatcher
calls behind it, calls that have to fail with a given message, and calls on empty input.
"""

from tests.ops.rows import (
    antialias,
    antialias_segments,
    build_mips,
    composite,
    coverage,
    cube_from_lat_long,
    fragments_at,
    interpolate,
    irradiance_sh,
    perturb_normals,
    prefilter_environment,
    rasterize,
    shade_blinn_phong,
    shade_lambert,
    shade_metallic_roughness,
    texture,
    texture_cube,
    vertex_normals,
)
from tests.ops.rows.base import Contract, Example

__all__ = ["CONTRACTS", "Contract", "Example"]

CONTRACTS = [
    rasterize.contract(),
    fragments_at.contract(),
    interpolate.contract(),
    antialias.contract(),
    coverage.contract(),
    composite.contract(),
    antialias_segments.contract(),
    irradiance_sh.contract(),
    perturb_normals.contract(),
    shade_lambert.contract(),
    shade_metallic_roughness.contract(),
    shade_blinn_phong.contract(),
    texture.without_mips(),
    texture.with_mips(),
    build_mips.contract(),
    texture_cube.contract(),
    cube_from_lat_long.contract(),
    prefilter_environment.contract(),
    vertex_normals.contract(),
]
