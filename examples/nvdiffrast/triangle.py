"""One triangle with the corners red, green and blue: the smallest script for the functions of nvdiffrast.

python examples/nvdiffrast/triangle.py [OUTPUT.png]
"""

import sys

import torch
from scenes import save_pictures

import diffrender.compat.nvdiffrast as dr


def main(output="triangle.png"):
    """Number of covered pixels: 20706, as an edge through 204 pixel centres belongs to one side only."""
    glctx = dr.RasterizeCudaContext()
    pos = torch.tensor([[[-0.8, -0.8, 0, 1], [0.8, -0.8, 0, 1], [-0.8, 0.8, 0, 1]]])
    col = torch.eye(3)[None]
    tri = torch.tensor([[0, 1, 2]], dtype=torch.int32)

    rast, _ = dr.rasterize(glctx, pos, tri, resolution=[256, 256])
    out, _ = dr.interpolate(col, rast, tri)

    covered = int((rast[..., 3] > 0).sum())
    print(f"{covered} pixels")
    if output:
        save_pictures(output, out[0])
        print(f"wrote {output}")
    return covered


if __name__ == "__main__":
    main(*sys.argv[1:])
