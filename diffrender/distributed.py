"""Views shared out over processes: every rank renders its own, and the gradients add up to those of one process.

    with dr.distributed.group() as group:              # torchrun --nproc-per-node 2 script.py
        own = group.shard(len(cameras))                # a slice: this rank's views
        vertices = start.vertices.to(group.device).requires_grad_()
        for step in range(steps):
            color = renderer(mesh.with_vertices(vertices), cameras[own]).color
            loss = (color - targets[own]).square().sum() / targets.numel()
            loss.backward()
            group.sum_gradients([vertices])
            optimizer.step()

The loss has to be a sum over views, with its denominator taken over all of them (a mean over the own views would weigh
ranks with few views more). Then the summed gradient is that of one process, but for the order of additions, and the
same on every rank bit by bit, so that parameters stay equal. A rank may have no view at all: it then adds nothing.

Started without torchrun, a group has one rank, and everything here costs nothing. `DistributedDataParallel` works too,
but takes the mean: multiply the loss by the number of ranks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from . import _checks


@dataclass(frozen=True)
class Group:
    """The ranks that work together, seen from one of them; `group` makes it.

    Attributes:
        rank: of this process, from 0.
        size: number of ranks.
        device: where this rank renders.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this rank is the one to print and to write files."""
        return self.rank == 0

    def shard(self, count: int) -> slice:
        """This rank's part of `count` views: neighbours, in the order of the ranks, their numbers one apart at most.

        Example:
            >>> [dr.distributed.Group(rank, 3, torch.device("cpu")).shard(7) for rank in range(3)]
            [slice(0, 3, None), slice(3, 5, None), slice(5, 7, None)]
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            _checks.fail(ValueError, "Group.shard", "count", "be an int of at least 0", repr(count))
        least, more = divmod(count, self.size)
        first = self.rank * least + min(self.rank, more)
        return slice(first, first + least + (self.rank < more))

    @torch.no_grad()
    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replaces every `.grad` by its sum over the ranks; one that is None counts as zero, and is there afterwards.

        Every rank has to call it, with tensors of the same shapes in the same order. All of one type travel together.

        Raises:
            TypeError: for a parameter that is no tensor which requires a gradient.
        """
        buckets: dict[torch.dtype, list[Tensor]] = {}
        for parameter in parameters:
            if not (isinstance(parameter, Tensor) and parameter.requires_grad):
                actual = "one that does not" if isinstance(parameter, Tensor) else type(parameter).__name__
                _checks.fail(TypeError, "Group.sum_gradients", "parameters", "be tensors that require grad", actual)
            buckets.setdefault(parameter.dtype, []).append(parameter)
        if self.size == 1:
            return
        for bucket in buckets.values():
            for parameter in bucket:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            grads = [parameter.grad for parameter in bucket if parameter.grad is not None]
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            dist.all_reduce(flat)
            for grad, total in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
                grad.copy_(total.view(grad.shape))

    @torch.no_grad()
    def sum(self, value: Tensor) -> Tensor:
        """Sum of a tensor over the ranks, the same on all of them; a new tensor without gradient."""
        total = value.detach().clone()
        if self.size > 1:
            dist.all_reduce(total)
        return total

    @torch.no_grad()
    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copies the values of the first rank to all others, in place: the same random start for all."""
        if self.size == 1:
            return
        for tensor in tensors:
            dense = tensor.detach().contiguous()
            dist.broadcast(dense, 0)
            tensor.copy_(dense)


@contextlib.contextmanager
def group(backend: str | None = None) -> Iterator[Group]:
    """The processes that torchrun started; one rank where it did not.

    Args:
        backend: of torch.distributed; None takes "nccl" on GPUs and "gloo" on CPUs.

    Yields:
        Group. On GPUs each rank has the one of its LOCAL_RANK, and it is made current. A process group that exists
        already is used and left alone; otherwise one is made, and closed at the end.

    Raises:
        RuntimeError: from torch.distributed, if ranks do not find each other.

    Example:
        >>> with dr.distributed.group() as group:
        ...     group.size, group.shard(5)
        (1, slice(0, 5, None))
    """
    own = not (dist.is_available() and dist.is_initialized())
    if own and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Group(0, 1, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        return
    if torch.cuda.is_available() and backend != "gloo":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    if own:
        dist.init_process_group(backend or ("nccl" if device.type == "cuda" else "gloo"))
    try:
        yield Group(dist.get_rank(), dist.get_world_size(), device)
        if own:
            dist.barrier()  # nobody leaves while another still counts on it
    finally:
        if own:
            dist.destroy_process_group()
