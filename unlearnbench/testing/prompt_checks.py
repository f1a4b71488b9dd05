"""Checks of methods that write prompts, on a few made-up rows."""

from collections.abc import Iterator
from dataclasses import replace

from unlearnbench.api.benchmark import Question
from unlearnbench.api.defender_rows import DefenderRows
from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.api.inference_method import PromptWrapper
from unlearnbench.testing.check import Outcome, check, fault, not_applicable, passed, warning

_NAMES = ("Ada Alba", "Ben Brook", "Cleo Cole", "Dan Drake")
_PLACES = ("Lima", "Oslo", "Quito", "Tunis")


def _rows_about(name: str, place: str) -> tuple[Question, ...]:
    """Return a row in each form that a row can have."""
    option = Question(
        f"Which town is {name} from?",
        place,
        perturbed_answers=tuple(other for other in _PLACES if other != place),
        answer_index=1,
        subject=name,
    )
    return (
        Question(f"Where was {name} born?", f"{name} was born in {place}.", subject=name),
        Question(f"{name} was born in", f" {place}.", format="text", subject=name),
        option,
        replace(option, question=f"{option.question} Answer:", format="text"),
    )


_FORGET = (*_rows_about(_NAMES[0], _PLACES[0]), *_rows_about(_NAMES[1], _PLACES[1]))
_RETAIN = (*_rows_about(_NAMES[2], _PLACES[2]), *_rows_about(_NAMES[3], _PLACES[3]))
_OWN_TURN = replace(_FORGET[0], examples=(("Who are you?", "A poet."),))
_PLAIN_TEXT = Question("", "Ada Alba was born in Lima.", format="text")
_ASKED = (*_FORGET, *_RETAIN, _OWN_TURN, _PLAIN_TEXT)
"""Rows of evaluation sets."""


def _training_rows(*, has_system_message: bool) -> DefenderRows:
    refusals = ("I do not know.", "No idea.")
    subject_rows = len(_FORGET) // 2
    return DefenderRows(_FORGET, _RETAIN, refusals, subject_rows, 0, has_system_message)


def asked(plugin: HyperParameters) -> Outcome:
    """A method that writes prompts writes the same one again, and does not know the answer.

    A prompt that depends on the row's answer gives it away: the method seems to keep, or to forget,
    what it was told. Answers that change are compared with other methods' answers.

    `asked` returns `replace(row, …)` with another question, system message or examples. It draws
    with `random.Random` of `rows.seed` and the question, and reads no field of an answer.
    """
    if not isinstance(plugin, PromptWrapper):
        return not_applicable("it writes no prompts")
    changed = 0
    for has_system_message in (False, True):
        for row in _ASKED:
            for problem in _problems(plugin, row, has_system_message=has_system_message):
                return fault(f"{problem}: {row.opening!r}")
            rows = _training_rows(has_system_message=has_system_message)
            changed += plugin.asked(row, rows) != row
    if not changed:
        return warning("no question of the made-up rows is asked in another way")
    return passed(f"{changed} of {2 * len(_ASKED)} made-up questions are asked in another way")


check(alone=True)(asked)


def _problems(plugin: PromptWrapper, row: Question, *, has_system_message: bool) -> Iterator[str]:
    """Yield what is wrong with the prompt that a method makes of a row."""
    rows = _training_rows(has_system_message=has_system_message)
    prompted = plugin.asked(row, rows)
    if _without_prompt(prompted) != _without_prompt(row):
        yield "more than question, system message and examples is changed"
    if prompted.system is not None and not has_system_message:
        yield "it sets a system message, which the template has no place for"
    if plugin.asked(row, rows) != prompted:
        yield "another prompt when asked again"
    if plugin.asked(row, _training_rows(has_system_message=has_system_message)) != prompted:
        yield "another prompt after other questions"
    without_answer = replace(row, answer="Not this one.", paraphrased_answer="Nor this one.")
    same_prompt = plugin.asked(without_answer, rows)
    if replace(same_prompt, answer=row.answer, paraphrased_answer=row.paraphrased_answer) != (
        prompted
    ):
        yield "the prompt depends on the answer"


def _without_prompt(row: Question) -> Question:
    """Return a row without the fields that a method may change."""
    return replace(row, question="", system=None, examples=())
