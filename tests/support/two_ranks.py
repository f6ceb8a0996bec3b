"""What two ranks of tests/test_distributed.py do: python -m torch.distributed.run -m tests.support.two_ranks OUT."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

import diffrender as dr
from tests.support.lit_scene import SIZE, four_lights, lit_camera, lit_mesh, poses, weights

# Odd, so that shares differ; and fewer than there may be ranks.
VIEWS = (3, 1)


def gradients(views: int, group: dr.distributed.Group, own: slice) -> list[Tensor]:
    """Of a sum over some of the views, after the sum over ranks."""
    mesh = lit_mesh()
    vertices = mesh.vertices.clone().requires_grad_()
    albedo = mesh.material.albedo.clone().requires_grad_()
    shown = mesh.with_vertices(vertices).replace(material=mesh.material.replace(albedo=albedo))
    if own.stop > own.start:
        cameras = lit_camera().moved(poses(views)[own])
        color = dr.Renderer(SIZE, background=0.3)(shown, cameras, four_lights()).color
        ((color * weights(views)[own]).sum() / weights(views).numel()).backward()
    group.sum_gradients([vertices, albedo])
    return [x.grad for x in (vertices, albedo) if x.grad is not None]


class Model(torch.nn.Module):
    """Renders views of a shape that is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.vertices = torch.nn.Parameter(lit_mesh().vertices)

    def forward(self, twists: Tensor) -> Tensor:
        mesh = lit_mesh().with_vertices(self.vertices)
        return dr.Renderer(SIZE, background=0.3)(mesh, lit_camera().moved(twists), four_lights()).color


def main(out: str) -> None:
    with dr.distributed.group() as group:
        assert group.size == 2
        found: dict[str, object] = {}
        for views in VIEWS:
            found[f"{views} views"] = gradients(views, group, group.shard(views))
        found["sum"] = group.sum(torch.tensor(float(group.rank + 1)))
        start = torch.full((3, 2), float(group.rank)).T
        group.broadcast([start])
        found["start"] = start
        model = torch.nn.parallel.DistributedDataParallel(Model())
        own = group.shard(4)
        (group.size * (model(poses(4)[own]) * weights(4)[own]).sum()).backward()
        found["ddp"] = model.module.vertices.grad
        torch.save(found, f"{out}/rank{group.rank}.pt")
        del model  # it holds on to the process group, which is about to close
    assert not torch.distributed.is_initialized()


if __name__ == "__main__":
    main(sys.argv[1])
