"""`unlearnbench methods list` and `show`: equations and bounds; broken plug-ins are listed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from unlearnbench.api import registry

Run = Callable[..., tuple[int, str, str]]


def test_list_has_the_parts_that_each_method_reads(run: Run) -> None:
    _, out, _ = run("methods", "list")
    assert "kl-minimization      forget, retain, reference(retain)" in out
    _, out, _ = run("methods", "list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert {"ce-u", "dpo", "idk", "npo"} <= rows.keys()
    assert rows["eco"]["needs"] == ["questions (trains nothing)"]
    assert rows["altpo"]["needs"][:2] == ["forget", "alternative"]
    assert rows["npo"]["needs"] == ["forget", "reference(forget)"]


def test_show_has_equation_and_bounds(run: Run) -> None:
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


def test_inference_methods_are_shown_without_learning_rates(run: Run) -> None:
    _, out, _ = run("methods", "show", "eco")
    assert "in a config:  - {method: eco, sigma: [10.0]}" in out


def test_a_plugin_file_is_a_method_and_a_broken_package_is_listed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from unlearnbench.api.method import Method\n\nclass Mine(Method):\n"
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
        "from unlearnbench.api.method import Method\nfrom pydantic import Field\n"
        "class Mine(Method):\n    strength: float = Field(default=1.0, gt=0)\n"
        "    def loss(batch):\n        return 0\n"
    )
    methods = "methods=[{method: my-method, strength: [1, 2]}]"
    code, out, _ = run("plan", "small.yaml", "--json", "--plugin", "my_method.py", "--set", methods)
    plan = json.loads(out)
    assert code == 0
    assert plan["counts"]["methods"] == 2
    assert plan["plugin_files"] == [str(Path("my_method.py").resolve())]
