"""Batch size and learning rate planned together, in the Hugging Face Trainer.

Two methods are overridden: the plan's batches come from the DataLoader's batch sampler, its learning rates from a
scheduler of the Trainer's own optimizer. Runs on a CPU in a few seconds (needs transformers, accelerate and
scikit-learn): python examples/plan_in_hf_trainer.py

What does not fit: `per_device_train_batch_size`, `num_train_epochs`, `lr_scheduler_type` and `warmup_steps` no longer
mean anything, `learning_rate` is the plan's peak and `max_steps` its updates. A planned batch is one update, so
`gradient_accumulation_steps` stays at 1 and a rank's share has to fit into memory. The loader is not prepared by
accelerate, which would cut the planned batches anew: each rank takes its share from `PlannedBatches` instead. The
Trainer averages the ranks' mean losses, so shares should be equal: take a granule that the world size divides. An
update that fp16 skips would leave the scheduler behind the data: take bf16. Resuming works as ever: the scheduler's
clock is in the checkpoint, and the Trainer passes over the batches that came before.
"""

import tempfile

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, TensorDataset
from transformers import PrinterCallback, Trainer, TrainingArguments

from gradwire.schedulers import Plan, PlannedBatches, torch_scheduler
from gradwire.schedulers.batch import LinearWarmup
from gradwire.schedulers.lr import LinearDecay, Warmup
from gradwire.schedulers.scaling import SquareRoot


class PlannedTrainer(Trainer):
    def __init__(self, plan: Plan, **arguments: object) -> None:
        super().__init__(**arguments)
        self.plan = plan

    def get_train_dataloader(self) -> DataLoader:
        rank, world_size = self.args.process_index, self.args.world_size
        batches = PlannedBatches(self.plan, len(self.train_dataset), self.args.seed, rank, world_size)
        return DataLoader(self.train_dataset, batch_sampler=batches, collate_fn=self.data_collator)

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        self.lr_scheduler = torch_scheduler(self.plan, optimizer or self.optimizer)
        return self.lr_scheduler

    def training_step(self, model: nn.Module, inputs: dict[str, Tensor], *rest: object) -> Tensor:  # only to print
        loss = super().training_step(model, inputs, *rest)
        if self.state.global_step % 20 == 0:
            batch, lr = len(inputs["labels"]), self.lr_scheduler.get_last_lr()[0]
            print(f"update {self.state.global_step:4}  batch {batch:3}  lr {lr:.6f}  loss {loss.item():.4f}")
        return loss


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(images)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def collate(samples: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    images, labels = zip(*samples, strict=True)
    return {"images": torch.stack(images), "labels": torch.stack(labels)}


torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
plan = Plan(
    lr=4e-3 * Warmup("5%").then(LinearDecay()),
    batch=64 * LinearWarmup("40%"),
    scaling=SquareRoot(reference=64),
    run_length="8 epochs",
    granule=8,
    epoch_samples=len(data),
)
with tempfile.TemporaryDirectory() as folder:
    trainer = PlannedTrainer(
        plan,
        model=Digits(),
        train_dataset=data,
        data_collator=collate,
        args=TrainingArguments(
            folder,
            learning_rate=plan.peak_lr,
            max_steps=plan.total_updates,
            logging_strategy="no",
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        ),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()

clock = trainer.lr_scheduler.clock
with torch.no_grad():
    right = (trainer.model.layers(data.tensors[0]).argmax(1) == data.tensors[1]).float().mean().item()
print(f"{clock.updates} of {plan.total_updates} updates, {clock.samples} samples, {right:.1%} of the digits right")
