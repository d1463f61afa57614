"""From run folders to the page."""

from collections.abc import Sequence
from pathlib import Path

from gradwire.trainer import named_files
from gradwire.trainer.report.document import Document, document_of
from gradwire.trainer.report.page import page
from gradwire.trainer.report.recorded import read_run


def report_on(runs: Sequence[Path]) -> Document:
    """What a report on these runs shows, for `page` and `save_pictures`.

    Args:
        runs: Their folders. What cannot be read is said in the report.
    """
    return document_of([read_run(run) for run in runs])


def write(shown: Document, file: Path) -> None:
    """Write a report to a file: HTML that is complete in itself.

    Raises:
        WriteError: it cannot be written.
    """
    named_files.write(file, page(shown).encode("utf-8", errors="replace"))
