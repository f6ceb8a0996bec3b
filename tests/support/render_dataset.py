"""A dataset whose items are rendered by the process that asks for them, for the workers of a DataLoader."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset

import diffrender as dr
from tests.support.lit_scene import SIZE, four_lights, lit_camera, lit_mesh, poses


class Views(Dataset):
    """Picture k and the gradient of its mean to the vertices, rendered on the CPU."""

    def __init__(self) -> None:
        self.mesh, self.camera, self.lights = lit_mesh(torch.float32), lit_camera(torch.float32), four_lights()
        self.renderer = dr.Renderer(SIZE, background=0.3)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        vertices = self.mesh.vertices.clone().requires_grad_()
        camera = self.camera.moved(poses(len(self), torch.float32)[index])
        color = self.renderer(self.mesh.with_vertices(vertices), camera, self.lights).color[0]
        color.mean().backward()
        assert vertices.grad is not None
        return color.detach(), vertices.grad
