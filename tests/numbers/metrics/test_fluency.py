"""Fluency of generated answers: under the start model, and by a classifier made here."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from unlearnbench.api.benchmark import Question
from unlearnbench.api.registry import load
from unlearnbench.benchmarks.tofu_metrics import ROLES
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.made_up_sets import made_up_set
from unlearnbench.evaluation.observation_file import read_observations, write_observations
from unlearnbench.evaluation.summary import plan_of
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.limits import pad_id
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.testing import check_plugin

FLUENCY: dict[str, dict[str, Any]] = {"fluency": {}}


def test_an_answer_has_its_loss_under_the_start_model(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    start = copy.deepcopy(model).eval()
    with torch.no_grad():
        for parameter in start.parameters():
            parameter.mul_(1.05)
    holdout = (replace(questions[0], perturbed_answers=()),)
    sets = {"retain": questions[3:5], "forget": questions[:3], "holdout": holdout}
    how = TEMPLATES["plain"], replace(TOFU, max_new_tokens=6), pad_id(tokenizer), 300, None, ROLES
    evaluator = Evaluator(sets, tokenizer, *how, extra=plan_of(TOFU, None, FLUENCY).extra)
    plain = evaluator(model.eval())
    assert plain.answers is not None
    found = evaluator.with_start_losses(plain, start)
    encoder = Encoder(tokenizer, TEMPLATES["plain"], TOFU.max_length)
    for name in ("retain", "forget"):
        wanted: list[float] = []
        for question, answer in zip(sets[name], plain.answers[name], strict=True):
            prompt = encoder.prompt(question)
            ids = torch.tensor([[*prompt, *answer, encoder.eos]])
            with torch.no_grad():
                logits = start(ids).logits[0, len(prompt) - 1 : -1].double()
            labels = ids[0, len(prompt) :]
            wanted.append(torch.nn.functional.cross_entropy(logits, labels).item())
        np.testing.assert_allclose(found.sets[name].start_loss, wanted, rtol=1e-4)  # type: ignore[arg-type]
    assert found.sets["holdout"].start_loss is None
    write_observations(found, tmp_path / "one.safetensors")
    again = read_observations(tmp_path / "one.safetensors")
    plan = plan_of(TOFU, None, FLUENCY)
    values = plan.values(again.sets)
    assert values["fluency_forget"] == pytest.approx(
        np.exp(-np.array(found.sets["forget"].start_loss)).mean()
    )
    assert "fluency_real_authors" not in values
    directions = {c.name: c.better for c in plan.columns if c.name.startswith("fluency")}
    assert directions == {"fluency_forget": None, "fluency_retain": "higher"}
    assert evaluator.with_start_losses(again, start) is again, "a log has no tokens"


@pytest.fixture
def classifier(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Path:
    torch.manual_seed(1)
    shape: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer),
            intermediate_size=16,
            id2label={0: "clean", 1: "noise"},
            label2id={"clean": 0, "noise": 1},
            **shape,
        )
    )
    with torch.no_grad():
        made.classifier.weight.mul_(50)
    made.save_pretrained(tmp_path / "classifier")
    tokenizer.save_pretrained(tmp_path / "classifier")
    return tmp_path / "classifier"


def test_a_classifier_from_a_folder_judges_each_text_by_itself(
    classifier: Path, tokenizer: Any
) -> None:
    chosen = {"classifier-fluency": {"model": str(classifier), "max_tokens": 5}}
    seen = made_up_set()
    seen = replace(seen, generated=("", *seen.generated[1:]))
    values = plan_of(TOFU, None, chosen).values({"forget": seen})
    metric = load("metrics", "classifier-fluency")(**chosen["classifier-fluency"])
    network = BertForSequenceClassification.from_pretrained(classifier).eval()
    wanted = [0.0]
    for text in seen.generated[1:]:
        ids = torch.tensor([tokenizer(text)["input_ids"][:5]])
        with torch.inference_mode():
            wanted.append(network(input_ids=ids).logits[0].softmax(0)[0].item())
    np.testing.assert_allclose(metric.per_example(seen), wanted, rtol=1e-5)
    assert values["classifier_fluency_forget"] == pytest.approx(np.mean(wanted))
    settings = {"model": str(classifier)}
    results = check_plugin("metrics", "classifier-fluency", settings)
    assert not [(r.check.name, r.outcome.seen) for r in results if r.outcome.verdict == "fault"]
