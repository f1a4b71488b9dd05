"""Whether a line can be true: every hash is taken again, and every metric computed again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from unlearnbench.errors import UnlearnbenchError
from unlearnbench.evaluation.metrics import summary
from unlearnbench.evaluation.precision import precision_of_spec
from unlearnbench.evaluation.profiles import Profile, get_profile, profile_of_id
from unlearnbench.leaderboard.line import SCHEMA, Entry, canonical, scores_of, signed, unpack
from unlearnbench.patience import Patience
from unlearnbench.plan import content_hash
from unlearnbench.settings import MethodSpec

CLOSE = 1e-9
"""Relative difference that another machine's rounding explains."""
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
    _check_types(entry, {k: t for k, t in _SINCE.items() if k in entry} | _TYPES, "")
    if signed(entry)["sha256"] != entry["sha256"]:
        raise RefusedError("its sha256 is not that of the line: it was changed, or damaged")
    for epoch in entry["epochs"]:
        _check_types(epoch, _EPOCH, "epochs: ")
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
    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    try:
        entry = json.loads(text, parse_constant=refuse)
        if not isinstance(entry, dict):
            raise ValueError("no object")
        canonical(entry).encode()  # what cannot be written again, such as half a character
    except (ValueError, RecursionError) as error:
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
    how = identity["evaluation"]
    overrides = {key: how.get(key) for key in ("rows", "max_length", "question_key")}
    profile = get_profile(how["profile"], **overrides)
    says = {
        "model": identity["model"]["name"],
        "method": MethodSpec.model_validate(identity["method"]).label,
        "data": identity["data_fingerprint"],
        "profile": profile.id,
        **{key: identity[key] for key in ("forget_fraction", "learning_rate", "seed")},
    }
    if "precision" in entry:
        says["precision"] = precision_of_spec(identity)
    return says, list(identity["evaluate_at"])


def _anchor(identity: Any) -> tuple[dict[str, Any], list[int]]:
    model, target, _, fraction, profile, data, *template = identity
    if len(template) > 1:  # the digest of a rendered chat template, where there is one
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


def _own_ratios(epoch: Entry) -> str:
    own: str = epoch["evidence"]["forget"]["truth_ratio"]
    return own


def _same(told: Any, computed: float | None) -> bool:
    if told is None or computed is None or isinstance(told, bool):
        return told is computed
    return isinstance(told, _NUMBER) and math.isclose(
        told, computed, rel_tol=CLOSE, abs_tol=CLOSE * CLOSE
    )
