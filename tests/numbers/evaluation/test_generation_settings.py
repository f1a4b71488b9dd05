"""Settings of `generation_config`: followed as by `generate`, or left out with a warning."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from tests.chat_models import ChatModel, fitted
from tests.conftest import QUESTIONS
from tests.factories.marks import diagonals_in_make_test
from unlearnbench.api.benchmark import Question
from unlearnbench.base.errors import EvaluationError
from unlearnbench.benchmarks.tofu_metrics import ROLES
from unlearnbench.config.profiles import OPEN_UNLEARNING, TOFU
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.models.chat_template import resolve_template
from unlearnbench.models.limits import pad_id

LIMIT = 30
SHORT = dataclasses.replace(OPEN_UNLEARNING, max_new_tokens=LIMIT)

SETTINGS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 2.5},
    "n-grams": {"no_repeat_ngram_size": 2},
    "suppressed": {"suppress_tokens": " born", "begin_suppress_tokens": "B"},
    "long": {"min_new_tokens": 20},
    "long in all": {"min_length": "of the shortest prompt"},
    "all": {
        "repetition_penalty": 1.1,
        "no_repeat_ngram_size": 3,
        "min_new_tokens": 9,
        "bad_words_ids": [[45], [46, 47]],
        "exponential_decay_length_penalty": (12, 1.2),
        "forced_eos_token_id": 3,
    },
}


CHATS = ("gemma", "qwen-2.5", "llama-3")


@pytest.fixture(scope="module", params=CHATS)
def chat(request: pytest.FixtureRequest, questions: tuple[Question, ...]) -> ChatModel:
    """Of the tokenizers, Llama 3's has no padding token, so that EOS is masked inside prompts."""
    return fitted(request.param, questions[:3], epochs=40)


def evaluator_of(chat: ChatModel, questions: Any, profile: Any, **options: Any) -> Evaluator:
    template = resolve_template("chat", chat.tokenizer, chat.kind.arguments)
    sets, pad = {"forget": questions}, pad_id(chat.tokenizer)
    return Evaluator(sets, chat.tokenizer, template, profile, pad, roles=ROLES, **options)


def with_settings(chat: ChatModel, settings: dict[str, Any]) -> Any:
    """The model with settings, of which a text stands for its tokens."""
    settings = dict(settings)
    if "min_length" in settings:
        shortest = min(len(chat.conversation(q.question, "?")[1]) for q in QUESTIONS)
        settings["min_length"] = shortest + LIMIT
    model = copy.deepcopy(chat.model)
    stops = chat.model.generation_config.eos_token_id
    encode = chat.tokenizer.encode
    settings = {
        name: encode(value, add_special_tokens=False) if isinstance(value, str) else value
        for name, value in settings.items()
    }
    model.generation_config = GenerationConfig(eos_token_id=stops, **settings)
    return model


def plain_answer(chat: ChatModel, model: Any, question: str) -> str:
    """The answer of `generate` as open-unlearning calls it: masked by ids, decoded whole."""
    _, prompt = chat.conversation(question, "?")
    eos = chat.tokenizer.eos_token_id
    pad = eos if chat.tokenizer.pad_token_id is None else chat.tokenizer.pad_token_id
    ids = torch.tensor([prompt])
    made = model.generate(
        ids,
        attention_mask=ids.ne(pad).long(),
        max_new_tokens=LIMIT,
        do_sample=False,
        pad_token_id=eos,
    )
    return str(chat.tokenizer.decode(made[0, len(prompt) :], skip_special_tokens=True)).strip()


@pytest.mark.parametrize(
    ("chat", "kind"), diagonals_in_make_test(2, CHATS, SETTINGS), indirect=["chat"]
)
def test_open_unlearning_answers_as_generate_does(
    kind: str, chat: ChatModel, questions: tuple[Question, ...]
) -> None:
    model = with_settings(chat, SETTINGS[kind])
    expected = tuple(plain_answer(chat, model, question.question) for question in questions)
    evaluator = evaluator_of(chat, questions, SHORT)
    without = evaluator(chat.model)
    found = evaluator(model)
    assert found.sets["forget"].generated == expected
    assert found.sets["forget"].generated != without.sets["forget"].generated
    # Drafts of other answers, and slots that are filled again, change nothing.
    assert evaluator(model, without).sets["forget"].generated == expected
    few = evaluator_of(chat, questions, SHORT, batch_tokens=8)
    assert few(model, found).sets["forget"].generated == expected
    assert found.sets["forget"].answer_loss == pytest.approx(without.sets["forget"].answer_loss)


@pytest.mark.parametrize("kind", ["repetition", "all"])
def test_another_profile_takes_the_most_probable_tokens(
    kind: str, chat: ChatModel, questions: tuple[Question, ...]
) -> None:
    evaluator = evaluator_of(chat, questions, TOFU)
    plain = evaluator(chat.model).sets["forget"]
    evaluation = evaluator(with_settings(chat, SETTINGS[kind]))
    assert evaluation.sets["forget"].generated == plain.generated
    assert evaluation.statistics is not None
    (remark,) = evaluation.statistics.remarks
    assert all(f"{name}: " in remark for name in SETTINGS[kind])
    assert "profile tofu ignores" in remark


def test_answers_stop_where_open_unlearnings_do(
    chat: ChatModel, questions: tuple[Question, ...]
) -> None:
    """Only at the ids of `generation_config`: without the turn's end, they run on."""
    for stops in (chat.tokenizer.eos_token_id, [0, 1], None):
        model = copy.deepcopy(chat.model)
        model.generation_config = GenerationConfig(eos_token_id=stops)
        found = evaluator_of(chat, questions, SHORT)(model).sets["forget"]
        expected = [plain_answer(chat, model, question.question) for question in questions]
        assert list(found.generated) == expected


def test_beams_are_refused_where_they_would_be_followed(
    chat: ChatModel, questions: tuple[Question, ...]
) -> None:
    model = with_settings(chat, {"num_beams": 3})
    with pytest.raises(EvaluationError, match=r"num_beams: 3.*remove num_beams"):
        evaluator_of(chat, questions, SHORT)(model)
