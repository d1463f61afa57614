"""Compiled or not: the same bits."""

import shutil

import pytest
import torch
from torch import Tensor

from gradwire.comm.codecs import Codec, Fp8, Int4, Int8, Sign
from gradwire.comm.codecs.compiled import Kernel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="needs a C++ compiler"),
]


def _samples() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(300_003, generator=generator)
    wide = torch.randn(200_001, generator=generator) * torch.linspace(-140, 127, 200_001).exp2()
    broken = plain.clone()
    broken[[5, 70_000, 300_000]] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    sparse = torch.where(plain > 2, plain, -0.0)
    return {"plain": plain, "wide": wide, "broken": broken, "sparse": sparse, "ties": (plain * 8).round() / 16}


def _everything(codec: Codec, values: Tensor) -> list[Tensor]:
    """All that the codec writes for these values, which lie off any alignment."""
    values = torch.cat([torch.zeros(1), values])[1:]
    payload, bare = (torch.zeros(codec.nbytes(values.numel()), dtype=torch.uint8) for _ in range(2))
    error, decoded, added = torch.zeros_like(values), torch.zeros_like(values), torch.ones_like(values)
    codec.encode(values, payload, seed=11, error=error)
    codec.encode(values, bare, seed=11)
    codec.decode(payload, decoded)
    codec.decode_add(payload, added)
    unsigned = (torch.where(tensor.isnan(), torch.nan, tensor) for tensor in (error, decoded, added))
    return [payload, bare, *(tensor.view(torch.uint8) for tensor in unsigned)]


@pytest.mark.parametrize("codec", [Int8(), Int4(block=64, rounding="stochastic"), Sign(), Fp8()], ids=repr)
def test_compiled_code_gives_the_bits_of_the_functions(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = _samples()
    expected = {name: _everything(codec, values) for name, values in samples.items()}
    codec.prepare("cpu")
    used: list[bool] = []
    original = Kernel.__call__

    def call(kernel: Kernel, *tensors: Tensor) -> None:
        used.append(kernel.compiled(*tensors) or tensors[0].shape[0] == 1)
        original(kernel, *tensors)

    monkeypatch.setattr(Kernel, "__call__", call)
    for name, values in samples.items():
        for found, wanted in zip(_everything(codec, values), expected[name], strict=True):
            assert torch.equal(found, wanted), name
    assert used
    assert all(used)


def test_prepared_twice_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Int8().prepare("cpu")
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("compiled again"))
    Int8().prepare("cpu")


def test_a_compiler_that_does_not_work_is_said_and_the_function_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> object:
        def fail(*_: object) -> None:
            raise RuntimeError("no such header")

        return fail

    def double(values: Tensor, out: Tensor) -> None:
        out.copy_(2 * values)

    monkeypatch.setattr(torch, "compile", broken)
    kernel, values, out = Kernel(double), torch.ones(100), torch.empty(100)
    with pytest.warns(UserWarning, match="no such header"):
        kernel.prepare(values, out)
    kernel(values, out)
    assert not kernel.compiled(values, out)
    assert (out == 2).all()


def test_other_bits_are_said_and_the_function_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(values: Tensor, out: Tensor) -> None:
        out.copy_(2 * values)

    monkeypatch.setattr(torch, "compile", lambda *_, **__: lambda values, out: out.copy_(3 * values))
    kernel, values, out = Kernel(double), torch.ones(100), torch.empty(100)
    with pytest.warns(UserWarning, match="other bits"):
        kernel.prepare(values, out)
    kernel(values, out)
    assert (out == 2).all()
