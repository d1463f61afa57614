import shutil
from pathlib import Path

import pytest

from gradwire.checkpoint.errors import StoreFull
from gradwire.checkpoint.space import Demand, check, demand


def test_a_local_store_that_does_not_exist_yet_has_the_space_of_the_folder_above(tmp_path: Path) -> None:
    found = demand(str(tmp_path / "runs" / "store"), 7)
    assert found is not None
    assert found.needed == 7
    assert found.free == pytest.approx(shutil.disk_usage(tmp_path).free, abs=2**30)
    assert found.place == demand(f"file://{tmp_path}", 0).place  # type: ignore[union-attr]


def test_memory_has_no_free_space_to_look_at() -> None:
    assert demand("memory://store", 10**18) is None


def test_what_fits_exactly_is_let_through() -> None:
    check("url", [Demand("disk", 100, 60), Demand("disk", 100, 40), None])


def test_ranks_on_one_file_system_share_its_space() -> None:
    with pytest.raises(StoreFull, match=r"url: No space left.*about 101 bytes, and 99 are free"):
        check("url", [Demand("disk", 100, 60), Demand("disk", 99, 41)])


def test_ranks_on_file_systems_of_their_own_do_not() -> None:
    check("url", [Demand("host a", 100, 60), Demand("host b", 100, 60)])


def test_one_full_file_system_is_enough() -> None:
    with pytest.raises(StoreFull, match="about 60 bytes, and 59 are free"):
        check("url", [Demand("host a", 100, 60), Demand("host b", 59, 60)])
