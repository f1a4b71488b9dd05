"""The protocol "closer look" against its authors' code, and against models of texts made here.

`tests/data/closer_look.json` has inputs and what the functions of
sail-sg/closer-look-LLM-unlearning@b622294:metrics/metrics.py returned for them. The classifier of
its entailment labels was a rule on the lengths of the two texts (`Judge`), so that the labels show
which text was the premise.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertModel, pipeline

from tests.factories.text_models import add_pooling, save_encoder, save_judge, word_tokenizer
from unlearnbench.api.benchmark import Question
from unlearnbench.api.metric import Role
from unlearnbench.api.observations import Evaluation, SetEvaluation
from unlearnbench.base.errors import PluginError, UnavailableError
from unlearnbench.benchmarks.tofu_metrics import ROLES
from unlearnbench.config.profiles import CLOSER_LOOK, TOFU
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.made_up_sets import made_up_set
from unlearnbench.evaluation.observation_file import read_observations, write_observations
from unlearnbench.evaluation.private_texts import without_texts
from unlearnbench.evaluation.summary import plan_of
from unlearnbench.metrics import answer_entailment
from unlearnbench.metrics._text_models import SentenceEncoder, TextModel
from unlearnbench.metrics.answer_entailment import AnswerEntailment
from unlearnbench.metrics.sentence_similarity import SentenceSimilarity
from unlearnbench.models.limits import pad_id
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.stats.text_overlap import rouge_recall
from unlearnbench.stats.token_entropy import token_entropy
from unlearnbench.testing import check_plugin

RELEASED: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data" / "closer_look.json").read_text(encoding="utf-8")
)
NAMED: dict[str, dict[str, Any]] = {"sentence-similarity": {}, "answer-entailment": {}}
PARTS = {
    "ROUGE": "rouge",
    "Probability": "probability",
    "Truth Ratio": "truth_ratio",
    "Token Entropy": "token_entropy",
    "Cosine Similarity": "sentence_similarity",
    "Entailment Score": "answer_entailment",
}
SETS = {
    "Retain": "retain",
    "Real Authors": "real_authors",
    "Real World": "world_facts",
    "Forget": "forget",
}


# Against the authors' code


def test_token_entropy_equals_the_released_function() -> None:
    table = RELEASED["token_entropy"]
    equal = [
        token_entropy(text.split()) == pytest.approx(value, abs=1e-12) for text, value in table
    ]
    assert (sum(equal), len(equal)) == (60, 60)
    assert [token_entropy(t) for t in ((), ("a",), ("a", "a"), ("a", "b"))] == [0, 0, 0, 1]


def released_set(columns: Mapping[str, Any]) -> SetEvaluation:
    """Return the observations that an input of `get_eval_results` states."""
    loss = np.array(columns["avg_gt_loss"])
    perturbed = np.array(columns["average_perturb_loss"])
    entailed = [float(label == "entailment") for label in columns["entailment_labels"]]
    seen = made_up_set(n=len(loss))
    return replace(
        seen,
        answer_loss=loss,
        base_loss=np.array(columns["avg_paraphrased_loss"]),
        perturbed_loss=perturbed,
        perturbed_tokens=np.full(perturbed.shape, 3),
        rouge_l_recall=np.array(columns["rougeL_recall"]),
        token_entropy=np.array(columns["token_entropy"]),
        values={
            "sentence_similarity": np.array(columns["cosine_similarity"]),
            "answer_entailment": np.array(entailed),
        },
    )


def test_all_numbers_equal_the_released_function() -> None:
    plan = plan_of(CLOSER_LOOK, None, NAMED)
    equal = 0
    for case in RELEASED["scores"]:
        sets = {name: released_set(columns) for name, columns in case["sets"].items()}
        values = plan.values(sets)
        theirs: dict[str, float] = case["results"]
        ours = {
            f"{set_label} {label}": values[f"{column}_{name}"]
            for set_label, name in SETS.items()
            for label, column in PARTS.items()
        }
        closeness = ours["Forget Truth Ratio"]
        assert closeness is not None
        ours["Forget Truth Ratio"] = 1 - closeness
        ours["Model Utility"] = values["six_metric_utility"]
        ours["Forget Efficacy"] = values["forget_efficacy"]
        assert theirs.keys() - ours.keys() == {"Model Utility Retain"}
        equal += sum(ours[name] == pytest.approx(theirs[name], abs=1e-12) for name in ours)
    assert (equal, len(RELEASED["scores"])) == (12 * 26, 12)
    assert sum(case["results"]["Model Utility"] == 0 for case in RELEASED["scores"]) == 5


class Judge:
    """Stands in for the classifier as in the stored table."""

    def chooses_target(self, premise: str, hypothesis: str) -> bool:
        """Whether the rule says entailment."""
        return (7 * len(premise) + len(hypothesis)) % 3 == 0


@pytest.mark.parametrize(
    ("name", "role", "premise"),
    [
        ("forget", "forget", "by-role"),
        ("retain", "retain", "by-role"),
        ("facts", "general", "by-role"),
        ("real-world forget", "forget", "answer"),
        ("real-world retain", "retain", "answer"),
    ],
)
def test_entailment_has_the_directions_of_the_released_function(
    name: str, role: Role, premise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = RELEASED["entailment"]

    def judge(source: TextModel, target: str) -> Judge:
        del source, target
        return Judge()

    monkeypatch.setattr(answer_entailment, "classifier", judge)
    rouge = rouge_recall(table["truths"], table["generated"])[1]
    np.testing.assert_allclose(rouge, table["rougeL_recall"], atol=1e-12)
    seen = replace(
        made_up_set(n=len(rouge)),
        generated=tuple(table["generated"]),
        references=tuple(table["truths"]),
        rouge_l_recall=np.asarray(rouge),
    )
    metric = AnswerEntailment(model="any", premise=premise).for_role(role)
    found = metric.per_example(seen)
    theirs = table["results"][name]
    assert found.tolist() == theirs["entailed"]
    assert metric.value(found) == pytest.approx(theirs["score"], abs=1e-12)


# With models made here


SEEN = replace(made_up_set(n=6), rouge_l_recall=np.array([1.0, 0.5, 0.05, 0.1, 0.3, 0.0]))
WORDS = word_tokenizer([*SEEN.generated, *SEEN.references])
LONG = " ".join(SEEN.references * 4)
"""A text of more tokens than an encoder reads."""


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    save_encoder(tmp_path / "encoder", WORDS)
    return tmp_path / "encoder"


def vectors(folder: Path, texts: Sequence[str], *, cls: bool, most: int) -> np.ndarray:
    """Return the vectors of texts as one padded batch, with numpy's mean over the tokens."""
    network = BertModel.from_pretrained(folder).eval()
    batch = WORDS(list(texts), padding=True, truncation=True, max_length=most, return_tensors="pt")
    with torch.inference_mode():
        states = network(**batch).last_hidden_state.numpy()
    lengths = batch["attention_mask"].sum(1).tolist()
    rows = [
        state[0] if cls else state[:length].mean(0)
        for state, length in zip(states, lengths, strict=True)
    ]
    return np.array(rows)


@pytest.mark.parametrize(
    ("modes", "cls", "most"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, False, 12),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, True, 12),
        ({"pooling_mode": "mean", "embedding_dimension": 16}, False, 12),
        (None, False, 160),
    ],
    ids=("mean", "cls", "newer files", "no files"),
)
def test_similarity_is_the_cosine_of_pooled_tokens(
    encoder: Path, modes: Mapping[str, Any] | None, cls: bool, most: int
) -> None:
    if modes is not None:
        add_pooling(encoder, modes, ["Normalize"])
    generated = ("", LONG, *SEEN.generated[2:])
    seen = replace(SEEN, generated=generated)
    found = SentenceSimilarity(model=str(encoder)).per_example(seen)
    answers = vectors(encoder, generated, cls=cls, most=most)
    truths = vectors(encoder, seen.references, cls=cls, most=most)
    lengths = np.linalg.norm(answers, axis=1) * np.linalg.norm(truths, axis=1)
    wanted = np.clip((answers * truths).sum(1) / lengths, 0, 1)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert len(set(wanted.round(6))) > 3


def test_similarity_is_never_negative(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cosine(encoder: SentenceEncoder, text: str, other: str) -> float:
        del encoder, text, other
        return -0.5

    monkeypatch.setattr(SentenceEncoder, "cosine", cosine)
    metric = SentenceSimilarity(model=str(encoder))
    assert metric.per_example(SEEN).tolist() == [0.0] * 6


def test_meaning_is_compared_with_the_whole_sentence_if_there_is_one(encoder: Path) -> None:
    metric = SentenceSimilarity(model=str(encoder))
    told = replace(SEEN, references=("the",) * 6, sentences=SEEN.references)
    np.testing.assert_array_equal(metric.per_example(told), metric.per_example(SEEN))


@pytest.mark.parametrize(
    ("modes", "more", "message"),
    [
        ({"pooling_mode_max_tokens": True}, (), "pools tokens by max_tokens, and only"),
        ({"pooling_mode": ["mean", "max"]}, (), "pools tokens by mean and max, and only"),
        ({"pooling_mode_mean_tokens": True}, ("Dense",), "has the part Dense, and only"),
    ],
)
def test_an_encoder_with_other_parts_is_refused(
    encoder: Path, modes: Mapping[str, Any], more: Sequence[str], message: str
) -> None:
    add_pooling(encoder, modes, more)
    with pytest.raises(PluginError, match=message):
        SentenceEncoder(TextModel("sentence-similarity", "sentence encoder", str(encoder), None))


@pytest.fixture
def judge(tmp_path: Path) -> Path:
    save_judge(tmp_path / "judge", WORDS, list(SEEN.generated), list(SEEN.references))
    return tmp_path / "judge"


@pytest.mark.parametrize("role", ["forget", "retain", "general"])
def test_entailment_equals_the_pipeline_of_transformers(judge: Path, role: Role) -> None:
    n = 40
    seen = replace(made_up_set(n=n), rouge_l_recall=np.linspace(0, 1, n))
    classify = pipeline("text-classification", model=str(judge), tokenizer=WORDS, device="cpu")
    wanted: list[float] = []
    for i, (answer, truth) in enumerate(zip(seen.generated, seen.references, strict=True)):
        premise, hypothesis = (answer, truth) if role == "forget" else (truth, answer)
        label = classify([{"text": premise, "text_pair": hypothesis}])[0]["label"]
        wanted.append(float(label == "entailment" and seen.rouge_l_recall[i] >= 0.1))
    metric = AnswerEntailment(model=str(judge)).for_role(role)
    assert metric.per_example(seen).tolist() == wanted
    assert 0 < sum(wanted) < n


def test_an_undefined_answer_has_no_entailment(judge: Path) -> None:
    seen = replace(SEEN, rouge_l_recall=np.array([np.nan, *SEEN.rouge_l_recall[1:]]))
    found = AnswerEntailment(model=str(judge)).per_example(seen)
    assert np.isnan(found).tolist() == [True, False, False, False, False, False]


def test_both_metrics_of_meaning_pass_the_suite(encoder: Path, judge: Path) -> None:
    for name, folder in (("sentence-similarity", encoder), ("answer-entailment", judge)):
        results = check_plugin("metrics", name, {"model": str(folder)})
        faults = [(r.check.name, r.outcome.seen) for r in results if r.outcome.verdict == "fault"]
        # What a perfect model's answers entail depends on the classifier, whose weights are random.
        expected = {"ends"} if name == "answer-entailment" else set()
        assert {fault for fault, _ in faults} <= expected, faults


@pytest.mark.parametrize("name", NAMED)
def test_a_metric_without_its_model_says_which_one_to_name(name: str) -> None:
    kinds = {"sentence-similarity": SentenceSimilarity, "answer-entailment": AnswerEntailment}
    with pytest.raises(
        UnavailableError, match=f"{name} has no .*: name one with its setting `model`.*closer-"
    ):
        kinds[name]().per_example(SEEN)
    with pytest.raises(UnavailableError, match="cannot be loaded"):
        kinds[name](model="/no/such/folder").per_example(SEEN)


# The profile


def names_of(chosen: Mapping[str, Any]) -> set[str]:
    return {column.name for column in plan_of(CLOSER_LOOK, None, chosen).columns}


def test_the_scores_exist_only_with_both_models() -> None:
    scores = {"six_metric_utility", "forget_efficacy"}
    entropies = {f"token_entropy_{name}" for name in SETS.values()}
    plain = {column.name for column in plan_of(TOFU, None).columns}
    assert names_of({}) == plain | entropies
    for name in NAMED:
        assert not names_of({name: {}}) & scores
    whole = names_of(NAMED)
    assert scores <= whole
    parts = {f"{column}_{name}" for name in SETS.values() for column in PARTS.values()}
    assert parts <= whole
    tofu = {column.name for column in plan_of(TOFU, None, NAMED).columns}
    assert whole - tofu == scores | entropies, "another profile has neither"


def test_a_score_without_one_of_its_parts_is_undefined() -> None:
    plan = plan_of(CLOSER_LOOK, None, NAMED)
    case = RELEASED["scores"][1]["sets"]
    sets = {name: released_set(columns) for name, columns in case.items()}
    values = plan.values(sets)
    assert values["six_metric_utility"] is not None
    lacking = {**sets, "forget": replace(sets["forget"], rouge_l_recall=np.full(4, np.nan))}
    assert plan.values(lacking)["forget_efficacy"] is None
    lacking = {**sets, "retain": replace(sets["retain"], token_entropy=None)}
    assert plan.values(lacking)["six_metric_utility"] is None


def test_directions_of_the_columns() -> None:
    columns = {column.name: column.better for column in plan_of(CLOSER_LOOK, None, NAMED).columns}
    assert columns["token_entropy_forget"] is None
    assert columns["token_entropy_world_facts"] == "higher"
    for name in ("sentence_similarity", "answer_entailment"):
        assert columns[f"{name}_forget"] == "lower"
        assert columns[f"{name}_retain"] == columns[f"{name}_real_authors"] == "higher"
    assert columns["six_metric_utility"] == columns["forget_efficacy"] == "higher"


# The observation


def test_the_entropy_of_an_answer_is_that_of_its_tokens(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    sentence = replace(questions[0], sentence_answer="A whole sentence.")
    sets = {"retain": questions[3:5], "forget": questions[:3], "real_authors": (sentence,)}
    how = TEMPLATES["plain"], replace(CLOSER_LOOK, max_new_tokens=9), pad_id(tokenizer), 300, None
    extra = plan_of(CLOSER_LOOK, None).extra
    assert extra == {"token_entropy"}
    found = Evaluator(sets, tokenizer, *how, ROLES, extra=extra)(model.eval())
    for evaluated in found.sets.values():
        wanted: list[float] = []
        for text in evaluated.generated:
            _, counts = np.unique(tokenizer.tokenize(text), return_counts=True)
            shares = counts / counts.sum()
            n = counts.sum()
            wanted.append(-(shares * np.log(shares)).sum() / np.log(n) if n > 1 else 0.0)
        np.testing.assert_allclose(evaluated.token_entropy, wanted, atol=1e-12)  # type: ignore[arg-type]
    assert found.sets["real_authors"].sentences == ("A whole sentence.",)
    assert found.sets["forget"].sentences == ()

    write_observations(found, tmp_path / "one.safetensors")
    again = read_observations(tmp_path / "one.safetensors")
    for name, evaluated in found.sets.items():
        assert again.sets[name].sentences == evaluated.sentences
        np.testing.assert_array_equal(again.sets[name].token_entropy, evaluated.token_entropy)
    bare = without_texts(again, plan_of(CLOSER_LOOK, None).measures, "rows")
    assert bare.sets["real_authors"].sentences == ()
    plain = Evaluator(sets, tokenizer, *how, ROLES)(model.eval())
    assert all(evaluated.token_entropy is None for evaluated in plain.sets.values())


def test_values_of_texts_outlive_the_texts(encoder: Path, judge: Path) -> None:
    chosen = {
        "sentence-similarity": {"model": str(encoder)},
        "answer-entailment": {"model": str(judge)},
    }
    plan = plan_of(CLOSER_LOOK, None, chosen)
    sets = {name: made_up_set(0.8, seed=i) for i, name in enumerate(SETS.values())}
    bare = without_texts(Evaluation(CLOSER_LOOK.id, sets), plan.measures, "rows")
    before, after = plan.values(sets), plan.values(bare.sets)
    kept = [*(f"{column}_{name}" for name in sets for column in PARTS.values()), "forget_efficacy"]
    assert {name: before[name] for name in kept} == {name: after[name] for name in kept}
