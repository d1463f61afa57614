"""How fast a device can compute, so that a speed can be told as a share of it."""

import re

import torch

_PEAK_FLOPS = (  # dense 16-bit arithmetic, FLOP/s, from the vendor's data sheets; a model's variants before the model
    ("GB200", 2500e12),
    ("B200", 2250e12),
    ("GH200", 989e12),
    ("H200 NVL", 835e12),
    ("H200", 989e12),
    ("H100 NVL", 835e12),
    ("H100 PCIE", 756e12),
    ("H100", 989e12),
    ("A100", 312e12),
    ("L40S", 362e12),
    ("L40", 181e12),
    ("L4", 121e12),
    ("A10", 125e12),
    ("V100 PCIE", 112e12),
    ("V100", 125e12),
    ("T4", 65e12),
)


def peak_flops(device_name: str) -> float | None:
    """Operations a second of a device by its name, such as "NVIDIA A100-SXM4-80GB"; None where unknown.

    Whole words are compared. A MIG slice has the name of its device and part of its speed: unknown.
    """
    words = set(re.findall(r"\w+", device_name.upper()))
    if "MIG" in words:
        return None
    return next((peak for model, peak in _PEAK_FLOPS if words.issuperset(model.split())), None)


def peak_flops_here() -> float | None:
    """The same of this process's GPU; None without one."""
    return peak_flops(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
