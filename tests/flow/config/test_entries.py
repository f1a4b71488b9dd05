"""Benchmarks and attacks of a configuration: their own fields, and what is stored is read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api import registry
from unlearnbench.base.errors import ConfigError, PluginError
from unlearnbench.base.hashing import content_hash
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.benchmarks.tofu import TOFU
from unlearnbench.config.entries import (
    attack_from_spec,
    benchmark_named,
    benchmark_of,
    earlier_section,
)
from unlearnbench.config.loader import load_config
from unlearnbench.config.schema import SweepConfig

OLD = Path(__file__).parents[2] / "data" / "small_sweep" / "plan.json"
PLUGIN = """
from unlearnbench.api import Benchmark, Headline, HeadlineMetric

class Riddles(Benchmark):
    roles = {"forget": "forget"}
    headline = Headline(HeadlineMetric("a", "A", "a"), HeadlineMetric("b", "B", "b"))
    rows: int = 4
    kinds: tuple[str, ...] = ("old",)

    def metrics(self, profile):
        return ()

    def load(self, fractions):
        raise NotImplementedError

    def split_problem(self, fraction):
        return "" if fraction == 0.5 else "riddles are forgotten by halves"
"""
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(data: str, fraction: float = 0.1) -> str:
        path = tmp_path / "bench.yaml"
        models = "models: [{name: tiny, base: tiny}]\n"
        rest = f"forget_fractions: [{fraction}]\nmethods: [ce-u]\nlearning_rates: [1.0e-5]\n"
        path.write_text(f"name: bench\ndata: {data}\n{models}{rest}")
        return str(path)

    return written


@pytest.fixture
def riddles(tmp_path: Path) -> None:
    file = tmp_path / "riddles.py"
    file.write_text(PLUGIN)
    assert registry.register_file(file) == "riddles"


def problems(config: str) -> list[tuple[str, str, str]]:
    with pytest.raises(ConfigError) as caught:
        load_config(config)
    return [(p.place.rpartition(":")[2], p.key, p.message) for p in caught.value.problems]


def test_source_names_the_benchmark(write: Write) -> None:
    assert load_config(write("{authors: 20}")).data == Synthetic(authors=20)
    assert load_config(write("{source: tofu, path: x}")).data == TOFU(path="x")
    assert load_config(write("{source: synthetic, path: null}")).data == Synthetic()
    assert benchmark_named("synthetic") == Synthetic()


def test_stored_sections_of_earlier_versions_are_read() -> None:
    stored: Any = json.loads(OLD.read_text(encoding="utf-8"))["config"]
    config = SweepConfig.model_validate_json(json.dumps(stored))
    assert config.data == Synthetic(authors=4, questions_per_author=3, pretraining_authors=1)
    assert earlier_section(config.data) == stored["data"]
    # What MLflow knows this sweep by.
    assert content_hash([config.name, earlier_section(config.data)]) == "7367f0653ae9909b"
    tofu = stored["data"] | {"source": "tofu", "path": "x", "authors": 7}
    assert benchmark_of(tofu, stored=True) == TOFU(
        path="x", questions_per_author=3, pretraining_authors=1
    )


@pytest.mark.usefixtures("riddles")
def test_a_benchmark_in_a_file_has_its_own_fields_and_splits(write: Write) -> None:
    wrong = problems(write("{source: riddles, rows: 2}"))
    assert wrong == [("4", "forget_fractions.0", "riddles are forgotten by halves")]
    config = load_config(write("{source: riddles, rows: 2}", fraction=0.5))
    again = SweepConfig.model_validate_json(config.model_dump_json())
    expected = {"source": "riddles", "refusals": None, "rows": 2, "kinds": ("old",)}
    assert again.data.model_dump() == expected
    ((line, key, text),) = problems(write("{source: riddles, authors: 2}", fraction=0.5))
    assert (line, key) == ("2", "data.authors")
    assert "data takes: source, refusals, rows, kinds" in text


def test_null_takes_away_the_attacks_of_another_file() -> None:
    assert load_config("quickstart").attacks
    assert load_config("quickstart", ["attacks=null"]).attacks == ()


def test_attacks_are_resolved_sorted_and_survive_json() -> None:
    config = load_config("quickstart", ["attacks={relearning: {steps: [2, 5]}, paraphrase: {}}"])
    assert [spec.name for spec in config.attacks] == ["paraphrase", "relearning"]
    relearning = config.attacks[1]
    assert relearning.settings["steps"] == [2, 5]
    assert "at" not in relearning.identity["settings"]
    assert attack_from_spec(relearning).points() == ("0", "2", "5")
    assert SweepConfig.model_validate_json(config.model_dump_json()) == config
    with pytest.raises(PluginError, match="differs from the one that was planned"):
        attack_from_spec(relearning.model_copy(update={"version": 0}))
