"""A plan is the whole grid, its ids say what its numbers depend on, and a folder has one owner."""

import json
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api.benchmark import SplitKey
from unlearnbench.base.errors import ConfigError, RecordError
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.benchmarks.tofu import TOFU
from unlearnbench.config.entries import attack_specs
from unlearnbench.config.loader import load_config
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.plan import Plan, make_plan
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import (
    TINY_PREPARATION,
    EvaluationSettings,
    MethodGrid,
    ModelSettings,
    Patience,
    Preparation,
    RetainSpec,
    SweepConfig,
)
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.results.effort import efforts_of, planned_work
from unlearnbench.results.sweep_folder import claim_folder
from unlearnbench.runs.model_sources import ModelSources, reference_ids
from unlearnbench.runs.plan_sweep import plan_sweep

SHORT = TINY_PREPARATION.model_copy(update={"max_length": 64})


def config(**changes: Any) -> SweepConfig:
    """Two models, two fractions, three methods (one with its own rates), two seeds."""
    settings: dict[str, Any] = {
        "name": "small",
        "models": (ModelSettings(name="a", base="tiny"), ModelSettings(name="b", base="tiny")),
        "forget_fractions": (0.1, 0.2),
        "methods": (
            MethodGrid(specs=(method_spec("ce-u", {}),)),
            MethodGrid(
                specs=tuple(
                    method_spec("npo", {"beta": b}, RetainSpec(term="nll")) for b in (0.1, 0.5)
                ),
                learning_rates=(1e-3,),
            ),
        ),
        "learning_rates": (1e-5, 2e-5),
        "epochs": 3,
        "seeds": (0, 1),
    }
    return SweepConfig(**(settings | changes))


def test_the_product() -> None:
    plan = make_plan(config(), "f")
    assert len(plan.runs) == 2 * 2 * (2 + 2) * 2
    assert len({run.id for run in plan.runs}) == len(plan.runs)
    rates = {r.method.name: set[float | None]() for r in plan.runs}
    for run in plan.runs:
        rates[run.method.name].add(run.learning_rate)
    assert rates == {"ce-u": {1e-5, 2e-5}, "npo": {1e-3}}
    assert plan.runs[0].title == "ce-u · a · forget 0.1 · lr 1e-05 · 3 epochs · seed 0"


class TestIdentity:
    """The id depends on what the numbers depend on, and on nothing else."""

    def first(self, fingerprint: str = "f", **changes: Any) -> RunSpec:
        return make_plan(config(**changes), fingerprint).runs[0]

    def test_is_the_same_for_a_larger_sweep(self) -> None:
        assert self.first().id == self.first(seeds=(0,), learning_rates=(1e-5,), name="other").id

    @pytest.mark.parametrize(
        ("name", "known"),
        [
            ("altpo", "760577e71902fb18"),
            ("dpo", "152778d928bf36bd"),
            ("eco", "4baa4cd64e4a0951"),
            ("general-ce-u", "f470652e6e58814c"),
            ("satimp", "9b0cf52d5657b14e"),
        ],
    )
    def test_new_hyper_parameters_at_defaults_keep_ids(self, name: str, known: str) -> None:
        """The ids that commit 299428d gave."""
        grid = MethodGrid(specs=(method_spec(name, {}),))
        stated = Preparation(**Preparation().model_dump())  # the defaults of that commit
        plain = SweepConfig(
            name="x",
            models=(ModelSettings(name="tiny", base="tiny", preparation=stated),),
            forget_fractions=(0.1,),
            methods=(grid,),
        )
        assert make_plan(plain, "f" * 16).runs[0].id == known

    def test_ignores_settings_that_change_no_number(self) -> None:
        first = self.first()
        assert first.id == self.first(evaluation=EvaluationSettings(batch_tokens=64)).id
        assert "stop_below" not in first.identity["evaluation"]
        assert first.id != self.first(evaluation=EvaluationSettings(stop_below=0.2)).id
        assert first.id == self.first(data=TOFU(path="elsewhere")).id
        models = (ModelSettings(name="a", base="tiny", gradient_checkpointing=True),)
        assert first.id == self.first(models=models).id

    def test_metrics_of_stored_observations_are_no_part_of_it(self) -> None:
        """Unless one of them ends the run."""
        chosen: Any = {"metrics": {"mia-min-k": {"share": 0.2}}}
        assert self.first().id == self.first(evaluation=EvaluationSettings(**chosen)).id
        assert "metrics" not in self.first().identity["evaluation"]
        patience = Patience(metric="mia_min_k", epochs=1)
        plain = self.first(evaluation=EvaluationSettings(patience=patience))
        assert plain.id != self.first(evaluation=EvaluationSettings(patience=patience, **chosen)).id
        assert "metrics" not in plain.identity["evaluation"]

    @pytest.mark.parametrize(
        "changes",
        [
            {"fingerprint": "g"},
            {"epochs": 4},
            {"evaluation": EvaluationSettings(rows=20)},
            {"models": (ModelSettings(name="c", base="tiny"),)},
            {"models": (ModelSettings(name="a", base="tiny", dtype="bfloat16"),)},
            {"models": (ModelSettings(name="a", base="tiny", preparation=SHORT),)},
            {"forget_fractions": (0.2,)},
            {"seeds": (1,)},
            {"methods": (MethodGrid(specs=(method_spec("idk", {}),)),)},
            {"methods": (MethodGrid(specs=(method_spec("ce-u", {}, RetainSpec(term="kl")),)),)},
        ],
    )
    def test_depends_on_settings_that_change_numbers(self, changes: dict[str, Any]) -> None:
        assert self.first(**changes).id != self.first().id

    @pytest.mark.parametrize("name", ["eco", "npo"])
    def test_what_attacks_train_by_is_part_of_it_where_the_run_has_other(self, name: str) -> None:
        whole = TrainingSettings(max_length=400)
        own = None if name == "eco" else whole
        grids = (MethodGrid(specs=(method_spec(name, {}),), training=own),)
        attacks = attack_specs({"relearning": {}})
        long: dict[str, Any] = {"methods": grids, "training": whole}
        short: dict[str, Any] = long | {"training": TrainingSettings(max_length=56)}
        assert self.first(**long).id == self.first(**short).id
        assert self.first(**long, attacks=attacks).id != self.first(**short, attacks=attacks).id

    def test_distinguishes_infinities(self) -> None:
        def run(score: float) -> RunSpec:
            spec = method_spec("general-ce-u", {"raw": True, "forget_score": score})
            return self.first(methods=(MethodGrid(specs=(spec,)),))

        ids = {run(score).id for score in (float("inf"), float("-inf"), 0.0)}
        assert len(ids) == 3
        document = run(float("-inf")).to_json()
        assert json.loads(json.dumps(document, allow_nan=False))["method"]["hyperparameters"][
            "forget_score"
        ] == ("-inf")
        spec = run(float("-inf"))
        assert RunSpec.model_validate_json(spec.model_dump_json()) == spec

    def test_does_not_depend_on_other_fractions(self) -> None:
        both = make_plan(config(), {0.1: "f", 0.2: "g"})
        one = make_plan(config(forget_fractions=(0.1,)), {0.1: "f"})
        assert {run.id for run in one.runs} < {run.id for run in both.runs}


@pytest.mark.parametrize(
    ("changes", "attacks_alone"),
    [
        ({"base": "org/other"}, False),
        ({"revision": "v2"}, False),
        ({"fine_tuned": "org/full@v2"}, False),
        ({"retain": {"retain90": "org/retain@v2"}}, False),
        ({"template": "phi"}, False),
        ({"dtype": "bfloat16"}, False),
        ({"eos_as_padding": True}, True),
    ],
)
def test_evaluations_of_published_models_are_known_by_all_that_they_read(
    changes: dict[str, Any], attacks_alone: bool, tmp_path: Path
) -> None:
    hub: dict[str, Any] = {
        "base": "org/base",
        "fine_tuned": "org/full",
        "retain": {"retain90": "org/retain"},
    }
    attacked = config(attacks=attack_specs({"relearning": {}}))
    rows = load_benchmark(Synthetic(authors=10, questions_per_author=2), (0.1,))

    def ids(**more: Any) -> list[str]:
        fields: dict[str, Any] = {"name": "a", "template": "plain", **hub, **more}
        model = ModelSettings(**fields)
        sources = ModelSources(model, rows, tmp_path)
        return [*reference_ids(attacked, [sources], {0.1: "f"})]

    before, after = ids(), ids(**changes)
    assert len({*before}) == 4
    plain, under = before[::2], before[1::2]
    assert under[0] not in after
    assert under[1] not in after
    assert ({*plain} <= {*after}) == attacks_alone
    assert attacks_alone or {*plain}.isdisjoint(after)


class TestFolder:
    """One folder, one sweep: the same name on the same data."""

    def plan(self, tmp_path: Path, data: str | dict[SplitKey, str] = "f", **changes: Any) -> Plan:
        return make_plan(config(output=str(tmp_path / "runs"), **changes), data)

    def test_of_one_run_keeps_what_a_sweep_has_added(self, tmp_path: Path) -> None:
        plan, more = self.plan(tmp_path), self.plan(tmp_path, seeds=(0, 1, 2))
        file = claim_folder(plan) / "plan.json"
        document = json.loads(file.read_text())
        file.write_text(json.dumps(document | {"runs": more.to_json()["runs"]}))
        claim_folder(plan, extend=True)
        assert len(json.loads(file.read_text())["runs"]) == len(more.runs)
        claim_folder(self.plan(tmp_path, "f", seeds=(0,)), extend=True)
        assert len(json.loads(file.read_text())["runs"]) == len(plan.runs) / 2, "another grid"

    def test_is_claimed_and_may_be_extended(self, tmp_path: Path) -> None:
        folder = claim_folder(self.plan(tmp_path))
        assert folder == tmp_path / "runs" / "small"
        assert [p.name for p in folder.iterdir()] == ["plan.json"]
        first = json.loads((folder / "plan.json").read_text())
        assert len(first["runs"]) == 32
        assert first["plugin_files"] == []
        (folder / "records").mkdir()
        claim_folder(self.plan(tmp_path, seeds=(0, 1, 2)))
        second = json.loads((folder / "plan.json").read_text())
        assert {r["id"] for r in first["runs"]} < {r["id"] for r in second["runs"]}
        claim_folder(self.plan(tmp_path, {0.1: "f", 0.5: "h"}, forget_fractions=(0.1, 0.5)))

    @pytest.mark.parametrize("had_texts", [True, False])
    def test_has_records_with_texts_or_without_them(self, had_texts: bool, tmp_path: Path) -> None:
        folder = claim_folder(self.plan(tmp_path, keep_texts=had_texts))
        other = self.plan(tmp_path, keep_texts=not had_texts)
        (folder / "records" / "0123456789abcdef").mkdir(parents=True)
        with pytest.raises(RecordError, match=f"records with{'' if had_texts else 'out'} texts"):
            claim_folder(other)
        claim_folder(self.plan(tmp_path, keep_texts=had_texts))


def test_inference_methods_have_one_run_per_setting() -> None:
    sigmas = tuple(method_spec("eco", {"sigma": s}) for s in (1.0, 5.0))
    methods = (MethodGrid(specs=sigmas), MethodGrid(specs=(method_spec("ce-u", {}),)))
    for as_ in ("checkpoints", "runs"):
        plan = make_plan(config(methods=methods, epochs=3, epochs_as=as_), "data")
        wrapped = [run for run in plan.runs if run.method.name == "eco"]
        assert len(wrapped) == 2 * 2 * 2 * 2, "models, fractions, seeds and points of the grid"
        assert {(r.learning_rate, r.epochs, r.evaluate_at) for r in wrapped} == {(None, 1, (1,))}
        assert "lr" not in wrapped[0].title
        assert RunSpec.model_validate(wrapped[0].model_dump()).id == wrapped[0].id
    batch = config(methods=methods, training={"batch_size": 7})
    other = {run.id for run in make_plan(batch, "data").runs if run.method.name == "eco"}
    assert other == {run.id for run in wrapped}, "how others are trained changes nothing"
    data = load_benchmark(Synthetic(authors=10, questions_per_author=2), (0.1, 0.2))
    work = planned_work(efforts_of(make_plan(config(methods=methods[:1]), "data").runs, data))
    assert [*work.values()][:4] == [16, 0, 0, 16]


def chat_folder(place: Path, tokenizer: Any, template: str) -> str:
    """A model's folder as far as planning looks into it."""
    tokenizer.save_pretrained(place)
    (place / "config.json").write_text("{}")
    (place / "chat_template.jinja").write_text(template)
    return str(place)


def planned_ids(**model: Any) -> set[str]:
    data = Synthetic(authors=10, questions_per_author=2, pretraining_authors=2)
    models = (ModelSettings(name="chatty", **model),)
    plan, _ = plan_sweep(config(data=data, models=models))
    return {run.id for run in plan.runs}


def test_the_rendered_chat_template_is_part_of_a_runs_identity(
    tmp_path: Path, tokenizer: Any
) -> None:
    text = "{{ date_string }} {{ messages[0].content }}"
    base = chat_folder(tmp_path / "model", tokenizer, text)
    first = planned_ids(base=base, template_args={"date_string": "10 Apr 2025"})
    assert planned_ids(base=base, template_args={"date_string": "10 Apr 2025"}) == first
    assert not planned_ids(base=base, template_args={"date_string": "11 Apr 2025"}) & first
    chat_folder(tmp_path / "model", tokenizer, text + "!")  # same settings, other prompts
    assert not planned_ids(base=base, template_args={"date_string": "10 Apr 2025"}) & first


def test_every_other_epoch_and_the_last_one_are_evaluated() -> None:
    every = make_plan(config(), "f")
    assert {run.evaluate_at for run in every.runs} == {(1, 2, 3)}
    sparse = make_plan(config(evaluation=EvaluationSettings(every=2)), "f")
    assert {(run.epochs, run.evaluate_at) for run in sparse.runs} == {(3, (2, 3))}
    assert not {run.id for run in sparse.runs} & {run.id for run in every.runs}
    once = make_plan(config(evaluation=EvaluationSettings(every=9), epochs_as="runs"), "f")
    same = make_plan(config(epochs=3, evaluation=EvaluationSettings(every=3)), "f")
    assert {run.evaluate_at for run in once.runs} == {(3,)}
    assert [run.id for run in same.runs] == [run.id for run in once.runs]


def written(tmp_path: Path, *lines: str) -> SweepConfig:
    """A configuration file of the quickstart with these lines."""
    path = tmp_path / "mine.yaml"
    path.write_text("\n".join(("extends: quickstart", "name: mine", *lines)) + "\n", "utf-8")
    return load_config(str(path), ())


def test_runs_of_one_method_are_evaluated_more_often_than_others(tmp_path: Path) -> None:
    methods = "methods: [npo, {method: ce-u, evaluation: {every: 1}}]"
    often = written(tmp_path, methods, "epochs: 3", "evaluation: {every: 3}")
    moments = {run.method.name: run.evaluate_at for run in make_plan(often, "f").runs}
    assert moments == {"npo": (3,), "ce-u": (1, 2, 3)}
    by_steps = written(
        tmp_path,
        methods.replace("every: 1", "every_steps: 4"),
        "epochs: null",
        "steps: 10",
        "evaluation: {every: null}",
    )
    moments = {run.method.name: run.evaluate_at for run in make_plan(by_steps, "f").runs}
    assert moments == {"npo": (10,), "ce-u": (4, 8, 10)}


@pytest.mark.parametrize(
    ("entry", "line", "place"),
    [
        ("{every_steps: 2}", "", "evaluation.every_steps"),
        ("{every: 1}", "epochs_as: runs", "evaluation"),
        ("{every: 1}, retain: {term: nll}}, {method: ce-u", "", "evaluation"),
    ],
)
def test_evaluations_of_one_method_that_cannot_be(
    tmp_path: Path, entry: str, line: str, place: str
) -> None:
    with pytest.raises(ConfigError, match=rf"methods\.[01]\.{place}  "):
        written(tmp_path, f"methods: [{{method: ce-u, evaluation: {entry}}}]", line)


def test_epochs_are_checkpoints_or_separate_runs() -> None:
    together = make_plan(config(), "f")
    assert {(run.epochs, run.evaluate_at) for run in together.runs} == {(3, (1, 2, 3))}
    apart = make_plan(config(epochs_as="runs"), "f")
    assert len(apart.runs) == 3 * len(together.runs)
    assert {(r.epochs, r.evaluate_at) for r in apart.runs} == {(1, (1,)), (2, (2,)), (3, (3,))}
