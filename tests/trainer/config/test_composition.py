import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gradwire.trainer.config import Composed, ConfigError, Mistake, validate

Tiny = Callable[..., Composed]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def mistakes_of(composed: Composed) -> list[Mistake]:
    with pytest.raises(ConfigError) as caught:
        validate(composed, lambda config, allow: [])
    return list(caught.value.mistakes)


def test_values_come_from_files_overrides_and_defaults(tiny: Tiny) -> None:
    composed = tiny("data.context=64", "loss=summed", "++optimizer.eps=1e-6")
    assert composed.mistakes == ()
    assert composed.config["data"] == {"_target_": "tiny_components.Numbers", "context": 64, "workers": 0}
    assert composed.config["model"]["out_features"] == 64
    assert composed.config["precision"] == "fp32"
    assert composed.config["launch"]["hosts"] == 1
    assert composed.config["loss"] == {"_target_": "tiny_components.Summed"}
    assert composed.origins.of("data.context") == "override 'data.context=64'"
    assert composed.origins.of("data._target_") == "tiny_conf/data/numbers.yaml:1"
    assert composed.origins.of("batch.size") == "tiny_conf/batch/base.yaml:1"
    assert composed.origins.of("run.length") == "tiny_conf/config.yaml:15"
    assert composed.origins.exact("precision") == ""


def test_groups_are_taken_back_with_null(tiny: Tiny) -> None:
    assert tiny("loss=summed", "loss=null").config["loss"] is None
    assert "_target_" not in tiny("model=null").config["model"]
    assert tiny("experiment=null").mistakes == ()


def test_an_experiment_overrides_groups_and_values(tiny: Tiny) -> None:
    composed = tiny("experiment=wide")
    assert composed.config["model"]["_target_"] == "tiny_components.Mlp"
    assert composed.config["model"]["width"] == 64
    assert composed.origins.of("model.width") == "tiny_conf/experiment/wide.yaml:5"
    assert tiny("experiment=wide", "model.width=2").config["model"]["width"] == 2


def test_the_users_folder_adds_and_shadows_files(tiny: Tiny, tmp_path: Path) -> None:
    write(tmp_path / "data/mine.yaml", "_target_: tiny_components.Numbers\ncontext: 5\n")
    write(tmp_path / "optimizer/adamw.yaml", "_target_: torch.optim.AdamW\nlr: 0.5\n")
    composed = tiny("data=mine", config_dir=tmp_path)
    assert composed.mistakes == ()
    assert composed.config["data"]["context"] == 5
    assert composed.config["optimizer"]["lr"] == 0.5
    assert composed.origins.of("data.context") == f"{tmp_path}/data/mine.yaml:2"


def test_all_wrong_overrides_are_reported_together(tiny: Tiny) -> None:
    wrong = ["=3", "a=1,2", "hydra.x=1", "lr=3e-4", "run.name=[", "model=mpl", "data@x=letters"]
    composed = tiny("data.context=64", *wrong)
    assert sorted(mistake.where for mistake in composed.mistakes) == sorted(f"override '{text}'" for text in wrong)
    assert composed.config["data"]["context"] == 64


def test_a_wrong_option_is_told_with_the_nearest_right_one(tiny: Tiny) -> None:
    (mistake,) = tiny("data=leters").mistakes
    assert mistake.suggestion == "data=letters"
    assert "there are letters, numbers" in mistake.message


def test_a_number_for_a_group_is_told_which_key_was_meant(tiny: Tiny) -> None:
    assert [mistake.suggestion for mistake in tiny("lr=3e-4", "batch=64").mistakes] == [
        "optimizer.lr=0.0003",
        "batch.size=64",
    ]


def test_yaml_syntax_errors_name_file_and_line_and_hide_nothing_else(tiny: Tiny, tmp_path: Path) -> None:
    write(tmp_path / "data/broken.yaml", "_target_: x\ncontext: [1, 2\n")
    composed = tiny("data=broken", "model=mpl", "optimizer.lr=1", config_dir=tmp_path)
    assert [mistake.where for mistake in composed.mistakes] == [
        "override 'model=mpl'",
        f"{tmp_path}/data/broken.yaml:3",
    ]
    assert "not valid YAML" in composed.mistakes[1].message
    assert composed.config["optimizer"]["lr"] == 1


def test_a_key_given_twice_in_a_file_is_a_mistake(tiny: Tiny, tmp_path: Path) -> None:
    write(tmp_path / "data/twice.yaml", "_target_: tiny_components.Numbers\ncontext: 1\ncontext: 2\n")
    (mistake,) = tiny("data=twice", config_dir=tmp_path).mistakes
    assert mistake.where == f"{tmp_path}/data/twice.yaml:3"
    assert "duplicate key context" in mistake.message


def test_a_wrong_option_in_the_users_file_is_traced_there(tiny: Tiny, tmp_path: Path) -> None:
    write(tmp_path / "experiment/mine.yaml", "# @package _global_\ndefaults:\n  - override /model: mpl\n")
    (mistake,) = tiny("experiment=mine", config_dir=tmp_path).mistakes
    assert mistake.where == f"{tmp_path}/experiment/mine.yaml:3"
    assert mistake.suggestion == "mlp"


def test_an_unknown_group_in_the_users_file_is_traced_there(tiny: Tiny, tmp_path: Path) -> None:
    write(tmp_path / "experiment/mine.yaml", "# @package _global_\ndefaults:\n  - override /modle: mlp\n")
    (mistake,) = tiny("experiment=mine", config_dir=tmp_path).mistakes
    assert mistake.where == f"{tmp_path}/experiment/mine.yaml:3"
    assert mistake.suggestion == "model"


def test_hydras_own_section_in_a_file_is_a_mistake(tiny: Tiny, tmp_path: Path) -> None:
    write(tmp_path / "experiment/mine.yaml", "# @package _global_\nhydra:\n  searchpath: [file:///]\n")
    (mistake,) = tiny("experiment=mine", config_dir=tmp_path).mistakes
    assert "Hydra's own settings have no effect" in mistake.message


def test_a_missing_folder_is_a_mistake(tiny: Tiny, tmp_path: Path) -> None:
    (mistake,) = tiny(config_dir=tmp_path / "nowhere").mistakes
    assert str(mistake) == f"--config-dir: there is no folder {tmp_path}/nowhere"


def test_each_interpolation_that_leads_nowhere_is_one_mistake(tiny: Tiny) -> None:
    composed = tiny("data.context=${optimizer.lrr}", "clip=${nothing}", "run.name=${run.name}")
    assert {mistake.key: mistake.suggestion for mistake in composed.mistakes} == {
        "data.context": "${optimizer.lr}",
        "clip": None,
        "run.name": None,
    }


def test_the_environment_can_be_read_and_code_cannot_be_run(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY_NAME", "from-outside")
    assert tiny("run.name=${oc.env:TINY_NAME}").config["run"]["name"] == "from-outside"
    (mistake,) = tiny("run.name='${eval:1+1}'").mistakes
    assert mistake.key == "run.name"


def test_unknown_keys_are_traced_to_each_override(tiny: Tiny) -> None:
    found = mistakes_of(tiny("data.contxt=64", "datt.context=1", "datt.workrs=2", "batch_size=3"))
    assert {mistake.key: (mistake.where, mistake.suggestion) for mistake in found} == {
        "data.contxt": ("override 'data.contxt=64'", "data.context"),
        "datt.context": ("override 'datt.context=1'", "data.context"),
        "datt.workrs": ("override 'datt.workrs=2'", "data.workers"),
        "batch_size": ("override 'batch_size=3'", "batch.size"),
    }


def test_unknown_keys_are_traced_to_file_and_line(tiny: Tiny, tmp_path: Path) -> None:
    lines = ["# @package _global_", "runn:", "  seed: 1", "  name: x"]
    lines += ["optimizer:", "  lr: 1", "  wieght_decay: 0", "  groups:", "  - {patern: x}"]
    write(tmp_path / "experiment/mine.yaml", "\n".join(lines))
    found = mistakes_of(tiny("experiment=mine", config_dir=tmp_path))
    file = f"{tmp_path}/experiment/mine.yaml"
    assert {mistake.key: (mistake.where, mistake.suggestion) for mistake in found} == {
        "runn": (f"{file}:2", "run"),
        "optimizer.wieght_decay": (f"{file}:7", "optimizer.weight_decay"),
        "optimizer.groups[0].patern": (f"{file}:9", "optimizer.groups[0].pattern"),
        "optimizer.groups[0].pattern": (f"{file}:9", None),
    }


def test_a_wrong_value_that_others_interpolate_is_one_mistake(tiny: Tiny) -> None:
    (mistake,) = mistakes_of(tiny("data.context=abc"))
    assert mistake.key == "data.context"


def test_the_error_has_a_line_for_each_mistake(tiny: Tiny) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(tiny("data.contxt=64", "clip=true"))
    assert str(caught.value).splitlines() == [
        "data.contxt (override 'data.contxt=64'): no such key; did you mean data.context?",
        "clip (override 'clip=true'): expected a number or null, found true",
    ]


def test_the_package_is_imported_without_torch_and_hydra() -> None:
    program = (
        "import sys, gradwire.trainer.config; print(*({'torch', 'hydra', 'omegaconf', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
