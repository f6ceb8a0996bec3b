"""Textures of one size, for formats that keep several properties in the channels of one picture."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from diffrender.ops.texture import texture


def to_one_size(pictures: Sequence[Tensor], wrap: str | tuple[str, str]) -> list[Tensor]:
    """(H, W, C) pictures, each as high as the highest and as wide as the widest: nothing gets smaller.

    What is added lies on the line between the texels around, as a linear lookup there reads it; `wrap` says what is
    beyond the border, as in `dr.texture`. Gradients: to the pictures.
    """
    height, width = (max(picture.shape[axis] for picture in pictures) for axis in (0, 1))

    def enlarged(picture: Tensor) -> Tensor:
        if tuple(picture.shape[:2]) == (height, width):
            return picture
        v, u = ((torch.arange(n, dtype=picture.dtype, device=picture.device) + 0.5) / n for n in (height, width))
        texcoords = torch.stack(torch.meshgrid(u, v, indexing="xy"), -1)
        return texture(picture, texcoords[None], wrap=wrap)[0]

    return [enlarged(picture) for picture in pictures]
