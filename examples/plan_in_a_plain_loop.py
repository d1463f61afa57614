"""Batch size and learning rate planned together, in a PyTorch loop of one's own.

The batch grows from 8 to 128 samples over the first quarter of the run; the learning rate warms up, decays to zero, and
follows the square root of the batch. Runs on a CPU in a few seconds: python examples/plan_in_a_plain_loop.py
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradwire.schedulers import Plan, PlannedBatches, torch_scheduler
from gradwire.schedulers.batch import LinearWarmup
from gradwire.schedulers.lr import LinearDecay, Warmup
from gradwire.schedulers.scaling import SquareRoot

torch.manual_seed(0)
inputs = torch.rand(20_000, 2) * 6 - 3
data = TensorDataset(inputs, torch.sin(inputs[:, :1]) * torch.cos(inputs[:, 1:]))
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

plan = Plan(  # 1: the whole run, before it begins
    lr=1e-2 * Warmup("5%").then(LinearDecay()),
    batch=128 * LinearWarmup("25%"),
    scaling=SquareRoot(reference=128),
    run_length="3 epochs",
    granule=8,
    epoch_samples=len(data),
)
scheduler = torch_scheduler(plan, optimizer)  # 2: its learning rates
loader = DataLoader(data, batch_sampler=PlannedBatches(plan, len(data)))  # 3: its batches, to the end of the run

for update, (batch, targets) in enumerate(loader):
    loss = nn.functional.mse_loss(model(batch), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if update % 50 == 0:
        lr = scheduler.get_last_lr()[0]
        print(f"update {update:4}  batch {len(batch):3}  lr {lr:.5f}  loss {loss.item():.4f}")
    scheduler.step()

clock = scheduler.clock
print(f"{clock.updates} of {plan.total_updates} updates, {clock.samples} samples, last loss {loss.item():.4f}")
