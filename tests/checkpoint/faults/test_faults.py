"""A sample of benchmarks/checkpoint_faults: every fault is survived, and the harness sees where one is not."""

import errno
import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import pytest

from benchmarks.checkpoint_faults.bit_flips import all_flips
from benchmarks.checkpoint_faults.bucket import Bucket, BucketPlace
from benchmarks.checkpoint_faults.bucket_faults import BUCKET_FAULTS, BucketFault, fail_requests, kill_everywhere
from benchmarks.checkpoint_faults.choices import Sample
from benchmarks.checkpoint_faults.classes import class_of
from benchmarks.checkpoint_faults.contenders import FOLDER, TorchSave, TorchSaveDurable
from benchmarks.checkpoint_faults.crashes import TEARS, cut_off
from benchmarks.checkpoint_faults.disk import Contents, Disk, Operation
from benchmarks.checkpoint_faults.disk_faults import DISK_FAULTS, DiskFault, crash_everywhere, fail_everywhere
from benchmarks.checkpoint_faults.gradwire_sessions import GradwireSession, on_disk
from benchmarks.checkpoint_faults.journal_sessions import JournalSession, journal_on_disk
from benchmarks.checkpoint_faults.places import DiskPlace, Place, Workload
from benchmarks.checkpoint_faults.races import JOURNAL_RACES, RACES, Race, race_everywhere
from benchmarks.checkpoint_faults.tally import Tally
from gradwire.checkpoint import CheckpointError
from gradwire.checkpoint.local import LocalObjects

SHORT = Workload(((1, 2, 3), (4,)))
EMPTY = Contents()
SEED = 5


def assert_all_survived(tally: Tally, faults: Collection[str]) -> None:
    """All faults were injected, and survived."""
    assert {fault for _, fault in tally.rows} >= set(faults)
    assert all(class_of(fault) for _, fault in tally.rows)
    assert {key: row.examples for key, row in tally.rows.items() if row.survived != row.injected} == {}


def names(faults: Iterable[DiskFault | BucketFault | Race]) -> set[str]:
    return {fault.name for fault in faults}


KILLED = {"killed before", "killed after", *(f"killed within a write: {how}" for how in TEARS)}


def test_kills_and_power_cuts_are_survived() -> None:
    sample, tally = Sample(SEED, operations=20, cases=2), Tally()
    for open_session in (on_disk, journal_on_disk):
        crash_everywhere(open_session.__name__, open_session, SHORT, tally, EMPTY, choices=1, choice=sample)
    assert_all_survived(tally, {*KILLED, "power cut, everything lost", "power cut, some of it lost"})


def test_power_cuts_are_survived_on_a_file_system_with_a_journal() -> None:
    sample, tally = Sample(SEED, operations=20, cases=1), Tally()
    crash_everywhere("gradwire", on_disk, SHORT, tally, Contents(ordered=True), choices=1, choice=sample)
    ends = ("everything lost", "some of it lost")
    assert_all_survived(tally, {f"power cut, {end}, on a file system with a journal" for end in ends})


def test_errors_of_the_disk_are_survived() -> None:
    sample, tally = Sample(SEED, operations=2, cases=1), Tally()
    for open_session in (on_disk, journal_on_disk):
        fail_everywhere(open_session.__name__, open_session, SHORT, tally, EMPTY, sample)
    assert_all_survived(tally, names(DISK_FAULTS))


def test_faults_of_an_object_store_are_survived() -> None:
    killed, failing, tally = Sample(SEED, 4, 1), Sample(SEED, 1, 1), Tally()
    for kind in (GradwireSession, JournalSession):
        kill_everywhere(kind, SHORT, tally, killed)
        fail_requests(kind, SHORT, tally, failing)
    assert_all_survived(tally, {"killed before a request", "killed after a request", *names(BUCKET_FAULTS)})


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


@pytest.mark.parametrize(
    ("place", "races"),
    [
        (lambda: DiskPlace(Contents(), on_disk), RACES),
        (lambda: BucketPlace(Bucket()), RACES),
        (lambda: DiskPlace(Contents(), journal_on_disk), JOURNAL_RACES),
    ],
    ids=["disk", "bucket", "journal"],
)
def test_races_are_survived(place: Callable[[], Place], races: tuple[Race, ...]) -> None:
    sample, tally = Sample(SEED, operations=1, cases=1), Tally()
    race_everywhere("gradwire", place, tally, races, sample)
    assert_all_survived(tally, names(races))


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
    crash_everywhere("careless", process, SHORT, tally, EMPTY, choices=1, choice=Sample(SEED, operations=20, cases=3))
    assert sum(row.lost + row.refused for row in tally.rows.values()) > 0


def test_the_harness_finds_what_is_overwritten_in_place_and_lets_pass_what_is_not() -> None:
    careless, careful = Tally(), Tally()
    folder = Contents.with_folder(str(FOLDER))
    crash_everywhere("in place", TorchSave, SHORT, careless, folder)
    crash_everywhere("renamed", TorchSaveDurable, SHORT, careful, folder)
    assert sum(row.refused + row.lost for row in careless.rows.values()) > 0
    assert_all_survived(careful, KILLED)
