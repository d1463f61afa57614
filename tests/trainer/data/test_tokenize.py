import gzip
import itertools
import multiprocessing
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.trainer.data import DataError, Text, TokenFile, Tokens, tokenize
from gradwire.trainer.data.tokenize import pieces

WORDS = ["[UNK]", "</s>", "the", "cat", "sat", "on", "a", "mat", "."]


@pytest.fixture
def word_tokenizer(tmp_path: Path) -> str:
    """The folder of a Hugging Face tokenizer with nine words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "words"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="</s>").save_pretrained(folder)
    return str(folder)


def test_bytes_of_files_are_joined_with_a_separator(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"second")
    (tmp_path / "a.txt").write_bytes("früh".encode())
    info = tokenize(str(tmp_path / "*.txt"), tmp_path / "out.bin")
    assert (info.dtype, info.tokens, info.vocabulary, info.tokenizer) == ("uint8", 12, 256, "bytes")
    assert (tmp_path / "out.bin").read_bytes() == "früh".encode() + b"\x1csecond"


def test_compressed_files_are_expanded(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"plain text"))
    tokenize(str(tmp_path / "a.txt.gz"), tmp_path / "out.bin")
    assert (tmp_path / "out.bin").read_bytes() == b"plain text"


def test_hugging_face_tokenizer_writes_its_ids_and_reads_them_back(tmp_path: Path, word_tokenizer: str) -> None:
    (tmp_path / "a.txt").write_text("the cat sat\non a mat .\n")
    (tmp_path / "b.txt").write_text("the dog")
    info = tokenize([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")], tmp_path / "out.bin", word_tokenizer)
    assert (info.dtype, info.vocabulary, info.tokenizer) == ("uint8", 9, word_tokenizer)
    assert np.fromfile(tmp_path / "out.bin", np.uint8).tolist() == [2, 3, 4, 5, 6, 7, 8, 1, 2, 0]
    source = Tokens(str(tmp_path / "out.bin"), context=4, validation_fraction=0)
    assert source.decode([2, 3, 4]) == "the cat sat"
    assert source.encode("a mat") == [6, 7]
    with pytest.raises(DataError, match="token id 9 cannot be decoded"):
        source.decode([9])


def test_large_text_is_tokenized_in_pieces_with_the_same_ids(tmp_path: Path, word_tokenizer: str) -> None:
    lines = ["the cat sat on a mat ." for _ in range(40_000)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    info = tokenize(str(tmp_path / "a.txt"), tmp_path / "out.bin", word_tokenizer)
    assert info.tokens == 7 * 40_000
    assert set(map(tuple, np.fromfile(tmp_path / "out.bin", np.uint8).reshape(-1, 7))) == {(2, 3, 4, 5, 6, 7, 8)}


@settings(max_examples=50)
@given(
    lines=st.lists(st.tuples(st.sampled_from(["x", " y", "é", ""]), st.integers(0, 60_000)), max_size=12),
    cuts=st.lists(st.integers(1, 400_000), max_size=6),
)
def test_pieces_are_the_text_whatever_its_chunks(lines: list[tuple[str, int]], cuts: list[int]) -> None:
    text = "\n".join(start + "z" * length for start, length in lines).encode()
    chunks, rest = [], text
    for cut in cuts:
        chunks.append(rest[:cut])
        rest = rest[cut:]
    found = list(pieces([*chunks, rest]))
    assert b"".join(found) == text
    assert found == list(pieces([text]))
    assert all(before.endswith(b"\n") and not after[:1].isspace() for before, after in itertools.pairwise(found))


def test_text_without_lines_is_cut_between_characters() -> None:
    text = "é".encode() * 5_000_000
    found = list(pieces([b"a" + text]))
    assert b"".join(found) == b"a" + text
    assert len(found) == 3
    assert all(piece.decode("utf-8") for piece in found)


def _peak(source: str, target: str) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    tokenize(source, target)
    grown = (process.memory_info().rss - before) / 1e6
    assert grown < 60, f"{grown} MB"


def test_memory_stays_constant(tmp_path: Path) -> None:
    with (tmp_path / "a.txt").open("wb") as file:
        for _ in range(300):
            file.write(b"some text on a line\n" * 50_000)
    process = multiprocessing.get_context("spawn").Process(
        target=_peak, args=(str(tmp_path / "a.txt"), str(tmp_path / "out.bin"))
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    assert len(TokenFile(tmp_path / "out.bin")) == 300_000_000


class TestMistakes:
    def test_source_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"none\*.txt names no file .*give an existing file"):
            tokenize(str(tmp_path / "none*.txt"), tmp_path / "out.bin")

    def test_source_is_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"is a folder .*/\*\*/\*.txt"):
            tokenize(str(tmp_path), tmp_path / "out.bin")

    def test_source_is_empty(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").touch()
        with pytest.raises(DataError, match=r"a.txt is empty: expected text"):
            tokenize(str(tmp_path / "a.txt"), tmp_path / "out.bin")
        assert not (tmp_path / "out.bin").exists()

    def test_compressed_source_is_empty(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b""))
        with pytest.raises(DataError, match="the text is empty"):
            tokenize(str(tmp_path / "a.txt.gz"), tmp_path / "out.bin")
        assert not (tmp_path / "out.bin").exists()

    def test_source_is_no_text(self, tmp_path: Path, word_tokenizer: str) -> None:
        (tmp_path / "a.txt").write_bytes(b"the cat \xff\xfe")
        with pytest.raises(DataError, match=r"not UTF-8 .*the cat.*or use tokenizer=bytes"):
            tokenize(str(tmp_path / "a.txt"), tmp_path / "out.bin", word_tokenizer)

    def test_tokenizer_is_missing(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("text")
        with pytest.raises(DataError, match=r"the tokenizer '.*none' cannot be loaded .*: give bytes"):
            tokenize(str(tmp_path / "a.txt"), tmp_path / "out.bin", str(tmp_path / "none"))

    @pytest.mark.parametrize("target", ["", "none/out.bin", "memory://out.bin"])
    def test_target_cannot_be_written(self, tmp_path: Path, target: str) -> None:
        (tmp_path / "a.txt").write_text("text")
        with pytest.raises(DataError, match="cannot be written: expected the path of a file in a local folder"):
            tokenize(str(tmp_path / "a.txt"), target if "://" in target else tmp_path / target)


def test_text_uses_a_hugging_face_tokenizer_and_makes_its_tokens_anew_for_another(
    tmp_path: Path, word_tokenizer: str, cache: Path
) -> None:
    (tmp_path / "a.txt").write_text("the cat sat on a mat . " * 100)
    words = Text(str(tmp_path / "a.txt"), context=7, tokenizer=word_tokenizer)
    assert words.train[3]["input_ids"].tolist() == [2, 3, 4, 5, 6, 7, 8]
    assert (words.vocabulary, len(words.train)) == (9, 94)
    assert len(Text(str(tmp_path / "a.txt"), context=7).train) == 312
    assert len(list(cache.glob("text-*.bin"))) == 2
