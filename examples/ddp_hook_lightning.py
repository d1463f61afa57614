"""Gradwire's all-reduce in Lightning, which keeps torch's DistributedDataParallel: the lines marked with # +.

Runs on two processes of this machine, on CPU, in a few seconds (needs lightning and scikit-learn):

    torchrun --nproc-per-node 2 examples/ddp_hook_lightning.py

The hook is registered by the module, because Lightning passes `DDPStrategy(ddp_comm_hook=...)` on for CUDA only. There
`DDPStrategy(ddp_comm_hook=ddp_hook(AllReduce))` does the same.
"""

import logging
import warnings

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gradwire.comm import AllReduce, check_replicas, ddp_hook  # +

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def on_train_start(self) -> None:
        self.trainer.strategy.model.register_comm_hook(self, ddp_hook(AllReduce()))  # +

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        if self.global_step % 20 == 0 and self.global_rank == 0:
            print(f"update {self.global_step:3}  loss {loss.item():.4f}")
        return loss

    def on_train_end(self) -> None:
        check_replicas(self)  # +

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=4e-3)


lightning.seed_everything(0, verbose=False)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
module = Digits()
trainer = lightning.Trainer(
    max_epochs=4,
    accelerator="cpu",
    devices=2,
    strategy=DDPStrategy(process_group_backend="gloo"),
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, DataLoader(data, batch_size=32, shuffle=True))

right = (module.model(data.tensors[0]).argmax(1) == data.tensors[1]).float().mean().item()
print(f"rank {trainer.global_rank} of {trainer.world_size}: {right:.1%} of the digits right, the same bits everywhere")
