"""A batch that changes in mid-run, with a compiled model: few shapes, few graphs, the same training."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from gradwire.schedulers import Plan
from gradwire.schedulers.batch import LinearWarmup
from gradwire.trainer import Settings, Trainer
from gradwire.trainer.assemble import settings_of
from gradwire.trainer.blocks import compile_blocks
from gradwire.trainer.config import compose, validate
from gradwire.trainer.models import ConvNet

MICRO = 16
MOST = math.ceil(math.log2(MICRO)) + 1


class Points(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.randn(3, generator=torch.Generator().manual_seed(index))}


class Net(nn.Module):
    """Writes down the shapes of its passes, outside of the part that is compiled."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shapes: set[int] = set()
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        self.shapes.add(len(x))
        result: Tensor = self.inner(x)
        return result


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return result


def growing() -> Plan:
    return Plan(lr=0.05, batch=60 * LinearWarmup("80%"), run_length="1500 samples")


def _loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    loss: Tensor = (model(batch["x"]) - batch["x"][:, :2].sin()).square().mean(1)
    return loss


def train(model: Net, few_shapes: bool) -> Net:
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    settings = Settings(micro=MICRO, few_shapes=few_shapes)
    Trainer(model, Points(), optimizer, growing(), loss=_loss, settings=settings).fit()
    return model


def graphs(few_shapes: bool, dynamic: bool | None) -> tuple[int, set[int]]:
    """How many graphs a growing batch compiles, and the shapes that it has."""
    torch._dynamo.reset()
    counter: Any = CompileCounterWithBackend("aot_eager")
    model = Net()
    model.inner.compile(backend=counter, dynamic=dynamic)
    train(model, few_shapes)
    return counter.frame_count, model.shapes


def test_a_growing_batch_compiles_no_more_graphs_than_there_are_shapes() -> None:
    compiled, shapes = graphs(few_shapes=True, dynamic=False)
    assert shapes == {1, 2, 4, 8, 16}
    assert compiled == len(shapes) == MOST


def test_without_it_every_batch_size_is_a_shape_and_torch_gives_up_compiling() -> None:
    compiled, shapes = graphs(few_shapes=False, dynamic=False)
    assert len(shapes) > 2 * MOST
    assert compiled == torch._dynamo.config.recompile_limit == 8


def test_where_torch_makes_the_batch_a_variable_there_are_fewer_still() -> None:
    compiled, shapes = graphs(few_shapes=True, dynamic=None)
    assert compiled <= 3 < len(shapes)


def test_training_is_the_same_to_rounding() -> None:
    coarse, fine = train(Net(), few_shapes=False), train(Net(), few_shapes=True)
    assert coarse.shapes != fine.shapes
    start = Net()
    for one, other, before in zip(coarse.parameters(), fine.parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(one, before, atol=1e-3)


def test_compiled_blocks_of_several_widths_stay_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    counter: Any = CompileCounterWithBackend("aot_eager")
    compile_one = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda block: compile_one(block, backend=counter, dynamic=False))
    model = ConvNet(width=4, stages=2, blocks=2)
    with torch._dynamo.config.patch(recompile_limit=8):
        compile_blocks(model)
        for size in (16, 8, 4, 2, 1):
            model(torch.randn(size, 1, 8, 8)).sum().backward()
        # first of a stage, its second, and the widening one
        assert torch._dynamo.config.recompile_limit == 8 * 3
    assert counter.frame_count == 5 * 3  # all shapes of each kind, where torch would have given up after 8


@pytest.mark.parametrize("compiled", [True, False])
def test_a_run_that_compiles_asks_for_few_shapes(compiled: bool, tmp_path: Path) -> None:
    config = validate(compose([f"compile={str(compiled).lower()}", f"run.dir={tmp_path / 'run'}"])).config
    assert settings_of(config).few_shapes is compiled
