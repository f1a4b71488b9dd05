"""A configuration is what its YAML says, or every reason, with its line, why it is not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api import registry
from unlearnbench.base.errors import ConfigError
from unlearnbench.config.config_sources import shipped_configs
from unlearnbench.config.loader import load_config
from unlearnbench.config.schema import SweepConfig

GOOD = """\
name: good
data: {authors: 40}
models:
  - name: tiny
    base: tiny
forget_fractions: [0.1]
methods: [ce-u]
learning_rates: [1.0e-5]
"""

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes `bench.yaml`, `GOOD` with some text replaced, into the working directory."""
    monkeypatch.chdir(tmp_path)

    def written(*replacements: tuple[str, str], name: str = "bench.yaml", add: str = "") -> str:
        text = GOOD + add
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        Path(name).write_text(text)
        return name

    return written


def problems(path: str, *overrides: str) -> list[tuple[str, str, str]]:
    """Problems of a configuration, as (place, key, message)."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return [(p.place, p.key, p.message) for p in caught.value.problems]


@pytest.mark.parametrize("name", list(shipped_configs()))
def test_every_shipped_config_loads_and_is_short(name: str) -> None:
    source = shipped_configs()[name]
    config = load_config(name)
    assert config.name == name
    lines = source.text.splitlines()
    assert len(lines) <= 41
    assert source.purpose == lines[0].removeprefix("# ")
    assert f"unlearnbench {'' if name == 'quickstart' else 'sweep '}{name}" in lines[1]


def test_defaults_and_conversions(write: Write) -> None:
    config = load_config(write(add="training: {max_grad_norm: 2}\nseeds: [3, 4]\n"))
    assert isinstance(config, SweepConfig)
    assert config.training.max_grad_norm == 2.0
    assert isinstance(config.training.max_grad_norm, float)
    assert config.seeds == (3, 4)
    assert config.training.batch_size == 32
    assert config.methods[0].specs[0].hyperparameters == {"ignore_first_answer_tokens": 1}


def test_all_mistakes_are_reported_at_once_in_file_order(write: Write) -> None:
    path = write(
        ("authors: 40", "autors: 40"),
        ("[0.1]", "[1.5]"),
        ("methods: [ce-u]", "methods: [ceu, {method: npo, btea: 1}]"),
        ("1.0e-5", "'1e-5'"),
    )
    found = problems(path, "epochs=0")
    assert [(place, key) for place, key, _ in found] == [
        ("--set", "epochs"),
        ("bench.yaml:2", "data.autors"),
        ("bench.yaml:6", "forget_fractions.0"),
        ("bench.yaml:7", "methods.0"),
        ("bench.yaml:7", "methods.1.btea"),
        ("bench.yaml:8", "learning_rates.0"),
    ]
    with pytest.raises(ConfigError, match=r"(?s)6 errors; no run was started\.$"):
        load_config(path, ["epochs=0"])


class TestOverrides:
    """`--set key=value`."""

    @pytest.mark.parametrize(
        ("override", "key", "value"),
        [
            ("epochs=7", "epochs", 7),
            ("training.batch_size=8", "training.batch_size", 8),
            ("models.0.base=./folder", "models.0.base", "./folder"),
            ("models.0.architecture.layers=2", "models.0.architecture.layers", 2),
            ("methods=[ce-u, idk]", "methods.1.specs.0.name", "idk"),
            ("learning_rates=[1e-5,2e-4]", "learning_rates", (1e-5, 2e-4)),
            ("learning_rates.0=3E-4", "learning_rates", (3e-4,)),
            ("training.max_grad_norm=1e2", "training.max_grad_norm", 100.0),
            ("description='1e5'", "description", "1e5"),
            ("description=a=b", "description", "a=b"),
            ("tracking.enabled=false", "tracking.enabled", False),
            ("cache=", "cache", None),
            ("training={batch_size: 4}", "training.batch_size", 4),
        ],
    )
    def test_set_any_key(self, write: Write, override: str, key: str, value: Any) -> None:
        found: Any = load_config(write(), [override])
        for step in key.split("."):
            found = found[int(step)] if step.isdigit() else getattr(found, step)
        assert found == value


class TestExtends:
    """One level of `extends`."""

    def test_overrides_what_it_states(self, write: Write) -> None:
        write(name="parent.yaml", add="training: {batch_size: 8, max_length: 64}\n")
        Path("child.yaml").write_text(
            "extends: parent.yaml\nname: child\ntraining: {batch_size: 4}\nmethods: [idk]\n"
        )
        config = load_config("child.yaml")
        assert config.name == "child"
        assert (config.training.batch_size, config.training.max_length) == (4, 64)
        assert [grid.specs[0].name for grid in config.methods] == ["idk"]


def test_metrics_are_named_with_their_settings_or_in_a_list(write: Write) -> None:
    written = write(add="evaluation: {metrics: {mia-min-k: {share: 0.2}, rouge: {}}}\n")
    assert load_config(written).evaluation.metrics == {"mia-min-k": {"share": 0.2}, "rouge": {}}
    again = SweepConfig.model_validate_json(load_config(written).model_dump_json())
    assert again == load_config(written)
    config = load_config(write(add="evaluation: {metrics: [rouge, mia-loss]}\n"))
    assert config.evaluation.metrics == {"rouge": {}, "mia-loss": {}}


class TestPlugins:
    """Files of `plugins` are found beside the configuration, and hashed into what they define."""

    FOCAL = (
        "from torch import Tensor\n"
        "from unlearnbench import LossBatch, Method, Needs\n"
        "class Focal(Method):\n"
        "    needs = Needs({'forget'})\n"
        "    gamma: float = 2.0\n"
        "    def loss(self, batch: LossBatch) -> Tensor:\n"
        "        return -self.gamma * batch.forget.mean_tokens()\n"
    )

    def test_paths_are_relative_to_the_file_that_states_them(self, write: Write) -> None:
        folder = Path("mine")
        folder.mkdir()
        (folder / "focal.py").write_text(self.FOCAL)
        write(("[ce-u]", "[focal, ce-u]"), name="mine/sweep.yaml", add="plugins: [focal.py]\n")
        spec = load_config("mine/sweep.yaml").methods[0].specs[0]
        assert (spec.name, spec.hyperparameters["gamma"]) == ("focal", 2.0)
        assert spec.source == registry.file_digest("focal") != ""
        # One that extends it has its plug-ins; --set is relative to the working directory.
        Path("other.yaml").write_text("extends: mine/sweep.yaml\nname: other\n")
        assert load_config("other.yaml").methods[0].specs == (spec,)
        assert load_config("other.yaml", ["plugins=[mine/focal.py]"]).methods[0].specs == (spec,)
        registry._files.clear()  # pyright: ignore[reportPrivateUsage]
        assert problems("other.yaml", "plugins=null")[0][2].startswith("unknown method 'focal'")


def test_a_character_that_yaml_does_not_have_is_a_problem_of_its_line(write: Write) -> None:
    reason = "not YAML: unacceptable character #x0001: special characters are not allowed"
    path = write(("authors: 40}", "authors: 40}\ndescription: a\x01b"))
    assert problems(path) == [("bench.yaml:3", "", reason)]
    overridden = problems(write(), "description=a\x01b")
    assert overridden == [("--set", "description", reason)]
