"""The checks of an attack: its declarations, the prompts that it makes, and models under it.

Three small models have learned some rows: the start model all of them, the model under attack has
moved a little away from it, and the retain model never saw the forget rows.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, Literal, get_args

import numpy as np
import torch

from unlearnbench.api.attack import Attack, AttackRows, WeightAttack, variant
from unlearnbench.api.benchmark import Benchmark, Question
from unlearnbench.api.metric import Role
from unlearnbench.api.observations import Evaluation
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.config.profiles import get_profile
from unlearnbench.config.schema import Architecture
from unlearnbench.data.encoding import Encoder, resolve_template
from unlearnbench.data.loading import load_benchmark
from unlearnbench.data.other_rows import other_rows
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.under_attack import attack_rows, evaluations_under
from unlearnbench.models.loading import pad_id
from unlearnbench.models.tiny import build_model, build_tokenizer
from unlearnbench.testing import declarations
from unlearnbench.testing.check import Outcome, check, fault, passed, unless
from unlearnbench.testing.tiny_lab import perturb
from unlearnbench.training.fine_tuning import FineTuner

Target = Literal["model", "start", "retain"]

attack_check = partial(check, kind="attacks")
settings = attack_check(alone=True)(declarations.settings)

_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
_SHAPE = Architecture(
    vocabulary=400, hidden_size=32, layers=2, heads=2, intermediate_size=64, context=1024
)
_LENGTH, _ANSWER, _STEPS, _ROWS = 200, 6, 15, 4
_POINT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_KEPT = ("answer", "paraphrased_answer", "perturbed_answers", "score", "place")
"""Fields of a row that an attack leaves as they are."""
_UNSURE = "I am not sure."
_ODD_ROWS = (
    Question("The sea at Lima is", " cold in June.", format="text"),
    Question("", "The sea at Lima is cold.", format="text"),
    Question("Where is it?", "Here.", prefix="It is", examples=(("Who?", "I."),)),
)
"""Rows of benchmarks of other kinds, which an attack selects or not."""


@dataclass(frozen=True)
class _Models:
    """The models that all attacks are tried on; made once in a process, and only copied."""

    evaluator: Evaluator
    rows: AttackRows
    tuner: FineTuner
    models: Mapping[Target, Any]
    plain: Mapping[Target, Evaluation]


@cache
def _prepared() -> _Models:
    data = Synthetic(authors=4, questions_per_author=3, pretraining_authors=0)
    benchmark = load_benchmark(data, (0.5,))
    rows = attack_rows(benchmark, 0.5)
    tokenizer = build_tokenizer((f"{q.question} {q.answer}" for q in benchmark.full), 400)
    tokenizer.chat_template = _TEMPLATE
    template, pad = resolve_template("chat", tokenizer), pad_id(tokenizer)
    # The holdout set is only scored, and no attack has its role.
    sets = {
        name: tuple(replace(q, max_new_tokens=_ANSWER) for q in own[:_ROWS])
        for name, own in benchmark.splits[0.5].sets.items()
        if data.roles[name] != "holdout"
    }
    profile = get_profile("tofu", max_length=_LENGTH)
    evaluator = Evaluator(sets, tokenizer, template, profile, pad, roles=data.roles)
    tuner = FineTuner(Encoder(tokenizer, template, _LENGTH), pad)

    def learned(known: tuple[Question, ...]) -> Any:
        model: Any = build_model(_SHAPE, tokenizer, seed=0).eval()
        for _ in tuner(model, known, steps=_STEPS, learning_rate=1e-2, batch_size=len(known)):
            pass
        return model

    start = learned((*rows.forget, *rows.retain))
    models: dict[Target, Any] = {"model": copy.deepcopy(start), "start": start}
    perturb(models["model"], 0.1)
    models["retain"] = learned(rows.retain)
    plain: dict[Target, Evaluation] = {name: evaluator(model) for name, model in models.items()}
    return _Models(evaluator, rows, tuner, models, plain)


@dataclass
class _Tools:
    """The tools of attacks, which note that a model is trained."""

    rows: AttackRows
    start: Any
    """A copy of the start model."""
    trained: bool = False

    def fine_tune(self, model: Any, rows: Any, **how: Any) -> Generator[int, None, None]:
        """Train the model, see `api.attack.FineTune`."""
        self.trained = True
        yield from _prepared().tuner(model, rows, **how)

    def start_model(self) -> Any:
        """The start model."""
        return self.start

    def other_rows(self, source: Benchmark | str) -> tuple[Question, ...]:
        """The rows of another benchmark or of a file."""
        return other_rows(source)


@dataclass
class _Run:
    """One model under the attack, up to a point or to its end."""

    evaluations: dict[str, Evaluation] = field(default_factory=dict[str, Evaluation])
    """By variant."""
    unready: str = ""
    """The first variant at which the model is not ready to be evaluated, and why."""
    changed: str = ""
    """Name what changed in the model or the start model; empty if nothing did."""
    drawn: str = ""
    """A global generator of random numbers that was used or seeded."""


class _EvaluationError(Exception):
    """The error of an evaluation that fails."""


class TriedAttack:
    """An attack with models, rows and tools to run it on."""

    def __init__(self, attack: Attack, name: str) -> None:
        self.attack, self.name = attack, name

    def prompts(self, *, backwards: bool = False) -> Iterator[tuple[Question, str, Any]]:
        """(row, point, row as asked) of each row that is selected."""
        evaluator, attack = _prepared().evaluator, self.attack
        sets = {n: own for n, own in evaluator.sets.items() if evaluator.roles[n] in attack.roles}
        asked = [*(item.question for items in sets.values() for item in items), *_ODD_ROWS]
        # With answers that are nobody's.
        answers = dict.fromkeys((q.question for q in asked), _UNSURE)
        rows = replace(_prepared().rows, answers=answers)
        pairs = [(row, point) for row in asked for point in attack.points()]
        for row, point in pairs[::-1] if backwards else pairs:
            if attack.selects(row, rows):
                yield row, point, attack.asked(row, point, rows)

    @cached_property
    def whole(self) -> _Run:
        """The model under the whole attack."""
        return self.run()

    def run(self, of: Target = "model", *, stop: str = "", seed: int = 0) -> _Run:
        """Attack a copy of a model.

        stop  at the first point: the attack is "closed", or "ended by an error" of the evaluation
        seed  of the global generators of random numbers

        Raises: whatever the attack raises, unless an evaluation fails.
        """
        made, found = _prepared(), _Run()
        model, start = copy.deepcopy(made.models[of]), copy.deepcopy(made.models["start"])
        tools, before = _Tools(made.rows, start), (_state(model), _state(start))
        # Of its own, because the shared one remembers the rows as an attack of this name asks them.
        evaluator = copy.copy(made.evaluator)
        evaluator.derived = {}
        attacked: Any = evaluations_under(
            self.name, self.attack, model, evaluator, tools, made.plain[of]
        )
        with seeded(seed) as drawn:
            try:
                with closing(attacked) as evaluations:
                    for name, evaluation in evaluations:
                        found.evaluations[name] = evaluation
                        reason = _unready(model, trained=tools.trained)
                        found.unready = found.unready or (reason and f"{name}: {reason}")
                        if stop == "ended by an error":
                            attacked.throw(_EvaluationError())
                        if stop:
                            break
            except _EvaluationError:
                pass
            found.drawn = drawn()
        found.changed = _difference(before[0], _state(model))
        if other := _difference(before[1], _state(start)):
            found.changed = found.changed or f"of the start model: {other}"
        return found


def _unready(model: Any, *, trained: bool) -> str:
    """The reason why a model is not ready to be evaluated; empty if it is.

    trained  gradients may be left, of the step that was taken
    """
    for name, module in model.named_modules():
        if module.training:
            return f"module {name!r} is in training mode"
    for name, parameter in model.named_parameters():
        if not trained and parameter.grad is not None:
            return f"weight {name!r} has a gradient"
    return ""


def _state(model: Any) -> dict[str, Any]:
    """State of a model that an attack restores: objects, hooks, modes, tensors bit for bit."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        own = vars(module)
        found[f"module {name!r}"] = module
        found[f"mode of {name!r}"] = module.training, own.get("forward")
        hooks = {k: [*v] for k, v in own.items() if k.endswith("_hooks") and isinstance(v, dict)}
        found[f"hooks of {name!r}"] = hooks
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        bits = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        found[f"weight or buffer {name!r}"] = id(tensor)
        found[f"values of {name!r}"] = tensor.dtype, tensor.shape, bits
        found[f"gradient of {name!r}"] = tensor.requires_grad, tensor.grad is None
    return found


@contextmanager
def seeded(seed: int) -> Generator[Callable[[], str], None, None]:
    """Seed the global generators inside; the yielded function names one that was used since."""

    def states() -> dict[str, Any]:
        numpy_state: Any = np.random.get_state()
        numbers = numpy_state[1].tobytes(), numpy_state[2:]
        torch_state = torch.get_rng_state().numpy().tobytes()
        return {"random": random.getstate(), "numpy.random": numbers, "torch": torch_state}

    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)  # the global one is what is watched
    torch.manual_seed(seed)
    then = states()
    try:
        yield lambda: _difference(then, states())
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def _difference(one: Any, other: Any, place: str = "") -> str:
    """The place where two values differ; empty if nowhere."""
    if is_dataclass(one) and not isinstance(one, type):
        keys = [f.name for f in fields(one)]
        pairs = [(k, getattr(one, k), getattr(other, k, None)) for k in keys]
    elif isinstance(one, Mapping):
        pairs = [(key, one.get(key), other.get(key)) for key in {**one, **other}]
    elif isinstance(one, np.ndarray):
        same = np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
        return "" if same else place
    else:
        return "" if one == other else place
    found = (_difference(own, its, f"{place}.{key}" if place else key) for key, own, its in pairs)
    return next(filter(None, found), "")


@attack_check(first=True)
def points(tried: TriedAttack) -> Outcome:
    """The model is evaluated at each declared point, in order, ready, with finite losses.

    A variant's name is a key in tables and a part of file names; one that is missing, or has
    another's numbers, is a gap or an error in every curve, and dropout makes each another one.

    `label` is text, `roles` are roles of sets, `points` gives distinct names of letters, digits,
    "_", "." and "-"; yield each once, in order, after `model.eval()` and without gradients.
    """
    return unless(_misplaced(tried), ", ".join(tried.whole.evaluations))


def _misplaced(tried: TriedAttack) -> Iterator[str]:
    attack, label = tried.attack, str(getattr(tried.attack, "label", ""))
    if not label.strip() or len(label.splitlines()) > 1:
        yield f"label is {label!r}: a line of text for people"
    if not attack.roles or attack.roles - {*get_args(Role)}:
        yield f"roles is {attack.roles!r}: a frozenset of {', '.join(get_args(Role))}"
        return
    names = attack.points()
    for i, point in enumerate(names if names != ("",) else ()):
        if not _POINT.fullmatch(point):
            yield f"point {point!r} is no part of a file name"
        if point.casefold() in map(str.casefold, names[:i]):
            yield f"point {point!r} is there twice, but for capitals"
    expected, found = [variant(tried.name, point) for point in names], tried.whole.evaluations
    if [*found] != expected:
        yield f"evaluated at {', '.join(found)}, declared are {', '.join(expected)}"
    for name, evaluation in found.items():
        for key, seen in evaluation.sets.items():
            if not np.isfinite(seen.answer_loss).all():
                yield f"{name}: a loss of set {key} is not finite"
    if tried.whole.unready:
        yield tried.whole.unready


@attack_check()
def answers(tried: TriedAttack) -> Outcome:
    """Rows keep their answers, are asked alike in any order, and no prompt has the answer in it.

    What is scored under an attack is compared with the plain evaluation, question by question and
    model by model; a prompt that has the answer in it measures reading, and no method can pass.

    `replace(row, question=…)`, or `examples`, `prefix`, `system`; draw with
    `random.Random(f"{self.seed} {row.question}")`; `rows.beside` leaves out what has the answer.
    """
    with seeded(1):
        first = [*tried.prompts()]
    with seeded(2) as drawn:
        again = [*tried.prompts(backwards=True)][::-1]
        used = drawn()
    if not first:
        return fault("it selects none of the ordinary rows")
    if [pair[:2] for pair in first] != [pair[:2] for pair in again]:
        return fault("selects() chooses other rows in another order")
    for (row, point, made), (*_, other) in zip(first, again, strict=True):
        where = f"{row.opening!r} at point {point!r}"
        changed = [name for name in _KEPT if getattr(made, name) != getattr(row, name)]
        if changed:
            return fault(f"{changed[0]} of {where} is {getattr(made, changed[0])!r}")
        if made != other:
            return fault(f"asked() differs for {where}: {made} {other}")
        shown = (*(text for pair in made.examples for text in pair), made.question)
        texts = (made.system or "", *shown, made.prefix)
        if _has(texts, row.answer) and not _has((row.question,), row.answer):
            return fault(f"the prompt of {where} has its answer in it")
    if used:
        return fault(f"draws from the global {used}")
    return passed(f"{len(first)} prompts, twice")


def _has(texts: tuple[str, ...], answer: str) -> bool:
    """True if the words of the answer stand in one of the texts, one after the other."""
    words = [" ".join(re.findall(r"\w+", text.casefold())) for text in (*texts, answer)]
    return any(f" {words[-1]} " in f" {text} " for text in words[:-1])


@attack_check()
def restored(tried: TriedAttack) -> Outcome:
    """Afterwards, also where it is interrupted, both models are what they were, bit for bit.

    The run goes on training with this model, its next attack begins from it, and the start model is
    shared; an evaluation runs out of memory, and a user stops a sweep.

    The harness puts back weights, buffers, modes and requires_grad; remove hooks and put modules
    back in a `finally` around the yields, change weights in place, and copy the start model's.
    """
    if tried.whole.changed:
        return fault(tried.whole.changed)
    for stop in ("closed", "ended by an error") if isinstance(tried.attack, WeightAttack) else ():
        try:
            changed = tried.run(stop=stop).changed
        except Exception as error:  # a plug-in may raise anything; it becomes a fault
            changed = f"{type(error).__name__} is raised: {error}"
        if changed:
            return fault(f"{stop} at its first point: {changed}")
    return passed("bit for bit, also where it is interrupted")


@attack_check()
def repeatable(tried: TriedAttack) -> Outcome:
    """Again, and with other global random numbers, it gives the same evaluations, and draws none.

    Runs, retain models and start models are attacked at other times and in other processes, and the
    training that goes on behind an attack draws from the global generators.

    A `seed` among the settings, and a generator made from it; `torch.random.fork_rng()` around
    libraries that draw; `content` hashes the bytes of the files that are read, and no clock.
    """
    if tried.whole.drawn:
        return fault(f"uses or seeds the global {tried.whole.drawn}")
    attack, equal = tried.attack, type(tried.attack).model_validate(dict(tried.attack))
    if (content := attack.content()) != (other := equal.content()):
        return fault(f"content() is {content!r}, and {other!r} of an equal attack")
    first, again = (
        {name: evaluation.sets for name, evaluation in run.evaluations.items()}
        for run in (tried.whole, tried.run(seed=1))
    )
    changed = _difference(first, again)
    return fault(f"another {changed} when attacked again") if changed else passed("the same")


@attack_check()
def null(tried: TriedAttack) -> Outcome:
    """The retain model under the attack has numbers of its own, whose change is the null.

    What an attack gives back is read against the retain model under the same attack; one that
    carries weights from model to model gives that model the other's knowledge.

    Keep nothing between models; compute everything in `change` from the model that it gets.
    """
    last, plain = [*tried.whole.evaluations][-1], _prepared().plain
    model, retain = tried.whole.evaluations[last], tried.run("retain").evaluations[last]
    for name, seen in retain.sets.items():
        if np.array_equal(seen.answer_loss, model.sets[name].answer_loss):
            return fault(f"{last}: the retain model has the losses of another model on set {name}")
    own = f"{_loss(plain['model'], model):.3f} → {_loss(model, model):.3f}"
    its = f"{_loss(plain['retain'], retain):.3f} → {_loss(retain, retain):.3f}"
    return passed(f"loss {own} nats; of a model that never saw the forget rows {its}")


def _loss(found: Evaluation, under: Evaluation) -> float:
    """Mean loss over the forget questions that are evaluated under the attack, or another set's."""
    name = "forget" if "forget" in under.sets else next(iter(under.sets))
    seen = under.sets[name]
    own = zip(found.sets[name].questions, found.sets[name].answer_loss.tolist(), strict=True)
    return float(np.mean([loss for question, loss in own if question in seen.questions]))
