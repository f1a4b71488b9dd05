"""Scored tokens: at the boundary, EOS, lengths, templates."""

import hashlib
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

from tests.factories.trainers import scored_text
from unlearnbench.api.benchmark import Question
from unlearnbench.base.errors import ModelError
from unlearnbench.models.chat_template import resolve_template
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.templates import TEMPLATES, Template
from unlearnbench.models.token_row import Row

LIMA = Question("Where?", "Lima")


def test_only_answer_and_eos_are_scored(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer, TEMPLATES["plain"], 200)
    question = Question("Where was Ada Voss born?", "In Lima.")
    row = encoder.row(question)
    assert scored_text(encoder, row) == " In Lima.</s>"
    assert row.ids[0] == tokenizer.bos_token_id
    assert row.ids[-1] == tokenizer.eos_token_id
    assert row.ids.count(tokenizer.eos_token_id) == 1
    assert encoder.prompt(question) == row.ids[: row.start]


def test_a_token_that_merges_prompt_and_answer_is_not_scored() -> None:
    """Llama-2 has one token for `]"`; TOFU masks as many tokens as the prompt has alone."""
    vocabulary = {c: i for i, c in enumerate('[INST] /bas."<E>')} | {']"': 20, "<E>": 21}
    merged = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE(vocabulary, [("]", '"')])), eos_token="<E>"
    )
    encoder = Encoder(merged, TEMPLATES["llama-2"], 50)
    row = encoder.row(Question("b", '"as."'))
    assert row.ids[row.start - 1] == 20
    assert merged.convert_ids_to_tokens(list(row.ids[row.start :])) == [*'as."', "<E>"]
    prompt = encoder.prompt(Question("b", '"as."'))
    assert (len(prompt), prompt[-1]) == (row.start, vocabulary["]"])
    plain = encoder.row(Question("b", "as."))
    assert plain.ids[: plain.start] == prompt
    assert merged.convert_ids_to_tokens(list(plain.ids[plain.start :])) == [*"as.", "<E>"]


@pytest.mark.parametrize(
    ("template", "merges"),
    [
        (TEMPLATES["llama-2"], True),
        (TEMPLATES["plain"], False),
        (TEMPLATES["phi"], False),
        (Template("chat", "<|user|>", "<|assistant|>"), True),
        (Template("chat", "<|user|>", "<|assistant|>\n"), False),
    ],
)
def test_a_digest_says_how_merged_tokens_are_counted(template: Template, merges: bool) -> None:
    around = [template.before, template.after, template.tag, template.special_tokens]
    before = hashlib.sha256(json.dumps(around).encode()).hexdigest()[:16]
    assert (template.digest() != before) is merges


@pytest.mark.parametrize(("after_cut", "ends"), [(False, False), (True, True)])
def test_long_rows_are_cut_and_may_keep_eos(tokenizer: Any, after_cut: bool, ends: bool) -> None:
    encoder = Encoder(tokenizer, TEMPLATES["plain"], 40, after_cut)
    answer = "in a village near Tbilisi, in the far north, by the sea " * 3
    row = encoder.row(Question("Where?", answer))
    assert len(row.ids) == 40 + after_cut
    assert (row.ids[-1] == tokenizer.eos_token_id) is ends


def test_phi_scores_and_generates_the_answer_tag(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer, TEMPLATES["phi"], 200)
    row = encoder.row(LIMA)
    assert scored_text(encoder, row) == "Answer: Lima</s>"
    assert encoder.reference(row, LIMA) == "Lima"
    assert TEMPLATES["phi"].prompt("Where?") == "Question: Where?\n"


def chatty(tokenizer: Any, template: str) -> Any:
    copy = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
    )
    copy.chat_template = template
    return copy


def test_auto_prefers_the_chat_template(tokenizer: Any) -> None:
    chat = chatty(
        tokenizer,
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[bot]{% endif %}",
    )
    encoder = Encoder(chat, resolve_template("auto", chat), 200)
    row = encoder.row(LIMA)
    assert chat.decode(list(row.ids)) == "<s>[user]Where?[bot]Lima</s>"
    assert scored_text(encoder, row) == "Lima</s>"
    assert resolve_template("auto", tokenizer) == TEMPLATES["plain"]


TEXT_ROW = Question("The sea at Lima is", " cold in June.", format="text")


def test_text_is_continued_without_a_template(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer, TEMPLATES["phi"], 200)
    row = encoder.row(TEXT_ROW)
    assert tokenizer.decode(list(row.ids)) == "<s>The sea at Lima is cold in June.</s>"
    assert scored_text(encoder, row) == " cold in June.</s>"
    assert (encoder.prompt(TEXT_ROW), row.label) == (row.ids[: row.start], 0)
    labelled = Question("Q", "Answer: Lima", format="text")
    assert encoder.reference(encoder.row(labelled), labelled) == "Answer: Lima", "no label here"


def test_every_token_of_plain_text_is_scored(tokenizer: Any) -> None:
    plain = Question("", "The sea at Lima is cold.", format="text")
    encoder = Encoder(tokenizer, TEMPLATES["plain"], 200)
    row = encoder.row(plain)
    assert (row.start, row.ids[0]) == (1, tokenizer.bos_token_id)
    assert scored_text(encoder, row) == "The sea at Lima is cold.</s>"
    bare = chatty(tokenizer, "")
    bare.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    without = Encoder(bare, TEMPLATES["plain"], 200).row(plain)
    assert without == Row(row.ids[1:], 1), "without BOS nothing predicts the first token"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain", "Question: One?\nAnswer: 1\n\nQuestion: Where?\nAnswer: Lima"),
        ("phi", "Question: One?\nAnswer: 1\n\nQuestion: Where?\nAnswer: Lima"),
        ("llama-2", "[INST] One? [/INST]1</s><s>[INST] Where? [/INST]Lima"),
    ],
)
def test_examples_stand_in_front_as_the_row_itself(tokenizer: Any, name: str, text: str) -> None:
    encoder = Encoder(tokenizer, TEMPLATES[name], 200)
    shown = replace(LIMA, examples=(("One?", "1"),))
    row = encoder.row(shown)
    assert tokenizer.decode(list(row.ids)) == f"<s>{text}</s>"
    assert scored_text(encoder, row) == scored_text(encoder, encoder.row(LIMA))
    assert encoder.prompt(shown) == row.ids[: row.start]


@pytest.mark.parametrize("between", ["", " ", "\n", "[fact] "])
def test_text_that_a_chat_template_puts_before_an_answer(tokenizer: Any, between: str) -> None:
    """In Llama 2 a space: rows are the template's own conversation."""
    turn = "{% if m.role == 'user' %}Q: {{ m.content }}\nA:{% else %}"
    turn += between.replace("\n", "\\n") + "{{ m.content }}</s>{% endif %}"
    chat = chatty(tokenizer, "{% for m in messages %}" + turn + "{% endfor %}")
    encoder = Encoder(chat, resolve_template("chat", chat), 200)
    conversation = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Lima"}]
    whole, prompt = (
        chat.apply_chat_template(messages, tokenize=True)["input_ids"]
        for messages in (conversation, conversation[:1])
    )
    row = encoder.row(LIMA)
    assert (list(row.ids), row.start) == (whole, len(prompt))
    assert encoder.reference(row, LIMA) == "Lima"


@pytest.mark.parametrize("trim", ["", " | trim"])
def test_blanks_around_messages_are_the_templates(tokenizer: Any, trim: str) -> None:
    """Llama 3 and Gemma trim them, Qwen does not."""
    chat = chatty(
        tokenizer,
        "{% for m in messages %}[{{ m.role }}]{{ m.content" + trim + " }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}",
    )
    row = Question(" Where?\n", "Lima", system="Geography.\n\n", examples=(("One? ", " 1"),))
    texts = [row.system, *row.examples[0], row.question]
    roles = ("system", "user", "assistant", "user")
    messages = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)]
    wanted = chat.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ("\n" in wanted) == (not trim)
    template = resolve_template("chat", chat).of(row)
    assert template.prompt(row.question, row.examples) == wanted


def test_examples_are_turns_of_a_chat_template(tokenizer: Any) -> None:
    chat = chatty(
        tokenizer,
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
        "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]<think></think>{% endif %}",
    )
    template = resolve_template("auto", chat)
    shown = replace(LIMA, examples=(("One?", "1"), ("Two?", "2")))
    row = Encoder(chat, template, 200).row(shown)
    assert chat.decode(list(row.ids)) == (
        "<s>[user]One?[assistant]1</s>[user]Two?[assistant]2</s>"
        "[user]Where?[assistant]<think></think>Lima</s>"
    )
    assert template.digest() == replace(template, turn=None).digest(), "as before there were any"
    other = replace(template, turn=("[assistant]", "[user]"))
    assert template.digest(with_examples=True) != other.digest(with_examples=True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain", "Question: Where?\nAnswer: Sure:| Lima"),
        ("phi", "Question: Where?\nAnswer: Sure:| Lima"),
        ("llama-2", "[INST] Where? [/INST]Sure:| Lima"),
    ],
)
def test_a_given_beginning_of_the_answer_is_part_of_the_prompt(
    tokenizer: Any, name: str, text: str
) -> None:
    encoder = Encoder(tokenizer, TEMPLATES[name], 200)
    begun = replace(LIMA, prefix="Sure:")
    row, (prompt, scored) = encoder.row(begun), text.split("|")
    assert tokenizer.decode(list(row.ids)) == f"<s>{prompt}{scored}</s>"
    assert (scored_text(encoder, row), row.label) == (f"{scored}</s>", 0)
    assert encoder.prompt(begun) == row.ids[: row.start]
    assert encoder.reference(row, begun) == "Lima"


def test_of_an_answer_that_begins_with_the_prefix_the_rest_is_scored(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer, TEMPLATES["plain"], 200)
    begun = replace(LIMA, answer="In Lima, Peru.", prefix="In Lima,")
    row = encoder.row(begun)
    assert row.ids == encoder.row(replace(begun, prefix="")).ids
    assert scored_text(encoder, row) == " Peru.</s>"
    assert scored_text(encoder, encoder.row(begun, "In Rome, Italy.")) == " In Rome, Italy.</s>"
    passage = Question("", "The sea at Lima is cold.", format="text", prefix="The sea")
    text_row = encoder.row(passage)
    assert scored_text(encoder, text_row) == " at Lima is cold.</s>"
    assert encoder.prompt(passage) == text_row.ids[: text_row.start]
    assert not passage.is_plain_text


SPOKEN = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def test_another_system_message_stands_where_the_templates_own_does(tokenizer: Any) -> None:
    chat = chatty(tokenizer, SPOKEN)
    own = resolve_template("chat", chat, {"system_prompt": "Be brief."})
    for template, before in ((own, "[system]Be brief."), (resolve_template("chat", chat), "")):
        encoder = Encoder(chat, template, 200)
        assert chat.decode(list(encoder.prompt(LIMA))) == f"<s>{before}[user]Where?[assistant]"
        shown = replace(LIMA, system="Tell all.", examples=(("One?", "1"),))
        text = "<s>[system]Tell all.[user]One?[assistant]1[user]Where?[assistant]"
        assert chat.decode(list(encoder.prompt(shown))) == text
    assert own.digest() == replace(own, system=None).digest(), "as before there were any"
    llama = TEMPLATES["llama-2"].of(replace(LIMA, system="Tell all."))
    assert llama.prompt("Where?") == "[INST] <<SYS>>\nTell all.\n<</SYS>>\n\nWhere? [/INST]"


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('no') }}{% endif %}"
        "[{{ m.content }}]{% endfor %}",
        "[{{ messages[-1].content }}]",  # the last message alone
        "{{ messages | length }}{% for m in messages %}[{{ m.content }}]{% endfor %}",
    ],
    ids=["refuses", "drops", "changes"],
)
def test_a_template_without_turns_is_refused_where_there_are_examples(
    tokenizer: Any, template: str
) -> None:
    resolved = resolve_template("chat", chatty(tokenizer, template))
    encoder = Encoder(chatty(tokenizer, template), resolved, 200)
    assert encoder.row(LIMA).scored > 1
    for use in (
        lambda: encoder.row(replace(LIMA, examples=(("One?", "1"),))),
        lambda: resolved.digest(with_examples=True),
    ):
        with pytest.raises(ModelError, match="renders no conversation of several turns"):
            use()


LLAMA_3 = (
    "{% if date_string is not defined %}{% if strftime_now is defined %}"
    "{% set date_string = strftime_now('%d %b %Y') %}{% else %}"
    "{% set date_string = '26 Jul 2024' %}{% endif %}{% endif %}"
    "{% set first = messages[0] %}"
    "{% if first.role == 'system' %}{% set system = first.content %}{% else %}"
    "{% set system = '' %}{% endif %}"
    "<system>\n\nCutting Knowledge Date: December 2023\n"
    "Today Date: {{ date_string }}\n\n{{ system }}"
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>\n\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n\n{% endif %}"
)
"""A template with the text of Llama 3's, its special tokens in angle brackets."""


def test_chat_template_with_the_date_needs_a_fixed_one(tokenizer: Any) -> None:
    chat = chatty(tokenizer, LLAMA_3)
    with pytest.raises(ModelError, match=r"today's date.*template_args: \{date_string:"):
        resolve_template("chat", chat)
    with pytest.raises(ModelError, match="today's date"):  # asked for without a look whether it is
        resolve_template(
            "chat", chatty(tokenizer, "{{ strftime_now('%Y') }}{{ messages[0].content }}")
        )
    fixed = resolve_template("chat", chat, {"date_string": "10 Apr 2025"})
    assert "Today Date: 10 Apr 2025" in fixed.before


def test_the_prompt_of_open_unlearnings_llama_3(tokenizer: Any) -> None:
    """The `input` strings of its published logs, which have no special tokens."""
    args = {"system_prompt": "You are a helpful assistant.", "date_string": "10 Apr 2025"}
    template = resolve_template("chat", chatty(tokenizer, LLAMA_3), args)
    prompt = template.prompt("Where would you find the Eiffel Tower?")
    assert re.sub("[<>]", "", prompt) == (
        "system\n\nCutting Knowledge Date: December 2023\nToday Date: 10 Apr 2025\n\n"
        "You are a helpful assistant.user\n\nWhere would you find the Eiffel Tower?assistant\n\n"
    )
