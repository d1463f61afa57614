"""Under DeepSpeed a run is what it is under the other strategies: losses, snapshots, features.

Ranks import DeepSpeed when they need it, which takes seconds: all of a number of ranks happens in one launch.
"""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks.strategies import (
    TOLERANCE,
    apart,
    feature_log,
    feature_runs,
    judge,
    read,
    resume_runs,
    start_log,
    start_runs,
)
from benchmarks.strategy_overhead import measure
from benchmarks.strategy_runs import CPU, SEVERAL, ZERO, Way, decoder, spawned, strategy_of
from gradwire.comm import AllReduce, Topology
from gradwire.comm.codecs import Int8
from gradwire.trainer.errors import StrategyError
from gradwire.trainer.lamb import LAMB
from gradwire.trainer.strategies import DeepSpeed
from tests.trainer.strategies.documented import train_documented
from tests.trainer.strategies.test_sharded_journal import BROKEN as BROKEN_AT
from tests.trainer.strategies.test_sharded_journal import SAVED, break_and_resume

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")

UPDATES = 12
REFERENCE = Way("ddp", 1)
OFFLOADED = ("deepspeed_2_offload", "deepspeed_3_offload")
WAYS = [*(Way(strategy, ranks) for ranks in (4, 2, 1) for strategy in ZERO), *(Way(name, 2) for name in OFFLOADED)]
OTHERS = [Way("ddp", 2), Way("fsdp", 2)]
MOVES = [
    *((Way(strategy, 4), Way(strategy, 4)) for strategy in ZERO),
    (REFERENCE, Way("deepspeed_3", 4)),
    (REFERENCE, Way("deepspeed_2", 4)),
    *((Way(strategy, 2), Way(strategy, 2)) for strategy in OFFLOADED),
    (Way("ddp", 2), Way("deepspeed_1", 2)),
    (Way("fsdp", 2), Way("deepspeed_3", 2)),
    (Way("deepspeed_1", 4), Way("ddp", 2)),
    (Way("deepspeed_2", 4), Way("fsdp", 2)),
    (Way("deepspeed_3", 4), Way("deepspeed_2_offload", 2)),
    (Way("deepspeed_2_offload", 2), Way("deepspeed_3", 1)),
    (Way("deepspeed_3", 2), Way("ddp", 1)),
]
FEATURED = [
    *((strategy, feature) for strategy in ZERO for feature in (SEVERAL, "LoRA")),
    ("deepspeed_3", "bf16"),
    ("deepspeed_2", "fp16"),
]
BROKEN = [Way("deepspeed_3", 2)]
TIMED = ("fsdp", "deepspeed_2")
LOW = [("deepspeed_1_bf16", "bf16"), ("deepspeed_3_bf16", "bf16")]


def runs_of(rank: int, folder: str, starts: Sequence[Way], moves: Sequence[tuple[Way, Way]], features: bool) -> None:
    """What happens on so many ranks."""
    start_runs(rank, folder, starts, UPDATES)
    resume_runs(rank, folder, moves, UPDATES)
    if features:
        plain = [("ddp", each) for each in (SEVERAL, "LoRA", "bf16", "fp16")]
        cases = [(Way(strategy, 2), feature) for strategy, feature in (*plain, *FEATURED, *LOW)]
        feature_runs(rank, folder, cases, UPDATES)
        broken = Path(folder) / "broken"
        broken.mkdir(exist_ok=True)
        break_and_resume(rank, str(broken), BROKEN)
        for strategy in ("deepspeed_1", "deepspeed_3"):
            check_weights_that_are_put_in(Way(strategy, 2))
        for strategy in TIMED:
            measure(rank, f"{folder}/{strategy}-seconds.json", strategy, "tiny", rounds=2, block=1)
        train_documented(rank, folder, "deepspeed")
        if rank == 0:
            (Path(folder) / "refusals.json").write_text(json.dumps(refusals()))


def check_weights_that_are_put_in(way: Way) -> None:
    """Passes use the weights that a strategy is given; parameters that are not trained, and tied ones, among them."""
    model, reference, strategy = decoder(), decoder(), strategy_of(way)
    for each in (model, reference):
        each.get_submodule("embedding").requires_grad_(False)
    strategy.prepare(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    strategy.bind(model, torch.optim.AdamW(trained))
    saved = {name: 2 * tensor for name, tensor in reference.state_dict().items()}
    reference.load_state_dict(saved)
    strategy.load_model(model, saved)
    for name, held in strategy.tensors(model).items():
        assert held.equal(strategy.placed(name, saved[name], held)), name
    ids = torch.arange(8)[None]
    with torch.no_grad():
        assert model(ids).equal(reference(ids))


def refusals() -> list[str]:
    """What it says to what it does not take."""
    said = []
    split = {"zero_optimization": {"stage": 1}}
    for all_reduce, config in (
        (AllReduce(Topology(ring=2), codecs={"ring": Int8()}), split),
        (AllReduce(), {}),
        (AllReduce(), {**split, "gradient_clipping": 1.0}),
        (AllReduce(), {**split, "fp16": {"enabled": True}}),
    ):
        with pytest.raises(StrategyError) as error:
            DeepSpeed(all_reduce, CPU, config=config)
        said.append(str(error.value))
    model = decoder()
    with pytest.raises(StrategyError) as error:
        DeepSpeed(AllReduce(), CPU, config=split).bind(model, LAMB(model.parameters(), lr=1.0))
    return [*said, str(error.value)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every way from the start, MOVES that go on from them, and features on two ranks."""
    folder = tmp_path_factory.mktemp("runs")
    spawned(1, start_runs, str(folder), [REFERENCE], UPDATES)
    for size in (4, 2, 1):
        starts = [way for way in (*WAYS, *OTHERS) if way.ranks == size]
        moves = [move for move in MOVES if move[1].ranks == size]
        spawned(size, runs_of, str(folder), starts, moves, size == 2)
    return folder


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_losses_are_those_of_plain_data_parallelism(runs: Path, way: Way) -> None:
    logs = [read(start_log(runs, each)) for each in (way, REFERENCE)]
    assert sorted(logs[0]) == list(range(1, UPDATES + 1))
    assert logs[0][UPDATES]["train/loss"] < logs[0][1]["train/loss"] - 0.05
    assert apart(logs[0], logs[1], ["train/loss", "grad_norm"]) < TOLERANCE


@pytest.mark.parametrize(("start", "resume"), MOVES, ids=lambda way: str(way))
def test_a_run_moves_to_and_from_other_strategies(runs: Path, start: Way, resume: Way) -> None:
    move = judge(runs, start, resume, REFERENCE)
    assert move.apart < TOLERANCE
    assert move.same_bits is (True if start == resume else None)


@pytest.mark.parametrize(("strategy", "feature"), FEATURED)
def test_features_work_at_every_stage(runs: Path, strategy: str, feature: str) -> None:
    logs = [read(feature_log(runs, Way(each, 2), feature)) for each in (strategy, "ddp")]
    assert apart(*logs) < (1e-2 if feature in ("bf16", "fp16") else 2e-5), json.dumps(logs[0][UPDATES])
    if feature == SEVERAL:
        assert logs[0][UPDATES]["skipped"] == 1
        assert logs[0][UPDATES]["noise_scale"] > 0


@pytest.mark.parametrize("way", BROKEN, ids=str)
def test_a_broken_run_is_replayed_from_its_journal_in_the_same_bits(runs: Path, way: Way) -> None:
    for rank in range(way.ranks):
        found = json.loads((runs / "broken" / f"{way.strategy}-{rank}.json").read_text())
        assert found == {"reached": BROKEN_AT, "same": True, "elsewhere": SAVED}


@pytest.mark.parametrize(("strategy", "feature"), LOW)
def test_weights_may_lie_in_bfloat16(runs: Path, strategy: str, feature: str) -> None:
    logs = [read(feature_log(runs, Way(each, 2), feature)) for each in (strategy, "ddp")]
    assert 0 < apart(*logs, ["train/loss"]) < 2e-2


@pytest.mark.parametrize("strategy", TIMED)
def test_the_benchmark_trains_a_bare_script_in_turns_with_the_trainer(runs: Path, strategy: str) -> None:
    seconds = json.loads((runs / f"{strategy}-seconds.json").read_text())
    assert [len(seconds[name]) for name in ("trainer", "script")] == [2, 2]
    assert min(seconds["trainer"] + seconds["script"]) > 0


def test_what_it_does_not_take_is_refused_with_the_reason(runs: Path) -> None:
    codecs, nothing_split, clipping, fp16, lamb = json.loads((runs / "refusals.json").read_text())
    assert "reduces gradients itself" in codecs
    assert "DataParallel is the strategy" in nothing_split
    assert "gradient_clipping is decided by clip" in clipping
    assert "its loss scale is not in our snapshots" in fp16
    assert "LAMB wants them whole" in lamb
