"""Weights for other programs: the same bits there and back."""

import contextlib
import json
import struct
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from gradwire.checkpoint import (
    Checkpointer,
    CheckpointError,
    DamagedCheckpoint,
    ExportError,
    NoCheckpoint,
    State,
    UnsupportedState,
)
from gradwire.checkpoint.dcp import Writer
from gradwire.checkpoint.export import HuggingFace, Rows, export, export_weights, import_weights
from gradwire.checkpoint.tensors import DTYPES

HELD = [dtype for dtype in DTYPES.values() if dtype not in (torch.complex32, torch.complex128)]


def some_weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    joint = torch.randn(12, 4)
    return {
        "embedding": torch.randn(9, 4),
        "qkv": joint,
        "output": torch.randn(4, 4).bfloat16(),
        "count": torch.tensor(7),
        "empty": torch.empty(0, 3),
    }


def saved(folder: Path, weights: dict[str, Tensor]) -> Path:
    Checkpointer(folder / "store").save(State({"model": weights}), {"updates": 3})
    return folder / "store"


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype
        and first[name].shape == second[name].shape
        and bits(first[name]) == bits(second[name])
        for name in first
    )


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_weights_come_back_in_the_same_bits(tmp_path: Path) -> None:
    store = saved(tmp_path, some_weights())
    assert export(store, None, tmp_path / "out.safetensors") == (tmp_path / "out.safetensors",)
    assert equal(import_weights(tmp_path / "out.safetensors"), some_weights())
    assert equal(load_file(tmp_path / "out.safetensors"), some_weights())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.safetensors", "store"]


def test_every_dtype_that_safetensors_knows_comes_back(tmp_path: Path) -> None:
    weights = {str(dtype): torch.arange(16, dtype=torch.uint8).view(dtype) for dtype in HELD if dtype != torch.bool}
    export_weights(weights, tmp_path / "out.safetensors")
    assert equal(import_weights(tmp_path / "out.safetensors"), weights)
    with pytest.raises(ExportError, match=r"x is a tensor of torch\.complex128, which safetensors files cannot hold"):
        export_weights({"x": torch.zeros(2, dtype=torch.complex128)}, tmp_path / "other.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.safetensors"]


def test_the_update_asked_for_is_exported_and_told_in_the_file(tmp_path: Path) -> None:
    store = tmp_path / "store"
    saver = Checkpointer(store)
    for update in (1, 2):
        saver.save(State({"model": {"w": torch.full((3,), float(update))}}), {"updates": update})
    export(store, 1, tmp_path / "a" / "out.safetensors")
    assert import_weights(tmp_path / "a" / "out.safetensors")["w"].tolist() == [1.0] * 3
    data = (tmp_path / "a" / "out.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    assert header["__metadata__"] == {"format": "pt", "update": "1"}
    with pytest.raises(NoCheckpoint):
        export(store, 5, tmp_path / "other.safetensors")


def test_large_weights_are_split_beside_an_index(tmp_path: Path) -> None:
    weights = {f"w{index}": torch.randn(100) for index in range(5)}
    written = export_weights(weights, tmp_path / "out.safetensors", largest=900)
    assert [path.name for path in written] == [
        "out-00001-of-00003.safetensors",
        "out-00002-of-00003.safetensors",
        "out-00003-of-00003.safetensors",
        "out.safetensors.index.json",
    ]
    index = json.loads(written[-1].read_text())
    assert index["metadata"] == {"total_size": 2000}
    assert index["weight_map"]["w4"] == "out-00003-of-00003.safetensors"
    assert equal(import_weights(written[-1]), weights)


def test_views_and_tied_tensors_are_written_whole(tmp_path: Path) -> None:
    base = torch.randn(6, 8)
    weights = {"a": base, "b": base, "rows": base[2:4], "turned": base.t()}
    export_weights(weights, tmp_path / "out.safetensors")
    assert equal(import_weights(tmp_path / "out.safetensors"), weights)


def test_weights_that_torch_saved_sharded_are_exported_whole(tmp_path: Path) -> None:
    weights = {"a": torch.randn(5, 3), "b.c": torch.randn(2).double()}
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        torch_dcp.save({"model": weights, "rate": 0.1}, storage_writer=Writer(tmp_path / "store", 4))
    export(tmp_path / "store", None, tmp_path / "out.safetensors")
    assert equal(import_weights(tmp_path / "out.safetensors"), weights)
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        torch_dcp.save({"net": weights}, storage_writer=Writer(tmp_path / "other", 4))
    with pytest.raises(UnsupportedState, match=r"has no 'model'; it has net\.a, net\.b\.c"):
        export(tmp_path / "other", None, tmp_path / "none.safetensors")


def a_layout() -> HuggingFace:
    names = {
        "embed": Rows("embedding"),
        "q": Rows("qkv", 0, 6),
        "k": Rows("qkv", 6, 9),
        "v": Rows("qkv", 9, 12),
        "count": Rows("count"),
    }
    return HuggingFace(names, {"model_type": "llama", "vocab_size": 9}, {"head": "embedding"})


def laid_out() -> dict[str, Tensor]:
    weights = some_weights()
    return {"embedding": weights["embedding"], "qkv": weights["qkv"], "count": weights["count"]} | {
        "head": weights["embedding"]
    }


def test_a_folder_has_the_layouts_names_and_comes_back(tmp_path: Path) -> None:
    store = saved(tmp_path, laid_out())
    written = export(store, None, tmp_path / "hub", a_layout())
    assert [path.name for path in written] == ["config.json", "model.safetensors"]
    assert json.loads(written[0].read_text()) == {"model_type": "llama", "vocab_size": 9}
    found = import_weights(tmp_path / "hub")
    assert found.keys() == {"embed", "q", "k", "v", "count"}
    assert torch.equal(found["k"], laid_out()["qkv"][6:9])
    assert equal(import_weights(tmp_path / "hub", a_layout()), laid_out())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hub", "store"]


def test_a_folder_of_several_files_comes_back(tmp_path: Path) -> None:
    export_weights(laid_out(), tmp_path / "hub", a_layout(), largest=100)
    assert (tmp_path / "hub" / "model.safetensors.index.json").exists()
    assert equal(import_weights(tmp_path / "hub", a_layout()), laid_out())


def test_rows_that_repeat_are_taken_apart_and_come_back(tmp_path: Path) -> None:
    joint = torch.arange(24.0).reshape(12, 2)
    layout = HuggingFace({"q": Rows("qkv", 0, 2, 4), "k": Rows("qkv", 2, 3, 4), "v": Rows("qkv", 3, 4, 4)}, {})
    export_weights({"qkv": joint}, tmp_path / "hub", layout)
    found = import_weights(tmp_path / "hub")
    assert torch.equal(found["q"], joint[[0, 1, 4, 5, 8, 9]])
    assert torch.equal(found["k"], joint[[2, 6, 10]]) and torch.equal(found["v"], joint[[3, 7, 11]])
    assert equal(import_weights(tmp_path / "hub", layout), {"qkv": joint})
    with pytest.raises(ExportError, match=r"q should be rows 0 to 2 of every 4 of qkv \(13, 2\)"):
        export_weights({"qkv": torch.ones(13, 2)}, tmp_path / "other", layout)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"more": torch.ones(1)}, "the snapshot has no place in the layout for 1 tensors of the model: more"),
        ({"count": None}, "the snapshot lacks 1 tensors of the model: count"),
        ({"head": torch.ones(9, 4)}, "head should equal embedding"),
        ({"qkv": torch.ones(11, 4)}, r"v should be rows 9 to 12 of qkv \(11, 4\)"),
        ({"qkv": torch.ones(13, 4)}, r"leaves out the rows of qkv \(13, 4\) from 12 on"),
    ],
)
def test_weights_that_do_not_fit_the_layout_are_refused(
    change: dict[str, Tensor | None], message: str, tmp_path: Path
) -> None:
    weights = {name: tensor for name, tensor in (laid_out() | change).items() if tensor is not None}
    with pytest.raises(ExportError, match=message):
        export_weights(weights, tmp_path / "hub", a_layout())
    assert not list(tmp_path.iterdir())


def test_a_folder_that_does_not_fit_the_layout_is_refused(tmp_path: Path) -> None:
    export_weights(laid_out(), tmp_path / "hub", a_layout())
    wider = HuggingFace(a_layout().names | {"q": Rows("qkv", 0, 7)}, {})
    with pytest.raises(ExportError, match="q has 6 rows, and qkv takes 7"):
        import_weights(tmp_path / "hub", wider)
    with pytest.raises(ExportError, match="the folder lacks 1 tensors of the model: z"):
        import_weights(tmp_path / "hub", HuggingFace(a_layout().names | {"z": Rows("z")}, {}))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out.safetensors").write_text("mine")
    with pytest.raises(ExportError, match="exists already"):
        export_weights(some_weights(), tmp_path / "out.safetensors")
    assert (tmp_path / "out.safetensors").read_text() == "mine"
    (tmp_path / "hub").mkdir()
    export_weights(laid_out(), tmp_path / "hub", a_layout())
    with pytest.raises(ExportError, match="exists already"):
        export_weights(laid_out(), tmp_path / "hub", a_layout())
    with pytest.raises(ExportError, match="a file of weights is called"):
        export_weights(some_weights(), tmp_path / "out.bin")


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    failing = mock.patch("os.fsync", side_effect=OSError(28, "No space left on device"))
    with failing, pytest.raises(OSError, match="No space left"):
        export_weights(laid_out(), tmp_path / "hub", a_layout())
    assert not list(tmp_path.iterdir())


def test_the_missing_package_is_named(tmp_path: Path) -> None:
    with mock.patch.dict(sys.modules, {"safetensors": None}):
        with pytest.raises(ExportError, match=r"pip install 'gradwire\[hf\]'"):
            export_weights(some_weights(), tmp_path / "out.safetensors")
        (tmp_path / "there.safetensors").write_bytes(b"")
        with pytest.raises(ExportError, match=r"pip install 'gradwire\[hf\]'"):
            import_weights(tmp_path / "there.safetensors")


def test_what_holds_no_weights_says_so(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone.safetensors"):
        with pytest.raises(ExportError, match="holds no weights"):
            import_weights(path)


def test_a_file_that_is_cut_short_or_too_long_is_damage(tmp_path: Path) -> None:
    export_weights(some_weights(), tmp_path / "out.safetensors")
    sound = (tmp_path / "out.safetensors").read_bytes()
    lying = struct.pack("<Q", 2**62) + sound[8:]
    for number, data in enumerate((sound[:-1], sound + b"\0", sound[:5], b"", lying)):
        file = tmp_path / f"{number}.safetensors"
        file.write_bytes(data)
        with pytest.raises(DamagedCheckpoint, match="is no sound safetensors file"):
            import_weights(file)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b"{", "is not a valid index"),
        (b"[]", "has no weight_map"),
        (b'{"weight_map": {}}', "has no weight_map"),
        (b'{"weight_map": {"w": "../out.safetensors"}}', "which is no file beside the index"),
        (b'{"weight_map": {"w": 3}}', "which is no file beside the index"),
        (b'{"weight_map": {"w": "gone.safetensors"}}', "is missing, and the index names it"),
        (b'{"weight_map": {"w": "out.safetensors", "x": "out.safetensors"}}', "holds other tensors than the index"),
    ],
)
def test_an_index_that_lies_is_damage(index: bytes, message: str, tmp_path: Path) -> None:
    export_weights({"w": torch.ones(3)}, tmp_path / "out.safetensors")
    (tmp_path / "out.safetensors.index.json").write_bytes(index)
    with pytest.raises(DamagedCheckpoint, match=message):
        import_weights(tmp_path / "out.safetensors.index.json")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_bytes_a_file_has_weights_or_a_typed_error_come_out(data: st.DataObject, tmp_path: Path) -> None:
    sound = tmp_path / "sound.safetensors"
    if not sound.exists():
        export_weights(some_weights(), sound)
    altered = bytearray(sound.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        altered[data.draw(st.integers(0, len(altered) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "altered.safetensors").write_bytes(altered[: data.draw(st.integers(0, len(altered)))])
    with contextlib.suppress(CheckpointError):
        import_weights(tmp_path / "altered.safetensors")
