import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from gradwire.schedulers.noise_scale import Norms
from gradwire.trainer.blocks import checkpoint_activations
from gradwire.trainer.errors import NoiseError
from gradwire.trainer.noise import NoiseMeter, meter_for
from gradwire.trainer.norm_layers import NormLayerMeter, norm_layers, per_example
from gradwire.trainer.strategies import Single
from tests.trainer.noisy import CPU, Pass, Planted, decoder, ids, measured, text_loss, text_norms

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "LayerNorm": lambda: nn.LayerNorm(6),
    "LayerNorm without bias": lambda: nn.LayerNorm(6, bias=False),
    "RMSNorm": lambda: nn.RMSNorm(6),
    "RMSNorm with epsilon": lambda: nn.RMSNorm(6, eps=0.1),
}
OVER_TWO_AXES: dict[str, Callable[[], nn.Module]] = {
    "LayerNorm over two axes": lambda: nn.LayerNorm((5, 6)),
    "RMSNorm over two axes": lambda: nn.RMSNorm((5, 6)),
}
CASES = [
    *itertools.product(LAYERS, [(4, 6), (4, 5, 6), (4, 3, 5, 6)]),
    *itertools.product(OVER_TWO_AXES, [(4, 5, 6), (4, 3, 5, 6)]),
]


def randomized(layer: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_per_example_gradients_are_those_of_each_example_alone(name: str, shape: tuple[int, ...]) -> None:
    layer = randomized((LAYERS | OVER_TWO_AXES)[name]())
    x, gradient = torch.randn(shape), torch.randn(shape)
    found = dict(per_example(layer, x, gradient))  # type: ignore[arg-type]
    assert list(found) == list(layer.parameters())
    for example in range(4):
        (layer(x[example : example + 1]) * gradient[example]).sum().backward()
        for parameter, gradients_BD in found.items():
            assert parameter.grad is not None
            torch.testing.assert_close(gradients_BD[example].view_as(parameter), parameter.grad, rtol=1e-5, atol=1e-5)
        layer.zero_grad()


def by_single_examples(model: nn.Module, samples: int) -> Norms:
    """What micro-batches of one sample say about the norm layers' parameters."""
    parameters = [p for layer in norm_layers(model) for p in layer.parameters()]
    return text_norms(model, NoiseMeter({"norm_layers": parameters}), [1] * samples)["norm_layers"]


def agree(one: Norms, other: Norms, rel: float = 1e-5) -> None:
    assert one.small == pytest.approx(other.small, rel=rel)
    assert one.big == pytest.approx(other.big, rel=rel)
    assert (one.small_size, one.big_size) == (other.small_size, other.big_size)


@pytest.mark.parametrize("sizes", [[6], [4, 2]])
def test_one_pass_says_what_passes_of_single_examples_say(sizes: list[int]) -> None:
    model = decoder()
    agree(text_norms(model, NormLayerMeter(model), sizes)["norm_layers"], by_single_examples(model, 6))


def test_recomputed_activations_are_measured_alike() -> None:
    model = decoder()
    plain = by_single_examples(model, 6)
    checkpoint_activations(model)
    agree(text_norms(model, NormLayerMeter(model), [6])["norm_layers"], plain)


def test_lower_precision_is_measured_about_alike() -> None:
    model = decoder()
    plain = text_norms(model, NormLayerMeter(model), [6])["norm_layers"]

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return text_loss(model, ids(6))

    norms = measured(Single(CPU), model, NormLayerMeter(model), [(loss, 48)], 6)["norm_layers"]
    agree(norms, plain, rel=0.05)


class Shared(nn.Module):
    """Uses one norm layer three times, once in place over its output, and one never."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.unused = nn.LayerNorm(4), nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)

    def forward(self, x_BTD: Tensor) -> Tensor:
        inner = self.linear(self.norm(x_BTD)).tanh()
        return self.norm(self.norm(inner).relu_() + x_BTD).square().sum()  # type: ignore[no-any-return]


def test_a_layer_that_is_used_more_than_once_adds_its_gradients_up() -> None:
    model = Shared()
    x_BTD = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    whole: list[Pass] = [(lambda: model(x_BTD), 15)]
    single: list[Pass] = [(lambda x=x: model(x[None]), 3) for x in x_BTD]  # type: ignore[misc]
    parameters = {"norm_layers": list(model.norm.parameters())}
    one = measured(Single(CPU), model, NormLayerMeter(model), whole, 5)["norm_layers"]
    agree(one, measured(Single(CPU), model, NoiseMeter(parameters), single, 5)["norm_layers"])


def test_frozen_parameters_are_left_out() -> None:
    model = decoder()
    model.blocks[0].requires_grad_(False)
    agree(text_norms(model, NormLayerMeter(model), [6])["norm_layers"], by_single_examples(model, 6))


def passes_over(model: nn.Module, shape: Sequence[int]) -> list[Pass]:
    return [(lambda: model(torch.ones(*shape)).square().sum(), 12)]


def test_examples_on_another_axis_are_refused() -> None:
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))
    with pytest.raises(NoiseError, match="saw 3 rows on the first axes of their inputs where the batch has 4 samples"):
        measured(Single(CPU), model, NormLayerMeter(model), passes_over(model, (3, 4, 4)), 4)


class Bypassing(nn.Module):
    """Calls a norm layer's arithmetic without the layer's hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.bypassed = nn.LayerNorm(4), nn.LayerNorm(4)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.bypassed.forward(self.seen(x_BTD))


def test_a_layer_whose_hooks_do_not_run_is_refused() -> None:
    model = Bypassing()
    with pytest.raises(NoiseError, match="not all of them ran in plain PyTorch"):
        measured(Single(CPU), model, NormLayerMeter(model), passes_over(model, (4, 3, 4)), 4)


def test_a_batch_without_targets_tells_nothing() -> None:
    model = decoder()
    meter = NormLayerMeter(model)
    with meter.micro_batch(0):
        (text_loss(model, ids(4)) * 0).backward()  # type: ignore[no-untyped-call]
    assert meter.norms(meter.local(), meter.big(), 4, 0) == {}


def test_a_single_example_tells_nothing() -> None:
    model = decoder()
    assert text_norms(model, NormLayerMeter(model), [1]) == {}


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 1), (1, 2), (4, 8)])
def test_micro_batches_are_measured_where_there_are_several(ranks: int, micro_batches: int) -> None:
    model = decoder()
    choice = meter_for(model, {"all": list(model.parameters())}, ranks, micro_batches)
    assert isinstance(choice.meter, NoiseMeter)
    assert choice.reason == f"{ranks} × {micro_batches} micro-batch gradients an update"


def test_norm_layers_stand_in_for_a_single_micro_batch() -> None:
    model = decoder()
    choice = meter_for(model, {"all": list(model.parameters())}, 1, 1)
    assert isinstance(choice.meter, NormLayerMeter)
    assert list(choice.meter.groups) == ["norm_layers"]
    assert len(choice.meter.groups["norm_layers"]) == 5


def test_nothing_is_measured_without_norm_layers_and_the_reason_is_given() -> None:
    model = Planted()
    choice = meter_for(model, model.groups(), 1, 1)
    assert choice.meter is None
    assert "no trainable LayerNorm or RMSNorm" in choice.reason
    assert "lower batch.micro" in choice.reason
    with pytest.raises(NoiseError, match="the groups hold none"):
        NormLayerMeter(model)


def test_compiled_blocks_leave_norm_layers_out_of_reach() -> None:
    model = decoder()
    model.blocks[0].compile(backend="eager")
    choice = meter_for(model, {"all": list(model.parameters())}, 1, 1)
    assert choice.meter is None
    assert "compile=false" in choice.reason
