"""Batch size and learning rate planned together, in Lightning.

The plan's batches come from the DataLoader's batch sampler, its learning rates from a scheduler that Lightning steps
after every update. One iteration over the loader is the whole run, so `max_epochs` is 1 and lengths of the plan are in
its own epochs. Runs on a CPU in a few seconds (needs lightning and scikit-learn): python examples/plan_in_lightning.py

On several devices give `PlannedBatches` this process's rank and world size, and the Trainer
`use_distributed_sampler=False`. `accumulate_grad_batches` stays at 1: a planned batch is one update.
"""

import logging
import warnings

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gradwire.schedulers import Plan, PlannedBatches, torch_scheduler
from gradwire.schedulers.batch import LinearWarmup
from gradwire.schedulers.lr import LinearDecay, Warmup
from gradwire.schedulers.scaling import SquareRoot

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


class Digits(lightning.LightningModule):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        if index % 20 == 0:
            lr = self.lr_schedulers().get_last_lr()[0]
            print(f"update {index:4}  batch {len(labels):3}  lr {lr:.6f}  loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.plan.peak_lr)
        scheduler = torch_scheduler(self.plan, optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


lightning.seed_everything(0, verbose=False)
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
loader = DataLoader(data, batch_sampler=PlannedBatches(plan, len(data)))
module = Digits(plan)
trainer = lightning.Trainer(
    max_epochs=1,
    accelerator="cpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, loader)

clock = module.lr_schedulers().clock
right = (module.model(data.tensors[0]).argmax(1) == data.tensors[1]).float().mean().item()
print(f"{clock.updates} of {plan.total_updates} updates, {clock.samples} samples, {right:.1%} of the digits right")
