"""Does a killed run end in the same bits? Real runs, killed at random updates, resumed and compared tensor by tensor.

    python benchmarks/exact_resume.py [--json FILE] [--seed N] [--only TEXT]

Each case trains twice from the command line: once undisturbed, and once killed (SIGKILL to every process, or SIGTERM to
the controller) at a random update and resumed. Model, optimizer, moving average and every logged loss must be equal to
the last bit. Further cases resume on another number of ranks: there the same samples must be seen in the same updates,
and in fp32, without dropout and batch norm, every loss must agree to 1e-5.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # run by its path, the folder above is not on it

from benchmarks.comparison import TOLERANCE, differences, disagreements, final_state, losses
from benchmarks.exact_resume_cases import MOVED_UPDATES, UPDATES, Case, Move, all_cases
from benchmarks.runs import finish, resume, train, train_until


class Campaign:
    """Runs cases; undisturbed runs are kept, since several cases compare with the same one."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self._undisturbed: dict[str, Path] = {}

    def undisturbed(self, case: Case | Move) -> Path:
        key = " ".join(case.overrides())
        if key not in self._undisturbed:
            folder = self.folder / f"undisturbed-{len(self._undisturbed)}"
            finish(train(folder, case.overrides()))
            self._undisturbed[key] = folder
        return self._undisturbed[key]

    def run(self, case: Case | Move) -> tuple[int, list[str]]:
        """The update at which a run was interrupted, and every difference from the undisturbed run."""
        last = MOVED_UPDATES // 2 if isinstance(case, Move) else UPDATES - 2
        update = random.Random(f"{self.seed}, {case}").randrange(6, last)
        folder = Path(tempfile.mkdtemp(dir=self.folder)) / "run"
        try:
            if isinstance(case, Move):
                return update, self._moved(case, folder, update)
            return update, self._resumed(case, folder, update)
        except RuntimeError as error:
            return update, [str(error)]
        finally:
            shutil.rmtree(folder.parent)

    def _resumed(self, case: Case, folder: Path, update: int) -> list[str]:
        reference = self.undisturbed(case)
        train_until(folder, case.overrides(), update, case.how, saved=case.how == "SIGKILL")
        resume(folder)
        found = differences(final_state(reference), final_state(folder))
        return found + (differences(losses(reference), losses(folder)) if losses(reference) != losses(folder) else [])

    def _moved(self, case: Move, folder: Path, update: int) -> list[str]:
        reference = self.undisturbed(case)
        train_until(folder, case.overrides(), update, "SIGTERM")
        resume(folder, f"launch.processes={case.after}", f"batch.micro={-(-24 // case.after)}")
        return disagreements(reference, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only",
        default="",
        help="run the cases whose name holds one of these texts; a semicolon between them",
    )
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder), arguments.seed)
        for case in all_cases():
            if not any(text in str(case) for text in arguments.only.split(";")):
                continue
            moved = isinstance(case, Move)
            update, found = campaign.run(case)
            results.append({"case": str(case), "moved": moved, "update": update, "differences": found})
            if arguments.json:
                arguments.json.write_text(json.dumps(results, indent=1))
            verdict = "DIFFERENT" if found else f"to {TOLERANCE}" if moved else "same bits"
            print(f"{verdict:10} {case}, interrupted at {update} {found[:3]}", flush=True)
    for moved, claim in ((False, "ended in the bits of"), (True, f"agreed to {TOLERANCE} with")):
        verdicts = [not result["differences"] for result in results if result["moved"] == moved]
        print(f"{sum(verdicts)} of {len(verdicts)} interrupted runs {claim} the undisturbed run")
    sys.exit(any(result["differences"] for result in results))


if __name__ == "__main__":
    main()
