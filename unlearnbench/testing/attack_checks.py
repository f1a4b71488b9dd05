"""The checks of an attack: its declarations, the prompts that it makes, and models under it.

Three small models have learned some rows: the start model all of them, the model under attack has
moved a little away from it, and the retain model never saw the forget rows.
"""

import copy
import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
import torch

from unlearnbench.api.attack import (
    Attack,
    AttackRows,
    PointsAre,
    PromptAttack,
    WeightAttack,
    has_steps,
)
from unlearnbench.api.benchmark import Question
from unlearnbench.api.observations import Evaluation, SetEvaluation
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.config.profiles import get_profile
from unlearnbench.config.schema import Architecture
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.models.chat_template import resolve_template
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.limits import pad_id
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.models.tiny import build_model, build_tokenizer
from unlearnbench.runs.attack_model import Tools
from unlearnbench.runs.under_attack import attack_rows, evaluations_under
from unlearnbench.testing import declarations
from unlearnbench.testing.check import Outcome, check, fault, passed
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
_LENGTH = 200
"""Most tokens of prompt and answer."""
_ANSWER_TOKENS = 6
"""Most tokens of an answer that is generated."""
_STEPS = 15
"""Steps in which a model learns its rows."""
_ROWS = 4
"""Rows of each evaluation set."""
_NOBODYS_ANSWER = "I am not sure."
"""An answer that no row has."""


@dataclass(frozen=True)
class _Lab:
    """The models and rows that all attacks are tried on. Models are copied before an attack."""

    evaluator: Evaluator
    rows: AttackRows
    tuner: FineTuner
    models: Mapping[Target, Any]
    plain: Mapping[Target, Evaluation]
    """Evaluations without an attack."""


@cache
def _lab() -> _Lab:
    """Make the models and rows, once in a process."""
    data = Synthetic(authors=4, questions_per_author=2, pretraining_authors=0)
    benchmark = load_benchmark(data, (0.5,))
    rows = attack_rows(benchmark, 0.5)
    tokenizer = build_tokenizer((f"{q.question} {q.answer}" for q in benchmark.full), 400)
    tokenizer.chat_template = _TEMPLATE
    template = resolve_template("chat", tokenizer)
    pad = pad_id(tokenizer)
    sets: dict[str, tuple[Question, ...]] = {}
    for name, questions in benchmark.splits[0.5].sets.items():
        # The holdout set is only scored, and no attack has its role.
        if data.set_roles[name] != "holdout":
            sets[name] = tuple(
                replace(question, max_new_tokens=_ANSWER_TOKENS) for question in questions[:_ROWS]
            )
    profile = get_profile("tofu", max_length=_LENGTH)
    evaluator = Evaluator(sets, tokenizer, template, profile, pad, roles=data.set_roles)
    tuner = FineTuner(Encoder(tokenizer, template, _LENGTH), pad)

    models: dict[Target, Any] = {}
    rows_of_model: dict[Target, tuple[Question, ...]] = {
        "start": (*rows.forget, *rows.retain),
        "retain": (*rows.retain,),
    }
    for name, learned in rows_of_model.items():
        models[name] = build_model(_SHAPE, tokenizer, seed=0).eval()
        for _ in tuner(
            models[name], learned, steps=_STEPS, learning_rate=1e-2, batch_size=len(learned)
        ):
            pass
    models["model"] = copy.deepcopy(models["start"])
    perturb(models["model"], 0.1)
    plain: dict[Target, Evaluation] = {name: evaluator(model) for name, model in models.items()}
    return _Lab(evaluator, rows, tuner, models, plain)


@dataclass
class _Attacked:
    """What happened to one model under the attack, up to a point or to its end."""

    evaluations: dict[str, Evaluation] = field(default_factory=dict[str, Evaluation])
    """By variant."""
    in_training_mode: str = ""
    """The first variant at which a module is in training mode; empty if there is none."""
    changed: str = ""
    """What has changed in the model or the start model; empty if nothing has."""
    draws: bool = False
    """Whether the attack used or seeded torch's global generator."""


class TriedAttack:
    """An attack with models, rows and tools to run it on."""

    def __init__(self, attack: Attack, name: str) -> None:
        self.attack, self.name = attack, name

    @property
    def plain(self) -> Evaluation:
        """The evaluation of the model without the attack."""
        return _lab().plain["model"]

    @cached_property
    def whole(self) -> _Attacked:
        """The model under the whole attack."""
        return self.run()

    def run(self, target: Target = "model", *, closed: bool = False, seed: int = 0) -> _Attacked:
        """Attack a copy of a model. Whatever the attack raises goes through.

        Args:
            target: The model that is attacked.
            closed: Whether the attack is closed at its first point, as if an evaluation had failed.
            seed: Of the global generator of random numbers.
        """
        lab = _lab()
        attacked = _Attacked()
        model = copy.deepcopy(lab.models[target])
        start = copy.deepcopy(lab.models["start"])
        model_before = _state(model)
        start_before = _state(start)
        tools = Tools(lab.rows, lab.tuner, lambda: start)
        # A copy, because the evaluator remembers the rows as an attack of this name asks them.
        evaluator = copy.copy(lab.evaluator)
        evaluator.derived = {}
        generator: Any = evaluations_under(
            self.name, self.attack, model, evaluator, tools, lab.plain[target]
        )
        with torch.random.fork_rng(devices=[]), closing(generator) as evaluations:
            torch.manual_seed(seed)
            random_state = torch.get_rng_state()
            for variant, evaluation in evaluations:
                attacked.evaluations[variant] = evaluation
                is_training = any(module.training for module in model.modules())
                if is_training and not attacked.in_training_mode:
                    attacked.in_training_mode = variant
                if closed:
                    break
            # The attack cleans up before its draws are looked at.
            evaluations.close()
            attacked.draws = not torch.equal(random_state, torch.get_rng_state())

        change_of_model = _first_change(model_before, _state(model))
        change_of_start = _first_change(start_before, _state(start))
        if change_of_model:
            attacked.changed = change_of_model
        elif change_of_start:
            attacked.changed = f"of the start model: {change_of_start}"
        return attacked


def _state(model: Any) -> dict[str, Any]:
    """Return what is restored in a model: weights and buffers bit for bit, modules, and hooks."""
    state: dict[str, Any] = {}
    for name, tensor in model.state_dict().items():
        state[f"values of {name!r}"] = tensor.flatten().view(torch.uint8).numpy().tobytes()
    for name, module in model.named_modules():
        attributes = vars(module)
        # An attack may put another `forward` into a module.
        state[f"module {name!r}"] = module, attributes.get("forward")
        state[f"hooks of {name!r}"] = {
            key: list(hooks)
            for key, hooks in attributes.items()
            if key.endswith("_hooks") and isinstance(hooks, dict)
        }
    return state


def _first_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the first key whose value differs; empty if all values are the same."""
    for key in {**before, **after}:
        if before.get(key) != after.get(key):
            return key
    return ""


@attack_check(first=True)
def restored(tried: TriedAttack) -> Outcome:
    """Afterwards, also where it is interrupted, both models are what they were, bit for bit.

    The run goes on training with this model, its next attack begins from it, and the start model is
    shared; an evaluation runs out of memory, and a user stops a sweep.

    The harness puts back weights, buffers, modes and requires_grad; remove hooks and put modules
    back in a `finally` around the yields, change weights in place, and copy the start model's; call
    `model.eval()` before each yield.
    """
    if tried.whole.in_training_mode:
        return fault(f"{tried.whole.in_training_mode}: a module is in training mode")
    if tried.whole.changed:
        return fault(tried.whole.changed)
    # Only an attack on weights has something to restore if it is interrupted.
    if isinstance(tried.attack, WeightAttack):
        interrupted = tried.run(closed=True)
        if interrupted.changed:
            return fault(f"closed at its first point: {interrupted.changed}")
    return passed("bit for bit, also where it is interrupted")


@attack_check()
def points(tried: TriedAttack) -> Outcome:
    """Points that are said to be steps are increasing whole numbers of a training.

    Steps have a curve, an area under it and a number of steps to half. Between depths or prompts
    such numbers mean nothing.

    `points_are = "steps"` for an attack that trains and yields numbers of optimiser steps; leave it
    out, or `points_are = "kinds"`, for codes, depths, prompts and anything else.
    """
    kind = type(tried.attack)
    names = tried.attack.points()
    if kind.points_are not in (None, *get_args(PointsAre)):
        return fault(f"points_are is {kind.points_are!r}; it must be steps or kinds")
    if kind.points_are == "steps":
        if not issubclass(kind, WeightAttack):
            return fault("points_are is steps, and only a WeightAttack trains")
        for attacker in tried.attack.attackers().values():
            of_attacker = attacker.points()
            are_numbers = all(name.isdecimal() for name in of_attacker)
            steps = [int(name) for name in of_attacker] if are_numbers else []
            if not are_numbers or steps != sorted(set(steps)):
                listed = ", ".join(map(repr, of_attacker))
                return fault(f"points_are is steps, and its points are {listed}")
    return passed(f"{'steps' if has_steps(kind) else 'kinds'}: {', '.join(names) or 'one'}")


@attack_check()
def answers(tried: TriedAttack) -> Outcome:
    """Rows keep their answers, no prompt has the answer in it, and prompts differ from the rows.

    Where no prompt differs, nothing can come back, and Lasting would be 1 by construction. What is
    scored under an attack is compared with the plain evaluation, question by question and
    model by model; a prompt that has the answer in it measures reading, and no method can pass.

    `replace(row, question=…)`, or `examples`, `prefix`, `system`; `rows.beside` leaves out what has
    the answer.
    """
    attack = tried.attack
    evaluator = _lab().evaluator
    rows_of_roles: list[Question] = []
    for name, items in evaluator.sets.items():
        if evaluator.roles[name] in attack.roles:
            rows_of_roles.extend(item.question for item in items)
    # An attack may put the model's own answers into prompts. Here they are no row's answers.
    answers_of_model = dict.fromkeys((row.question for row in rows_of_roles), _NOBODYS_ANSWER)
    rows = replace(_lab().rows, answers=answers_of_model)

    prompt_count = 0
    unchanged_points = set(attack.points()) if isinstance(attack, PromptAttack) else set[str]()
    for row in rows_of_roles:
        if not attack.selects(row, rows):
            continue
        for point in attack.points():
            asked = attack.asked(row, point, rows)
            prompt_count += 1
            if asked != row:
                unchanged_points.discard(point)
            problem = _problem_of_prompt(row, asked, f"{row.opening!r} at point {point!r}")
            if problem:
                return fault(problem)
    if not prompt_count:
        return fault("it selects no ordinary row")
    if unchanged_points:
        point = min(unchanged_points)
        return fault(f"at point {point!r} no prompt differs from the row's, so nothing can change")
    return passed(f"{prompt_count} prompts")


def _problem_of_prompt(row: Question, asked: Question, name: str) -> str:
    """Say what is wrong with a prompt; empty if nothing is.

    Args:
        row: As it is in the evaluation set.
        asked: As the attack asks it.
        name: Of the prompt, for the message.
    """
    for kept in ("answer", "paraphrased_answer", "perturbed_answers", "score"):
        if getattr(asked, kept) != getattr(row, kept):
            return f"{kept} of {name} is {getattr(asked, kept)!r}"
    texts = (asked.system or "", *chain(*asked.examples), asked.question, asked.prefix)
    # Spaces around the words, so that an answer is not found within a longer word.
    if any(f" {_words(row.answer)} " in f" {_words(text)} " for text in texts):
        return f"the prompt of {name} has its answer in it"
    return ""


def _words(text: str) -> str:
    """Return the words of a text in lower case, with one space between them."""
    return " ".join(re.findall(r"\w+", text.casefold()))


@attack_check()
def repeatable(tried: TriedAttack) -> Outcome:
    """Again, and with another global seed, it gives the same evaluations, and draws no number.

    Runs, retain models and start models are attacked at other times and in other processes, and the
    training that goes on behind an attack draws from the global generator.

    A `seed` among the settings, and a generator made from it; `torch.random.fork_rng()` around
    libraries that draw; `content` hashes the bytes of the files that are read, and no clock.
    """
    if tried.whole.draws:
        return fault("uses or seeds torch's global generator")
    attack = tried.attack
    equal_attack = type(attack).model_validate(dict(attack))
    content = attack.content()
    other_content = equal_attack.content()
    if content != other_content:
        return fault(f"content() is {content!r}, and {other_content!r} of an equal attack")
    again = tried.run(seed=1).evaluations
    for variant, evaluation in tried.whole.evaluations.items():
        for name, observations in evaluation.sets.items():
            if _outputs(observations) != _outputs(again[variant].sets[name]):
                return fault(f"other values of {variant} on set {name} when attacked again")
    return passed("the same")


def _outputs(observations: SetEvaluation) -> tuple[Any, ...]:
    """Return the losses, greedy answers and sampled answers of a set."""
    samples = observations.samples
    sampled = None if samples is None else samples.texts
    return observations.answer_loss.tolist(), observations.generated, sampled


@attack_check()
def null(tried: TriedAttack) -> Outcome:
    """The retain model under the attack has numbers of its own, whose change is the null.

    What an attack gives back is read against the retain model under the same attack; one that
    carries weights from model to model gives that model the other's knowledge.

    Keep nothing between models; compute everything in `change` from the model that it gets.
    """
    last = list(tried.whole.evaluations)[-1]
    model = tried.whole.evaluations[last]
    retain = tried.run("retain").evaluations[last]
    for name, observations in retain.sets.items():
        if np.array_equal(observations.answer_loss, model.sets[name].answer_loss):
            return fault(f"{last}: the retain model has the losses of another model on set {name}")
    return passed("the retain model has losses of its own")
