"""One declaration beside each field decides what belongs to ids, and no id has changed by it."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from pydantic import BaseModel, Field

from unlearnbench.analysis.choice_plan import ChoicePlan, PlannedRun
from unlearnbench.api.attack import AttackRows, PromptAttack
from unlearnbench.api.benchmark import Question
from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.api.identity import (
    ALWAYS,
    IF_SET,
    NEVER,
    RUNS,
    Id,
    Place,
    Rule,
    StoredIdentities,
    identity_of,
    rules_of_field,
    settings_below,
    stored_identity,
)
from unlearnbench.base.errors import PluginError
from unlearnbench.base.hashing import content_hash, json_ready
from unlearnbench.base.redaction import redact, redact_tree
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.config.entries import AttackSpec, attack_spec
from unlearnbench.config.reference_spec import AttackedReferenceSpec, ReferenceSpec
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import EvaluationSettings, ModelSettings
from unlearnbench.config.search import SelectSettings, TuneSettings
from unlearnbench.config.section import Settings
from unlearnbench.config.stored_values import restored
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.runs.model_sources import ModelSources

from .random_specs import ATTACKS, a_prepared_model, a_spec

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "data" / "random_ids.json").read_text(encoding="utf-8")
)
"""Ids of random specs and models by version 308dd8a, which had seven mechanisms for ids."""


def settings_in(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield settings and all those below them that belong to an id."""
    yield model
    for info in model.model_fields.values():
        below = settings_below(info)
        if below is not None and any(rule.kinds for rule in rules_of_field(info)):
            yield from settings_in(below)


DECLARED = dict.fromkeys(
    settings
    for whole in (RunSpec, ReferenceSpec, AttackedReferenceSpec, TuneSettings)
    for settings in settings_in(whole)
)


@pytest.mark.parametrize("model", DECLARED)
def test_each_field_declares_its_part_in_ids(model: type[BaseModel]) -> None:
    without = [name for name, info in model.model_fields.items() if not rules_of_field(info)]
    assert not without, "api/identity.py says what to write"
    for name, info in model.model_fields.items():
        kinds = [kind for rule in rules_of_field(info) for kind in rule.kinds]
        assert len(kinds) == len({*kinds}), f"{name}: two declarations for one kind of ids"


def test_a_field_without_a_declaration_is_an_error() -> None:
    class Undeclared(Settings):
        old: Annotated[int, ALWAYS] = 1
        new: int = 1

    with pytest.raises(TypeError, match="declare its part in ids"):
        identity_of(Undeclared())


def test_a_rule_reads_only_what_it_declares() -> None:
    def entry(place: Place) -> Any:
        return place.read("training.precision")

    class Careless(Settings):
        value: Annotated[int, Rule("careless", entry)] = 1

    class Careful(Settings):
        value: Annotated[int, Rule("careful", entry, reads=("training",))] = 1

    with pytest.raises(LookupError, match="does not declare that it reads 'training'"):
        identity_of(Careless(), training={"precision": "bf16"})
    assert identity_of(Careful(), training={"precision": "bf16"}) == {"value": "bf16"}
    assert identity_of(Careful()) == {"value": None}


def test_a_field_may_count_in_some_kinds_of_ids_only() -> None:
    class Some(Settings):
        mode: Annotated[str, ALWAYS.of(*RUNS), IF_SET.of(Id.EVALUATION)] = "plain"
        hint: Annotated[int, NEVER] = 0
        rows: Annotated[str, IF_SET.because("the rows have changed")] = ""

    some = Some(rows="abcd", hint=3)
    assert identity_of(some, Id.RUN) == {"mode": "plain", "rows": "abcd"}
    assert identity_of(some, Id.STATED) == {"mode": "plain"}
    assert identity_of(some, Id.EVALUATION) == {"rows": "abcd"}
    assert identity_of(Some(mode="chat"), Id.EVALUATION) == {"mode": "chat"}


def test_ids_of_random_runs_are_those_of_the_version_before() -> None:
    ids = [RunSpec.model_validate_json(json.dumps(a_spec(seed))).id for seed in range(400)]
    assert len({*ids}) == 400
    assert ids == GOLDEN["runs"]


def test_ids_of_random_start_and_retain_models_are_those_of_the_version_before() -> None:
    rows = load_benchmark(Synthetic(authors=10, questions_per_author=2), (0.1,))
    ids: list[list[str]] = []
    for seed in range(60):
        model, evaluation, training = map(json.dumps, a_prepared_model(seed))
        sources = ModelSources(ModelSettings.model_validate_json(model), rows, Path("cache"))
        rules = EvaluationSettings.model_validate_json(evaluation)
        identity = sources.evaluation_identity("full", 0.1, "rows", rules)
        under = [
            sources.attack_id(
                identity,
                AttackSpec.model_validate_json(json.dumps(attack)),
                TrainingSettings.model_validate_json(training),
            )
            for attack in ATTACKS
        ]
        folders = [sources.folder(name).name for name in ("base", "full", "retain90")]
        ids.append([*folders, content_hash(identity), *under])
    assert ids == GOLDEN["models"]


def test_a_field_that_is_added_to_a_model_counts_in_all_its_ids_if_it_is_set() -> None:
    class More(ModelSettings):
        gates: Annotated[dict[str, int], IF_SET] = Field(default_factory=dict)

    rows = load_benchmark(Synthetic(authors=10, questions_per_author=2), (0.1,))

    def ids(settings: ModelSettings) -> list[str]:
        sources = ModelSources(settings, rows, Path("cache"))
        identity = sources.evaluation_identity("full", 0.1, "rows", EvaluationSettings())
        under_attack = content_hash(identity_of(settings, Id.ATTACK))
        return [sources.folder("full").name, content_hash(identity), under_attack]

    before = ids(ModelSettings(name="m", base="tiny"))
    assert ids(More(name="m", base="tiny")) == before
    changed = ids(More(name="m", base="tiny", gates={"a": 1}))
    assert all(one != other for one, other in zip(changed, before, strict=True))
    named = identity_of(More(name="m", base="org/published", gates={"a": 1}), Id.EVALUATION)
    assert named == {"gates": {"a": 1}}


CHOICES: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "3dd740b3289738a2"),
    ({"utility": 0.9}, "77ab37e8dcba0581"),
    ({"utility": 1}, "d3494126227554c4"),
    ({"rule": "hypervolume"}, "d6e03d47207417d0"),
    ({"rule": "hypervolume", "reference": (0.3, -11)}, "fd16648143aada7e"),
    ({"seeds": (0, 1), "utility": 0.5}, "0c6792a0875ac8d9"),
)
"""Settings of `select`, and the ids of their choices by version 8db71bf7, which hashed all keys."""
KEYS_OF_CHOICES = {"rule", "utility", "reference", "seeds"}
"""All keys of that version, which `selection.json` has, also at their defaults."""


def choice_plan(select: SelectSettings) -> ChoicePlan:
    """Return a plan with one run on seed 0 and one run on seed 1."""
    runs = (PlannedRun("5f0c", {"seed": 0}, {}), PlannedRun("0a1b", {"seed": 1}, {}))
    return ChoicePlan(select, seeds=(0, 1, 2), runs=runs, name="tuned")


@pytest.mark.parametrize(("stated", "expected"), CHOICES)
def test_ids_of_choices_are_those_of_the_version_before(
    stated: dict[str, Any], expected: str
) -> None:
    plan = choice_plan(SelectSettings(**stated))
    assert plan.id == expected
    stored = plan.select.model_dump(mode="json", include=KEYS_OF_CHOICES)
    assert plan.rule == stored, "selection.json has the keys that it had"


class LaterSelect(SelectSettings):
    """Settings of `select` with a key of a later version."""

    of_a_later_version: Annotated[float | None, IF_SET] = None


def test_a_key_that_is_added_to_select_leaves_the_ids_of_choices_as_they_are() -> None:
    for stated, expected in CHOICES:
        assert choice_plan(LaterSelect(**stated)).id == expected
    set_here = choice_plan(LaterSelect(of_a_later_version=-1.3))
    assert set_here.id != choice_plan(LaterSelect()).id
    assert set_here.rule["of_a_later_version"] == -1.3


def test_a_stored_choice_is_of_the_rule_that_it_was_made_by() -> None:
    earlier = SelectSettings(utility=0.9).model_dump(mode="json")
    assert choice_plan(LaterSelect(utility=0.9)).has_rule(earlier)
    assert not choice_plan(LaterSelect(utility=0.9, of_a_later_version=-1.3)).has_rule(earlier)
    assert not choice_plan(SelectSettings(utility=0.9)).has_rule(
        earlier | {"of_a_later_version": -1.3}
    )
    del earlier["reference"]
    assert choice_plan(SelectSettings(utility=0.9)).has_rule(earlier), "a missing key is a default"


@pytest.mark.parametrize("kind", RUNS)
def test_a_stored_spec_has_the_identity_of_the_run(kind: Id) -> None:
    stored = StoredIdentities(RunSpec, kind)
    for seed in range(200):
        spec = a_spec(seed)
        spec["method"]["hyperparameters"].pop("text", None)  # secrets are removed when it is stored
        run = RunSpec.model_validate_json(json.dumps(spec))
        identity = identity_of(run, kind)
        whole = run.model_dump(mode="json")
        assert stored_identity(RunSpec, whole, kind) == identity
        entries = stored.entries(whole)
        assert {name: entry for name, (entry, _) in entries.items()} == identity


def plain_json(value: Any) -> Any:
    """Compute `json_ready`, one value at a time."""
    if isinstance(value, Mapping):
        return {str(key): plain_json(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(child) for child in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def plain_redacted(value: Any) -> Any:
    """Compute `redact_tree`, one value at a time."""
    if isinstance(value, Mapping):
        return {plain_redacted(key): plain_redacted(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [plain_redacted(child) for child in value]
    return redact(value) if isinstance(value, str) else value


SECRETS = ("https://me:hunter2@h/x", "s3://b/p?secret_key=hunter2", "file:///tmp/a", "a: //b")


@pytest.mark.parametrize("text", SECRETS)
def test_an_id_is_the_hash_of_the_redacted_identity(text: str) -> None:
    """It is computed without a further walk unless a text has an address."""
    for seed in range(100):
        spec = a_spec(seed)
        if seed % 4 == 1:
            spec["model"]["base"] = text
        if seed % 4 == 2:
            spec["attack_training"] = {"own": [{"of": text, text: [1, None]}]}
        if seed % 4 == 3:
            spec["attack_training"] = {"own": [float("inf"), float("nan"), -0.0, True]}
        run = RunSpec.model_validate_json(json.dumps(spec))
        plain = plain_redacted(plain_json(identity_of(run)))
        assert run.identity == plain
        ordered = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert run.id == hashlib.sha256(ordered.encode()).hexdigest()[:16]
        assert "hunter2" not in ordered


def test_trees_of_any_values_are_converted_as_one_value_at_a_time() -> None:
    class Number(IntEnum):
        ONE = 1

    values = (np.float64("nan"), float("-inf"), 2**70, Number.ONE, True, None, *SECRETS)
    for value in values:
        tree: dict[Any, Any] = {
            "list": [value, (value, {"below": value})],
            3: value,
            None: [value],
            value: {},
        }
        assert repr(json_ready(tree)) == repr(plain_json(tree))
        assert repr(redact_tree(tree)) == repr(plain_redacted(tree))
        marked = json_ready(tree, lambda number: {"$float": repr(number)})
        assert isinstance(marked["list"][0], dict) == (marked["list"][0] != json_ready(value))


def test_a_spec_of_an_earlier_version_has_the_defaults_of_later_fields() -> None:
    stored = StoredIdentities(RunSpec, Id.SETTING)
    for seed in range(100):
        spec = a_spec(seed)
        whole = RunSpec.model_validate_json(json.dumps(spec)).model_dump(mode="json")
        if spec["model"]["base"] == "tiny":  # defaults of its preparation are those of tiny models
            spec["model"]["preparation"] = whole["model"]["preparation"]
        assert stored.entries(spec).hash == stored.entries(whole).hash


def test_runs_are_of_one_setting_only_if_they_are_equal_apart_from_the_seed() -> None:
    stored = StoredIdentities(RunSpec, Id.SETTING)
    ids: dict[str, str] = {}
    for number in range(400):
        run = RunSpec.model_validate_json(json.dumps(a_spec(number)))
        settings = set[str]()
        for seed in (0, 1):
            spec = run.model_copy(update={"seed": seed})
            settings.add(stored.entries(spec.to_json()).hash)
        (setting,) = settings
        ids[setting] = run.model_copy(update={"seed": 0}).id
    assert len(ids) == len({*ids.values()})


def test_runs_that_are_evaluated_at_other_epochs_are_not_averaged() -> None:
    """One seed may have a run of each."""
    spec = a_spec(0) | {"epochs": 4}
    stored = StoredIdentities(RunSpec, Id.SETTING)
    at = [[1, 2, 3, 4], [2, 4], [4]]
    ids = {stored.entries(spec | {"evaluate_at": epochs}).hash for epochs in at}
    assert len(ids) == 3
    # With `epochs_as: runs`, a setting has a run for each number of epochs.
    alone = {
        stored.entries(spec | {"epochs": count, "evaluate_at": [count]}).hash for count in (1, 2, 3)
    }
    assert len(alone) == 1


def test_a_field_that_was_added_to_a_plug_in_counts_only_if_it_is_set() -> None:
    class Plug(HyperParameters):
        old: float = 1.0
        new: Annotated[bool, IF_SET] = False

    assert Plug().resolved() == {"old": 1.0}
    assert Plug(new=True).resolved() == {"old": 1.0, "new": True}


def test_a_field_that_was_added_to_an_attack_counts_only_if_it_is_set() -> None:
    class Plea(PromptAttack):
        label = "Plea"
        words: tuple[str, ...] = ("Please.",)

        def asked(self, row: Question, point: str, rows: AttackRows) -> Question:  # noqa: ARG002
            return row

    class Longer(Plea):
        more: Annotated[tuple[str, ...], IF_SET] = Field(default_factory=lambda: ("Now.",))

    before = attack_spec("plea", Plea())
    assert before.settings == {"at": "last", "words": ["Please."]}
    added = attack_spec("plea", Longer())
    assert (added, added.identity) == (before, before.identity)
    changed = attack_spec("plea", Longer(more=("Do.",)))
    assert changed.settings == {**before.settings, "more": ["Do."]}
    assert Longer.model_validate(restored(Longer, added.settings)) == Longer()


def test_the_earlier_declaration_of_plug_ins_is_refused() -> None:
    with pytest.raises(PluginError, match="later has no effect any more"):

        class Plug(HyperParameters):  # pyright: ignore[reportUnusedClass]
            later = frozenset({"new"})
            new: bool = False
