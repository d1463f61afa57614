"""What `benchmarks.strategies` found, as tables for docs."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.strategy_runs import unmeasured


def tables(results: Mapping[str, Any]) -> str:
    """All that is there, with a line above each table."""
    parts = [tables_of_moves(results["moves"])] if "moves" in results else []
    parts += [table_of_features(results["features"])] if "features" in results else []
    return "\n\n".join(parts)


def tables_of_moves(found: Mapping[str, Any]) -> str:
    """One for each number of ranks on which runs went on: rows are how they were saved, columns the strategy then."""
    moves: Sequence[Mapping[str, Any]] = found["moves"]
    cells = {(move["start"], move["resume"]): _moved(move) for move in moves}
    ways = list(found["starts"])
    strategies = list(dict.fromkeys(_strategy(way) for way in ways))
    parts = [_summary(found)]
    for ranks in dict.fromkeys(_ranks(way) for way in ways):
        resumed = [f"{strategy} × {ranks}" for strategy in strategies]
        rows = [[start, *(cells[start, resume] for resume in resumed)] for start in ways]
        parts.append(_table([f"saved by, then on {_counted(ranks)}", *strategies], rows))
    return "\n\n".join(parts)


def table_of_features(found: Mapping[str, Any]) -> str:
    """Rows are features, columns strategies."""
    apart: Mapping[str, Mapping[str, float | None]] = found["apart"]
    features = list(next(iter(apart.values())))
    rows = [[feature, *(_featured(strategy, feature, apart) for strategy in apart)] for feature in features]
    return _table([f"on {_counted(found['ranks'])}, {found['updates']} updates", *apart], rows)


def _summary(found: Mapping[str, Any]) -> str:
    """The worst of all."""
    moves, starts = found["moves"], found["starts"]
    stayed = [move["same_bits"] for move in moves if move["same_bits"] is not None]
    return (
        f"{len(starts)} starts of {found['updates']} updates: losses at most {max(starts.values()):.0e} from those of "
        f"{next(iter(starts))}. {len(moves)} moves: at most {max(move['apart'] for move in moves):.0e}; "
        f"{sum(stayed)} of {len(stayed)} that stayed where they were in the same bits."
    )


def _moved(move: Mapping[str, Any]) -> str:
    return "same bits" if move["same_bits"] else _distance(move["apart"])


def _featured(strategy: str, feature: str, apart: Mapping[str, Mapping[str, float | None]]) -> str:
    value = apart[strategy][feature]
    if value is None:
        return "refused"
    return "not measured" if unmeasured(strategy, feature) else _distance(value)


def _distance(value: float) -> str:
    return f"{value:.0e}" if value else "0"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _strategy(way: str) -> str:
    return way.partition(" × ")[0]


def _ranks(way: str) -> str:
    return way.partition(" × ")[2]


def _counted(ranks: str | int) -> str:
    return f"{ranks} rank" if int(ranks) == 1 else f"{ranks} ranks"
