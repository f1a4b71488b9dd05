"""Every installed method conforms; methods with the bugs of published harnesses do not."""

import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from unlearnbench.api import registry
from unlearnbench.api.inference_method import Wrapper
from unlearnbench.api.method import LossBatch, Method, Needs
from unlearnbench.base.errors import PluginError
from unlearnbench.models.batching import TokenBatch, collate
from unlearnbench.models.token_row import Row
from unlearnbench.testing import SUITES, MethodConformance, check_plugin
from unlearnbench.training.reference_model import ReferenceRows, load_references

from . import broken


def verdicts(method: type[Method | Wrapper] | str, *only: str) -> dict[str, str]:
    return {r.check.name: r.outcome.verdict for r in check_plugin("methods", method, only=only)}


def faults(method: type[Method | Wrapper], *only: str) -> set[str]:
    return {name for name, verdict in verdicts(method, *only).items() if verdict == "fault"}


@pytest.mark.parametrize("name", registry.names("methods"))
def test_every_installed_method_conforms(name: str) -> None:
    begin = time.process_time()
    results = check_plugin("methods", name)
    assert time.process_time() - begin < 20
    assert [r.check.name for r in results] == [check.name for check in SUITES["methods"]]
    wrong = [(r.check.name, r.outcome.seen) for r in results if r.outcome.verdict == "fault"]
    assert not wrong


class TestNPO(MethodConformance):
    """A subclass as a plug-in's author writes it."""

    method = "npo"
    settings = {"beta": 0.5}  # noqa: RUF012  # as short as authors write it


@pytest.mark.parametrize(
    ("method", "checks"),
    [
        (broken.UndialMask, {"labels"}),
        (broken.PaddedMean, {"padding"}),
        (broken.UnshiftedMask, {"shift"}),
        (broken.ElementwiseNPO, {"accumulation", "extremes"}),
        (broken.PaddedKL, {"padding"}),
        (broken.BatchMeanNPO, {"accumulation", "processes"}),
        (broken.MicroBatchMean, {"accumulation", "empty"}),
        (broken.UndeclaredReference, {"loss"}),
        (broken.LocalMultiplier, {"repeatable"}),
        (broken.FirstRowIsBaseline, {"order"}),
        (broken.SpreadOfOne, {"loss"}),
        (broken.WronglyDetached, {"step"}),
        (broken.Coarse, {"bf16"}),
        (broken.Lax, {"hyper-parameters", "docstring"}),
    ],
)
def test_a_published_bug_is_caught(method: type[Method | Wrapper], checks: set[str]) -> None:
    assert checks <= faults(method, *checks)


@pytest.mark.parametrize(
    ("method", "found"),
    [
        (broken.WrongSignNPO, {"direction"}),
        (broken.NaiveUnlikelihood, {"extremes"}),
        (broken.UnusedReference, {"needs", "references"}),
        (broken.InfiniteScore, {"direction"}),
        (broken.UnscaledNPO, {"reference"}),
    ],
)
def test_a_published_bug_is_caught_and_what_is_right_is_not_accused(
    method: type[Method | Wrapper], found: set[str]
) -> None:
    assert faults(method) - {"docstring"} == found


@pytest.mark.parametrize(("by", "check"), [(1, "shift"), (-1, "prompt")])
def test_an_off_by_one_in_the_harness_is_caught(
    by: int, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Wide rows, so that nothing wraps round.
    def wide(rows: Sequence[Row], pad: int, device: torch.device) -> TokenBatch:
        batch = collate(rows, pad, device)
        grown = {
            name: torch.nn.functional.pad(getattr(batch, name), (0, 1))
            for name in ("ids", "attention", "predicts")
        }
        grown["predicts"] = grown["predicts"].roll(by, dims=1)
        return replace(batch, **grown)

    monkeypatch.setattr("unlearnbench.models.row_states.collate", wide)
    assert faults(registry.load_method("gradient-ascent"), "prompt", "shift") == {check}


def test_a_reference_that_is_not_the_start_model_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    def moved_away(*args: Any, **how: Any) -> Any:
        found: dict[Any, ReferenceRows] = {}
        for part, known in load_references(*args, **how).items():
            assert isinstance(known, ReferenceRows)
            found[part] = replace(known, logprobs=known.logprobs + 0.1)
        return found

    monkeypatch.setattr("unlearnbench.testing.tiny_lab.load_references", moved_away)
    assert faults(registry.load_method("npo"), "reference") == {"reference"}


def test_what_a_method_does_not_declare_is_not_passed() -> None:
    assert verdicts("ce-u", "reference") == {"reference": "not declared"}
    assert verdicts("npo", "reference") == {"reference": "passed"}


def test_a_method_that_raises_is_at_fault_with_its_place() -> None:
    class Raising(broken.UnusedReference):
        def loss(self, batch: Any) -> Any:  # it fails before it reads
            raise ZeroDivisionError("nothing to divide by")

    result, order = check_plugin("methods", Raising, only=["order"])
    assert (result.check.name, result.outcome.verdict) == ("loss", "fault")
    assert "raised ZeroDivisionError: nothing to divide by (test_conformance.py:" in (
        result.outcome.seen
    )
    assert (order.outcome.verdict, order.outcome.seen) == ("not run", "'loss' failed")


@pytest.mark.parametrize(
    ("method", "check", "seen"),
    [
        (broken.Summed, "doubling", "loss is -9.09384 once, -18.1877 with the same rows twice"),
        (broken.DeadReference, "references", "log-probabilities of part 'forget' change neither"),
        (broken.LastTokenLost, "tokens", "6 of 22 scored tokens of part 'forget' never have a"),
        (broken.DetachedRetain, "parts", "no gradient ever reaches 'retain'"),
        (broken.RetainByForgetRows, "balance", "with them twice"),
        (broken.FirstBatchScale, "fresh-process", "something is kept from an earlier call"),
        (broken.DrawnAtImport, "fresh-process", "something is kept from an earlier call"),
        (broken.InPlace, "read-only", "changes batch.reference.forget.token_logprob in place"),
        (broken.Dropping, "repeatable", "when called again on the same batch: random numbers"),
        (broken.Named, "loss", "no attribute 'token_logprobs'; did you mean 'token_logprob'?"),
        (broken.NotANumber, "loss", "the loss is nan on an ordinary batch"),
    ],
)
def test_a_fault_is_named_once_and_by_its_cause(
    method: type[Method], check: str, seen: str
) -> None:
    results = check_plugin("methods", method)
    wrong = [r for r in results if r.outcome.verdict == "fault" and r.check.name != "docstring"]
    (only,) = wrong
    assert (only.check.name, seen in only.outcome.seen) == (check, True), only.outcome.seen
    skipped = {r.check.name for r in results if r.outcome.verdict == "not run"}
    passing = {"hyper-parameters", "docstring", "asked", check}
    names = [r.check.name for r in results]
    first = ("loss", "read-only", "repeatable")
    if check in first:
        before = set(first[: first.index(check)])
        assert skipped == set(names) - passing - before, "nothing passes that means nothing"
    else:
        assert not skipped


@pytest.mark.parametrize("method", [broken.Hinge, broken.UnionMean])
def test_legal_losses_are_not_accused(method: type[Method]) -> None:
    assert faults(method) <= {"docstring"}


NO_LOSSES: list[tuple[Callable[[LossBatch], Any], str]] = [
    (lambda _: None, "returned None as 'loss'"),
    (lambda batch: batch.forget.token_logprob, r"a tensor of shape \[22\].*`mean_tokens`"),
    (lambda _: {"kl": None}, "`loss` of Odd returned None as 'kl'"),
    (lambda batch: batch.forget.token_logprob.mean().detach(), "without a gradient"),
    (lambda batch: batch.forget.hidden.mul_(2).mean(), "changes a tensor of the batch in pl"),
    (lambda batch: batch.retain, "reads the part 'retain', which its `needs`"),
    (lambda _: sys.exit(0), r"`loss` of Odd raised SystemExit: 0.*\(test_conformance.py:"),
]


@pytest.mark.parametrize(("value", "said"), NO_LOSSES)
def test_what_is_no_loss_has_one_message(value: Any, said: str) -> None:
    class Odd(broken.Summed):
        """Odd. 2024"""

        def loss(self, batch: LossBatch) -> Any:
            return value(batch)

    results = (r for r in check_plugin("methods", Odd) if r.check.name != "docstring")
    (only,) = [r for r in results if r.outcome.verdict == "fault"]
    assert only.check.name == "loss"
    assert re.search(said, only.outcome.seen), only.outcome.seen


def test_required_values_come_from_examples() -> None:
    from pydantic import Field

    class Required(broken.MicroBatchMean):
        weight: float = Field(gt=0, description="w", examples=[0.5])

    class Missing(broken.MicroBatchMean):
        weight: float = Field(gt=0, description="w")

    assert verdicts(Required, "order") == {"order": "passed"}
    with pytest.raises(PluginError, match=r"Missing cannot be made: weight: .*--set KEY=VALUE"):
        check_plugin("methods", Missing)
    assert check_plugin("methods", Missing, {"weight": 1.0}, ["order"])


class AlignedSymbols(Method):
    """Floored ascent: own work, 2026

    L = mean_t max(0, log p_t − log ε)

    p_t  probability of an answer token
    ε    smallest probability that is lowered
    """

    needs = Needs(parts=frozenset({"forget"}))

    def loss(self, batch: LossBatch) -> Tensor:
        return batch.forget.mean_tokens(batch.forget.token_logprob.clamp(min=-4.6))


class GoogleSymbols(AlignedSymbols):
    """Floored ascent: own work, 2026

    L = mean_t max(0, log p_t − log ε)

    Symbols:
        p_t: probability of an answer token
        ε: smallest probability that is lowered
    """


class NoSymbols(AlignedSymbols):
    """Floored ascent: own work, 2026

    L = mean_t max(0, log p_t − log ε)
    """


class NoSource(AlignedSymbols):
    """Floored ascent.

    L = mean_t max(0, log p_t − log ε)
    """


@pytest.mark.parametrize(
    ("method", "verdict"),
    [
        (AlignedSymbols, "passed"),
        (GoogleSymbols, "passed"),
        (NoSymbols, "warning"),
        (NoSource, "fault"),
    ],
)
def test_symbols_may_be_aligned_or_a_section_and_only_their_absence_is_a_warning(
    method: type[Method], verdict: str
) -> None:
    (result,) = check_plugin("methods", method, only=["docstring"])
    assert result.outcome.verdict == verdict
