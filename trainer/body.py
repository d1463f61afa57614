"""What a rank does once it has met the others: train, evaluate or measure what the configuration describes."""

import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

import torch

from gradwire.trainer.assemble import build_trainer
from gradwire.trainer.evaluation import EvaluationInterrupted
from gradwire.trainer.launch.context import WorkerContext
from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.launched import check_store_is_ours
from gradwire.trainer.loggers.metrics import to_line
from gradwire.trainer.proof import prove
from gradwire.trainer.recovery import recover, restore
from gradwire.trainer.trainer import Trainer

log = logging.getLogger("gradwire")


def run(config: Mapping[str, Any], context: WorkerContext) -> int:
    """Train, evaluate or measure what the configuration describes, on this rank; the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    log.setLevel(logging.INFO if context.rank == 0 else logging.ERROR)
    if config["deterministic"]:
        make_deterministic()
    if context.mode == "batch-size":
        from gradwire.trainer.batch_size import measure

        return measure(config, context)
    trainer, checkpointer = build_trainer(config, context)
    if context.mode == "evaluate":
        restore(lambda restored: trainer.restore_model(restored.state), checkpointer, context.restore)
        return evaluate(trainer, context)
    if "prove" in context.arguments:
        prove(trainer, checkpointer, context.restore, context.arguments["prove"])
    check_store_is_ours(checkpointer, context)
    recover(trainer, checkpointer, context.restore)
    context.accept()
    result = trainer.fit()
    return int(ExitCode.PREEMPTED if result.status == "preempted" else ExitCode.DONE)


def evaluate(trainer: Trainer, context: WorkerContext) -> int:
    """Measure the restored model and print what was found as one line of JSON."""
    try:
        record = {"update": trainer.clock.updates} | trainer.evaluate()
    except EvaluationInterrupted:
        return int(ExitCode.PREEMPTED)
    if context.rank == 0:
        sys.stdout.write(to_line(record))
    return int(ExitCode.DONE)


def make_deterministic() -> None:
    """Same inputs, same bits: deterministic kernels only (torch raises where there is none)."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it at its first use
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs time and decides nothing here
    torch.backends.cudnn.benchmark = False
