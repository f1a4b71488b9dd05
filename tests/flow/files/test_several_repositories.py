"""A benchmark may read several repositories of the hub: a plan finds the commit of each one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from unlearnbench.api.benchmark import (
    Benchmark,
    Dataset,
    Headline,
    HeadlineMetric,
    MetricUse,
    Question,
    Reference,
    Split,
)
from unlearnbench.api.metric import Role
from unlearnbench.api.profile import Profile
from unlearnbench.base import hub
from unlearnbench.base.errors import ConfigError, DataError
from unlearnbench.config.entries import attack_specs, benchmark_of, earlier_section
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.schema import MethodGrid, ModelSettings, SweepConfig
from unlearnbench.runs.plan_sweep import plan_sweep

from ...conftest import FakeHub


class TwoSources(Benchmark):
    """Questions from one repository, texts from another one."""

    roles: ClassVar[Mapping[str, Role]] = {"kept": "retain", "asked": "forget"}
    references: ClassVar[frozenset[Reference]] = frozenset({"start"})
    splits: ClassVar[tuple[str, ...]] = ("all",)
    headline: ClassVar[Headline] = Headline(
        kept=HeadlineMetric("probability_kept", "Kept", "kept"),
        forgotten=HeadlineMetric("probability_asked", "Forgotten", "asked", better="lower"),
    )

    source: str = "two-sources"
    hub_id: str = "org/questions"
    texts: str = "org/texts"

    @property
    def repositories(self) -> Mapping[str, hub.Repository]:
        return {
            "hub_id": hub.Repository("dataset", self.hub_id),
            "texts.hub_id": hub.Repository("dataset", self.texts),
        }

    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        del profile
        return (MetricUse("probability", ("kept", "asked")),)

    def load(self, splits: Sequence[str]) -> Dataset:
        del splits
        asked = tuple(Question(f"Who is {i}?", f"Ada {i}") for i in range(40))
        kept = tuple(Question(f"Where is {i}?", f"City {i}") for i in range(40))
        sets = {"kept": kept, "asked": asked}
        return Dataset("two", (*kept, *asked), {"all": Split("all", asked, kept, sets)})


def config_of(
    place: Path, attacks: dict[str, dict[str, Any]] | None = None, **settings: str
) -> SweepConfig:
    return SweepConfig(
        name="two",
        models=(ModelSettings(name="tiny", base="tiny"),),
        data=TwoSources(**settings),
        splits=("all",),
        methods=(MethodGrid(specs=(method_spec("ce-u", {}),)),),
        output=str(place / "runs"),
        attacks=attack_specs(attacks or {}),
    )


@pytest.fixture
def published(fake_hub: FakeHub, tmp_path: Path) -> FakeHub:
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "data.json").write_text("{}")
    for name in ("questions", "texts", "others"):
        fake_hub.add(f"datasets/org/{name}", folder)
    return fake_hub


@pytest.mark.usefixtures("published")
def test_a_plan_has_the_commit_of_each_repository(tmp_path: Path) -> None:
    plan, _ = plan_sweep(config_of(tmp_path))
    assert set(plan.commits) == {"dataset org/questions@main", "dataset org/texts@main"}


@pytest.mark.usefixtures("published")
def test_all_unknown_repositories_are_reported_with_their_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_sweep(config_of(tmp_path, hub_id="org/none", texts="org/nothing"))
    problems = {problem.key: problem.message for problem in caught.value.problems}
    assert set(problems) == {"data.hub_id", "data.texts.hub_id"}
    assert problems["data.texts.hub_id"].startswith("org/nothing: the hub has no such dataset")


@pytest.mark.usefixtures("published")
def test_a_plan_has_the_commit_of_what_an_attack_reads(tmp_path: Path) -> None:
    data = {"source": "tofu", "hub_id": "org/others"}
    plan, _ = plan_sweep(config_of(tmp_path, {"fine-tuning": {"data": data}}))
    assert "dataset org/others@main" in plan.commits
    wrong = {"fine-tuning": {"data": data | {"hub_id": "org/none"}}}
    with pytest.raises(DataError, match="org/none: the hub has no such dataset"):
        plan_sweep(config_of(tmp_path, wrong))


def test_a_tracked_sweep_of_a_folder_keeps_its_id() -> None:
    section = earlier_section(benchmark_of({"source": "muse", "path": "MUSE-News"}))
    assert section == {
        "source": "muse",
        "refusals": None,
        "path": "MUSE-News",
        "tokenizer": None,
        "piece": 2047,
    }, "as versions wrote it that had no `hub_id`"
    other = earlier_section(benchmark_of({"source": "muse", "hub_id": "muse-bench/MUSE-Books"}))
    assert other["hub_id"] == "muse-bench/MUSE-Books"
