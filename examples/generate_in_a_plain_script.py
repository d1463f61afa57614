"""Generation for a PyTorch model of one's own: three lines, and each new token costs one token's computation.

The model says what it keeps of each token (`kv_layout`), begins the cache and lets it attend; nothing of the trainer is
needed. Runs on a CPU in a few seconds: python examples/generate_in_a_plain_script.py
"""

import torch
from torch import Tensor, nn

from gradwire.inference import Cache, Layout, Sampling, generate

TEXT = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer. " * 40
HEADS, HEAD = 4, 16


class Block(nn.Module):
    """Attention and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        width = HEADS * HEAD
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x_BTD: Tensor, layer: int, cache: Cache | None) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x_BTD)).unflatten(-1, (3, HEADS, HEAD)).permute(2, 0, 3, 1, 4)
        if cache is None:
            mixed_BHTE = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed_BHTE = cache.attend(layer, q.unsqueeze(2), k, v).flatten(1, 2)  # 1: in place of attention
        x_BTD = x_BTD + self.out(mixed_BHTE.transpose(1, 2).flatten(2))
        return x_BTD + self.perceptron(self.norms[1](x_BTD))


class Small(nn.Module):
    """Bytes with learned positions."""

    def __init__(self, context: int = 128) -> None:
        super().__init__()
        width = HEADS * HEAD
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(width, 256)

    def forward(self, ids_BT: Tensor, cache: Cache | None = None) -> Tensor:
        positions = torch.arange(ids_BT.shape[1])
        if cache is not None:
            cache.begin(ids_BT.shape[1])  # 2: so many tokens come next
            positions = cache.positions
        x_BTD = self.tokens(ids_BT) + self.places(positions)
        for layer, block in enumerate(self.blocks):
            x_BTD = block(x_BTD, layer, cache)
        return self.head(x_BTD if cache is None else cache.wanted(x_BTD))

    def kv_layout(self) -> Layout:
        weight = self.places.weight
        return Layout(len(self.blocks), HEADS, HEAD, weight.dtype, weight.device, context=len(weight), packed=True)  # 3


torch.manual_seed(0)
model, ids = Small(), torch.tensor(list(TEXT.encode()))
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
for update in range(120):
    starts = torch.randint(len(ids) - 65, (16, 1), generator=torch.Generator().manual_seed(update))
    batch = ids[starts + torch.arange(65)]
    loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")

for each in generate(model, [list(b"To be, "), list(b"that is ")], 60, Sampling(temperature=0.5), samples=2):
    print(bytes(each.tokens).decode(errors="replace"))
