"""A configuration is what its YAML says, or every reason, with its line, why it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api import registry
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.config.loader import load_config, shipped_configs
from unlearnbench.config.schema import ModelSettings, Preparation, SweepConfig
from unlearnbench.errors import ConfigError

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
    """What is wrong with a configuration, as (place, key, message)."""
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
    assert source.purpose == lines[1].removeprefix("# ")
    assert f"unlearnbench {'' if name == 'quickstart' else 'sweep '}{name}" in lines[2]


def test_every_method_has_every_built_in_method() -> None:
    config = load_config("every_method")
    names = [spec.name for grid in config.methods for spec in grid.specs]
    assert sorted(names) == list(registry.names("methods"))


@pytest.mark.parametrize("name", ["quickstart", "every_method"])
def test_first_sweeps_have_enough_forget_questions(name: str) -> None:
    config = load_config(name)
    assert isinstance(config.data, Synthetic)
    rows = config.data.authors * config.data.questions_per_author
    assert max(config.forget_fractions) * rows >= 80


def test_quickstart_ranks_eight_methods_by_three_seeds_under_an_attack() -> None:
    config = load_config("quickstart")
    assert len(config.method_names) == len(config.methods) == 8
    assert isinstance(config.learning_rates, tuple)
    assert (len(config.learning_rates), len(config.seeds)) == (2, 3)
    assert [attack.name for attack in config.attacks] == ["relearning"]
    assert config.evaluated_epochs == (4, 8)


def test_defaults_and_conversions(write: Write) -> None:
    config = load_config(write(add="training: {max_grad_norm: 2}\nseeds: [3, 4]\n"))
    assert isinstance(config, SweepConfig)
    assert config.training.max_grad_norm == 2.0
    assert isinstance(config.training.max_grad_norm, float)
    assert config.seeds == (3, 4)
    assert config.training.batch_size == 32
    assert config.methods[0].specs[0].hyperparameters == {"ignore_first_answer_tokens": 1}


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "message"),
    [
        ("data:", "dta:", 2, "dta", "unknown key; did you mean 'data'? a configuration takes: "),
        ("data:", "batch_size: 3\ndata:", 2, "batch_size", "unknown key; did you mean 'training.b"),
        ("authors: 40", "autors: 40", 2, "data.autors", "unknown key; did you mean 'authors'? da"),
        ("name: good\n", "", 1, "name", "missing: this key is required"),
        ("    base: tiny\n", "", 4, "models.0.base", "missing: this key is required"),
        ("name: good", "name: good sweep", 1, "name", "must match ^[A-Za-z0-9]"),
        ("name: good", "name: 7", 1, "name", "expected text, got 7 (quote it to make it text)"),
        ("name: good", "name: cache", 1, "name", "'cache' is the folder of prepared models"),
        ("{authors: 40}", "3", 2, "data", "expected a section of keys, got 3"),
        ("{authors: 40}", "{authors: 1}", 2, "data.authors", "must be at least 2, got 1"),
        (
            "{authors: 40}",
            "{source: tofuu}",
            2,
            "data.source",
            "expected one of passages, synthetic, tofu, g",
        ),
        ("[1.0e-5]", "['1e-5']", 8, "learning_rates.0", "expected a float, got the text '1e-5' (w"),
        ("[1.0e-5]", "[]", 8, "learning_rates", "is empty: a sweep of zero runs"),
        ("[1.0e-5]", "1.0e-5", 8, "learning_rates", "expected a list, got 1e-05 (write [1e-05])"),
        ("[1.0e-5]", "[-1.0]", 8, "learning_rates.0", "must be above 0, got -1"),
        ("[1.0e-5]", "[.inf]", 8, "learning_rates.0", "expected a finite number, got inf"),
        ("[1.0e-5]", "[0.1, 0.10]", 8, "learning_rates.1", "the same as entry 0: duplicate run"),
        ("[0.1]", "[]", 6, "forget_fractions", "is empty: a sweep of zero runs"),
        ("[0.1]", "[1.5]", 6, "forget_fractions.0", "must lie between 0 and 1, got 1.5"),
        ("[0.1]", "[0]", 6, "forget_fractions.0", "must lie between 0 and 1, got 0"),
        ("[0.1]", "[0.1, 0.1]", 6, "forget_fractions.1", "the same as entry 0: duplicate run"),
        ("[0.1]", "[0.03]", 6, "forget_fractions.0", "0.03 of 40 authors is 1.2 authors, which is"),
        ("[ce-u]", "[]", 7, "methods", "is empty: a sweep of zero runs"),
        ("base: tiny", "base: tiny\n    lora: 3", 6, "models.0.lora", "expected a section of keys"),
        (
            "base: tiny",
            "base: tiny\n    retain: {r90: x}",
            6,
            "models.0.retain.r90",
            "expected a sp",
        ),
        (
            "base: tiny",
            "base: tiny\n    architecture: {heads: 5}",
            6,
            "models.0.architecture",
            "hidden_size must be a multiple of twice heads",
        ),
        (
            "base: tiny",
            "base: tiny\n    lora: {target_modules: 3}",
            6,
            "models.0.lora.target_modules",
            "expected a list, got 3 (write [3]); or expected all-linear, got 3",
        ),
        ("[1.0e-5]", "[1.0e-5]\nseeds: [-1]", 9, "seeds.0", "must be at least 0, got -1"),
        ("[1.0e-5]", "[1.0e-5]\nepochs: 1.5", 9, "epochs", "expected a whole number, got 1.5"),
        (
            "[1.0e-5]",
            "[1.0e-5]\nepochs: [1, 2]",
            9,
            "epochs",
            "expected a whole number, got a list",
        ),
        ("[1.0e-5]", "[1.0e-5]\nname: x", 9, "name", "given twice; first at bench.yaml:1"),
        (
            "[1.0e-5]",
            "[1.0e-5]\nevaluation: {profile: tof}",
            9,
            "evaluation.profile",
            "evaluation profile 'tof' is unknown; did you mean 'tofu'?",
        ),
    ],
)
def test_each_mistake_has_one_line(
    write: Write, old: str, new: str, line: int, key: str, message: str
) -> None:
    ((place, found_key, found),) = problems(write((old, new)))
    assert (place, found_key) == (f"bench.yaml:{line}", key)
    assert found.startswith(message)
    assert "\n" not in found


def test_quoted_number_is_text_with_a_hint(write: Write) -> None:
    ((_, _, message),) = problems(write(("1.0e-5", "'1e-5'")))
    assert message.endswith("(without the quotes it is a number)")


def test_fraction_error_suggests_a_whole_number_of_authors(write: Write) -> None:
    ((_, _, message),) = problems(write(("[0.1]", "[0.03]")))
    assert message.endswith("the nearest is 0.025 (1)")
    assert load_config(write(("[0.1]", "[0.025]"))).forget_fractions == (0.025,)


def test_tofu_has_three_forget_sets(write: Write) -> None:
    path = write(("{authors: 40}", "{source: tofu}"), ("[0.1]", "[0.01, 0.05, 0.10, 0.2]"))
    ((place, key, message),) = problems(path)
    assert (place, key) == ("bench.yaml:6", "forget_fractions.3")
    assert message == ("TOFU has forget sets of 0.01, 0.05 and 0.10, got 0.2; the nearest is 0.10")


def test_model_names_must_be_unique(write: Write) -> None:
    path = write(("    base: tiny\n", "    base: tiny\n  - {name: tiny, base: x}\n"))
    ((place, key, message),) = problems(path)
    assert (place, key) == ("bench.yaml:6", "models.1.name")
    assert message == "'tiny' is the name of models.0 as well"


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [", "not YAML"),
        ("- a\n- b\n", "expected lines of key: value"),
        ("", "expected lines of key: value"),
        (
            "name: !!python/object:os.system x\n",
            "the tag !!python/object:os.system has no meaning here; remove it",
        ),
        ("name: &a\n  - *a\n", "an alias of a section or list that contains it"),
        ("? [a, b]\n: 1\n", "a key must be a word"),
    ],
)
def test_malformed_files_are_reported(write: Write, text: str, message: str) -> None:
    Path(write()).write_text(text)
    found = problems("bench.yaml")
    assert any(m.startswith(message) and p.startswith("bench.yaml:") for p, _, m in found)


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

    @pytest.mark.parametrize(
        ("override", "key", "message"),
        [
            ("epochs", "epochs", "expected key=value"),
            ("=3", "=3", "expected key=value"),
            ("epohcs=3", "epohcs", "unknown key; did you mean 'epochs'?"),
            # A key of the same section before one of another, which would mean something else.
            (
                "learning_rate=3",
                "learning_rate",
                "unknown key; did you mean 'learning_rates'? a con",
            ),
            ("seed=3", "seed", "unknown key; did you mean 'seeds'?"),
            ("batch_size=3", "batch_size", "unknown key; did you mean 'training.batch_size'?"),
            (
                *("max_length=3", "max_length"),
                "unknown key; it is a key of other sections: training.max_length and "
                "evaluation.max_length; a configuration takes",
            ),
            (
                *("rehearse_facts=true", "rehearse_facts"),
                "unknown key; it is a key of models.0.preparation, which changes the start model; "
                "a configuration takes: ",
            ),
            (
                *("models.0.learning_rate=3", "models.0.learning_rate"),
                "unknown key; did you mean 'models.0.preparation.learning_rate'?",
            ),
            ("training.lr=3", "training.lr", "unknown key; training takes: batch_size"),
            ("epochs=abc", "epochs", "expected a whole number, got the text 'abc'"),
            ("models.1.base=x", "models.1", "no such entry: its entries are models.0 to models.0"),
            ("epochs.x=1", "epochs", "expected a whole number, got a section"),
            ("name.x=1", "name.x", "name is the value 'good' and has no 'x' in it"),
            ("epochs=[1", "epochs", "not YAML"),
            ("forget_fractions=[0.03]", "forget_fractions.0", "0.03 of 40 authors is 1.2"),
        ],
    )
    def test_mistakes_are_reported_at_the_option(
        self, write: Write, override: str, key: str, message: str
    ) -> None:
        ((place, found_key, found),) = problems(write(), override)
        assert (place, found_key) == ("--set", key)
        assert found.startswith(message)


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

    def test_takes_a_shipped_config_by_name(self, write: Write) -> None:
        Path(write()).write_text("extends: quickstart\nname: mine\nepochs: 1\n")
        config = load_config("bench.yaml")
        assert (config.name, config.epochs) == ("mine", 1)
        assert config.models == load_config("quickstart").models

    def test_is_relative_to_the_file(self, write: Write) -> None:
        write()
        Path("sub").mkdir()
        Path("sub/child.yaml").write_text("extends: ../bench.yaml\nname: child\n")
        assert load_config("sub/child.yaml").forget_fractions == (0.1,)

    def test_mistakes_name_their_file(self, write: Write) -> None:
        write(("[0.1]", "[2.0]"), name="parent.yaml")
        Path("child.yaml").write_text("extends: parent.yaml\nname: child\nepochs: 0\n")
        assert [(p, k) for p, k, _ in problems("child.yaml")] == [
            ("child.yaml:3", "epochs"),
            ("parent.yaml:6", "forget_fractions.0"),
        ]

    def test_is_limited_to_one_level(self, write: Write) -> None:
        write(name="parent.yaml", add="extends: quickstart\n")
        Path("child.yaml").write_text("extends: parent.yaml\nname: child\n")
        ((place, key, message),) = problems("child.yaml")
        assert (place, key) == ("child.yaml:1", "extends")
        assert message.startswith("parent.yaml itself extends another (parent.yaml:9); one level")

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ("quickstrat", "quickstrat: no such configuration; did you mean 'quickstart'?"),
            ("./nowhere.yaml", "./nowhere.yaml: no such file"),
            ("[a]", "expected a config's name or path"),
        ],
    )
    def test_unknown_parents_are_reported(self, write: Write, value: str, message: str) -> None:
        ((place, key, found),) = problems(write(add=f"extends: {value}\n"))
        assert (place, key) == ("bench.yaml:9", "extends")
        assert found.startswith(message)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quickstrt", "no such configuration; did you mean 'quickstart'? shipped: "),
        ("configs/tofu_tiny.yml", "no such file; did you mean 'tofu_tiny'? shipped: "),
        ("zzz", "no such configuration; shipped: "),
    ],
)
def test_unknown_configs_are_reported(write: Write, name: str, message: str) -> None:
    write()
    ((place, _, found),) = problems(name)
    assert place == name
    assert found.startswith(message)


class TestTiny:
    """A model that is built here has a preparation at which random weights learn."""

    def test_defaults_equal_the_quickstart(self, write: Write) -> None:
        (model,) = load_config(write()).models
        (quick,) = load_config("quickstart").models
        assert model.preparation == quick.preparation
        assert model.preparation.optimizer == "muon"

    def test_stated_values_override_defaults(self, write: Write) -> None:
        stated = "models.0.preparation={epochs: 2, rehearse_facts: false}"
        how = load_config(write(), [stated]).models[0].preparation
        assert (how.epochs, how.rehearse_facts, how.schedule) == (2, False, "cosine")

    def test_other_models_keep_the_defaults_of_published_ones(self, write: Write) -> None:
        how = load_config(write(), ["models.0.base=some/model"]).models[0].preparation
        assert how == Preparation()
        assert (how.optimizer, how.learning_rate, how.epochs) == ("adamw", 1e-5, 5)

    def test_model_survives_a_round_trip(self) -> None:
        adamw = Preparation(epochs=1, base_epochs=1, optimizer="adamw", learning_rate=1e-5)
        stored = ModelSettings(name="a", base="tiny", preparation=adamw)
        again = ModelSettings.model_validate_json(stored.model_dump_json())
        assert again == stored
        assert again.preparation.optimizer == "adamw"

    def test_preparation_must_be_a_section(self, write: Write) -> None:
        ((_, key, message),) = problems(write(), "models.0.preparation=3")
        assert (key, message) == ("models.0.preparation", "expected a section of keys, got 3")


@pytest.mark.parametrize(
    ("scalar", "message"),
    [
        ("017", "017 begins with 0, which some readers read as octal; write 17"),
        ("1_0", "1_0 has underscores; write 10"),
        ("0b1", "0b1 is binary"),
        ("1e400", "1e400 is beyond a float's 1.8e308"),
        ("1e-400", "1e-400 is below a float's 4.9e-324"),
        ("9" * 5000, "a whole number of 5000 digits"),
        ("!!int abc", "!!int 'abc' is not a whole number"),
        ('"\\0"', "the text '\\x00' holds the control character U+0000"),
        ("1:30", "expected a whole number, got the text '1:30'"),
        ("2026-13-45", "expected a whole number, got the text '2026-13-45'"),
    ],
)
def test_scalars_are_read_alike_in_files_and_on_the_command_line(
    write: Write, scalar: str, message: str
) -> None:
    ((_, key, found), (_, other, _)) = problems(write(add=f"epochs: {scalar}\nseeds: [-1]\n"))
    assert (key, other) == ("epochs", "seeds.0"), "one bad scalar hides no other error"
    assert found.startswith(message)
    ((_, key, found),) = problems(write(), f"epochs={scalar}")
    assert key == "epochs"
    assert found.startswith(message)


def test_exponent_without_a_dot_is_a_float(write: Write) -> None:
    assert load_config(write(("1.0e-5", "1e-4"))).learning_rates == (1e-4,)
    assert load_config(write(), ["learning_rates=[1e-4]"]).learning_rates == (1e-4,)


def test_too_large_grids_are_refused_before_expansion(write: Write) -> None:
    beta = ", ".join(f"{i}.5" for i in range(1, 2001))
    path = write(("[ce-u]", f"[{{method: npo, beta: [{beta}], retain: {{term: nll, weight: "
                            f"[{beta}]}}}}]"))  # fmt: skip
    ((_, key, message),) = problems(path)
    assert key == "methods"
    assert message.startswith("4000000 runs in all, and a sweep has at most 100000")


@pytest.mark.parametrize("text", ["x" * 256, "a\\nb", "\\u202eb", "/".join(["x" * 200] * 30)])
def test_paths_must_be_valid_for_a_file_system(write: Write, text: str) -> None:
    ((_, key, _),) = problems(write(add=f'output: "{text}"\n'))
    assert key == "output"


def test_infinite_hyper_parameters_must_be_declared(write: Write) -> None:
    ((_, key, message),) = problems(write(("[ce-u]", "[{method: npo, beta: .inf}]")))
    assert (key, message) == ("methods.0.beta", "expected a finite number, got inf")


def test_method_model_data_and_selection_are_reported_together(write: Write) -> None:
    from unlearnbench.runs.plan_sweep import input_problems

    path = write(
        ("{authors: 40}", "{source: tofu, path: /no/data, refusals: /no/file}"),
        ("base: tiny", "base: https://user:secret@host/model"),
        ("[ce-u]", "[{method: npo, beta: -1}]"),
        add="select: {utility: 2, seeds: [7]}\n",
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path, (), input_problems)
    assert "secret" not in str(caught.value)
    assert {p.key for p in caught.value.problems} == {
        *("data.path", "data.refusals", "models.0.base", "methods.0.beta"),
        *("select.utility", "select.seeds"),
    }


def test_metrics_are_named_with_their_settings_or_in_a_list(write: Write) -> None:
    written = write(add="evaluation: {metrics: {mia-min-k: {share: 0.2}, rouge: {}}}\n")
    assert load_config(written).evaluation.metrics == {"mia-min-k": {"share": 0.2}, "rouge": {}}
    again = SweepConfig.model_validate_json(load_config(written).model_dump_json())
    assert again == load_config(written)
    config = load_config(write(add="evaluation: {metrics: [rouge, mia-loss]}\n"))
    assert config.evaluation.metrics == {"rouge": {}, "mia-loss": {}}


def test_mistakes_in_metrics_have_their_line(write: Write) -> None:
    path = write(
        add="""\
evaluation:
  patience: {metric: mia_min_k, epochs: 1}
  metrics:
    mia-mink: {}
    mia-min-k:
      shares: 0.2
    mia-zlib:
      level: 6
    mia-loss: 3
    mia-min-k-plus-plus: {share: "0.2"}
"""
    )
    place, found = "bench.yaml", dict[str, tuple[str, str]]()
    for where, key, message in problems(path):
        found[key.removeprefix("evaluation.metrics.")] = (where, message)
    assert found["mia-mink"][0] == f"{place}:12"
    assert found["mia-mink"][1].startswith("unknown metric 'mia-mink'; did you mean 'mia-min-k'?")
    assert found["mia-min-k.shares"] == (
        f"{place}:14",
        "unknown key; did you mean 'share'? mia-min-k takes: members, others, control, share",
    )
    assert found["mia-zlib.level"][0] == f"{place}:16"
    assert found["mia-loss"] == (
        f"{place}:17",
        "expected the metric's settings, {} for none, got 3",
    )
    assert found["mia-min-k-plus-plus.share"] == (
        f"{place}:18",
        "expected a float, got the text '0.2' (without the quotes it is a number)",
    )
    assert len(found) == 5
    path = write(add="evaluation: {metrics: mia-loss}\n")
    assert problems(path)[0][1:] == (
        "evaluation.metrics",
        "expected a list of metrics, or a section with a metric's settings by its name, got the "
        "text 'mia-loss'",
    )
    path = write(add="evaluation: {metrics: {forget-quality: {mean: arithmetic}}}\n")
    assert problems(path)[0][1] == "evaluation.metrics.forget-quality"


def test_metrics_that_need_whole_weights_are_refused_for_shared_ones(write: Write) -> None:
    metrics = "evaluation: {metrics: [mia-loss, mia-grad-norm]}\n"
    (found,) = problems(write(add=f"{metrics}resources: {{processes: 2}}\n"))
    assert found == (
        "bench.yaml:9",
        "evaluation.metrics.mia-grad-norm",
        "needs whole weights in each process, and runs of tiny shard theirs; set "
        "resources.parallel: ddp, or leave the metric out",
    )
    load_config(write(add=f"{metrics}resources: {{processes: 2, parallel: ddp}}\n"))
    load_config(write(add="evaluation: {metrics: [model-utility]}\n"))  # it is reported already


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

    @pytest.fixture(autouse=True)
    def own_files(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
        files: dict[str, object] = {}
        monkeypatch.setattr(registry, "_files", files)
        return files

    def test_paths_are_relative_to_the_file_that_states_them(
        self, write: Write, own_files: dict[str, object]
    ) -> None:
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
        own_files.clear()
        assert problems("other.yaml", "plugins=null")[0][2].startswith("unknown method 'focal'")

    @pytest.mark.parametrize(
        ("value", "place", "message"),
        [
            ("focal.py", "plugins", "expected a list of Python files"),
            ("[absent.py]", "plugins.0", "plugin file absent.py does not exist"),
            ("[3]", "plugins.0", "expected a Python file, got 3"),
            ("[bench.yaml]", "plugins.0", "bench.yaml is not a Python file: its name must end in"),
        ],
    )
    def test_mistakes_have_their_line(
        self, write: Write, value: str, place: str, message: str
    ) -> None:
        found = problems(write(add=f"plugins: {value}\n"))
        assert [(at, key) for at, key, _ in found] == [("bench.yaml:9", place)]
        assert found[0][2].startswith(message)

    def test_errors_about_unknown_names_and_keys_mention_the_key(self, write: Write) -> None:
        ((_, _, message),) = problems(write(("[ce-u]", "[focal]")))
        assert message.endswith("needs --plugin FILE, or plugins: [FILE] in the YAML")
        ((_, key, message),) = problems(write(add="plugin: [focal.py]\n"))
        assert (key, "did you mean 'plugins'?" in message) == ("plugin", True)
