import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gradwire.trainer.config import TargetError
from gradwire.trainer.config.targets import resolve_target


def test_public_names_resolve_to_their_classes() -> None:
    assert resolve_target("torch.nn.Linear") is torch.nn.Linear
    assert resolve_target("torch.optim.AdamW") is torch.optim.AdamW
    assert resolve_target("gradwire.schedulers.lr.Cosine").__name__ == "Cosine"


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "builtins.eval",
        "torch.os.system",
        "torch.hub.load",
        "torch.load",
        "torch.nn.modules.os.system",
        "torch.nn.modules.module.torch.load",
        "torch.nn.functional.torch.os.system",
        "torch.nn.functional.relu",
        "torch.nn.init",
        "torch.nn.modules.module.functools.partial",
        "torch.nn.Module.__subclasses__",
        "torch.nn.modules.batchnorm._BatchNorm",
        "torch.nn.parallel.distributed.os.popen",
        "torch.optim.optimizer.defaultdict",
        "torch.optim.optimizer.OrderedDict",
        "gradwire.trainer.cli.subprocess.Popen",
        "gradwire.trainer.config.targets.importlib.import_module",
        "gradwire.trainer.config.errors.Sequence",
        "gradwire.trainer.config.targets.resolve_target",
        "gradwire.trainer.config.sources.Path",
        "gradwire..trainer",
        "gradwire.",
        "torch.nn",
        "torch.nn.Linear()",
        "torch.nn.Linear\n",
        "",
        "Linear",
        None,
        3,
        ["torch.nn.Linear"],
    ],
)
def test_nothing_but_classes_of_allowed_packages_resolves(target: object) -> None:
    with pytest.raises(TargetError):
        resolve_target(target)


def test_a_refused_module_is_not_even_imported(tmp_path: Path) -> None:
    (tmp_path / "trap.py").write_text("print('imported')\nclass Trap: pass\n")
    program = (
        "from gradwire.trainer.config.targets import resolve_target\n"
        "try: resolve_target('trap.Trap', ['trapped', 'tra'])\n"
        "except ValueError as error: print('refused')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": "."},
    )
    assert done.stdout == "refused\n"


def test_a_class_of_another_package_is_refused_under_an_allowed_name() -> None:
    with pytest.raises(TargetError, match=r"really collections\.defaultdict"):
        resolve_target("torch.optim.optimizer.defaultdict")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("torch.nn.Linar", "torch.nn.Linear"),
        ("torch.optm.AdamW", "torch.optim.AdamW"),
        ("torch.optm.AdmW", "torch.optim.AdamW"),
        ("gradwire.schedulers.lr.Cosin", "gradwire.schedulers.lr.Cosine"),
        ("gradwire.scheduler.lr.Cosine", "gradwire.schedulers.lr.Cosine"),
        ("gradwire.schedulers.lrs.Cosine", "gradwire.schedulers.lr.Cosine"),
        ("gradwir.schedulers.lr.Cosine", "gradwire.schedulers.lr.Cosine"),
        ("torch.os.system", None),
    ],
)
def test_a_misspelt_target_is_mended(wrong: str, right: str | None) -> None:
    with pytest.raises(TargetError) as caught:
        resolve_target(wrong)
    assert caught.value.suggestion == right


def test_users_allow_packages_and_single_functions(library: Path) -> None:
    with pytest.raises(TargetError, match=r"allow_targets=\[tiny_components\]"):
        resolve_target("tiny_components.Mlp")
    assert resolve_target("tiny_components.Mlp", ["tiny_components"]).__name__ == "Mlp"
    assert resolve_target("tiny_components.Mlp", ["tiny_components."]).__name__ == "Mlp"
    with pytest.raises(TargetError, match="not a class"):
        resolve_target("tiny_components.function", ["tiny_components"])
    assert resolve_target("tiny_components.function", ["tiny_components.function"]).__name__ == "function"


def test_an_allowed_prefix_is_whole_names(library: Path) -> None:
    for entry in ("tiny", "tiny_component", "", "."):
        with pytest.raises(TargetError):
            resolve_target("tiny_components.Mlp", [entry])


def test_a_module_of_the_current_folder_that_python_does_not_see_is_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TargetError) as caught:
        resolve_target("unseen_parts.Net", ["unseen_parts"])
    assert str(caught.value) == "there is no module unseen_parts"
    (tmp_path / "unseen_parts.py").write_text("class Net: ...\n")
    with pytest.raises(TargetError, match=f"export PYTHONPATH={tmp_path} "):
        resolve_target("unseen_parts.Net", ["unseen_parts"])
    with pytest.raises(TargetError) as caught:
        resolve_target("torch.nn.unseen_parts.Net")
    assert "PYTHONPATH" not in str(caught.value)
