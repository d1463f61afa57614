"""Two processes at one place: at every operation of one, the other does all that it has to do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.checkpoint_faults import commands, prunings, takeovers
from benchmarks.checkpoint_faults.choices import EVERYTHING, Choice
from benchmarks.checkpoint_faults.intruders import When
from benchmarks.checkpoint_faults.oracle import Verdict
from benchmarks.checkpoint_faults.places import Place
from benchmarks.checkpoint_faults.tally import Tally

_NEVER = 10**9


@dataclass(frozen=True)
class Race:
    """One kind of race.

    Args:
        name: For the table.
        run: Runs it with the other process acting at a moment; where that was and what came of it, None where it was
            never.
    """

    name: str
    run: Callable[[Place, When], tuple[str, Verdict] | None]


RACES = (
    Race("two writers", takeovers.two_writers),
    Race("zombie after fencing", takeovers.zombie),
    Race("prune racing a rollback", prunings.prune_against_rollback),
    Race("prune racing a save on what it removes", prunings.prune_against_return),
    Race("prune racing a save of what it removes", prunings.prune_against_leftovers),
    Race("prune racing restore", prunings.prune_against_restore),
    Race("prune command racing a save", commands.prune_beside_save),
    Race("save racing a prune command", commands.save_beside_prune),
    Race("prune command racing restore", commands.prune_beside_restore),
    Race("fsck --repair racing a save", commands.repair_beside_save),
    Race("save racing fsck --repair", commands.save_beside_repair),
    Race("prune command killed", commands.killed_pruning),
    Race("fsck --repair killed", commands.killed_repairing),
)
JOURNAL_RACES = (
    Race("zombie that journals", takeovers.zombie_journals),
    Race("prune racing restore", prunings.prune_against_restore),
)


def race_everywhere(
    name: str, make: Callable[[], Place], tally: Tally, races: Sequence[Race] = RACES, choice: Choice = EVERYTHING
) -> None:
    """Races, with the other process acting before every operation that is chosen.

    Args:
        name: The contender's.
        make: Makes an empty place.
        tally: Where verdicts go.
        races: Which.
        choice: Which operations.
    """
    for race in races:
        for number in choice.numbers(lambda race=race: _kinds(race, make())):
            found = race.run(make(), When(number))
            if found is None:
                break
            where, verdict = found
            tally.add(name, race.name, verdict, f"at operation {number} ({where})")


def _kinds(race: Race, place: Place) -> list[str]:
    """The operations at which the other process could act."""
    never = When(_NEVER)
    race.run(place, never)
    return never.kinds
