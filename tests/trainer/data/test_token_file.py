import json
import multiprocessing
import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.trainer.data import DataError, SampleStream, TokenFile, Tokens, TokenWindows
from gradwire.trainer.data.token_file import is_whole, write_tokens
from gradwire.trainer.data.token_info import TokenInfo

_DRAW = """
import sys
import numpy as np, psutil
from gradwire.trainer.data import SampleStream, Tokens

process = psutil.Process()
read, before = process.io_counters().read_chars, process.memory_info().rss
source = Tokens(sys.argv[1], context=256, dtype="uint16", vocabulary=50257)
stream = SampleStream(source.train, seed=1)
read = process.io_counters().read_chars - read
most = drawn = 0
for first in range(0, 100_000, 32):
    drawn += len(stream.fetch(np.arange(first, first + 32))["input_ids"])
    if first % 3200 == 0:
        most = max(most, process.memory_info().rss)
print(read, (max(most, process.memory_info().rss) - before) / 1e6, drawn, stream.epoch_samples)
"""


def array_file(folder: Path, ids: np.ndarray, name: str = "tokens.bin") -> Path:
    path = folder / name
    ids.tofile(path)
    return path


@pytest.mark.slow
def test_fifty_gigabytes_open_at_once_and_cost_next_to_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate(50 * 10**9)
    out = subprocess.run([sys.executable, "-c", _DRAW, path], check=True, capture_output=True, text=True).stdout.split()
    read_to_open, megabytes, drawn, windows = map(float, out)
    assert drawn == 100_000
    assert windows == (25 * 10**9 - round(25 * 10**9 * 0.01) - 1) // 256
    assert megabytes < 50
    assert read_to_open < 1e6


@settings(max_examples=40)
@given(
    tokens=st.integers(2, 400),
    context=st.integers(1, 30),
    width=st.sampled_from(["uint8", "uint16", "uint32"]),
    data=st.data(),
)
def test_window_i_is_the_tokens_from_i_times_context(
    tmp_path_factory: pytest.TempPathFactory, tokens: int, context: int, width: str, data: st.DataObject
) -> None:
    context = min(context, tokens - 1)
    ids = np.random.default_rng(0).integers(0, np.iinfo(width).max, tokens, dtype=width, endpoint=True)
    windows = TokenWindows(TokenFile(array_file(tmp_path_factory.mktemp("ids"), ids), width), context)  # type: ignore[arg-type]
    assert len(windows) == (tokens - 1) // context
    index = data.draw(st.integers(0, len(windows) - 1))
    expected = torch.from_numpy(ids[index * context : index * context + context + 1].astype(np.int64))
    assert torch.equal(windows[index]["input_ids"], expected[:-1])
    assert torch.equal(windows[index]["labels"], expected[1:])
    assert windows[index]["labels"].dtype == torch.int64


def test_windows_outside_are_refused(tmp_path: Path) -> None:
    windows = TokenWindows(TokenFile(array_file(tmp_path, np.zeros(10, np.uint8)), "uint8"), 3)
    with pytest.raises(IndexError, match="windows are numbered 0 … 2, found 1 to 3"):
        windows.gather(np.array([1, 3]))


def test_tail_is_for_validation_and_the_parts_share_no_window(tmp_path: Path) -> None:
    source = Tokens(
        str(array_file(tmp_path, np.arange(200, dtype=np.uint8))), context=10, dtype="uint8", validation_fraction=0.25
    )
    assert source.validation is not None
    assert (len(source.train), len(source.validation)) == (14, 4)
    assert source.train[13]["labels"].tolist() == list(range(131, 141))
    assert source.validation[0]["input_ids"].tolist() == list(range(150, 160))


def test_separate_validation_file_leaves_the_first_whole(tmp_path: Path) -> None:
    train = array_file(tmp_path, np.arange(101, dtype=np.uint16), "a.bin")
    other = array_file(tmp_path, np.arange(1000, 1021, dtype=np.uint16), "b.bin")
    source = Tokens(str(train), str(other), context=10, dtype="uint16")
    assert source.validation is not None
    assert (len(source.train), len(source.validation)) == (10, 2)
    assert source.validation[1]["labels"].tolist() == list(range(1011, 1021))


def test_description_gives_dtype_vocabulary_and_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    write_tokens(path, [np.frombuffer(b"hello world, ", np.uint8)] * 100, 256, "bytes")
    source = Tokens(str(path), context=8)
    assert (source.vocabulary, source.context, len(source.train)) == (256, 8, 160)
    assert source.decode(source.train[0]["input_ids"].tolist()) == "hello wo"
    assert source.encode("é") == [0xC3, 0xA9]


def test_tokens_without_a_tokenizer_have_no_text(tmp_path: Path) -> None:
    source = Tokens(str(array_file(tmp_path, np.zeros(1000, np.uint16))), context=4, dtype="uint16")
    assert not hasattr(source, "encode")
    assert source.vocabulary is None


def test_file_travels_to_another_process(tmp_path: Path) -> None:
    file = TokenFile(array_file(tmp_path, np.arange(10, dtype=np.uint8)), "uint8")
    assert file.read([2], 3).tolist() == [[2, 3, 4]]
    assert pickle.loads(pickle.dumps(file)).read([4], 2).tolist() == [[4, 5]]  # noqa: S301 - our own


def test_descriptor_is_closed_with_the_file(tmp_path: Path) -> None:
    path = array_file(tmp_path, np.arange(10, dtype=np.uint8)).resolve()
    file = TokenFile(path, "uint8")
    file.read([0], 1)
    assert [each.resolve() for each in Path("/proc/self/fd").iterdir()].count(path) == 1
    del file
    assert path not in [each.resolve() for each in Path("/proc/self/fd").iterdir()]


def test_writing_replaces_a_file_whole_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    write_tokens(path, [np.array([1, 2, 70_000])], 70_001, "some")
    info = write_tokens(path, [np.array([1, 2]), np.array([300])], 301, "other")
    assert info == TokenInfo.read(path) == TokenInfo("uint16", 3, 301, "other")
    assert TokenFile(path).read([0], 3).tolist() == [[1, 2, 300]]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["tokens.bin", "tokens.bin.json"]


def test_writing_that_fails_leaves_the_file_of_before(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    write_tokens(path, [np.array([1, 2])], 256, "bytes")

    def pieces() -> object:
        yield np.array([3])
        raise DataError("the source broke off")

    with pytest.raises(DataError, match="broke off"):
        write_tokens(path, pieces(), 256, "bytes")  # type: ignore[arg-type]
    assert TokenFile(path).read([0], 2).tolist() == [[1, 2]]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["tokens.bin", "tokens.bin.json"]


def test_folder_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(DataError, match=r"tokens.bin cannot be written: .*No such file or directory"):
        write_tokens(Path("/no/such/folder/tokens.bin"), [np.array([1])], 256, "bytes")


def _write_with_little_room(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    with pytest.raises(DataError, match=r"tokens.bin cannot be written: .*File too large"):
        write_tokens(folder / "tokens.bin", [np.zeros(5000)], 256, "bytes")
    assert list(folder.iterdir()) == []


def test_disk_that_is_full_leaves_no_half_a_file(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_write_with_little_room, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0


class TestBadFiles:
    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"there is no token file .*none.bin.*gradwire tokenize"):
            Tokens(str(tmp_path / "none.bin"))

    def test_folder(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="there is no token file"):
            Tokens(str(tmp_path), dtype="uint8")

    def test_url(self) -> None:
        with pytest.raises(DataError, match=r"s3://bucket/a.bin is a URL.*copy it there"):
            Tokens("s3://bucket/a.bin")

    def test_empty(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"empty.bin is empty: expected tokens"):
            Tokens(str(array_file(tmp_path, np.zeros(0, np.uint8), "empty.bin")), dtype="uint8")

    def test_dtype_unknown(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"unknown: set data.dtype to one of uint8, uint16, uint32"):
            Tokens(str(array_file(tmp_path, np.zeros(1000, np.uint8))))

    def test_dtype_that_there_is_not(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="one of uint8, uint16, uint32, found 'int64'"):
            Tokens(str(array_file(tmp_path, np.zeros(1000, np.int64))), dtype="int64")  # type: ignore[arg-type]

    def test_dtype_that_does_not_divide_the_size(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"holds 1001 bytes, which is 500.5 tokens of uint16; expected a whole"):
            Tokens(str(array_file(tmp_path, np.zeros(1001, np.uint8))), dtype="uint16")

    def test_dtype_against_the_description(self, tmp_path: Path) -> None:
        path = tmp_path / "a.bin"
        write_tokens(path, [np.zeros(1000)], 256, "bytes")
        with pytest.raises(DataError, match=r"uint8 according to a.bin.json, found dtype=uint16: leave dtype out"):
            Tokens(str(path), dtype="uint16")

    def test_wrong_dtype_shows_in_ids_beyond_the_vocabulary(self, tmp_path: Path) -> None:
        path = array_file(tmp_path, np.full(2000, 7, np.uint8))
        source = Tokens(str(path), context=8, dtype="uint16", vocabulary=300)
        with pytest.raises(DataError, match="token id 1799 at position 16, expected ids below the vocabulary of 300"):
            source.train.gather(np.array([2]))

    def test_shorter_than_a_sample(self, tmp_path: Path) -> None:
        path = array_file(tmp_path, np.zeros(256, np.uint8))
        with pytest.raises(DataError, match="256 tokens, fewer than the 257 that one sample of context 256 takes"):
            Tokens(str(path), context=256, dtype="uint8", validation_fraction=0)

    def test_validation_shorter_than_a_sample(self, tmp_path: Path) -> None:
        path = array_file(tmp_path, np.zeros(1000, np.uint8))
        with pytest.raises(DataError, match=r"holds 10 tokens between 990 and 1000, fewer than .*validation fraction"):
            Tokens(str(path), dtype="uint8")

    def test_cut_short_since_it_was_written(self, tmp_path: Path) -> None:
        path = tmp_path / "a.bin"
        write_tokens(path, [np.zeros(1000)], 256, "bytes")
        os.truncate(path, 900)
        assert not is_whole(path)
        with pytest.raises(DataError, match=r"holds 900 bytes, .*expected 1000 tokens: the file is cut short"):
            Tokens(str(path))

    def test_cut_short_while_it_is_read(self, tmp_path: Path) -> None:
        path = array_file(tmp_path, np.zeros(10_000, np.uint8))
        stream = SampleStream(Tokens(str(path), context=10, dtype="uint8").train)
        os.truncate(path, 10)
        with pytest.raises(DataError, match="though it held 10000 tokens when it was opened: do not change data"):
            stream.fetch(np.arange(8))

    @pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"format": "other"}', '{"format": "gradwire-tokens-1"}'])
    def test_description_that_is_none(self, tmp_path: Path, text: str) -> None:
        path = array_file(tmp_path, np.zeros(1000, np.uint8))
        TokenInfo.path_for(path).write_text(text)
        with pytest.raises(DataError, match="does not describe a token file"):
            Tokens(str(path))

    def test_description_of_a_type_that_there_is_not(self, tmp_path: Path) -> None:
        path = tmp_path / "a.bin"
        write_tokens(path, [np.zeros(1000)], 256, "bytes")
        beside = TokenInfo.path_for(path)
        beside.write_text(json.dumps(json.loads(beside.read_text()) | {"dtype": "object"}))
        with pytest.raises(DataError, match="does not describe a token file"):
            Tokens(str(path))

    def test_undecodable_ids(self, tmp_path: Path) -> None:
        path = tmp_path / "a.bin"
        write_tokens(path, [np.zeros(1000)], 256, "bytes")
        with pytest.raises(DataError, match="token id 256 cannot be decoded: the tokenizer 'bytes' knows ids 0 … 255"):
            Tokens(str(path), context=8).decode([65, 256])

    @pytest.mark.parametrize(("key", "value"), [("context", 0), ("validation_fraction", 1.0)])
    def test_arguments_out_of_range(self, tmp_path: Path, key: str, value: float) -> None:
        path = array_file(tmp_path, np.zeros(1000, np.uint8))
        with pytest.raises(DataError, match=f"{key} must be"):
            Tokens(str(path), dtype="uint8", **{key: value})  # type: ignore[arg-type]
