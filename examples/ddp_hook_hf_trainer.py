"""Gradwire's all-reduce in the Hugging Face Trainer, which keeps torch's DistributedDataParallel: lines with # +.

Runs on two processes of this machine, on CPU, in a few seconds (needs transformers, accelerate and scikit-learn):

    torchrun --nproc-per-node 2 examples/ddp_hook_hf_trainer.py

The Trainer wraps the model when training begins, so a callback registers the hook. With accelerate alone it is
`accelerator.prepare(model).register_comm_hook(model, ddp_hook(AllReduce()))`.
"""

import tempfile

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from gradwire.comm import AllReduce, check_replicas, ddp_hook  # +


class Hooked(TrainerCallback):
    def on_train_begin(self, *_: object, model: nn.Module, **__: object) -> None:
        trainer.model_wrapped.register_comm_hook(model, ddp_hook(AllReduce()))  # +

    def on_log(self, arguments: TrainingArguments, state: object, *_: object, **__: object) -> None:
        if arguments.process_index == 0 and "loss" in state.log_history[-1]:
            print(f"update {state.global_step:3}  loss {state.log_history[-1]['loss']:.4f}")


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
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=Digits(),
        train_dataset=data,
        data_collator=collate,
        args=TrainingArguments(
            folder,
            learning_rate=4e-3,
            per_device_train_batch_size=32,
            num_train_epochs=4,
            logging_steps=20,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            ddp_find_unused_parameters=False,
        ),
        callbacks=[Hooked()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()

check_replicas(trainer.model)  # +
with torch.no_grad():
    right = (trainer.model.layers(data.tensors[0]).argmax(1) == data.tensors[1]).float().mean().item()
rank, world_size = trainer.args.process_index, trainer.args.world_size
print(f"rank {rank} of {world_size}: {right:.1%} of the digits right, the same bits everywhere")
