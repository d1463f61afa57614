"""PowerSGD: matrices are summed over ranks as products of two thin factors (Vogels 2019, arXiv 1905.13727)."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire.comm.compression import Compression
from gradwire.comm.errors import CommError
from gradwire.comm.factors import Factors, Rows
from gradwire.comm.orthogonal import orthonormalize_

SumInPlace = Callable[[Tensor], None]


@dataclass(frozen=True)
class PowerSGD(Compression):
    """A low-rank reduction: M ≈ P Qᵀ, where only P and Q are summed over the ranks.

    Args:
        rank: Columns of P and Q.
        min_compression: Matrices that would not shrink by this factor are summed as they are.
        warm_start: Whether a step begins with the last step's Q, which makes rank 2 enough, or with a random one.

    Raises:
        CommError: A rank below 1 or a compression below 1.
    """

    name: ClassVar[str] = "power_sgd"
    feedback: ClassVar[bool] = True
    rank: int = 2
    min_compression: float = 2.0
    warm_start: bool = True

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise CommError(f"PowerSGD's rank is {self.rank}; expected at least 1")
        if not self.min_compression >= 1:
            raise CommError(f"PowerSGD's min_compression is {self.min_compression}; expected a factor of at least 1")

    def compresses(self, rows: Rows) -> bool:
        """Whether these rows go as two factors."""
        return rows.rows * rows.columns >= self.min_compression * self.rank * (rows.rows + rows.columns)

    def nbytes(self, count: int, layout: Sequence[Rows]) -> tuple[int, int]:
        """Bytes of the two all-reduces that sum a flat float32 tensor of `count` elements."""
        covered = [each for each in layout if self.compresses(each)]
        left = count - sum(each.rows * each.columns for each in covered)
        first = left + self.rank * sum(each.rows for each in covered)
        return 4 * first, 4 * self.rank * sum(each.columns for each in covered)


class LowRank:
    """One use of PowerSGD: its factors, which a step warms up for the next.

    All ranks of a line call `reduce` on the same layouts in the same order, and `settle` once after each step. Ranks
    that hold the same kind of processor and number of threads end with the same bits.

    Args:
        config: What to do.
    """

    def __init__(self, config: PowerSGD) -> None:
        self._config = config
        self._steps = 0  # that were kept
        self._factors: dict[str, Tensor] = {}  # Q [rank, columns] of the last step that was kept
        self._pending: dict[str, Tensor] = {}  # of the step under way
        self._spare: dict[str, Tensor] = {}
        self._seeds: dict[str, Tensor] = {}
        self._plans: dict[tuple[int, torch.device, tuple[Rows, ...]], Factors] = {}

    @torch.no_grad()
    def reduce(self, flat: Tensor, layout: Sequence[Rows], sum_in_place: SumInPlace, error: Tensor | None) -> None:
        """Replace `flat` by the low-rank approximation of its sum over the line, with at most two all-reduces.

        What `layout` does not cover, or what would hardly shrink, is summed as it is. A NaN or an infinity in a matrix
        of any rank makes that whole matrix NaN on every rank.

        Args:
            flat: This rank's part of the sum, float32 [n], the residual of the last step included.
            layout: The rows of matrices within it, without overlap; the same on every rank of the line.
            sum_in_place: Sums a contiguous float32 tensor over the line, to the same bits on every rank.
            error: Where given [n], receives `flat` minus what it contributed to the result.

        Raises:
            CommError: `flat` is not float32, or the layout does not fit into it.
        """
        plan = self._plan(flat, layout)
        if not plan.matrices:
            sum_in_place(flat)
            if error is not None:
                error.zero_()
            return
        plan.gather_left(flat)
        for rows, p_RN in zip(plan.matrices, plan.p, strict=True):
            torch.mm(self._start(rows, flat.device), rows.matrix(flat).T, out=p_RN)
        sum_in_place(plan.first)
        plan.scatter_left(flat)
        for p_KRN in plan.p_by_shape:
            p_KRN.add_(_poison(p_KRN))
            orthonormalize_(p_KRN.mT)
        for rows, p_RN, q_RC in zip(plan.matrices, plan.p, plan.q, strict=True):
            torch.mm(p_RN, rows.matrix(flat), out=q_RC)
        if error is not None:
            plan.write_error(flat, error)
        sum_in_place(plan.second)
        for rows, p_RN, q_RC in zip(plan.matrices, plan.p, plan.q, strict=True):
            q_RC.add_(_poison(q_RC))
            torch.mm(p_RN.T, q_RC, out=rows.matrix(flat))
            self._remember(rows, q_RC)

    def settle(self, kept: bool) -> None:
        """End the step: its factors begin the next one if it was kept, and are forgotten otherwise.

        Rows that had no part in a kept step are forgotten as well.
        """
        if kept:
            self._factors, self._spare = self._pending, self._factors
        else:
            self._spare = self._pending
        self._pending = {}
        self._steps += kept

    def state_dict(self) -> dict[str, Any]:
        """The factors, by parameter and rows, and the number of steps that were kept. The tensors are copies."""
        return {"steps": self._steps, "factors": {key: each.clone() for key, each in self._factors.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`; rows that it does not hold (another number of ranks) begin anew."""
        self._steps = state["steps"]
        self._factors = {key: each.clone() for key, each in state["factors"].items()}
        self._pending, self._spare = {}, {}

    def _plan(self, flat: Tensor, layout: Sequence[Rows]) -> Factors:
        key = flat.numel(), flat.device, tuple(layout)
        if key not in self._plans:
            if flat.dtype != torch.float32 or flat.dim() != 1 or not flat.is_contiguous():
                raise CommError(f"PowerSGD reduces flat float32 tensors; found {flat.dtype} {list(flat.shape)}")
            self._plans[key] = Factors(flat, layout, list(filter(self._config.compresses, layout)), self._config.rank)
        return self._plans[key]

    def _start(self, rows: Rows, device: torch.device) -> Tensor:
        """The Q that the step begins with; a part that came out as nothing is drawn anew."""
        factor = self._factors.get(rows.key)
        if factor is None:
            return self._seed(rows, device)
        factor = factor.to(device)
        largest = factor.abs().amax(1, keepdim=True)
        sound = (largest > 0) & largest.isfinite()
        return torch.where(sound, factor / largest, self._seed(rows, device))

    def _seed(self, rows: Rows, device: torch.device) -> Tensor:
        """Random numbers that follow from the name of the rows and, without warm start, from the step."""
        step = 0 if self._config.warm_start else self._steps
        key = f"{rows.key} {step}"
        if key not in self._seeds:
            digest = hashlib.blake2b(key.encode(), digest_size=7).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest))
            drawn = torch.randn(self._config.rank, rows.columns, generator=generator).to(device)
            if not self._config.warm_start:
                return drawn
            self._seeds[key] = drawn
        return self._seeds[key]

    def _remember(self, rows: Rows, q_RC: Tensor) -> None:
        if not self._config.warm_start:
            return
        if rows.key not in self._pending:
            spare = self._spare.pop(rows.key, None)
            self._pending[rows.key] = torch.empty_like(q_RC) if spare is None else spare
        self._pending[rows.key].copy_(q_RC)


def _poison(factor: Tensor) -> Tensor:
    """NaN for each matrix of `factor` [..., R, N] that holds a NaN or an infinity, otherwise 0."""
    return (factor * 0.0).sum((-2, -1), keepdim=True)
