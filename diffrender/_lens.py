"""Lens models: where a direction of the camera frame appears, with distortion, for every direction there is.

Directions are (X, Y, Z) with x right, y DOWN and z forward, as OpenCV has them, because its coefficients are made for
that; results are normalised image coordinates (x, y), in units of the focal length from the principal point.

radial_tangential, coefficients (k1, k2, p1, p2[, k3[, k4, k5, k6]]), with x = X/Z, y = Y/Z, t = x^2 + y^2:

    g  = (1 + k1 t + k2 t^2 + k3 t^3) / (1 + k4 t + k5 t^2 + k6 t^3)
    x' = x g + 2 p1 x y + p2 (t + 2 x^2)        y' = y g + p1 (t + 2 y^2) + 2 p2 x y

fisheye, coefficients (k1, k2, k3, k4), with a = angle to the axis and u = (X, Y) / |(X, Y)|:

    (x', y') = a (1 + k1 a^2 + k2 a^4 + k3 a^6 + k4 a^8) u

Both polynomials fold back: beyond some radius the image moves inwards again, and scenery from far outside would
appear a second time in the middle. `radial_reach` finds that radius for each camera, and outside of it the image goes
on outwards, slowly and in a straight line, so that nothing comes back. The radius itself is a constant for autograd.

A rasterizer wants homogeneous positions. For radial_tangential w = Z: beyond the reach r0 the image is
e + s (r - r0) u, and w times it is e Z + s (|(X, Y)| - r0 Z) u, which goes on smoothly through Z = 0 to behind the
camera, where the near plane cuts. A fisheye sees behind itself; there, w = distance from the eye.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MODELS = {"radial_tangential": (4, 5, 8), "fisheye": (4,)}

# Of the image radius beyond the fold, where it would turn back; small, so that triangles that cross the fold end there.
_SLOPE_BEYOND = 0.02
_SAMPLES = 256  # per search for the fold; two searches, so that it is found to 1 / _SAMPLES^2 of the range
_ANGLES = 16
_FARTHEST = 100.0  # tan of the largest angle that a radial_tangential model is asked for


def padded(distortion: Tensor, model: str) -> tuple[Tensor, ...]:
    """The coefficients as tensors (..., 1), missing ones zero: 8 of radial_tangential, 4 of fisheye."""
    missing = (8 if model == "radial_tangential" else 4) - distortion.shape[-1]
    full = torch.cat([distortion, distortion.new_zeros(*distortion.shape[:-1], missing)], -1)
    return full.unsqueeze(-1).unbind(-2)


def homogeneous_image(directions: Tensor, distortion: Tensor, model: str, frame_radius: Tensor) -> Tensor:
    """(..., N, 3) directions -> (..., N, 3): w x', w y', w, with (x', y') the normalised image and w as above.

    Args:
        distortion: (..., K), one set for all N.
        frame_radius: (..., 1) normalised distance of the farthest corner of the frame from the principal point.
    """
    x, y, z = directions.unbind(-1)
    if model == "fisheye":
        return _fisheye(x, y, z, padded(distortion, model))

    coefficients = padded(distortion, model)
    reach = radial_reach(distortion, frame_radius)  # (..., 1)
    squared = x * x + y * y
    is_within = (z > 0) & (squared <= (reach * z) ** 2)
    depth = torch.where(is_within, z, 1)
    inner_x, inner_y = distort(torch.where(is_within, x, 0) / depth, torch.where(is_within, y, 0) / depth, coefficients)

    # Outside: from the last good point e of the same direction on, straight outwards, and times w.
    has_direction = ~is_within & (squared > 0)
    length = torch.where(has_direction, squared, 1).sqrt()
    toward_x, toward_y = torch.where(has_direction, x, 0) / length, torch.where(has_direction, y, 0) / length
    edge_x, edge_y = distort(toward_x * reach, toward_y * reach, coefficients)
    slope = _radial_slope(reach, coefficients).clamp(min=_SLOPE_BEYOND)
    beyond = slope * (length - reach * z)
    image_x = torch.where(is_within, inner_x * z, edge_x * z + beyond * toward_x)
    image_y = torch.where(is_within, inner_y * z, edge_y * z + beyond * toward_y)
    return torch.stack([image_x, image_y, z], -1)


def is_beyond_reach(directions: Tensor, distortion: Tensor, model: str, frame_radius: Tensor) -> Tensor:
    """(..., N) whether directions (..., N, 3) lie where the lens folds back; for radial_tangential, behind it too."""
    x, y, z = directions.unbind(-1)
    length = torch.hypot(x, y)
    if model == "fisheye":
        return torch.atan2(length, z) > _fisheye_reach(padded(distortion, model))
    return length > radial_reach(distortion, frame_radius) * z


def distort(x: Tensor, y: Tensor, coefficients: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """The radial_tangential formulas above, without any guard."""
    _, _, p1, p2, *_ = coefficients
    t = x * x + y * y
    factor = _radial_factor(t, coefficients)
    image_x = x * factor + 2 * p1 * x * y + p2 * (t + 2 * x * x)
    image_y = y * factor + p1 * (t + 2 * y * y) + 2 * p2 * x * y
    return image_x, image_y


def undistorted_direction(image: Tensor, distortion: Tensor, model: str, frame_radius: Tensor) -> Tensor:
    """Unit directions (..., N, 3) that appear at normalised image points (..., N, 2); NaN where none does.

    Gradients:
        To image and distortion, exact: the root is found without them, then two Newton steps with them leave an error
        of the fourth order in any change of the inputs, so first and second derivatives are right.
    """
    coefficients = padded(distortion, model)
    if model == "fisheye":
        return _fisheye_direction(image, coefficients)
    target_x, target_y = image.unbind(-1)
    with torch.no_grad():
        reach = radial_reach(distortion, frame_radius)
        # The radial part by its table, which cannot leave the branch that starts in the middle.
        table = torch.linspace(0, 1, _SAMPLES, dtype=image.dtype, device=image.device) * reach
        table_image = (table * _radial_factor(table * table, coefficients)).contiguous()
        table = table.expand_as(table_image)
        length = torch.hypot(target_x, target_y)
        radius = _interpolated(length, table_image, table)
        scale = torch.where(length > 0, radius / torch.where(length > 0, length, 1), 1)
        x, y = target_x * scale, target_y * scale
        for _ in range(12):
            x, y = _newton(x, y, target_x, target_y, coefficients)
        # Steps beyond the reach would have found another branch: there is no ray.
        found_x, found_y = distort(x, y, coefficients)
        error = torch.hypot(found_x - target_x, found_y - target_y)
        tolerance = 1e3 * torch.finfo(image.dtype).eps * (1 + length)
        is_seen = (error <= tolerance) & (torch.hypot(x, y) <= reach * (1 + 1e-3))
    for _ in range(2):
        x, y = _newton(x, y, target_x, target_y, coefficients)
    direction = torch.stack([x, y, torch.ones_like(x)], -1)
    direction = direction / (direction * direction).sum(-1, keepdim=True).sqrt()
    return torch.where(is_seen.unsqueeze(-1), direction, math.nan)


def radial_reach(distortion: Tensor, frame_radius: Tensor) -> Tensor:
    """(..., 1) normalised radius up to which radial_tangential neither folds back nor leaves the frame far behind."""
    with torch.no_grad():
        coefficients = tuple(c.unsqueeze(-1) for c in padded(distortion, "radial_tangential"))  # (..., 1, 1)
        angle = torch.arange(_ANGLES, dtype=distortion.dtype, device=distortion.device) * (2 * math.pi / _ANGLES)
        cosine, sine = angle.cos().unsqueeze(-1), angle.sin().unsqueeze(-1)  # (_ANGLES, 1)
        farthest_image = 8 * frame_radius + 1

        def is_bad(radius: Tensor) -> Tensor:  # (..., samples) -> (..., samples)
            along = radius.unsqueeze(-2)
            (xx, xy), (_, yy) = _jacobian(along * cosine, along * sine, coefficients)
            folds = ((xx * yy - xy * xy) <= 0).any(-2)
            t = (along * along).squeeze(-2)
            flat = tuple(c.squeeze(-1) for c in coefficients)
            has_pole = _denominator(t, flat) <= 0
            return folds | has_pole | (radius * _radial_factor(t, flat) > farthest_image)

        step = torch.linspace(0, 1, _SAMPLES, dtype=distortion.dtype, device=distortion.device)
        first = torch.tan(step * math.atan(_FARTHEST)).expand(*distortion.shape[:-1], _SAMPLES)
        low, high = _first_change(first, is_bad)
        low, _ = _first_change(low + (high - low) * step, is_bad)
        return low


def _first_change(samples: Tensor, is_bad) -> tuple[Tensor, Tensor]:
    """The last sample (..., 1) before the first bad one, and that one; the last two where none is bad."""
    bad = is_bad(samples)
    bad = torch.cat([bad[..., :-1], torch.ones_like(bad[..., :1])], -1)
    index = bad.long().argmax(-1, keepdim=True)
    none_bad = (bad.sum(-1, keepdim=True) == 1) & ~is_bad(samples[..., -1:])
    low = torch.take_along_dim(samples, (index - 1).clamp(min=0), -1)
    high = torch.take_along_dim(samples, index, -1)
    return torch.where(none_bad, high, low), high


def _numerator(t: Tensor, coefficients: tuple[Tensor, ...]) -> Tensor:
    k1, k2, _, _, k3, *_ = coefficients
    return 1 + t * (k1 + t * (k2 + t * k3))


def _denominator(t: Tensor, coefficients: tuple[Tensor, ...]) -> Tensor:
    *_, k4, k5, k6 = coefficients
    return 1 + t * (k4 + t * (k5 + t * k6))


def _radial_factor(t: Tensor, coefficients: tuple[Tensor, ...]) -> Tensor:
    return _numerator(t, coefficients) / _denominator(t, coefficients)


def _radial_factor_slope(t: Tensor, coefficients: tuple[Tensor, ...]) -> Tensor:
    """dg/dt."""
    k1, k2, _, _, k3, k4, k5, k6 = coefficients
    numerator, denominator = _numerator(t, coefficients), _denominator(t, coefficients)
    numerator_slope, denominator_slope = k1 + t * (2 * k2 + t * 3 * k3), k4 + t * (2 * k5 + t * 3 * k6)
    return (numerator_slope - numerator / denominator * denominator_slope) / denominator


def _radial_slope(r: Tensor, coefficients: tuple[Tensor, ...]) -> Tensor:
    """d(r g)/dr."""
    return _radial_factor(r * r, coefficients) + 2 * r * r * _radial_factor_slope(r * r, coefficients)


def _jacobian(x: Tensor, y: Tensor, coefficients: tuple[Tensor, ...]) -> tuple[tuple[Tensor, Tensor], ...]:
    """d(x', y') / d(x, y); symmetric."""
    _, _, p1, p2, *_ = coefficients
    t = x * x + y * y
    factor, slope = _radial_factor(t, coefficients), _radial_factor_slope(t, coefficients)
    xx = factor + 2 * x * x * slope + 2 * p1 * y + 6 * p2 * x
    xy = 2 * x * y * slope + 2 * p1 * x + 2 * p2 * y
    yy = factor + 2 * y * y * slope + 6 * p1 * y + 2 * p2 * x
    return (xx, xy), (xy, yy)


def _newton(x: Tensor, y: Tensor, target_x: Tensor, target_y: Tensor, coefficients: tuple[Tensor, ...]):
    image_x, image_y = distort(x, y, coefficients)
    (xx, xy), (_, yy) = _jacobian(x, y, coefficients)
    determinant = xx * yy - xy * xy
    determinant = torch.where(determinant == 0, 1, determinant)
    error_x, error_y = image_x - target_x, image_y - target_y
    return x - (yy * error_x - xy * error_y) / determinant, y - (xx * error_y - xy * error_x) / determinant


def _interpolated(query: Tensor, xs: Tensor, ys: Tensor) -> Tensor:
    """Piecewise linear function through ascending (..., S) xs and ys at (..., N) queries."""
    batch = torch.broadcast_shapes(query.shape[:-1], xs.shape[:-1])
    query, xs, ys = query.expand(*batch, -1), xs.expand(*batch, -1), ys.expand(*batch, -1)
    right = torch.searchsorted(xs.contiguous(), query.contiguous()).clamp(1, xs.shape[-1] - 1)
    x0, x1 = torch.take_along_dim(xs, right - 1, -1), torch.take_along_dim(xs, right, -1)
    y0, y1 = torch.take_along_dim(ys, right - 1, -1), torch.take_along_dim(ys, right, -1)
    weight = ((query - x0) / torch.where(x1 > x0, x1 - x0, 1)).clamp(0, 1)
    return y0 + weight * (y1 - y0)


# Fisheye --------------------------------------------------------------------------------------------------------------


def _fisheye(x: Tensor, y: Tensor, z: Tensor, coefficients: tuple[Tensor, ...]) -> Tensor:
    squared = x * x + y * y
    # angle / |(x, y)| as the series of atan near the axis: a root has no derivative there.
    is_small = (z > 0) & (squared < (0.02 * z) ** 2)
    axis_depth = torch.where(is_small, z, 1)
    ratio = torch.where(is_small, squared, 0) / axis_depth**2
    series = (1 - ratio * (1 / 3 - ratio * (1 / 5 - ratio * (1 / 7 - ratio / 9)))) / axis_depth
    is_plain = ~is_small & (squared > 0)
    length = torch.where(is_plain, squared, 1).sqrt()
    angle_over_length = torch.where(is_small, series, torch.atan2(length, torch.where(is_small, 1, z)) / length)
    angle_squared = angle_over_length**2 * squared

    reach = _fisheye_reach(coefficients)
    is_within = angle_squared <= reach**2
    inner = angle_over_length * _fisheye_factor(torch.where(is_within, angle_squared, 0), coefficients)
    edge = reach * _fisheye_factor(reach**2, coefficients)
    outer = (edge + _SLOPE_BEYOND * (angle_over_length * length - reach)) / length
    scale = torch.where(is_within, inner, outer)
    distance_squared = squared + z * z
    is_somewhere = distance_squared > 0
    distance = torch.where(is_somewhere, torch.where(is_somewhere, distance_squared, 1).sqrt(), 0)
    return torch.stack([x * scale * distance, y * scale * distance, distance], -1)


def _fisheye_factor(a: Tensor, coefficients: tuple[Tensor, ...]) -> Tensor:
    """1 + k1 a + k2 a^2 + k3 a^3 + k4 a^4, a the squared angle."""
    k1, k2, k3, k4 = coefficients
    return 1 + a * (k1 + a * (k2 + a * (k3 + a * k4)))


def _fisheye_slope(angle: Tensor, coefficients: tuple[Tensor, ...]) -> Tensor:
    """Derivative of the image radius by the angle."""
    k1, k2, k3, k4 = coefficients
    a = angle * angle
    return 1 + a * (3 * k1 + a * (5 * k2 + a * (7 * k3 + a * 9 * k4)))


def _fisheye_reach(coefficients: tuple[Tensor, ...]) -> Tensor:
    """(..., 1) angle up to which the fisheye polynomial rises; at most pi."""
    with torch.no_grad():

        def is_bad(angle: Tensor) -> Tensor:
            return _fisheye_slope(angle, coefficients) <= 0

        step = torch.linspace(0, 1, _SAMPLES, dtype=coefficients[0].dtype, device=coefficients[0].device)
        low, high = _first_change((math.pi * step).expand(*coefficients[0].shape[:-1], _SAMPLES), is_bad)
        low, _ = _first_change(low + (high - low) * step, is_bad)
        return low


def _fisheye_direction(image: Tensor, coefficients: tuple[Tensor, ...]) -> Tensor:
    x, y = image.unbind(-1)
    squared = x * x + y * y
    has_direction = squared > 0
    length = torch.where(has_direction, squared, 1).sqrt()
    with torch.no_grad():
        reach = _fisheye_reach(coefficients)
        table = torch.linspace(0, 1, _SAMPLES, dtype=image.dtype, device=image.device) * reach
        table_image = table * _fisheye_factor(table * table, coefficients)
        angle = _interpolated(length, table_image, table.expand_as(table_image))
        for _ in range(8):
            angle = _fisheye_newton(angle, length, coefficients)
        error = (angle * _fisheye_factor(angle * angle, coefficients) - length).abs()
        is_seen = ~has_direction | ((error <= 1e3 * torch.finfo(image.dtype).eps) & (angle <= reach * (1 + 1e-3)))
    for _ in range(2):
        angle = _fisheye_newton(angle, length, coefficients)
    # sin(angle) / length is 1 in the middle, where the length was replaced.
    scale = torch.where(has_direction, angle.sin() / length, 1)
    direction = torch.stack([x * scale, y * scale, torch.where(has_direction, angle.cos(), 1)], -1)
    return torch.where(is_seen.unsqueeze(-1), direction, math.nan)


def _fisheye_newton(angle: Tensor, length: Tensor, coefficients: tuple[Tensor, ...]) -> Tensor:
    error = angle * _fisheye_factor(angle * angle, coefficients) - length
    slope = _fisheye_slope(angle, coefficients)
    return angle - error / torch.where(slope == 0, 1, slope)
