"""Whether a line can be true: every hash is taken again, and every metric computed again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, get_args

from pydantic import ValidationError

from unlearnbench.bounded import LINE_BYTES, QUESTIONS, parse_json, shortened, text_problem
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.evaluation.metrics import Scores, summary
from unlearnbench.evaluation.precision import precision_of_spec
from unlearnbench.evaluation.profiles import Profile, get_profile, profile_of_id
from unlearnbench.leaderboard.line import (
    PROVENANCE,
    SCHEMA,
    Entry,
    canonical,
    scores_of,
    signed,
    unpack,
)
from unlearnbench.patience import Patience
from unlearnbench.plan import RunSpec, content_hash
from unlearnbench.settings import MOST_EPOCHS, Precision

CLOSE = 1e-9
"""Relative difference that another machine's rounding explains."""
SECONDS = 1e9
"""Of an epoch: thirty years."""
PART_CHARACTERS = 1 << 16
"""Of an identity or a provenance; those of today have 2000."""
_STATUS = ("finished", "collapsed", "stopped")
_KINDS = ("run", "fine-tuned", "retain")
_NUMBER = (int, float)
_TYPES: Mapping[str, tuple[type, ...]] = {
    "schema": (int,),
    **dict.fromkeys(("id", "kind", "status", "model", "method", "profile", "data"), (str,)),
    "identity": (dict, list),
    "forget_fraction": _NUMBER,
    "learning_rate": (*_NUMBER, type(None)),
    "seed": (int,),
    "weights": (str, type(None)),
    "epochs": (list,),
    "retain": (str,),
    "provenance": (dict,),
    "sha256": (str,),
}
_SINCE: Mapping[str, tuple[type, ...]] = {"precision": (str, type(None))}
"""Not in lines of earlier versions."""
_EPOCH: Mapping[str, tuple[type, ...]] = {
    "epoch": (int,),
    "metrics": (dict,),
    **dict.fromkeys(("training_seconds", "evaluation_seconds"), _NUMBER),
    "log": (str, type(None)),
    "evidence": (dict,),
}


class RefusedError(UnlearnbenchError):
    """A line that cannot be true, and why."""


def verified(text: str) -> Entry:
    """The line, parsed, where all of it fits together. Raises: RefusedError."""
    entry = _parsed(text)
    if entry.get("schema") != SCHEMA:
        raise RefusedError(
            f"schema {entry.get('schema')!r}, and this version reads {SCHEMA}: merge it with the "
            "version that wrote it"
        )
    _check_types(entry, {k: t for k, t in _SINCE.items() if k in entry} | dict(_TYPES), "")
    if signed(entry)["sha256"] != entry["sha256"]:
        raise RefusedError("its sha256 is not that of the line: it was changed, or damaged")
    for epoch in entry["epochs"]:
        _check_types(epoch, _EPOCH, "epochs: ")
    _check_bounds(entry)
    if content_hash(entry["identity"]) != entry["id"]:
        raise RefusedError(
            f"its id {entry['id']} is not the hash of its identity "
            f"({content_hash(entry['identity'])})"
        )
    profile = _profile(entry)
    _check_identity(entry)
    _check_metrics(entry, profile)
    return entry


def _parsed(text: str) -> dict[str, Any]:
    if len(text) > LINE_BYTES:
        raise RefusedError(f"longer than {LINE_BYTES} bytes, the bound on a line")
    try:
        entry = parse_json(text, constants=False)
        if not isinstance(entry, dict):
            raise ValueError("no object")
        canonical(entry).encode()  # what cannot be written again, such as half a character
    except ValueError as error:
        raise RefusedError(f"no whole line of JSON ({error}); was it cut short?") from None
    return entry


def _check_types(found: Any, types: Mapping[str, tuple[type, ...]], where: str) -> None:
    if not isinstance(found, dict):
        raise RefusedError(f"{where}expected an object, got {found!r:.40}")
    if missing := types.keys() - found.keys():
        raise RefusedError(f"{where}{', '.join(sorted(missing))}: missing")
    if unknown := found.keys() - types.keys():
        raise RefusedError(f"{where}{', '.join(sorted(map(repr, unknown)))}: not of a line")
    for key, wanted in types.items():
        # bool is an int to Python, not to us.
        if not isinstance(found[key], wanted) or isinstance(found[key], bool):
            raise RefusedError(f"{where}{key}: {found[key]!r:.40} is not what belongs there")


def _check_bounds(entry: Entry) -> None:
    """Numbers that a run can have, and texts that a page can show."""
    numbers: list[tuple[str, float, bool]] = [
        ("seed", entry["seed"], entry["seed"] >= 0),
        ("forget_fraction", entry["forget_fraction"], 0 < entry["forget_fraction"] < 1),
    ]
    if entry["learning_rate"] is not None:
        numbers.append(("learning_rate", entry["learning_rate"], entry["learning_rate"] > 0))
    for epoch in entry["epochs"]:
        numbers.append(("epoch", epoch["epoch"], 0 <= epoch["epoch"] <= MOST_EPOCHS))
        for key in ("training_seconds", "evaluation_seconds"):
            numbers.append((key, epoch[key], 0 <= epoch[key] <= SECONDS))
    for name, number, possible in numbers:
        if not possible:
            raise RefusedError(f"{name}: {number!r} is not possible")
    for key in ("identity", "provenance"):
        size = len(canonical(entry[key]))
        if size > PART_CHARACTERS:
            raise RefusedError(f"{key}: {size} characters; the bound is {PART_CHARACTERS}")
    for text in _texts([entry[key] for key in entry if key not in ("epochs", "retain")]):
        if wrong := text_problem(text):
            raise RefusedError(f"the text {shortened(text)} {wrong}")
    made = entry["provenance"]
    if unknown := made.keys() - set(PROVENANCE):
        raise RefusedError(f"provenance: {shortened(min(unknown))}: not of a line")
    for key, value in made.items():
        kinds = (dict, type(None)) if key in ("git", "versions") else (str, type(None))
        if not isinstance(value, kinds):
            raise RefusedError(f"provenance: {key}: {shortened(value)} is not what belongs there")
        if key in ("started", "finished") and value is not None:
            _check_time(key, str(value))
        items = value.values() if isinstance(value, dict) else ()
        if any(isinstance(item, dict | list) for item in items):
            raise RefusedError(f"provenance: {key}: {shortened(value)} is not what belongs there")


def _check_time(key: str, value: str) -> None:
    try:
        datetime.fromisoformat(value)
    except ValueError:
        raise RefusedError(f"provenance: {key}: {shortened(value)} is not a time") from None


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.items() if isinstance(value, dict) else value:
            yield from _texts(list(item) if isinstance(item, tuple) else item)


def _profile(entry: Entry) -> Profile:
    try:
        return profile_of_id(entry["profile"])
    except UnlearnbenchError as error:
        raise RefusedError(str(error).partition(";")[0]) from None


def _check_identity(entry: Entry) -> None:
    """What stands in the line and in what its id is the hash of must be the same."""
    if entry["kind"] not in _KINDS or entry["status"] not in _STATUS:
        raise RefusedError(f"kind {entry['kind']!r}, status {entry['status']!r}: there are no such")
    try:
        if entry["kind"] == "run":
            says, planned = _run(entry)
        else:
            says, planned = _anchor(entry["identity"])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RefusedError(f"its identity is none of a run: {where}: {first['msg']}") from None
    except (KeyError, TypeError, ValueError, UnlearnbenchError) as error:
        raise RefusedError(
            f"its identity is none of a {entry['kind']}: {' '.join(str(error).split()):.200}"
        ) from None
    for key, value in says.items():
        if entry[key] != value:
            raise RefusedError(f"{key}: {entry[key]!r}, and {value!r} by its identity")
    epochs = [epoch["epoch"] for epoch in entry["epochs"]]
    whole = entry["status"] == "finished" and not _out_of_patience(entry, planned)
    if not epochs or epochs != (planned if whole else planned[: len(epochs)]):
        raise RefusedError(f"epochs: {epochs} of a {entry['status']} run, planned {planned}")


def _out_of_patience(entry: Entry, planned: list[int]) -> bool:
    """Whether the run has ended early by a rule that its identity holds, and just then."""
    if entry["kind"] != "run" or len(entry["epochs"]) >= len(planned):
        return False
    held = entry["identity"]["evaluation"].get("patience")
    if held is None:
        return False
    try:
        rule = Patience.model_validate(held)
        numbers = [(one["epoch"], one["metrics"]) for one in entry["epochs"]]
        return rule.ended(numbers) is not None and rule.ended(numbers[:-1]) is None
    except (ValueError, TypeError):
        return False


def _run(entry: Entry) -> tuple[dict[str, Any], list[int]]:
    identity: Any = entry["identity"]
    # Where the rows lie is not in an identity. The dtype that a run trained in bf16 is evaluated
    # in follows from the other settings, unless a precision is chosen.
    how = dict(identity["evaluation"])
    if how.get("precision") not in get_args(Precision):
        how.pop("precision", None)
    run = RunSpec.model_validate_json(json.dumps(identity | {"data": {}, "evaluation": how}))
    if run.identity != identity:
        held, whole = (dict(_leaves(one)) for one in (identity, run.identity))
        odd = sorted(
            name for name in held.keys() | whole.keys() if held.get(name) != whole.get(name)
        )
        raise ValueError(f"{', '.join(odd)[:80]}: missing, or not a setting")
    how = identity["evaluation"]
    overrides = {key: how.get(key) for key in ("rows", "max_length", "question_key")}
    profile = get_profile(how["profile"], **overrides)
    says = {
        "model": identity["model"]["name"],
        "method": run.method.label,
        "data": identity["data_fingerprint"],
        "profile": profile.id,
        **{key: identity[key] for key in ("forget_fraction", "learning_rate", "seed")},
    }
    if "precision" in entry:
        # Which device it was is not in an identity.
        possible = [precision_of_spec(identity, device) for device in ("cuda", "cpu")]
        says["precision"] = entry["precision"] if entry["precision"] in possible else possible[-1]
    return says, list(identity["evaluate_at"])


def _leaves(identity: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every setting."""
    for key, value in identity.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _anchor(identity: Any) -> tuple[dict[str, Any], list[int]]:
    if not isinstance(identity, list):
        raise ValueError("not a list")
    model, target, _, fraction, profile, data, *more = identity
    if more and more[-1] in {f"precision {one}" for one in get_args(Precision)}:
        more.pop()  # the one that is chosen, if there is one
    if len(more) > 1:  # the digest of a rendered chat template, where there is one
        raise ValueError(f"{len(identity)} parts")
    kind = "fine-tuned" if target == "full" else "retain"
    says = {
        **{"model": model, "kind": kind, "method": kind, "learning_rate": None},
        **{"forget_fraction": fraction, "profile": profile, "data": data},
    }
    return says, [0]


def _check_metrics(entry: Entry, profile: Profile) -> None:
    """The numbers are those of the evidence."""
    for epoch in entry["epochs"]:
        where = f"epoch {epoch['epoch']}"
        try:
            scores = scores_of(epoch["evidence"])
            retain = unpack(entry["retain"])
            if any(
                not len(of.probability) == len(of.rouge) == len(of.truth_ratio) > 0
                for of in scores.values()
            ):
                raise ValueError("a set's arrays are of unequal length, or empty")
            for of_set, of in scores.items():
                _check_scores(of_set, of)
            if entry["kind"] == "retain" and entry["retain"] != _own_ratios(epoch):
                raise ValueError("a retain model's truth ratios are its own")
            computed = summary(scores, retain, profile)
        except (ValueError, KeyError, TypeError, AttributeError, UnlearnbenchError) as error:
            raise RefusedError(f"{where}: evidence: {error}") from None
        told = epoch["metrics"]
        if told.keys() != computed.keys():
            odd = sorted(told.keys() ^ computed.keys())
            raise RefusedError(f"{where}: metrics: {', '.join(map(str, odd))}: missing or unknown")
        for name, value in computed.items():
            if not _same(told[name], value):
                raise RefusedError(
                    f"{where}: {name} is {told[name]!r}, and {value!r} by its evidence"
                )


def _check_scores(name: str, of: Scores) -> None:
    """Raise ValueError for scores that no model has; NaN is a collapsed one's."""
    if len(of.rouge) > QUESTIONS:
        raise ValueError(f"{name}: {len(of.rouge)} questions; the bound is {QUESTIONS}")
    # A probability of a loss that was rounded to just below 0 is just above 1.
    for key, high in (("probability", 1 + 1e-4), ("rouge", 1.0), ("truth_ratio", math.inf)):
        values = getattr(of, key)
        odd = values[(values < 0) | (values > high)]
        if odd.size:
            raise ValueError(f"{name}: {key} {odd[0]:g} is not possible")


def _own_ratios(epoch: Entry) -> str:
    own: str = epoch["evidence"]["forget"]["truth_ratio"]
    return own


def _same(told: Any, computed: float | None) -> bool:
    if told is None or computed is None or isinstance(told, bool):
        return told is computed
    return isinstance(told, _NUMBER) and math.isclose(
        told, computed, rel_tol=CLOSE, abs_tol=CLOSE * CLOSE
    )
