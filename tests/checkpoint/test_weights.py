from pathlib import Path

import pytest
import torch

from gradwire.checkpoint import Checkpointer, DamagedCheckpoint, NoCheckpoint, State, UnsupportedState, load_weights
from tests.checkpoint.states import same, state_at


@pytest.fixture
def run(tmp_path: Path) -> Path:
    checkpointer = Checkpointer(tmp_path / "checkpoints")
    for update in (1, 2):
        checkpointer.save(state_at(update), {"updates": update})
    return tmp_path


def test_weights_are_found_in_a_store_and_in_a_run_directory(run: Path) -> None:
    for place in (run, str(run), f"{run}/", run / "checkpoints", f"file://{run}"):
        weights, commit = load_weights(place)
        assert commit.update == 2
        assert same(weights, state_at(2).shared["model"])


def test_an_exact_update_can_be_had(run: Path) -> None:
    assert same(load_weights(run, 1)[0], state_at(1).shared["model"])
    with pytest.raises(NoCheckpoint, match="it has updates: 1, 2"):
        load_weights(run, 3)


def test_the_newest_whole_one_is_taken(run: Path) -> None:
    (run / "checkpoints" / Checkpointer(run / "checkpoints").at(2).parts[0].name).unlink()
    assert load_weights(run)[1].update == 1
    with pytest.raises(DamagedCheckpoint, match="update 2"):
        load_weights(run, 2)


def test_a_place_without_snapshots_is_named_as_it_was_tried(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpoint, match=f"neither {tmp_path} nor {tmp_path}/checkpoints holds a snapshot"):
        load_weights(tmp_path)


@pytest.mark.parametrize(
    ("shared", "message"),
    [({"net": torch.ones(1), "lr": 1}, "has no 'model'; it has net, lr"), ({"model": 3}, "not a dict of tensors")],
)
def test_a_state_without_weights_is_refused(shared: dict[str, object], message: str, tmp_path: Path) -> None:
    Checkpointer(tmp_path).save(State(shared), {"updates": 1})
    with pytest.raises(UnsupportedState, match=message):
        load_weights(tmp_path)
