"""Peak speeds by device name."""

import pytest

from gradwire.trainer.loggers.peak import peak_flops


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA GB200", 2500),
        ("NVIDIA B200", 2250),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA L40S", 362),
        ("NVIDIA L40", 181),
        ("NVIDIA L4", 121),
        ("NVIDIA A10", 125),
        ("Tesla V100-SXM2-16GB", 125),
        ("Tesla V100-PCIE-32GB", 112),
        ("Tesla T4", 65),
    ],
)
def test_a_known_device_has_its_own_peak(name: str, tera: int) -> None:
    assert peak_flops(name) == tera * 1e12


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A10G",
        "NVIDIA RTX A1000",
        "NVIDIA A100X",
        "NVIDIA T400 4GB",
        "NVIDIA L400",
        "NVIDIA GeForce RTX 4090",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "AMD Instinct MI300X",
        "",
    ],
)
def test_a_device_whose_name_only_resembles_a_known_one_has_none(name: str) -> None:
    assert peak_flops(name) is None
