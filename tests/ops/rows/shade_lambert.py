"""Row of the contract table: shade_lambert."""

import torch

import diffrender as dr
from tests.ops.rows import shade
from tests.ops.rows.base import F64, Contract
from tests.ops.rows.shade import EYE, checked_mask, color_map, surface
from tests.reference.shade_lambert import shade_lambert as reference


def contract() -> Contract:
    op = torch.ops.diffrender
    return Contract(
        name="shade_lambert",
        examples=[
            example("all lights", camera_position=EYE),
            example("two items, lights of each", batch=2, light_batch=2, camera_position=EYE),
            example("two items, everything shared but the normals", batch=2, shared=True, camera_position=EYE),
            example("constant albedo", constant=True, camera_position=EYE),
            example("constant albedo of each item, masked", batch=2, constant=True, camera_position=EYE,
                    mask=checked_mask(2)),
            example("one side only", two_sided=False),
            example("orthographic, geometric normals", view_directions=torch.tensor([0.1, 0.2, 1.0], dtype=F64),
                    geometric_normals=torch.tensor([0.0, 0.0, -1.0], dtype=F64)),
            example("one pixel", size=(1, 1), camera_position=EYE),
        ],
        dispatcher_calls=lambda dtype: shade.dispatcher_calls(
            op.shade_lambert.default, op.shade_lambert_backward.default, [color_map(2)], dtype, (0.0,),
            [color_map()[:, :1, :1]],
        ),
        bad_calls=[
            *shade.bad_calls("shade_lambert", dr.shade_lambert, [color_map()], needs_view=True),
            *leak_calls(),
        ],
        empty_calls=shade.empty_calls(dr.shade_lambert, [3]),
        large=example("large", batch=2, size=(90, 131), camera_position=EYE),
        saves=("positions", "normals", "albedo", "lights"),
    )  # fmt: skip


def leak_calls():
    positions, normals = surface()
    call = shade.BadCall(
        "leak above 1",
        lambda: dr.shade_lambert(positions, normals, color_map(), shade.lights("d"), camera_position=EYE, leak=1.5),
        ValueError,
        r"shade_lambert: leak must lie in \[0, 1\], got 1.5",
    )
    return [call]


def example(label, *, batch=1, size=shade.SIZE, shared=False, constant=False, **options):
    """`shared`: pictures without a batch axis; `constant`: one albedo per item."""
    positions, normals = surface(batch, size)
    albedo = color_map(batch, size)
    if shared:
        positions, albedo = positions[0], albedo[0]
    if constant:
        albedo = albedo[:, 0, 0] if batch > 1 else albedo[0, 0, 0]
    arguments = {"positions": positions, "normals": normals, "albedo": albedo}
    return shade.shading_example(label, dr.shade_lambert, reference, arguments, **options)
