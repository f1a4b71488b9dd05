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
_LENGTH, _ANSWER, _STEPS, _ROWS = 200, 6, 15, 4
_UNSURE = "I am not sure."


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
        name: tuple(replace(q, max_new_tokens=_ANSWER) for q in rows_of[:_ROWS])
        for name, rows_of in benchmark.splits[0.5].sets.items()
        if data.set_roles[name] != "holdout"
    }
    profile = get_profile("tofu", max_length=_LENGTH)
    evaluator = Evaluator(sets, tokenizer, template, profile, pad, roles=data.set_roles)
    tuner = FineTuner(Encoder(tokenizer, template, _LENGTH), pad)
    models: dict[Target, Any] = {}
    knowledge: dict[Target, tuple[Question, ...]] = {
        "start": (*rows.forget, *rows.retain),
        "retain": (*rows.retain,),
    }
    for name, known in knowledge.items():
        models[name] = build_model(_SHAPE, tokenizer, seed=0).eval()
        for _ in tuner(
            models[name], known, steps=_STEPS, learning_rate=1e-2, batch_size=len(known)
        ):
            pass
    models["model"] = copy.deepcopy(models["start"])
    perturb(models["model"], 0.1)
    plain: dict[Target, Evaluation] = {name: evaluator(model) for name, model in models.items()}
    return _Models(evaluator, rows, tuner, models, plain)


@dataclass
class _Run:
    """One model under the attack, up to a point or to its end."""

    evaluations: dict[str, Evaluation] = field(default_factory=dict[str, Evaluation])
    """By variant."""
    unready: str = ""
    """The first variant at which a module is in training mode."""
    changed: str = ""
    """Name what changed in the model or the start model; empty if nothing did."""
    draws: bool = False
    """True if it used or seeded torch's global generator."""


class TriedAttack:
    """An attack with models, rows and tools to run it on."""

    def __init__(self, attack: Attack, name: str) -> None:
        self.attack, self.name = attack, name

    @property
    def plain(self) -> Evaluation:
        """The evaluation of the model without the attack."""
        return _prepared().plain["model"]

    @cached_property
    def whole(self) -> _Run:
        """The model under the whole attack."""
        return self.run()

    def run(self, of: Target = "model", *, closed: bool = False, seed: int = 0) -> _Run:
        """Attack a copy of a model.

        closed  at the first point, as where an evaluation fails
        seed    of the global generator of random numbers

        Raises: whatever the attack raises.
        """
        lab, run = _prepared(), _Run()
        model, start = copy.deepcopy(lab.models[of]), copy.deepcopy(lab.models["start"])
        tools = Tools(lab.rows, lab.tuner, lambda: start)
        before = _state(model), _state(start)
        # Its own, because the shared one remembers the rows as an attack of this name asks them.
        evaluator = copy.copy(lab.evaluator)
        evaluator.derived = {}
        attacked: Any = evaluations_under(
            self.name, self.attack, model, evaluator, tools, lab.plain[of]
        )
        with torch.random.fork_rng(devices=[]), closing(attacked) as evaluations:
            torch.manual_seed(seed)
            random_state = torch.get_rng_state()
            for name, evaluation in evaluations:
                run.evaluations[name] = evaluation
                if any(module.training for module in model.modules()):
                    run.unready = run.unready or name
                if closed:
                    break
            evaluations.close()
            run.draws = not torch.equal(random_state, torch.get_rng_state())
        after = _state(model), _state(start)
        for subject, old, new in zip(("", "of the start model: "), before, after, strict=True):
            names = (name for name in old | new if old.get(name) != new.get(name))
            run.changed = run.changed or subject * bool(name := next(names, "")) + name
        return run


def _state(model: Any) -> dict[str, Any]:
    """The parts of a model that are restored: weights and buffers bit for bit, modules, hooks."""
    state: dict[str, Any] = {}
    for name, tensor in model.state_dict().items():
        state[f"values of {name!r}"] = tensor.flatten().view(torch.uint8).numpy().tobytes()
    for name, module in model.named_modules():
        values = vars(module)
        state[f"module {name!r}"] = module, values.get("forward")
        hooks = {k: [*v] for k, v in values.items() if k.endswith("_hooks") and isinstance(v, dict)}
        state[f"hooks of {name!r}"] = hooks
    return state


@attack_check(first=True)
def restored(tried: TriedAttack) -> Outcome:
    """Afterwards, also where it is interrupted, both models are what they were, bit for bit.

    The run goes on training with this model, its next attack begins from it, and the start model is
    shared; an evaluation runs out of memory, and a user stops a sweep.

    The harness puts back weights, buffers, modes and requires_grad; remove hooks and put modules
    back in a `finally` around the yields, change weights in place, and copy the start model's; call
    `model.eval()` before each yield.
    """
    if tried.whole.unready:
        return fault(f"{tried.whole.unready}: a module is in training mode")
    if tried.whole.changed:
        return fault(tried.whole.changed)
    if isinstance(tried.attack, WeightAttack) and (changed := tried.run(closed=True).changed):
        return fault(f"closed at its first point: {changed}")
    return passed("bit for bit, also where it is interrupted")


@attack_check()
def points(tried: TriedAttack) -> Outcome:
    """Points that are said to be steps are increasing whole numbers of a training.

    Steps have a curve, an area under it and a number of steps to half. Between depths or prompts
    such numbers mean nothing.

    `points_are = "steps"` for an attack that trains and yields numbers of optimiser steps; leave it
    out, or `points_are = "kinds"`, for codes, depths, prompts and anything else.
    """
    kind, names = type(tried.attack), tried.attack.points()
    if kind.points_are not in (None, *get_args(PointsAre)):
        return fault(f"points_are is {kind.points_are!r}; it must be steps or kinds")
    if kind.points_are == "steps":
        if not issubclass(kind, WeightAttack):
            return fault("points_are is steps, and only a WeightAttack trains")
        steps = [int(name) if name.isdecimal() else -1 for name in names]
        if steps != sorted(set(steps)) or -1 in steps:
            return fault(f"points_are is steps, and its points are {', '.join(map(repr, names))}")
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
    attack, evaluator, prompts = tried.attack, _prepared().evaluator, 0
    sets = (items for n, items in evaluator.sets.items() if evaluator.roles[n] in attack.roles)
    asked = [item.question for items in sets for item in items]
    # With answers that are nobody's.
    rows = replace(_prepared().rows, answers=dict.fromkeys((q.question for q in asked), _UNSURE))
    unchanged = set(attack.points()) if isinstance(attack, PromptAttack) else set[str]()
    for row in (row for row in asked if attack.selects(row, rows)):
        for point in attack.points():
            made, name = attack.asked(row, point, rows), f"{row.opening!r} at point {point!r}"
            prompts += 1
            if made != row:
                unchanged.discard(point)
            for kept in ("answer", "paraphrased_answer", "perturbed_answers", "score"):
                if getattr(made, kept) != getattr(row, kept):
                    return fault(f"{kept} of {name} is {getattr(made, kept)!r}")
            shown = (made.system or "", *chain(*made.examples), made.question, made.prefix)
            if any(f" {_words(row.answer)} " in f" {_words(text)} " for text in shown):
                return fault(f"the prompt of {name} has its answer in it")
    if prompts and unchanged:
        point = min(unchanged)
        return fault(f"at point {point!r} no prompt differs from the row's, so nothing can change")
    return passed(f"{prompts} prompts") if prompts else fault("it selects no ordinary row")


def _words(text: str) -> str:
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
    attack, equal = tried.attack, type(tried.attack).model_validate(dict(tried.attack))
    if (content := attack.content()) != (other := equal.content()):
        return fault(f"content() is {content!r}, and {other!r} of an equal attack")
    again = tried.run(seed=1).evaluations
    for name, evaluation in tried.whole.evaluations.items():
        for key, seen in evaluation.sets.items():
            if _numbers(seen) != _numbers(again[name].sets[key]):
                return fault(f"other values of {name} on set {key} when attacked again")
    return passed("the same")


def _numbers(seen: SetEvaluation) -> tuple[Any, ...]:
    return seen.answer_loss.tolist(), seen.generated, seen.samples and seen.samples.texts


@attack_check()
def null(tried: TriedAttack) -> Outcome:
    """The retain model under the attack has numbers of its own, whose change is the null.

    What an attack gives back is read against the retain model under the same attack; one that
    carries weights from model to model gives that model the other's knowledge.

    Keep nothing between models; compute everything in `change` from the model that it gets.
    """
    last = [*tried.whole.evaluations][-1]
    model, retain = tried.whole.evaluations[last], tried.run("retain").evaluations[last]
    for name, seen in retain.sets.items():
        if np.array_equal(seen.answer_loss, model.sets[name].answer_loss):
            return fault(f"{last}: the retain model has the losses of another model on set {name}")
    return passed("the retain model has losses of its own")
