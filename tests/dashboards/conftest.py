"""Records of a sweep that nobody ran: shaped as a real one's, small or large."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from unlearnbench.evaluation.profiles import TOFU
from unlearnbench.evaluation.result import SETS, Evaluation, SetEvaluation, SetName
from unlearnbench.records import EpochResult, Record
from unlearnbench.step import StepResult
from unlearnbench.table import SET_METRICS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

PROFILE = TOFU.id
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
"""How fast a method forgets, and how fast it loses everything else."""


def metrics(utility: float | None, quality: float | None, n: int = 80) -> dict[str, float | None]:
    """All metrics of an evaluation that has this Model Utility and log10 Forget Quality."""
    level = 0.5 if utility is None else utility
    sets: dict[str, float | None] = {name: max(0.0, level) for name in SET_METRICS}
    p = None if quality is None else 10.0**quality
    drop = 0.0 if quality is None else min(1.0, -quality / 20)
    sets |= {"probability_forget": drop, "rouge_forget": 0.2 + 0.7 * drop}
    summary = {"model_utility": utility, "forget_quality": p, "log10_forget_quality": quality}
    return {**summary, "ks_statistic": drop, "ks_n": float(n), **sets}


@cache
def evaluation(say: str, rows: int) -> Evaluation:
    """Answers that say `say`, and plausible scores; shared by the runs that say the same."""
    rng = np.random.default_rng(len(say) + rows)

    def part(name: SetName) -> SetEvaluation:
        loss = rng.uniform(0.01, 4, rows)
        tokens = np.full(rows, 9)
        return SetEvaluation(
            questions=tuple(f"Who is author {i} of the {name} set?" for i in range(rows)),
            generated=tuple(f"Author {i} is {say} and writes {name}." for i in range(rows)),
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


@dataclass(frozen=True)
class Fabric:
    """Makes records; every value follows from its arguments."""

    def anchor(
        self,
        kind: Literal["fine-tuned", "retain"],
        model: str = "tiny",
        fraction: float = 0.1,
        rows: int = 3,
    ) -> Record:
        """The model where runs start, or the one they aim at."""
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
        source: str = "synthetic",
        profile: str = PROFILE,
    ) -> Record:
        """A run through `points`, (Model Utility, log10 Forget Quality) after each epoch."""
        name, _, term = method.partition("+")
        spec: dict[str, Any] = {"name": name, "hyperparameters": dict(hyperparameters or {})}
        if term:
            spec["retain"] = {"term": term, "weight": 1.0}
        told = "".join(f"-{k}{v}" for k, v in (hyperparameters or {}).items())
        steps = tuple(
            StepResult(
                i, i // 3 + 1, rate, 2.0 - 0.1 * i, {"forget": 1.0, "retain": 1.0 - 0.1 * i}, 3
            )
            for i in range(3 * len(points))
        )
        return Record(
            id=f"{method}{told}-{rate}-{model}-{fraction}-{seed}",
            kind="run",
            model=model,
            forget_fraction=fraction,
            method=method,
            learning_rate=rate,
            seed=seed,
            spec={"method": spec, "data": {"source": source}},
            status=status,
            profile=profile,
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
    ) -> tuple[Record, ...]:
        """Every method at every setting, with the shapes that such trajectories have."""
        records: list[Record] = []
        for model in models:
            for fraction in fractions:
                records.append(self.anchor("fine-tuned", model, fraction, rows))
                records.append(self.anchor("retain", model, fraction, rows))
                for method in METHODS:
                    for rate in rates:
                        for seed in seeds:
                            points = _way(method, rate, seed, epochs)
                            records.append(
                                self.run(
                                    method,
                                    rate,
                                    points,
                                    model=model,
                                    fraction=fraction,
                                    seed=seed,
                                    rows=rows,
                                )
                            )
        return tuple(records)


def _way(method: str, rate: float, seed: int, epochs: int) -> list[tuple[float, float]]:
    speed, harm = METHODS[method]
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


class Visit:
    """Opens pages from disk, with no network, and takes down whatever goes wrong or leaves them."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.contexts: list[BrowserContext] = []
        self.problems: list[str] = []
        self.requests: set[str] = set()

    def __call__(
        self, path: Path, fragment: str = "", *, width: int = 1280, dark: bool = False
    ) -> Page:
        """The page at `path`, once its first points are drawn."""
        context = self.browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            offline=True,
        )
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: self._told(m.type, m.text))
        page.on("pageerror", lambda error: self._told("error", str(error)))
        page.on("dialog", lambda dialog: self._told("error", dialog.message))
        page.on("request", lambda request: self.requests.add(request.url.partition("#")[0]))
        page.goto(path.as_uri() + fragment)
        page.wait_for_selector(".plot .scatterlayer .point", state="attached")
        return page

    def _told(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.problems.append(f"{kind}: {text}")

    def outside(self) -> list[str]:
        """Addresses asked for that are neither on disk nor in the page itself."""
        return [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Opener of pages; at the end nothing may have gone wrong and no request have left."""
    opened = Visit(browser)
    yield opened
    for context in opened.contexts:
        context.close()
    assert opened.problems == []
    assert opened.outside() == []
