"""Data parallelism for an ordinary PyTorch script: the three lines marked with # +.

Runs on two processes of this machine, on CPU, in a few seconds:

    torchrun --nproc-per-node 2 examples/attach_to_a_plain_script.py
"""

import torch
import torch.distributed as dist
from torch import nn

from gradwire.comm import AllReduce, attach, check_replicas  # +

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)  # ranks start apart; attach makes them equal

model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
attach(model, AllReduce(), op="mean")  # +

for update in range(200):
    inputs = torch.rand(64, 2) * 6 - 3  # every rank draws its own samples
    loss = nn.functional.mse_loss(model(inputs), torch.sin(inputs[:, :1]) * torch.cos(inputs[:, 1:]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and update % 40 == 0:
        print(f"update {update:3}  loss {loss.item():.4f}")

check_replicas(model)  # +
print(f"rank {rank} of {world_size}: loss {loss.item():.4f}, the same bits everywhere", flush=True)
dist.destroy_process_group()
