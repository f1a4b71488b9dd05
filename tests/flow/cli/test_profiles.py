"""`unlearnbench profiles list`, `show` and `diff`."""

import json

from ...factories.command_line import Run


def test_profiles_are_listed_shown_and_compared(run: Run) -> None:
    _, out, _ = run("profiles", "list", "--json")
    found = {row["name"]: row for row in json.loads(out)}
    assert found["tofu"]["id"] == "tofu@2923316c"
    assert found["open-unlearning"]["id"] == "open-unlearning@83c46b72"
    _, out, _ = run("profiles", "show", "tofu-paper", "--json")
    choices = {choice["choice"]: choice["value"] for choice in json.loads(out)["choices"]}
    assert (choices["perturbed_mean"], choices["rows"]) == ("arithmetic", 300)
    ids, header, *lines = run("profiles", "diff", "tofu", "open-unlearning")[1].splitlines()
    assert ids == "tofu@2923316c against open-unlearning@83c46b72"
    assert header.split() == ["choice", "tofu", "open-unlearning", "meaning"]
    assert max(map(len, lines)) <= 80
    first = [line.split()[0] for line in lines]
    assert [word for word in first if word in choices][:3] == ["version", "rows", "max_length"]
