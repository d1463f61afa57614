"""Batch size and learning rate planned together, in a PyTorch loop of one's own.

The batch grows from 8 to 128 samples over the first quarter of the run; the learning rate warms up, decays to zero, and
follows the square root of the batch. Runs on a CPU in a few seconds: python examples/plan_in_a_plain_loop.py
"""

import torch
from torch import nn

from gradwire.schedulers import Clock, Plan
from gradwire.schedulers.batch import LinearWarmup
from gradwire.schedulers.lr import LinearDecay, Warmup
from gradwire.schedulers.scaling import SquareRoot

torch.manual_seed(0)
inputs = torch.rand(20_000, 2) * 6 - 3
targets = torch.sin(inputs[:, :1]) * torch.cos(inputs[:, 1:])
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())

plan = Plan(
    lr=1e-2 * Warmup("5%").then(LinearDecay()),
    batch=128 * LinearWarmup("25%"),
    scaling=SquareRoot(reference=128),
    run_length="3 epochs",
    granule=8,
    epoch_samples=len(inputs),
)
clock = Clock()
while not plan.finished(clock):
    step = plan.at(clock)
    batch = torch.arange(clock.samples, clock.samples + step.batch_size) % len(inputs)
    loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch])
    optimizer.zero_grad()
    loss.backward()
    for group in optimizer.param_groups:
        group["lr"] = step.lr
    optimizer.step()
    if clock.updates % 50 == 0:
        print(f"update {clock.updates:4}  batch {step.batch_size:3}  lr {step.lr:.5f}  loss {loss.item():.4f}")
    clock = clock.advance(step.batch_size)

print(f"{clock.updates} of {plan.total_updates} updates, {clock.samples} samples, last loss {loss.item():.4f}")
