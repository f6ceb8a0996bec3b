"""Reference of split_sum: the integrals over directions of light by the midpoint rule, and the interpolation of a
table in plain torch. Sources: course notes of Karis, SIGGRAPH 2013; the height-correlated Smith term of Heitz 2014."""

import math

import torch

F64 = torch.float64


def integrals(cosine: float, roughness: float, count: int = 800) -> tuple[float, float, float]:
    """Scale, bias and diffuse loss at one place, over light l in spherical coordinates about the normal.

    The viewer is at azimuth 0. The lobe of smooth surfaces is narrow: roughness below 0.2 needs a larger `count`.
    """
    theta = (torch.arange(count, dtype=F64) + 0.5) / count * (math.pi / 2)
    phi = (torch.arange(count, dtype=F64) + 0.5) / count * math.pi  # one half mirrors the other
    area = (math.pi / 2 / count) * (2 * math.pi / count) * theta.sin()[:, None]
    light = theta.cos()[:, None].expand(count, count)
    view_light = math.sqrt(1 - cosine**2) * theta.sin()[:, None] * phi.cos() + cosine * light
    half_length = (2 + 2 * view_light).sqrt()
    half, view_half = (light + cosine) / half_length, half_length / 2

    a2 = roughness**4
    density = a2 / (math.pi * (half**2 * (a2 - 1) + 1) ** 2)
    smith = 0.5 / (light * math.sqrt(cosine**2 * (1 - a2) + a2) + cosine * (light**2 * (1 - a2) + a2).sqrt())
    grazing = (1 - view_half) ** 5
    specular = density * smith * light * area
    return (
        float((specular * (1 - grazing)).sum()),
        float((specular * grazing).sum()),
        float((light / math.pi * area * grazing).sum()),
    )


def cubic(t: torch.Tensor) -> list[torch.Tensor]:
    """Weights of the four nodes around a place t in [0, 1) between the middle ones, for A = -0.75 (Keys 1981)."""
    a = -0.75

    def near(x):
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x):
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(1 + t), near(t), near(1 - t), far(2 - t)]


def look_up(table: torch.Tensor, cosine: torch.Tensor, roughness: torch.Tensor) -> torch.Tensor:
    """(N, 3) values of a (3, n + 2, n + 2) table with one ring beyond its n x n nodes, at (N,) places."""
    last = table.shape[-1] - 3
    column, row = 1 + last * cosine.clamp(1e-4, 1).sqrt(), 1 + last * roughness.clamp(0, 1)
    x, y = column.detach().floor().long(), row.detach().floor().long()
    total = 0
    for j, weight_y in enumerate(cubic(row - y)):
        for i, weight_x in enumerate(cubic(column - x)):
            r, c = ((k - 1 + d).clamp(0, last + 2) for k, d in ((y, j), (x, i)))
            total = total + table[:, r, c] * (weight_x * weight_y)
    return total.T
