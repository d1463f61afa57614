import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.schedulers import Clock, Plan
from gradwire.trainer.data import (
    DataError,
    Feed,
    HuggingFace,
    HuggingFaceRows,
    HuggingFaceStream,
    Mixture,
    PythonSource,
    SampleStream,
    UpdateBatch,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three files with 60 documents of different lengths."""
    folder = tmp_path_factory.mktemp("documents")
    for part in range(3):
        rows = [
            {"text": f"<{part}.{row}>" + "abc" * (row * 7 % 13), "label": row, "ragged": [0] * row} for row in range(20)
        ]
        (folder / f"{part}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return sorted(map(str, folder.glob("*.jsonl")))


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))


def stream_of(files: list[str], shuffle: int = 4, context: int = 10) -> SampleStream:
    return SampleStream(HuggingFaceStream("json", data_files=files, context=context, shuffle=shuffle).train, seed=1)


def feed(stream: SampleStream, clock: Clock, rank: int = 0, world_size: int = 1) -> Feed:
    plan = Plan(lr=1.0, batch=7, run_length="210 samples")
    return Feed(stream, plan, clock, rank, world_size, micro=3)


def seen(updates: list[UpdateBatch]) -> list[list[int]]:
    return [
        row
        for update in updates
        for micro in update.micro_batches
        if micro.weight
        for row in micro.batch["input_ids"].tolist()
    ]


class TestByIndex:
    def test_documents_become_windows(self, files: list[str]) -> None:
        source = HuggingFace("json", data_files=files, context=10, validation_fraction=0.25)
        assert source.validation is not None
        assert source.decode(source.train[0]["input_ids"].tolist()) == "<0.0>\x1c<0.1"
        assert source.vocabulary == 256
        assert len(source.validation) * 3 - len(source.train) in range(-3, 4)

    def test_tokens_are_made_once(self, files: list[str], cache: Path) -> None:
        for _ in range(2):
            HuggingFace("json", data_files=files, context=10).train  # noqa: B018
        assert len(list(cache.glob("hf-*.bin"))) == 1

    def test_rows_are_samples(self, files: list[str]) -> None:
        source = HuggingFaceRows("json", data_files=files, columns=["label"], validation_fraction=0.1)
        assert source.validation is not None
        assert (len(source.train), len(source.validation)) == (54, 6)
        batch = SampleStream(source.train, 0).fetch(np.arange(54))
        assert torch.bincount(batch["label"]).tolist() == [3] * 14 + [2] * 6
        assert source.train[3]["label"].item() == 3

    def test_rows_of_different_lengths_are_refused(self, files: list[str]) -> None:
        source = HuggingFaceRows("json", data_files=files, columns=["ragged"])
        with pytest.raises(DataError, match="rows of column 'ragged' have different lengths"):
            source.train.gather(np.array([1, 2]))


class TestStreaming:
    def test_windows_go_over_the_borders_of_documents(self, files: list[str]) -> None:
        stream = stream_of(files, shuffle=1)
        batch = stream.fetch(np.arange(3))
        assert bytes(batch["input_ids"].flatten().tolist()) == (b"<0.0>\x1c<0.1>" + b"abc" * 7 + b"\x1c<0.2>")[:30]
        assert torch.equal(batch["labels"][:, :-1], batch["input_ids"][:, 1:])

    def test_shuffled_blocks_hold_the_same_windows(self, files: list[str]) -> None:
        plain = stream_of(files, shuffle=1).fetch(np.arange(40))["input_ids"].reshape(10, 4, 10)
        mixed = stream_of(files, shuffle=4).fetch(np.arange(40))["input_ids"].reshape(10, 4, 10)
        assert all(sorted(a.tolist()) == sorted(b.tolist()) for a, b in zip(plain, mixed, strict=True))
        assert not torch.equal(plain, mixed)

    @pytest.mark.parametrize("world_size", [1, 2, 3, 8])
    def test_samples_are_the_same_at_any_world_size_over_several_epochs(
        self, files: list[str], world_size: int
    ) -> None:
        by_rank = [list(feed(stream_of(files), Clock(), rank, world_size)) for rank in range(world_size)]
        together = [row for updates in zip(*by_rank, strict=True) for row in seen(list(updates))]
        assert together == stream_of(files).fetch(np.arange(210))["input_ids"].tolist()

    @pytest.mark.parametrize("shuffle", [1, 5, 64])
    def test_resumed_equals_undisturbed(self, files: list[str], shuffle: int) -> None:
        whole = seen(list(feed(stream_of(files, shuffle), Clock())))
        for stop in (1, 2, 13, 29):
            stream = stream_of(files, shuffle)
            updates = iter(feed(stream, Clock()))
            before = [next(updates) for _ in range(stop)]
            state = as_saved(stream.state_dict())
            resumed = stream_of(files, shuffle)
            resumed.load_state_dict(state)
            rest = list(feed(resumed, Clock(samples=7 * stop, updates=stop)))
            assert seen(before) + seen(rest) == whole

    def test_every_rank_has_the_same_position(self, files: list[str]) -> None:
        streams = [stream_of(files) for _ in range(3)]
        feeds = [iter(feed(stream, Clock(), rank, 3)) for rank, stream in enumerate(streams)]
        for _ in range(5):
            for one in feeds:
                next(one)
            positions = [repr(stream.state_dict()) for stream in streams]
            assert len(set(positions)) == 1

    @settings(max_examples=15)
    @given(ordinals=st.lists(st.integers(0, 250), min_size=1, max_size=6), mark=st.integers(0, 200))
    def test_a_sample_is_the_same_however_the_stream_got_there(
        self, files: list[str], ordinals: list[int], mark: int
    ) -> None:
        stream = stream_of(files)
        stream.advance(mark)
        expected = stream_of(files).fetch(np.arange(251))["input_ids"]
        assert stream.fetch(np.array(ordinals))["input_ids"].tolist() == expected[ordinals].tolist()
        again = stream_of(files)
        again.load_state_dict(stream.state_dict())
        assert torch.equal(again.fetch(np.array([mark]))["input_ids"][0], expected[mark])

    def test_rehearsal_on_the_first_samples_leaves_the_run_as_it_was(self, files: list[str]) -> None:
        stream = stream_of(files)
        stream.fetch(np.arange(30))
        assert seen(list(feed(stream, Clock()))) == seen(list(feed(stream_of(files), Clock())))

    def test_validation_is_the_beginning_of_its_split(self, files: list[str]) -> None:
        source = HuggingFaceStream("json", data_files=files, context=10, validation_split="train", validation_samples=5)
        assert source.validation is not None
        plain = stream_of(files, shuffle=1).fetch(np.arange(5))
        assert torch.equal(SampleStream(source.validation).take(np.arange(5))["labels"], plain["labels"])

    def test_validation_ends_with_its_split(self, files: list[str]) -> None:
        source = HuggingFaceStream("json", data_files=files, context=10, validation_split="train")
        characters = sum(
            len(json.loads(line)["text"]) + 1 for name in files for line in Path(name).read_text().splitlines()
        )
        assert source.validation is not None
        assert len(source.validation) == (characters - 1) // 10

    def test_takes_part_in_a_mixture_that_resumes(self, files: list[str]) -> None:
        def mixed() -> SampleStream:
            stream = HuggingFaceStream("json", data_files=files, context=10, shuffle=4)
            sources = {"code": PythonSource(10), "stream": stream}
            return SampleStream(Mixture(sources, {"code": 1.0, "stream": 2.0}, 12).train, 1)

        whole = seen(list(feed(mixed(), Clock())))
        stream = mixed()
        updates = iter(feed(stream, Clock(), rank=1, world_size=2))
        for _ in range(11):
            next(updates)
        resumed = mixed()
        resumed.load_state_dict(as_saved(stream.state_dict()))
        assert seen(list(feed(resumed, Clock(samples=77, updates=11)))) == whole[77:]

    def test_workers_are_refused(self, files: list[str]) -> None:
        plan = Plan(lr=1.0, batch=7, run_length="14 samples")
        with pytest.raises(DataError, match=r"data.workers=2, but this data is a stream .*set data.workers=0"):
            Feed(stream_of(files), plan, Clock(), micro=3, workers=2)

    def test_position_of_another_block_size_is_refused(self, files: list[str]) -> None:
        with pytest.raises(DataError, match="taken with shuffle=4, found shuffle=5"):
            stream_of(files, 5).load_state_dict(stream_of(files, 4).state_dict())

    def test_position_of_other_data_is_refused(self, files: list[str]) -> None:
        with pytest.raises(DataError, match="holds no position of a stream"):
            stream_of(files).load_state_dict({})

    def test_split_without_text_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_text('{"text": "short"}\n')
        source = HuggingFaceStream("json", data_files=str(tmp_path / "a.jsonl"), context=10, validation_split="train")
        with pytest.raises(DataError, match="fewer than the 11 tokens"):
            source.validation  # noqa: B018


def as_saved(state: Any) -> Any:
    """The state after a way through JSON, but for its tensors, as a snapshot keeps it."""
    if isinstance(state, dict):
        return {key: as_saved(value) for key, value in state.items()}
    if isinstance(state, list):
        return [as_saved(value) for value in state]
    if isinstance(state, torch.Tensor):
        return state.clone()
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("kind", [HuggingFace, HuggingFaceStream])
class TestMistakes:
    def test_missing_data_set(self, kind: type[Any], tmp_path: Path) -> None:
        source = kind("json", data_files=str(tmp_path / "none.jsonl"))
        with pytest.raises(DataError, match=r"the data set 'json' .*none.jsonl.* cannot be opened"):
            SampleStream(source.train)

    def test_missing_split(self, kind: type[Any], files: list[str]) -> None:
        with pytest.raises(DataError, match=r"split 'test'.* cannot be opened"):
            SampleStream(kind("json", data_files=files, split="test").train)

    def test_missing_column(self, kind: type[Any], files: list[str]) -> None:
        with pytest.raises(DataError, match=r"no column 'words': set data.text to one of text, label, ragged"):
            SampleStream(kind("json", data_files=files, text="words").train).fetch(np.arange(1))

    def test_column_without_text(self, kind: type[Any], files: list[str]) -> None:
        with pytest.raises(DataError, match="column 'label' holds int, expected text"):
            SampleStream(kind("json", data_files=files, text="label").train).fetch(np.arange(1))

    def test_context_out_of_range(self, kind: type[Any]) -> None:
        with pytest.raises(DataError, match="context must be at least 1"):
            kind("json", context=0)
