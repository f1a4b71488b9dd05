"""`list`, `show`, `check` and `new` of every kind of plug-in."""

import json
import re
from pathlib import Path

import pytest

from unlearnbench.api import registry
from unlearnbench.api.benchmark import SplitKey
from unlearnbench.base.errors import ConfigError
from unlearnbench.cli.plugin_kinds import KINDS
from unlearnbench.cli.plugin_page import example_config
from unlearnbench.config.entries import example
from unlearnbench.config.loader import load_config
from unlearnbench.models.dataset_rules import splits_of

from ...factories.command_line import Run

ROOT = Path(__file__).parents[3]
BAD = '''\
"""A mean of means."""
from unlearnbench.api.method import Method
class Mean(Method):
    """L = mean_t log p_t, own work

    t  token
    """
    def loss(self, batch):
        return batch.forget.token_logprob.mean()
'''
CONFIG = """\
name: own
data: {source: my-benchmark}
models: [{name: tiny, base: tiny}]
forget_fractions: [0.1]
methods: [ce-u]
learning_rates: [1.0e-4]
training: {batch_size: 2}
"""
EXAMPLES = ("npo", "mia-min-k", "synthetic", "quantization", "model-utility", "eco")


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_are_installed_are_listed_and_shown(run: Run, kind: registry.Kind) -> None:
    code, out, _ = run(kind, "list", "--wide")
    assert (code, out.split()[: 1 + len(KINDS[kind].listed)]) == (0, ["name", *KINDS[kind].listed])
    assert [line.split()[0] for line in out.splitlines()[1:]] == [*registry.names(kind)]
    rows = json.loads(run(kind, "list", "--json")[1])
    assert [row["name"] for row in rows] == [*registry.names(kind)]
    for row in rows:
        if row["name"] in EXAMPLES:
            code, out, _ = run(kind, "show", row["name"])
            assert (code, out.startswith(f"{row['name']}: ")) == (0, True)
            assert max(map(len, out.splitlines())) <= 80
        shown = json.loads(run(kind, "show", row["name"], "--json")[1])
        assert {"settings", "description", "target", *KINDS[kind].listed} <= shown.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_has_a_line_of_80_columns_for_each_name_below_its_group(
    run: Run, kind: registry.Kind
) -> None:
    code, out, err = run(kind, "list")
    assert code == 0
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    entries = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(entries) == [*registry.names(kind)], "one line for each"
    headings = [line for line in lines if line and not line.startswith(" ")]
    assert headings == [text for text in KINDS[kind].headings.values() if text in headings]
    assert f"unlearnbench {kind} show NAME" in err, "it goes into no pipe"


CONFIG_OF_EXAMPLES = """\
name: own
models: [{name: tiny, base: tiny}]
learning_rates: [1.0e-4]
"""


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_each_plugin_is_a_valid_configuration(run: Run, kind: registry.Kind) -> None:
    del run  # it has changed to an empty folder
    for name in registry.names(kind):
        lines = example_config(kind, name, registry.load(kind, name))
        text = CONFIG_OF_EXAMPLES + lines
        split: SplitKey = 0.1
        if kind not in ("methods", "modifiers"):
            text += "\nmethods: [ce-u]"
        if kind != "benchmarks":
            text += "\ndata: {source: synthetic}"
        else:
            split = splits_of(example(registry.load(kind, name), {"source": name}, name))[0]
        text += (
            f"\nsplits: [{split}]" if isinstance(split, str) else f"\nforget_fractions: [{split}]"
        )
        Path("own.yaml").write_text(f"{text}\n")
        problems: list[str] = []
        try:
            load_config("own.yaml")
        except ConfigError as error:
            problems = [problem.message for problem in error.problems]
        # A metric of another benchmark, or one that a benchmark has by itself.
        assert all(map(_is_of_another_benchmark, problems)), (name, problems)


def _is_of_another_benchmark(message: str) -> bool:
    return any(text in message for text in ("the benchmark itself reports", "needs", "reads"))


def test_the_facts_of_each_kind(run: Run) -> None:
    def rows(kind: str) -> dict[str, dict[str, object]]:
        return {row["name"]: row for row in json.loads(run(kind, "list", "--json")[1])}

    methods = rows("methods")
    assert methods["npo"]["needs"] == ["forget", "reference(forget)"]
    assert methods["eco"]["needs"] == ["questions (trains nothing)"]
    assert rows("metrics")["forgotten"]["reads"] == ["retain model", "start model"]
    assert rows("attacks")["sampling"]["changes"] == "number of answers"
    assert rows("benchmarks")["tofu"]["splits"] == ["0.01", "0.05", "0.1"]


def test_a_broken_plugin_is_listed_with_its_fault(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = registry.Offer("methods", "bad", "no.such:Thing", "stranger", "1.0")
    offers = registry.offers

    def also_broken(kind: registry.Kind) -> tuple[registry.Offer, ...]:
        return (*offers(kind), broken) if kind == "methods" else offers(kind)

    monkeypatch.setattr(registry, "offers", also_broken)
    exit_code, out, _ = run("methods", "list")
    assert exit_code == 0
    text = " ".join(out.split())
    assert "method 'bad' of stranger 1.0 (no.such:Thing) is broken: ModuleNotFoundError" in text
    assert "npo" in out


def test_of_many_names_the_first_and_the_last_are_shown(run: Run) -> None:
    _, out, _ = run("benchmarks", "show", "edu-relat")
    assert "target1, target2, …, target55 (55 in all)\n" in out


def test_a_modifier_in_a_file_is_listed_and_shown(run: Run) -> None:
    Path("halved.py").write_text(
        "from unlearnbench.api.modifier import Filter\n\nclass Halved(Filter):\n"
        '    """g ← g / 2: own work."""\n'
    )
    code, out, _ = run("modifiers", "list", "--plugin", "halved.py", "--json")
    kinds = {row["name"]: row["kind"] for row in json.loads(out)}
    assert (code, kinds["halved"]) == (0, "filter")
    _, out, _ = run("modifiers", "show", "halved", "--plugin", "halved.py")
    assert "    retain: nll\n      modifiers: [halved]\n" in out


def test_the_page_of_metrics_has_each_as_it_is_declared(run: Run) -> None:
    page = (ROOT / "docs/concepts/metrics.md").read_text(encoding="utf-8")
    cells = (re.split(r" \| ", line) for line in page.splitlines() if line.startswith("| `"))
    rows = {line[0].strip("| `"): line for line in cells if len(line) == 6}
    listed = json.loads(run("metrics", "list", "--json")[1])
    assert rows.keys() == {row["name"] for row in listed}
    for row in listed:
        better, sets, reads = (cell.strip(" |") for cell in rows[row["name"]][3:])
        assert (better, sets) == (", ".join(row["better"]), ", ".join(row["sets"])), row["name"]
        if row["reads"] != ["sets, columns"]:  # of a summary, in which it is not declared
            assert reads == ", ".join(row["reads"]), row["name"]


def test_a_fault_is_explained_with_the_command_that_shows_it(run: Run) -> None:
    Path("mean.py").write_text(BAD)
    code, out, _ = run("methods", "check", "--plugin", "mean.py")
    assert code == 1
    explanation = out[out.index("\nmean: accumulation\n") :]
    for line in ("  what  ", "  seen  ", "  why it matters  ", "  look for  "):
        assert line in explanation
    (again,) = re.findall(r"unlearnbench (methods check mean --only accumulation.*)", explanation)
    code, out, _ = run(*again.split())
    assert code == 1
    assert out.splitlines()[1].split()[:2] == ["accumulation", "fault"]
    results = json.loads(run(*again.split(), "--json")[1])["mean"]
    assert (results[0]["check"], results[0]["verdict"]) == ("accumulation", "fault")


def test_all_of_a_kind(run: Run) -> None:
    code, out, _ = run("metrics", "check", "--all", "--only", "settings", "--only", "columns")
    assert code == 0
    assert len(re.findall(r"(?m)^[a-z0-9-]+: no fault, ", out)) == len(registry.names("metrics"))


def test_check_is_no_success_where_rows_are_out_of_reach(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    code, out, _ = run("benchmarks", "check", "tofu", "--only", "rows", "--json")
    assert code == 1
    (only,) = json.loads(out)["tofu"]
    assert only["verdict"] == "not run"
    assert "--set data.path=FOLDER" in only["seen"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_package_that_new_writes_conforms(run: Run, kind: str) -> None:
    name = f"my-{kind.removesuffix('s')}"
    module = name.replace("-", "_")
    code, out, _ = run(kind, "new", name)
    assert code == 0
    assert out.splitlines()[:2] == [f"{name}/pyproject.toml", f"{name}/README.md"]
    project = Path(f"{name}/pyproject.toml").read_text()
    assert f'[project.entry-points."unlearnbench.{kind}"]\n{name} = "{module}:' in project
    file = f"{name}/{module}.py"
    code, out, _ = run(kind, "check", file)
    assert (code, f"{name}: no fault" in out) == (0, True), out
    source = Path(f"{name}/tests/test_{module}.py").read_text()
    names: dict[str, object] = {}
    exec(source.replace(f"from {module}", f"from unlearnbench_plugin_{module}"), names)
    (test,) = (value for key, value in names.items() if key.startswith("test_"))
    assert callable(test)
    test()
    assert "already has" in run(kind, "new", name, "--out", "elsewhere")[2]
    if kind == "benchmarks":
        Path("own.yaml").write_text(CONFIG)
        code, out, err = run("plan", "own.yaml", "--plugin", file, "--json")
        assert (code, err, len(json.loads(out)["runs"])) == (0, "", 1)


def test_nothing_is_overwritten(run: Run) -> None:
    run("methods", "new", "my-method")
    Path("my-method/my_method.py").write_text("mine")
    code, _, err = run("methods", "new", "my-method")
    assert (code, "my-method exists already, so nothing was written" in err) == (2, True)
    assert Path("my-method/my_method.py").read_text() == "mine"


def test_the_types_of_own_tables_are_named_for_people(run: Run) -> None:
    code, out, _ = run("benchmarks", "show", "questions", "--json")
    fields = {field["name"]: field["type"] for field in json.loads(out)["settings"]}
    assert code == 0
    assert fields["forget"] == "table | {split: table}"
    assert fields["forget_if"] == "{column: value or values}"
