"""Documents that share a row are computed as if each were alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gradwire.trainer.losses import IGNORED, NextToken
from gradwire.trainer.models import Decoder, HFCausalLM
from gradwire.trainer.models.errors import ModelError
from gradwire.trainer.models.packed import check_keeps_apart

LENGTHS = (7, 1, 5, 3)  # of the documents in a row of 16
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 50,
    "max_position_embeddings": 16,
}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "decoder": lambda: Decoder(50, 16, 32, 2, 4, 4),
    "decoder with grouped queries": lambda: Decoder(50, 16, 32, 2, 4, 2),
    "llama": lambda: HFCausalLM("llama", SMALL),
    "qwen3": lambda: HFCausalLM("qwen3", SMALL),
    "mistral with a window": lambda: HFCausalLM("mistral", SMALL | {"sliding_window": 3}),
    "gpt2": lambda: HFCausalLM(
        "gpt2",
        {
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "vocab_size": 50,
            "n_positions": 16,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
    ),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(3)
    model = MODELS[name]()
    for parameter in model.parameters():  # larger than fresh ones, so that attention matters
        nn.init.normal_(parameter, 0.0 if parameter.dim() > 1 else 1.0, 0.3)
    return model


def losses(model: nn.Module, ids_BT: Tensor, labels_BT: Tensor, positions_BT: Tensor | None = None) -> Tensor:
    logits_BTV = model(ids_BT) if positions_BT is None else model(ids_BT, positions_BT=positions_BT)
    return functional.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten(), reduction="none")


@pytest.mark.parametrize("name", MODELS)
def test_packed_and_unpacked_give_the_same_loss_per_token_and_gradient(name: str) -> None:
    model = made(name)
    ids_BT, labels_BT = torch.randint(0, 50, (2, 2, 16), generator=torch.Generator().manual_seed(1))
    labels_BT[0, :4] = IGNORED
    positions_BT = torch.cat([torch.arange(length) for length in LENGTHS]).expand(2, -1)
    packed = losses(model, ids_BT, labels_BT, positions_BT)
    documents = zip(ids_BT.split(LENGTHS, 1), labels_BT.split(LENGTHS, 1), strict=True)
    alone = torch.cat([losses(model, *document).view(2, -1) for document in documents], 1)
    assert packed.std() > 0.5
    torch.testing.assert_close(packed, alone.flatten(), rtol=0, atol=1e-5)
    gradients = [torch.autograd.grad(each.sum(), list(model.parameters())) for each in (packed, alone)]
    for (parameter, _), first, second in zip(model.named_parameters(), *gradients, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=2e-4, msg=parameter)
    whole = losses(model, ids_BT, labels_BT)
    assert (whole - alone.flatten()).abs().max() > 0.01  # it matters
    batch = {"input_ids": ids_BT, "labels": labels_BT, "positions": positions_BT}
    torch.testing.assert_close(NextToken()(model, batch), alone.sum())
    check_keeps_apart(model)


class Mixes(nn.Module):
    """Every token sees those before it, whatever the positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 8)

    def forward(self, ids_BT: Tensor, positions_BT: Tensor | None = None) -> Tensor:
        x_BTD: Tensor = self.embedding(ids_BT).cumsum(1)
        return x_BTD


def test_a_model_that_mixes_documents_is_refused() -> None:
    with pytest.raises(ModelError, match=r"Mixes does not keep the documents of a row apart"):
        check_keeps_apart(Mixes())
    recurrent = HFCausalLM("mamba", {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 20, "state_size": 4})
    for parameter in recurrent.parameters():
        nn.init.normal_(parameter, 0.0, 0.5)
    with pytest.raises(ModelError, match=r"Mamba\w+ (takes no positions|does not keep)"):
        check_keeps_apart(recurrent)


def test_a_model_that_takes_no_positions_is_refused() -> None:
    class Plain(Mixes):
        def forward(self, ids_BT: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(ids_BT)

    with pytest.raises(ModelError, match="Plain takes no positions"):
        check_keeps_apart(Plain())
