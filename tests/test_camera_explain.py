"""Camera.explain."""

import pytest
import torch

import diffrender as dr
from diffrender import geometry


def camera(**options) -> dr.Camera:
    return dr.Camera.perspective(**{"fov_y_deg": 90, "width": 64, "height": 64, "near": 1.0, "far": 10.0, **options})


# x, y, z of the camera's frame, which looks along -z: with 90 degrees |x| and |y| are seen up to the depth.
PLACES = {
    "2 of 2 points are in view.": [[0.0, 0, -2], [1.9, -1.9, -2]],
    "1 of 3 points are in view; 2 behind the camera.": [[0.0, 0, 5], [0, 0, -2], [3, 0, 0]],
    "0 of 1 points are in view; 1 nearer than near=1.": [[0.0, 0, -0.5]],
    "0 of 2 points are in view; 2 beyond far=10.": [[0.0, 0, -11], [0, 0, -1e6]],
    "0 of 4 points are in view; 4 beside the picture.": [[3.0, 0, -2], [-3, 0, -2], [0, 3, -2], [0, -3, -2]],
    "1 of 6 points are in view; 1 not finite, 1 behind the camera, 1 nearer than near=1, 1 beyond far=10, 1 beside the "
    "picture.": [[float("nan"), 0, 0], [0, 0, 1], [0, 0, -0.1], [0, 0, -20], [0, 30, -5], [0, 0, -5]],
}


@pytest.mark.parametrize("text", list(PLACES))
def test_every_reason_is_counted_once(text):
    assert camera().explain(torch.tensor(PLACES[text])).startswith(text)


@pytest.mark.parametrize(
    "seen_by",
    [
        camera(),
        camera(near=2.5),
        camera(far=3.4),
        dr.Camera.orthographic(half_height=0.8, width=64, height=64, near=2.4, far=3.3),
        camera(width=48, fov_y_deg=20),
        dr.Camera.from_opencv([[40.0, 0, 32], [0, 40, 32], [0, 0, 1]], torch.eye(3), torch.zeros(3), 64, 64,
                              distortion=[0.1, 0.02, 0.0, 0.0], near=2.6, far=3.3),
    ],
)  # fmt: skip
def test_points_are_in_view_exactly_where_they_draw(seen_by):
    """Each vertex of a sphere as a tiny triangle of its own, facing the camera."""
    points = geometry.icosphere(2).vertices + 0.01
    looking = seen_by.look_at([0.0, 0.0, 3.0])
    size = 2e-3 * torch.tensor([[0.0, 1, 0], [-1, -1, 0], [1, -1, 0]])
    clip = looking.clip_positions((points[:, None] + size).reshape(-1, 3))
    triangles = torch.arange(len(clip)).view(-1, 3)
    alone = torch.stack([torch.arange(len(points)), torch.ones(len(points), dtype=torch.int64)], -1)
    seen = dr.coverage(clip, triangles, (looking.height, looking.width), ranges=alone)
    shown = len(seen.item.unique())
    assert shown > 0
    text = looking.explain(points)
    assert text.startswith(f"{shown} of {len(points)} points are in view"), text
    depth = looking.depth(points)
    assert text.endswith(f"They lie at depths from {float(depth.min()):.4g} to {float(depth.max()):.4g}.")


def test_batches_give_a_line_for_each_camera():
    eyes = torch.tensor([[0.0, 0.0, 3.0], [0.0, 0.0, 300.0]])
    lines = camera().look_at(eyes).explain(geometry.cube().vertices).split("\n")
    assert lines[0].startswith("0: 8 of 8 points are in view. They lie at depths from 2 to 4.")
    assert lines[1].startswith("1: 0 of 8 points are in view; 8 beyond far=10.")
    each = torch.stack([geometry.cube().vertices, geometry.cube().vertices + 100])
    lines = camera().look_at(eyes[0]).explain(each).split("\n")
    assert [line[:10] for line in lines] == ["0: 8 of 8 ", "1: 0 of 8 "]


def test_a_fisheye_measures_from_the_eye_and_sees_sideways():
    turned = torch.tensor([1.0, -1.0, -1.0]).diag()  # from our axes to those of OpenCV
    fisheye = dr.Camera.from_opencv([[15.0, 0, 32], [0, 15, 32], [0, 0, 1]], turned, torch.zeros(3), 64, 64,
                                    distortion=[0.0, 0.0, 0.0, 0.0], fisheye=True, near=1.0, far=10.0)  # fmt: skip
    text = fisheye.explain(torch.tensor([[2.0, 0.0, 0.1], [0.0, 0.0, -0.5], [0.0, 0.0, -20.0]]))
    assert text == (
        "1 of 3 points are in view; 1 nearer than near=1, 1 beyond far=10. They lie at distances from 0.5 to 20."
    )
