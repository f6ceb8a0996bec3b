"""Reference of shade_blinn_phong: normalised Blinn-Phong in plain torch float64."""

import math

import torch

from tests.reference.shade_common import dot, shade, unit


def blinn_phong(n, v, to_light, material):
    albedo, specular, shininess = material
    if to_light is None:
        return albedo
    nl, nh = dot(n, to_light), dot(n, unit(v + to_light))
    exponent = shininess.clamp(min=1)
    visible = (nl > 0) & (nh > 0)
    power = torch.where(visible, torch.where(visible, nh, 1) ** exponent, 0)
    return nl.relu() * (albedo / math.pi + specular * (exponent + 8) / (8 * math.pi) * power)


def shade_blinn_phong(positions, normals, albedo, specular, shininess, types, values, **options):
    return shade(blinn_phong, positions, normals, [albedo, specular, shininess], types, values, **options)
