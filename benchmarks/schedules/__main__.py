"""What the published rules for batch size and learning rate do on real data, on a machine that everybody has.

    python -m benchmarks.schedules [--only a,c] [--seeds 3] [--json FILE] [--plots FOLDER] [--docs FILE] [--quick]

Every experiment prints a table with the mean and the spread (sample standard deviation) over seeds, and says of each
claim whether it shows. Learning rates are tuned for the baseline alone, never for the arm that is to win. `--json`
keeps what the file holds of other experiments; `--docs` writes the page of tables from that file.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.schedules.experiments import EXPERIMENTS
from benchmarks.schedules.pool import pool
from benchmarks.schedules.report import page, plot, text


def main() -> None:
    """Run the experiments that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(EXPERIMENTS), help="letters of experiments")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="file to write the measurements to")
    parser.add_argument("--plots", type=Path, help="folder to write the plots to")
    parser.add_argument("--docs", type=Path, help="page to write the tables to, from all that --json holds")
    parser.add_argument("--quick", action="store_true", help="a sample that shows that everything runs, nothing else")
    options = parser.parse_args()
    results: dict[str, Any] = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    with pool(options.processes) as workers:
        for key in options.only.split(",") if options.only else []:
            begin = time.perf_counter()
            results[key] = EXPERIMENTS[key].measure(range(options.seeds), options.quick, workers)
            results[key]["seconds"] = round(time.perf_counter() - begin)
            results[key]["seeds"] = options.seeds
            print(text(EXPERIMENTS[key], results[key]), flush=True)
            if options.json:
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(dict(sorted(results.items())), separators=(",", ":")) + "\n")
    if options.plots:
        plot(results, options.plots)
    if options.docs:
        options.docs.write_text(page(results))


if __name__ == "__main__":
    main()
