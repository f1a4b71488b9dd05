"""What ends a turn is read from the chat template: scoring, stops and training follow it."""

import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.chat_models import KINDS, ChatModel, build_chat_tokenizer, fitted
from unlearnbench.api.attack import AttackRows
from unlearnbench.api.benchmark import Question
from unlearnbench.api.method import Sampling
from unlearnbench.attacks.sampling import RepeatedSampling
from unlearnbench.attacks.second_turn import SecondTurn
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.tofu_metrics import ROLES
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.observation_file import read_observations, write_observations
from unlearnbench.models.chat_template import resolve_template
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.limits import pad_id
from unlearnbench.models.templates import TurnEnd
from unlearnbench.runs.under_attack import evaluations_under
from unlearnbench.training.alternative_answers import alternative_rows
from unlearnbench.training.answer_sampling import SeededPrompt, answer_rows, sample
from unlearnbench.training.objective import Objective
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.trainer import FineTuning, Trainer

TURN_ENDS = {
    "llama-2": TurnEnd(" ", "</s>"),
    "llama-3": None,
    "qwen-2.5": None,
    "qwen-3": None,
    "gemma": TurnEnd("", "<end_of_turn>"),
    "phi-3": TurnEnd("", "<|end|>"),
    "mistral": None,
    "smollm2": None,
    "olmo": None,
    "several tokens": TurnEnd("\n</turn>"),
    "words and a token": TurnEnd("\n### END\n", "</s>"),
    "ordinary token": TurnEnd("", "<|end|>"),
    "always a prompt": TurnEnd("", "<|end|>"),
    "nothing": None,
}
"""None where EOS alone ends a turn, as in earlier versions."""


LIKE_OTHERS = ("qwen-2.5", "phi-3", "mistral", "smollm2", "olmo", "ordinary token")
"""Templates that end turns as another one does. Their models are fitted in `make test-long`; what
the templates render is compared in `make test`, too."""


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(name, marks=pytest.mark.long if name in LIKE_OTHERS else ()) for name in KINDS
    ],
)
def chat(request: pytest.FixtureRequest, questions: tuple[Question, ...]) -> tuple[str, ChatModel]:
    """A model fitted to the first four questions in the form of each template."""
    return request.param, fitted(request.param, questions[:4])


def evaluator_of(
    chat: ChatModel, questions: tuple[Question, ...], profile: Any = TOFU, **options: Any
) -> Evaluator:
    template = resolve_template("chat", chat.tokenizer, options.pop("args", chat.kind.arguments))
    pad = pad_id(chat.tokenizer)
    return Evaluator(
        {"forget": questions}, chat.tokenizer, template, profile, pad, roles=ROLES, **options
    )


def test_a_fitted_model_shows_its_probability_and_its_answers(
    chat: tuple[str, ChatModel], questions: tuple[Question, ...], tmp_path: Path
) -> None:
    name, one = chat
    evaluator = evaluator_of(one, questions)
    assert evaluator.encoder.template.turn_end == TURN_ENDS[name]
    evaluation = evaluator(one.model)
    found = evaluation.sets["forget"]
    several = {
        "llama-2": 2,
        "several tokens": len(one.tokenizer.encode("\n</turn>")),
        "words and a token": len(one.tokenizer.encode("\n### END\n</s>")),
    }
    counts = found.tokens.end_counts.tolist()
    assert counts == [several.get(name, 1)] * len(questions)
    write_observations(evaluation, tmp_path / "log.safetensors")
    again = read_observations(tmp_path / "log.safetensors").sets["forget"]
    assert again.tokens.end_counts.tolist() == counts
    for i, question in enumerate(questions):
        expected = one.logprobs(question.question, question.answer)
        assert found.answer_loss[i] == pytest.approx(-expected.mean().item(), rel=1e-4, abs=1e-5)
        assert found.answer_tokens[i] == len(expected)
        limit = TOFU.max_length - len(one.conversation(question.question, "")[1])
        assert found.generated[i] == one.answer(question.question, limit)[0]
        assert found.references[i] == question.answer
        assert found.tokens.by_answer(found.tokens.loss, eos=True)[i] == pytest.approx(
            -expected.numpy(), rel=1e-3, abs=1e-5
        )
        words = found.tokens.by_answer(found.tokens.loss, eos=False)[i]
        ids, begin = one.scored(question.question, question.answer)
        bare = one.tokenizer.decode(ids[begin : begin + len(words)])
        assert bare.strip() == question.answer, "without all that ends the turn"
        if i < 4:
            assert expected.mean().exp() > 0.97, "it is fitted"
            assert found.generated[i] == question.answer


def test_a_second_turn_stands_behind_the_first_ones_end(
    chat: tuple[str, ChatModel], questions: tuple[Question, ...]
) -> None:
    _, one = chat
    evaluator, attack = evaluator_of(one, questions[:5]), SecondTurn()
    plain = evaluator(one.model)
    tools: Any = SimpleNamespace(rows=AttackRows(questions[:5], questions[5:]))
    ((_, evaluation),) = evaluations_under(
        "second-turn", attack, one.model, evaluator, tools, plain
    )
    first, second = plain.sets["forget"], evaluation.sets["forget"]
    for i, question in enumerate(questions[:5]):
        before = ((question.question, first.generated[i]),)
        expected = one.logprobs(attack.text, question.answer, before=before)
        assert second.answer_loss[i] == pytest.approx(-expected.mean().item(), rel=1e-4)
        prompt = len(one.conversation(attack.text, "", before=before)[1])
        asked = len(one.conversation(question.question, "")[1])
        limit = TOFU.max_length - asked if prompt > asked else TOFU.max_length - prompt
        assert second.generated[i] == one.answer(attack.text, limit, before=before)[0]


def test_samples_end_where_turns_do(
    chat: tuple[str, ChatModel], questions: tuple[Question, ...]
) -> None:
    """At a low temperature the samples of training and of attacks are the greedy answers."""
    _, one = chat
    fitted_questions = questions[:4]
    evaluator = evaluator_of(one, fitted_questions)
    encoder = evaluator.encoder
    prompts = [encoder.prompt(question) for question in fitted_questions]
    seeded = [SeededPrompt(prompt, (1, i)) for i, prompt in enumerate(prompts)]
    how = Sampling(1, temperature=0.01, max_new_tokens=60)
    answers = sample(one.model, seeded, how, encoder, pad_id(one.tokenizer))
    for question, answer, prompt in zip(fitted_questions, answers, prompts, strict=True):
        wanted, begin = one.scored(question.question, question.answer)
        assert list(answer) == wanted[begin:], "with the turn's end and no further"
        (row,) = answer_rows(prompt, [answer])
        assert encoder.reference(row, question) == question.answer
    attack = RepeatedSampling(samples=2, temperature=0.01)
    plain = evaluator(one.model)
    samples = evaluator.with_samples(plain, one.model, attack).sets["forget"].samples
    assert samples is not None
    assert samples.texts == tuple((question.answer,) * 2 for question in fitted_questions)


def test_a_sampled_answer_that_is_encoded_again_ends_once(
    chat: tuple[str, ChatModel], questions: tuple[Question, ...], tmp_path: Path
) -> None:
    """Answers of a method with `stop` are decoded, cut and encoded."""
    _, one = chat
    template = resolve_template("chat", one.tokenizer, one.kind.arguments)
    encoder = Encoder(one.tokenizer, template, 200)
    rows = alternative_rows(
        lambda: one.model,
        "weights",
        questions[:4],
        Sampling(1, temperature=0.01, max_new_tokens=60, stop=("#####",)),
        encoder,
        seed=0,
        pad=pad_id(one.tokenizer),
        folder=tmp_path,
    )
    for question, (row,) in zip(questions[:4], rows, strict=True):
        wanted = encoder.row(question)
        assert one.tokenizer.decode(row.ids) == one.tokenizer.decode(wanted.ids)


def test_samples_stop_at_the_ids_of_generation_config(questions: tuple[Question, ...]) -> None:
    one = fitted("gemma", questions[:4])
    template = resolve_template("chat", one.tokenizer)
    stop = one.tokenizer.encode(" born", add_special_tokens=False)[0]
    encoder = Encoder(one.tokenizer, template, 200, further_stops=frozenset({stop}))
    seeded = [SeededPrompt(encoder.prompt(question), (2,)) for question in questions[:4]]
    how = Sampling(1, temperature=0.01, max_new_tokens=60)
    answers = sample(one.model, seeded, how, encoder, pad_id(one.tokenizer))
    assert {answer[-1] for answer in answers} == {stop}
    assert all(answer.count(stop) == 1 for answer in answers)


WORDS = ("Ada", "Lima", "was born,", "in\n\nPerth", "please?", "  far", "north.", "[x]", "ü")


def random_text(random: np.random.Generator) -> str:
    blanks = random.choice(["", " ", "\n"], 2, p=[0.8, 0.1, 0.1])
    words = random.choice(WORDS, random.integers(1, 6))
    return f"{blanks[0]}{' '.join(words)}{blanks[1]}"


@pytest.mark.parametrize("name", KINDS)
def test_rows_are_what_the_template_renders(name: str, questions: tuple[Question, ...]) -> None:
    """Of conversations with several turns, system messages and answers that are begun."""
    kind, random = KINDS[name], np.random.default_rng(len(name))
    tokenizer = build_chat_tokenizer(kind, questions)
    encoder = Encoder(tokenizer, resolve_template("chat", tokenizer, kind.arguments), 400)
    has_system = encoder.template.system is not None
    assert has_system == (name not in ("gemma", "mistral")), "these have none"
    for case in range(40):
        shown = tuple((random_text(random), random_text(random)) for _ in range(case % 4))
        system = "Be brief." if has_system and case % 2 else None
        row = Question(random_text(random), random_text(random), examples=shown, system=system)
        messages = [{"role": "system", "content": system}] if system else []
        for question, answer in (*shown, (row.question, row.answer)):
            messages += [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
        how: dict[str, Any] = {"tokenize": False, **kind.arguments}
        prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, **how)
        whole = tokenizer.apply_chat_template(messages, **how)
        if kind.end:
            whole = whole[: whole.rindex(kind.end) + len(kind.end)]
        ids = tokenizer.encode(whole, add_special_tokens=False)
        encoded = encoder.row(row)
        wanted = ids if kind.end else [*ids, tokenizer.eos_token_id]
        assert list(encoded.ids) == wanted
        begin = tokenizer.encode(prompt, add_special_tokens=False)
        assert (encoded.start, list(encoder.prompt(row))) == (len(begin), begin)
        assert encoded.ended
        begun = replace(row, prefix="Sure:")
        told = replace(row, answer="Sure: " + row.answer.lstrip())
        text = tokenizer.decode(encoder.row(begun).ids)
        assert text == tokenizer.decode(encoder.row(told).ids) or row.answer[:1].isspace()


@pytest.mark.parametrize("name", KINDS)
def test_a_long_row_is_cut_before_its_end(name: str, questions: tuple[Question, ...]) -> None:
    kind = KINDS[name]
    tokenizer = build_chat_tokenizer(kind, questions)
    template = resolve_template("chat", tokenizer, kind.arguments)
    row = Encoder(tokenizer, template, 400).row(questions[2])
    assert (row.cut, row.ended) == (False, True)
    has_token = not kind.end or kind.end.endswith((*kind.controls, *kind.words))
    for most in range(row.start + 1, len(row.ids) + 2):
        is_whole = most >= len(row.ids)
        cut = Encoder(tokenizer, template, most).row(questions[2])
        assert cut.ids == row.ids[:most]
        assert (cut.cut, cut.ended) == (not is_whole, is_whole)
        ended = Encoder(tokenizer, template, most, eos_after_cut=True).row(questions[2])
        body = row.ids[:-1] if has_token else row.ids
        assert ended.ids == body[:most] + row.ids[-1:] * has_token
        assert ended.cut == (not is_whole)
        assert ended.ended == (is_whole or has_token)


def test_an_empty_block_of_thoughts_is_scored_with_a_remark(
    questions: tuple[Question, ...],
) -> None:
    """Qwen 3's template writes it in front of every answer unless the prompt has it."""
    one = fitted("qwen-3", questions[:4])
    evaluator = evaluator_of(one, questions, args={})
    evaluation = evaluator(one.model)
    found = evaluation.sets["forget"]
    written = scored = 0
    for i, question in enumerate(questions):
        expected = one.logprobs(question.question, question.answer, enable_thinking=True)
        assert found.answer_loss[i] == pytest.approx(-expected.mean().item(), rel=1e-4)
        bare = one.logprobs(question.question, question.answer)
        written += len(expected) - len(bare)
        scored += len(expected)
    assert evaluation.statistics is not None
    (remark,) = evaluation.statistics.remarks
    assert "'<think>\\n\\n</think>'" in remark
    assert f"{written / scored:.0%} of the scored tokens" in remark
    assert "set template_args: {enable_thinking: false}" in remark
    silent = evaluator_of(one, questions)(one.model).statistics
    assert silent is not None
    assert silent.remarks == ()


def test_a_label_in_the_prompt_is_no_part_of_the_scored_tokens(
    questions: tuple[Question, ...],
) -> None:
    """As in RWKU, whose prompts give the beginning of each answer."""
    one = fitted("qwen-3", questions, epochs=0)

    def remarks(*rows: Question) -> tuple[str, ...]:
        seen = evaluator_of(one, rows, args={})(one.model).statistics
        assert seen is not None
        return seen.remarks

    begun = tuple(replace(question, prefix="Answer:") for question in questions[:2])
    assert remarks(*begun) == ()
    assert remarks(*begun, *questions[2:4]) == remarks(*questions[2:4]) != ()


def test_a_prompt_that_opens_thoughts_keeps_the_turns_end(
    questions: tuple[Question, ...],
) -> None:
    """Reasoning models' prompts end with a text that conversations with answers do not have."""
    opened = "{% if add_generation_prompt %}{{ '<|assistant|><think>\\n' }}{% endif %}"
    kind = KINDS["always a prompt"]
    kind = replace(kind, template=kind.template.replace("<|assistant|>", opened))
    tokenizer = build_chat_tokenizer(kind, questions)
    one = replace(fitted("always a prompt", questions, epochs=0), kind=kind, tokenizer=tokenizer)
    evaluator = evaluator_of(one, questions[:2])
    assert evaluator.encoder.template.turn_end == TurnEnd("", "<|end|>")
    row = evaluator.encoder.row(questions[0])
    question, answer = questions[0].question, questions[0].answer
    text = f"<|user|>{question}<|end|><|assistant|><think>\n{answer}<|end|>"
    assert tokenizer.decode(row.ids) == text
    seen = evaluator(one.model).statistics
    assert seen is not None
    (remark,) = seen.remarks
    assert "the chat template's prompts end with '<|end|><|assistant|><think>\\n'" in remark


def test_control_tokens_in_texts_are_counted(questions: tuple[Question, ...]) -> None:
    one = fitted("gemma", questions[:4], epochs=1)
    begun = replace(questions[1], question="What is <end_of_turn>?", place="mine.jsonl:2")
    rows = (questions[0], begun, replace(questions[2], answer="It is <eos> and more."))
    seen = evaluator_of(one, rows)(one.model).statistics
    assert seen is not None
    assert seen.remarks == (
        "2 rows have control tokens of the tokenizer in their texts. The first is '<end_of_turn>' "
        "in mine.jsonl:2. The model reads a control token there, and not these characters. Remove "
        "it from the data unless that is meant",
    )


@pytest.mark.parametrize("answer", ["<eos>", " <end_of_turn>\n<eos> "])
def test_an_answer_without_text_is_refused(answer: str, questions: tuple[Question, ...]) -> None:
    one = fitted("gemma", questions[:4], epochs=1)
    row = replace(questions[0], answer=answer, place="mine.jsonl:7")
    with pytest.raises(DataError, match=r"mine.jsonl:7: the answer .* has no text"):
        evaluator_of(one, (row,))
    with pytest.raises(DataError, match=r"mine.jsonl:7: the answer .* has no text"):
        evaluator_of(one, (replace(row, answer="Lima", perturbed_answers=(answer,)),))


def test_the_loss_of_a_training_step_is_the_plain_models(
    chat: tuple[str, ChatModel], questions: tuple[Question, ...]
) -> None:
    name, one = chat
    template = resolve_template("chat", one.tokenizer, one.kind.arguments)
    encoder = Encoder(one.tokenizer, template, 200)
    rows = TrainingRows(retain=[encoder.row(question) for question in questions[3:6]])
    how = TrainerSettings(epochs=1, batch_size=3, learning_rate=1e-3, seed=0)
    model = copy.deepcopy(one.model)
    trainer = Trainer(model, Objective(FineTuning()), rows, how, pad_id(one.tokenizer))
    (step,) = trainer.epoch(1)
    each = [one.logprobs(question.question, question.answer) for question in questions[3:6]]
    assert step.loss == pytest.approx(-torch.cat(each).mean().item(), rel=1e-4), name
