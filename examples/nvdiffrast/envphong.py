"""Learns an environment map and the color and exponent of a Phong highlight from pictures of a known, shiny object.

    python examples/nvdiffrast/envphong.py [--steps 5000] [--resolution 256] [--output envphong.png]

The object mirrors the environment: reflection vectors of vertices are interpolated with their screen-space derivatives
and look up a cube map with mips. Every step has a new pose and a new light.
"""

import argparse

import torch
from scenes import blob, projection, random_pose, save_pictures, to_clip, translation

import diffrender.compat.nvdiffrast as dr

TRUE_PHONG = (1.0, 0.8, 0.6, 25.0)  # color and exponent
SCALE = torch.tensor([1.0, 1.0, 1.0, 10.0])  # of the parameters that are fitted


def main(steps=5000, resolution=256, environment_size=64, seed=0, output="envphong.png"):
    """Relative error of the exponent, and the root mean square errors of the color and of the environment."""
    generator = torch.Generator().manual_seed(seed)
    glctx = dr.RasterizeCudaContext()
    tri, positions, normals, environment = blob(environment_size)
    phong = torch.tensor(TRUE_PHONG)
    environment_fit = torch.full_like(environment, 0.5).requires_grad_()
    phong_raw = torch.rand(4, generator=generator).requires_grad_()
    optimizer = torch.optim.Adam([environment_fit, phong_raw], lr=1e-2)

    def draw(glctx, camera_from_object):
        """rast, reflection vectors and their derivatives: what does not depend on the material."""
        pos = to_clip(projection(0.4, far=50) @ camera_from_object, positions)
        eye = torch.linalg.inv(camera_from_object)[:3, 3]
        view = torch.nn.functional.normalize(positions - eye, dim=1)
        reflected = view - 2 * (view * normals).sum(1, keepdim=True) * normals
        rast, rast_db = dr.rasterize(glctx, pos, tri, [resolution, resolution])
        vectors, vectors_da = dr.interpolate(reflected[None], rast, tri, rast_db=rast_db, diff_attrs="all")
        return rast, vectors, vectors_da

    def shade(drawn, light, faces, material):
        rast, vectors, vectors_da = drawn
        mirrored = dr.texture(
            faces[None], vectors, uv_da=vectors_da, filter_mode="linear-mipmap-linear", boundary_mode="cube"
        )
        cosine = -(torch.nn.functional.normalize(vectors, dim=-1) @ light)[..., None]
        # The power of nothing has no derivative to its exponent.
        highlight = torch.where(cosine > 0, cosine.clamp(min=1e-6) ** material[3], 0.0)
        return torch.where(rast[..., 3:] > 0, mirrored + material[:3] * highlight, 1.0)

    def exponent_error():
        return abs((phong_raw * SCALE)[3].item() / phong[3].item() - 1)

    for step in range(steps):
        drawn = draw(glctx, translation(0, 0, -3.5) @ random_pose(0.25, generator))
        light = torch.nn.functional.normalize(torch.randn(3, generator=generator), dim=0)
        target = shade(drawn, light, environment, phong)
        loss = ((shade(drawn, light, environment_fit, phong_raw * SCALE) - target) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 99:
            print(f"step {step + 1:4d}  loss {loss.item():.6f}  exponent off by {100 * exponent_error():.2f} %")

    with torch.no_grad():
        color_error = ((phong_raw * SCALE - phong)[:3] ** 2).mean().sqrt().item()
        environment_error = ((environment_fit - environment) ** 2).mean().sqrt().item()
        print(f"exponent off by {100 * exponent_error():.2f} %")
        print(f"root mean square error of the color {color_error:.4f}, of the environment {environment_error:.4f}")
        if output:
            drawn = draw(glctx, translation(0, 0, -3.5) @ random_pose(0.0, generator))
            light = torch.nn.functional.normalize(-drawn[1][0, resolution // 2, resolution // 2] + 0.3, dim=0)
            pictures = [
                shade(drawn, light, *p)[0] for p in ((environment, phong), (environment_fit, phong_raw * SCALE))
            ]
            save_pictures(output, *pictures)
            print(f"wrote {output}: the target, the fit")
    return exponent_error(), color_error, environment_error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--resolution", type=int, default=256)
    parser.add_argument("--environment-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="envphong.png")
    options = parser.parse_args()
    main(options.steps, options.resolution, options.environment_size, options.seed, options.output)
