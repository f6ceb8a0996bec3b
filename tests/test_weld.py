"""geometry.weld and weld_vertices."""

import numpy as np
import pytest
import torch

import diffrender as dr
from diffrender import geometry

F64 = torch.float64


def soup_of(mesh: dr.Mesh, seed: int) -> tuple[dr.Mesh, torch.Tensor]:
    """Every triangle with vertices of its own, in random order; and the vertex of `mesh` that each one was."""
    generator = torch.Generator().manual_seed(seed)
    corners = mesh.triangles.long()[torch.randperm(mesh.triangle_count, generator=generator)].flatten()
    order = torch.randperm(len(corners), generator=generator)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    return dr.Mesh(mesh.vertices[corners[order]], place.reshape(-1, 3)), corners[order]


def clusters(points: torch.Tensor, distance: float) -> list[int]:
    """The lowest row that each row reaches by steps of at most `distance`: all pairs, one after the other."""
    near = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist") <= distance
    label = list(range(len(points)))
    for _ in points:
        label = [min(label[j] for j in torch.nonzero(row)[:, 0].tolist()) for row in near]
    return label


@pytest.mark.parametrize("make", [geometry.torus, lambda: geometry.icosphere(2), geometry.quad])
def test_weld_undoes_the_split_into_separate_triangles(make):
    mesh = make().to(F64).replace(texcoords=None)
    separate, origin = soup_of(mesh, 1)
    welded = geometry.weld(separate)
    assert welded.vertex_count == len(origin.unique())
    assert torch.equal(welded.vertices[welded.triangles.long()], separate.vertices[separate.triangles.long()])
    assert torch.equal(welded.edges().triangle_count.sort().values, mesh.edges().triangle_count.sort().values)
    first = [origin.tolist().index(v) for v in dict.fromkeys(origin.tolist())]
    assert torch.equal(welded.vertices, separate.vertices[first])  # the first of each place, in their order


def test_weld_leaves_a_welded_mesh_as_it_is():
    mesh = geometry.torus()
    welded = geometry.weld(mesh)
    for name in ("vertices", "triangles", "texcoords", "texcoord_triangles"):
        assert torch.equal(getattr(welded, name), getattr(mesh, name)), name


def test_weld_keeps_what_every_corner_looks_like():
    generator = torch.Generator().manual_seed(0)
    cube = geometry.cube()
    corners = cube.triangles.long().flatten()
    rows = torch.arange(36).reshape(12, 3)
    normals = cube.triangle_normals().repeat_interleave(3, 0)
    texcoords = torch.randint(0, 2, (36, 2), generator=generator).float()
    colors = (corners == 0).float()[:, None].expand(-1, 3).clone()
    colors[(corners == 7).nonzero()[0, 0]] = 0.5  # one corner of this vertex has another color: it stays apart
    ids = torch.arange(12) % 3
    apart = dr.Mesh(cube.vertices[corners], rows, texcoords=texcoords, normals=normals, colors=colors,
                    material=[dr.Material(x) for x in (0.1, 0.2, 0.3)], material_ids=ids)  # fmt: skip
    welded = geometry.weld(apart)
    assert (welded.vertex_count, len(welded.normals), len(welded.texcoords)) == (9, 6, 4)
    assert torch.equal(welded.colors[welded.triangles.long()], colors[rows])
    assert torch.equal(welded.normals[welded.normal_triangles.long()], normals[rows])
    assert torch.equal(welded.texcoords[welded.texcoord_triangles.long()], texcoords[rows])
    assert torch.equal(welded.material_ids, ids.int())
    smooth = welded.replace(normals=None, colors=None)
    assert geometry.weld(smooth).vertex_count == 8


def test_weld_leaves_out_triangles_that_use_a_vertex_twice():
    vertices = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [-0.0, 0, 0]])
    triangles = torch.tensor([[0, 3, 1], [0, 1, 2], [3, 2, 1]])
    mesh = dr.Mesh(vertices, triangles, material=[dr.Material(), None], material_ids=torch.tensor([0, 1, 0]))
    welded = geometry.weld(mesh)
    assert welded.triangles.tolist() == [[0, 1, 2], [0, 2, 1]]
    assert welded.material_ids.tolist() == [1, 0]
    rows, index = geometry.weld_vertices(vertices)
    assert (rows.tolist(), index.tolist()) == ([0, 1, 2], [0, 1, 2, 0])


def test_batches_weld_what_meets_in_every_item():
    first = torch.tensor([[0.0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0]])
    second = first.clone()
    second[3, 2] = 0.01
    assert geometry.weld_vertices(torch.stack([first, first]))[1].tolist() == [0, 0, 1, 1]
    assert geometry.weld_vertices(torch.stack([first, second]))[1].tolist() == [0, 0, 1, 2]
    assert geometry.weld_vertices(torch.stack([first, second]), distance=0.02)[1].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("distance", [0.004, 0.03, 0.1, 5.0])
def test_near_vertices_are_those_of_all_pairs(dtype, distance):
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        points = torch.randn(150, 3, generator=generator, dtype=dtype) / 4
        points[::7] = points[1::7][: len(points[::7])]  # some equal ones as well
        expected = clusters(points.double(), distance)
        rows, index = geometry.weld_vertices(points, distance=distance)
        assert rows[index].tolist() == expected
        kinds = torch.arange(150)[:, None] % 2
        rows, index = geometry.weld_vertices(points, distance=distance, attributes=kinds)
        assert (kinds[rows[index]] == kinds).all()


def test_chains_of_near_vertices_become_one():
    line = torch.zeros(1000, 3)
    line[:, 0] = torch.arange(1000) * 0.5
    line = line[torch.randperm(1000, generator=torch.Generator().manual_seed(0))]
    assert geometry.weld_vertices(line, distance=0.5)[0].tolist() == [0]
    assert len(geometry.weld_vertices(line, distance=0.49)[0]) == 1000


def test_points_that_are_not_finite_stay_alone():
    points = torch.tensor([[0.0, 0, 0], [float("nan"), 0, 0], [float("nan"), 0, 0], [float("inf"), 0, 0], [0.1, 0, 0]])
    assert geometry.weld_vertices(points, distance=0.2)[1].tolist() == [0, 1, 2, 3, 0]
    assert geometry.weld_vertices(points[1:4], distance=0.2)[1].tolist() == [0, 1, 2]
    assert geometry.weld_vertices(torch.zeros(0, 3), distance=0.2)[0].tolist() == []


def test_the_gradient_goes_to_the_first_of_each_place():
    vertices = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0]], requires_grad=True)
    welded = geometry.weld(dr.Mesh(vertices, torch.tensor([[0, 1, 2], [0, 2, 3]])))
    (grad,) = torch.autograd.grad(welded.vertices.sum(), vertices)
    assert grad.tolist() == [[1, 1, 1], [1, 1, 1], [1, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"distance": -1}, ValueError, "weld_vertices: distance must be a number, 0 or more, got -1"),
        ({"distance": float("inf")}, ValueError, "distance must be a number, 0 or more, got inf"),
        ({"vertices": torch.zeros(4, 2)}, ValueError, r"vertices must have shape \(V, 3\) or .* got \(4, 2\)"),
        ({"vertices": torch.zeros(4, 3).int()}, TypeError, "vertices must be float32 or float64, got torch.int32"),
        ({"attributes": torch.zeros(3, 1)}, ValueError, r"attributes must have one row per vertex \(4\), got \(3, 1\)"),
        (
            {"vertices": torch.rand(20_000, 3), "distance": 1.0},
            ValueError,
            "distance must be well below the length of edges, got 1, with .* pairs to try",
        ),
    ],
)
def test_weld_vertices_says_what_is_wrong(arguments, error, message):
    with pytest.raises(error, match=message):
        geometry.weld_vertices(**{"vertices": torch.zeros(4, 3), **arguments})


@pytest.mark.parametrize("distance", [1e-300, 1e-6, np.float32(0.1)])
def test_weld_vertices_takes_any_number_for_a_distance(distance):
    points = torch.tensor([[0.0, 0, 0], [1e15, 0, 0], [0, 0, 0], [0, 0, 3]])
    assert geometry.weld_vertices(points, distance=distance)[0].tolist() == [0, 1, 3]
    assert geometry.weld_vertices(torch.zeros(0, 3), distance=distance)[0].shape == (0,)


def test_a_welded_shape_holds_together_under_smoothed_steps():
    """A step on one corner of separate triangles reaches no other triangle."""
    separate, _ = soup_of(geometry.icosphere(2), 0)
    for mesh, moved in ((separate, 3), (geometry.weld(separate), 162)):
        step = torch.zeros_like(mesh.vertices)
        step[0, 0] = 1
        smoothed = dr.optim.LaplacianPreconditioner(mesh.triangles, mesh.vertex_count).to_vertices(step)
        assert int((smoothed[:, 0].abs() > 1e-9).sum()) == moved
