"""The parts of the benchmark of the journal; see checkpoint_journal."""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.checkpoint_journal_runs import ROOT, job, killed, reach, resumed, size, train
from gradwire.checkpoint import Checkpointer, load_weights
from gradwire.checkpoint.snapshot import read_parts
from gradwire.checkpoint.store import Store
from gradwire.comm.benchmark.paired import compare

MODES = ("off", "interval", "update")
GOAL = 300.0  # seconds that recovery may take: checkpoint=journal's own
READ = 200e6  # bytes of gradients a second, as the trainer estimates recovery
ADAM = 12  # bytes a parameter of weights and moments
LORA = "benchmarks.checkpoint_lora.LowRankDecoder"


def costs(arguments: argparse.Namespace) -> dict[str, Any]:
    """Updates with and without a journal, in turns."""
    with tempfile.TemporaryDirectory(prefix="journal-", dir=ROOT.parent) as folder:
        output = Path(folder, "found.json")
        callback = "callbacks.alternation"
        updates = (arguments.stretch + 1) * (len(MODES) * arguments.rounds + 1)
        train(
            Path(folder, "run"),
            [
                *job(arguments, updates),
                f"+{callback}._target_=benchmarks.checkpoint_alternation.Alternation",
                f"+{callback}.output={output}",
                f"+{callback}.stretch={arguments.stretch}",
                f"+{callback}.interval=5.0",
                "checkpoint.recover_within=null",
                "checkpoint.keep=1",
                "checkpoint.keep_journal=1",
            ],
        )
        found: dict[str, Any] = json.loads(output.read_text())
    found |= _times(found) | _bytes(found)
    return found


def _times(found: dict[str, Any]) -> dict[str, Any]:
    step = statistics.median(_means(found, "off", "seconds"))
    print(f"update without journal: {step:.3f} s")
    ratios: dict[str, Any] = {}
    for mode in MODES[1:]:
        ratios[mode] = {kind: _ratio(found, mode, kind) for kind in ("seconds", "processor")}
        blocked = statistics.fmean(
            sum(each["blocked"]) / len(each["seconds"]) for each in found["stretches"] if each["mode"] == mode
        )
        ratios[mode]["blocked"] = blocked
        print(
            "journal with durability {}: × {:.3f} [{:.3f}, {:.3f}]".format(mode, *ratios[mode]["seconds"])
            + "; the processor's time × {:.3f} [{:.3f}, {:.3f}]".format(*ratios[mode]["processor"])
            + f"; training was held up for {1e3 * blocked:.1f} ms an update"
        )
    return {"step": step, "ratios": ratios}


def _means(found: dict[str, Any], mode: str, kind: str) -> list[float]:
    """Of an update, by stretch."""
    return [statistics.fmean(each[kind]) for each in found["stretches"] if each["mode"] == mode]


def _ratio(found: dict[str, Any], mode: str, kind: str) -> tuple[float, float, float]:
    with_, without = _means(found, mode, kind), _means(found, "off", kind)
    rounds = min(len(with_), len(without))
    return compare(with_[:rounds], without[:rounds])


def _bytes(found: dict[str, Any]) -> dict[str, Any]:
    parameters = found["parameters"]
    entry = statistics.fmean(each["bytes"] for each in found["stretches"] if "bytes" in each)
    base = statistics.fmean(each["bytes"] for each in found["bases"][1:])  # the first has no moments yet
    load = statistics.median(each["seconds"] for each in found["bases"][1:])
    replay = statistics.median(found["applying"]) + entry / READ
    updates = max(1, int((GOAL - load) / replay))
    each, applying = entry + base / updates, 1e3 * statistics.median(found["applying"])
    print(
        f"journal: {entry / parameters:.3f} bytes a parameter and update; snapshot: {base / parameters:.2f} (coded; "
        f"{ADAM} as float32)\n"
        f"recovery within {GOAL:.0f} s: a snapshot takes about {load:.2f} s to load, an update {1e3 * replay:.0f} ms "
        f"to replay ({applying:.0f} ms to apply, the rest to read): a snapshot every {updates} updates\n"
        f"bytes an update: {each / 1e6:.2f} MB, {1 - each / base:.1%} less than a coded snapshot at every update, "
        f"{1 - each / (ADAM * parameters):.1%} less than an uncompressed one\n"
        f"snapshots alone, at every update: {1 - base / (ADAM * parameters):.1%} less than uncompressed ones"
    )
    return {
        "entry": entry,
        "base": base,
        "load": load,
        "replay": replay,
        "interval": updates,
        "bytes_an_update": each,
        "less_than_coded": 1 - each / base,
        "less_than_plain": 1 - each / (ADAM * parameters),
        "snapshots_alone": 1 - base / (ADAM * parameters),
    }


def bases(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a run writes whose recovery may take `within` seconds."""
    with tempfile.TemporaryDirectory(prefix="journal-", dir=ROOT.parent) as folder:
        run = Path(folder, "run")
        keep = ["checkpoint.keep=1000", "checkpoint.keep_journal=1000"]
        train(run, [*job(arguments, arguments.updates), f"checkpoint.recover_within={arguments.within} seconds", *keep])
        commits = [commit.update for commit in Checkpointer(run / "checkpoints").commits()]
        sizes = {kind: size(run / "checkpoints" / kind) for kind in ("packs", "parts", "commits", "journal")}
    total = sum(sizes.values())
    entry = sizes["journal"] / arguments.updates
    base = (total - sizes["journal"]) / len(commits)
    print(
        f"{arguments.updates} updates, recovery within {arguments.within} s: snapshots of updates {commits}\n"
        f"{total / 1e6:.1f} MB written: {entry / 1e6:.2f} MB of journal an update, {base / 1e6:.1f} MB a snapshot"
    )
    return {"updates": arguments.updates, "within": arguments.within, "commits": commits, "sizes": sizes} | {
        "entry": entry,
        "base": base,
    }


def recovery(arguments: argparse.Namespace) -> dict[str, Any]:
    """Kill a run when its journal is almost as long as it may become, and resume it."""
    with tempfile.TemporaryDirectory(prefix="journal-", dir=ROOT.parent) as folder:
        run = Path(folder, "run")
        overrides = [*job(arguments, 100_000), f"checkpoint.recover_within={arguments.within} seconds"]
        killed(run, overrides)
        commit, last = reach(run)
        found = resumed(run)
    took = found["load"] + found["replay"]
    print(
        f"killed at update {last}, {last - commit} after its snapshot; loading took {found['load']:.2f} s and "
        f"replaying {found['replay']:.2f} s: {took:.2f} s, with a goal of {arguments.within:.0f} s"
    )
    return {"base": commit, "last": last, "within": arguments.within, **found}


def frozen(arguments: argparse.Namespace) -> dict[str, Any]:
    """Snapshots at every update while only low-rank additions are trained."""
    updates = 20
    with tempfile.TemporaryDirectory(prefix="journal-", dir=ROOT.parent) as folder:
        run = Path(folder, "run")
        train(
            run,
            [
                *job(arguments, updates),
                f"model._target_={LORA}",
                "+model.rank=8",
                "checkpoint.journal=null",
                "checkpoint.recover_within=null",
                "checkpoint.every=1 updates",
                "checkpoint.keep=1000",
            ],
        )
        found = _snapshots(run / "checkpoints")
    later = statistics.fmean(found["bytes"][1:])
    print(
        f"{found['frozen'] / found['parameters']:.1%} of {found['parameters']:,} parameters frozen; first snapshot "
        f"{found['bytes'][0] / 1e6:.2f} MB, those after it {later / 1e6:.2f} MB: {1 - later / found['plain']:.1%} less "
        f"than the {found['plain'] / 1e6:.2f} MB of an uncompressed snapshot of this state, "
        f"{1 - later / found['bytes'][0]:.1%} less than the first"
    )
    return found


def _snapshots(url: Path) -> dict[str, Any]:
    """Bytes that each snapshot added, and what it holds."""
    store, known, added = Store.open(str(url)), set[str](), []
    commits = Checkpointer(url).commits()
    for commit in commits:
        parts = read_parts(store, commit.parts)
        sizes = {pack.name: pack.size for part in parts for pack in part.packs}
        added.append(sum(size for name, size in sizes.items() if name not in known) + sum(p.size for p in commit.parts))
        known |= sizes.keys()
    weights = load_weights(str(url))[0]
    trained = sum(tensor.numel() for name, tensor in weights.items() if name.rpartition(".")[2] in ("A", "B"))
    parameters = sum(tensor.numel() for tensor in weights.values())
    frozen = parameters - trained
    return {"updates": [commit.update for commit in commits], "bytes": added, "parameters": parameters} | {
        "frozen": frozen,
        "plain": 4 * frozen + ADAM * trained,
    }
