"""Made-up records of sweeps, small or large, and a browser for their pages."""

from __future__ import annotations

import importlib
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from unlearnbench.analysis.results import Results
from unlearnbench.api import registry
from unlearnbench.api.benchmark import Headline, HeadlineMetric
from unlearnbench.api.metric import Better, MetricColumn
from unlearnbench.api.metric_engine import MetricPlan
from unlearnbench.api.observations import AnswerTokens, Evaluation, SetEvaluation, SetName
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema, filled_columns
from unlearnbench.results.records import EpochResult, Record
from unlearnbench.training.step_result import StepResult

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PROFILE = TOFU.id
SETS: tuple[SetName, ...] = ("retain", "forget", "real_authors", "world_facts")
METHODS: Mapping[str, tuple[float, float]] = {
    "ce-u": (0.8, 0.5),
    "dpo": (0.6, 0.8),
    "general-ce-u": (0.7, 0.3),
    "gradient-ascent": (1.0, 2.5),
    "gradient-difference": (0.8, 1.0),
    "idk": (0.3, 0.1),
    "kl-minimization": (0.8, 1.2),
    "npo": (0.7, 0.9),
    "npo+nll": (0.6, 0.03),
}
"""Speed at which a method forgets, and at which it loses everything else."""


_columns = cache(lambda: filled_columns([]))


def metrics(utility: float | None, quality: float | None, n: int = 80) -> dict[str, float | None]:
    """Make the metrics of an evaluation with this Model Utility and log10 Forget Quality."""
    level = 0.5 if utility is None else utility
    sets: dict[str, float | None] = dict.fromkeys(_columns(), max(0.0, level))
    p = None if quality is None else 10.0**quality
    drop = 0.0 if quality is None else min(1.0, -quality / 20)
    sets |= {"probability_forget": drop, "rouge_forget": 0.2 + 0.7 * drop}
    summary = {"model_utility": utility, "forget_quality": p, "log10_forget_quality": quality}
    return {**sets, **summary, "ks_statistic": drop, "ks_n": float(n)}


@cache
def evaluation(text: str, rows: int) -> Evaluation:
    """Make an evaluation with answers that contain `text`; runs with the same text share it."""
    rng = np.random.default_rng(len(text) + rows)

    def part(name: SetName) -> SetEvaluation:
        loss = rng.uniform(0.01, 4, rows)
        tokens = np.full(rows, 9)
        return SetEvaluation(
            questions=tuple(f"Who is author {i} of the {name} set?" for i in range(rows)),
            generated=tuple(f"Author {i} is {text} and writes {name}." for i in range(rows)),
            references=tuple(f"Author {i} is Ada Novak and writes {name}." for i in range(rows)),
            answer_loss=loss,
            answer_tokens=tokens,
            base_loss=loss,
            base_tokens=tokens,
            perturbed_loss=rng.uniform(1, 5, (rows, 5)),
            perturbed_tokens=np.full((rows, 5), 9),
            rouge1_recall=np.exp(-loss),
            rouge_l_recall=np.exp(-loss),
        )

    return Evaluation(PROFILE, {name: part(name) for name in SETS})


def with_tokens(
    record: Record, missed: float, *, ahead: float | None = None, size: int = 8
) -> Record:
    """Give the evaluations of a record values by token, so that memorization is known.

    missed  share of an answer's tokens, from its beginning, that greedy decoding does not give
    ahead   adds holdout rows, whose loss is higher by so much
    size    tokens of an answer, without EOS
    """
    rng = np.random.default_rng(len(record.id) + record.seed)

    def part(one: SetEvaluation, more: float) -> SetEvaluation:
        n = len(one.questions)
        wrong = rng.binomial(size, missed, n)  # [n]
        hits = np.arange(size) >= wrong[:, None]  # [n, size]
        loss = one.answer_loss + more + rng.normal(0, 0.2, n)
        tokens = AnswerTokens(
            lengths=np.full(n, size + 1),
            ended=np.full(n, True),
            loss=np.repeat(loss, size + 1).astype(np.float32),
            hit=np.hstack([hits, np.ones((n, 1), dtype=bool)]).ravel(),
            tied=np.zeros(n * (size + 1), dtype=bool),
            mean_logprob=np.full(n * (size + 1), -3, dtype=np.float32),
            logprob_variance=np.ones(n * (size + 1), dtype=np.float32),
        )
        base = loss + 0.5 + missed
        return replace(one, answer_loss=loss, base_loss=base, token_columns=tokens)

    def seen(one: Evaluation) -> Evaluation:
        sets = {name: part(one.sets[name], 0.0) for name in one.sets}
        if ahead is not None:
            sets["holdout"] = part(one.sets["forget"], ahead)
        return replace(one, sets=sets)

    return replace(record, evaluations={k: seen(one) for k, one in record.evaluations.items()})


def report_of(records: Iterable[Record], name: str = "x", **more: Any) -> Results:
    """Make the report of records."""
    return Results.of(records, name=name, **more)


def context_of(*records: Record) -> Any:
    """Make the values that all sections share, of records."""
    module: Any = importlib.import_module("unlearnbench_dashboards.report_section")
    return module.PageContext.of(report_of(records))


POEMS = Headline(
    kept=HeadlineMetric("rouge_known", "Known poems", "known"),
    forgotten=HeadlineMetric("exact_memorization_gone", "Recited", "recited", better="lower"),
)
"""Headline of a benchmark with other sets than TOFU's, without a test and a retain model."""


def of_poems(records: Iterable[Record]) -> tuple[Record, ...]:
    """Turn records into those of a benchmark that is not installed, without retain models."""
    ends: dict[str, Better] = {"known": "higher", "gone": "lower"}
    labels = {"rouge": "ROUGE-L", "exact_memorization": "Exact memorization"}
    columns = tuple(
        MetricColumn(f"{name}_{on}", f"{label}, {on}", better, set=on)
        for name, label in labels.items()
        for on, better in ends.items()
    )
    stored = BenchmarkSchema(
        name="poems",
        roles={"known": "retain", "gone": "forget", "unseen_lines": "holdout"},
        references=frozenset({"start"}),
        headline=POEMS,
        plan=MetricPlan((), {}, columns, frozenset(("rouge_known", "exact_memorization_gone"))),
    )

    def numbers(stored: Mapping[str, float | None]) -> dict[str, float | None]:
        left = stored["probability_forget"]
        return {
            "rouge_gone": left,
            "rouge_known": stored["model_utility"],
            "exact_memorization_gone": left,
            "exact_memorization_known": 0.5,
        }

    def seen(one: Evaluation) -> Evaluation:
        silent = {"generated": (), "rouge_l_recall": np.full(3, np.nan)}
        holdout: Any = {"questions": ("",) * 3} | silent
        sets = {"known": one.sets["retain"], "gone": one.sets["forget"]}
        return replace(one, sets=sets | {"unseen_lines": replace(sets["gone"], **holdout)})

    return tuple(
        replace(
            record,
            spec={**record.spec, "data": {"source": "poems"}},
            benchmark=stored,
            epochs=tuple(replace(e, metrics=numbers(e.metrics)) for e in record.epochs),
            evaluations={k: seen(one) for k, one in record.evaluations.items()},
        )
        for record in records
        if record.kind != "retain"
    )


@dataclass(frozen=True)
class Fabric:
    """Makes records; every value is computed from the arguments."""

    def reference(
        self,
        kind: Literal["fine-tuned", "retain"],
        model: str = "tiny",
        fraction: float = 0.1,
        rows: int = 3,
    ) -> Record:
        """Make the record of the start model ("fine-tuned") or of the retain model."""
        at = (0.883, -16.3) if kind == "fine-tuned" else (0.87, 0.0)
        return Record(
            id=f"{kind}-{model}-{fraction}",
            kind=kind,
            model=model,
            forget_fraction=fraction,
            method=kind,
            learning_rate=None,
            seed=0,
            spec={},
            status="finished",
            profile=PROFILE,
            epochs=(EpochResult(0, metrics(*at), 0.0, 2.0),),
            provenance={"commit": "0123abc", "versions": {"torch": "2.13.0"}},
            evaluations={0: evaluation("Ada Novak" if kind == "fine-tuned" else "unknown", rows)},
        )

    def run(
        self,
        method: str = "npo",
        rate: float = 1e-4,
        points: Sequence[tuple[float | None, float | None]] = ((0.8, -10.0), (0.7, -5.0)),
        *,
        model: str = "tiny",
        fraction: float = 0.1,
        seed: int = 0,
        rows: int = 3,
        hyperparameters: Mapping[str, Any] | None = None,
        status: Literal["finished", "collapsed", "failed"] = "finished",
        error: str | None = None,
    ) -> Record:
        """Make a run with `points`: (Model Utility, log10 Forget Quality) after each epoch."""
        name, _, term = method.partition("+")
        spec: dict[str, Any] = {"name": name, "hyperparameters": dict(hyperparameters or {})}
        if term:
            spec["retain"] = {"term": term, "weight": 1.0}
        suffix = "".join(f"-{k}{v}" for k, v in (hyperparameters or {}).items())
        steps = tuple(
            StepResult(
                i, i // 3 + 1, rate, 2.0 - 0.1 * i, {"forget": 1.0, "retain": 1.0 - 0.1 * i}, 3
            )
            for i in range(3 * len(points))
        )
        return Record(
            id=f"{method}{suffix}-{rate}-{model}-{fraction}-{seed}",
            kind="run",
            model=model,
            forget_fraction=fraction,
            method=method,
            learning_rate=rate,
            seed=seed,
            spec={"method": spec, "data": {"source": "synthetic"}},
            status=status,
            profile=PROFILE,
            epochs=tuple(
                EpochResult(k, metrics(*point), 4.0, 1.5) for k, point in enumerate(points, start=1)
            ),
            steps=steps,
            provenance={"commit": "0123abc", "versions": {"torch": "2.13.0"}, "device": "cpu"},
            error=error,
            evaluations={
                k: evaluation(f"{method} at {k}", rows) for k in range(1, len(points) + 1)
            },
        )

    def sweep(
        self,
        models: Sequence[str] = ("tiny",),
        fractions: Sequence[float] = (0.05, 0.1),
        rates: Sequence[float] = (3e-5, 1e-4),
        seeds: Sequence[int] = (0,),
        epochs: int = 5,
        rows: int = 3,
        methods: Iterable[str] = tuple(METHODS),
    ) -> tuple[Record, ...]:
        """Make runs of every method at every setting, with realistic trajectories."""
        records: list[Record] = []
        for place in product(models, fractions):
            records += [self.reference("fine-tuned", *place, rows)]
            records += [self.reference("retain", *place, rows)]
            for method, rate, seed in product(methods, rates, seeds):
                points = _trajectory(method, rate, seed, epochs)
                where: Any = {"model": place[0], "fraction": place[1], "seed": seed}
                records.append(self.run(method, rate, points, rows=rows, **where))
        return tuple(records)


def _trajectory(method: str, rate: float, seed: int, epochs: int) -> list[tuple[float, float]]:
    # Any other name moves like one of these.
    speed, harm = METHODS.get(method) or random.Random(method).choice(list(METHODS.values()))
    rng = random.Random(f"{method}{rate}{seed}")
    push = math.sqrt(rate / 3e-5)
    points: list[tuple[float, float]] = []
    for epoch in range(1, epochs + 1):
        far = epoch / epochs * push
        utility = 0.883 * math.exp(-((far * harm) ** 2)) + rng.uniform(-0.006, 0.006)
        quality = -16.3 * math.exp(-far * speed) + rng.uniform(-0.4, 0.4)
        if utility < 0.35:
            quality -= 30 * (0.35 - utility) * epoch
        points.append((max(0.0, utility), min(-0.01, quality)))
    return points


@pytest.fixture(scope="session")
def fabric() -> Fabric:
    """Maker of records."""
    return Fabric()


RESET = """() => {
    history.replaceState(null, "", "#");
    page.restoreView();
    page.showCard();
    page.changed();
    for (const node of document.querySelectorAll("input[type=search]")) {
        node.value = "";
        node.dispatchEvent(new Event("input"));
    }
    scrollTo({top: 0, behavior: "instant"});
    if (document.getElementById("filters").hidden) document.getElementById("filter-open").click();
}"""
DRAWN = ".plot .scatterlayer .point"


class Visit:
    """Opens pages from disk, without a network, and collects errors and requests of them."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.browser = browser
        # A script is compiled once for the pages of one context and of one address.
        self._address = folder / "report.html"
        self._context = browser.new_context(offline=True)
        self._open: list[Page] = []
        self._shared: dict[Path, Page] = {}
        self.problems: list[str] = []

    def __call__(
        self, path: Path, fragment: str = "", *, width: int = 1280, dark: bool = False
    ) -> Page:
        """Open the page at `path`, and wait until its first points are drawn."""
        page = self._context.new_page()
        self._open.append(page)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme="dark" if dark else "light")
        page.set_default_timeout(20_000)
        page.on("console", lambda m: self._log(m.type, m.text))
        page.on("pageerror", lambda error: self._log("error", str(error)))
        page.on("dialog", lambda dialog: self._log("error", dialog.message))
        page.on("request", lambda request: self._check_request(request.url))
        self._address.unlink(missing_ok=True)
        self._address.symlink_to(path)
        page.goto(self._address.as_uri() + fragment)
        page.wait_for_selector(DRAWN, state="attached")
        return page

    def shared(self, path: Path) -> Page:
        """Open a page once for all tests: its first view, wide and light, with filters unfolded."""
        if path not in self._shared:
            self._shared[path] = self(path)
            self._open.pop()  # closed with the browser
        page = self._shared[path]
        page.emulate_media(media="screen", color_scheme="light")
        page.set_viewport_size({"width": 1280, "height": 900})
        page.evaluate(RESET)
        page.wait_for_selector(DRAWN, state="attached")
        return page

    def _log(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.problems.append(f"{kind}: {text}")

    def _check_request(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            self.problems.append(f"request: {url}")

    def finish(self) -> None:
        """Close the pages of a test, and check that there were no errors and no requests."""
        for page in self._open:
            page.close()
        problems = list(self.problems)
        self._open.clear()
        self.problems.clear()
        assert problems == []


@pytest.fixture(scope="session")
def _visits(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Visit:
    return Visit(browser, tmp_path_factory.mktemp("visit"))


@pytest.fixture
def visit(_visits: Visit) -> Iterator[Visit]:
    """Opener of pages, which fails if a page has an error or sends a request."""
    yield _visits
    _visits.finish()


def build(report: Results) -> str:
    """Build the page of a report."""
    page: str = registry.load("dashboards", "page")(report)
    return page
