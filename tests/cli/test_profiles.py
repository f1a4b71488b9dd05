"""`unlearnbench profiles list`, `show` and `diff`."""

from __future__ import annotations

import json
from collections.abc import Callable

Run = Callable[..., tuple[int, str, str]]


def test_list_has_ids_and_differences(run: Run) -> None:
    code, out, _ = run("profiles", "list")
    assert code == 0
    assert "tofu@2923316c" in out
    assert "perturbed_mean arithmetic" in out
    _, out, _ = run("profiles", "list", "--json")
    found = {row["name"]: row for row in json.loads(out)}
    assert found["open-unlearning"]["id"] == "open-unlearning@83c46b72"
    assert len(found["tofu"]["choices"]) == 10


def test_show_has_every_choice(run: Run) -> None:
    _, out, _ = run("profiles", "show", "tofu")
    assert out.startswith("profile tofu@2923316c\n")
    assert "max_new_tokens       what the prompt leaves of max_length  longest generated" in out
    assert "Porter stemmer" in out
    _, out, _ = run("profiles", "show", "tofu-paper", "--json")
    profile = json.loads(out)
    choices = {choice["choice"]: choice["value"] for choice in profile["choices"]}
    assert (choices["perturbed_mean"], choices["rows"]) == ("arithmetic", 300)
    assert "EOS" in profile["common"]


def test_diff_has_only_the_differences(run: Run) -> None:
    _, out, _ = run("profiles", "diff", "tofu", "open-unlearning")
    header, *lines = out.splitlines()
    assert header.split() == ["choice", "tofu@2923316c", "open-unlearning@83c46b72", "meaning"]
    keys = [line.split()[0] for line in lines]
    assert keys[:4] == ["version", "rows", "max_length", "eos_after_cut"]
    assert "perturbed_mean" not in keys
    assert lines[1].split()[:3] == ["rows", "300", "all"]
    code, _, err = run("profiles", "diff", "tofu", "open_unlearning")
    assert code == 2
    assert "did you mean 'open-unlearning'?" in err
