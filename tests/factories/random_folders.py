"""Random folders of sweeps, as the product would have written them, each from a whole number.

`draw(number)` decides what a folder has: a configuration and a set of features, such as `tune`,
`attack with points` or `a run failed`. `write(drawn, root)` makes the folder: a real configuration,
a real plan with real ids, and records of the recorder. Drawing takes no time, so the combinations
of features can be counted over thousands of folders.

    folder = write(draw(17), tmp_path).folder

Features are switched on at random and combine, as far as a configuration may have both. A new
feature is switched on by the folder's number (see `EVERY_OWN`). A further draw of random numbers
would change all that is drawn after it, and so most folders.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from tests.factories.recorder import DATA, ComputedBy, Recorder, RunEnd, World
from tests.factories.rows import RowPlan, rows_of
from unlearnbench.analysis.results import Results
from unlearnbench.api.benchmark import SplitKey
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.config.loader import load_config
from unlearnbench.config.plan import Plan, make_plan
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.metrics.probability import Probability
from unlearnbench.results import finalize, rules
from unlearnbench.results.stored_table import write_table
from unlearnbench.results.sweep_folder import claim_folder
from unlearnbench.sweep.follow_up_runs import FollowUpRuns

MODELS: tuple[str, ...] = ("tiny", "small")
"""Names of the models."""
METHODS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"method": "npo"},
    "two betas": {"method": "npo", "beta": [0.1, 0.5]},
    "other entry": {"method": "npo", "beta": 0.5},
    "no field": {"method": "ce-u"},
    "retain term": {"method": "npo", "retain": {"term": "nll"}},
    "weighted retain term": {"method": "simnpo", "retain": {"term": "kl", "weight": 2.0}},
    # Its own field has the name of the added term's weight.
    "own retain weight": {
        "method": "gradient-difference",
        "retain_weight": [0.5, 8.0],
        "retain": {"term": "kl"},
    },
    "own retain weight alone": {"method": "kl-minimization", "retain_weight": [0.5, 2.0]},
    "modifier": {"method": "ce-u", "modifiers": [{"sam": {"rho": 0.05}}]},
    "two modifiers": {
        "method": "npo",
        "modifiers": [{"sam": {"rho": [0.01, 0.05]}}, {"pcgrad": {}}],
        "retain": {"term": "nll"},
    },
    "at inference": {"method": "eco"},
    "two terms": {"method": "idk", "retain": [{"term": "nll"}, {"term": "kl"}]},
}
"""Entries of `methods` by the feature that they are."""
ATTACKS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "attack that trains": ("relearning", {"steps": [1, 4]}),
    "attack with points": ("quantization", {"codes": ["nf4", "int8-weights"]}),
    "attack with depths": ("logit-lens", {"depths": [25, 100]}),
    "attack with texts named by digits": (
        "template",
        {"texts": {"1": "Please: {question}", "2": "Once more: {question}"}},
    ),
    "attack that leaves rows out": ("paraphrase", {}),
    "attack by examples": ("in-context", {"of": "subject", "k": 1}),
    "attack by sampling": ("sampling", {"samples": 4}),
    "attack in two turns": ("second-turn", {}),
}
"""Attacks and their settings by the feature that they are."""
SAMPLED = {
    "leak-at-k": {"k": 2, "threshold": 0.5},
    "sampling-bounds": {"k": 4},
    "expected-best": {"k": 3},
}
"""Metrics of sampled answers whose settings fit the number of samples."""
OLDER_COLUMNS = ("model_utility", "rouge_forget", "extraction_strength_forget", "forgotten")
"""Columns that an older version computed in another way, where a folder has them."""
NEWER_COLUMNS = ("kept", "private", "repetition_forget", "exact_memorization_forget")
"""Columns of metrics that an older version did not have."""


EVERY_OWN = 8
"""One folder in so many has a user's own rows. Which ones depends on their numbers, so that all
others stay as they were before there were such folders."""
SEARCHING = "attack that searches"
"""Feature of folders in which an attack that trains tries several attackers."""
EVERY_SEARCH, PLACE_OF_SEARCH = 4, 3
"""One folder in four has it, unless it has no attack: those whose numbers leave a rest of 3. None
of them has a user's own rows, so one in four of those with such rows has it, too."""
_SOURCES = {"synthetic", "muse", "muse-sustainability", "wmdp", "knowundo", "questions"}
_WITH_CHOICE = {"select", "tune", "random search and select"}
_OF_CHOICES = {
    *("hypervolume", "1 seeds of the choice", "2 seeds of the choice", "one reporting seed"),
    *("several reporting seeds", "reporting runs are missing"),
}
_EXCLUSIVE: tuple[set[str], ...] = (
    _SOURCES,
    {"grid", *_WITH_CHOICE},
    {"no attack", "1 attacks", "2 attacks", "3 attacks"},
    {"one seed", "2 or more seeds", "3 or more seeds"},
    {"1 seeds of the choice", "2 seeds of the choice"},
    {"one reporting seed", "several reporting seeds"},
)
"""Features of which a folder has at most one."""
_NEVER_TOGETHER: tuple[tuple[set[str], set[str]], ...] = (
    (
        {"one seed", "2 or more seeds", "3 or more seeds", "several rates"},
        _WITH_CHOICE | _OF_CHOICES | {"two entries of one label"},
    ),
    ({"grid"}, _OF_CHOICES | {"two entries of one label"}),
    ({"select"}, {"two entries of one label"}),
    (
        {"requests in sequence"},
        {"at inference", "several rates", "two entries of one label"} | _WITH_CHOICE | _OF_CHOICES,
    ),
    ({"requests in sequence"}, {"muse", "wmdp", "knowundo", "questions"}),
    ({"two splits"}, {"muse", "knowundo"}),
    (
        {"no retain model", "no holdout rows", "wrong answers of one's own"},
        _SOURCES - {"questions"},
    ),
    ({"no retain model"}, {"the retain model was not attacked"}),
    ({"several rates"}, {"two models", "two splits"}),
    ({"two terms"}, {"tune", "random search and select", "two entries of one label"}),
    ({"epochs as runs"}, {"random search and select", "patience", "stop_below"}),
    ({"a run was stopped"}, {"patience"}),
    ({"settings are tied"}, _WITH_CHOICE | _OF_CHOICES | {"two entries of one label"}),
    (
        {
            *("another profile", "a metric of its own settings", "metrics that read more"),
            "an empty answer",
        },
        _SOURCES - {"synthetic"},
    ),
    ({"an empty answer"}, {"a further metric"}),
    ({"a further metric"}, _SOURCES - {"muse-sustainability", "knowundo"}),
    (
        {"no retain model", "no holdout rows", "wrong answers of one's own"},
        {
            *("a further metric", "another profile", "a metric of its own settings"),
            *("metrics that read more", "an empty answer", "requests in sequence"),
        },
    ),
    (
        {"a further metric"},
        {"another profile", "a metric of its own settings", "metrics that read more"},
    ),
    ({"a metric switched on later"}, {"wmdp"}),
    (
        {"attack by examples", "attack in two turns", "attack that leaves rows out"},
        _SOURCES - {"synthetic", "questions"},
    ),
    (
        {"attack by examples", "attack in two turns", "attack that leaves rows out"},
        {"a further metric"},
    ),
    ({"attack by sampling"}, {"wmdp", "knowundo"}),
    (
        {"no attack"},
        {
            *(*ATTACKS, SEARCHING),
            *("attacked before the last epoch", "the retain model was not attacked"),
        },
    ),
)


def may_combine(first: str, second: str) -> bool:
    """Whether a folder may have two features."""
    pair = {first, second}
    if any(pair <= features for features in _EXCLUSIVE):
        return False
    return not any(
        (first in some and second in others) or (second in some and first in others)
        for some, others in _NEVER_TOGETHER
    )


@dataclass(frozen=True)
class Drawn:
    """What a random folder is made from."""

    number: int
    features: frozenset[str]
    document: Mapping[str, Any]
    """The configuration, as YAML has it, without `output`."""
    rows: RowPlan
    source: str


@dataclass(frozen=True)
class RandomFolder:
    """A folder that has been written."""

    drawn: Drawn
    folder: Path
    config: SweepConfig
    plan: Plan


@dataclass
class _Draw:
    """Draws one folder; features are noted where they are decided."""

    number: int
    attempt: int
    rng: random.Random = field(init=False)
    features: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.rng = random.Random(f"folder {self.number} {self.attempt}")

    def has(self, feature: str, probability: float) -> bool:
        """Decide on a feature, and note it."""
        is_on = self.rng.random() < probability
        if is_on:
            self.features.add(feature)
        return is_on

    def one_of(self, weights: Mapping[str, float]) -> str:
        """Draw one of several features, and note it."""
        (feature,) = self.rng.choices(list(weights), list(weights.values()))
        self.features.add(feature)
        return feature


MOST_EVALUATIONS = 40
"""Evaluations in most folders: time grows with them, and faults show in small folders."""
EVERY_LARGE = 10
"""One folder in so many may have several times as many evaluations."""


def draw(number: int) -> Drawn:
    """Decide what the folder with this number has."""
    most = MOST_EVALUATIONS * (1 if number % EVERY_LARGE else 4)
    attempt = 0
    while True:
        drawn = _draw(number, attempt)
        if _evaluation_count(drawn) <= most:
            # Of folders with a user's own rows, all numbers leave the rest 0.
            part = number // EVERY_OWN if "questions" in drawn.features else number
            is_searched = part % EVERY_SEARCH == PLACE_OF_SEARCH
            return _with_search(drawn) if is_searched else drawn
        attempt += 1


def _with_search(drawn: Drawn) -> Drawn:
    """Let one of a folder's attacks be a search, in place of what was drawn.

    Sampling stays, because metrics of the folder read its answers.
    """
    rng = random.Random(f"search {drawn.number}")
    attacks: dict[str, dict[str, Any]] = dict(drawn.document.get("attacks", {}))
    possible = [name for name in attacks if name != "sampling"]
    if not possible:
        return drawn
    name = rng.choice(["relearning", "relearning", "fine-tuning"])
    replaced = name if name in attacks else rng.choice(possible)
    settings: dict[str, Any] = {
        "steps": rng.choice([[4], [1, 4]]),
        "search": {"learning_rate": {"low": 1e-5, "high": 1e-3, "log": True}},
        "trials": rng.choice([2, 3]),
    }
    if rng.random() < 0.3:
        settings["keeps"] = rng.choice([0.7, 0.97])
    if "at" in attacks[replaced]:
        settings["at"] = attacks[replaced]["at"]
    features = {SEARCHING}
    for feature in drawn.features:
        if feature not in ATTACKS or ATTACKS[feature][0] != replaced:
            features.add(feature)
    with_search: dict[str, dict[str, Any]] = {}
    for attack, stated in attacks.items():
        if attack == replaced:
            with_search[name] = settings
        else:
            with_search[attack] = stated
    document = {**drawn.document, "attacks": with_search}
    return replace(drawn, document=document, features=frozenset(features))


def _evaluation_count(drawn: Drawn) -> int:
    """Estimate how many evaluations the records of a folder will have."""
    document: Any = drawn.document
    panels: int = len(document["models"]) * len(
        document.get("forget_fractions") or document["splits"]
    )
    trials = document.get("tune", document.get("search", {})).get("trials")
    settings = 0
    for entry in document["methods"]:
        lists = [value for value in entry.values() if isinstance(value, list)]
        combinations = 2 if any(len(values) > 1 for values in lists) else 1
        rates = document.get("learning_rates", [])
        settings += trials or combinations * max(1, len(rates))
    choosing = document.get("select") or document.get("tune")
    runs = settings * len(choosing["seeds"] if choosing else document["seeds"])
    if choosing:
        runs += len(document["methods"]) * (len(document["seeds"]) - len(choosing["seeds"]))
    points = {"relearning": 3, "quantization": 2, "logit-lens": 2, "template": 2}
    attacks = document.get("attacks", {})
    after_last = sum(points.get(name, 1) for name in attacks)
    times = document["epochs"] if "epochs" in document else document["steps"] // STEPS
    evaluations: int = runs * (times + after_last) + 2 * (1 + after_last)
    return panels * evaluations


def _draw(number: int, attempt: int) -> Drawn:
    made = _Draw(number, attempt)
    source = made.one_of(
        {
            "synthetic": 0.62,
            "muse": 0.08,
            "muse-sustainability": 0.06,
            "wmdp": 0.1,
            "knowundo": 0.14,
        }
    )
    if number % EVERY_OWN == 0:
        made.features.remove(source)
        source = "questions"
        made.features.add(source)
    document: dict[str, Any] = {"name": f"folder{number}", "data": {"source": source}}
    models = MODELS if made.has("two models", 0.12) else MODELS[:1]
    document["models"] = [{"name": name, "base": "tiny"} for name in models]
    if source == "questions":
        _add_own_data(made, document)
    rule = made.one_of(
        {"grid": 0.52, "select": 0.18, "tune": 0.16, "random search and select": 0.14}
    )
    if rule == "grid" and source in ("synthetic", "muse-sustainability"):
        sequential = made.has("requests in sequence", 0.3)
    else:
        sequential = False
    splits = _splits(made, source, needs_two=sequential, allows_two=len(models) == 1)
    document["forget_fractions" if source == "synthetic" else "splits"] = splits
    if source == "synthetic":
        document["data"]["authors"] = 10
    if sequential:
        document["requests"] = "in-sequence"

    document["methods"] = _methods(made, rule, sequential=sequential)
    _add_rule(made, document, rule, len(splits) * len(models))
    document["epochs"] = made.rng.choice([1, 2, 2, 3])
    if document["epochs"] > 1:
        made.features.add("several epochs")
        if rule != "random search and select" and made.has("epochs as runs", 0.08):
            document["epochs_as"] = "runs"
    document["evaluation"] = _evaluation(made, document, source)
    attacks = _attacks(made, source)
    if attacks:
        document["attacks"] = attacks
    if "sampling" in attacks:
        document["evaluation"]["metrics"] |= SAMPLED
    rows = RowPlan(
        count=made.rng.choice([8, 10, 12]),
        has_duplicates=made.has("a question twice", 0.3),
        leaves_out_paraphrases=made.has("rows without another wording", 0.4),
        has_fewer_wrong_answers=made.has("rows with fewer wrong answers", 0.2),
        has_wrong_answers="wrong answers of one's own" in made.features,
        has_holdout="no holdout rows" not in made.features,
        has_empty_answer=source == "synthetic" and made.has("an empty answer", 0.12),
    )
    _add_events(made, document)
    # Drawn last, so that folders by epochs are the same as before there were steps.
    if made.has("by steps", 0.15):
        _count_in_steps(document)
    return Drawn(number, frozenset(made.features), document, rows, source)


def _add_own_data(made: _Draw, document: dict[str, Any]) -> None:
    """Draw which rows and models of a user's own there are."""
    data: dict[str, Any] = document["data"]
    if len(document["models"]) == 1 and made.has("two splits", 0.2):
        data["forget"] = {"first": "a.jsonl", "second": "b.jsonl"}
    if not made.has("no holdout rows", 0.4):
        data["holdout"] = "holdout.jsonl"
    if made.has("wrong answers of one's own", 0.4):
        data["wrong_answers"] = "wrong"
    if made.has("no retain model", 0.5):
        for model in document["models"]:
            del model["base"]
            model["fine_tuned"] = "a-model"


STEPS = 5
"""Steps between two evaluations of a folder by steps."""


def _count_in_steps(document: dict[str, Any]) -> None:
    """State the budget and the evaluations in steps, as many evaluations as there were epochs."""
    document["steps"] = STEPS * document.pop("epochs")
    evaluation = document["evaluation"]
    evaluation["every_steps"] = STEPS
    if "patience" in evaluation:
        epochs = evaluation["patience"].pop("epochs")
        evaluation["patience"]["steps"] = STEPS * epochs


def _splits(made: _Draw, source: str, *, needs_two: bool, allows_two: bool) -> list[SplitKey]:
    known: dict[str, list[SplitKey]] = {
        "synthetic": [0.2, 0.4],
        "muse": ["all"],
        "muse-sustainability": ["forget1", "forget2"],
        "wmdp": ["bio", "cyber"],
        "knowundo": ["privacy"],
    }
    if source == "questions":
        return ["first", "second"] if "two splits" in made.features else ["all"]
    splits = known[source]
    if len(splits) > 1 and (needs_two or (allows_two and made.has("two splits", 0.2))):
        made.features.add("two splits")
        return splits
    return splits[:1]


def _methods(made: _Draw, rule: str, *, sequential: bool) -> list[dict[str, Any]]:
    """Draw the entries of `methods`."""
    names = [name for name in METHODS if not (sequential and name == "at inference")]
    if rule in ("tune", "random search and select"):
        # Lists of an entry are drawn from by a search; entries of one label stay apart.
        names = [name for name in names if name not in ("two terms",)]
    names.remove("other entry")
    chosen = made.rng.sample(names, made.rng.choice([1, 2, 2, 3]))
    searches = rule in ("tune", "random search and select")
    if searches and made.has("two entries of one label", 0.4):
        chosen = ["plain", "other entry", *(name for name in chosen[:1] if name != "plain")]
    made.features.update(name for name in chosen if name != "other entry")
    if len(chosen) > 1:
        made.features.add("several methods")
    entries = [dict(METHODS[name]) for name in chosen]
    if "two entries of one label" in made.features:
        entries[chosen.index("plain")]["beta"] = 0.1
    return entries


def _add_rule(made: _Draw, document: dict[str, Any], rule: str, panels: int) -> None:
    """Draw rates, seeds, and how settings are found and chosen."""
    if rule == "grid":
        several = panels == 1 and made.has("several rates", 0.4)
        document["learning_rates"] = [1e-5, 5e-5] if several else [2e-5]
        count = made.rng.choice([1, 2, 3, 3, 4] if panels == 1 else [1, 2, 3])
        document["seeds"] = list(range(count))
        made.features.add("one seed" if count == 1 else f"{min(count, 3)} or more seeds")
        return
    choosing = made.rng.choice([1, 2])
    reporting = made.rng.choice([1, 2, 3])
    document["seeds"] = list(range(choosing + reporting))
    made.features.add(f"{choosing} seeds of the choice")
    made.features.add("one reporting seed" if reporting == 1 else "several reporting seeds")
    select: dict[str, Any] = {"seeds": list(range(choosing))}
    if made.has("hypervolume", 0.25):
        select["rule"] = "hypervolume"
    if rule == "select":
        document["learning_rates"] = [1e-5, 5e-5]
        document["select"] = select
    elif rule == "tune":
        document["tune"] = select | {"trials": made.rng.choice([2, 3])}
    else:
        document["learning_rates"] = {"low": 1e-6, "high": 1e-3, "log": True}
        document["search"] = {"kind": "random", "trials": 2}
        document["select"] = select


def _evaluation(made: _Draw, document: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Draw the section `evaluation`."""
    evaluation: dict[str, Any] = {"metrics": {}}
    if source == "synthetic" and made.has("another profile", 0.15):
        evaluation["profile"] = "open-unlearning"
    can_end_early = document["epochs"] > 1 and "epochs_as" not in document
    if can_end_early and made.has("patience", 0.12):
        column = {
            "synthetic": "log10_forget_quality",
            "muse": "rouge_f1_verbmem",
            "muse-sustainability": "rouge_f1_verbmem",
            "wmdp": "choice_accuracy_wmdp",
            "knowundo": "exact_memorization_unlearning",
            "questions": "removed" if "no retain model" in made.features else "forgotten",
        }[source]
        evaluation["patience"] = {"metric": column, "epochs": 1}
    if can_end_early and made.has("stop_below", 0.12):
        evaluation["stop_below"] = 0.97
    if source == "synthetic" and made.has("a metric of its own settings", 0.25):
        evaluation["metrics"]["mia-min-k"] = {"share": 0.3}
    if source in ("muse-sustainability", "knowundo") and made.has("a further metric", 0.3):
        evaluation["metrics"]["rouge"] = {}
    if source == "synthetic" and made.has("metrics that read more", 0.15):
        evaluation["metrics"] |= {"fluency": {}, "mia-grad-norm": {}}
        # The number of the folder decides, because a draw would change all later folders.
        if made.number % 2:
            evaluation["metrics"]["token-entropy"] = {}
    return evaluation


def _attacks(made: _Draw, source: str) -> dict[str, dict[str, Any]]:
    """Draw none to three attacks."""
    count = made.rng.choice([0, 1, 1, 2, 3])
    made.features.add("no attack" if count == 0 else f"{count} attacks")
    possible = list(ATTACKS)
    if source in ("wmdp", "knowundo"):
        possible = [
            name
            for name in possible
            if ATTACKS[name][0] in ("relearning", "quantization", "logit-lens", "template")
        ]
    elif source not in ("synthetic", "questions"):
        possible.remove("attack in two turns")
        possible.remove("attack by examples")
        possible.remove("attack that leaves rows out")
    attacks: dict[str, dict[str, Any]] = {}
    for feature in made.rng.sample(possible, min(count, len(possible))):
        name, settings = ATTACKS[feature]
        made.features.add(feature)
        attacks[name] = {**settings}
        if made.has("attacked before the last epoch", 0.25):
            attacks[name]["at"] = made.rng.choice(["best", "every"])
    return attacks


def _add_events(made: _Draw, document: Mapping[str, Any]) -> None:
    """Draw what happens to the runs, and to the folder afterwards."""
    made.has("a run failed", 0.15)
    made.has("a run's outputs became NaN", 0.12)
    made.has("a run diverged", 0.12)
    if "patience" not in made.features:
        made.has("a run was stopped", 0.08)
    made.has("a run is missing", 0.12)
    made.has("a run of an earlier plan", 0.1)
    if "select" not in document and "tune" not in document:
        # No rule says which of two settings of a method is chosen that are equally good.
        made.has("settings are tied", 0.1)
    if not {"no attack", "no retain model"} & made.features:
        made.has("the retain model was not attacked", 0.06)
    made.has("NaN for one question", 0.12)
    made.has("places of asked rows are not stated", 0.3)
    made.has("records say how they were computed", 0.6)
    made.has("a table by other code", 0.15)
    made.has("an older metric's number", 0.12)
    made.has("a metric newer than the records", 0.15)
    if document["evaluation"]["metrics"]:
        made.has("a metric switched on later", 0.4)
    if "select" in document or "tune" in document:
        made.has("reporting runs are missing", 0.1)


def write(drawn: Drawn, root: Path) -> RandomFolder:
    """Write a folder below `root`."""
    config = _config(drawn, root)
    rng = random.Random(f"events {drawn.number}")
    world = _world(drawn, config)
    folder = Path(config.output) / config.name
    shutil.rmtree(folder, ignore_errors=True)
    metrics = config.evaluation.metrics
    if "a metric switched on later" in drawn.features:
        metrics = _earlier_metrics(metrics)
    recorder = Recorder(
        config,
        world,
        folder,
        metrics=metrics,
        recorded=_recorded_by_older_code(drawn),
        states_places="places of asked rows are not stated" not in drawn.features,
        computed_by=_code_of_records(drawn),
    )
    left_out: set[tuple[str, str]] = set()
    if "the retain model was not attacked" in drawn.features:
        left_out = {("retain", attack.name) for attack in config.attacks}
    recorder.write_references(without=frozenset(left_out))
    plan = replace(make_plan(config, DATA), references=recorder.reference_ids())
    follow_up = FollowUpRuns(plan, folder)
    runs = follow_up.current_plan().runs
    ends = _ends(drawn, config, runs, rng)
    missing = {run.id for run in rng.sample(runs, 1)} if _misses_a_run(drawn, runs) else set()
    for run in runs:
        if run.id not in missing:
            recorder.write_run(run, ends.get(run.id))
    if config.select is not None and not missing:
        follow_up.select()
        reporting = [run for run in follow_up.current_plan().runs if run not in runs]
        if "reporting runs are missing" in drawn.features:
            reporting = reporting[: len(reporting) // 2]
        for run in reporting:
            recorder.write_run(run)
    if "a run of an earlier plan" in drawn.features:
        recorder.write_run(runs[0].model_copy(update={"seed": 77}))
    written = follow_up.current_plan()
    claim_folder(written)
    if "a table by other code" in drawn.features:
        _store_table_by_other_code(folder)
    return RandomFolder(drawn, folder, config, written)


def _config(drawn: Drawn, root: Path) -> SweepConfig:
    root.mkdir(parents=True, exist_ok=True)
    path = root / f"folder{drawn.number}.yaml"
    # JSON is YAML, too.
    path.write_text(json.dumps({**drawn.document, "output": str(root)}), encoding="utf-8")
    return load_config(str(path))


def _world(drawn: Drawn, config: SweepConfig) -> World:
    rows = {split: rows_of(drawn.source, split, drawn.rows) for split in config.split_keys}
    first_forget = next(name for name, role in config.data.set_roles.items() if role == "forget")
    has_nan = "NaN for one question" in drawn.features
    return World(
        rows,
        seed=drawn.number,
        are_tied="settings are tied" in drawn.features,
        nan_rows={first_forget: (2,)} if has_nan else {},
    )


def _earlier_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics without those that were named later, and with earlier settings."""
    earlier = {name: dict(settings) for name, settings in metrics.items()}
    earlier.pop("fluency", None)
    earlier.pop("rouge", None)
    if "mia-min-k" in earlier:
        earlier["mia-min-k"] = {"share": 0.6}
    if "leak-at-k" in earlier:
        earlier["leak-at-k"] = {"k": 4, "threshold": 0.5}
    return earlier


def _is_older(record: str) -> bool:
    """Whether a record is one of the half that was made before an upgrade."""
    return not record or int(record[:2], 16) % 2 == 0


def _code_of_records(drawn: Drawn) -> Callable[[str], ComputedBy]:
    has_older = {"an older metric's number", "a metric newer than the records"} & drawn.features

    def code(record: str) -> ComputedBy:
        if "records say how they were computed" not in drawn.features:
            return "earlier version"
        return "other code" if has_older and _is_older(record) else "this code"

    return code


def _store_table_by_other_code(folder: Path) -> None:
    """Store the table that a version with another definition of a metric would have stored."""
    of_today = Probability.per_example

    def other(metric: Probability, seen: SetEvaluation) -> FloatArray:
        return 0.9 * of_today(metric, seen)

    with (
        mock.patch.object(rules, "own_code", return_value="other code"),
        mock.patch.object(Probability, "per_example", other),
    ):
        write_table(Results.read(folder).table, folder)
    # What is known of a start or retain model is kept with the evaluation that was read.
    finalize._read_file.cache_clear()  # pyright: ignore[reportPrivateUsage]


def _recorded_by_older_code(drawn: Drawn) -> Any:
    """Return what changes the numbers of records as older versions would have computed them."""

    def recorded(record: str, values: dict[str, float | None]) -> dict[str, float | None]:
        is_older = _is_older(record)
        changed = dict(values)
        if is_older and "an older metric's number" in drawn.features:
            for name in OLDER_COLUMNS:
                if (value := changed.get(name)) is not None:
                    changed[name] = value * 0.9
        if is_older and "a metric newer than the records" in drawn.features:
            for name in NEWER_COLUMNS:
                changed.pop(name, None)
        return changed

    return recorded


def _ends(
    drawn: Drawn, config: SweepConfig, runs: tuple[RunSpec, ...], rng: random.Random
) -> dict[str, RunEnd]:
    """Decide which runs do not finish, a run for each such feature."""
    last = config.budget
    kinds = {
        "a run failed": RunEnd("failed", rng.choice([0, 1])),
        "a run's outputs became NaN": RunEnd("not finite", rng.randint(1, last)),
        "a run diverged": RunEnd("diverged", rng.randint(1, last)),
        "a run was stopped": RunEnd("stopped", 1),
    }
    happening = [end for feature, end in kinds.items() if feature in drawn.features]
    # A run that another one goes on from has ended with a model.
    continued = {run.after for run in runs}
    possible = [i for i, run in enumerate(runs) if run.id not in continued]
    chosen = rng.sample(possible, min(len(happening), len(possible)))
    return {runs[i].id: end for i, end in zip(chosen, happening, strict=False)}


def _misses_a_run(drawn: Drawn, runs: tuple[RunSpec, ...]) -> bool:
    return "a run is missing" in drawn.features and len(runs) > 1
