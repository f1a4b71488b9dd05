"""`unlearnbench attack` shows what a model gives back."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.api.observations import SETS, Evaluation, FloatArray, SetEvaluation
from unlearnbench.cli import evaluated_models
from unlearnbench.config.profiles import get_profile
from unlearnbench.evaluation.observation_file import SUFFIX, read_observations
from unlearnbench.results.single import ModelRole
from unlearnbench.testing import made_up_set
from unlearnbench.testing.metric_checks import taken

from ...factories.command_line import Run

pytestmark = pytest.mark.usefixtures("wide_terminal")

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


def test_a_table_and_a_sentence_for_each_attack(
    run: Run, model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ray", "mlflow", "plotly"):
        monkeypatch.setitem(sys.modules, name, None)
    Path("plea.py").write_text(PLEA)
    code, out, err = run(
        *("attack", model_path, *SMALL, "--retain", model_path, "--start", model_path),
        *("--attack", "paraphrase", "--attack", "plea", "--plugin", "plea.py", "--out", "found"),
        *("--set", "plea.pleas=[Please., Now!]"),
    )
    assert code == 0
    lines = out.splitlines()
    assert lines[0].endswith(" in float32;"), "the next line has the rows"
    assert lines.pop(1).endswith("2 holdout questions")
    assert lines[1].startswith("Model Utility without an attack: ")
    table = lines.index("plea")
    assert lines[table + 1].split() == ["metric", "of", "plain", "@1", "@2"]
    first = [line.split() for line in lines[table + 2 : table + 5]]
    assert first[0][:4] == ["Extraction", "strength,", "forget", "model"]
    assert first[1] == ["retain", "model", *first[0][4:]]
    assert first[2] == ["start", "model", first[0][4], "-", "-"]
    # The model is its own retain and start model, so that there is nothing to forget.
    seen = [line for line in lines if ": not scored: the start model " in line]
    assert [line.partition(":")[0] for line in seen] == ["paraphrase", "plea"]
    assert "Not known" not in out
    assert "evaluated" in err
    document = json.loads(Path("found/attack.json").read_text())
    (paraphrase, plea) = document["attacks"]
    assert [*paraphrase["variants"]] == ["paraphrase"]
    assert plea["settings"] == {"pleas": ["Please.", "Now!"]}
    assert plea["lasting"] is None
    assert [line.partition(":")[0] for line in plea["verdict"]] == ["plea"]
    assert document["unknown"] == []
    names = {str(path.relative_to("found")) for path in Path("found").rglob("*.safetensors")}
    files = {"plain.safetensors", "paraphrase.safetensors", "plea@1.safetensors"}
    files |= {"plea@2.safetensors"}
    assert names == files | {f"retain/{name}" for name in files} | {"start/plain.safetensors"}
    asked = read_observations("found/plea@2.safetensors").sets
    assert [*asked] == ["forget"]
    plain = read_observations("found/plain.safetensors").sets["forget"]
    assert asked["forget"].questions == plain.questions, "the original ones"


def test_of_a_search_only_the_chosen_attacker_is_in_the_table(run: Run, model_path: str) -> None:
    """Eight attackers at four steps would have 66 columns; all of them are in the JSON."""
    search = "search={learning_rate: {low: 1e-3, high: 1e-2}}"
    settings = ("rows=forget", "steps=[1]", "batch_size=2", "trials=3", "keeps=0", search)
    stated = [word for setting in settings for word in ("--set", f"relearning.{setting}")]
    options = (*SMALL, "--start", model_path, "--attack", "relearning", *stated)
    code, out, _ = run("attack", model_path, *options, "--out", "found")
    assert code == 0
    lines = out.splitlines()
    columns = lines[lines.index("relearning") + 1].split()
    assert columns[:4] == ["metric", "of", "plain", "@0"]
    assert len(columns) <= 5
    (relearning,) = json.loads(Path("found/attack.json").read_text())["attacks"]
    points = ("0", "t1.1", "t2.1", "t3.1")
    assert [*relearning["variants"]] == [
        f"relearning@{point}{part}" for point in points for part in ("", ".choice")
    ]


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


def test_an_attack_that_breaks_the_weights_has_failed(run: Run, model_path: str) -> None:
    Path("broken.py").write_text(BROKEN)
    options = (*SMALL, "--retain", model_path, "--plugin", "broken.py")
    code, out, err = run("attack", model_path, *options, "--out", "found")
    assert code == 0
    assert "broken: no metric of the forget set could be measured under it" in out.splitlines()
    assert out.splitlines()[-1].startswith("Not known: how much of the forget rows was removed")
    assert "no results for broken: it made weights that are not finite" in " ".join(err.split())
    (found,) = json.loads(Path("found/attack.json").read_text())["attacks"]
    assert (found["variants"], found["lasting"]) == ({}, None)


FAILING = """\
from unlearnbench.api import WeightAttack

class Failing(WeightAttack):
    label = "Fails at its second point"

    def points(self):
        return ("first", "second")

    def change(self, model, tools):
        yield "first"
        raise ValueError("no disk")
"""


def test_what_was_evaluated_before_an_attack_failed_is_kept(run: Run, model_path: str) -> None:
    Path("failing.py").write_text(FAILING)
    options = (*SMALL, "--plugin", "failing.py", "--out", "found")
    code, out, err = run("attack", model_path, *options)
    assert (code, out) == (2, "")
    assert "no disk" in err
    files = {path.name for path in Path("found").iterdir()}
    assert files == {f"plain{SUFFIX}", f"failing@first{SUFFIX}"}
    assert read_observations(Path("found", f"failing@first{SUFFIX}")).sets["forget"].questions


def probabilities(mean: float, count: int = 40) -> FloatArray:
    return mean + np.random.default_rng(0).uniform(-0.05, 0.05, count)


def observed(forget: float, kept: float = 0.9) -> Evaluation:
    """An evaluation with these probabilities of the forget rows' answers and of all others.

    Truth ratios follow the probabilities, so that the start model differs from the retain model.
    Without values by token, attacks are measured by these probabilities.
    """
    rows = made_up_set(n=40)
    sets: dict[str, SetEvaluation] = {}
    for name in SETS:
        losses = -np.log(probabilities(forget if name == "forget" else kept))
        sets[name] = replace(
            rows,
            answer_loss=losses,
            token_columns=None,
            base_loss=losses,
            perturbed_loss=np.full_like(rows.perturbed_loss, 2.0),
            rouge_l_recall=np.exp(-losses),
        )
    return Evaluation(get_profile("tofu").id, sets)


def returning(models: Any) -> Callable[..., Any]:
    """A function in place of the one that evaluates models, with evaluations by role."""

    def evaluated(*_: object, **__: object) -> Any:
        return {ModelRole(role): variants for role, variants in models.items()}

    return evaluated


PLAIN_MODELS = {
    "model": {"": observed(0.2), "paraphrase": observed(0.6)},
    "retain": {"": observed(0.1), "paraphrase": observed(0.2)},
    "start": {"": observed(0.9)},
}
DESTROYED = {**PLAIN_MODELS, "model": {"": observed(0.2, 0.3), "paraphrase": observed(0.6, 0.3)}}


@pytest.mark.parametrize(
    ("models", "verdict"),
    [
        (PLAIN_MODELS, "paraphrase: it gives back 43 % ["),
        (DESTROYED, "paraphrase: not scored: it keeps less than 80 % of utility."),
        (
            {**PLAIN_MODELS, "model": {"": observed(0.75), "paraphrase": observed(0.9)}},
            "paraphrase: not scored: it forgot too little (less than 25 %) to measure",
        ),
    ],
    ids=["some", "destroyed", "little removed"],
)
def test_the_verdict_is_that_of_the_page(
    run: Run, monkeypatch: pytest.MonkeyPatch, models: Any, verdict: str
) -> None:
    monkeypatch.setattr(evaluated_models, "evaluate_models", returning(models))
    words = ("attack", "m", "--data", "tofu", "--attack", "paraphrase")
    code, out, _ = run(*words)
    assert code == 0
    assert verdict in " ".join(out.split())
    code, out, _ = run(*words, "--json")
    (attack,) = json.loads(out)["attacks"]
    lasting = attack["lasting"]
    assert lasting["column"] == "probability_forget"
    assert lasting["removed"] == pytest.approx((0.9 - lasting["before"]) / 0.8, abs=0.01)
    if models is PLAIN_MODELS:
        # 1 - (0.4 - 0.1) / 0.7: of what was removed, beyond what the retain model gains.
        assert lasting["lasting"] == pytest.approx(1 - 0.3 / 0.7)
        assert (lasting["comes_back"], lasting["why_not"]) == (True, None)
        assert lasting["excess"] == pytest.approx(0.3)
        assert lasting["excess_interval"][0] <= 0.3 <= lasting["excess_interval"][1]
    else:
        assert (lasting["lasting"], lasting["comes_back"]) == (None, None)
        assert attack["verdict"][0].startswith(verdict)
    assert attack["variants"]["paraphrase"]["retain"]["probability_forget"] == pytest.approx(
        0.2, abs=0.01
    )


def test_the_column_before_an_attack_is_of_the_rows_that_it_asked(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relearning trains on half of the forget rows, and asks for the others."""
    asked = range(0, 40, 2)
    models = {
        name: {"": observed(forget)}
        for name, forget in (("model", 0.2), ("retain", 0.1), ("start", 0.9))
    }
    means: dict[str, float] = {}
    for name, variants in models.items():
        half = taken(variants[""].sets["forget"], [*asked])
        half = replace(half, places=np.array(asked))
        means[name] = np.exp(-half.answer_loss).mean()
        if name != "start":
            for step in (0, 3):
                variants[f"relearning@{step}"] = Evaluation(variants[""].profile, {"forget": half})
    monkeypatch.setattr(evaluated_models, "evaluate_models", returning(models))
    code, out, _ = run("attack", "m", "--data", "tofu", "--attack", "relearning")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["metric", "of", "plain", "@0", "@3"] in lines
    first = next(i for i, cells in enumerate(lines) if cells[:2] == ["Probability,", "forget"])
    before = [cells[-3] for cells in lines[first : first + 3]]
    assert before == [f"{mean:.4g}" for mean in means.values()]


@pytest.mark.parametrize(
    ("left_out", "unknown"),
    [("retain", "what the attack teaches"), ("start", "how much of the forget rows was removed")],
)
def test_what_is_unknown_is_said(
    run: Run, monkeypatch: pytest.MonkeyPatch, left_out: str, unknown: str
) -> None:
    models = {name: of for name, of in PLAIN_MODELS.items() if name != left_out}
    monkeypatch.setattr(evaluated_models, "evaluate_models", returning(models))
    code, out, _ = run("attack", "m", "--data", "tofu", "--attack", "paraphrase")
    assert code == 0
    assert f"Not known: {unknown}" in out
    assert "paraphrase: not scored: the " in out
    assert "gives back" not in out


@pytest.mark.parametrize("place", ["", "paraphrase"])
def test_an_undefined_value_of_one_row_is_no_gain(
    run: Run, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    evaluations = dict(PLAIN_MODELS["model"])
    rows = evaluations[place].sets["forget"]
    losses = rows.answer_loss.copy()
    losses[3] = np.nan
    sets = {**evaluations[place].sets, "forget": replace(rows, answer_loss=losses)}
    evaluations[place] = replace(evaluations[place], sets=sets)
    models = {**PLAIN_MODELS, "model": evaluations}
    monkeypatch.setattr(evaluated_models, "evaluate_models", returning(models))
    code, out, _ = run("attack", "m", "--data", "tofu", "--attack", "paraphrase", "--json")
    assert code == 0
    (attack,) = json.loads(out)["attacks"]
    assert attack["lasting"] is None
    (sentence,) = attack["verdict"]
    assert sentence.startswith("paraphrase: not scored: ")
