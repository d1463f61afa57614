"""Compiled or not: the same bits."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch._dynamo.utils
from torch import Tensor
from torch._inductor import compile_fx

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


def test_nothing_is_compiled_after_prepare_whatever_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = Int8()
    codec.prepare("cpu")
    monkeypatch.setattr(compile_fx, "compile_fx", lambda *_, **__: pytest.fail("compiled again"))
    codec.prepare("cpu")
    values = _samples()["plain"]
    expected = _everything(codec, values)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    settings = (
        torch.no_grad(),
        torch.enable_grad(),
        torch.inference_mode(),
        torch.autocast("cpu"),
        torch.device("cpu"),
    )
    for setting in settings:
        with setting:
            assert all(map(torch.equal, _everything(codec, values), expected))
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(lambda _: _everything(codec, values), range(4)):
            assert all(map(torch.equal, found, expected))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before


def _fail(*_: object, **__: object) -> None:
    raise RuntimeError("no such header")


def _double(values: Tensor, out: Tensor) -> None:
    out.copy_(2 * values)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (_fail, "uncompiled, several times slower"),
        (lambda *_, **__: lambda values, out: out.copy_(3 * values), "other bits"),
    ],
)
def test_a_compiler_that_does_not_work_is_said_and_the_function_runs(
    wrong: Callable[..., object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_fx, "compile_fx", wrong)
    kernel, values, out = Kernel(_double), torch.ones(100), torch.empty(100)
    with pytest.warns(UserWarning, match=message):
        kernel.prepare(values, out)
    kernel(values, out)
    assert not kernel.compiled(values, out)
    assert (out == 2).all()
