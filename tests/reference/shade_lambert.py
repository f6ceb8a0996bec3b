"""Reference of shade_lambert: albedo / pi times the cosine, in plain torch float64."""

import math

from tests.reference.shade_common import dot, shade


def lambert(n, v, to_light, material):
    (albedo,) = material
    if to_light is None:
        return albedo
    return albedo / math.pi * dot(n, to_light).relu()


def shade_lambert(positions, normals, albedo, types, values, **options):
    return shade(lambert, positions, normals, [albedo], types, values, **options)
