"""Optimising vertex positions in large steps: B. Nicolet, A. Jacobson, W. Jakob, "Large Steps in Inverse Rendering of
Geometry", ACM Transactions on Graphics 40(6), 2021.

Image gradients touch few vertices and change from one to the next; followed plainly they crumple a mesh. The paper's
cure is a change of variables: optimise u = (I + strength * L) v, with L the Laplacian of the mesh, and recover
v = (I + strength * L)^-1 u. A step along the gradient of u is a step of v that was smoothed twice, and not damped as a
whole: no penalty pulls the shape together. Adam's division by a scale of its own for every coordinate would undo the
smoothing; AdamUniform divides by one scale for all.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from diffrender._autograd import can_decide
from diffrender._extras import require
from diffrender.geometry.topology import laplacian_matrix, unique_edges


class AdamUniform(torch.optim.Optimizer):
    """Adam with one step size for all entries of a tensor: the largest second moment, as in the paper.

    Args:
        params: tensors, or parameter groups.
        lr: about the distance by which the fastest entry moves per step.
        betas: decay of the running means of the gradient and of its square.
        epsilon: added to the scale, so that a zero gradient moves nothing.

    Example:
        >>> x = torch.tensor([1.0, 10.0], requires_grad=True)
        >>> optimizer = AdamUniform([x], lr=0.1)
        >>> (x * torch.tensor([1.0, 4.0])).sum().backward()
        >>> optimizer.step()
        >>> [round(value, 3) for value in x.tolist()]
        [0.975, 9.9]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-12,
    ):
        if not lr >= 0:
            raise ValueError(f"AdamUniform: lr must be at least 0, got {lr}.")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"AdamUniform: betas must be at least 0 and below 1, got {betas}.")
        super().__init__(params, {"lr": lr, "betas": betas, "epsilon": epsilon})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step along the gradients in `.grad`; tensors without a gradient stay."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    # A tensor, so that a CUDA graph counts on.
                    state["step"] = torch.zeros((), dtype=torch.float64, device=parameter.device)
                    state["mean"] = torch.zeros_like(parameter)
                    state["squared_mean"] = torch.zeros_like(parameter)
                state["step"] += 1
                mean = state["mean"].lerp_(parameter.grad, 1 - beta1)
                squared_mean = (
                    state["squared_mean"].mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
                )
                # Both running means start from 0: dividing by 1 - beta^t removes that bias.
                scale = (squared_mean.max() / (1 - beta2 ** state["step"])).sqrt() + group["epsilon"]
                parameter.sub_(mean / scale * (group["lr"] / (1 - beta1 ** state["step"])))
        return loss


class LaplacianPreconditioner:
    """The change of variables u = (I + strength * L) v between vertices v and well-behaved parameters u.

    Args:
        triangles: (T, 3) indices of one mesh.
        vertex_count: V.
        strength: how far a step spreads, 0 not at all; about 10 to 50 is useful. Spreading reaches about
            sqrt(strength) edges.
        solver: "direct" factorises the matrix once with scipy (CPU, extra `fit`), then each solve is fast and exact to
            float64; "cg" is conjugate gradients in torch, on any device; default: "direct" for CPU triangles, "cg" for
            others.
        dtype: of the matrix that "cg" and `to_parameters` use.

    Example:
        >>> from diffrender.geometry import icosphere
        >>> sphere = icosphere(1)
        >>> preconditioner = LaplacianPreconditioner(sphere.triangles, sphere.vertex_count, strength=20.0)
        >>> parameters = preconditioner.to_parameters(sphere.vertices).requires_grad_()
        >>> bool((preconditioner.to_vertices(parameters) - sphere.vertices).abs().max() < 1e-5)
        True
    """

    def __init__(
        self,
        triangles: Tensor,
        vertex_count: int,
        *,
        strength: float = 20.0,
        solver: str | None = None,
        dtype: torch.dtype = torch.float32,
    ):
        if not strength >= 0:
            raise ValueError(f"LaplacianPreconditioner: strength must be at least 0, got {strength}.")
        if solver is None:
            solver = "direct" if triangles.device.type == "cpu" else "cg"
        if solver not in ("direct", "cg"):
            raise ValueError(f'LaplacianPreconditioner: solver must be "direct" or "cg", got {solver!r}.')
        laplacian = laplacian_matrix(unique_edges(triangles), vertex_count, torch.float64)
        row, column = laplacian.indices()
        values = strength * laplacian.values() + (row == column)  # every diagonal entry is stored, zeros too
        matrix = torch.sparse_coo_tensor(
            laplacian.indices(), values, laplacian.shape, is_coalesced=True, check_invariants=True
        )
        self.vertex_count = vertex_count
        self._matrix = matrix.to(dtype)
        self._solve = _direct_solver(matrix) if solver == "direct" else _cg_solver(self._matrix)

    def to_parameters(self, vertices: Tensor) -> Tensor:
        """u = (I + strength * L) v for (V, C) vertices; detached, ready for `requires_grad_()`."""
        self._check("to_parameters", "vertices", vertices)
        return torch.sparse.mm(self._matrix.to(vertices.dtype), vertices.detach())

    def to_vertices(self, parameters: Tensor) -> Tensor:
        """v = (I + strength * L)^-1 u, (V, C). Exact gradient of any order: another solve, the matrix is symmetric."""
        self._check("to_vertices", "parameters", parameters)
        return _Solve.apply(parameters, self._solve)

    def _check(self, method: str, name: str, tensor: Tensor) -> None:
        if tensor.ndim != 2 or tensor.shape[0] != self.vertex_count:
            raise ValueError(
                f"LaplacianPreconditioner.{method}: {name} must have shape ({self.vertex_count}, C), "
                f"got {tuple(tensor.shape)}."
            )


class _Solve(torch.autograd.Function):
    """A x = b for a fixed symmetric A. Custom because the solver lies outside of torch."""

    @staticmethod
    def forward(ctx: Any, right_side: Tensor, solve: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.solve = solve
        return solve(right_side)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        # A is symmetric and the solve linear: its derivative is the solve itself, which makes every order right.
        return _Solve.apply(grad_outputs[0], ctx.solve), None


def _direct_solver(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    sparse = require("scipy.sparse", "fit", used_by='LaplacianPreconditioner with solver="direct" (or use solver="cg")')
    linalg = require("scipy.sparse.linalg", "fit", used_by="LaplacianPreconditioner")
    rows, columns = matrix.indices().cpu().numpy()
    values = matrix.values().cpu().numpy()
    # The matrix is symmetric and diagonally dominant: no pivoting, and an ordering for symmetric patterns.
    factors = linalg.splu(
        sparse.csc_matrix((values, (rows, columns)), shape=tuple(matrix.shape)),
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )

    def solve(right_side: Tensor) -> Tensor:
        solution = factors.solve(right_side.detach().cpu().double().numpy())
        return torch.from_numpy(solution).to(right_side)

    return solve


def _cg_solver(matrix: Tensor, *, max_iterations: int = 500) -> Callable[[Tensor], Tensor]:
    """Jacobi-preconditioned conjugate gradients, all columns at once, until the residual is rounding error."""
    row, column = matrix.indices()
    diagonal = matrix.values()[row == column].unsqueeze(-1)  # coalesced: in the order of the rows

    def solve(right_side: Tensor) -> Tensor:
        b = right_side.detach().to(matrix.dtype)
        tolerance = (8 * torch.finfo(matrix.dtype).eps * b.norm(dim=0)).square()
        x = torch.zeros_like(b)
        residual = b.clone()
        z = residual / diagonal
        direction = z.clone()
        energy = (residual * z).sum(0)
        for iteration in range(max_iterations):
            # Asking a GPU every iteration would cost more than the iterations themselves; a CUDA graph can not ask.
            if iteration % 10 == 0 and can_decide(residual) and bool((residual.square().sum(0) <= tolerance).all()):
                break
            product = torch.sparse.mm(matrix, direction)
            curvature = (direction * product).sum(0)
            step = torch.where(curvature > 0, energy / torch.where(curvature > 0, curvature, 1), 0)
            x = x + step * direction
            residual = residual - step * product
            z = residual / diagonal
            previous, energy = energy, (residual * z).sum(0)
            direction = z + torch.where(previous > 0, energy / torch.where(previous > 0, previous, 1), 0) * direction
        return x.to(right_side)

    return solve
