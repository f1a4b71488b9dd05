"""The checks of an attack: its declarations, the prompts that it makes, and models under it.

The models are those of an `AttackLab`, small enough that each check takes a second at most.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args

import numpy as np
import yaml
from pydantic import ValidationError

from unlearnbench.api.attack import (
    Attack,
    PromptAttack,
    SamplingAttack,
    WeightAttack,
    variant,
)
from unlearnbench.api.benchmark import Question
from unlearnbench.api.metric import Role
from unlearnbench.api.observations import Evaluation
from unlearnbench.config.attack_entries import AttackSpec, attack_spec
from unlearnbench.config.messages import describe_errors
from unlearnbench.config.plugin_settings import with_tuples
from unlearnbench.config.yaml_tree import YamlReader
from unlearnbench.testing.attack_lab import AttackLab, seeded
from unlearnbench.testing.check import (
    Check,
    Outcome,
    attack_check,
    fault,
    not_applicable,
    passed,
)
from unlearnbench.testing.declarations import accepts, outside

_POINT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_BASES = (WeightAttack, PromptAttack, SamplingAttack)
_KEPT = ("answer", "paraphrased_answer", "perturbed_answers", "score", "place")
"""Fields of a row that an attack leaves as they are."""
_ODD_ROWS = (
    Question("The sea at Lima is", " cold in June.", format="text"),
    Question("", "The sea at Lima is cold.", format="text"),
    Question("Where is it?", "Here.", prefix="It is", examples=(("Who?", "I."),)),
)
"""Rows of benchmarks of other kinds, which an attack selects or not."""


@attack_check(
    "names",
    why="A variant's name is a key in tables, a part of file names and of addresses: two points of "
    "one name are one, and a slash or a capital letter alone parts them on no disk.",
    fix="`label` is text, `roles` are roles of evaluation sets, and `points` gives distinct names "
    'of letters, digits, "_", "." and "-"; ("",) for one point.',
    alone=True,
    first=True,
)
def names(attack: Attack) -> Outcome:
    """Label, roles and points are declared, and each point has a name of its own for files."""
    label: Any = getattr(attack, "label", None)
    if not isinstance(label, str) or not label.strip() or len(label.splitlines()) > 1:
        return fault(f"label is {label!r}: a line of text for people")
    if not isinstance(attack, _BASES):
        return fault(f"derive from {', '.join(one.__name__ for one in _BASES)}")
    roles: Any = attack.roles
    if not roles or not isinstance(roles, frozenset) or roles - {*get_args(Role)}:
        return fault(f"roles is {roles!r}: a frozenset of {', '.join(get_args(Role))}")
    points: Any = attack.points()
    if not points or not isinstance(points, tuple) or points != attack.points():
        return fault(f"points() is {points!r}: a tuple of names, the same each time")
    for point in points if points != ("",) else ():
        if not isinstance(point, str) or not _POINT.fullmatch(point):
            return fault(f"point {point!r} is no part of a file name")
    again = [p for i, p in enumerate(points) if p.casefold() in map(str.casefold, points[:i])]
    if again:
        return fault(f"point {again[0]!r} is there twice, but for capitals")
    return passed(", ".join(variant("it", point) for point in points))


@attack_check(
    "settings",
    why="What YAML cannot express cannot be configured, a value that no bound rejects surfaces "
    "after hours, and `attacks: [name]` gives no setting at all.",
    fix="`Field(default, ge=…, description=…)`: plain values and tuples of them, with bounds and a "
    "meaning; and a docstring with the source, for `attacks show`.",
    alone=True,
)
def settings(attack: Attack) -> Outcome:
    """Settings have defaults, survive YAML and JSON, and refuse unknown keys and wrong values."""
    kind, values = type(attack), attack.model_dump(mode="json")
    faults: list[str] = []
    if not (vars(kind).get("__doc__") or "").strip():
        faults.append("no docstring, in which `attacks show` has the source")
    entry = YamlReader("a config").read(yaml.safe_dump(values))
    spec = AttackSpec.model_validate_json(attack_spec("it", attack).model_dump_json())
    for name, plain in (("JSON", spec.settings), ("YAML", entry.plain() if entry else {})):
        try:
            if kind.model_validate(with_tuples(plain)) != attack:
                faults.append(f"another attack comes back from {name}")
        except ValidationError as error:
            faults.append(f"does not come back from {name}: {describe_errors(error)}")
    for key, info in kind.model_fields.items():
        if not info.description:
            faults.append(f"{key} has no description, from which help is made")
        if info.is_required():
            faults.append(f"{key} has no default")
        faults += [
            f"{key} accepts {v!r}" for v in outside(info) if accepts(kind, dict(attack), key, v)
        ]
    if accepts(kind, dict(attack), "no_such_key", 1):
        faults.append("an unknown key is accepted: a misspelt one would do nothing, unseen")
    return fault("; ".join(faults)) if faults else passed(", ".join(kind.model_fields))


@attack_check(
    "value",
    why="Attacks are stored in plans, compared, and sent to worker processes; one whose settings "
    "change on the way gives other numbers there under the same name.",
    fix="Fields with annotations, no attribute set in a method; the class at the top level of its "
    "file.",
    alone=True,
)
def value(attack: Attack) -> Outcome:
    """It is a frozen value: its settings cannot be changed, and it survives a copy by pickle."""
    for key in type(attack).model_fields:
        try:
            setattr(attack, key, getattr(attack, key))
        except ValidationError:
            continue
        return fault(f"{key} can be changed: derive from a base of attacks without `model_config`")
    try:
        again = pickle.loads(pickle.dumps(attack))  # its own, of a moment ago
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return fault(f"cannot be sent to another process: {error}")
    return passed("frozen") if again == attack else fault("another one comes back from pickle")


@attack_check(
    "content",
    why="`content` is part of a run's id: one that changes has every run done again, and one that "
    "is no text has none.",
    fix="Return the hash of the bytes of the files that the settings name, and no clock or path.",
    alone=True,
)
def content(attack: Attack) -> Outcome:
    """The hash of what it reads is text, and the same each time."""
    first: Any = attack.content()
    if not isinstance(first, str):
        return fault(f"content() is {first!r}: text, empty where no file is read")
    if first != (again := type(attack).model_validate(dict(attack)).content()):
        return fault(f"content() is {first!r}, and {again!r} of an equal attack")
    return passed(first or "reads no file")


@attack_check(
    "answers",
    why="What is scored under an attack is compared with the plain evaluation, question by "
    "question: other answers, or fewer, are another benchmark.",
    fix="`replace(row, question=…)`, or `examples`, `prefix`, `system`: what stands before the "
    "answer.",
)
def answers(lab: AttackLab) -> Outcome:
    """The rows that it makes have the answers and scores of the original ones."""
    count = 0
    for row, point, made in _prompts(lab):
        count += 1
        if not isinstance(made, Question):
            return fault(f"asked() gives a {type(made).__name__} at point {point!r}, no Question")
        for name in _KEPT:
            if getattr(made, name) != getattr(row, name):
                return fault(f"{name} of {row.opening!r} is {getattr(made, name)!r}")
    return passed(f"{count} prompts") if count else fault("it selects none of the ordinary rows")


@attack_check(
    "pure",
    why="Rows are asked in any order, in several processes, for run, retain and start model: a "
    "prompt that depends on the rows before, or on a global draw, differs between them.",
    fix='Draw with `random.Random(f"{self.seed} {row.question}")`; keep nothing between calls.',
)
def pure(lab: AttackLab) -> Outcome:
    """The same row is selected and asked in the same way, in any order."""
    with seeded(1):
        first = [(row, point, made) for row, point, made in _prompts(lab)]
    with seeded(2) as unchanged:
        again = [(row, point, made) for row, point, made in _prompts(lab, backwards=True)][::-1]
        drawn = [name for name, same in unchanged().items() if not same]
    if [(row, point) for row, point, _ in first] != [(row, point) for row, point, _ in again]:
        return fault("selects() chooses other rows in another order")
    for (row, point, made), (*_, other) in zip(first, again, strict=True):
        if made != other:
            return fault(f"asked() differs for {row.opening!r} at point {point!r}: {made} {other}")
    if drawn:
        return fault(f"draws from the global {' and '.join(drawn)}")
    return passed(f"{len(first)} prompts, twice")


@attack_check(
    "given-away",
    why="A prompt that has the answer in it measures reading: it gives the answer back also from a "
    "model that never knew it, and no method can pass.",
    fix="Leave out the row itself, in its other wording too, and rows that have its answer in "
    "them: `rows.beside` does.",
)
def given_away(lab: AttackLab) -> Outcome:
    """No prompt has the whole true answer in it that the plain prompt does not have."""
    for row, point, made in _prompts(lab):
        shown = (*(text for pair in made.examples for text in pair), made.question)
        texts = (made.system or "", *shown, made.prefix)
        if _has(texts, row.answer) and not _has((row.question,), row.answer):
            return fault(f"the prompt of {row.opening!r} at {point!r} has its answer in it")
    return passed("no prompt has its answer")


def _has(texts: tuple[str, ...], answer: str) -> bool:
    """True if the words of the answer stand in one of the texts, one after the other."""
    words = [" ".join(re.findall(r"\w+", text.casefold())) for text in (*texts, answer)]
    return any(f" {words[-1]} " in f" {text} " for text in words[:-1])


def _prompts(lab: AttackLab, *, backwards: bool = False) -> Iterator[tuple[Question, str, Any]]:
    """(row, point, row as asked) of each row that is selected."""
    attack, rows = lab.attack, lab.rows
    found = [*(q for own in lab.sets.values() for q in own), *_ODD_ROWS]
    answers = {**rows.answers, **{q.question: "I am not sure." for q in _ODD_ROWS}}
    rows = replace(rows, answers=answers)
    pairs = [(row, point) for row in found for point in attack.points()]
    for row, point in pairs[::-1] if backwards else pairs:
        if attack.selects(row, rows):
            yield row, point, attack.asked(row, point, rows)


@attack_check(
    "points",
    why="A variant that is missing, or has another's numbers, is a gap or an error in every curve "
    "and table; NaN is taken for a model that is destroyed.",
    fix="Yield each of `points()` once, in its order, when the model is to be evaluated; the "
    "harness evaluates.",
    first=True,
)
def points(lab: AttackLab) -> Outcome:
    """The model is evaluated at each declared point, in order, with finite losses."""
    expected = [variant(lab.name, point) for point in lab.attack.points()]
    found = lab.whole.evaluations
    if [*found] != expected:
        return fault(f"evaluated at {', '.join(found)}, declared are {', '.join(expected)}")
    for name, evaluation in found.items():
        for key, seen in evaluation.sets.items():
            original = [q for q in lab.plain("model").sets[key].questions if q in seen.questions]
            if original != [*seen.questions]:
                return fault(f"{name}: set {key} has other questions, or in another order")
            if not np.isfinite(seen.answer_loss).all():
                return fault(f"{name}: a loss of set {key} is not finite")
    return passed(", ".join(found))


@attack_check(
    "ready",
    why="Dropout in a model that is left in training mode makes every evaluation another one; "
    "gradients that nobody reads take as much memory as the weights.",
    fix="`model.eval()` before each `yield`; `torch.no_grad()`, or `tools.fine_tune`, which "
    "clears up after itself.",
)
def ready(lab: AttackLab) -> Outcome:
    """At each point the model is in evaluation mode, without gradients unless it is trained."""
    return fault(lab.whole.unready) if lab.whole.unready else passed("in evaluation mode")


@attack_check(
    "restored",
    why="The run goes on training with this model, and its next attack begins from it: what an "
    "attack leaves changes every number after it, and none before.",
    fix="The harness puts back weights, buffers, modes and requires_grad; remove hooks and put "
    "modules back in a `finally`, and change weights in place, not by another Parameter.",
)
def restored(lab: AttackLab) -> Outcome:
    """After the attack the model is what it was: weights bit for bit, modules, hooks, modes."""
    return fault(lab.whole.changed) if lab.whole.changed else passed("bit for bit")


@attack_check(
    "interrupted",
    why="An evaluation runs out of memory, a user stops a sweep, a run resumes: an attack whose "
    "clean-up stands behind its last point leaves the model as it is then.",
    fix="`try: yield …` and the clean-up in `finally:`; or a context manager around all yields.",
)
def interrupted(lab: AttackLab) -> Outcome:
    """The model is also restored where the attack is closed early, or an evaluation fails."""
    if not isinstance(lab.attack, WeightAttack):
        return not_applicable("it changes no model")
    if lab.whole.changed:
        return Outcome("not run", "'restored' failed")
    for what, fails in (("closed", False), ("ended by an error", True)):
        found = lab.run(until=1, fails=fails)
        if found.error is not None:
            return fault(f"{type(found.error).__name__} in place of an evaluation's own error")
        if found.changed:
            return fault(f"{what} at its first point: {found.changed}")
    return passed("closed at its first point, and ended by an error")


@attack_check(
    "repeatable",
    why="Runs, retain models and start models are attacked at other times and in other processes; "
    "a leaderboard verifies what it shows by doing it again.",
    fix="A `seed` among the settings, and a generator made from it: "
    "`torch.Generator().manual_seed(self.seed)`.",
)
def repeatable(lab: AttackLab) -> Outcome:
    """Again, and with other global random numbers, it gives the same evaluations."""
    again = lab.run(seed=1).evaluations
    for name, evaluation in lab.whole.evaluations.items():
        if difference := _difference(evaluation.sets, again[name].sets):
            return fault(f"{name}: {difference} when attacked again")
    return passed("the same each time")


def _difference(one: Any, other: Any, place: str = "") -> str:
    """Describe where two values differ; empty if nowhere."""
    if is_dataclass(one) and not isinstance(one, type):
        keys = [f.name for f in fields(one)]
        pairs = [(k, getattr(one, k), getattr(other, k, None)) for k in keys]
    elif isinstance(one, Mapping):
        pairs = [(key, own, other.get(key)) for key, own in one.items()]
    elif isinstance(one, np.ndarray):
        numbers = one.dtype.kind == "f"
        return "" if np.array_equal(one, other, equal_nan=numbers) else f"another {place}"
    else:
        return "" if one == other else f"another {place}"
    found = (_difference(own, its, f"{place}.{key}" if place else key) for key, own, its in pairs)
    return next(filter(None, found), "")


@attack_check(
    "global-numbers",
    why="The training that goes on behind an attack draws from the global generators: one that "
    "seeds or uses them changes the run that it is to measure.",
    fix="`torch.Generator()`, `random.Random()` and `numpy.random.default_rng()` of your own; "
    "`torch.random.fork_rng()` around libraries that draw.",
)
def global_numbers(lab: AttackLab) -> Outcome:
    """The global generators of random numbers are neither used nor seeded."""
    drawn = lab.whole.drawn
    return fault(f"uses or seeds {' and '.join(drawn)}") if drawn else passed("untouched")


@attack_check(
    "start-model",
    why="The start model is shared: methods take it as their reference, and other attacks compare "
    "with it.",
    fix="Copy its tensors before changing them: `tools.start_model()` is not yours.",
)
def start_model(lab: AttackLab) -> Outcome:
    """The start model is left as it is."""
    changed = lab.whole.start_changed
    return fault(f"of the start model: {changed}") if changed else passed("untouched")


@attack_check(
    "null",
    why="What an attack gives back is read against the retain model under the same attack; one "
    "that carries weights from model to model gives that model the other's knowledge.",
    fix="Keep nothing between models; compute everything in `change` from the model that it gets.",
)
def null(lab: AttackLab) -> Outcome:
    """The retain model under the attack has numbers of its own, whose change is the null."""
    last = [*lab.whole.evaluations][-1]
    model, retain = lab.whole.evaluations[last], lab.run("retain").evaluations[last]
    for name, seen in retain.sets.items():
        if np.array_equal(seen.answer_loss, model.sets[name].answer_loss):
            return fault(f"{last}: the retain model has the losses of another model on set {name}")
    own = f"{_loss(lab.plain('model'), model):.3f} → {_loss(model, model):.3f}"
    its = f"{_loss(lab.plain('retain'), retain):.3f} → {_loss(retain, retain):.3f}"
    return passed(f"loss {own} nats; of a model that never saw the forget rows {its}")


def _loss(found: Evaluation, under: Evaluation) -> float:
    """Mean loss over the forget questions that are evaluated under the attack, or another set's."""
    name = "forget" if "forget" in under.sets else next(iter(under.sets))
    seen = under.sets[name]
    own = zip(found.sets[name].questions, found.sets[name].answer_loss.tolist(), strict=True)
    return float(np.mean([loss for question, loss in own if question in seen.questions]))


ATTACK_CHECKS: tuple[Check, ...] = (
    names,
    settings,
    value,
    content,
    points,
    answers,
    pure,
    given_away,
    ready,
    restored,
    interrupted,
    repeatable,
    global_numbers,
    start_model,
    null,
)
