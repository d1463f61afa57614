import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.trainer.config.names import nearest, nearest_key

KNOWN = ("optimizer.lr", "optimizer.weight_decay", "data.context", "data.workers", "batch.size", "clip", "run.length")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("data.contxt", "data.context"),
        ("dat.context", "data.context"),
        ("context", "data.context"),
        ("batch_size", "batch.size"),
        ("learning_rate", "optimizer.lr"),
        ("optimizer.clip", "clip"),
        ("optimizer.wd", "optimizer.weight_decay"),
        ("max_steps", "run.length"),
        ("zzz", None),
    ],
)
def test_a_wrong_key_finds_the_right_one(wrong: str, right: str | None) -> None:
    parent = wrong.rpartition(".")[0]
    siblings = [key.rpartition(".")[2] for key in KNOWN if key.rpartition(".")[0] == parent]
    assert nearest_key(wrong, siblings, KNOWN) == right


def test_a_name_elsewhere_is_offered_only_if_it_exists() -> None:
    assert nearest_key("learning_rate", [], ["clip"]) is None


@given(st.lists(st.text("abcdefgh", min_size=1), min_size=1))
def test_a_right_name_is_nearest_to_itself(names: list[str]) -> None:
    assert nearest(names[0], names) == names[0]
