"""Image losses: how far pictures are apart."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from diffrender import _checks
from diffrender.color import linear_to_srgb, tonemap


def l1(image: Tensor, target: Tensor, *, weight: Tensor | None = None) -> Tensor:
    """Mean absolute difference.

    Example:
        >>> float(l1(torch.zeros(2, 2, 1), torch.full((2, 2, 1), 0.5)))
        0.5
    """
    return weighted_mean((check_images("l1", image, target)).abs(), weight)


def mse(image: Tensor, target: Tensor, *, weight: Tensor | None = None) -> Tensor:
    """Mean squared difference."""
    return weighted_mean(check_images("mse", image, target).square(), weight)


def smooth_l1(image: Tensor, target: Tensor, *, width: float = 0.1, weight: Tensor | None = None) -> Tensor:
    """Mean of |d| - width / 2 beyond |d| = width and d^2 / (2 width) within: robust, and smooth at a perfect match."""
    difference = check_images("smooth_l1", image, target).abs()
    if not width > 0:
        raise ValueError(f"smooth_l1: width must be positive, got {width}.")
    inner = difference.clamp(max=width)
    return weighted_mean(inner * (difference - inner / 2) / width, weight)


def relative_mse(image: Tensor, target: Tensor, *, epsilon: float = 1e-2, weight: Tensor | None = None) -> Tensor:
    """Mean of d^2 / (target^2 + epsilon), for linear high-range pictures: bright spots do not outweigh the rest."""
    difference = check_images("relative_mse", image, target)
    return weighted_mean(difference.square() / (target.detach().square() + epsilon), weight)


def smape(image: Tensor, target: Tensor, *, epsilon: float = 1e-2, weight: Tensor | None = None) -> Tensor:
    """Symmetric relative difference, mean of |d| / (|image| + |target| + epsilon): at most 1, whatever the range.

    The denominator is differentiated too, so far-off pixels pull less than near ones; it is a loss to end with.
    """
    difference = check_images("smape", image, target)
    return weighted_mean(difference.abs() / (image.abs() + target.abs() + epsilon), weight)


def log_srgb_l1(image: Tensor, target: Tensor, *, weight: Tensor | None = None) -> Tensor:
    """Mean absolute difference after the tone curve srgb(log(1 + x)), for linear pictures of high range.

    Negative values are mirrored (`dr.tonemap`), so that they have a gradient.
    """
    check_images("log_srgb_l1", image, target)
    curves = [linear_to_srgb(tonemap(picture, "log")) for picture in (image, target)]
    return weighted_mean((curves[0] - curves[1]).abs(), weight)


def ssim(image: Tensor, target: Tensor, *, data_range: float = 1.0, window: int = 11, sigma: float = 1.5) -> Tensor:
    """1 - structural similarity (Wang et al. 2004): mean over channels and all windows that lie within the picture.

    Args:
        image, target: (..., H, W, C), encoded for display rather than linear, with values in [0, data_range].
        window: odd side of the Gaussian window in pixels.
        sigma: its standard deviation.

    Returns:
        Between 0 (equal) and 2.

    Example:
        >>> picture = torch.rand(16, 16, 3)
        >>> abs(float(ssim(picture, picture))) < 1e-6
        True
    """
    check_images("ssim", image, target)
    height, width, _ = image.shape[-3:]
    if window % 2 == 0 or window < 1:
        raise ValueError(f"ssim: window must be odd and positive, got {window}.")
    if min(height, width) < window:
        raise ValueError(f"ssim: image must be at least {window} pixels wide and high, got {width} x {height}.")
    offset = torch.arange(window, dtype=image.dtype, device=image.device) - window // 2
    kernel = torch.exp(-0.5 * (offset / sigma) ** 2)
    kernel = kernel / kernel.sum()
    # All five means in one pass, channel by channel.
    stack = torch.stack([image, target, image * image, target * target, image * target])
    planes = stack.movedim(-1, -3).reshape(-1, 1, height, width)
    means = torch.nn.functional.conv2d(planes, kernel.view(1, 1, -1, 1))
    means = torch.nn.functional.conv2d(means, kernel.view(1, 1, 1, -1))
    mean_x, mean_y, square_x, square_y, product = means.unflatten(0, (5, -1)).unbind(0)
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    covariance = product - mean_x * mean_y
    variances = square_x - mean_x.square() + square_y - mean_y.square()
    luminance = (2 * mean_x * mean_y + c1) / (mean_x.square() + mean_y.square() + c1)
    return 1 - (luminance * (2 * covariance + c2) / (variances + c2)).mean()


def lpips(image: Tensor, target: Tensor, network: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Mean perceptual distance by a network, for example `lpips.LPIPS(net="vgg")` of the package `lpips`.

    Args:
        image, target: (..., H, W, 3), encoded for display, in [0, 1].
        network: takes two batches (N, 3, H, W) in [-1, 1] and gives their distances; its weights are the caller's.

    Example:
        >>> distance = lambda a, b: (a - b).square().mean((1, 2, 3))
        >>> float(lpips(torch.zeros(4, 4, 3), torch.ones(4, 4, 3), distance))
        4.0
    """
    check_images("lpips", image, target)
    if image.shape[-1] != 3:
        raise ValueError(f"lpips: image must have 3 channels, got {image.shape[-1]}.")
    batches = [(2 * x - 1).reshape(-1, *x.shape[-3:]).permute(0, 3, 1, 2) for x in (image, target)]
    return network(batches[0], batches[1]).mean()


def mask_iou(mask: Tensor, target: Tensor) -> Tensor:
    """1 - intersection over union of soft masks (..., H, W, 1) in [0, 1], each picture on its own, then the mean.

    Two empty masks agree: loss 0, gradient 0.
    """
    check_images("mask_iou", mask, target)
    intersection = (mask * target).sum((-3, -2, -1))
    union = (mask + target - mask * target).sum((-3, -2, -1))
    is_empty = union <= 0
    return torch.where(is_empty, 0, 1 - intersection / torch.where(is_empty, 1, union)).mean()


def mask_bce(mask: Tensor, target: Tensor, *, epsilon: float = 1e-3, weight: Tensor | None = None) -> Tensor:
    """Binary cross-entropy of soft masks in [0, 1].

    The mask is drawn into [epsilon, 1 - epsilon] first, linearly: a pixel that is exactly 0 and should be 1 then costs
    -log(epsilon) instead of infinity and is pulled with 1 / epsilon. A perfect match costs about epsilon.

    Example:
        >>> round(float(mask_bce(torch.full((1, 1, 1), 0.5), torch.ones(1, 1, 1))), 4)
        0.6931
    """
    check_images("mask_bce", mask, target)
    if not 0 < epsilon < 0.5:
        raise ValueError(f"mask_bce: epsilon must lie in (0, 0.5), got {epsilon}.")
    inside = epsilon + (1 - 2 * epsilon) * mask
    return weighted_mean(-(target * inside.log() + (1 - target) * (1 - inside).log()), weight)


def check_images(name: str, image: Tensor, target: Tensor) -> Tensor:
    """Their difference."""
    for argument, picture in (("image", image), ("target", target)):
        _checks.check_picture(name, argument, picture)
    # Broadcasting a (H, W, 1) target over a (B, H, W, 3) picture is nearly always a mistake, and a silent one.
    if image.shape != target.shape:
        is_single = image.shape[1:] == target.shape
        hint = " The same for all of the batch: target.expand(image.shape)." if is_single else ""
        raise ValueError(
            f"{name}: target must have the shape of image {tuple(image.shape)}, got {tuple(target.shape)}.{hint}"
        )
    return image - target


def weighted_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    if weight is None:
        return values.mean()
    sizes = zip(reversed(weight.shape), reversed(values.shape), strict=False)
    if weight.ndim > values.ndim or any(size not in (1, whole) for size, whole in sizes):
        expected = f"expand to the shape of the picture {_checks.shape_text(values)}"
        hint = "A mask needs a channel axis: weight[..., None]."
        _checks.fail(ValueError, "losses", "weight", expected, _checks.shape_text(weight), hint)
    weight = weight.to(values.dtype).expand_as(values)
    total = weight.sum()
    return torch.where(total == 0, 0, (values * weight).sum() / torch.where(total == 0, 1, total))
