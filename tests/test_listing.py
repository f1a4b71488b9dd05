"""Listings show what is installed, broken plugins included, and equations with bounds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from unlearnbench import registry
from unlearnbench.cli import main

Run = Callable[..., tuple[int, str, str]]

SMALL = """\
name: small
data: {authors: 10, questions_per_author: 2, pretraining_authors: 2}
models: [{name: tiny, base: tiny}]
forget_fractions: [0.1]
methods: [ce-u]
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in an empty folder that holds `small.yaml`: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_files", {})
    Path("small.yaml").write_text(SMALL)

    def ran(*args: str) -> tuple[int, str, str]:
        code = main(args)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran


def test_methods(run: Run) -> None:
    _, out, _ = run("methods", "list")
    assert "kl-minimization      forget, retain, reference(retain)" in out
    _, out, _ = run("methods", "list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert {"ce-u", "dpo", "idk", "npo"} <= rows.keys()
    assert rows["eco"]["needs"] == ["questions (trains nothing)"]
    assert rows["altpo"]["needs"][:2] == ["forget", "alternative"]
    assert rows["npo"]["needs"] == ["forget", "reference(forget)"]


def test_a_method_with_its_equation_and_bounds(run: Run) -> None:
    _, out, _ = run("methods", "show", "npo")
    assert "L = (2/β)" in out
    assert "beta" in out
    assert "> 0" in out
    assert "unlearnbench_methods.npo:NPO" in out
    _, out, _ = run("methods", "show", "npo", "--json")
    beta = json.loads(out)["hyperparameters"][-1]
    assert (beta["name"], beta["type"], beta["default"]) == ("beta", "float", 0.1)
    assert beta["meaning"] == "inverse temperature β"
    assert beta["source"].startswith("licong-lin/negative-preference-optimization@")
    assert not beta["source"].endswith("]")


def test_a_wrapping_method_is_shown_without_learning_rates(run: Run) -> None:
    _, out, _ = run("methods", "show", "eco")
    assert "in a config:  - {method: eco, sigma: [10.0]}" in out


def test_a_plugin_file_is_a_method_and_a_broken_package_is_listed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from unlearnbench.method import Method\n\nclass Mine(Method):\n"
        "    '''L = 0.'''\n    def loss(batch):\n        return 0\n"
    )
    Path("my_method.py").write_text(code)
    _, out, _ = run("methods", "show", "my-method", "--plugin", "my_method.py")
    assert out.startswith("my-method  (my_method.py, ")
    assert "L = 0." in out
    broken = registry.Offer("methods", "bad", "no.such:Thing", "stranger", "1.0")
    offers = registry.offers

    def also_broken(kind: registry.Kind) -> tuple[registry.Offer, ...]:
        return (*offers(kind), broken) if kind == "methods" else offers(kind)

    monkeypatch.setattr(registry, "offers", also_broken)
    exit_code, out, _ = run("methods", "list")
    assert exit_code == 0
    assert "method 'bad' of stranger 1.0 (no.such:Thing) is broken: ModuleNotFoundError" in out
    assert "npo" in out


def test_a_plugin_file_can_be_planned(run: Run) -> None:
    Path("my_method.py").write_text(
        "from unlearnbench.method import Method\nfrom pydantic import Field\n"
        "class Mine(Method):\n    strength: float = Field(default=1.0, gt=0)\n"
        "    def loss(batch):\n        return 0\n"
    )
    methods = "methods=[{method: my-method, strength: [1, 2]}]"
    code, out, _ = run("plan", "small.yaml", "--json", "--plugin", "my_method.py", "--set", methods)
    plan = json.loads(out)
    assert code == 0
    assert plan["counts"]["methods"] == 2
    assert plan["plugin_files"] == [str(Path("my_method.py").resolve())]


def test_configs(run: Run) -> None:
    _, out, _ = run("configs", "list")
    assert "quickstart" in out
    assert "tofu_llama2_7b" in out
    _, out, _ = run("configs", "show", "quickstart")
    assert out.startswith("# ")
    _, out, _ = run("configs", "show", "quickstart", "--json")
    assert json.loads(out)["training"]["weight_decay"] == 0.0


def test_profiles(run: Run) -> None:
    code, out, _ = run("profiles", "list")
    assert code == 0
    assert "tofu@2923316c" in out
    assert "perturbed_mean arithmetic" in out
    _, out, _ = run("profiles", "list", "--json")
    found = {row["name"]: row for row in json.loads(out)}
    assert found["open-unlearning"]["id"] == "open-unlearning@553d2179"
    assert len(found["tofu"]["choices"]) == 9


def test_a_profile_with_every_choice(run: Run) -> None:
    _, out, _ = run("profiles", "show", "tofu")
    assert out.startswith("profile tofu@2923316c\n")
    assert "max_new_tokens       what the prompt leaves of max_length  longest generated" in out
    assert "Porter stemmer" in out
    _, out, _ = run("profiles", "show", "tofu-paper", "--json")
    told = json.loads(out)
    choices = {choice["choice"]: choice["value"] for choice in told["choices"]}
    assert (choices["perturbed_mean"], choices["rows"]) == ("arithmetic", 300)
    assert "EOS" in told["common"]


def test_only_what_differs_between_profiles(run: Run) -> None:
    _, out, _ = run("profiles", "diff", "tofu", "open-unlearning")
    header, *lines = out.splitlines()
    assert header.split() == ["choice", "tofu@2923316c", "open-unlearning@553d2179", "meaning"]
    keys = [line.split()[0] for line in lines]
    assert keys[:4] == ["rows", "max_length", "eos_after_cut", "max_new_tokens"]
    assert "perturbed_mean" not in keys
    assert lines[0].split()[:3] == ["rows", "300", "all"]
    _, out, _ = run("profiles", "diff", "tofu", "tofu-paper", "--json")
    (differ,) = json.loads(out)["differ"]
    assert differ["values"] == ["geometric", "arithmetic"]
    _, out, _ = run("profiles", "diff", "tofu", "tofu")
    assert out == "tofu@2923316c and tofu@2923316c are the same rules\n"
    code, _, err = run("profiles", "diff", "tofu", "open_unlearning")
    assert code == 2
    assert "did you mean 'open-unlearning'?" in err
