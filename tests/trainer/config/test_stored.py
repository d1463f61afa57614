from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader
from yaml import load

from gradwire.trainer.config import Composed, ConfigError, load_resolved, to_yaml, validate
from gradwire.trainer.config.interpolation import literal, resolved

Tiny = Callable[..., Composed]
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True)
TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]))
    | st.sampled_from(["${a}", r"\${a}", r"\\${a.b}", "${", "1e-3", "no", "12", "???x", "a: b", "\n"]),
    lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner),
    max_leaves=10,
)


@pytest.fixture
def stored(tiny: Tiny, tmp_path: Path) -> Path:
    """The configuration of a run that changed some of its defaults."""
    changed = ("batch.size=64", "data.workers=2", "model=mlp", "optimizer.lr=0.5", "run.name=first")
    path = tmp_path / "config.yaml"
    validate(tiny(*changed)).write(path)
    return path


def reload(path: Path, *overrides: str, **options: Any) -> Composed:
    return load_resolved(path, overrides, module="tiny_conf", **{"allow_targets": ["tiny_components"], **options})


@settings(max_examples=60)
@given(st.dictionaries(NAMES, TREES, max_size=3))
def test_any_plain_tree_survives_writing_and_reading(tree: dict[str, Any]) -> None:
    assert load(to_yaml(tree), Loader=get_yaml_loader()) == tree
    assert resolved(OmegaConf.create(literal(tree))) == (tree, {})


def test_a_stored_configuration_comes_back_as_it_was(tiny: Tiny, stored: Path) -> None:
    again = validate(reload(stored))
    assert again.config["batch"]["size"] == 64
    assert again.config["model"]["inner"] == {"_target_": "torch.nn.Linear", "in_features": 4, "out_features": 4}
    rewritten = stored.with_name("again.yaml")
    again.write(rewritten)
    assert rewritten.read_text() == stored.read_text()


def test_values_are_overridden(stored: Path) -> None:
    config = validate(reload(stored, "optimizer.lr=0.25", "run.length=50 updates", "clip=null")).config
    assert (config["optimizer"]["lr"], config["run"]["length"], config["clip"]) == (0.25, "50 updates", None)


def test_overrides_interpolate_the_stored_values(stored: Path) -> None:
    assert validate(reload(stored, "evaluation.batch=${batch.size}")).config["evaluation"]["batch"] == 64


def test_a_groups_option_is_swapped_and_the_sections_own_keys_stay(stored: Path) -> None:
    config = validate(reload(stored, "data=letters", "data.path=here", "optimizer=sgd", "batch=warmup")).config
    assert config["data"] == {"_target_": "tiny_components.Letters", "path": "here", "workers": 2}
    assert config["optimizer"] == {"_target_": "torch.optim.SGD", "lr": 0.1, "groups": []}
    assert config["batch"]["size"] == 64
    assert config["batch"]["schedule"]["_target_"] == "gradwire.schedulers.batch.LinearWarmup"


def test_a_group_goes_back_to_the_default_option(stored: Path) -> None:
    config = validate(reload(stored, "model=linear")).config
    assert config["model"] == {"_target_": "torch.nn.Linear", "in_features": 4, "out_features": 16, "init": None}


def test_a_loss_is_put_in_and_taken_out(stored: Path) -> None:
    assert validate(reload(stored, "loss=summed")).config["loss"] == {"_target_": "tiny_components.Summed"}
    assert validate(reload(stored, "loss=null")).config["loss"] is None


def test_wrong_overrides_are_mistakes_as_ever(stored: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(reload(stored, "data=leters", "optimizer.lrr=1", "batch.size=x"))
    assert [(mistake.key, mistake.suggestion) for mistake in caught.value.mistakes] == [
        ("data", "data=letters"),
        ("optimizer.lrr", "optimizer.lr"),
        ("batch.size", None),
    ]


def test_an_experiment_is_no_swap(stored: Path) -> None:
    (mistake,) = reload(stored, "experiment=wide").mistakes
    assert "changes the whole configuration" in mistake.message


def test_a_stored_configuration_cannot_allow_itself_targets(stored: Path) -> None:
    composed = reload(stored, allow_targets=())
    assert composed.allow_targets == ()
    assert "allow_targets=[tiny_components]" in composed.notes[0]
    with pytest.raises(ConfigError) as caught:
        validate(composed)
    assert {mistake.key for mistake in caught.value.mistakes} == {"model._target_", "data._target_"}
    line = stored.read_text().splitlines().index("  _target_: tiny_components.Mlp") + 1
    assert caught.value.mistakes[0].where == f"{stored}:{line}"


def test_the_user_allows_targets_again_on_the_command_line(stored: Path) -> None:
    composed = reload(stored, "allow_targets=[tiny_components]", allow_targets=())
    assert composed.notes == ()
    assert validate(composed).allow_targets == ("tiny_components",)


@pytest.mark.parametrize(
    "target",
    ["os.system", "torch.hub.load", "torch.os.system", "gradwire.trainer.cli.subprocess.Popen", "builtins.exec"],
)
def test_a_dangerous_target_in_a_stored_configuration_is_refused(stored: Path, target: str) -> None:
    content = yaml.safe_load(stored.read_text())
    content["model"] = {"_target_": target}
    content["allow_targets"] = ["os", "torch", "builtins", "gradwire"]
    stored.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=r"model\._target_"):
        validate(reload(stored))


def test_interpolations_in_a_stored_configuration_are_plain_text(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hidden")
    content = yaml.safe_load(stored.read_text())
    content["evaluation"]["prompt"] = "${oc.env:SECRET} \\${x}"
    stored.write_text(yaml.safe_dump(content))
    assert reload(stored).config["evaluation"]["prompt"] == "${oc.env:SECRET} \\${x}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "not valid YAML"),
        ("- 1", "is not a configuration"),
        ("", "is not a configuration"),
        ("a: &x [1]\nb: *x", "YAML aliases"),
        ("a: !!python/object/apply:os.system [echo]", "not valid YAML"),
        ("x" * 1_000_001, "larger than 1000000 bytes"),
    ],
)
def test_what_is_no_configuration_is_one_mistake(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    composed = load_resolved(path)
    assert [message in mistake.message for mistake in composed.mistakes] == [True]
    with pytest.raises(ConfigError):
        validate(composed)


def test_a_missing_file_is_a_mistake(tmp_path: Path) -> None:
    (mistake,) = load_resolved(tmp_path / "config.yaml").mistakes
    assert "cannot be read" in mistake.message
