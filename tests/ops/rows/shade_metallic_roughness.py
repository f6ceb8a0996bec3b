"""Row of the contract table: shade_metallic_roughness."""

import torch

import diffrender as dr
from tests.ops.rows import shade
from tests.ops.rows.base import F64, BadCall, Contract
from tests.ops.rows.shade import EYE, checked_mask, color_map, surface
from tests.reference.shade_metallic_roughness import shade_metallic_roughness as reference


def material(batch=1, size=shade.SIZE):
    metallic, roughness = (color_map(batch, size, seed=k, channels=1) for k in (27, 37))
    return {"albedo": color_map(batch, size), "metallic": metallic, "roughness": roughness}


def contract() -> Contract:
    op = torch.ops.diffrender
    return Contract(
        name="shade_metallic_roughness",
        examples=[
            example("all lights"),
            example("two items, lights and viewer of each", batch=2, light_batch=2,
                    viewer=torch.stack([EYE, EYE + 0.3])),
            example("two items, everything shared but the normals", batch=2, shared=True),
            example("constants of each item, masked", batch=2, constant=True, mask=checked_mask(2)),
            example("constants for all", constant=True, kinds="pp"),
            example("one side only, no diffuse fresnel", two_sided=False, diffuse_fresnel=False),
            example("many are below the smallest roughness", minimum_roughness=0.5),
            example("orthographic, geometric normals", orthographic=True,
                    geometric_normals=torch.tensor([0.0, 0.0, -1.0], dtype=F64)),
            example("one pixel", size=(1, 1)),
        ],
        dispatcher_calls=lambda dtype: shade.dispatcher_calls(
            op.shade_metallic_roughness.default, op.shade_metallic_roughness_backward.default,
            [*material(2).values(), color_map(2, channels=1)], dtype, (0.045, True),
            [*(x[:, :1, :1] for x in material().values()), torch.zeros(1, 1, 1, 1)],
        ),
        bad_calls=[
            *shade.bad_calls(
                "shade_metallic_roughness", dr.shade_metallic_roughness, list(material().values()), needs_view=True
            ),
            *own_bad_calls(),
        ],
        empty_calls=shade.empty_calls(dr.shade_metallic_roughness, [3, 1, 1]),
        large=example("large", batch=2, size=(90, 131)),
        saves=("positions", "normals", "albedo", "metallic", "roughness", "camera_position", "lights"),
    )  # fmt: skip


def own_bad_calls():
    positions, normals = surface()
    albedo, metallic, roughness = material().values()

    def bad(label, message, *values, **options):
        def call():
            return dr.shade_metallic_roughness(
                positions, normals, *values, shade.lights("d"), camera_position=EYE, **options
            )

        return BadCall(label, call, ValueError, f"shade_metallic_roughness: {message}")

    return [
        bad("roughness without its channel", r"roughness must have shape \(B, H, W, 1\).* Add an axis of length 1",
            albedo, metallic, roughness[..., 0]),
        bad("metallic of three channels", r"metallic must have shape \(B, H, W, 1\)", albedo, albedo, roughness),
        bad("no smallest roughness", r"minimum_roughness must lie in \(0, 1\], got 0.0", albedo, metallic, roughness,
            minimum_roughness=0.0),
    ]  # fmt: skip


def example(
    label, *, batch=1, size=shade.SIZE, shared=False, constant=False, orthographic=False, viewer=EYE, **options
):
    """`shared`: pictures without a batch axis; `constant`: one material per item."""
    positions, normals = surface(batch, size)
    maps = material(batch, size)
    if shared:
        positions, maps = positions[0], {name: value[0] for name, value in maps.items()}
    if constant:
        maps = {name: value[:, 0, 0] if batch > 1 else value[0, 0, 0] for name, value in maps.items()}
    view = {"camera_position": viewer}
    if orthographic:
        view = {"view_directions": torch.tensor([0.1, 0.2, 1.0], dtype=F64)}
    arguments = {"positions": positions, "normals": normals, **maps, **view}
    return shade.shading_example(label, dr.shade_metallic_roughness, reference, arguments, **options)
