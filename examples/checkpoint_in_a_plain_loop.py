"""Checkpoints in a PyTorch loop of one's own: three lines, and the run survives a kill at any moment.

Stop it with Ctrl-C or kill -9 and start it again: it goes on from the newest whole snapshot and ends with the same
weights. Runs on a CPU in a few seconds: python examples/checkpoint_in_a_plain_loop.py [URL]
"""

import sys

import torch
from torch import nn

from gradwire.checkpoint import Checkpointer, State

torch.manual_seed(0)
inputs = torch.rand(4096, 2) * 6 - 3
targets = torch.sin(inputs[:, :1]) * torch.cos(inputs[:, 1:])
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
done = 0

checkpointer = Checkpointer(sys.argv[1] if len(sys.argv) > 1 else "checkpoints")  # 1: any local path or fsspec URL
if checkpointer.latest():
    state, commit = checkpointer.restore()  # 2: the newest whole one, every byte verified
    model.load_state_dict(state.shared["model"])
    optimizer.load_state_dict(state.shared["optimizer"])
    done = commit.update
    print(f"resumed at update {done}")

for update in range(done, 300):
    batch = torch.randint(len(inputs), (64,), generator=torch.Generator().manual_seed(update))
    loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (update + 1) % 50 == 0:
        state = State({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        checkpointer.save(state, {"updates": update + 1}, {"eval/loss": loss.item()})  # 3: durable when it returns
        print(f"update {update + 1:4}  loss {loss.item():.4f}")

print(f"weights {sum(parameter.double().sum().item() for parameter in model.parameters()):.12f}")
