"""`unlearnbench attack` shows what a model gives back."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.evaluation.observation_file import read_observations

Run = Callable[..., tuple[int, str, str]]
SMALL = ("--data", "synthetic", "--rows", "2", "--max-length", "120")
PLEA = """\
from dataclasses import replace

from unlearnbench.api import PromptAttack

class Plea(PromptAttack):
    label = "Plea"
    pleas: tuple[str, ...] = ("Please.",)

    def points(self):
        return tuple(str(i) for i, _ in enumerate(self.pleas, start=1))

    def asked(self, row, point, rows):
        return replace(row, question=f"{self.pleas[int(point) - 1]} {row.question}")
"""


@pytest.fixture
def folder(tmp_path: Path, model: Any, tokenizer: Any) -> str:
    place = tmp_path / "model"
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return str(place)


def test_a_table_and_a_sentence_for_each_attack(
    run: Run, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ray", "mlflow", "plotly"):
        monkeypatch.setitem(sys.modules, name, None)
    Path("plea.py").write_text(PLEA)
    code, out, err = run(
        *("attack", folder, *SMALL, "--retain", folder, "--start", folder),
        *("--attack", "paraphrase", "--attack", "plea", "--plugin", "plea.py", "--out", "found"),
        *("--set", "plea.pleas=[Please., Now!]"),
    )
    assert code == 0
    lines = out.splitlines()
    assert lines[0].endswith("2 holdout questions")
    assert lines[1].startswith("Model Utility without an attack: ")
    table = lines.index("plea")
    assert lines[table + 1].split() == ["metric", "of", "plain", "@1", "@2"]
    first = [line.split() for line in lines[table + 2 : table + 5]]
    assert first[0][:4] == ["Extraction", "strength,", "forget", "model"]
    assert first[1] == ["retain", "model", *first[0][4:]]
    assert first[2] == ["start", "model", first[0][4], "-", "-"]
    # The model is its own retain model: no difference, whatever the attack does.
    seen = [line for line in lines if line.startswith("No sign that anything comes back: +0.000")]
    assert len(seen) == 2
    assert "evaluated" in err
    document = json.loads(Path("found/attack.json").read_text())
    (paraphrase, plea) = document["attacks"]
    assert [*paraphrase["variants"]] == ["paraphrase"]
    assert plea["settings"] == {"pleas": ["Please.", "Now!"]}
    assert plea["largest_gain"]["points"] == 2
    names = {str(path.relative_to("found")) for path in Path("found").rglob("*.safetensors")}
    files = {"plain.safetensors", "paraphrase.safetensors", "plea@1.safetensors"}
    files |= {"plea@2.safetensors"}
    assert names == files | {f"retain/{name}" for name in files} | {"start/plain.safetensors"}
    asked = read_observations("found/plea@2.safetensors").sets
    assert [*asked] == ["forget"]
    plain = read_observations("found/plain.safetensors").sets["forget"]
    assert asked["forget"].questions == plain.questions, "the original ones"


BROKEN = """\
import torch

from unlearnbench.api import WeightAttack

class Broken(WeightAttack):
    label = "Broken"

    def points(self):
        return ("",)

    def change(self, model, tools):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(float("nan"))
        yield ""
"""


def test_an_attack_that_breaks_the_weights_has_failed(run: Run, folder: str) -> None:
    Path("broken.py").write_text(BROKEN)
    options = (*SMALL, "--retain", folder, "--plugin", "broken.py")
    code, out, err = run("attack", folder, *options, "--out", "found")
    assert code == 0
    assert out.splitlines()[-1] == "broken: no metric of the forget set could be measured under it"
    assert "no results for broken: it made weights that are not finite" in " ".join(err.split())
    (found,) = json.loads(Path("found/attack.json").read_text())["attacks"]
    assert (found["variants"], found["largest_gain"]) == ({}, None)
