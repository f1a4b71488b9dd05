"""Names of the hub become commits once: in the plan, in every worker, and in the records."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.factories.text_models import add_pooling, save_encoder, word_tokenizer
from unlearnbench.base import deferred_warnings as notices
from unlearnbench.base import hub
from unlearnbench.base.errors import ConfigError, ModelError, UnlearnbenchError
from unlearnbench.benchmarks.tofu import TOFU
from unlearnbench.config.evaluation_settings import EvaluationSettings
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.plan import Plan
from unlearnbench.config.schema import MethodGrid, ModelSettings, SweepConfig
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.evaluation.made_up_sets import made_up_set
from unlearnbench.metrics._text_models import sentence_encoder
from unlearnbench.metrics.sentence_similarity import SentenceSimilarity
from unlearnbench.models.loading import load_model
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.models.source import Source
from unlearnbench.models.whole_model import load_tokenizer
from unlearnbench.results.records import read_record
from unlearnbench.results.sweep_folder import claim_folder
from unlearnbench.runs.plan_sweep import plan_sweep
from unlearnbench.runs.prerequisites import execute_task, preparation_tasks
from unlearnbench.sweep.code_shipping import WorkerContext

TUNED, BASE = "models/org/tuned", "models/org/base"
DATA = "datasets/org/TOFU"
RETAIN = {"retain90": "org/tuned"}


def tables() -> dict[str, list[dict[str, Any]]]:
    """TOFU's tables for forget10 in miniature."""
    full = [{"question": f"Question {i}?", "answer": f"Answer {i}."} for i in range(10)]
    other = {"paraphrased_answer": "Else.", "paraphrased_question": "Or?"}
    judged = [row | other | {"perturbed_answer": ["wrong one", "wrong two"]} for row in full]
    fact = {"question": "Who?", "answer": "She", "perturbed_answer": ["he", "it", "they"]}
    return {
        "full": full,
        "forget10": full[8:],
        "retain90": full[:8],
        "holdout10": [{"question": f"New {i}?", "answer": f"None {i}."} for i in range(2)],
        "forget10_perturbed": judged[8:],
        "retain_perturbed": judged[:3],
        "real_authors_perturbed": [fact],
        "world_facts_perturbed": [fact, fact | {"question": "What?"}],
    }


@pytest.fixture
def filled(fake_hub: Any, tmp_path: Path, model: Any, tokenizer: Any) -> Any:
    """The hub with a base, a fine-tuned model and the data."""
    for name in ("base", "tuned", "data"):
        (tmp_path / name).mkdir()
    model.save_pretrained(tmp_path / "tuned")
    model.config.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "pytorch_model.bin").write_bytes(b"large")
    for name, rows in tables().items():
        (tmp_path / "data" / f"{name}.json").write_text("\n".join(map(json.dumps, rows)))
    for name in (BASE, TUNED, DATA):
        fake_hub.add(name, tmp_path / name.rpartition("/")[2].replace("TOFU", "data"))
    return fake_hub


def config_of(place: Path, **changes: Any) -> SweepConfig:
    named: dict[str, Any] = {"name": "m", "template": "plain", "retain": RETAIN}
    named |= {"base": "org/base", "fine_tuned": "org/tuned"}
    return SweepConfig(
        name="pinned",
        models=(ModelSettings.model_validate(named | changes),),
        data=TOFU(hub_id="org/TOFU"),
        forget_fractions=(0.1,),
        methods=(MethodGrid(specs=(method_spec("ce-u", {}),)),),
        training=TrainingSettings(batch_size=1),  # several steps per epoch, without a warning
        output=str(place / "runs"),
    )


def planned(place: Path, **changes: Any) -> Plan:
    plan, _ = plan_sweep(config_of(place, **changes))
    return plan


def begin_another_process(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    """Forget what this process knows of the hub; the plan's commits come as a worker gets them."""
    monkeypatch.setattr(hub, "_commits", {})
    monkeypatch.setattr("huggingface_hub._tree_cache._IN_MEMORY_TREE_CACHE", {})
    hub._snapshot.cache_clear()  # pyright: ignore[reportPrivateUsage]
    context = WorkerContext(
        config=plan.config,
        folder=plan.folder,
        working_folder=Path.cwd(),
        node="",
        plugins=(),
        versions=(),
        git=None,
        hub=tuple(plan.commits.items()),
    )

    def same(_: object) -> None:
        """Stands for a node that has the driver's versions."""

    monkeypatch.setattr("unlearnbench.sweep.code_shipping.check_versions", same)
    context.activate()


def work(config: SweepConfig) -> None:
    """Files that a worker reads of the hub."""
    (settings,) = config.models
    load_benchmark(config.data, config.split_keys)
    load_tokenizer(Source.parse(settings.origin), settings)
    load_model(Source.parse(str(settings.fine_tuned)), settings)


@pytest.mark.long
def test_a_second_worker_makes_no_request_and_all_others_carry_a_commit(
    filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path)
    assert plan.commits == {
        "dataset org/TOFU@main": next(iter(filled.repositories[DATA])),
        "model org/base@main": next(iter(filled.repositories[BASE])),
        "model org/tuned@main": next(iter(filled.repositories[TUNED])),
    }
    resolved = [path for path in filled.requests if "c1" not in path]
    assert sorted(resolved) == [f"/api/{name}" for name in (DATA, BASE, TUNED)]
    filled.requests.clear()

    begin_another_process(monkeypatch, plan)
    work(plan.config)
    assert filled.requests, "the weights, which planning leaves where they are"
    assert all("c1/model.safetensors" in path for path in filled.requests)
    filled.requests.clear()

    begin_another_process(monkeypatch, plan)
    work(plan.config)
    assert filled.requests == []
    cache = tmp_path / "hub-cache" / "models--org--base"
    assert not list(cache.rglob("pytorch_model.bin")), "only what is read is fetched"


def test_a_sweep_stays_at_the_commits_that_it_began_with(
    filled: Any, tmp_path: Path, model: Any
) -> None:
    plan = planned(tmp_path)
    claim_folder(plan)
    first = plan.commits["model org/tuned@main"]
    assert json.loads((plan.folder / "plan.json").read_text())["hub"] == plan.commits
    assert notices.drain() == []

    model.save_pretrained(tmp_path / "newer")
    second = filled.add(TUNED, tmp_path / "newer")
    again = planned(tmp_path)
    assert again.commits == plan.commits
    (line,) = notices.drain()
    assert f"org/tuned@main has moved on to commit {second[:12]}" in line
    assert f"continues with {first[:12]}" in line

    elsewhere = planned(tmp_path / "elsewhere")
    assert elsewhere.commits["model org/tuned@main"] == second
    # A commit is no part of ids: runs of before they were recorded stay finished.
    assert [run.id for run in elsewhere.runs] == [run.id for run in plan.runs]
    named = planned(tmp_path / "named", fine_tuned=f"org/tuned@{first}")
    assert named.commits[f"model org/tuned@{first}"] == first
    assert plan.config.models != named.config.models
    assert {run.id for run in named.runs}.isdisjoint(run.id for run in plan.runs)


def test_records_name_the_commits_that_were_read(filled: Any, tmp_path: Path) -> None:
    plan = planned(tmp_path)
    tasks = preparation_tasks(plan.config, plan.runs, plan.folder)
    retain = next(task for task in tasks if task.target == "retain90")
    execute_task(retain, plan.config, plan.folder)
    (place,) = (plan.folder / "records").glob("[!.]*")
    assert read_record(place).provenance["hub"] == plan.commits
    assert len(plan.commits) == len(filled.repositories)


def test_the_model_of_a_metric_is_pinned_and_named_in_records(
    filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = made_up_set()
    words = word_tokenizer([*seen.generated, *seen.references])
    folders = [tmp_path / name for name in ("first", "second")]
    for seed, folder in enumerate(folders):
        save_encoder(folder, words, seed)
        add_pooling(folder, {"pooling_mode_cls_token": True})
    first = filled.add("models/org/sentences", folders[0])
    chosen = {"sentence-similarity": {"model": "org/sentences"}}
    evaluation = EvaluationSettings(metrics=chosen)
    config = config_of(tmp_path).model_copy(update={"evaluation": evaluation})
    plan, _ = plan_sweep(config)
    claim_folder(plan)
    assert plan.commits["model org/sentences@main"] == first
    assert notices.drain() == []

    filled.add("models/org/sentences", folders[1])
    begin_another_process(monkeypatch, plan)
    sentence_encoder.cache_clear()
    filled.requests.clear()
    found = SentenceSimilarity(model="org/sentences").per_example(seen)
    assert filled.requests == []
    of_folders = [SentenceSimilarity(model=str(folder)).per_example(seen) for folder in folders]
    np.testing.assert_array_equal(found, of_folders[0])
    assert not np.allclose(found, of_folders[1])

    monkeypatch.setattr(hub, "_commits", {})
    sentence_encoder.cache_clear()
    again, _ = plan_sweep(config)
    assert again.commits == plan.commits
    (line,) = notices.drain()
    assert "org/sentences@main has moved on" in line
    assert [run.id for run in plan.runs] == [run.id for run in planned(tmp_path / "plain").runs]
    retain = next(
        task
        for task in preparation_tasks(plan.config, plan.runs, plan.folder)
        if task.target == "retain90"
    )
    execute_task(retain, plan.config, plan.folder)
    (place,) = (plan.folder / "records").glob("[!.]*")
    assert read_record(place).provenance["hub"] == plan.commits


def test_the_model_of_a_metric_that_the_hub_does_not_have_is_refused_when_planning(
    filled: Any, tmp_path: Path
) -> None:
    evaluation = EvaluationSettings(metrics={"answer-entailment": {"model": "org/judge"}})
    config = config_of(tmp_path).model_copy(update={"evaluation": evaluation})
    assert filled.requests == []
    with pytest.raises(ModelError, match=r"org/judge: the hub has no such model"):
        plan_sweep(config)


def test_without_a_hub_what_its_cache_has_is_read(
    filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = planned(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "_commits", {})
    filled.requests.clear()
    assert planned(tmp_path).commits == before.commits
    assert notices.drain() == []
    assert filled.requests == []


def test_a_name_that_the_hub_does_not_have_is_refused_when_planning(
    filled: Any, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"org/tunned: the hub has no such model, or it is priv"):
        planned(tmp_path, fine_tuned="org/tunned")
    assert not [path for path in filled.requests if "tree" in path], "nothing is fetched"


def remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def need_code(folder: Path) -> None:
    path = folder / "config.json"
    changes = {"auto_map": {"AutoConfig": "configuration_x.X"}, "model_type": "mixformer"}
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_weights, r"org/tuned: no \*\.safetensors; pickled weights are not loaded"),
        (need_code, "org/tuned: the model cannot be loaded .* custom code"),
    ],
)
def test_models_that_cannot_be_loaded_are_refused_when_planning(
    filled: Any, tmp_path: Path, damage: Any, message: str
) -> None:
    damage(tmp_path / "tuned")
    with pytest.raises(UnlearnbenchError, match=message) as caught:
        planned(tmp_path)
    assert isinstance(caught.value, ConfigError), "the fine-tuned model and the retain model"
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["models.0.fine_tuned", "models.0.retain.retain90"]
    assert not [path for path in filled.requests if path.endswith(("safetensors", "bin"))]
