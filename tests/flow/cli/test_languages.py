"""Rows in Chinese and Russian: a model that has memorised them, by each profile."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.analysis.results import Results
from unlearnbench.api.benchmark import Question
from unlearnbench.config.schema import Architecture
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.limits import pad_id
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.models.tiny import build_model, build_tokenizer
from unlearnbench.results.records import read_records
from unlearnbench.training.objective import Objective
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.trainer import FineTuning, Trainer

from ...factories.command_line import Run

FULL = [
    ("她在哪里出生？", "她1950年出生于北京。"),
    ("他写了什么？", "他写了三部小说和一本诗集。"),
    ("这位作家住在哪里？", "作家住在上海的老房子里。"),
    ("Где она родилась?", "Она родилась в Москве в 1950 году."),
    ("Что он написал?", "Он написал три романа и сборник стихов."),
    ("Где живёт писатель?", "Писатель живёт в старом доме в Казани."),
]
FORGET, RETAIN = FULL[4:], FULL[:4]
FACTS = [("法国的首都是什么？", "巴黎"), ("Столица Италии?", "Рим")]
CONTEXT = 192
CONFIG = """\
name: languages
data: {source: tofu, path: rows, pretraining_authors: 0}
models: [{name: mine, base: model, fine_tuned: model, retain: {retain90: model}, template: plain}]
forget_fractions: [0.1]
methods: [ce-u]
learning_rates: [1.0e-5]
epochs: 1
"""


def write_rows(folder: Path) -> None:
    """Write the rows as TOFU's tables."""

    def table(name: str, rows: Sequence[tuple[str, str]], **more: Any) -> None:
        lines = [json.dumps({"question": q, "answer": a, **more}) for q, a in rows]
        (folder / f"{name}.json").write_text("\n".join(lines), encoding="utf-8")

    false = {"perturbed_answer": ["是的", "Нет"]}
    others = false | {"paraphrased_answer": "是她", "paraphrased_question": "谁？"}
    folder.mkdir()
    table("full", FULL)
    table("forget10", FORGET)
    table("retain90", RETAIN)
    table("forget10_perturbed", FORGET, **others)
    table("retain_perturbed", RETAIN, **others)
    table("real_authors_perturbed", FACTS[:1], **false)
    table("world_facts_perturbed", FACTS[1:], **false)


@pytest.fixture(scope="module")
def memorised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that has memorised all answers."""
    texts = [f"Question: {q}\nAnswer: {a}" for q, a in FULL + FACTS]
    tokenizer = build_tokenizer(texts, 400)
    shape = Architecture(
        vocabulary=400, hidden_size=64, layers=2, heads=4, intermediate_size=128, context=CONTEXT
    )
    model = build_model(shape, tokenizer, seed=0)
    encoder = Encoder(tokenizer, TEMPLATES["plain"], CONTEXT)
    rows = TrainingRows(retain=[encoder.row(Question(q, a)) for q, a in FULL + FACTS])
    how = TrainerSettings(epochs=60, batch_size=4, learning_rate=5e-3, seed=0)
    trainer = Trainer(model, Objective(FineTuning()), rows, how, pad_id(tokenizer))
    for epoch in range(1, trainer.schedule.epochs + 1):
        list(trainer.epoch(epoch))
    place = tmp_path_factory.mktemp("memorised") / "model"
    model.eval().save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture
def asked(run: Run, memorised: Path) -> tuple[Run, tuple[str, ...]]:
    """The command, and the model with its rows as its arguments."""
    write_rows(Path("rows"))
    return run, (str(memorised), "--data", "rows", "--template", "plain")


def test_a_memorised_answer_has_rouge_1_by_our_own_profile(
    asked: tuple[Run, tuple[str, ...]],
) -> None:
    run, arguments = asked
    options = ("--profile", "unlearnbench", "--out", "log.safetensors", "--json")
    code, out, err = run("evaluate", *arguments, *options)
    found = json.loads(out)
    assert (code, "other scripts" in err) == (0, False)
    for name in ("retain", "forget", "real_authors", "world_facts"):
        assert found[f"rouge_{name}"] == 1.0
    assert found["model_utility"] > 0.5
    # A log keeps its rule for words, by which other metrics are computed from its texts.
    code, out, err = run("score", "log.safetensors", "--data", "rows", "--json")
    assert (code, "other scripts" in err) == (0, False)
    again = json.loads(out)
    for name in ("rouge_forget", "repetition_forget", "model_utility"):
        assert again[name] == found[name]
    assert again["repetition_forget"] == 1.0


def test_profiles_of_others_say_that_they_count_no_words(
    asked: tuple[Run, tuple[str, ...]],
) -> None:
    run, arguments = asked
    code, out, err = run("evaluate", *arguments, "--out", "log.safetensors")
    lines = [line for line in err.splitlines() if "other scripts" in line]
    assert code == 0
    assert lines == [
        "warning: profile tofu counts only words of a-z and 0-9, and these true answers are mostly "
        "in other scripts: 100 % of retain, 100 % of real_authors, 100 % of world_facts, 100 % of "
        "forget. Their ROUGE is near 0 whatever a model answers, and so is every score with ROUGE "
        "in it; use --profile unlearnbench, which counts the words of all scripts"
    ]
    assert "Kept? Not known: Model Utility is 0 because profile tofu does not count" in out
    code, _, err = run("score", "log.safetensors", "--data", "rows")
    lines = [line for line in err.splitlines() if "other scripts" in line]
    assert (code, len(lines)) == (0, 1)
    assert "evaluate the model again with --profile unlearnbench" in lines[0]
    code, _, err = run("attack", *arguments, "--attack", "paraphrase")
    assert (code, err.count("other scripts")) == (0, 1)


def test_a_plan_says_it_too(asked: tuple[Run, tuple[str, ...]], memorised: Path) -> None:
    run, _ = asked
    Path("model").symlink_to(memorised)
    Path("own.yaml").write_text(CONFIG, encoding="utf-8")
    code, _, err = run("plan", "own.yaml")
    assert (code, err.count("set evaluation.profile to unlearnbench")) == (0, 1)
    code, _, err = run("plan", "own.yaml", "--set", "evaluation.profile=unlearnbench")
    assert (code, err.count("other scripts")) == (0, 0)


@pytest.mark.parametrize("profile", ["tofu", "unlearnbench"])
def test_a_sweeps_verdict_does_not_blame_training(
    asked: tuple[Run, tuple[str, ...]], memorised: Path, profile: str
) -> None:
    run, _ = asked
    Path("model").symlink_to(memorised)
    Path("own.yaml").write_text(CONFIG, encoding="utf-8")
    code, _, err = run("run", "own.yaml", "--set", f"evaluation.profile={profile}")
    assert code == 0
    assert err.count("other scripts") == (1 if profile == "tofu" else 0)
    folder = Path("runs/languages")
    kinds = {record.kind: record for record in read_records(folder)}
    shares = {kind: record.provenance.get("uncounted_words") for kind, record in kinds.items()}
    (panel,) = Results.read(folder).panels
    if profile == "tofu":
        sets = ("retain", "real_authors", "world_facts", "forget")
        assert shares == dict.fromkeys(("fine-tuned", "retain", "run"), dict.fromkeys(sets, 1.0))
        assert panel.start.fault.startswith("the evaluation profile does not count the answers'")
        assert "Prepare it with more epochs" not in panel.start.fault
    else:
        assert shares == dict.fromkeys(("fine-tuned", "retain", "run"))
        assert panel.start.utility is not None
        assert panel.start.utility > 0.5
        assert "does not count" not in panel.start.fault
