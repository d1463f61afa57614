"""Rank 0's job reaches all ranks as it is, and so does its mistake."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from gradwire.trainer.config import ConfigError, Mistake
from gradwire.trainer.launch.broadcast import receive, share
from gradwire.trainer.launch.errors import BroadcastError, HostLostError
from gradwire.trainer.launch.job import Job

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@given(st.dictionaries(st.text(), TREES), st.lists(st.text()), st.sampled_from([None, Path("/runs/a b")]))
def test_any_configuration_arrives_as_it_is(config, overrides, run_dir):
    job = Job(config, "evaluate", "120", ("mine.",), tuple(overrides), run_dir)
    store = HashStore()
    share(store, lambda: job)
    assert receive(store) == job


def test_a_mistake_on_rank_0_ends_every_rank_with_its_exit_code():
    store = HashStore()

    def prepare():
        raise ConfigError([Mistake("optimizer.lr", "override", "no number")])

    with pytest.raises(ConfigError):
        share(store, prepare)
    with pytest.raises(BroadcastError, match="no number") as error:
        receive(store)
    assert error.value.exit_code == 2


def test_a_silent_rank_0_is_reported():
    with pytest.raises(HostLostError, match="Rank 0"):
        receive(HashStore(), patience=0.1)
