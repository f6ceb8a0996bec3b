"""Section `special`: how calls run. Streams, CUDA graphs, host synchronisation, deterministic sums, huge tensors.

Ops whose results have a size that depends on values (coverage) wait for the device to learn it, so they can not be
captured; of them it is only reported that they do. In a dry run every check runs on the CPU, where streams
and graphs are replaced by plain calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import diffrender as dr
from tools.gpu.section import Section, Skipped, require
from tools.gpu.workload import Call, calls, renderer_calls


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def all_equal(values: list[Tensor], truth: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(values, truth, strict=True))


def check_streams(call: Call, device: str) -> str:
    """A launch on another stream than the current one would read the zeros that were there before."""
    with deterministic():
        truth = call.run(*call.inputs)
        if device == "cpu":
            require(all_equal(call.run(*call.inputs), truth), "two runs differ")
            return "no streams on the CPU"
        busy = torch.randn(2048, 2048)
        stream = torch.cuda.Stream()
        for _ in range(3):
            late = [torch.zeros_like(x) for x in call.inputs]
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                for _ in range(20):
                    busy = (busy @ busy).clamp(-1, 1)
                for target, source in zip(late, call.inputs, strict=True):
                    target.copy_(source)
                values = call.run(*late)
            stream.synchronize()
            require(all_equal(values, truth), "results on a side stream differ")
    return ""


def check_synchronisation(call: Call, device: str) -> str:
    """No op waits for the device, but for those that say so."""
    call.run(*call.inputs)  # the first call may load modules
    if device == "cpu":
        return "nothing to wait for on the CPU"
    torch.cuda.set_sync_debug_mode("error")
    try:
        call.run(*call.inputs)
    except RuntimeError as error:
        if (call.ragged or call.layered) and "synchroniz" in str(error):
            return "waits for the device, as documented"
        raise
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "does not wait"


def check_graph(call: Call, device: str) -> str:
    """A captured forward and backward pass gives the eager results for other inputs than it was captured with."""
    if call.ragged:
        raise Skipped("waits for the device: can not be captured")
    with deterministic():
        other = [x * 1.0001 for x in call.inputs]
        truth = call.run(*other)
        static = [x.clone() for x in call.inputs]
        if device == "cpu":
            for target, source in zip(static, other, strict=True):
                target.copy_(source)
            require(all_equal(call.run(*static), truth), "two runs differ")
            return "no graphs on the CPU"
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call.run(*static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            values = call.run(*static)
        for target, source in zip(static, other, strict=True):
            target.copy_(source)
        graph.replay()
        torch.cuda.synchronize()
        require(all_equal(values, truth), "the replayed graph differs from the eager call")
    return "captured"


def check_deterministic(call: Call) -> str:
    with deterministic():
        first = call.run(*call.inputs)
        for _ in range(4):
            require(all_equal(call.run(*call.inputs), first), "two runs differ in their bits")
    return ""


def check_second_device() -> str:
    """Every stage on a device that is not the current one."""
    from tools.gpu.compare import difference, scene_results  # makes the rows of the table, after calls() chose a device

    if torch.cuda.device_count() < 2:
        raise Skipped("one device only")
    for seed in range(5):
        first, second = (scene_results(seed, torch.float64, f"cuda:{index}") for index in (0, 1))
        require(torch.cuda.current_device() == 0, "the current device changed")
        for name, truth in first.items():
            require(second[name].device.index == 1, f"{name} is on another device")
            require(difference(second[name], truth) < 1e-9, f"{name} differs")
    return "5 scenes"


def is_close(values: list[float], truth: list[float], tolerance: float) -> bool:
    return all(abs(a - b) < tolerance for a, b in zip(values, truth, strict=True))


def check_huge(device: str, side: int) -> str:
    """More than 2^31 elements in derivatives, attributes and gradients, and more than 2^31 / 4 pixels."""
    channels = 5
    if device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        # id, barycentrics, depth, derivatives, packed minimum; values and their gradient; gradient of barycentrics.
        need = side * side * 4 * (1 + 2 + 1 + 4 + 2 + 2 * channels + 2)
        if free < 1.1 * need:
            raise Skipped(f"needs {need / 2**30:.0f} GiB, {free / 2**30:.0f} are free")
    ndc = [(-1.0, -1.0, 0.1), (3.0, -1.0, 0.5), (-1.0, 3.0, 0.9)]
    corners = torch.tensor([[x, y, z, 1.0] for x, y, z in ndc], device=device)
    triangles = torch.tensor([[0, 1, 2]], dtype=torch.int32, device=device)
    f = dr.rasterize(corners, triangles, (side, side), derivatives=True)
    require(bool((f.triangle_id[0, -4:] == 0).all()), "rows at the end are not covered")
    # The triangle covers the frame, so barycentrics are linear in the pixel and known in closed form.
    last = (side - 0.5) / side
    b0, b1 = f.barycentrics[0, -1, -1].tolist()
    require(is_close([b0, b1], [0.5, last / 2], 1e-5), f"the last pixel has barycentrics {b0}, {b1}")
    steps = (f.derivatives[0, -1, -1] * side).tolist()
    require(is_close(steps, [-0.5, 0.5, 0.5, 0.0], 1e-4), f"the last pixel has derivatives {steps}")
    attributes = torch.arange(3.0 * channels, device=device).view(3, channels).requires_grad_()
    weights = f.barycentrics.detach().requires_grad_()
    f = f._replace(barycentrics=weights, derivatives=None)
    values = dr.interpolate(attributes, triangles, f)
    known = [b0 * c + b1 * (c + channels) + (1 - b0 - b1) * (c + 2 * channels) for c in range(channels)]
    require(is_close(values[0, -1, -1].tolist(), known, 1e-4), "the values of the last pixel are wrong")
    grad = torch.zeros_like(values)
    grad[0, -1, -1] = 1.0  # only the last pixel contributes
    to_attributes, to_weights = torch.autograd.grad(values, [attributes, weights], grad)
    for corner, share in zip(to_attributes.tolist(), (b0, b1, 1 - b0 - b1), strict=True):
        require(is_close(corner, [share] * channels, 1e-5), "the gradient of the attributes is wrong")
    require(to_weights[0, -1, -1].tolist() == [-50.0, -25.0], "the gradient of the last barycentrics is wrong")
    return f"{side} x {side} pixels, {side * side * channels:.2e} values"


def main() -> None:
    section = Section()
    everything = calls(section.device)
    if section.dry_run:
        everything = everything[:3]
    everything += renderer_calls(section.device)
    device = section.device
    for call in everything:
        checks: dict[str, Callable[[], str]] = {
            "side stream": lambda call=call: check_streams(call, device),
            "host synchronisation": lambda call=call: check_synchronisation(call, device),
            "graph": lambda call=call: check_graph(call, device),
            "deterministic": lambda call=call: check_deterministic(call),
        }
        for name, check in checks.items():
            section.check(f"{name}: {call.name}", check)
    section.check("second device", check_second_device)
    section.check("more than 2^31 elements", lambda: check_huge(device, 64 if section.dry_run else 23172))


if __name__ == "__main__":
    main()
