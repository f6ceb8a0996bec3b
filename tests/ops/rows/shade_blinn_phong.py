"""Row of the contract table: shade_blinn_phong."""

import torch

import diffrender as dr
from tests.ops.rows import shade
from tests.ops.rows.base import F64, BadCall, Contract
from tests.ops.rows.shade import EYE, checked_mask, color_map, surface
from tests.reference.shade_blinn_phong import shade_blinn_phong as reference


def material(batch=1, size=shade.SIZE):
    shininess = 1.5 + 20 * color_map(batch, size, seed=27, channels=1)
    return {"albedo": color_map(batch, size), "specular": color_map(batch, size, seed=37), "shininess": shininess}


def contract() -> Contract:
    op = torch.ops.diffrender
    return Contract(
        name="shade_blinn_phong",
        examples=[
            example("all lights"),
            example("two items, lights and viewer of each", batch=2, light_batch=2,
                    viewer=torch.stack([EYE, EYE + 0.3])),
            example("two items, everything shared but the normals", batch=2, shared=True),
            example("constants of each item, masked", batch=2, constant=True, mask=checked_mask(2)),
            example("constants for all", constant=True, kinds="pp"),
            example("one side only", two_sided=False),
            example("orthographic, geometric normals", orthographic=True,
                    geometric_normals=torch.tensor([0.0, 0.0, -1.0], dtype=F64)),
            example("one pixel", size=(1, 1)),
        ],
        dispatcher_calls=lambda dtype: shade.dispatcher_calls(
            op.shade_blinn_phong.default, op.shade_blinn_phong_backward.default,
            list(material(2).values()), dtype, (),
            [x[:, :1, :1] for x in material().values()],
        ),
        bad_calls=[
            *shade.bad_calls(
                "shade_blinn_phong", dr.shade_blinn_phong, list(material().values()), needs_view=True
            ),
            *own_bad_calls(),
        ],
        empty_calls=shade.empty_calls(dr.shade_blinn_phong, [3, 3, 1]),
        large=example("large", batch=2, size=(90, 131)),
        saves=("positions", "normals", "albedo", "specular", "shininess", "camera_position", "lights"),
    )  # fmt: skip


def own_bad_calls():
    positions, normals = surface()
    albedo, specular, shininess = material().values()

    def bad(label, message, *values):
        def call():
            return dr.shade_blinn_phong(positions, normals, *values, shade.lights("d"), camera_position=EYE)

        return BadCall(label, call, ValueError, f"shade_blinn_phong: {message}")

    return [
        bad("shininess without its channel", r"shininess must have shape \(B, H, W, 1\).* Add an axis of length 1",
            albedo, specular, shininess[..., 0]),
        bad("specular of one channel", r"specular must have shape \(B, H, W, 3\)", albedo, shininess, shininess),
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
    return shade.shading_example(label, dr.shade_blinn_phong, reference, arguments, **options)
