"""The evaluator against a deliberately plain one: one sequence at a time, no cache, no batch."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from rouge_score.rouge_scorer import RougeScorer

from unlearnbench.api.benchmark import Question
from unlearnbench.api.observations import Evaluation, SetEvaluation, SetName
from unlearnbench.api.profile import Profile
from unlearnbench.attacks.sampling import RepeatedSampling
from unlearnbench.benchmarks.tofu_metrics import ROLES
from unlearnbench.config.profiles import OPEN_UNLEARNING, TOFU, get_profile
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.observation_file import read_observations
from unlearnbench.evaluation.predictor import Predictor
from unlearnbench.evaluation.prefix_tree import Tree, build_tree
from unlearnbench.evaluation.question_scores import score
from unlearnbench.evaluation.summary import summarize
from unlearnbench.models import device
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.limits import pad_id
from unlearnbench.models.templates import TEMPLATES, Template

from ...forked import launch

NEW_TOKENS = replace(OPEN_UNLEARNING, max_new_tokens=40)
"""A limit on new tokens alone; 200 of them would take the plain evaluator four times as long."""


def plain_losses(model: Any, ids: tuple[int, ...], start: int) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double()
    return [-logits[i - 1].log_softmax(0)[ids[i]].item() for i in range(start, len(ids))]


def plain_greedy(model: Any, prompt: tuple[int, ...], eos: int, limit: int) -> tuple[int, ...]:
    ids = list(prompt)
    while len(ids) < len(prompt) + limit:
        with torch.no_grad():
            token = int(model(torch.tensor([ids])).logits[0, -1].argmax())
        if token == eos:
            break
        ids.append(token)
    return tuple(ids[len(prompt) :])


def evaluate(
    model: Any,
    tokenizer: Any,
    rows: tuple[Question, ...],
    profile: Profile = TOFU,
    template: Template = TEMPLATES["plain"],
    batch_tokens: int = 8192,
) -> Evaluation:
    made = Evaluator(sets_of(rows), tokenizer, template, profile, pad_id(tokenizer), batch_tokens)
    return made(model)


def sets_of(rows: tuple[Question, ...]) -> dict[SetName, tuple[Question, ...]]:
    facts = tuple(Question(q.question, q.answer, None, q.perturbed_answers) for q in rows)
    return {
        "retain": rows[5:],
        "forget": rows[:5],
        "real_authors": facts[:3],
        "world_facts": facts[6:7],
    }


def assert_equal(a: SetEvaluation, b: SetEvaluation, tolerance: float) -> None:
    assert (a.questions, a.generated, a.references) == (b.questions, b.generated, b.references)
    for name in ("answer_loss", "base_loss", "perturbed_loss", "rouge1_recall", "rouge_l_recall"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=0, atol=tolerance)


def plain_set(
    model: Any, encoder: Encoder, rows: tuple[Question, ...], profile: Profile
) -> tuple[SetEvaluation, tuple[tuple[int, ...], ...]]:
    """One set and its generated ids, question by question, with nothing shared or cut short."""
    scorer = RougeScorer(["rouge1", "rougeL"], use_stemmer=True)
    loss: list[list[float]] = []
    tokens: list[list[int]] = []
    answers: list[tuple[int, ...]] = []
    references: list[str] = []
    for question in rows:
        base = question.paraphrased_answer or question.answer
        texts = (question.answer, base, *question.perturbed_answers)
        encoded = [encoder.row(question, text) for text in texts]
        found = [plain_losses(model, row.ids, row.start) for row in encoded]
        loss.append([sum(each) / len(each) for each in found])
        tokens.append([len(each) for each in found])
        prompt = encoder.prompt(question)
        new = profile.max_new_tokens
        limit = profile.max_length - len(prompt) if new is None else new
        answers.append(plain_greedy(model, prompt, encoder.eos, limit))
        references.append(encoder.reference(encoded[0], question))
    generated = tuple(encoder.decode(ids) for ids in answers)
    rouge = [scorer.score(*pair) for pair in zip(references, generated, strict=True)]
    losses, counts = np.array(loss), np.array(tokens)
    plain = SetEvaluation(
        tuple(q.question for q in rows),
        generated,
        tuple(references),
        *(losses[:, 0], counts[:, 0], losses[:, 1], counts[:, 1], losses[:, 2:], counts[:, 2:]),
        np.array([each["rouge1"].recall for each in rouge]),
        np.array([each["rougeL"].recall for each in rouge]),
    )
    return plain, tuple(answers)


SHORT = get_profile("tofu", max_length=60)
# The space joins the answer's first word: what is scored begins inside the prompt.
SPACED = Template("spaced", "Question: ", "\nAnswer: ")


@pytest.mark.parametrize(
    ("template", "profile"),
    [
        (TEMPLATES["plain"], SHORT),
        (TEMPLATES["plain"], NEW_TOKENS),
        (TEMPLATES["phi"], NEW_TOKENS),
        (TEMPLATES["llama-2"], SHORT),
        (SPACED, SHORT),
    ],
    ids=lambda value: value.name if isinstance(value, Template) else value.id[:8],
)
def test_equals_the_plain_evaluator(
    template: Template,
    profile: Profile,
    sharp: Any,
    tokenizer: Any,
    questions: tuple[Question, ...],
) -> None:
    sets = sets_of(questions)
    got = evaluate(sharp, tokenizer, questions, profile, template)
    encoder = Encoder(tokenizer, template, profile.max_length, profile.eos_after_cut)
    whole = replace(encoder, max_length=10_000)
    longer = [q for own in sets.values() for q in own if len(whole.row(q).ids) > profile.max_length]
    assert got.statistics is not None
    assert got.statistics.cut == len(longer)
    assert bool(longer) == (profile is SHORT)
    wanted: dict[SetName, SetEvaluation] = {}
    for name, rows in sets.items():
        wanted[name], ids = plain_set(sharp, encoder, rows, profile)
        assert got.answers is not None
        assert got.answers[name] == ids
        assert_equal(got.sets[name], wanted[name], 1e-5)
        for counts in ("answer_tokens", "base_tokens", "perturbed_tokens"):
            assert np.array_equal(getattr(got.sets[name], counts), getattr(wanted[name], counts))
    plain = summarize(Evaluation(profile.id, wanted), None, profile)
    for metric, value in summarize(got, None, profile).items():
        if metric.startswith(("exact_memorization_", "extraction_strength_")):
            continue  # from values by token, which have a test of their own
        assert value == pytest.approx(plain[metric], abs=1e-6), metric


def trees_of(
    tokenizer: Any, questions: tuple[Question, ...], template: str = "plain"
) -> list[Tree]:
    encoder = Encoder(tokenizer, TEMPLATES[template], 200)
    texts = [(q.answer, q.paraphrased_answer or "", *q.perturbed_answers) for q in questions]
    return [
        build_tree([encoder.row(q, text) for text in each])
        for q, each in zip(questions, texts, strict=True)
    ]


def predictor_of(model: Any, trees: list[Tree], **settings: Any) -> Predictor:
    values: dict[str, Any] = {"pad": 0, "longest": 250, **settings}
    return Predictor(model, trees[0], **values)


@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize("understood", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_every_token_has_the_plain_log_probability(
    chunk: int,
    understood: bool,
    packed: bool,
    sharp: Any,
    tokenizer: Any,
    questions: tuple[Question, ...],
) -> None:
    trees = trees_of(tokenizer, questions, "llama-2")
    predictor = predictor_of(sharp, trees, batch_tokens=120, chunk=chunk)
    assert predictor.packed
    predictor.packed = packed
    if not understood:
        predictor.layer = None
    with predictor.ready():
        found = score(predictor, trees)
    for tree, scores in zip(trees, found, strict=True):
        for row, losses in zip(tree.rows, scores.losses, strict=True):
            wanted = plain_losses(sharp, row.ids, row.start)
            np.testing.assert_allclose(losses, wanted, rtol=0, atol=1e-5)


TWO_PROCESSES = """
import pickle, sys
from pathlib import Path
from transformers import AutoModelForCausalLM
from unlearnbench.attacks.sampling import RepeatedSampling
from unlearnbench.evaluation.observation_file import write_observations
from unlearnbench.base.distributed import join_group, leave_group

folder, file = map(Path, sys.argv[1:])
model = AutoModelForCausalLM.from_pretrained(folder / "model").eval()
evaluator = pickle.loads((folder / "evaluator").read_bytes())
join_group()
done = []
found = evaluator(model, progress=lambda now, whole: done.append(now))
found = evaluator.with_samples(found, model, RepeatedSampling(samples=3))
write_observations(found, file)
s = found.statistics
file.with_suffix(".txt").write_text(f"{s.generated} {s.ties}")
leave_group()
sys.exit(done[-1] >= 20)  # the work is split
"""


def test_two_processes_find_what_one_does_to_the_last_bit(
    tmp_path: Path, sharp: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    sharp.save_pretrained(tmp_path / "model")
    sets: Any = {"retain": questions[4:7], "forget": questions[:4]}
    sets |= {"real_authors": questions[7:9], "world_facts": questions[9:]}
    profile = get_profile("tofu", max_length=80)
    how: Any = {"roles": ROLES, "extra": {"grad_norm"}}
    evaluator = Evaluator(sets, tokenizer, TEMPLATES["plain"], profile, 0, 500, **how)
    (tmp_path / "evaluator").write_bytes(pickle.dumps(evaluator))
    files = launch(TWO_PROCESSES, [str(tmp_path)], tmp_path, 2)
    alone = evaluator(sharp)
    sampled: Any = evaluator.with_samples(alone, sharp, RepeatedSampling(samples=3))
    s = alone.statistics
    assert s is not None
    for file in files:
        assert file.with_suffix(".txt").read_text() == f"{s.generated} {s.ties}"
        for name, seen in read_observations(file).sets.items():
            assert_equal(seen, alone.sets[name], 0)
            two, one = (cast("Any", s.grad_norm) for s in (seen, alone.sets[name]))
            assert (two is None) == (one is None) == (name not in ("retain", "forget"))
            if one is not None:
                np.testing.assert_allclose(two, one, rtol=1e-5)
            if name == "forget":
                assert seen.samples is not None
                assert seen.samples.texts == sampled.sets["forget"].samples.texts
                assert len({*seen.samples.texts[0]}) > 1


@pytest.mark.parametrize("template", ["plain", "phi"])
@pytest.mark.parametrize("packed", [True, False])
def test_values_by_token_are_those_of_one_sequence_at_a_time(
    sharp: Any,
    tokenizer: Any,
    questions: tuple[Question, ...],
    template: str,
    packed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: object) -> bool:
        return False

    if not packed:
        monkeypatch.setattr(Predictor, "_packs", never)
    sets, how = sets_of(questions), TEMPLATES[template]
    evaluator = Evaluator(sets, tokenizer, how, TOFU, pad_id(tokenizer), 300, roles=ROLES)
    found = evaluator(sharp).sets
    encoder = Encoder(tokenizer, how, TOFU.max_length)
    for name, rows in sets.items():
        tokens = found[name].tokens
        assert tokens.ended.all()
        assert (tokens.mean_logprob is not None) == (name in ("forget", "retain"))
        for i, question in enumerate(rows):
            row = encoder.row(question)
            start = row.start + row.label
            with torch.no_grad():
                logits = sharp(torch.tensor([row.ids])).logits[0].double()
            logprobs = logits[start - 1 : -1].log_softmax(1)  # [T, V]
            labels = torch.tensor(row.ids[start:])
            mean = (logprobs.exp() * logprobs).sum(1)
            variance = (logprobs.exp() * logprobs**2).sum(1) - mean**2
            expected = {
                "loss": -logprobs.gather(1, labels.unsqueeze(1)).squeeze(1),
                "hit": logprobs.argmax(1) == labels,
                "mean_logprob": mean,
                "logprob_variance": variance,
            }
            for key, values in expected.items():
                column = getattr(tokens, key)
                if column is not None:
                    own = tokens.by_answer(column, eos=True)[i]
                    np.testing.assert_allclose(own, values.numpy(), rtol=1e-4, atol=2e-5)
    assert {one.tokens.hit.any() for one in found.values()} == {True}
    assert not all(one.tokens.hit.all() for one in found.values())


def test_holdout_rows_are_scored_alone_and_change_no_other_number(
    sharp: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    holdout = tuple(Question(q.question, f"Not {q.answer}") for q in questions[:4])

    def evaluated(sets: dict[SetName, tuple[Question, ...]]) -> Evaluation:
        how = TEMPLATES["plain"], TOFU, pad_id(tokenizer), 300, None, ROLES
        seen: list[tuple[int, int]] = []

        def count(done: int, everything: int) -> None:
            seen.append((done, everything))

        found = Evaluator(sets, tokenizer, *how)(sharp, None, count)
        # Called again with its answers as drafts, which holdout rows do not have.
        assert Evaluator(sets, tokenizer, *how)(sharp, found).answers == found.answers
        rows = sum(map(len, sets.values()))
        assert seen[-1] == (2 * rows, 2 * rows)
        return found

    sets = sets_of(questions)
    without, found = evaluated(sets), evaluated({"holdout": holdout, **sets})
    for name, seen in without.sets.items():
        assert_equal(seen, found.sets[name], 0)
    seen, losses = found.sets["holdout"], summarize(found, None, TOFU)
    assert (seen.generated, len(seen.references)) == ((), 4)
    assert np.isnan(seen.rouge_l_recall).all()
    assert (seen.perturbed_loss.shape, seen.tokens.mean_logprob is None) == ((4, 0), False)
    encoder = Encoder(tokenizer, TEMPLATES["plain"], TOFU.max_length)
    for i, question in enumerate(holdout):
        row = encoder.row(question)
        assert seen.answer_loss[i] == pytest.approx(
            np.mean(plain_losses(sharp, row.ids, row.start)), abs=1e-5
        )
    assert losses["mia_loss"] is not None
    before = summarize(without, None, TOFU)
    assert before["mia_loss"] is None
    assert [c for c in losses if losses[c] != before[c] and not c.startswith("mia_")] == []


def test_what_scoring_has_read_is_not_read_again(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With keys and values kept from scoring, decoding reads fewer tokens and finds the same."""
    read, states = [0], Predictor.row_states

    def counted(self: Predictor, ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        read[0] += len(ids)
        return states(self, ids, *rest)

    monkeypatch.setattr(Predictor, "row_states", counted)
    found, tokens = list[Evaluation](), list[int]()
    for most in (device.KEPT_BYTES, 50_000, 0):
        monkeypatch.setattr(device, "KEPT_BYTES", most)
        read[0] = 0
        found.append(evaluate(model, tokenizer, questions))
        tokens.append(read[0])
    prompts = sum(
        len(answer) > 0 for answers in (found[0].answers or {}).values() for answer in answers
    )
    assert prompts
    assert tokens[0] < tokens[1] < tokens[2], "all, some and none are kept"
    for other in found[1:]:
        assert other.answers == found[0].answers
        for name, seen in found[0].sets.items():
            assert_equal(seen, other.sets[name], 0.0)
