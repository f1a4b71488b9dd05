"""Read a tokenizer's chat template as a `Template`: the text around questions and answers.

A chat template is a program in Jinja that renders a conversation as text. It is run on
conversations whose messages are a marker, and the text between the markers is what it writes around
messages. For example, ChatML's renders one question as

    <|im_start|>user
    MARKER<|im_end|>
    <|im_start|>assistant

Templates may refuse a conversation by any exception, for example one with a system message. What is
read from such a conversation is then missing from the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import UndefinedError

from unlearnbench.base.errors import ModelError
from unlearnbench.models.templates import TEMPLATES, SystemText, Template, Turn, TurnEnd

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TemplateArgs = Mapping[str, str | int | bool]
"""Variables of a chat template, and `system_prompt`, the text of a system message."""

_MARKER = "\x00"
"""Stands for the text of a message."""
_SYSTEM_MARKER = "\x01"
"""Stands for the text of a system message."""
_SWITCHES = ("enable_thinking", "thinking")
"""Variables that make prompts write an empty block of thoughts if they are false."""
_CLOCK = "strftime_now"
"""Function of transformers by which chat templates read today's date."""


class _AroundQuestion(NamedTuple):
    """The text of a prompt in front of the question and after it."""

    before: str
    after: str


@dataclass(frozen=True)
class _Renderer:
    """Renders conversations whose messages are `_MARKER` with a chat template."""

    tokenizer: Any
    variables: Mapping[str, Any]
    system: str | None
    """The system message in front of the conversation; None for none."""
    source: str | None = None
    """The template's own text. None: the tokenizer's template."""
    blank: str = ""
    """Text on both sides of each marker."""

    def prompt(self, examples: int = 0, *, opens_answer: bool = True) -> str:
        """Render a question without its answer.

        Args:
            examples: Number of questions with answers in front of it.
            opens_answer: Whether the template is asked to write the beginning of an answer.
        """
        roles = [*["user", "assistant"] * examples, "user"]
        return self._render(roles, opens_answer=opens_answer)

    def conversation(self) -> str:
        """Render a question with its answer."""
        return self._render(["user", "assistant"], opens_answer=False)

    def _render(self, roles: list[str], *, opens_answer: bool) -> str:
        """Render a message of each role, after the system message if there is one."""
        content = f"{self.blank}{_MARKER}{self.blank}"
        messages = [{"role": role, "content": content} for role in roles]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        options = {
            **self.variables,
            "tokenize": False,
            "add_generation_prompt": opens_answer,
            "chat_template": self.source,
        }
        return str(self.tokenizer.apply_chat_template(messages, **options))


def chat_template(tokenizer: PreTrainedTokenizerFast, args: TemplateArgs | None = None) -> Template:
    """Return the tokenizer's chat template around one question.

    Args:
        tokenizer: A tokenizer with a chat template.
        args: The template's variables. `system_prompt` becomes a system message in front.

    Raises:
        ModelError: The template fails, drops the question or the system message, or writes today's
            date into prompts.
    """
    variables: dict[str, Any] = dict(args or {})
    system = variables.pop("system_prompt", None)
    renderer = _Renderer(tokenizer, variables, None if system is None else str(system))
    try:
        prompt = renderer.prompt()
    except Exception as error:  # templates are programs and may raise anything
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"the tokenizer's chat template fails ({type(error).__name__}: {reason}); correct it "
            "in the tokenizer's folder, or set the model's `template` to plain, llama-2 or phi"
        ) from error
    before, marker, after = prompt.partition(_MARKER)
    if not marker:
        raise ModelError(
            "the tokenizer's chat template drops or escapes the question; "
            "set the model's `template` to plain, llama-2 or phi"
        )
    if _depends_on_clock(renderer, prompt):
        raise ModelError(
            "the tokenizer's chat template writes today's date into every prompt: token ids, and "
            "with them all numbers, would change at midnight. Fix the date that the model was "
            "trained with, template_args: {date_string: 26 Jul 2024} for example"
        )
    if renderer.system is not None and renderer.system.strip() not in prompt:
        raise ModelError(
            "template_args.system_prompt: the tokenizer's chat template leaves system messages out"
        )

    around = _AroundQuestion(before, after)
    turn = _example_turn(renderer, around)
    tag, end = _around_answer(renderer, around)
    after_answer = _after_answer(renderer)
    # Some templates write the beginning of the next answer after every conversation.
    always_opens_answer = turn is not None and prompt == renderer.prompt(opens_answer=False)
    return Template(
        "chat",
        before,
        after,
        tag,
        special_tokens=False,
        turn=turn,
        system=_around_system_message(renderer, after, turn),
        end=end,
        turn_end=_turn_end(after_answer, turn if always_opens_answer else None, tokenizer),
        answers_elsewhere=bool(after_answer) and not (tag or end),
        tag_switch=_tag_switch(renderer) if tag.strip() else "",
        trims=replace(renderer, blank=" ").prompt() == prompt,
        trims_answers=_trims_answers(renderer),
    )


def _depends_on_clock(renderer: _Renderer, prompt: str) -> bool:
    """Whether the prompt changes if the template cannot read the date."""
    source = renderer.tokenizer.get_chat_template()
    if _CLOCK not in source:
        return False
    # Under another name the clock is undefined. A template that has a date from elsewhere renders
    # the same prompt.
    without_clock = replace(renderer, source=source.replace(_CLOCK, f"{_CLOCK}_hidden"))
    try:
        return without_clock.prompt() != prompt
    except UndefinedError:
        return True


def _example_turn(renderer: _Renderer, around: _AroundQuestion) -> Turn | None:
    """Return the text around an example's answer.

    The result is None if the template refuses several turns, if it writes different texts around
    the two examples that are tried, or if examples change the text around the question.
    """
    try:
        texts = renderer.prompt(examples=2).split(_MARKER)
    except Exception:  # templates are programs and may raise anything
        return None
    if len(texts) != 6:  # five messages
        return None
    first = Turn(texts[1], texts[2])
    second = Turn(texts[3], texts[4])
    is_same_prompt = texts[0] == around.before and texts[-1] == around.after
    return first if first == second and is_same_prompt else None


def _around_answer(renderer: _Renderer, around: _AroundQuestion) -> tuple[str, str]:
    """Return the text between a prompt and the last answer (in Llama 2 a space), and after it.

    Both are empty if the template refuses an answer, or if an answer changes the text in front.
    """
    try:
        before, between, end = renderer.conversation().split(_MARKER)
    except Exception:  # templates are programs and may raise anything
        return "", ""
    if before != around.before or not between.startswith(around.after):
        return "", ""
    return between.removeprefix(around.after), end


def _after_answer(renderer: _Renderer) -> str:
    """Return the text after the last answer, also if prompts end unlike conversations.

    For example, prompts of some models open a block of thoughts, which answers do not show.
    """
    with suppress(Exception):  # templates are programs and may raise anything
        _, _, end = renderer.conversation().split(_MARKER)
        return end
    return ""


def _around_system_message(renderer: _Renderer, after: str, turn: Turn | None) -> SystemText | None:
    """Return the text around a system message.

    The result is None if the template refuses system messages or leaves them out, or if a system
    message changes the text around the question and examples.

    Args:
        renderer: Renders conversations.
        after: The text after the question without a system message.
        turn: The text around an example's answer without a system message.
    """
    with_system = replace(renderer, system=_SYSTEM_MARKER)
    try:
        before, end = with_system.prompt().split(_MARKER)
        around_message = before.split(_SYSTEM_MARKER)
    except Exception:  # templates are programs and may raise anything
        return None
    if len(around_message) != 2 or end != after:
        return None
    if turn is not None and _example_turn(with_system, _AroundQuestion(before, after)) != turn:
        return None
    return SystemText(*around_message)


def _turn_end(
    after_answer: str, turn: Turn | None, tokenizer: PreTrainedTokenizerFast
) -> TurnEnd | None:
    """Return what ends an answer; None if it is EOS alone.

    The text after the first control token is no part of the turn's end. Examples are the line break
    after ChatML's `<|im_end|>`, and the EOS that Phi-3 writes after `<|end|>`.

    Args:
        after_answer: Text that the template writes after the last answer.
        turn: Text around an example's answer, if the template writes the beginning of the next
            answer after every conversation. An answer then ends with what both texts have in
            common.
        tokenizer: The tokenizer, which knows the control tokens.
    """
    end = after_answer
    if turn is not None:
        pairs = zip(end, turn.after_answer, strict=False)
        common_length = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
        end = end[:common_length]
    controls = [token for token in control_tokens(tokenizer) if token in end]
    if not controls:
        return TurnEnd(end.rstrip()) if end.strip() else None
    # Of two tokens that begin at the same place, the tokenizer takes the longer one.
    first = min(controls, key=lambda token: (end.index(token), -len(token)))
    text = end[: end.index(first)]
    is_eos_alone = not text and first == tokenizer.eos_token
    return None if is_eos_alone else TurnEnd(text, first)


def control_tokens(tokenizer: Any) -> frozenset[str]:
    """Return the added tokens that are not white space: those that stand for no text of a user."""
    return frozenset(token for token in tokenizer.get_added_vocab() if token.strip())


def _tag_switch(renderer: _Renderer) -> str:
    """Return the variable by which prompts write the text in front of answers; empty for none."""
    for name in _SWITCHES:
        if name in renderer.variables:
            continue
        switched_off = replace(renderer, variables={**renderer.variables, name: False})
        with suppress(Exception):  # templates are programs and may raise anything
            before_question, after_question = switched_off.prompt().split(_MARKER)
            before, between, _ = switched_off.conversation().split(_MARKER)
            is_same_prompt = before == before_question and between.startswith(after_question)
            if is_same_prompt and not between.removeprefix(after_question).strip():
                return f"{name}: false"
    return ""


def _trims_answers(renderer: _Renderer) -> bool:
    """Whether the template removes blanks around answers."""
    with suppress(Exception):  # templates are programs and may raise anything
        bare = renderer.conversation().split(_MARKER)
        blank = replace(renderer, blank=" ").conversation().split(_MARKER)
        # The question in front may keep its blanks.
        return bare[2] == blank[2] and blank[1] in (bare[1], f" {bare[1]}")
    return False


def no_variables(template: str) -> str:
    """Return the message for `template_args` with a template that has no variables."""
    return (
        f"template_args: only chat templates have variables, and the model's template is "
        f"{template}; leave template_args out"
    )


def resolve_template(
    name: str, tokenizer: PreTrainedTokenizerFast, args: TemplateArgs | None = None
) -> Template:
    """Return the template with a name of the configuration.

    Args:
        name: A name of `TEMPLATES`, or `chat`. `auto` is the chat template if the tokenizer has
            one, and `plain` otherwise.
        tokenizer: The model's tokenizer.
        args: Variables of a chat template, see `chat_template`.

    Raises:
        ModelError: There is no chat template, it cannot be used, or another template has `args`.
    """
    has_chat_template = bool(tokenizer.chat_template)
    if name == "auto":
        name = "chat" if has_chat_template else "plain"
    if name != "chat":
        if args:
            raise ModelError(no_variables(name))
        return TEMPLATES[name]
    if not has_chat_template:
        raise ModelError(
            "template is chat, but the tokenizer has no chat template; use auto, plain or another"
        )
    return chat_template(tokenizer, args)
