"""From a resolved configuration to a running trainer: every object is built here, once."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from gradwire.checkpoint import Checkpointer, Policy
from gradwire.comm import AllReduce, Topology
from gradwire.comm.compression import Compression
from gradwire.schedulers import Duration, Plan
from gradwire.trainer.adapter_files import load_adapter
from gradwire.trainer.adapters import trained
from gradwire.trainer.blocks import checkpoint_activations, compile_blocks
from gradwire.trainer.callbacks import Callback
from gradwire.trainer.config import instantiate
from gradwire.trainer.config.deepspeed import of_stage
from gradwire.trainer.config.hosts_apart import trains_apart
from gradwire.trainer.data import length_of, training_set, validation_set
from gradwire.trainer.errors import StateMismatchError
from gradwire.trainer.initial_weights import load_initial_weights
from gradwire.trainer.launch.context import WorkerContext
from gradwire.trainer.launch.watchdog import PREPARING
from gradwire.trainer.launched import Launched, writer_of
from gradwire.trainer.loggers.metrics import MetricsFile
from gradwire.trainer.loggers.progress import Progress
from gradwire.trainer.loggers.starts import StartsFile
from gradwire.trainer.models.packed import check_keeps_apart
from gradwire.trainer.optimizers import Group, build_optimizer
from gradwire.trainer.randomness import derive_seed, seed_everything
from gradwire.trainer.settings import Run, Settings
from gradwire.trainer.strategies import Strategy
from gradwire.trainer.sync_batchnorm import synchronize_batch_norms
from gradwire.trainer.trainer import Trainer
from gradwire.trainer.writing import Scoring, TextSamples, Writing

log = logging.getLogger("gradwire")
Node = Mapping[str, Any]


def component(node: Node, allow: tuple[str, ...], *section_keys: str, **arguments: Any) -> Any:
    """The object that a component node names, without the keys that belong to its section."""
    own = {key: value for key, value in node.items() if key not in section_keys}
    return instantiate(own, allow, **arguments)


def duration(text: str | None) -> Duration | None:
    return None if text is None else Duration.parse(text)


def seconds(text: str | None) -> float | None:
    return None if text is None else Duration.parse(text).seconds


def build_plan(config: Node, data: Any, allow: tuple[str, ...] = ()) -> Plan:
    """The run's batch size and learning rate as functions of the clock."""
    train = training_set(data)
    optimizer, batch = config["optimizer"], config["batch"]
    return Plan(
        lr=optimizer["lr"] * component(config["lr"], allow),
        batch=batch["size"] * component(batch["schedule"], allow),
        scaling=component(config["scaling"], allow),
        run_length=config["run"]["length"],
        granule=batch["granule"],
        context=getattr(data, "context", 1),
        epoch_samples=length_of(train) if hasattr(train, "__len__") else None,
        betas=tuple(optimizer["betas"]) if "betas" in optimizer else None,
        eps=optimizer.get("eps"),
    )


def build_model(config: Node, allow: tuple[str, ...] = (), *, fresh: bool = False) -> nn.Module:
    """The model with its initial weights, and its adapter; both depend on the seed alone.

    Args:
        config: Resolved.
        allow: See `component`.
        fresh: Whether weights come from where `model.init` and `adapter.init` say: they may be gone when a run resumes.
    """
    seed_everything(derive_seed(config["run"]["seed"], "model"))
    model: nn.Module = component(config["model"], allow, "init")
    if fresh and config["model"].get("init") is not None:
        load_initial_weights(model, config["model"]["init"])
    if config.get("adapter"):
        put_in_adapter(model, config, allow, fresh=fresh)
    if config["sync_batchnorm"]:
        model = synchronize_batch_norms(model)
    if config["activation_checkpointing"]:
        checkpoint_activations(model)
    if config["compile"]:
        compile_blocks(model)
    return model


def put_in_adapter(model: nn.Module, config: Node, allow: tuple[str, ...] = (), *, fresh: bool = False) -> None:
    """Freeze the model and put the configured adapter in, in place; see `build_model`."""
    seed_everything(derive_seed(config["run"]["seed"], "adapter"))
    component(config["adapter"], allow, "init").apply(model)
    if fresh and config["adapter"].get("init") is not None:
        load_adapter(model, Path(config["adapter"]["init"]))
    log.info("adapter: %d of %d parameters are trained", *trained(model))


def make_optimizer(config: Node, model: nn.Module, allow: tuple[str, ...] = ()) -> Optimizer:
    """The optimizer over the model's parameter groups."""
    node = config["optimizer"]
    groups = [Group(**group) for group in node.get("groups") or []]

    def make(parameters: list[dict[str, Any]]) -> Optimizer:
        optimizer: Optimizer = component(node, allow, "groups", params=parameters)
        return optimizer

    return build_optimizer(make, model, node["lr"], node.get("weight_decay"), groups)


def build_strategy(config: Node, context: WorkerContext, allow: tuple[str, ...] = ()) -> Strategy:
    """The strategy that the configuration names, on this rank's device."""
    comm = config["comm"]
    all_reduce = AllReduce(
        topology_of(comm["topology"], context.world_size),
        algorithm=comm["algorithm"],
        codecs=codecs_of(comm["codecs"], allow),
        segment_mb=comm["segment_mb"],
        rotate=comm["rotate"],
        timeout=seconds(comm["timeout"]),
    )
    strategy: Strategy = component(
        of_stage(config["strategy"]),
        allow,
        all_reduce=all_reduce,
        device=context.device,
        bucket_mb=comm["bucket_mb"],
        control=context.control,
        recorded=config["checkpoint"]["journal"] is not None,
        **({} if trains_apart(config) else {"overlap": comm["overlap"]}),  # which has one of its own
    )
    return strategy


def topology_of(topology: Mapping[str, int] | str | None, world_size: int) -> Topology:
    """The axes of links: as given, as found (a collective), or one ring."""
    if isinstance(topology, Mapping):
        return Topology(**topology)
    return Topology(ring=world_size) if topology is None else Topology.detect()


def codecs_of(nodes: Mapping[str, Node], allow: tuple[str, ...]) -> dict[str, Compression]:
    """What compresses each axis; axes that nothing compresses need not exist."""
    made = {axis: component(node, allow) for axis, node in nodes.items()}
    return {axis: codec for axis, codec in made.items() if codec.name != "none"}


def settings_of(config: Node) -> Settings:
    """The trainer's settings from the configuration's sections."""
    evaluation, run, micro = config["evaluation"], config["run"], config["batch"]["micro"]
    return Settings(
        seed=run["seed"],
        precision=config["precision"],
        micro=None if micro == "auto" else micro,
        few_shapes=config["compile"],
        workers=config["data"].get("workers", 0),
        clip=config["clip"],
        ema=config["ema"],
        non_finite=config["non_finite"],
        log_every=run["log_every"],
        evaluate_every=duration(evaluation["every"]),
        evaluation_batch=evaluation["batch"],
        evaluation_limit=evaluation["limit"],
        save_every=duration(config["checkpoint"]["every"]),
        journal=config["checkpoint"]["journal"],
        journal_interval=Duration.parse(config["checkpoint"]["journal_interval"]).seconds,
        recovery=config["checkpoint"]["recovery"],
        recover_within=seconds(config["checkpoint"]["recover_within"]),
        check_replicas_every=duration(run["check_replicas"]),
        noise_scale_every=duration(config["noise_scale"]["every"]),
        noise_scale_decay=config["noise_scale"]["decay"],
        max_time=seconds(run["max_time"]),
        stop_at=duration(run["stop_at"]),
    )


def writing_of(config: Node, data: Any, model: nn.Module) -> Writing | None:
    """How the model writes text, where the data can turn text into tokens and back."""
    if not hasattr(data, "encode"):
        return None
    evaluation = config["evaluation"]
    return Writing(
        encode=data.encode,
        decode=data.decode,
        context=getattr(model, "context", data.context),
        seed=config["run"]["seed"],
        length=evaluation["sample_length"],
        temperature=evaluation["temperature"],
    )


def text_samples(config: Node, writing: Writing | None) -> TextSamples | None:
    """Text sampling, where the data has text."""
    evaluation = config["evaluation"]
    if evaluation["samples"] < 1 or writing is None:
        return None
    return TextSamples(writing, evaluation["prompt"], evaluation["samples"])


def scoring_of(config: Node, writing: Writing | None, allow: tuple[str, ...]) -> Scoring | None:
    """Judgment of what the model writes.

    Raises:
        StateMismatchError: there is a scorer, but the data has no text.
    """
    node = config["evaluation"]["scorer"]
    if node is None:
        return None
    if writing is None:
        raise StateMismatchError("evaluation.scorer needs data that turns text into tokens and back")
    return Scoring(writing, component(node, allow))


def build_trainer(config: Node, context: WorkerContext) -> tuple[Trainer, Checkpointer]:
    """Everything of a run, on this rank."""
    allow = context.allow
    context.watchdog.beat(PREPARING, 0)
    data = component(config["data"], allow, "workers")
    training_set(data), validation_set(data)  # sources build what they read when it is first asked for
    context.watchdog.beat("building the model", 0)
    fresh = context.restore in (None, "latest-if-any")  # else the snapshot has the weights, and `init` may be gone
    model = build_model(config, allow, fresh=fresh)
    if getattr(data, "packed", False):
        check_keeps_apart(model)
    checkpointer = build_checkpointer(config, context)
    writing = writing_of(config, data, model)
    trainer = Trainer(
        model,
        data,
        lambda prepared: make_optimizer(config, prepared, allow),
        build_plan(config, data, allow),
        loss=component(config["loss"], allow) if config["loss"] else None,
        strategy=build_strategy(config, context, allow),
        settings=settings_of(config),
        checkpointer=checkpointer,
        loggers=build_loggers(config, allow) if context.rank == 0 else (),
        callbacks=build_callbacks(config, context),
        writing=writing,
        samples=text_samples(config, writing),
        scoring=scoring_of(config, writing, allow),
        run=Run(config["run"]["name"], context.run_dir, config),
        stop_requested=lambda: context.stop.requested,
        beat=context.watchdog.beat,
    )
    return trainer, checkpointer


def build_checkpointer(config: Node, context: WorkerContext) -> Checkpointer:
    """The store of the run: its own folder unless a URL is given."""
    settings = config["checkpoint"]
    url = settings["url"] or str(Path(context.run_dir) / "checkpoints")
    return Checkpointer(
        url,
        keep_last=settings["keep"],
        keep_best=settings["keep_best"],
        group=context.control,
        stage=settings["stage"],
        policy=Policy(settings["on_failure"], settings["failures"]),
        keep_every=settings["keep_every"],
        keep_journal=settings["keep_journal"],
        tiers=settings["tiers"],
        writer=writer_of(context.launch),
    )


def build_loggers(config: Node, allow: tuple[str, ...]) -> list[Any]:
    """metrics.jsonl, starts.jsonl and the progress lines always; what the `logger` group names beside them."""
    return [MetricsFile(), StartsFile(), Progress(), *(component(node, allow) for node in config["logger"].values())]


def build_callbacks(config: Node, context: WorkerContext) -> dict[str, Callback]:
    """The callbacks that the configuration names, and the launcher's own."""
    named = {name: component(node, context.allow) for name, node in config["callbacks"].items()}
    return {"gradwire/saved": Launched(context.saved, context.change)} | named
