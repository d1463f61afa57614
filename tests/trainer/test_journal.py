"""Runs that journal every update: killed, taken back to any update, and with a journal that does not lead anywhere."""

import dataclasses
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.comparison import differences, final_state, losses
from benchmarks.exact_resume_cases import Case
from benchmarks.runs import GRADWIRE, environment, finish, held, interrupt, lines, resume, train, train_until
from gradwire.checkpoint.journal import Place, entry_bytes, parse_journal_entry
from gradwire.trainer.config import ConfigError, compose, validate
from gradwire.trainer.journaling import DIGEST_EVERY

INT8 = ["comm=hierarchical", "comm/codec@comm.codecs.node=int8", "comm.topology={local: 1, node: 2}"]


@dataclass(frozen=True)
class Journalled(Case):
    """A run with a journal and no snapshots on the way."""

    how: str = "SIGKILL"
    extra: tuple[str, ...] = ()

    def overrides(self) -> list[str]:
        rest = [each for each in super().overrides() if not each.startswith("checkpoint.every")]
        return [*rest, "checkpoint=journal", *self.extra]


ALONE = Journalled("decoder", "fp16", 1, 2)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one rank in fp16, with dropout and a moving average, from beginning to end."""
    folder = tmp_path_factory.mktemp("journal") / "run"
    finish(train(folder, ALONE.overrides()))
    return folder


def replayed(output: str) -> int:
    """The update that a resumed run replayed to."""
    (last,) = re.findall(r"replayed updates 1 to (\d+) from the journal", output)
    return int(last)


TORCHRUN = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "1", "--no-python"]


def run_resume(*arguments: str, expected: int = 0, launcher: Sequence[str] = ()) -> str:
    """`gradwire resume`, on the screen."""
    command = [*launcher, *GRADWIRE, "resume", *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout + done.stderr


def check_same(left: Path, right: Path) -> None:
    assert differences(final_state(left), final_state(right)) == []
    assert losses(left) == losses(right)


@pytest.mark.slow
def test_a_killed_run_of_two_ranks_repeats_only_the_update_under_way(tmp_path: Path) -> None:
    case = Journalled("decoder", "bf16", 2, 2, extra=(*INT8, "batch=linear_warmup", "run.length=400 samples"))
    reference, run = tmp_path / "reference", tmp_path / "run"
    finish(train(reference, case.overrides()))
    train_until(run, case.overrides(), 13, "SIGKILL")
    assert replayed(resume(run)) >= 12
    check_same(reference, run)


@pytest.mark.slow
def test_a_finished_run_can_go_back_to_any_update(undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    subprocess.run(["cp", "-r", str(undisturbed), str(run)], check=True)
    output = run_resume(f"{run}@11", "--prove", "12")
    assert "nothing is proven: no digest was journalled and no snapshot saved in updates 1 to 11" in output
    assert replayed(output) == 11
    check_same(undisturbed, run)
    assert "can restore 0, 11 to 24" in run_resume(f"{run}@99", expected=3)


@pytest.mark.slow
def test_a_run_that_went_back_and_was_killed_goes_on_from_there(undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    subprocess.run(["cp", "-r", str(undisturbed), str(run)], check=True)
    process = subprocess.Popen(
        [*GRADWIRE, "resume", f"{run}@3"],
        env=held(6),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while len(lines(run)) > 20:  # until it has gone back; it is held before it has as many again
        assert process.poll() is None
        time.sleep(0.005)
    interrupt(process, run, 6, "SIGKILL")
    output = run_resume(str(run), "--prove", launcher=TORCHRUN)
    assert "proven: updates " in output or "nothing is proven" in output
    assert int(re.findall(r"continuing from update (\d+)", output)[-1]) >= 5
    check_same(undisturbed, run)


@pytest.mark.slow
def test_a_journal_that_leads_elsewhere_is_said_and_the_snapshot_taken(undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_until(run, ALONE.overrides(), DIGEST_EVERY + 1, "SIGKILL")
    (entry,) = (run / "checkpoints" / "journal").glob(f"*/*/{DIGEST_EVERY:020d}-0-of-1")
    place = Place.of(str(entry.relative_to(run / "checkpoints")))
    wrong = dataclasses.replace(parse_journal_entry(entry.read_bytes(), place, "entry"), digest="0" * 32)
    entry.write_bytes(entry_bytes(wrong))
    refused = run_resume(str(run), "--prove", expected=3)
    assert f"after update {DIGEST_EVERY} the replayed state is another" in refused and "Nothing was changed" in refused
    output = resume(run)
    assert f"after update {DIGEST_EVERY} the replayed state is another" in output
    assert "the run goes on from the snapshot of update 0" in output
    check_same(undisturbed, run)


@pytest.mark.slow
def test_what_codecs_carry_over_is_not_journalled_and_that_is_said(tmp_path: Path) -> None:
    feedback = [each.replace("int8", "int4") for each in INT8]
    case = Journalled("decoder", "fp32", 2, 1, extra=(*feedback, "run.length=4 updates"))
    output = finish(train(tmp_path / "run", case.overrides()))
    assert "updates are not journalled: codecs carry over what they lost" in output
    assert not (tmp_path / "run" / "checkpoints" / "journal").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [("strategy=single", "needs strategy=ddp"), ("comm.overlap=update", "one update late .* are not journalled")],
)
def test_what_cannot_be_journalled_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"checkpoint.journal.*{message}"):
        validate(compose(["checkpoint.journal=update", "launch.processes=1", override]))
