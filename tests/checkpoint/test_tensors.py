from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gradwire.checkpoint import DamagedCheckpoint, StateTooLarge, StoreError, UnsupportedState
from gradwire.checkpoint.document import Fields
from gradwire.checkpoint.packs import PACK_BYTES, SALT, PackRef, PackWriter
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tensors import CHUNK_BYTES, DTYPES, StoredTensor, check_storable, pieces
from gradwire.checkpoint.unpacking import read_tensors


def random_bits(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def bits(tensor: Tensor) -> bytes:
    return b"".join(bytes(piece) for piece in pieces(tensor, 16))


def round_trip(folder: Path, tensors: list[Tensor]) -> list[Tensor]:
    store = Store.open(str(folder))
    writer = PackWriter(store)
    stored = [writer.add(tensor) for tensor in tensors]
    return read_tensors(store, written(writer), stored)


def written(writer: PackWriter) -> list[PackRef]:
    packs = writer.finish()
    writer.close()
    return packs


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_round_trips_bit_for_bit(name: str, tmp_path: Path) -> None:
    dtype = DTYPES[name]
    whole = random_bits((6, 4, 2), dtype)
    tensors = [whole, whole[0, 0, 0], whole[:, :0], whole.transpose(0, 2), whole[::2, 1:3], whole[0, 0].expand(3, 2)]
    for restored, tensor in zip(round_trip(tmp_path, tensors), tensors, strict=True):
        assert (restored.dtype, restored.shape) == (dtype, tensor.shape)
        assert restored.is_contiguous()
        assert bits(restored) == bits(tensor)
        assert restored.untyped_storage().nbytes() == tensor.nbytes  # each can be given back alone


def test_every_dtype_of_torch_is_stored_or_refused() -> None:
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    left_out = {
        str(dtype).removeprefix("torch.").split("x")[0].rstrip("0123456789") for dtype in every - set(DTYPES.values())
    }
    assert left_out == {"bits", "int", "uint", "qint", "quint"}, "a new dtype: store it or refuse it"
    assert not {torch.int8, torch.int16, torch.int32, torch.int64} - set(DTYPES.values())


def test_pieces_are_row_major_whatever_the_strides() -> None:
    tensor = torch.arange(2 * 3 * 50, dtype=torch.int32).reshape(2, 3, 50).permute(2, 0, 1)
    joined = b"".join(bytes(piece) for piece in pieces(tensor, 64))
    assert joined == tensor.contiguous().numpy().tobytes()
    assert all(len(piece) <= 64 for piece in pieces(tensor, 64))


def test_conjugated_and_negated_views_are_stored_by_value(tmp_path: Path) -> None:
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    restored = round_trip(tmp_path, [numbers.conj(), numbers.conj().imag])
    assert restored[0].tolist() == [1 - 2j, 3 + 4j]
    assert restored[1].tolist() == [-2.0, 4.0]


def test_large_tensors_span_chunks_and_packs_and_equal_bytes_are_stored_once(tmp_path: Path) -> None:
    large = random_bits((PACK_BYTES + CHUNK_BYTES + 8,), torch.uint8)
    store = Store.open(str(tmp_path))
    writer = PackWriter(store)
    stored = [writer.add(large), writer.add(large), writer.add(large.reshape(2, -1))]
    packs = written(writer)
    assert [chunk.length for chunk in stored[0].chunks] == [CHUNK_BYTES] * (PACK_BYTES // CHUNK_BYTES + 1) + [8]
    assert stored[0].chunks == stored[1].chunks == stored[2].chunks
    assert [pack.size for pack in packs] == [SALT + PACK_BYTES, SALT + CHUNK_BYTES + 8]
    restored = read_tensors(store, packs, stored)
    assert all(torch.equal(each.reshape(-1), large) for each in restored)


def test_digests_do_not_depend_on_strides(tmp_path: Path) -> None:
    tensor = random_bits((3 * 2**20, 2, 4), torch.uint8)
    writer = PackWriter(Store.open(str(tmp_path)))
    assert CHUNK_BYTES % 3, "so that rows lie across the ends of chunks"
    turned = tensor.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert not turned.is_contiguous()
    assert writer.add(tensor).chunks == writer.add(turned).chunks


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.eye(2).to_sparse(), "layout torch.sparse_coo"),
        (torch.empty(2, device="meta"), "meta device"),
        (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "not a plain tensor"),
        (torch.empty(2, dtype=torch.int4), "torch.int4"),
    ],
)
def test_other_tensors_are_refused_by_name(tensor: Tensor, message: str) -> None:
    with pytest.raises(UnsupportedState, match=f"shared.w.*{message}"):
        check_storable(tensor, "shared.w")


def chunk_entry(**changes: Any) -> list[Any]:
    whole = {"pack": 0, "offset": 0, "stored": 24, "length": 24, "coding": "raw", "digest": "0" * 32}
    return list((whole | changes).values())


def entry(**changes: Any) -> Fields:
    return Fields({"dtype": "float32", "shape": [2, 3], "chunks": [chunk_entry()]} | changes, "entry")


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "qint8"},
        {"dtype": "__class__"},
        {"shape": [2, -3]},
        {"shape": [2, 4]},
        {"shape": [True, 6]},
        {"shape": [2**40, 2**40]},
        {"shape": [0, 2**70]},
        {"shape": [1] * 65},
        {"shape": "23"},
        {"chunks": []},
        {"chunks": [chunk_entry()[:-1]]},
        {"chunks": [chunk_entry(pack=1)]},
        {"chunks": [chunk_entry(offset=1)]},
        {"chunks": [chunk_entry(offset=-1)]},
        {"chunks": [chunk_entry(stored=25, length=25)]},
        {"chunks": [chunk_entry(stored=23)]},
        {"chunks": [chunk_entry(stored=25, coding="planes+zstd")]},
        {"chunks": [chunk_entry(stored=0, coding="planes+zstd")]},
        {"chunks": [chunk_entry(coding="zip")]},
        {"chunks": [chunk_entry(coding=["raw"])]},
        {"chunks": [chunk_entry(digest="0" * 31)]},
        {"chunks": [chunk_entry(), chunk_entry(stored=0, length=0)]},
        {"chunks": [chunk_entry(stored=n, length=n, offset=0) for n in (10, 14)]},
    ],
)
def test_entries_that_contradict_themselves_are_damage(changes: dict[str, Any]) -> None:
    assert StoredTensor.from_json(entry(), (24,)).nbytes == 24
    with pytest.raises(DamagedCheckpoint):
        StoredTensor.from_json(entry(**changes), (24,))


def test_more_than_the_free_memory_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    chunk = chunk_entry(stored=2**26, length=2**26)
    shape = [2**26, 2**20]
    stored = StoredTensor.from_json(
        Fields({"dtype": "uint8", "shape": shape[:1], "chunks": [chunk]}, "entry"), (2**26,)
    )
    with pytest.raises(StateTooLarge, match="bytes of memory are free"):
        read_tensors(Store.open(str(tmp_path)), [PackRef("0" * 64, 2**26, "0" * 32)], [stored] * 2**20)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from(sorted(DTYPES)), st.booleans())))
def test_any_mixture_of_tensors_round_trips(descriptions: list[tuple[int, int, str, bool]]) -> None:
    tensors = [random_bits((rows, columns), DTYPES[name]) for rows, columns, name, _ in descriptions]
    tensors = [t.t() if turn else t for t, (*_, turn) in zip(tensors, descriptions, strict=True)]
    store = Store.open("memory://mixtures")
    writer = PackWriter(store)
    stored = [writer.add(tensor) for tensor in tensors]
    for restored, tensor in zip(read_tensors(store, written(writer), stored), tensors, strict=True):
        assert bits(restored) == bits(tensor)
        assert restored.untyped_storage().nbytes() == tensor.nbytes  # each can be given back alone


def test_a_pack_of_another_size_is_damage(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    writer = PackWriter(store)
    stored = writer.add(torch.arange(8))
    packs = written(writer)
    path = tmp_path / packs[0].name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedCheckpoint, match=f"{SALT + 63} of its {SALT + 64} bytes"):
        read_tensors(store, packs, [stored])
    path.unlink()
    with pytest.raises(DamagedCheckpoint, match="missing"):
        read_tensors(store, packs, [stored])


def test_chunks_may_lie_over_each_other_and_be_wanted_often(tmp_path: Path) -> None:
    store, shrinks = Store.open(str(tmp_path)), torch.arange(2**18, dtype=torch.int32)
    writer = PackWriter(store)
    noise = random_bits((100_000,), torch.uint8)
    stored = [writer.add(tensor) for tensor in (noise, shrinks)]
    packs = written(writer)
    (chunk,) = stored[0].chunks
    inner = replace(
        chunk,
        offset=chunk.offset + 10,
        stored=50_000,
        length=50_000,
        digest=xxhash.xxh3_128_hexdigest(bits(noise[10:50_010])),
    )
    part = StoredTensor(torch.uint8, (50_000,), (inner,))
    restored = read_tensors(store, packs, [stored[1], part, stored[0]] * 2)
    for each, tensor in zip(restored, [shrinks, noise[10:50_010], noise] * 2, strict=True):
        assert torch.equal(each, tensor)


def test_an_altered_pack_is_told_before_what_could_not_be_decoded_in_it(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    writer = PackWriter(store)
    stored = [writer.add(tensor) for tensor in (torch.zeros(2**20), torch.arange(8))]
    packs = written(writer)
    path = tmp_path / packs[0].name
    path.write_bytes(path.read_bytes().replace(b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfe"))
    for wanted in (stored, stored[:1], stored[1:]):
        with pytest.raises(DamagedCheckpoint, match=f"{packs[0].name} is altered"):
            read_tensors(store, packs, wanted)
    consistent = replace(packs[0], checksum=xxhash.xxh3_128_hexdigest(path.read_bytes()))
    with pytest.raises(DamagedCheckpoint, match=r"what is at bytes \d+ to \d+ .*compressed"):
        read_tensors(store, [consistent], stored)
    other = replace(stored[1].chunks[0], digest="0" * 32)
    with pytest.raises(DamagedCheckpoint, match=rf"what is at bytes \d+ to \d+ does not have the digest {'0' * 32}"):
        read_tensors(store, [consistent], [replace(stored[1], chunks=(other,))])


def test_an_unreadable_folder_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "packs").write_text("a file where a folder should be")
    with pytest.raises(StoreError, match="folder of its own"):
        read_tensors(
            Store.open(str(tmp_path)), [PackRef("0" * 64, 24, "0" * 32)], [StoredTensor.from_json(entry(), (24,))]
        )
