import hashlib
import json
import math
import struct
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from gradwire.checkpoint import DamagedCheckpoint, StateTooLarge, UnsupportedFormat, UnsupportedState
from gradwire.checkpoint.blobs import CHUNK, Blob
from gradwire.checkpoint.commit import seal
from gradwire.checkpoint.journal import Entry, Place, entry_bytes, parse_journal_entry, prove_journal_entry
from gradwire.checkpoint.tensors import DTYPES

PLACE = Place(base=7, epoch=5, update=41, rank=1, world_size=2)
SCALARS = {"lr": 0.1, "skipped": False, "groups": 2, "odd": -math.inf, "large": 2**70, "optimizer": "AdamW-1"}


def an_entry(**changes: Any) -> Entry:
    torch.manual_seed(0)
    tensors = {
        "gradient": Blob(torch.randn(50) * 1e-3, ((0, 20), (30, 60))),
        "zeros": Blob(torch.zeros(3, 100, dtype=torch.bfloat16)),
        "raw": Blob(torch.randn(2, 3), coding="raw"),
        "bucket": Blob(torch.zeros(300, dtype=torch.uint8), ((0, 2400),), "encoded:int4(block=64)"),
        "none": Blob(torch.empty(0, 4)),
        "one": Blob(torch.tensor(3)),
    }
    return Entry(**{"place": PLACE, "scalars": SCALARS, "tensors": tensors, "digest": "0f" * 16, **changes})


def equal(one: Entry, other: Entry) -> bool:
    def bits(blob: Blob) -> list[int]:
        return list(blob.data.contiguous().reshape(-1).view(torch.uint8).tolist())

    return (one.place, dict(one.scalars), one.digest, list(one.tensors)) == (
        other.place,
        dict(other.scalars),
        other.digest,
        list(other.tensors),
    ) and all(
        (a.data.dtype, a.data.shape, bits(a), a.ranges, a.coding)
        == (b.data.dtype, b.data.shape, bits(b), b.ranges, b.coding)
        for a, b in zip(one.tensors.values(), other.tensors.values(), strict=True)
    )


def parsed(data: bytes) -> Entry:
    return parse_journal_entry(data, PLACE, "entry")


def test_an_entry_is_read_back_as_it_was_written() -> None:
    assert equal(parsed(entry_bytes(an_entry())), an_entry())


def test_the_name_of_an_entry_tells_its_place() -> None:
    assert PLACE.name == f"journal/{7:020d}/{5:020d}/{41:020d}-1-of-2"
    assert Place.of(PLACE.name) == PLACE


@given(st.floats(), st.integers(), st.booleans(), st.text())
def test_scalars_keep_their_bits_and_types(number: float, whole: int, truth: bool, text: str) -> None:
    scalars = parsed(entry_bytes(an_entry(scalars={"a": number, "b": whole, text: truth, "c": text}))).scalars
    found, wanted = scalars.get("a"), number if text != "a" else truth
    assert struct.pack("d", found) == struct.pack("d", wanted) or (math.isnan(number) and math.isnan(found))  # type: ignore[arg-type]
    assert scalars["c"] == text
    assert type(scalars[text]) is (str if text == "c" else bool)
    assert scalars["b"] == (truth if text == "b" else whole)


@pytest.mark.parametrize("name", DTYPES)
def test_tensors_of_every_type_are_read_back(name: str) -> None:
    data = torch.randint(0, 2, (64,), dtype=torch.uint8).view(DTYPES[name])
    for coding in ("raw", "planes+zstd"):
        entry = an_entry(tensors={"x": Blob(data, (), coding)})
        assert equal(parsed(entry_bytes(entry)), entry)


def test_what_compresses_is_compressed_and_what_is_raw_is_not() -> None:
    sizes = [
        len(entry_bytes(an_entry(tensors={"x": Blob(torch.zeros(10_000, dtype=torch.uint8), (), coding)})))
        for coding in ("raw", "planes+zstd", "encoded:int8")
    ]
    assert sizes[0] > 10_000 > 2_000 > max(sizes[1:])


def test_long_tensors_are_stored_in_chunks() -> None:
    data = torch.cat([torch.randint(0, 256, (CHUNK,), dtype=torch.uint8), torch.zeros(CHUNK + 5, dtype=torch.uint8)])
    whole = entry_bytes(an_entry(tensors={"x": Blob(data)}))
    assert torch.equal(parsed(whole).tensors["x"].data, data)
    (tensor,) = split(whole)[0]["tensors"]
    stored = [chunk[0] for chunk in tensor["chunks"]]
    assert stored[0] == CHUNK
    assert stored[1] < CHUNK
    assert stored[2] == 5


def test_strided_tensors_are_stored_by_their_elements() -> None:
    data = torch.arange(24.0).view(4, 6).t()[::2]
    assert torch.equal(parsed(entry_bytes(an_entry(tensors={"x": Blob(data)}))).tensors["x"].data, data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scalars": {"x": None}}, "numbers, texts or truth values"),
        ({"scalars": {"x": [1.0]}}, "numbers, texts or truth values"),
        ({"digest": "x"}, "32 hexadecimal digits"),
        ({"tensors": {"x": Blob(torch.zeros(2), (), "zip")}}, "coding 'zip'"),
        ({"tensors": {"x": Blob(torch.zeros(2), (), "encoded:")}}, "coding"),
        ({"tensors": {"x": Blob(torch.zeros(2), (), "encoded:int8")}}, r"must be \[n\] uint8"),
        ({"tensors": {"x": Blob(torch.zeros(2), ((0, 3),))}}, "hold 3 elements and it has 2"),
        ({"tensors": {"x": Blob(torch.zeros(2), ((1, 0), (0, 3)))}}, "a range is none"),
        ({"tensors": {"x": Blob(torch.zeros(2, device="meta"))}}, "meta device"),
        ({"tensors": {"x": Blob(torch.zeros(2).to_sparse())}}, "only dense tensors"),
    ],
)
def test_what_an_entry_cannot_hold_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedState, match=message):
        entry_bytes(an_entry(**changes))


@given(st.data())
def test_every_flipped_bit_and_every_cut_is_found(data: st.DataObject) -> None:
    whole = entry_bytes(an_entry())
    position = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[position] ^= 1 << data.draw(st.integers(0, 7))
    for broken in (bytes(flipped), whole[:position], whole + whole[: position + 1]):
        with pytest.raises(DamagedCheckpoint):
            parsed(broken)


@given(st.binary(max_size=300))
def test_any_bytes_are_damage(data: bytes) -> None:
    with pytest.raises(DamagedCheckpoint):
        parsed(data)
    with pytest.raises(DamagedCheckpoint):
        parsed(finished(data))
    with pytest.raises(DamagedCheckpoint):
        parsed(finished(data.replace(b"\n", b"") + b"\n" + hashlib.sha256(data).hexdigest().encode() + b"\n"))


def test_an_entry_of_another_place_is_damage() -> None:
    for place in (Place(8, 5, 41, 1, 2), Place(7, 6, 41, 1, 2), Place(7, 5, 42, 1, 2), Place(7, 5, 41, 0, 2)):
        with pytest.raises(DamagedCheckpoint, match="holds the entry of"):
            parse_journal_entry(entry_bytes(an_entry()), place, "entry")


def finished(data: bytes) -> bytes:
    return data + hashlib.sha256(data).hexdigest().encode() + b"\n"


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    header, _, payload = data.split(b"\n", 2)
    return json.loads(header), payload[:-65]


def forged(header: dict[str, Any], payload: bytes) -> bytes:
    """An entry with every digest of its frame right."""
    return finished(seal(header) + payload)


def accepted(data: bytes) -> Entry | None:
    try:
        return parsed(data)
    except (DamagedCheckpoint, UnsupportedFormat, StateTooLarge):
        return None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(["raw", "float32", "uint8"]),
    lambda node: st.lists(node, max_size=3) | st.dictionaries(st.text(max_size=3), node, max_size=3),
    max_leaves=5,
)
HEADER, PAYLOAD = split(entry_bytes(an_entry()))


@given(st.sampled_from(sorted(HEADER)), JSON)
def test_any_value_in_any_field_is_damage_or_an_entry(key: str, value: Any) -> None:
    entry = accepted(forged({**HEADER, key: value}, PAYLOAD))
    assert entry is None or equal(parsed(entry_bytes(entry)), entry)


@given(st.integers(0, 5), st.sampled_from(sorted(HEADER["tensors"][0])), JSON)
def test_any_value_in_any_field_of_a_tensor_is_damage_or_an_entry(index: int, key: str, value: Any) -> None:
    tensors = [dict(tensor) for tensor in HEADER["tensors"]]
    tensors[index][key] = value
    entry = accepted(forged({**HEADER, "tensors": tensors}, PAYLOAD))
    assert entry is None or equal(parsed(entry_bytes(entry)), entry)


@given(st.data())
def test_altered_bytes_of_a_tensor_are_damage_though_the_frame_fits(data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(PAYLOAD) - 1))
    flipped = bytearray(PAYLOAD)
    flipped[position] ^= 1 << data.draw(st.integers(0, 7))
    entry = accepted(forged(HEADER, bytes(flipped)))
    assert entry is None or equal(entry, an_entry()), "some bits of a compressed frame mean nothing"
    assert accepted(forged(HEADER, PAYLOAD[:position])) is None
    assert accepted(forged(HEADER, PAYLOAD + PAYLOAD[: position + 1])) is None


def test_a_tensor_that_claims_to_be_huge_is_not_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [dict(tensor) for tensor in HEADER["tensors"]]
    first, second = (sum(stored for stored, _ in tensor["chunks"]) for tensor in tensors[:2])
    assert second < tensors[1]["length"]
    tensors[1] |= {"shape": [2**32], "length": 2**33, "chunks": [[1, "0" * 32]] * 2**11}
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2**33 - 1))
    allocated: list[object] = []
    monkeypatch.setattr(torch, "empty", lambda *size, **_: allocated.append(size))
    with pytest.raises(StateTooLarge, match="8589934592 bytes and 8589934591 bytes of memory are free"):
        parsed(forged({**HEADER, "tensors": tensors[1:2]}, bytes(2**11)))
    tensors[1] |= {"chunks": HEADER["tensors"][1]["chunks"]}
    with pytest.raises(DamagedCheckpoint, match="one for every"):
        parsed(forged({**HEADER, "tensors": tensors[1:2]}, PAYLOAD[first:][:second]))
    assert allocated == []


def test_the_tensors_of_an_entry_fit_into_memory_together_and_are_proven_in_that_of_a_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    zeros = {f"g{index}": Blob(torch.zeros(2**20, dtype=torch.uint8)) for index in range(8)}
    data = entry_bytes(Entry(PLACE, {}, zeros))
    assert len(data) < 2**12
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2**23 - 1))
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *_, **__: pytest.fail("memory was taken"))
    with pytest.raises(StateTooLarge, match="8388608 bytes and 8388607 bytes of memory are free"):
        parse_journal_entry(data, PLACE, "entry")
    prove_journal_entry(data, PLACE, "entry")
    monkeypatch.setattr(torch, "empty", empty)
    digest = xxhash.xxh3_128_hexdigest(bytes(2**20))
    header, payload = split(data)
    wrong = json.loads(json.dumps(header).replace(digest, "0" * 32, 1))
    with pytest.raises(DamagedCheckpoint, match="altered"):
        prove_journal_entry(forged(wrong, payload), PLACE, "entry")


def test_truth_values_of_an_entry_are_0_or_1() -> None:
    odd = torch.tensor([0, 1, 2, 255], dtype=torch.uint8)
    truths = parse_journal_entry(entry_bytes(Entry(PLACE, {}, {"a": Blob(odd.view(torch.bool))})), PLACE, "entry")
    assert truths.tensors["a"].data.view(torch.uint8).tolist() == [0, 1, 1, 1]
    header, payload = split(entry_bytes(Entry(PLACE, {}, {"a": Blob(odd)})))
    header["tensors"][0]["dtype"] = "bool"
    with pytest.raises(DamagedCheckpoint, match="neither 0 nor 1"):
        parse_journal_entry(forged(header, payload), PLACE, "entry")


def test_a_later_format_is_refused_with_what_to_do() -> None:
    with pytest.raises(UnsupportedFormat, match="install a newer gradwire"):
        parsed(forged({**HEADER, "format": 99, "kind": "something new"}, PAYLOAD))
