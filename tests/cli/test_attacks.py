"""`unlearnbench attacks list`, `show`, `check` and `new`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from unlearnbench.api import registry
from unlearnbench.cli.options import completion

Run = Callable[..., tuple[int, str, str]]
PAGE = (Path(__file__).parents[2] / "docs/tutorials/write-an-attack.md").read_text(encoding="utf-8")


def test_list_has_what_is_changed_sets_and_points(run: Run) -> None:
    code, out, _ = run("attacks", "list")
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("paraphrase ")]
    assert line.split()[1:4] == ["questions", "forget", "-"]
    _, out, _ = run("attacks", "list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert rows.keys() == {*registry.names("attacks")} == {*completion("attacks")()}
    assert rows["quantization"]["changes"] == "weights"
    assert rows["relearning"]["points"][:2] == ["0", "1"]
    assert rows["sampling"]["changes"] == "number of answers"


def test_show_has_variants_adversary_and_settings(run: Run) -> None:
    _, out, _ = run("attacks", "show", "quantization")
    assert "white_box:   True" in out
    assert "variants:    quantization@nf4" in out
    assert "last | best | every" in out
    assert "attacks: [quantization]" in out
    _, out, _ = run("attacks", "show", "paraphrase", "--json")
    shown = json.loads(out)
    assert (shown["white_box"], shown["variants"]) == (False, ["paraphrase"])
    assert [one["name"] for one in shown["settings"]] == ["at"]


def test_the_package_that_new_writes_works(run: Run) -> None:
    code, out, _ = run("attacks", "new", "my-attack")
    assert code == 0
    assert out.splitlines()[:2] == ["my-attack/pyproject.toml", "my-attack/README.md"]
    project = Path("my-attack/pyproject.toml").read_text()
    assert (
        '[project.entry-points."unlearnbench.attacks"]\nmy-attack = "my_attack:MyAttack"' in project
    )
    assert 'description = "My attack, an attack for unlearnbench."' in project
    file = "my-attack/my_attack.py"
    code, out, _ = run("attacks", "check", file, "--only", "settings", "--only", "points")
    assert (code, "my-attack: no fault" in out) == (0, True)
    source = Path("my-attack/tests/test_my_attack.py").read_text()
    names: dict[str, object] = {}
    exec(source.replace("from my_attack", "from unlearnbench_plugin_my_attack"), names)
    test = names["test_a_question_worked_by_hand"]
    assert callable(test)
    test()


def test_check_explains_a_fault_in_a_file(run: Run) -> None:
    assert run("attacks", "new", "loud")[0] == 0
    source = Path("loud/loud.py").read_text()
    broken = source.replace("return replace(row, ", 'return replace(row, answer="", ')
    assert broken != source
    Path("loud.py").write_text(broken)
    code, out, _ = run("attacks", "check", "loud.py", "--only", "answers")
    assert code == 1
    assert "unlearnbench attacks check loud --only answers --plugin loud.py" in out


def test_the_example_of_the_page_is_an_attack_of_fifteen_lines(run: Run) -> None:
    (code,) = re.findall(r'```python title="pruning.py"\n(.*?)```', PAGE, re.DOTALL)
    Path("pruning.py").write_text(code)
    checks = ("settings", "restored", "repeatable")
    only = [word for check in checks for word in ("--only", check)]
    exit_code, out, _ = run("attacks", "check", "pruning.py", *only)
    assert exit_code == 0, out
    assert out.count("passed") >= len(checks)
    lines = [line for line in code.partition('"""\n')[2].splitlines() if line.strip()]
    assert len(lines) == 15
