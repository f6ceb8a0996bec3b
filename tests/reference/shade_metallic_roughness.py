"""Reference of shade_metallic_roughness: the formulas of glTF 2.0, appendix B, in plain torch float64."""

import functools
import math

import torch

from tests.reference.shade_common import dot, shade, unit


def metallic_roughness(n, v, to_light, material, minimum_roughness=0.045, diffuse_fresnel=True):
    albedo, metallic, roughness = material
    if to_light is None:
        return albedo
    half = unit(v + to_light)
    nl, nv, nh = dot(n, to_light), dot(n, v), dot(n, half)
    # v . half of unit vectors. Off the unit sphere, where only the raw table of lights can go, this form is the op's.
    vh = (v + to_light).square().sum(-1, keepdim=True).sqrt() / 2
    lit = (nl > 0) & (nv > 0)
    nl, nv = torch.where(lit, nl, 0), torch.where(lit, nv, 1)
    alpha = roughness.clamp(min=minimum_roughness) ** 2
    a2 = alpha**2
    distribution = a2 / (math.pi * (nh**2 * (a2 - 1) + 1) ** 2)
    nv_bounded = nv.clamp(min=1e-4)
    light_part = nl * (nv_bounded**2 * (1 - a2) + a2).sqrt()
    view_part = nv_bounded * (nl**2 * (1 - a2) + a2).sqrt()
    specular = distribution * 0.5 / (light_part + view_part)
    grazing = (1 - vh) ** 5
    metal = specular * (albedo + (1 - albedo) * grazing)
    fresnel = 0.04 + 0.96 * grazing
    diffuse = albedo / math.pi
    dielectric = (1 - (fresnel if diffuse_fresnel else 0)) * diffuse + fresnel * specular
    return torch.where(lit, (dielectric * (1 - metallic) + metal * metallic) * nl, 0)


def shade_metallic_roughness(
    positions, normals, albedo, metallic, roughness, types, values, *,
    minimum_roughness=0.045, diffuse_fresnel=True, **options,
):  # fmt: skip
    model = functools.partial(metallic_roughness, minimum_roughness=minimum_roughness, diffuse_fresnel=diffuse_fresnel)
    return shade(model, positions, normals, [albedo, metallic, roughness], types, values, **options)
