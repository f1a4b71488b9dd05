"""The schema of the YAML takes what the loader takes, and has every key with an explanation."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from unlearnbench.api import registry
from unlearnbench.config.config_sources import shipped_configs
from unlearnbench.config.json_schema import schema_text
from unlearnbench.config.yaml_document import read_yaml

SCHEMA: dict[str, Any] = json.loads(schema_text())
VALIDATOR = Draft202012Validator(SCHEMA)


def values(text: str) -> Any:
    """A YAML text as a program for JSON has it; None where it is not YAML."""
    return json.loads(json.dumps(read_yaml("x", text).values))


def test_the_schema_is_one_of_its_draft() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", list(shipped_configs()))
def test_shipped_configs_validate(name: str) -> None:
    VALIDATOR.validate(values(shipped_configs()[name].text))


GOOD = "name: x\nmodels: [{name: tiny, base: tiny}]\nforget_fractions: [0.1]\n"


@pytest.mark.parametrize(
    "more",
    [
        "methods: [ce-u]\nplugins: [mine.py]\nattacks: [relearning]\n",
        "methods: [{method: npo, beta: {low: 0.1, high: 1.0}, retain: [null, nll, {term: kl}]}]\n",
        "methods: [rmu]\nattacks: {relearning: {steps: [1, 3]}}\nlearning_rates: {low: 1e-6, high: "
        "1e-4, log: true}\n",
        "methods: [ce-u]\nevaluation: {metrics: {mia-min-k: {share: 0.3}}, patience: null}\n",
    ],
)
def test_what_the_loader_takes_is_valid(more: str) -> None:
    VALIDATOR.validate(values(GOOD + more))


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ("methods: [ce-v]\n", "$.methods[0]"),
        ("methods: [{method: npo, btea: 0.1}]\n", "$.methods[0]"),
        ("methods: [{method: npo, beta: -1.0}]\n", "$.methods[0]"),
        ("methods: [{method: ce-u, retain: {term: l2}}]\n", "$.methods[0]"),
        ("methods: [{method: eco, learning_rates: [1e-5]}]\n", "$.methods[0]"),
        ("methods: []\n", "$.methods"),
        ("methods: [ce-u]\ndata: {source: tofu, authors: 3}\n", "$.data"),
        ("methods: [ce-u]\ndata: {autors: 3}\n", "$.data"),
        ("methods: [ce-u]\nepochs: 0\n", "$.epochs"),
        ("methods: [ce-u]\nepoch: 5\n", "$"),
        ("methods: [ce-u]\nlearning_rates: [0.0]\n", "$.learning_rates"),
        ("methods: [{method: npo, modifiers: [{sam: {rho: -1}}]}]\n", "$.methods[0]"),
        ("methods: [ce-u]\nmodifiers: [sma]\n", "$.modifiers"),
        ("methods: [ce-u]\nattacks: [relerning]\n", "$.attacks"),
        ("methods: [ce-u]\nattacks: {relearning: {setps: [1]}}\n", "$.attacks"),
        ("methods: [ce-u]\nevaluation: {metrics: {mia-min-k: {share: 2}}}\n", "$.evaluation"),
    ],
)
def test_mistakes_are_found_at_their_place(more: str, place: str) -> None:
    found = [error.json_path for error in VALIDATOR.iter_errors(values(GOOD + more))]
    assert found
    assert all(one.startswith(place) for one in found), found


def test_every_key_is_explained_and_every_plug_in_is_there() -> None:
    text = schema_text()
    for kind in registry.CLASSES:
        assert all(f'"{name}"' in text for name in registry.names(kind))
    for name, one in {"": SCHEMA, **SCHEMA["$defs"]}.items():
        for key, value in one.get("properties", {}).items():
            assert value.get("description"), f"{name}.{key}"
