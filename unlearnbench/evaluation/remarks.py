"""Sentences about texts and settings because of which numbers may mislead.

Each function returns an empty text if there is nothing to say.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from unlearnbench.api.benchmark import Question
from unlearnbench.base.row_texts import row_text
from unlearnbench.config.profiles import PROFILES
from unlearnbench.models.control_text import ControlText
from unlearnbench.models.templates import Template
from unlearnbench.models.token_row import Row

_SHOWN = 40
"""Number of characters of a prompt's end that are shown."""


def label_remark(template: Template, rows: Sequence[Row], tag_tokens: int) -> str:
    """Say which share of the scored tokens a chat template writes in front of every answer.

    Args:
        template: The model's template.
        rows: The rows of true answers that stand in the template.
        tag_tokens: Number of tokens of the template's tag by itself.
    """
    if template.name != "chat" or not template.label or not rows:
        return ""
    # Rows mark no label that consists of control tokens.
    label_tokens = sum(row.label or tag_tokens for row in rows)
    share = label_tokens / sum(row.scored for row in rows)
    if template.tag_switch:
        option = template.tag_switch.replace(": ", "=")
        fix = (
            f"set template_args: {{{template.tag_switch}}} (--template-arg "
            f"{option}), which moves this text into the prompt"
        )
    else:
        fix = (
            "set template_args so that the template's prompts end with this text, or set template "
            "to plain, llama-2 or phi"
        )
    return (
        f"the chat template writes {template.label!r} in front of every answer. It is scored with "
        f"the answer, as {share:.0%} of the scored tokens, and raises probabilities. To score only "
        f"the answers, {fix}"
    )


def prompt_remark(template: Template) -> str:
    """Say if a chat template's prompts end unlike the conversations that it renders."""
    if not template.answers_elsewhere:
        return ""
    return (
        f"the chat template's prompts end with {template.after[-_SHOWN:]!r}, but in its "
        "conversations answers follow another text. Answers are scored behind the prompt's end. If "
        "a variable of the template makes the two texts equal, set it in template_args"
    )


def control_remark(control: ControlText, questions: Sequence[Question]) -> str:
    """Say how many rows have control tokens in their texts."""
    rows_with_tokens: list[tuple[Question, str]] = []
    for row in questions:
        token = control.first_in_row(row)
        if token:
            rows_with_tokens.append((row, token))
    if not rows_with_tokens:
        return ""
    row, token = rows_with_tokens[0]
    where = row.place or row_text(row.opening)
    if len(rows_with_tokens) == 1:
        rows = "1 row has a control token of the tokenizer in its text"
    else:
        rows = f"{len(rows_with_tokens)} rows have control tokens of the tokenizer in their texts"
    return (
        f"{rows}. The first is {token!r} in {where}. The model reads a control token there, and "
        "not these characters. Remove it from the data unless that is meant"
    )


def settings_remark(settings: Mapping[str, Any], profile_name: str) -> str:
    """Say which settings of `generation_config` a profile ignores.

    Args:
        settings: The settings that change greedy answers, see `logit_settings`.
        profile_name: Name of the profile.
    """
    if not settings:
        return ""
    followers = [name for name, profile in PROFILES.items() if profile.follows_generate]
    listed = ", ".join(f"{name}: {value}" for name, value in settings.items())
    return (
        f"the model's generation_config has {listed}, which profile {profile_name} ignores: each "
        f"token of an answer is the most probable one. Profile {' or '.join(followers)} follows "
        "generation_config"
    )
