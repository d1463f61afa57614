"""Noise scale from a single micro-batch: per-example gradients of norm layers, which cost next to nothing.

Shapes: B examples, … further axes (tokens), D the normalized axes, P parameters.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradwire.schedulers.noise_scale import Norms
from gradwire.trainer.errors import NoiseError
from gradwire.trainer.tally import Part, Tally

Norm = nn.LayerNorm | nn.RMSNorm


class NormLayerMeter:
    """A proxy: the noise scale of the norm layers' weights and biases only, not of the whole model.

    Gray et al. 2024 (arXiv 2411.00999) find it to follow the whole model's in transformers, up to a factor that they
    fit. Small gradients are those of single examples, so one rank with one micro-batch is enough; every example counts
    as equally many targets. Inputs of norm layers have the examples on their first axis. Make it after the model
    is on its device; blocks must not be compiled.

    Args:
        model: Its `nn.LayerNorm` and `nn.RMSNorm` with trainable weights are measured, as one group `norm_layers`.

    Raises:
        NoiseError: there is no such layer.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = norm_layers(model)
        self._tally = Tally({"norm_layers": [p for layer in self._layers for p in layer.parameters(recurse=False)]})
        self.groups: Mapping[str, Sequence[nn.Parameter]] = self._tally.groups
        self._examples: dict[nn.Parameter, Tensor] = {}  # per-example gradients [B, numel] of the running micro-batch

    @contextmanager
    def micro_batch(self, targets: int) -> Iterator[None]:
        """Within the block: one forward and backward over so many valid targets."""
        if not targets:
            yield
            return
        handles = [layer.register_forward_hook(self._follow) for layer in self._layers]
        try:
            yield
            self._close(targets)
        finally:
            self._examples.clear()
            for handle in handles:
                handle.remove()

    def local(self) -> Tensor:
        """This rank's sums of the update, to be summed over ranks; they are cleared."""
        return self._tally.take()

    def big(self, part: Part = lambda parameter: parameter.grad) -> dict[str, float]:
        """Squared norms, by group, of the gradients that the norm layers' parameters hold now."""
        return self._tally.big(part)

    def norms(
        self, summed: Tensor, big: Mapping[str, float], batch_size: int, targets: int, scale: float = 1.0
    ) -> dict[str, Norms]:
        """Norms of the update, of the group `norm_layers`; empty where it had only one example.

        Raises:
            NoiseError: the norm layers saw something other than one row an example.
        """
        rows = int(summed[-2])
        if not self._tally.is_sound(summed) or rows not in (0, batch_size):  # no row: the batch had no targets
            raise NoiseError(
                f"the norm layers saw {rows} rows on the first axes of their inputs where the batch has {batch_size} "
                "samples, or not all of them ran in plain PyTorch: their gradients cannot be told apart by example. "
                "Lower batch.micro for several micro-batches, or set noise_scale.every=null"
            )
        return self._tally.norms(summed, big, batch_size, targets, scale)

    def _follow(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if output.requires_grad:
            assert isinstance(layer, Norm)
            output.register_hook(self._taker(layer, inputs[0].detach()))  # type: ignore[no-untyped-call]

    def _taker(self, layer: Norm, x: Tensor) -> Callable[[Tensor], None]:
        def take(gradient: Tensor) -> None:
            for parameter, examples_BD in per_example(layer, x, gradient.detach()):
                self._note(parameter, examples_BD)

        return take

    def _note(self, parameter: nn.Parameter, examples_BD: Tensor) -> None:
        """A parameter used more than once adds up its gradients before their norm is taken."""
        before = self._examples.get(parameter)
        if before is not None and before.shape != examples_BD.shape:
            self._tally.spoil()
        else:
            self._examples[parameter] = examples_BD if before is None else before + examples_BD

    def _close(self, targets: int) -> None:
        parameters = self._tally.parameters
        seen = [self._examples.get(parameter) for parameter in parameters]
        missed = any(
            examples is None and parameter.requires_grad and parameter.grad is not None
            for parameter, examples in zip(parameters, seen, strict=True)
        )
        rows = {len(examples) for examples in seen if examples is not None}
        if missed or len(rows) != 1:
            self._tally.spoil()
            return
        zero = torch.zeros((), dtype=torch.float64, device=parameters[0].device)
        squares = [zero if examples is None else examples.double().square().sum() for examples in seen]
        self._tally.add(torch.stack(squares), targets, rows.pop())


def norm_layers(model: nn.Module) -> tuple[Norm, ...]:
    """The layers of which per-example gradients can be taken: LayerNorm and RMSNorm with a trainable parameter."""
    return tuple(
        module
        for module in model.modules()
        if isinstance(module, Norm) and any(p.requires_grad for p in module.parameters(recurse=False))
    )


def per_example(layer: Norm, x: Tensor, gradient: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Gradients of the layer's trainable parameters for each example: (parameter, [B, numel]).

    Args:
        layer: The norm layer.
        x: Its input, [B, …, D].
        gradient: Of its output, the same shape.
    """
    kind = torch.promote_types(x.dtype, torch.float32)
    shape = list(layer.normalized_shape)
    x, gradient = x.to(kind), gradient.to(kind)
    if layer.weight is not None and layer.weight.requires_grad:
        yield layer.weight, _over_tokens(gradient * _normalized(layer, x, shape), shape)
    bias = getattr(layer, "bias", None)
    if bias is not None and bias.requires_grad:
        yield bias, _over_tokens(gradient, shape)


def _normalized(layer: Norm, x: Tensor, shape: list[int]) -> Tensor:
    if isinstance(layer, nn.RMSNorm):
        return functional.rms_norm(x, shape, eps=layer.eps)
    return functional.layer_norm(x, shape, eps=layer.eps)


def _over_tokens(x: Tensor, shape: list[int]) -> Tensor:
    """[B, …, D] summed to [B, numel of D]; without an axis of examples there is a single row."""
    rows = x.shape[0] if x.dim() > len(shape) else 1
    return x.reshape(rows, -1, torch.Size(shape).numel()).sum(1)
