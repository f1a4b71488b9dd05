"""TOFU's schedule, step by step as its trainer has it, and what the CE-U paper's tables show."""

import csv
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from unlearnbench.api.benchmark import Question
from unlearnbench.base.optional_packages import import_optional
from unlearnbench.config.config_sources import shipped_configs
from unlearnbench.config.loader import load_config
from unlearnbench.config.plan import make_plan
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import ModelSettings, Preparation, SweepConfig
from unlearnbench.config.step_schedule import make_schedule

from ...factories.trainers import losses, objective_of, trainer_of, training_rows, weights
from ..plan.test_plan import config

PUBLISHED = Path(__file__).parents[3] / "dashboards" / "figures" / "published" / "ceu_tables.csv"
SIZES = (40, 200, 400)
"""Rows of TOFU's forget sets of 1 %, 5 % and 10 %."""


def tofus_trainer(rows: int, epochs: int, micro: int, accumulated: int) -> Iterator[list[int]]:
    """Rows of each optimiser step, in the sequence of all epochs, as TOFU's trainer takes them.

    Its loop, cut down: locuslab/tofu@8c49eee forget.py gives `max_steps`; transformers 4.38
    trainer.py `_inner_training_loop` counts `total_batched_samples` through all epochs, as
    DeepSpeed's engine counts `micro_steps`, and ends at `max_steps`.
    """
    max_steps = int(epochs * rows) // (micro * accumulated)
    held: list[int] = []
    batches = steps = epoch = 0
    while steps < max_steps:
        order = list(range(epoch * rows, (epoch + 1) * rows))
        for begin in range(0, rows, micro):
            held += order[begin : begin + micro]
            batches += 1
            if batches % accumulated == 0:
                yield held
                held, steps = [], steps + 1
                if steps == max_steps:
                    return
        epoch += 1


@pytest.mark.parametrize("epochs", [1, 2, 5, 10])
@pytest.mark.parametrize("rows", SIZES)
def test_tofu_steps_equal_those_of_its_trainer(rows: int, epochs: int) -> None:
    made = make_schedule("tofu", rows, 32, epochs=epochs)
    steps = list(tofus_trainer(rows, epochs, micro=8, accumulated=4))
    assert [list(made.positions(step)) for step in range(made.steps)] == steps
    assert made.steps == int(epochs * rows) // 32
    assert made.rows_drawn == sum(map(len, steps))


@pytest.mark.parametrize("epochs", [1, 2, 5, 10])
@pytest.mark.parametrize("rows", [*SIZES, 3600, 3960])
def test_tofu_rates_equal_those_of_transformers(rows: int, epochs: int) -> None:
    made = make_schedule("tofu", rows, 32, epochs=epochs)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    # forget.py: warmup_steps=max(1, steps_per_epoch); finetune.py: max(1, max_steps//num_epochs).
    per_epoch, in_all = rows // 32, epochs * rows // 32
    assert per_epoch == in_all // epochs
    import_optional("peft")  # transformers would import it with torch's compiler: a second more
    theirs = transformers.get_linear_schedule_with_warmup(optimizer, max(1, per_epoch), in_all)
    for step in range(in_all):
        assert made.factor(step) == theirs.get_last_lr()[0]
        optimizer.step()
        theirs.step()
    assert theirs.get_last_lr()[0] == 0.0, "where the next step would be"


def test_tofu_epochs_end_at_checkpoints() -> None:
    tofu = make_schedule("tofu", 200, 32, epochs=5)
    assert [tofu.end(epoch) for epoch in range(6)] == [0, 6, 12, 18, 24, 31]
    linear = make_schedule("linear", 200, 32, epochs=5)
    assert [linear.end(epoch) for epoch in range(3)] == [0, 7, 14]


def test_a_training_may_end_within_an_epoch() -> None:
    made = make_schedule("linear", 10, 4, epochs=2, most_steps=4)
    assert [made.end(epoch) for epoch in range(3)] == [0, 3, 4]
    assert [made.factor(step) for step in range(made.steps)] == [1, 0.75, 0.5, 0.25]


def test_the_first_step_of_tofu_changes_no_weight(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    rows, objective = training_rows(tokenizer, questions), objective_of("ce-u")
    how = {"schedule": "tofu", "batch_size": len(rows.forget), "weight_decay": 0.1}
    trainer = trainer_of(model, tokenizer, rows, objective, tmp_path, **how)
    before, steps = weights(trainer), trainer.epoch(1)
    assert next(steps).learning_rate == 0
    assert torch.equal(before, weights(trainer))
    following = next(trainer.epoch(2))
    assert following.learning_rate == 1e-3
    assert not torch.equal(before, weights(trainer))


def test_tofu_step_may_contain_rows_of_two_epochs(
    model: Any,
    tokenizer: Any,
    questions: tuple[Question, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Resumed after its first epoch, too."""
    rows, objective = training_rows(tokenizer, questions), objective_of("npo")
    size = len(rows.forget) - 1
    how = {"schedule": "tofu", "batch_size": size, "epochs": size + 1}
    through = trainer_of(model, tokenizer, rows, objective, tmp_path, **how)
    drawn: list[list[int]] = []
    counts = through.batches.counts

    def noting(draws: Any) -> Any:
        drawn.append([draw.index for draw in draws])
        return counts(draws)

    monkeypatch.setattr(through.batches, "counts", noting)
    wanted = losses(through, size + 1)
    assert len(wanted) == size + 2, "one row of each epoch is left for a step of its own"
    epochs = [
        [draw.index for draw in rows.items(objective.needs, 5, epoch)]
        for epoch in range(1, size + 2)
    ]
    stream = [index for epoch in epochs for index in epoch]
    assert drawn == [stream[i : i + size] for i in range(0, len(stream) - size, size)]
    first = trainer_of(model, tokenizer, rows, objective, tmp_path, **how)
    got = losses(first, 1)
    first.save(tmp_path / "state.safetensors")
    second = trainer_of(model, tokenizer, rows, objective, tmp_path, **how)
    second.load(tmp_path / "state.safetensors")
    got += [step.loss for epoch in range(2, size + 2) for step in second.epoch(epoch)]
    assert got == wanted
    assert torch.equal(weights(second), weights(through))


class TestConfiguration:
    """One word, with no other warm-up beside it; a method may train otherwise than the sweep."""

    def load(self, tmp_path: Path, text: str) -> SweepConfig:
        head = "name: x\nmodels: [{name: a, base: tiny}]\nforget_fractions: [0.1]\n"
        (tmp_path / "x.yaml").write_text(head + text)
        return load_config(str(tmp_path / "x.yaml"))

    def test_a_method_changes_a_part_of_the_sweeps(self, tmp_path: Path) -> None:
        text = (
            "training: {schedule: tofu, batch_size: 8}\n"
            "methods:\n- ce-u\n- {method: idk, training: {weight_decay: 0.01}}\n"
        )
        found = self.load(tmp_path, text)
        by_method = {run.method.name: run.training for run in make_plan(found, "f").runs}
        assert by_method["ce-u"] == found.training
        assert by_method["idk"] == found.training.model_copy(update={"weight_decay": 0.01})
        again = SweepConfig.model_validate_json(found.model_dump_json())
        assert again.training_of("idk") == by_method["idk"], "as workers read it"


class TestIdentity:
    """Ids of commit 299428d, by its own code; only phi's runs that leave tokens out are new."""

    def run(self, method: str, template: Any, **changes: Any) -> RunSpec:
        stated = Preparation(**Preparation().model_dump())  # the defaults of that commit
        model = ModelSettings(name="a", base="tiny", template=template, preparation=stated)
        methods = tuple(g for g in config().methods if g.specs[0].name == method)
        return make_plan(config(models=(model,), methods=methods, **changes), "f").runs[0]

    def test_stays(self) -> None:
        assert self.run("ce-u", "llama-2").id == "39231cd74876b74a"
        assert self.run("npo", "phi").id == "0bdf93e78f804607"

    def test_changes_where_the_numbers_do(self) -> None:
        now = self.run("ce-u", "phi")
        assert now.leaves_out_label
        counted = config().training.model_copy(update={"ignore_label": False})
        before = self.run("ce-u", "phi", training=counted)
        assert before.id == "3f7474596d033823"
        assert now.id != before.id
        assert "leaves_out_label" not in before.identity

    def test_of_a_stored_spec_is_what_it_was(self) -> None:
        """A spec from before there was a choice counted the label, whatever the default is now."""
        stored = self.run("ce-u", "phi").to_json()
        del stored["leaves_out_label"], stored["training"]["ignore_label"]
        found = RunSpec.model_validate_json(json.dumps(stored))
        assert not found.leaves_out_label
        assert found.id == "3f7474596d033823"


class TestPresets:
    """The presets of the CE-U paper: its settings for CE-U, TOFU's for TOFU's baselines."""

    @pytest.mark.parametrize(
        "name",
        sorted(
            {n for n in shipped_configs() if n.startswith("tofu_")}
            - {"tofu_tiny", "tofu_smollm2", "tofu_smollm2_forget10"}
        ),
    )
    def test_trains_as_tofu_does(self, name: str) -> None:
        runs = make_plan(load_config(name), "f").runs
        assert {run.training.schedule for run in runs} == {"tofu"}
        assert {run.training.batch_size for run in runs} == {32}
        assert {run.evaluate_at for run in runs} == {(count,) for count in range(1, 6)}
        found = {(r.method.name == "ce-u", r.learning_rate, r.training.weight_decay) for r in runs}
        assert found == {(True, 4e-5, 0.0), (False, 1e-5, 0.01)}


def tables() -> Mapping[tuple[str, float, float, int], Mapping[str, float]]:
    """The CE-U paper's appendix: model, fraction, rate and epoch → metric → value."""
    found: defaultdict[Any, dict[str, float]] = defaultdict(dict)
    with PUBLISHED.open(encoding="utf-8") as lines:
        for line in csv.DictReader(lines):
            key = (
                line["model"],
                float(line["forget_fraction"]),
                float(line["learning_rate"]),
                int(line["epoch"]),
            )
            found[key][line["metric"]] = float(line["value"])
    return found


class TestPublishedTables:
    """The schedule that the paper does not state, read from its tables (arXiv:2503.01224)."""

    def test_the_first_epoch_of_forget01_changed_nothing(self) -> None:
        """At rates 20 apart all 14 metrics are equal to the last digit: the one step had rate 0."""
        found = tables()
        high, low = (found["llama2-7b", 0.01, rate, 1] for rate in (4e-5, 2e-6))
        assert len(high) == 14
        assert high == low
        made = make_schedule("tofu", 40, 32, epochs=1)
        assert [made.factor(step) for step in range(made.steps)] == [0.0]

    def test_later_epochs_and_larger_sets_differ(self) -> None:
        """So the rows above are not one row printed twice."""
        found = tables()
        for fraction, epoch in [(0.01, 2), (0.05, 1), (0.10, 1)]:
            high, low = (found["llama2-7b", fraction, rate, epoch] for rate in (4e-5, 2e-6))
            different = [metric for metric in high if high[metric] != low[metric]]
            assert len(different) >= 13, "ROUGE on 117 world facts may be equal by chance"
        assert make_schedule("tofu", 200, 32, epochs=1).factor(1) > 0

    def test_a_step_more_shows_where_total_epochs_are_runs(self) -> None:
        """Four epochs of 40 rows are floor(160 / 32) = 5 steps, three are 3: the largest gain.

        Of 1 to 5 epochs as runs of their own the rate-weighted steps are 0, 1, 1.5, 2.5, 3; as
        checkpoints of one run they are 0, 1, 1.8, 2.4, 2.8 (or 3), each gain smaller than the one
        before. What is forgotten goes as the former: less from 2 to 3 epochs than before and after,
        and most from 3 to 4.
        """
        runs = [make_schedule("tofu", 40, 32, epochs=epochs) for epochs in range(1, 6)]
        sums = [sum(map(made.factor, range(made.steps))) for made in runs]
        assert sums == pytest.approx([0, 1, 1.5, 2.5, 3])
        for model in ("llama2-7b", "phi"):
            kept = [tables()[model, 0.01, 4e-5, epoch]["Prob. Forget"] for epoch in range(1, 6)]
            lost = [before - after for before, after in pairwise(kept)]
            assert lost[1] < lost[0]
            assert max(lost) == lost[2]
