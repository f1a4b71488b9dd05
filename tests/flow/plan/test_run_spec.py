"""A run's id is the same in every version: finished runs are found again."""

import json
from pathlib import Path

import pytest

from unlearnbench.api.identity import Id, identity_of
from unlearnbench.base.hashing import content_hash
from unlearnbench.config import method_specs
from unlearnbench.config.loader import load_config
from unlearnbench.config.plan import make_plan
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import Preparation, RetainSpec, RetainTermName
from unlearnbench.config.training_settings import TrainingSettings

OLD = Path(__file__).parents[2] / "data" / "small_sweep" / "plan.json"
PUBLISHED = {
    "tofu_llama2_7b": "3c3db0e37d064a73",
    "tofu_llama2_7b_one_gpu": "9ee9d6a411a63fd4",
    "tofu_llama3_2_1b": "d262dc5ab8d42e39",
    "tofu_phi_1_5": "622f65bd1e0e1bc4",
    "tofu_tiny": "100a1f1dcee875fb",
}
"""By configuration: the hash of the ids of its runs on data with the fingerprint `f`.

All but `tofu_tiny` changed when weight decay left out norms and biases, as in TOFU's trainer,
and when KL had no gradient of rounding errors in the first step.
"""


def test_specs_of_an_early_version_have_their_ids() -> None:
    runs = json.loads(OLD.read_text(encoding="utf-8"))["runs"]
    assert len(runs) == 8
    for run in runs:
        assert RunSpec.model_validate_json(json.dumps(run["spec"])).id == run["id"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_runs_of_tofus_configurations_have_their_ids(name: str) -> None:
    plan = make_plan(load_config(name), "f")
    assert content_hash([run.id for run in plan.runs]) == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "modifiers", "changes"),
    [
        ("idk", {"salun": {}}, True),
        ("general-ce-u", {"sure": {}}, True),
        ("idk", {"sam": {}, "average": {}}, True),  # joint in an earlier version, too
        ("idk", {"salun": {"keep": 1.0}}, False),  # a mask of all weights
        ("idk", {"salun": {}, "pcgrad": {}}, False),  # which takes the roles apart anyway
        ("idk", {"spectral": {}, "shrink": {}}, False),  # they need no role's gradient
        ("idk", {}, False),
        ("gradient-difference", {"salun": {}}, False),  # has a term for each role
    ],
)
def test_only_a_joint_mean_that_is_now_divided_has_another_id(
    name: str, modifiers: dict[str, dict[str, float]], changes: bool
) -> None:
    values = {f"{key}.{field}": v for key, some in modifiers.items() for field, v in some.items()}
    spec = method_specs.method_spec(name, values, None, modifiers)
    assert method_specs.takes_roles_apart(spec) is changes


@pytest.mark.parametrize(
    ("name", "retain", "modifiers", "changes"),
    [
        ("gradient-ascent", "kl", ["sago"], True),
        ("npo", "kl", ["wagle"], True),
        ("kl-minimization", None, ["dual"], True),
        ("jensun", "kl", ["pcgrad"], True),
        ("rmu", None, [], True),
        ("kl-minimization", None, [], True),
        ("gradient-ascent", "kl", ["salun"], True),
        ("jensun", "nll", ["pcgrad"], False),  # the gradient of nll is not 0
        ("gradient-difference", "kl", ["sago"], False),  # nor that of its own retain term
        ("gradient-ascent", "kl", ["sago", "shrink"], False),  # the start model is damaged first
        ("gradient-ascent", "nll", ["sago"], False),
        ("npo", None, [], False),
    ],
)
def test_only_runs_whose_first_gradient_was_of_rounding_errors_have_another_id(
    name: str, retain: RetainTermName | None, modifiers: list[str], changes: bool
) -> None:
    term = None if retain is None else RetainSpec(term=retain)
    spec = method_specs.method_spec(name, {}, term, modifiers)
    assert method_specs.starts_exactly(spec) is changes


def test_which_weights_decay_is_in_ids_if_any_does() -> None:
    plan = make_plan(load_config("tofu_tiny"), "f")
    run = plan.runs[0]

    def with_training(**changes: float) -> str:
        training = TrainingSettings.model_validate(run.training.model_dump() | changes)
        return run.model_copy(update={"training": training}).id

    assert not run.training.weight_decay
    assert with_training(decay_norms_and_biases=False) == run.id
    decayed = with_training(weight_decay=0.1)
    assert with_training(weight_decay=0.1, decay_norms_and_biases=True) == decayed
    assert with_training(weight_decay=0.1, decay_norms_and_biases=False) != decayed

    def prepared(**changes: float) -> dict[str, object]:
        return identity_of(Preparation.model_validate(changes), Id.PREPARED)

    assert prepared(weight_decay=0.0, decay_norms_and_biases=False) == prepared(weight_decay=0.0)
    assert prepared(decay_norms_and_biases=False) != prepared()
