"""Error feedback under torch's DDP, which lays its buckets out anew after the first update."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket

from gradwire.comm.all_reduce import AllReduce
from gradwire.comm.buckets import Bucket, Slot
from gradwire.comm.group import named
from gradwire.comm.residuals import Residuals, summed


class HookResiduals:
    """Residuals of DDP's buckets, kept by parameter: where a bucket is a new one, they move to it with their sum.

    Args:
        all_reduce: Sums the buckets.
    """

    def __init__(self, all_reduce: AllReduce) -> None:
        self._all_reduce = all_reduce
        self._by_bucket: dict[tuple[str, ...], Residuals] = {}
        self._begun: set[tuple[str, ...]] = set()
        self._moving: dict[str, Any] | None = None
        self.updates = 0

    def begin(self, found: GradBucket, names: Sequence[str]) -> tuple[Bucket, Residuals]:
        """What goes with a bucket that is about to be reduced. A collective where DDP has laid out anew."""
        if found.index() == 0:
            self.settle()
            self._begun.clear()
            self._moving = None
            self.updates += 1
        key = tuple(names)
        if key not in self._by_bucket:
            self._by_bucket[key] = self._new(_bucket(found, names))
        self._begun.add(key)
        residuals = self._by_bucket[key]
        return residuals.buckets[0], residuals

    def settle(self, kept: bool | None = None) -> None:
        """The last update was kept, or not; where None, it was if all that was reduced is finite."""
        begun = [self._by_bucket[key] for key in self._begun]
        finite = [residuals.finite for residuals in begun]
        for residuals in begun:
            if None in finite:  # that backward broke off
                residuals.discard()
            residuals.settle(all(finite) if kept is None else kept)

    def rescale(self, factor: float) -> None:
        self.settle()
        for residuals in self._by_bucket.values():
            residuals.rescale(factor)

    def states(self) -> list[dict[str, Any]]:
        """Of every bucket."""
        self.settle()
        return [residuals.state_dict() for residuals in self._by_bucket.values()]

    def _new(self, bucket: Bucket) -> Residuals:
        residuals = Residuals(self._all_reduce, [bucket])
        if self.updates > 1 and self._moving is None:
            self._moving = self._take_out()
        if self._moving is not None:
            residuals.load_sum([self._moving])
        return residuals

    def _take_out(self) -> dict[str, Any]:
        """The sums over the ranks of what belongs to buckets that do not exist any more, by parameter."""
        old = {key: residuals for key, residuals in self._by_bucket.items() if key not in self._begun}
        for key in old:
            del self._by_bucket[key]
        by_name: dict[str, dict[str, Any]] = {}
        factors: dict[str, dict[str, Any]] = {}
        for residuals in old.values():
            state = residuals.state_dict()
            for slot in residuals.buckets[0].slots:
                by_name[slot.name] = self._summed(state.get("residuals", {}), slot)
            for axis, found in state.get("factors", {}).items():
                united = factors.setdefault(axis, {"steps": found["steps"], "factors": {}})
                united["factors"].update(found["factors"])
        return {"residuals": {"all": by_name}, "factors": factors}

    def _summed(self, residuals: Mapping[str, Any], slot: Slot) -> dict[str, Any]:
        count = slot.view.numel()
        sums: dict[str, Tensor] = {}
        for kind in ("values", "velocity"):
            sums[kind] = summed([residuals], slot.name, kind, (0, count)).to(slot.view.device)
            with named(f"moving the residual of {slot.name}", self._all_reduce.group):
                dist.all_reduce(sums[kind], group=self._all_reduce.group)
        return {"spans": [[0, count]], **sums}


def _bucket(found: GradBucket, names: Sequence[str]) -> Bucket:
    """As the only one of its `Residuals`."""
    flat = found.buffer()
    members = zip(names, found.parameters(), found.gradients(), strict=True)
    slots = tuple(
        Slot(place, name, parameter if isinstance(parameter, nn.Parameter) else nn.Parameter(parameter), view, 0)
        for place, (name, parameter, view) in enumerate(members)
    )
    return Bucket(0, flat, slots, flat[flat.numel() :], ())
