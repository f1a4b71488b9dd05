"""Plugins are found without being imported; empty, unknown, doubled and broken read differently."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from unlearnbench.api import registry
from unlearnbench.base.errors import PluginError
from unlearnbench.config import method_specs
from unlearnbench.config.schema import MethodSpec, RetainSpec

GOOD = '''
"""A method from a stranger."""
from __future__ import annotations
from typing import ClassVar
from pydantic import Field
from unlearnbench.api.method import LossBatch, Method, Needs

class Shy(Method):
    """L = strength * sum."""
    needs: ClassVar[Needs] = Needs(parts=frozenset({"forget"}))
    strength: float = Field(default=0.5, gt=0, description="how shy")
    def loss(self, batch: LossBatch):
        return self.strength * batch.forget.cross_entropy().sum()
'''

Install = Callable[[str, str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a module and its distribution with entry points on the path."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def installed(module: str, code: str, points: str) -> None:
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{module}-0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 0.1\n")
        (info / "entry_points.txt").write_text(points)
        monkeypatch.delitem(sys.modules, module, raising=False)

    return installed


def _nothing(*_: object) -> tuple[()]:
    return ()


def test_listing_imports_no_torch() -> None:
    code = (
        "import sys; from unlearnbench.api import registry; from unlearnbench.cli import main; "
        "registry.offers('methods'); "
        "heavy = {'torch', 'transformers', 'ray', 'mlflow', 'scipy', 'rich', 'plotly'}; "
        "sys.exit(' '.join(heavy & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_third_party_methods_load_like_built_in_ones(install: Install) -> None:
    install("shyness", GOOD, "[unlearnbench.methods]\nshy = shyness:Shy\n")
    assert "shy" in registry.names("methods")
    assert registry.find("methods", "shy").source == "shyness 0.1"
    assert method_specs.default_hyperparameters("shy") == {
        "ignore_first_answer_tokens": 0,
        "strength": 0.5,
    }
    spec = method_specs.method_spec("shy", {"strength": 2})
    method = method_specs.method_from_spec(spec)
    assert method.model_dump() == {"ignore_first_answer_tokens": 0, "strength": 2.0}


def test_empty_unknown_duplicate_and_broken_have_own_messages(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("another", GOOD, "[unlearnbench.methods]\nnpo = another:Shy\nfine = another:Shy\n")
    install("wrong", "value = 3\nraise OSError('no disk')", "[unlearnbench.methods]\nbad = wrong:X")
    with pytest.raises(PluginError, match=r"unknown method 'ceu'; did you mean 'ce-u'\? `unl"):
        registry.load("methods", "ceu")
    with pytest.raises(PluginError, match=r"more than one package: another 0.1 .* unlearnbench"):
        registry.load("methods", "npo")
    with pytest.raises(
        PluginError, match=r"'bad' of wrong 0.1 \(wrong:X\) is broken: OSError: no disk"
    ):
        registry.load("methods", "bad")
    assert registry.load_method("fine").__name__ == "Shy", "a broken plugin takes no other down"
    monkeypatch.setattr(registry, "_installed", _nothing)
    with pytest.raises(PluginError, match=r"no methods are installed.*pip install -e"):
        registry.load("methods", "npo")


def test_a_spec_of_another_version_is_refused() -> None:
    spec = MethodSpec(name="npo", hyperparameters={"gamma": 1.0})
    with pytest.raises(PluginError, match="cannot be made: gamma"):
        method_specs.method_from_spec(spec)


class TestPluginFile:
    """`--plugin my_method.py`."""

    def test_is_named_after_its_file_and_registered_in_workers(self, tmp_path: Path) -> None:
        path = tmp_path / "very_shy.py"
        path.write_text(GOOD)
        assert registry.register_file(path) == "very-shy"
        assert registry.plugin_files() == ((path, ((path.name, GOOD.encode()),)),)
        assert registry.load_method("very-shy").__name__ == "Shy"
        assert registry.find("methods", "very-shy").source == "very_shy.py"
        assert registry.register_file(path) == "very-shy", "a reused worker registers it again"

    def test_its_content_is_part_of_the_spec(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "very_shy.py"
        path.write_text(GOOD)
        registry.register_file(path)
        before = method_specs.method_spec("very-shy", {}, RetainSpec(term="nll"))
        assert before.source
        path.write_text(GOOD.replace("sum()", "mean()"))
        registry.register_file(path)
        after = method_specs.method_spec("very-shy", {}, RetainSpec(term="nll"))
        assert after.source != before.source
        with pytest.raises(PluginError, match="differs from the one that was planned"):
            method_specs.method_from_spec(before)
        monkeypatch.setattr(registry, "_files", {})
        with pytest.raises(PluginError, match="unknown method 'very-shy'"):
            method_specs.method_from_spec(after)

    def test_modules_below_its_folder_are_part_of_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / "shy_parts" / "deep").mkdir(parents=True)
        files = {
            "shy_factor.py": "import json\nfrom shy_parts import one\n",
            "shy_parts/__init__.py": "from .deep import two\n",
            "shy_parts/one.py": "",
            "shy_parts/deep/two.py": "import torch, unlearnbench\n",  # no __init__.py beside it
            "shy_late.py": "",
            "shy_other.py": "",
        }
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        path = tmp_path / "very_shy.py"
        path.write_text(f"{GOOD}\nimport shy_factor\ndef later():\n    import shy_late\n")
        registry.register_file(path)
        ((_, texts),) = registry.plugin_files()
        assert [name for name, _ in texts] == [
            "very_shy.py",
            *sorted({*files} - {"shy_other.py"}),
        ]
        digests = {registry.file_digest("very-shy")}
        for name in files:
            (tmp_path / name).write_text("K = 12345\n" if name == "shy_late.py" else "# new\n")
            registry.register_file(path)
            digests.add(registry.file_digest("very-shy"))
            if name == "shy_factor.py":  # all but `shy_late` were imported through it
                assert len(digests) == 2
        assert len(digests) == 3
        monkeypatch.setattr(registry, "_files", {})
        registry.register_copy(path, texts)
        ((place, _),) = registry.plugin_files()
        assert place.parent != tmp_path, "the file is not what it was"
        assert place.read_bytes() == texts[0][1]
        assert (place.parent / "shy_parts" / "one.py").is_file()


def test_inference_methods_refuse_retain_terms(tmp_path: Path) -> None:
    assert not registry.trains("eco")
    assert registry.trains("npo")
    with pytest.raises(PluginError, match="'eco' trains nothing: it takes no retain term"):
        method_specs.method_spec("eco", {}, RetainSpec(term="nll"))
    path = tmp_path / "still.py"
    path.write_text(
        "from unlearnbench import Wrapper\n"
        "class Still(Wrapper):\n"
        "    def fit(self, model, prompts):\n"
        "        return lambda asked: [None] * len(asked)\n"
    )
    assert not registry.trains(registry.register_file(path))
