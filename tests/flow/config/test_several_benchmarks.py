"""One YAML with several benchmarks: a sweep for each, with what they have in common."""

from pathlib import Path

import pytest

from unlearnbench.base.errors import ConfigError
from unlearnbench.config.loader import load_config, load_configs

SEVERAL = """\
name: several
models: [{name: tiny, base: tiny}]
forget_fractions: [0.25]
methods: [ce-u]
learning_rates: [1.0e-4]
benchmarks:
  facts: {data: {source: synthetic, authors: 8}, epochs: 2}
  texts:
    data: {source: passages}
    learning_rates: [1.0e-3]
"""


@pytest.fixture
def several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file, in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("several.yaml").write_text(SEVERAL, encoding="utf-8")
    return "several.yaml"


def message(path: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


def test_each_is_a_sweep_with_its_own_keys(several: str) -> None:
    facts, texts = load_configs(several, ["epochs=3"])
    assert [facts.name, facts.data.source, facts.epochs] == ["facts", "synthetic", 3]
    assert [texts.name, texts.data.source, texts.epochs] == ["texts", "passages", 3]
    facts, texts = load_configs(several, ["benchmarks.texts.epochs=4"])
    assert (facts.epochs, texts.epochs) == (2, 4)
    assert (facts.learning_rates, texts.learning_rates) == ((1e-4,), (1e-3,))
    assert {part.output for part in (facts, texts)} == {"runs/several"}
    assert facts.cache_folder == texts.cache_folder == Path("runs/cache")
    (stored, _) = load_configs(several, ["storage=s3://bucket"])
    assert stored.storage == "s3://bucket/several", "another file may have benchmarks of that name"


def test_a_run_has_the_id_that_it_has_alone(several: str) -> None:
    from unlearnbench.config.plan import make_plan

    alone = SEVERAL.partition("benchmarks:")[0] + "data: {source: passages}\n"
    Path("alone.yaml").write_text(alone.replace("1.0e-4", "1.0e-3"), encoding="utf-8")
    plans = [make_plan(load_configs(path)[-1], {0.25: "x"}) for path in (several, "alone.yaml")]
    assert [run.id for run in plans[0].runs] == [run.id for run in plans[1].runs]


def test_one_can_be_chosen(several: str) -> None:
    assert load_config(several, ["benchmark=texts"]).data.source == "passages"
    assert "choose one of facts, texts, such as --set benchmark=facts" in message(several)
    assert "there are facts, texts, got 'poems'" in message(several, "benchmark=poems")


def test_faults_have_the_line_of_the_benchmark(several: str) -> None:
    text = SEVERAL.replace("authors: 8", "authors: -1")
    Path(several).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_configs(several)
    assert [(p.place, p.key) for p in caught.value.problems] == [("several.yaml:7", "data.authors")]
    assert "expected a section by name" in message(several, "benchmarks=[tofu]")
