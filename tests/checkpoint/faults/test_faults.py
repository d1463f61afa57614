"""A sample of benchmarks/checkpoint_faults: every fault is survived, and the harness sees where one is not."""

import errno
import os
from pathlib import Path

import pytest

from benchmarks.checkpoint_faults.bit_flips import all_flips
from benchmarks.checkpoint_faults.bucket import Bucket, BucketPlace
from benchmarks.checkpoint_faults.bucket_faults import fail_requests, kill_everywhere
from benchmarks.checkpoint_faults.contenders import FOLDER, TorchSave, TorchSaveDurable
from benchmarks.checkpoint_faults.crashes import cut_off
from benchmarks.checkpoint_faults.disk import Contents, Disk, Operation
from benchmarks.checkpoint_faults.disk_faults import crash_everywhere, fail_everywhere
from benchmarks.checkpoint_faults.gradwire_sessions import GradwireSession, on_disk
from benchmarks.checkpoint_faults.journal_sessions import JournalSession, journal_on_disk
from benchmarks.checkpoint_faults.places import DiskPlace, Workload
from benchmarks.checkpoint_faults.races import JOURNAL_RACES, race_everywhere
from benchmarks.checkpoint_faults.tally import Tally
from gradwire.checkpoint import CheckpointError
from gradwire.checkpoint.local import LocalObjects

SHORT = Workload(((1, 2, 3), (4,)))
EMPTY = Contents()


def assert_all_survived(tally: Tally, least: int) -> None:
    assert sum(row.injected for row in tally.rows.values()) >= least
    assert {key: row.examples for key, row in tally.rows.items() if row.survived != row.injected} == {}


@pytest.mark.parametrize("ordered", [False, True], ids=["posix", "journal"])
def test_kills_and_power_cuts_are_survived(ordered: bool) -> None:
    tally = Tally()
    crash_everywhere("gradwire", on_disk, SHORT, tally, Contents(ordered=ordered), choices=1, every=11)
    assert_all_survived(tally, 30)


def test_errors_of_the_disk_are_survived() -> None:
    tally = Tally()
    fail_everywhere("gradwire", on_disk, SHORT, tally, EMPTY, every=41)
    assert_all_survived(tally, 30)


def test_faults_of_an_object_store_are_survived() -> None:
    tally = Tally()
    kill_everywhere(GradwireSession, SHORT, tally, every=5)
    fail_requests(GradwireSession, SHORT, tally, every=41)
    assert_all_survived(tally, 30)


def test_a_journal_survives_kills_errors_old_listings_and_zombies() -> None:
    tally = Tally()
    crash_everywhere("journal", journal_on_disk, SHORT, tally, EMPTY, choices=1, every=20)
    fail_everywhere("journal", journal_on_disk, SHORT, tally, EMPTY, every=80)
    fail_requests(JournalSession, SHORT, tally, every=40)
    race_everywhere("journal", lambda: DiskPlace(Contents(), journal_on_disk), tally, every=40, races=JOURNAL_RACES)
    assert_all_survived(tally, 40)


def test_what_is_replayed_is_durable_before_a_run_goes_on_from_it() -> None:
    disk = Disk(Contents.with_folder(str(FOLDER)))
    first = journal_on_disk(disk)
    first.save(2)
    disk.hook = failing_folders
    with pytest.raises(CheckpointError, match="Input/output error"):
        first.save(3)
    first.end()
    disk.hook = None
    later = journal_on_disk(disk)
    assert later.restore() == 3, "its entry can be read"
    later.save(5)
    later.end()
    assert journal_on_disk(Disk(cut_off(disk.contents, set(), {}))).restore() == 5


def failing_folders(_: int, operation: Operation) -> None:
    if operation.kind == "sync_folder":
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_races_are_survived(place: str) -> None:
    tally = Tally()
    places = {"disk": lambda: DiskPlace(Contents(), on_disk), "bucket": lambda: BucketPlace(Bucket())}
    race_everywhere(place, places[place], tally, every=17)
    assert_all_survived(tally, 8)


def test_every_flipped_bit_is_detected_here_and_none_in_the_tensors_of_others() -> None:
    flips = all_flips(12)
    assert {each.contender for each in flips} == {"gradwire", "torch.save", "torch DCP", "safetensors"}
    for each in flips:
        assert each.flipped >= 12
        if each.contender == "gradwire":
            assert each.detected == each.flipped
        elif each.region == "in a tensor's bytes":
            assert (each.detected, each.altered) == (0, each.flipped)


class WithoutFsync(Disk):
    """A process that never fsyncs a file."""

    def sync(self, file: int) -> None: ...


class WithoutFolderFsync(Disk):
    """A process that never fsyncs a folder."""

    def sync_folder(self, path: Path) -> None: ...


@pytest.mark.parametrize("careless", [WithoutFsync, WithoutFolderFsync])
def test_the_harness_finds_what_is_not_made_durable(careless: type[Disk]) -> None:
    def process(disk: Disk) -> GradwireSession:
        negligent = careless(disk.contents, disk.hook)
        negligent.log = disk.log
        return GradwireSession(lambda: LocalObjects(FOLDER, negligent))

    tally = Tally()
    crash_everywhere("careless", process, SHORT, tally, EMPTY, choices=1, every=40)
    assert sum(row.lost + row.refused for row in tally.rows.values()) > 0


def test_the_harness_finds_what_is_overwritten_in_place_and_lets_pass_what_is_not() -> None:
    careless, careful = Tally(), Tally()
    folder = Contents.with_folder(str(FOLDER))
    crash_everywhere("in place", TorchSave, SHORT, careless, folder, every=2)
    crash_everywhere("renamed", TorchSaveDurable, SHORT, careful, folder, every=2)
    assert sum(row.refused + row.lost for row in careless.rows.values()) > 0
    assert_all_survived(careful, 20)
