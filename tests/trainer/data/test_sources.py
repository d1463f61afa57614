"""Sources of text, images and the user's own."""

import multiprocessing
import os
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
import yaml

import gradwire.conf
from gradwire.trainer.config import instantiate
from gradwire.trainer.data import DataError, Digits, Pair, PythonSource, SampleStream, Text
from gradwire.trainer.data.cache import cached
from gradwire.trainer.data.parts import is_validation
from tests.trainer.data.datasets_for_tests import Augmented, Numbers


class TestPythonSource:
    def test_is_split_by_file_and_needs_no_download(self, cache: Path) -> None:
        source = PythonSource(context=128)
        assert source.vocabulary == 256
        assert source.validation is not None
        assert len(source.train) > 40_000
        parts = [next(cache.glob(f"python-*-{part}-*.bin")) for part in ("train", "validation")]
        train_files, validation_files = (part.read_bytes().split(b"\x1c") for part in parts)
        own = Path(os.__file__).read_bytes()
        assert (own in validation_files) == is_validation("os.py", 0.05)
        assert (own in train_files) != (own in validation_files)
        share = len(validation_files) / (len(train_files) + len(validation_files))
        assert 0.02 < share < 0.09

    def test_is_made_once(self, cache: Path) -> None:
        PythonSource().train  # noqa: B018
        made = {path: path.stat().st_mtime_ns for path in cache.glob("*.bin")}
        assert torch.equal(PythonSource().train[5]["labels"], PythonSource(128).train[5]["labels"])
        assert made == {path: path.stat().st_mtime_ns for path in cache.glob("*.bin")}
        assert len(made) == 1  # validation is made when it is asked for

    def test_is_made_anew_where_the_cache_is_damaged(self, cache: Path) -> None:
        expected = len(PythonSource().train)
        os.truncate(next(cache.glob("*train*.bin")), 1000)
        assert len(PythonSource().train) == expected

    def test_text_and_ids_are_each_other_s_inverse(self) -> None:
        source = PythonSource()
        assert source.decode(source.encode("def é():")) == "def é():"
        assert source.decode([0xFF, 65]) == "�A"

    def test_validation_can_be_left_out(self) -> None:
        assert PythonSource(validation_fraction=0).validation is None

    @pytest.mark.parametrize(("key", "value"), [("context", 0), ("validation_fraction", 1.0)])
    def test_arguments_out_of_range_are_refused(self, key: str, value: float) -> None:
        with pytest.raises(DataError, match=f"{key} must be"):
            PythonSource(**{key: value})  # type: ignore[arg-type]

    def test_cache_that_cannot_be_written_is_a_clear_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
        with pytest.raises(DataError, match=r"cache folder cannot be made .*set XDG_CACHE_HOME"):
            PythonSource().train  # noqa: B018


def _make_once(folder: str, results: "multiprocessing.Queue[str]") -> None:
    os.environ["XDG_CACHE_HOME"] = folder

    def make(path: Path) -> None:
        results.put("made")
        path.with_suffix(".part").write_text("whole")
        path.with_suffix(".part").replace(path)

    results.put(cached("entry", Path.exists, make).read_text())


def test_processes_that_want_the_same_entry_make_it_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[str] = context.Queue()
    processes = [context.Process(target=_make_once, args=(str(tmp_path), results)) for _ in range(4)]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=300) for _ in range(5))
    for process in processes:
        process.join()
    assert found == ["made", "whole", "whole", "whole", "whole"]


class TestText:
    def test_keeps_the_last_tokens_for_validation(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes(bytes(range(100)))
        source = Text([str(tmp_path / "*.txt")], context=9, validation_fraction=0.2)
        assert source.validation is not None
        assert (len(source.train), len(source.validation)) == (8, 2)
        assert source.validation[1]["labels"].tolist() == list(range(90, 99))
        assert source.decode(source.train[7]["input_ids"].tolist()[2:5]) == "ABC"

    def test_takes_other_files_for_validation(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes(b"a" * 100)
        (tmp_path / "b.txt").write_bytes(b"b" * 50)
        source = Text(str(tmp_path / "a.txt"), str(tmp_path / "b.txt"), context=7)
        assert source.validation is not None
        assert (len(source.train), len(source.validation)) == (14, 7)
        assert source.validation[0]["input_ids"].tolist() == [98] * 7

    def test_reads_urls(self) -> None:
        files = fsspec.filesystem("memory")
        for name in ("one", "two"):
            files.pipe(f"/texts/{name}.txt", name.encode() * 10)
        source = Text("memory://texts/*.txt", context=4, validation_fraction=0)
        assert source.decode(source.train[0]["input_ids"].tolist()) == "oneo"
        assert len(source.train) == 15

    def test_is_made_anew_when_a_file_changes(self, tmp_path: Path) -> None:
        path = tmp_path / "a.txt"
        path.write_text("a" * 100)
        assert len(Text(str(path), context=9, validation_fraction=0).train) == 11
        path.write_text("b" * 200)
        changed = Text(str(path), context=9, validation_fraction=0)
        assert (len(changed.train), changed.train[0]["labels"][0].item()) == (22, ord("b"))

    @pytest.mark.parametrize(
        ("paths", "message"),
        [
            ("/no/such/file.txt", "/no/such/file.txt names no file"),
            ([], "no paths were given"),
            ("memory://nothing/*.txt", "memory://nothing/\\*.txt names no file"),
            ("memory://nothing/a.txt", "memory://nothing/a.txt cannot be reached: FileNotFoundError"),
            ("nope://bucket/a.txt", "nope://bucket/a.txt cannot be reached: ValueError: Protocol not known"),
            ("http://127.0.0.1:9/a.txt", "http://127.0.0.1:9/a.txt cannot be reached"),
        ],
    )
    def test_paths_that_lead_nowhere_are_refused_at_once(self, paths: str | list[str], message: str) -> None:
        with pytest.raises(DataError, match=message):
            Text(paths)

    def test_text_shorter_than_a_sample_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("short")
        with pytest.raises(DataError, match="holds 5 tokens, fewer than the 129"):
            Text(str(tmp_path / "a.txt"), validation_fraction=0).train  # noqa: B018

    def test_empty_file_is_refused_at_once(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").touch()
        with pytest.raises(DataError, match=r"a.txt is empty: expected text"):
            Text(str(tmp_path / "a.txt"))


class TestDigits:
    def test_are_images_in_0_to_1_with_ten_labels(self) -> None:
        source = Digits()
        assert source.validation is not None
        assert (len(source.train), len(source.validation), source.context) == (1438, 359, 1)
        batch = SampleStream(source.train, 0).fetch(np.arange(1438))
        assert batch["image"].shape == (1438, 1, 8, 8)
        assert batch["image"].dtype == torch.float32
        assert (batch["image"].min(), batch["image"].max()) == (0, 1)
        assert batch["label"].unique().tolist() == list(range(10))

    def test_split_depends_on_its_seed_alone_and_covers_all(self) -> None:
        def all_of(source: Digits) -> torch.Tensor:
            assert source.validation is not None
            parts = [part.gather(np.arange(len(part)))["image"] for part in (source.train, source.validation)]
            return torch.cat(parts).flatten(1)

        assert torch.equal(all_of(Digits()), all_of(Digits()))
        assert not torch.equal(all_of(Digits()), all_of(Digits(split_seed=1)))
        assert torch.equal(
            all_of(Digits()).unique(dim=0, return_counts=True)[1].sort()[0],
            all_of(Digits(split_seed=1)).unique(dim=0, return_counts=True)[1].sort()[0],
        )


class TestPair:
    def test_holds_the_users_own_datasets(self) -> None:
        source = Pair(Augmented(5), Numbers(3), context=7)
        assert (len(source.train), len(source.validation), source.context) == (5, 3, 7)

    def test_refuses_what_is_no_dataset(self) -> None:
        with pytest.raises(DataError, match="needs __len__ and __getitem__"):
            Pair(Numbers(3), object())


@pytest.mark.parametrize(
    "name",
    ["python_source", "text", "tokens", "digits", "hf", "hf_rows", "hf_stream", "mixture", "chat", "instruction"],
)
def test_yaml_builds_its_source_with_the_classs_own_defaults(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text " * 100_000)
    (tmp_path / "a.bin").write_bytes(bytes(100_000))
    node = yaml.safe_load((Path(gradwire.conf.__file__).parent / "data" / f"{name}.yaml").read_text())
    assert node.pop("workers") == 0
    missing = {"paths": str(tmp_path / "a.txt"), "path": str(tmp_path / "a.bin") if name == "tokens" else "text"}
    needed = [key for key, value in node.items() if value == "???"] + ["paths"] * (name in ("chat", "instruction"))
    if name == "tokens":
        node["dtype"] = "uint8"
    if name == "mixture":
        node["sources"]["text"]["paths"] = missing["paths"]
    source = instantiate(node | {key: missing[key] for key in needed})
    bare = (
        type(source)(**{key: missing[key] for key in needed}, **({"dtype": "uint8"} if name == "tokens" else {}))
        if name != "mixture"
        else source
    )
    plain = {key: value for key, value in vars(source).items() if isinstance(value, int | float | str | type(None))}
    assert plain == {key: vars(bare)[key] for key in plain}
    assert source.context == (1 if name in ("digits", "hf_rows") else 128)
