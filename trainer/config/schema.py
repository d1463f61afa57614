"""The root sections of a configuration: the one place where their keys, types, defaults and meanings are declared.

A component (model, data, optimizer, schedules, …) declares its keys in its own signature; a section that is built
around one has the component's keys and its own side by side: the field `component` stands for them here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from gradwire.trainer.config.builds import Builds
from gradwire.trainer.config.range import HostSpan, Measured, Range

if TYPE_CHECKING:
    from gradwire.schedulers import Duration
    from gradwire.trainer.optimizers import Group
    from gradwire.trainer.precision import Format
    from gradwire.trainer.sweep.objectives import Constraint, Objective

Node = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunSection:
    """The run as a whole.

    Args:
        name: Name of the run, in its folder's name and in loggers.
        dir: The run's folder; null makes runs/<date>-<time>-<name>.
        seed: Every random choice is a function of this and the clock.
        length: How long to train.
        log_every: Updates between lines of metrics.
        check_replicas: Between comparisons of the ranks' weights, bit by bit; null compares never.
        max_time: Wall-clock time after which the run saves and stops as if preempted.
        stop_at: Where the run evaluates, saves and stops as if preempted, to go on another time: its plan is still that
            of the whole length. Null is the end.
    """

    name: str
    dir: str | None = None
    seed: Annotated[int, Range(ge=0, lt=2**63)] = 0
    length: Annotated[Duration, Measured("progress")]
    log_every: Annotated[int, Range(ge=1)] = 10
    check_replicas: Annotated[Duration, Measured("progress")] | None = None
    max_time: Annotated[Duration, Measured("wall-clock")] | None = None
    stop_at: Annotated[Duration, Measured("progress")] | None = None


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """The model.

    Args:
        component: The model itself.
        init: Where its first weights come from (URL, RUN or RUN@UPDATE, weights only; a folder in Hugging Face's layout
            or a safetensors file); null draws them from run.seed.
    """

    component: Annotated[Node, Builds("torch.nn.Module", inline=True)]
    init: str | None = None


@dataclass(frozen=True, kw_only=True)
class AdapterSection:
    """What is trained instead of the model.

    Args:
        component: The adapter itself.
        init: A folder with its first values, as `gradwire checkpoint export --adapter` writes it, for the same base;
            null begins anew.
    """

    component: Annotated[Node, Builds("gradwire.trainer.adapters.Adapter", inline=True)]
    init: str | None = None


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """The data.

    Args:
        component: The data source, or a map-style dataset.
        workers: Data-loading processes a rank; 0 loads in the training process.
    """

    component: Annotated[Node, Builds(inline=True)]
    workers: Annotated[int, Range(ge=0)] = 0


@dataclass(frozen=True, kw_only=True)
class OptimizerSection:
    """The optimizer.

    Args:
        component: The optimizer itself.
        groups: Settings by parameter name; norms and biases are not decayed unless a pattern says so.
    """

    component: Annotated[Node, Builds("torch.optim.Optimizer", ("params",), inline=True)]
    groups: list[Group] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class BatchSection:
    """The global batch.

    Args:
        size: Samples that one update consumes over all ranks: the full batch that the schedule scales.
        micro: Most samples in one forward pass of one rank; auto takes what fits into memory.
        granule: The batch size is rounded to a multiple of this.
        schedule: The batch size over the run, relative to `size`; a coupling plans the learning rate as well.
    """

    size: Annotated[int, Range(ge=1, le=2**63 - 1)]
    micro: Annotated[int, Range(ge=1)] | Literal["auto"] = "auto"
    granule: Annotated[int, Range(ge=1, le=2**63 - 1)] = 1
    schedule: Annotated[Node, Builds("gradwire.schedulers.coupling.BatchRule")]


@dataclass(frozen=True, kw_only=True)
class NoiseScaleSection:
    """The gradient noise scale, measured while training.

    Args:
        every: Between measurements; null measures only for rules that decide by it, at every tenth update.
        decay: Weight that the past keeps at each measurement, when noise and gradient are averaged.
    """

    every: Annotated[Duration, Measured("progress")] | None = None
    decay: Annotated[float, Range(ge=0, lt=1)] = 0.95


@dataclass(frozen=True, kw_only=True)
class CommSection:
    """How gradients travel between ranks.

    Args:
        algorithm: Which all-reduce on axes without codec; native leaves them to the backend. Coded ones take two shots.
        topology: Ranks on each axis of links, fastest first: {local: 8, node: 4}; detect finds hosts; null is one ring.
        rotate: Whether segments take the axes in turned orders, so that the links of all axes of a torus work at once.
        segment_mb: Size of the pieces that flow through the axes one behind the other, MiB; null is by the codecs.
        bucket_mb: Size of the flat buckets that gradients travel in, MiB.
        overlap: What hides the reduction: backward is the one that computes the gradients; update is the whole next
            update, and gradients are applied one update late.
        timeout: Wall-clock time that a peer may keep this rank waiting; null takes the process group's.
        codecs: What compresses each axis; its options: comm/codec@comm.codecs.AXIS=int8.
    """

    algorithm: Literal["native", "ring", "bidirectional_ring", "two_shot", "halving_doubling", "auto"] = "native"
    topology: dict[str, Annotated[int, Range(ge=1)]] | Literal["detect"] | None = None
    rotate: bool = False
    segment_mb: Annotated[float, Range(gt=0)] | None = None
    bucket_mb: Annotated[float, Range(gt=0)] = 25.0
    overlap: Literal["backward", "update"] = "backward"
    timeout: Annotated[Duration, Measured("wall-clock")] | None = None
    codecs: dict[str, Annotated[Node, Builds("gradwire.comm.compression.Compression", group="comm/codec")]] = field(
        default_factory=dict
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointSection:
    """Snapshots of the run, and the journal of the updates between them.

    Args:
        url: Where they go, any fsspec URL; null puts them into the run's folder.
        tiers: Where they wait on their way to url, nearest first: paths, URLs, or memory, that of this host, which
            survives the processes. They are saved into the first, copied onward beside training, and restored from
            the nearest that has them.
        every: Between snapshots (wall-clock time too); null saves at the end only.
        keep: Newest snapshots kept.
        keep_best: Best snapshots kept, by evaluation loss, beside the newest.
        keep_every: Updates between snapshots that are kept for good; null keeps none.
        stage: What a snapshot does first. With copy training goes on while a copy of the state is written; none takes
            no memory for that and waits.
        on_failure: What a snapshot that cannot be written does; raise ends the run, warn lets it go on.
        failures: With warn, so many in a row; the next one ends the run.
        journal: What is kept of every update, so that a run that was killed repeats next to nothing. With update each
            one is durable before the next is applied; with interval those of the last journal_interval may be lost;
            null keeps none.
        journal_interval: Wall-clock time between two writes with journal=interval.
        recovery: What a killed run goes on from whose codecs carry over what they lost. exact takes the newest
            snapshot, and no journal is kept; fast takes the last journalled update, with what was lost by that
            snapshot, so that its bits are not those of the undisturbed run. Without such codecs both do the same.
        keep_journal: Newest snapshots whose journal is kept, to go back to any update since.
        recover_within: Wall-clock time that recovery may take; a snapshot is saved whenever the journal has become so
            long that it would take longer. Null leaves that to every.
    """

    url: str | None = None
    tiers: list[str] = field(default_factory=list)
    every: Duration | None = None
    keep: Annotated[int, Range(ge=1)] = 3
    keep_best: Annotated[int, Range(ge=0)] = 1
    keep_every: Annotated[int, Range(ge=1)] | None = None
    stage: Literal["copy", "none"] = "copy"
    on_failure: Literal["raise", "warn"] = "raise"
    failures: Annotated[int, Range(ge=1)] = 3
    journal: Literal["update", "interval"] | None = None
    journal_interval: Annotated[Duration, Measured("wall-clock")] = "5 seconds"  # type: ignore[assignment]
    recovery: Literal["exact", "fast"] = "exact"
    keep_journal: Annotated[int, Range(ge=1)] = 2
    recover_within: Annotated[Duration, Measured("wall-clock")] | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluationSection:
    """Evaluation on the validation part of the data.

    Args:
        every: Between evaluations; null evaluates never.
        batch: Samples in one evaluation batch.
        limit: Validation samples to use; null uses all.
        samples: Text samples drawn at each evaluation, where the data is text.
        sample_length: New tokens in each text sample.
        prompt: Text that the samples continue.
        temperature: Sampling temperature; 0 takes the likeliest token.
        scorer: Judges what the model writes: a component with `prompts` and `score(prompt, text)`; see eval/score.
    """

    every: Annotated[Duration, Measured("progress")] | None = None
    batch: Annotated[int, Range(ge=1)] = 32
    limit: Annotated[int, Range(ge=1)] | None = None
    samples: Annotated[int, Range(ge=0)] = 0
    sample_length: Annotated[int, Range(ge=1)] = 200
    prompt: str = "\n"
    temperature: Annotated[float, Range(ge=0)] = 0.8
    scorer: Annotated[Node, Builds()] | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchSection:
    """Processes and machines.

    Args:
        processes: Worker processes on each host; auto takes one a GPU, and two without a GPU.
        hosts: Machines that take part; MIN:MAX (in YAML in quotes) lets them come and go while the run goes on.
        endpoint: host:port where they meet; needed with several hosts.
        engine: Who starts what runs on the hosts: this command on each of them, or a Ray cluster.
        address: The Ray cluster: auto for the one that runs, local for one of its own on this machine, or host:port.
        restarts: Times that the run is started anew after a rank was killed or lost.
        wait: Wall-clock time that hosts of MIN:MAX wait for enough others, or for the endpoint, to come back.
        grace: Wall-clock time that workers get to save and end after a signal.
        watchdog: A rank that shows no progress for so long is named with its stack; null watches none.
        device: Where to train; auto takes GPUs where there are some.
    """

    processes: Annotated[int, Range(ge=1)] | Literal["auto"] = "auto"
    hosts: Annotated[int, Range(ge=1)] | Annotated[str, HostSpan()] = 1
    endpoint: str | None = None
    engine: Literal["command", "ray"] = "command"
    address: str | None = None
    restarts: Annotated[int, Range(ge=0)] = 0
    wait: Annotated[Duration, Measured("wall-clock")] = "2 minutes"  # type: ignore[assignment]  # as YAML has it
    grace: Annotated[Duration, Measured("wall-clock")] = "5 minutes"  # type: ignore[assignment]  # as YAML has it
    watchdog: Annotated[Duration, Measured("wall-clock")] | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"


@dataclass(frozen=True, kw_only=True)
class SweepSection:
    """A search over keys of the configuration, by `gradwire sweep`.

    Args:
        dir: The sweep's folder, with a folder for each trial.
        space: What is varied: by key or config group its values, as overrides write them: interval(0, 1), a,b,c, …
        objective: What trials are judged by: a metric to make small, or one or more with direction and take.
        constraints: Limits on metrics; trials beyond them are not the best.
        trials: Trials altogether; null takes the whole grid, or 20 where there is none.
        seed: Every choice of the sampler is a function of this, the trial's number and the results so far.
        seeds: Runs of each trial, with run.seed and the numbers after it; their objectives are averaged.
        parallel: Trials at once; devices, or cores where there are none, are shared out.
        failures: Trials that may fail; one more ends the sweep.
        transfer: Overrides that make a large configuration of the best trial's, such as batch.size=512 with
            scaling=sqrt; empty makes none.
        storage: Where Optuna keeps the results: a database's URL; null keeps a journal in the sweep's folder.
        sampler: What chooses the values of each trial.
        pruner: What ends trials that are behind; null ends none.
        executor: Where trials run.
    """

    dir: str | None = None
    space: dict[str, Any] = field(default_factory=dict)
    objective: str | Objective | list[Objective] = "eval/loss"
    constraints: list[Constraint] = field(default_factory=list)
    trials: Annotated[int, Range(ge=1)] | None = None
    seed: Annotated[int, Range(ge=0, lt=2**63)] = 0
    seeds: Annotated[int, Range(ge=1)] = 1
    parallel: Annotated[int, Range(ge=1)] = 1
    failures: Annotated[int, Range(ge=0)] = 5
    transfer: list[str] = field(default_factory=list)
    storage: str | None = None
    sampler: Annotated[Node, Builds("gradwire.trainer.sweep.samplers.Sampler", group="sweep/sampler")] | None = None
    pruner: Annotated[Node, Builds("gradwire.trainer.sweep.pruners.Pruner", group="sweep/pruner")] | None = None
    executor: Annotated[Node, Builds("gradwire.trainer.sweep.executors.Executor", group="sweep/executor")] | None = None


@dataclass(frozen=True, kw_only=True)
class Root:
    """A whole configuration.

    Args:
        run: The run as a whole.
        model: The model.
        adapter: Low-rank additions that are trained instead of the model; null trains the model itself.
        data: The data.
        loss: The loss; null takes the one that the model names.
        optimizer: The optimizer.
        batch: The global batch.
        lr: The learning rate over the run, relative to optimizer.lr.
        scaling: How the learning rate follows the batch size.
        noise_scale: The gradient noise scale, measured while training.
        comm: How gradients travel between ranks.
        strategy: How training is spread over processes.
        precision: Number format of forward and backward; weights stay fp32.
        clip: Largest gradient norm; longer gradients are scaled down to it. Null does not clip.
        compile: Whether to compile the model's blocks.
        activation_checkpointing: Whether to compute activations again in backward instead of keeping them.
        ema: Decay of the moving average of the weights that evaluation uses; null keeps none.
        sync_batchnorm: Whether batch norms take their statistics over all ranks.
        non_finite: What a gradient with NaN or infinity does: end the run, or be left out and counted.
        deterministic: Whether to use deterministic kernels only.
        checkpoint: Snapshots of the run.
        evaluation: Evaluation on the validation part of the data.
        logger: Loggers by name, beside metrics.jsonl, starts.jsonl and the progress lines.
        launch: Processes and machines.
        callbacks: Callbacks by name.
        sweep: A search over keys of the configuration, which `gradwire sweep` makes and nothing else looks at.
        allow_targets: Packages, modules or classes beyond gradwire and torch that `_target_` may name.
    """

    run: RunSection
    model: ModelSection
    adapter: AdapterSection | None = None
    data: DataSection
    loss: Annotated[Node, Builds("collections.abc.Callable")] | None = None
    optimizer: OptimizerSection
    batch: BatchSection
    lr: Annotated[Node, Builds("gradwire.schedulers.Schedule")]
    scaling: Annotated[Node, Builds("gradwire.schedulers.scaling.Scaling")]
    noise_scale: NoiseScaleSection
    comm: CommSection
    strategy: Annotated[
        Node,
        Builds("gradwire.trainer.strategies.Strategy", ("all_reduce", "device", "bucket_mb", "control")),
    ]
    precision: Format = "fp32"
    clip: Annotated[float, Range(gt=0)] | None = None
    compile: bool = False
    activation_checkpointing: bool = False
    ema: Annotated[float, Range(gt=0, lt=1)] | None = None
    sync_batchnorm: bool = False
    non_finite: Literal["raise", "skip"] = "raise"
    deterministic: bool = True
    checkpoint: CheckpointSection
    evaluation: EvaluationSection
    logger: dict[str, Annotated[Node, Builds("gradwire.trainer.loggers.base.Logger")]] = field(default_factory=dict)
    launch: LaunchSection
    callbacks: dict[str, Annotated[Node, Builds("gradwire.trainer.callbacks.Callback")]] = field(default_factory=dict)
    sweep: SweepSection | None = None
    allow_targets: list[str] = field(default_factory=list)
