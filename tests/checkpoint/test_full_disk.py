"""A disk that is really full."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gradwire.checkpoint import Checkpointer, CheckpointWriteError, State, StoreFull
from tests.checkpoint.states import same_state, state_at


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Free space is not looked at beforehand, as on an object store."""
    monkeypatch.setattr("gradwire.checkpoint.saving.demand", lambda *_: None)


def test_a_snapshot_for_which_there_is_no_room_is_not_begun(small_disk: Path) -> None:
    checkpointer = Checkpointer(str(small_disk))
    checkpointer.save(state_at(1), {"updates": 1})
    before = files(small_disk)
    with pytest.raises(CheckpointWriteError, match=r"rank 0: .*No space left on device for this.*Free space") as raised:
        checkpointer.save(State({"model": torch.randn(10 * 2**18)}), {"updates": 2})
    assert isinstance(raised.value.__cause__, StoreFull)
    assert files(small_disk) == before


@pytest.mark.usefixtures("nobody_looks")
@pytest.mark.parametrize("megabytes", [20, 80])
def test_a_full_disk_is_a_clear_error_and_the_previous_snapshot_stays(small_disk: Path, megabytes: int) -> None:
    checkpointer = Checkpointer(str(small_disk))
    checkpointer.save(state_at(1), {"updates": 1})
    before = files(small_disk)
    large = State({"small": torch.randn(1000), "model": torch.randn(megabytes * 2**18)})
    for _ in range(2):
        with pytest.raises(CheckpointWriteError, match=r"rank 0: .*No space left on device.*Free space") as raised:
            checkpointer.save(large, {"updates": 2})
        assert isinstance(raised.value.__cause__, StoreFull)
        assert files(small_disk) == before
    state, commit = Checkpointer(str(small_disk)).restore()
    assert commit.update == 1
    assert same_state(state, state_at(1))
    checkpointer.save(state_at(3), {"updates": 3})
    assert checkpointer.restore()[1].update == 3


@pytest.mark.usefixtures("nobody_looks")
def test_a_disk_that_fills_up_at_the_commit_keeps_the_previous_snapshot(small_disk: Path) -> None:
    checkpointer = Checkpointer(str(small_disk))
    checkpointer.save(state_at(1), {"updates": 1})
    ballast = small_disk / "ballast"
    updates = 1
    with ballast.open("wb") as file, pytest.raises(CheckpointWriteError, match="No space left on device"):
        while True:
            updates += 1
            checkpointer.save(state_at(updates, 10_000), {"updates": updates})
            file.write(bytes(40_000))
            file.flush()
    ballast.unlink()
    assert updates > 2
    assert not list(small_disk.rglob(".tmp-*"))
    state, commit = Checkpointer(str(small_disk)).restore()
    assert commit.update == updates - 1
    assert same_state(state, state_at(updates - 1, 10_000))


def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("not a folder")
    with pytest.raises(CheckpointWriteError, match=f"rank 0: {target}.*a folder of its own"):
        Checkpointer(str(target)).save(state_at(1), {"updates": 1})
