"""Modifiers in a configuration: their entries, mistakes, labels and ids."""

from collections.abc import Callable
from pathlib import Path

import pytest

from unlearnbench.base.deferred_warnings import drain
from unlearnbench.base.errors import ConfigError, PluginError
from unlearnbench.config.loader import load_config
from unlearnbench.config.method_specs import modifiers_from_spec
from unlearnbench.config.plan import make_plan
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.search_space import Space, points_of
from unlearnbench.results.setting_value import SettingValue

HERE = Path(__file__).parent
CONFIG = """\
name: mine
plugins: [{files}]
models: [{{name: tiny, base: tiny, architecture: {{hidden_size: 32, heads: 2}}}}]
forget_fractions: [0.1]
data: {{source: synthetic}}
{rest}
methods:
{entries}
"""
Load = Callable[..., SweepConfig]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a sweep with these method entries."""

    def made(*entries: str, rest: str = "") -> SweepConfig:
        files = ", ".join(str(HERE / f"{name}.py") for name in ("sharpness", "projection", "mask"))
        lines = "\n".join(f"  - {entry}" for entry in entries)
        file = tmp_path / "sweep.yaml"
        file.write_text(CONFIG.format(files=files, entries=lines, rest=rest))
        return load_config(str(file))

    return made


def test_lists_span_the_grid_and_labels_name_modifiers(load: Load) -> None:
    config = load(
        "{method: npo, beta: [0.1, 0.5], retain: nll, "
        "modifiers: [{sharpness: {rho: [0.01, 0.1]}}, projection]}",
        "{method: npo, beta: 0.1, retain: nll}",
    )
    modified, plain = config.methods
    assert [
        (s.hyperparameters["beta"], s.hyperparameters["sharpness.rho"]) for s in modified.specs
    ] == [
        (0.1, 0.01),
        (0.1, 0.1),
        (0.5, 0.01),
        (0.5, 0.1),
    ]
    first = modified.specs[0]
    assert (first.label, plain.specs[0].label) == ("npo+nll+projection+sharpness", "npo+nll")
    made = modifiers_from_spec(first)
    assert [type(one).__name__ for one in made] == ["Projection", "Sharpness"]
    assert made[1].resolved() == {"rho": 0.01}
    setting = SettingValue.of(first.model_dump())
    assert setting.modifiers["sharpness"] == {"rho": 0.01}
    assert setting.flat["sharpness.rho"] == 0.01


def test_ids_depend_on_modifiers_and_not_on_their_order(load: Load) -> None:
    def ids(*entries: str) -> list[str]:
        return [run.id for run in make_plan(load(*entries), "f").runs]

    (one,) = ids("{method: pdu, modifiers: [sharpness, projection]}")
    assert ids("{method: pdu, modifiers: [projection, {sharpness: {rho: 0.01}}]}") == [one]
    others = ids("pdu", "{method: pdu, modifiers: [sharpness]}")
    others += ids(
        "{method: pdu, modifiers: [{sharpness: {rho: 0}}]}", "{method: pdu, modifiers: [mask]}"
    )
    assert len({one, *others}) == 5
    (run,) = make_plan(load("pdu"), "f").runs
    assert "modifiers" not in run.identity["method"]
    assert "modifiers" not in run.to_json()["method"]
    (run,) = make_plan(load("{method: pdu, modifiers: [sharpness]}"), "f").runs
    assert RunSpec.model_validate_json(run.model_dump_json()) == run


def test_another_file_of_the_same_name_is_refused(load: Load) -> None:
    (spec,) = load("{method: pdu, modifiers: [sharpness]}").methods[0].specs
    other = spec.model_copy(update={"modifiers": {"sharpness": "0123"}})
    with pytest.raises(
        PluginError, match="modifier 'sharpness' differs from the one that was planned"
    ):
        modifiers_from_spec(other)


@pytest.mark.parametrize(
    ("entry", "key", "message"),
    [
        ("{method: npo, modifiers: [sma]}", "modifiers.0", "unknown modifier 'sma'; did you mean"),
        ("{method: npo, modifiers: sharpness}", "modifiers", "expected a list of modifiers"),
        (
            "{method: npo, modifiers: [{sharpness: {rho: -1}}]}",
            "modifiers.0.sharpness.rho",
            "should be greater than or equal to 0, got -1",
        ),
        (
            "{method: npo, modifiers: [mask, {sharpness: {roh: 1}}]}",
            "modifiers.1.sharpness.roh",
            "unknown key; did you mean 'rho'?",
        ),
        (
            "{method: npo, modifiers: [sharpness, sharpness]}",
            "modifiers.1",
            "sharpness is there already",
        ),
        ("{method: npo, modifiers: [projection]}", "", "projection needs a retain term beside"),
        ("{method: eco, modifiers: [mask]}", "modifiers", "unknown key; eco takes"),
    ],
)
def test_mistakes_are_named_before_anything_is_loaded(
    load: Load, entry: str, key: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load("{method: ce-u, beta: 3}", entry)
    first, second = caught.value.problems
    assert first.key == "methods.0.beta"
    assert second.key == ".".join(filter(None, ("methods.1", key)))
    assert second.message.startswith(("modifiers: " if not key else "") + message)


def test_a_modifier_has_no_name_of_another_key(tmp_path: Path) -> None:
    """The setting `weight` of a modifier `retain` would be called as the retain term's."""
    plugin = tmp_path / "retain.py"
    plugin.write_text((HERE / "sharpness.py").read_text("utf-8"), "utf-8")
    file = tmp_path / "sweep.yaml"
    entry = "  - {method: npo, modifiers: [{retain: {rho: 0.1}}]}"
    file.write_text(CONFIG.format(files=plugin, entries=entry, rest=""))
    with pytest.raises(ConfigError) as caught:
        load_config(str(file))
    (problem,) = caught.value.problems
    assert problem.key == "methods.0.modifiers.0.retain"
    assert problem.message.startswith("a modifier cannot be called 'retain', which is a key of")


def test_a_search_draws_settings_of_modifiers(load: Load) -> None:
    entry = (
        "{method: pdu, modifiers: [{sharpness: {rho: {low: 0.001, high: 0.1, log: true}}}, mask]}"
    )
    config = load(entry, rest="search: {kind: random, trials: 5}")
    (grid,) = config.methods
    space = Space(grid, config)
    assert space.axes.keys() == {"sharpness.rho"}
    points = points_of(grid, config)
    drawn = {spec.hyperparameters["sharpness.rho"] for spec, _ in points}
    assert len(drawn) == 5
    assert all(0.001 <= float(rho) <= 0.1 for rho in drawn)
    for point in points:
        assert point[0].modifiers.keys() == {"sharpness", "mask"}
        assert space.point(space.values(point) or {}) == point


def test_modifiers_of_the_sweep_are_tried_on_every_entry(load: Load) -> None:
    config = load(
        "{method: npo, beta: [0.1, 0.5], retain: nll, modifiers: [mask]}",
        "ce-u",
        "eco",
        rest="modifiers: [gru, salun, {sharpness: {rho: [0.01, 0.1]}}]",
    )
    labels = [spec.label for grid in config.methods for spec in grid.specs]
    assert labels == [
        *["npo+nll+mask"] * 2,
        "ce-u",
        "eco",
        *["npo+nll+gru+mask"] * 2,
        *["npo+nll+mask+salun"] * 2,
        "ce-u+salun",
        *["npo+nll+mask+sharpness"] * 4,
        *["ce-u+sharpness"] * 2,
    ]
    first, *others = drain()
    assert first.startswith("ce-u goes without gru: modifiers: gru needs a retain term")
    assert others[0] == ("eco goes without gru: method 'eco' trains nothing: it takes no modifiers")
    assert len(others) == 3
    written = load("{method: pdu, modifiers: [gru]}").methods[0].specs[0]
    assert load("pdu", rest="modifiers: [gru]").methods[1].specs[0] == written
    assert len(load("{method: pdu, modifiers: [gru]}", rest="modifiers: [sago]").methods) == 1
    assert drain() == ["pdu+gru goes without sago: gru, of the kind combine, is there already"]


def test_mistakes_in_modifiers_of_the_sweep(load: Load) -> None:
    with pytest.raises(ConfigError) as caught:
        load("ce-u", rest="modifiers: [gru, {sharpness: {roh: 1}}]")
    (problem,) = caught.value.problems
    assert problem.key == "modifiers.1.sharpness.roh"
    assert problem.message == "unknown key; did you mean 'rho'?"
