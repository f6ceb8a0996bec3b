"""Turns a sphere into a cube that is known from six silhouettes only.

    python examples/sphere_to_cube.py [OUTPUT.png]

The smallest complete use of the library: a batch of cameras, a renderer whose silhouettes have gradients, the smoothed
variables of a mesh, an optimiser. Prints the silhouette difference and the overlap in a view that was not fitted, and
writes a picture: target, start and result from two sides. Needs the extra `fit` (scipy, imageio).
"""

import sys

import torch

import diffrender as dr
from diffrender import geometry
from diffrender.optim import AdamUniform, LaplacianPreconditioner

SIZE, STEPS = 96, 120


def main(output: str = "sphere_to_cube.png") -> float:
    cube = geometry.cube(1.2)
    turn = geometry.rotation([1.0, 2.0, 0.5], 0.6)
    target = cube.with_vertices(geometry.transform_points(turn, cube.vertices))
    start = geometry.icosphere(4, radius=0.8)

    lens = dr.Camera.perspective(fov_y_deg=40, width=SIZE, height=SIZE)
    axes = torch.cat([torch.eye(3), -torch.eye(3)])
    cameras = lens.look_at(3.0 * axes)
    silhouettes = dr.Renderer((SIZE, SIZE), edges="pairs", outputs=("alpha",))
    wanted = silhouettes(target, cameras).alpha

    preconditioner = LaplacianPreconditioner(start.triangles, start.vertex_count, strength=10.0)
    parameters = preconditioner.to_parameters(start.vertices).requires_grad_()
    optimizer = AdamUniform([parameters], lr=0.01)
    for step in range(STEPS):
        shape = start.with_vertices(preconditioner.to_vertices(parameters))
        loss = dr.losses.mse(silhouettes(shape, cameras).alpha, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == STEPS - 1:
            print(f"step {step:3d}  silhouette difference {loss.item():.5f}")
    result = start.with_vertices(preconditioner.to_vertices(parameters).detach())

    unseen = lens.look_at([1.7, 1.7, 1.7])
    masks = dr.Renderer((SIZE, SIZE), edges=None, outputs=("mask",))
    overlap = dr.metrics.mask_iou(masks(result, unseen).mask, masks(target, unseen).mask).item()
    print(f"overlap in a view that was not fitted: {overlap:.3f}")

    views = lens.scaled(2).look_at(torch.tensor([[2.0, 1.2, 2.0], [-1.5, 2.4, 1.0]]))
    lit = dr.Renderer((2 * SIZE, 2 * SIZE), edges="pairs", background=1.0)
    light = geometry.safe_normalize(torch.tensor([0.3, 1.0, 0.6]))
    rows = []
    for mesh in (target, start, result):
        # One color per triangle: every triangle gets corners of its own.
        shade = 0.1 + 0.7 * (mesh.triangle_normals() * light).sum(-1, keepdim=True).clamp(min=0)
        corners = torch.stack(geometry.triangle_corners(mesh.vertices, mesh.triangles), 1).reshape(-1, 3)
        colors = shade.repeat_interleave(3, 0).expand(-1, 3)
        flat = dr.Mesh(corners, torch.arange(len(corners)).reshape(-1, 3), colors=colors)
        rows.append(torch.cat(list(lit(flat, views).color), 1))
    dr.save_image(output, torch.cat(rows, 0))
    print(f"wrote {output}")
    return overlap


if __name__ == "__main__":
    main(*sys.argv[1:])
