"""From run folders to the page."""

from collections.abc import Sequence
from pathlib import Path

from gradwire.trainer import named_files
from gradwire.trainer.report.document import Document, document_of
from gradwire.trainer.report.errors import ReportError
from gradwire.trainer.report.page import page
from gradwire.trainer.report.recorded import read_run
from gradwire.trainer.report.sweeps import charts_of_sweep


def report_on(runs: Sequence[Path], sweeps: Sequence[Path] = ()) -> Document:
    """What a report on these runs and sweeps shows, for `page` and `save_pictures`.

    Args:
        runs: Their folders. What cannot be read is said in the report.
        sweeps: At most one sweep's folder, whose charts come first.

    Raises:
        ReportError: there are several sweeps.
        SweepError: what the sweep's folder holds is damaged, or its storage cannot be used.
    """
    document = document_of([read_run(run) for run in runs])
    if len(sweeps) > 1:
        raise ReportError(f"a report shows one sweep, found {len(sweeps)}: {', '.join(map(str, sweeps))}")
    if sweeps:
        title = f"Sweep {sweeps[0].resolve().name}" + (f"; {document['title']}" if runs else "")
        document |= {"title": title, "charts": [*charts_of_sweep(sweeps[0]), *document["charts"]]}
    return document


def write(shown: Document, file: Path) -> None:
    """Write a report to a file: HTML that is complete in itself.

    Raises:
        WriteError: it cannot be written.
    """
    named_files.write(file, page(shown).encode("utf-8", errors="replace"))
