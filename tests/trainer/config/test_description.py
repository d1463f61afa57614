from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from gradwire.trainer.config import Composed, describe, load_resolved, validate

Tiny = Callable[..., Composed]


def valid(composed: Composed) -> Any:
    return validate(composed, lambda config, allow: [])


def test_a_line_says_what_a_key_means_and_where_its_value_came_from(tiny: Tiny) -> None:
    text = describe(valid(tiny("data.context=64")))
    (line,) = (line for line in text.splitlines() if line.startswith("  context:"))
    value, _, comment = line.partition("#")
    assert value.strip() == "context: 64"
    assert comment.split("  ")[0].strip() == "override 'data.context=64'"
    assert comment.endswith("Tokens per sample.")


def test_keys_that_nobody_set_are_shown_with_their_defaults(tiny: Tiny) -> None:
    lines = {line.split("#")[0].strip(): line for line in describe(valid(tiny("model=mlp"))).splitlines()}
    assert "# default" in lines["activation: relu"]
    assert "# default" in lines["precision: fp32"]
    assert "tiny_conf/config.yaml:15" in lines["length: 100 updates"]


def test_comments_are_aligned(tiny: Tiny) -> None:
    lines = describe(valid(tiny())).splitlines()
    assert len({line.index("  # ") for line in lines if "  # " in line}) == 1


def test_the_description_is_itself_a_configuration(tiny: Tiny, tmp_path: Path) -> None:
    overrides = ("evaluation.prompt='a: \"b\" #${x}'", "model=mlp", "callbacks={}", "comm.topology={local: 1}")
    config = valid(tiny(*overrides[1:]))
    config.config["evaluation"]["prompt"] = 'a: "b"\n#'
    path = tmp_path / "config.yaml"
    path.write_text(describe(config))
    again = valid(load_resolved(path, allow_targets=["tiny_components"], module="tiny_conf"))
    assert {name: again.config[name] for name in ("run", "evaluation", "comm", "batch")} == {
        name: yaml.safe_load(path.read_text())[name] for name in ("run", "evaluation", "comm", "batch")
    }
    assert again.config["evaluation"]["prompt"] == 'a: "b"\n#'
    assert again.config["model"]["activation"] == "relu"
