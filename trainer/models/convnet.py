"""A small residual network for small images.

Shapes: B batch, C channels, Y rows, X columns.
"""

from typing import Annotated

from torch import Tensor, nn
from torch.nn import functional

from gradwire.trainer.config.range import Range
from gradwire.trainer.models.errors import ModelError


class ConvNet(nn.Module):
    """Residual network with batch normalization (He 2015, 1512.03385): a stem, stages of blocks, mean, classes.

    Args:
        channels: Channels of the input images.
        classes: Number of classes.
        width: Channels of the first stage; each further stage has twice as many on half as many rows and columns.
        stages: Number of stages.
        blocks: Residual blocks in each stage.
        dropout: Probability of dropping a feature before the last layer while training.

    Raises:
        ModelError: a size is below 1, or dropout outside [0, 1).
    """

    default_loss = "classification"

    def __init__(
        self,
        channels: Annotated[int, Range(ge=1)] = 1,
        classes: Annotated[int, Range(ge=1)] = 10,
        width: Annotated[int, Range(ge=1)] = 16,
        stages: Annotated[int, Range(ge=1)] = 2,
        blocks: Annotated[int, Range(ge=1)] = 2,
        dropout: Annotated[float, Range(ge=0, lt=1)] = 0.0,
    ) -> None:
        super().__init__()
        sizes = {"channels": channels, "classes": classes, "width": width, "stages": stages, "blocks": blocks}
        for name, size in sizes.items():
            if size < 1:
                raise ModelError(f"{name} must be at least 1, found {size}")
        if not 0.0 <= dropout < 1.0:
            raise ModelError(f"dropout must lie in [0, 1), found {dropout}")
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
        self.blocks = nn.ModuleList()
        inputs = width
        for stage in range(stages):
            outputs = width * 2**stage
            for block in range(blocks):
                self.blocks.append(ResidualBlock(inputs, outputs, 2 if stage and not block else 1))
                inputs = outputs
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(inputs, classes)

    def forward(self, image_BCYX: Tensor) -> Tensor:
        """Logits [B, classes] of images [B, channels, Y, X]."""
        x_BCYX = functional.relu(self.stem(image_BCYX))
        for block in self.blocks:
            x_BCYX = block(x_BCYX)
        logits: Tensor = self.head(self.dropout(x_BCYX.mean((2, 3))))
        return logits


class ResidualBlock(nn.Module):
    """Two convolutions around which the input passes by."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.bypass: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.bypass = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x_BCYX: Tensor) -> Tensor:
        inner = functional.relu(self.first_norm(self.first(x_BCYX)))
        return functional.relu(self.second_norm(self.second(inner)) + self.bypass(x_BCYX))
