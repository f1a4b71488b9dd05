"""`unlearnbench configs list`, `show`, `schema` and `new`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from unlearnbench.config.json_schema import shipped_schema
from unlearnbench.config.loader import load_config, shipped_configs

Run = Callable[..., tuple[int, str, str]]


def test_list_and_show_of_shipped_configs(run: Run) -> None:
    _, out, _ = run("configs", "list")
    assert "quickstart" in out
    assert "language-server" not in out
    _, out, _ = run("configs", "show", "quickstart")
    assert out.startswith(f"# yaml-language-server: $schema={shipped_schema().as_uri()}\n# ")
    _, out, _ = run("configs", "show", "quickstart", "--json")
    assert json.loads(out)["training"]["weight_decay"] == 0.0


@pytest.mark.parametrize("name", list(shipped_configs()))
def test_editors_find_the_schema_beside_shipped_configs(name: str) -> None:
    line = (shipped_schema().parent / f"{name}.yaml").read_text().partition("\n")[0]
    key, _, file = line.partition("=")
    assert key == "# yaml-language-server: $schema"
    assert json.loads((shipped_schema().parent / file).read_text())["$schema"].startswith("https:")


def test_the_shipped_schema_is_what_the_command_prints(run: Run) -> None:
    code, out, _ = run("configs", "schema")
    # By value: pydantic before 2.11 writes 0.0 for 0.
    assert (code, json.loads(out)) == (0, json.loads(shipped_schema().read_text())), (
        "unlearnbench configs schema --out configs/schema.json"
    )
    assert run("configs", "schema", "--out", "s.json", "--dry-run")[1] == "would write s.json\n"
    assert not Path("s.json").exists()
    assert run("configs", "schema", "--out", "s.json")[:2] == (0, "schema  s.json\n")
    assert Path("s.json").read_text() == out


def test_a_new_config_plans_as_it_is_and_is_never_written_over(run: Run) -> None:
    assert run("configs", "new", "mine", "--dry-run")[1].startswith("would write mine.yaml: ")
    assert not Path("mine.yaml").exists()
    assert run("configs", "new", "mine")[1].splitlines()[1] == "next    unlearnbench plan mine.yaml"
    assert run("plan", "mine.yaml")[1].startswith("mine: 12 runs into runs/mine\n")
    Path("mine.yaml").write_text("name: kept\n")
    code, _, err = run("configs", "new", "mine.yaml")
    assert (code, "choose another name" in err) == (2, True)
    assert Path("mine.yaml").read_text() == "name: kept\n"
    assert run("configs", "new", "_x")[0] == 2


def test_a_new_config_names_own_models_and_data(run: Run) -> None:
    run("configs", "new", "own", "--model", "./my model: 1", "--data", "~/my-data")
    config = load_config("own.yaml")
    assert (config.models[0].base, config.models[0].name) == ("./my model: 1", "my model: 1")
    assert config.data.folder == "~/my-data"
    assert config.learning_rates == (1e-5, 3e-5)
    run("configs", "new", "texts", "--data", "passages")
    assert load_config("texts.yaml").data.source == "passages"
