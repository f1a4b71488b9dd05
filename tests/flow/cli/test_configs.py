"""`unlearnbench configs list`, `show`, `schema` and `new`."""

from collections.abc import Callable
from pathlib import Path

from unlearnbench.config.json_schema import schema_text

Run = Callable[..., tuple[int, str, str]]


def test_the_schema_is_printed_or_written(run: Run) -> None:
    code, out, _ = run("configs", "schema")
    assert (code, out) == (0, schema_text())
    assert run("configs", "schema", "--out", "s.json")[:2] == (0, "schema  s.json\n")
    assert Path("s.json").read_text() == out


def test_a_new_config_plans_as_it_is_and_is_never_written_over(run: Run) -> None:
    assert run("configs", "new", "mine")[1].splitlines()[1] == "next    unlearnbench plan mine.yaml"
    key, _, file = Path("mine.yaml").read_text().partition("\n")[0].partition("=")
    assert key == "# yaml-language-server: $schema"
    assert Path(file).read_text() == schema_text(), "editors find it"
    assert run("plan", "mine.yaml")[1].startswith("mine: 12 runs into runs/mine\n")
    Path("mine.yaml").write_text("name: kept\n")
    code, _, err = run("configs", "new", "mine.yaml")
    assert (code, "choose another name" in err) == (2, True)
    assert Path("mine.yaml").read_text() == "name: kept\n"
