"""Recovers the shape and the colors of a ring from pictures of it, the views shared out over processes.

    python examples/fit_views.py [OUTPUT.png]
    torchrun --nproc-per-node 2 examples/fit_views.py [OUTPUT.png]

Both give the same result: every rank renders its own views, and the gradients are summed. Prints the picture difference
on the way and writes a picture: target, start and result from one of the views. Needs the extra `fit` (scipy, imageio).
"""

import sys

import torch

import diffrender as dr
from diffrender import geometry
from diffrender.optim import AdamUniform, LaplacianPreconditioner

SIZE, VIEWS, STEPS = 96, 8, 60


def main(output: str = "fit_views.png", steps: int = STEPS) -> float:
    with dr.distributed.group() as group:
        ring = geometry.torus(0.7, 0.3, segments=40, tube_segments=20).to(group.device)
        target = ring.with_vertices(ring.vertices * torch.tensor([1.0, 1.3, 0.8], device=group.device))
        target = target.with_vertices(target.vertices, colors=0.5 + 0.4 * (6 * ring.vertices).sin())
        cameras = dr.Camera.perspective(fov_y_deg=40, width=SIZE, height=SIZE, device=group.device).look_at(
            geometry.orbit_eyes(VIEWS, 3.2, elevation_deg=35)
        )
        renderer = dr.Renderer((SIZE, SIZE), background=0.1)
        wanted = renderer(target, cameras).color

        # What differs from rank to rank is which views it renders; the denominator counts all of them.
        own = group.shard(VIEWS)
        preconditioner = LaplacianPreconditioner(ring.triangles, ring.vertex_count, strength=8.0)
        shape = preconditioner.to_parameters(ring.vertices).requires_grad_()
        colors = torch.full_like(ring.vertices, 0.5).requires_grad_()
        optimizers = [AdamUniform([shape], lr=0.01), torch.optim.Adam([colors], lr=0.03)]

        def guess() -> dr.Mesh:
            return ring.with_vertices(preconditioner.to_vertices(shape), colors=colors)

        start = renderer(guess(), cameras[0]).color.detach()
        difference = 0.0
        for step in range(steps):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = (renderer(guess(), cameras[own]).color - wanted[own]).square().sum() / wanted.numel()
            loss.backward()
            group.sum_gradients([shape, colors])
            for optimizer in optimizers:
                optimizer.step()
            difference = float(group.sum(loss))
            if group.is_first and (step % 10 == 0 or step == steps - 1):
                print(f"step {step:3d}  picture difference {difference:.6f}")

        if group.is_first:
            rows = [wanted[0], start[0], renderer(guess(), cameras[0]).color.detach()[0]]
            dr.save_image(output, torch.cat(rows, 1))
            print(f"{group.size} processes, {VIEWS} views; wrote {output}")
        return difference


if __name__ == "__main__":
    main(*sys.argv[1:2])
