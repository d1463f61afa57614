"""The contestants of benchmarks/trainer.py: five ways to train the same decoder on the same tokens."""

import tempfile
import time
from collections.abc import Callable
from typing import Any

WARMUP = 3
SIZES = {  # width, layers, context, samples a rank, timed updates a block
    "tiny": (64, 2, 32, 4, 40),
    "small": (128, 4, 64, 8, 20),
    "medium": (256, 4, 128, 8, 8),
    "large": (384, 6, 128, 8, 4),
}


class Stopwatch:
    """Times the updates of a block after its first few."""

    def __init__(self, updates: int) -> None:
        self.updates = updates
        self._done = 0
        self._start = self.seconds = 0.0

    def tick(self) -> None:
        self._done += 1
        if self._done == WARMUP:
            self._start = time.perf_counter()
        elif self._done == WARMUP + self.updates:
            self.seconds = time.perf_counter() - self._start


class Job:
    """What every contestant trains."""

    def __init__(self, size: str) -> None:
        import torch

        self.width, self.layers, self.context, self.batch, self.updates = SIZES[size]
        self.total = WARMUP + self.updates
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(0, 256, (1_000_000,), generator=generator, dtype=torch.uint8)

    def model(self) -> Any:
        import torch

        from gradwire.trainer.models import Decoder

        torch.manual_seed(0)
        return Decoder(
            vocabulary=256,
            context=self.context,
            width=self.width,
            layers=self.layers,
            heads=self.width // 32,
            kv_heads=self.width // 32,
        )

    def dataset(self) -> Any:
        from torch.utils.data import Dataset

        job = self

        class Windows(Dataset[dict[str, Any]]):
            def __len__(self) -> int:
                return (len(job.tokens) - 1) // job.context

            def __getitem__(self, index: int) -> dict[str, Any]:
                window = job.tokens[index * job.context : (index + 1) * job.context + 1].long()
                return {"input_ids": window[:-1], "labels": window[1:]}

        return Windows()

    def loader(self, distributed: bool) -> Any:
        from torch.utils.data import DataLoader, DistributedSampler

        dataset = self.dataset()
        sampler = DistributedSampler(dataset) if distributed else None
        return DataLoader(dataset, batch_size=self.batch, sampler=sampler, shuffle=None if sampler else True)

    def optimizer(self, model: Any) -> Any:
        import torch

        return torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def factor(self, update: int) -> float:
        return min(1.0, (update + 1) / WARMUP)


def mean_loss(model: Any, batch: dict[str, Any]) -> Any:
    from torch.nn import functional

    return functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())


def bare(job: Job, watch: Stopwatch) -> None:
    """The loop that people write by hand: DDP, AdamW, clipping, a scheduler, a loss now and then."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(job.model())
    optimizer = job.optimizer(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, job.factor)
    for update, batch in enumerate(job.loader(distributed=True)):
        loss = mean_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if update % 10 == 9:
            logged = loss.detach().clone()
            dist.all_reduce(logged)
            logged.item()
        watch.tick()
        if update + 1 == job.total:
            break


def gradwire(job: Job, watch: Stopwatch) -> None:
    import torch
    import torch.distributed as dist

    from gradwire.comm import AllReduce
    from gradwire.schedulers import Plan
    from gradwire.schedulers.lr import Constant, Warmup
    from gradwire.trainer import Callback, Settings, Trainer
    from gradwire.trainer.strategies import DataParallel

    class Tick(Callback):
        def on_update(self, trainer: Any, outcome: Any) -> None:
            watch.tick()

    model = job.model()
    plan = Plan(
        lr=1e-3 * Warmup(f"{WARMUP} updates").then(Constant()),
        batch=job.batch * dist.get_world_size(),
        run_length=f"{job.total} updates",
        context=job.context,
    )
    trainer = Trainer(
        model,
        job.dataset(),
        job.optimizer(model),
        plan,
        strategy=DataParallel(AllReduce(), torch.device("cpu")),
        settings=Settings(clip=1.0),
        callbacks={"tick": Tick()},
    )
    trainer.fit()


def fabric(job: Job, watch: Stopwatch) -> None:
    import torch
    import torch.distributed as dist
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy

    fabric_ = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy=DDPStrategy(start_method="popen"))
    fabric_.launch()
    bare_model = job.model()
    model, optimizer = fabric_.setup(bare_model, job.optimizer(bare_model))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, job.factor)
    loader = fabric_.setup_dataloaders(job.loader(distributed=False))
    for update, batch in enumerate(loader):
        loss = mean_loss(model, batch)
        fabric_.backward(loss)
        fabric_.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if update % 10 == 9:
            fabric_.all_reduce(loss.detach()).item()
        watch.tick()
        if update + 1 == job.total:
            break


def lightning(job: Job, watch: Stopwatch) -> None:
    import lightning as pl
    import torch
    import torch.distributed as dist

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = job.model()

        def training_step(self, batch: dict[str, Any], index: int) -> Any:
            loss = mean_loss(self.model, batch)
            if index % 10 == 9:
                self.log("train/loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = job.optimizer(self)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, job.factor)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

        def on_train_batch_end(self, *args: Any) -> None:
            watch.tick()

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=dist.get_world_size(),
        strategy="ddp",
        max_steps=job.total,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=10,
    )
    trainer.fit(Module(), job.loader(distributed=False))


def huggingface(job: Job, watch: Stopwatch) -> None:
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = job.model()

        def forward(self, input_ids: Any, labels: Any) -> dict[str, Any]:
            return {"loss": mean_loss(self.model, {"input_ids": input_ids, "labels": labels})}

    class Tick(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            watch.tick()

    with tempfile.TemporaryDirectory() as folder:
        model = WithLoss()
        optimizer = job.optimizer(model)
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            max_steps=job.total,
            per_device_train_batch_size=job.batch,
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            max_grad_norm=1.0,
            dataloader_pin_memory=False,
            ddp_find_unused_parameters=False,
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=job.dataset(),
            callbacks=[Tick()],
            optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, job.factor)),
        )
        trainer.train()


RUNNERS: dict[str, Callable[[Job, Stopwatch], None]] = {
    "bare": bare,
    "gradwire": gradwire,
    "fabric": fabric,
    "lightning": lightning,
    "huggingface": huggingface,
}
