"""Commands that load a model leave out the expensive modules that they do not need."""

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.families import FAMILIES, VOCABULARY
from unlearnbench.models.tiny import build_tokenizer

EXPENSIVE = (
    "datasets",
    "mlflow",
    "pandas",
    "plotly",
    "ray",
    "scipy.optimize",
    "scipy.stats",
    "sklearn",
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torchvision",
    "transformers.trainer",
)
"""Modules that take more than 50 ms to import, with what they import."""


def run(code: str, **variables: str) -> str:
    """Run code in a Python of its own, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _questions(folder: Path) -> list[str]:
    """Write rows, and return the options that name them."""
    options: list[str] = []
    texts: list[str] = []
    for name, count in (("forget", 4), ("retain", 6)):
        rows = [
            {"question": f"Who wrote book {n} of {name}?", "answer": f"Author {n} wrote it."}
            for n in range(count)
        ]
        texts += [f"{row['question']} {row['answer']}" for row in rows]
        path = folder / f"{name}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        options += [f"--{name}-rows", str(path)]
    build_tokenizer(texts, VOCABULARY).save_pretrained(folder / "model")
    return options


@pytest.mark.parametrize(
    ("family", "command"),
    [
        ("llama", "evaluate"),
        pytest.param("llama", "attack", marks=pytest.mark.long),
        pytest.param("gpt2", "evaluate", marks=pytest.mark.long),
        pytest.param("gpt2", "attack", marks=pytest.mark.long),
    ],
)
def test_a_command_that_loads_a_model_imports_nothing_expensive(
    tmp_path: Path, family: str, command: str
) -> None:
    FAMILIES[family].build().save_pretrained(tmp_path / "model")
    arguments = [command, str(tmp_path / "model"), *_questions(tmp_path)]
    if command == "attack":
        arguments += ["--attack", "quantization"]
    output = run(
        f"""
        import sys
        from unlearnbench.cli.main import main
        code = main({arguments!r})
        assert code == 0, code
        print([name for name in {EXPENSIVE!r} if name in sys.modules])
        """
    )
    assert output.splitlines()[-1] == "[]"


# Deferred imports


@pytest.mark.long
def test_a_deferred_name_is_imported_when_it_is_used() -> None:
    output = run(
        """
        import sys
        import torch
        from unlearnbench.base.deferred_imports import DeferredName, deferred_imports

        model = {"__name__": "transformers.test"}
        with deferred_imports():
            exec("from scipy.optimize import brentq, OptimizeResult", model)
            exec("from torch.distributed.tensor import DTensor, Replicate, Shard", model)
            exec("placement, annotation = Shard(1), DTensor | None", model)
        assert "scipy.optimize" not in sys.modules
        assert "torch.distributed.tensor" not in sys.modules
        assert not isinstance(torch.ones(1), model["DTensor"])
        assert "torch.distributed.tensor" not in sys.modules

        assert abs(model["brentq"](lambda x: x - 2, 0, 3) - 2) < 1e-9
        from scipy.optimize import OptimizeResult
        assert isinstance(OptimizeResult(), model["OptimizeResult"])
        assert not isinstance({}, model["OptimizeResult"])
        exec("class Mine(OptimizeResult): pass", model)
        assert issubclass(model["Mine"], OptimizeResult)
        assert issubclass(model["Mine"], model["OptimizeResult"])

        from torch.distributed.tensor import DTensor, Replicate, Shard
        assert model["placement"].dim == 1
        assert model["placement"] == Shard(1)
        assert isinstance(model["placement"], Shard)
        assert isinstance(model["Replicate"](), Replicate)
        assert isinstance(DTensor, type)
        print("done")
        """
    )
    assert output == "done\n"


def test_only_imports_by_transformers_are_deferred() -> None:
    output = run(
        """
        import builtins
        from unlearnbench.base.deferred_imports import DeferredName, deferred_imports

        before = builtins.__import__
        with deferred_imports(), deferred_imports():
            exec("from scipy.optimize import brentq", mine := {"__name__": "mine"})
            exec("from scipy.stats import norm", other := {"__name__": "transformers.test"})
            exec("import scipy.optimize as whole", whole := {"__name__": "transformers.test"})
            exec("from scipy.optimize import brentq", late := {"__name__": "transformers.test"})
        assert builtins.__import__ is before
        names = (mine["brentq"], other["norm"], whole["whole"], late["brentq"])
        print(any(isinstance(name, DeferredName) for name in names))
        """
    )
    assert output == "False\n"


def test_a_group_of_processes_defers_nothing() -> None:
    output = run(
        """
        import sys
        from unlearnbench.base.deferred_imports import deferred_imports
        with deferred_imports():
            exec("from scipy.optimize import brentq", {"__name__": "transformers.test"})
        print("scipy.optimize" in sys.modules)
        """,
        WORLD_SIZE="2",
    )
    assert output == "True\n"


@pytest.mark.long
def test_the_compiler_knows_what_it_was_told_before_its_import() -> None:
    output = run(
        """
        import sys
        import torch
        from unlearnbench.base.deferred_imports import deferred_imports

        with deferred_imports():
            opaque = torch.compiler.allow_in_graph(lambda x: x + 1)
            constant = torch.compiler.assume_constant_result(lambda: 3)
            disabled = torch.compiler.disable(lambda x: x + 2)
            shallow = torch.compiler.disable(recursive=False)(lambda x: x + 3)
        assert constant._dynamo_marked_constant
        assert disabled(1) == 3 and shallow(1) == 4
        assert "torch._dynamo" not in sys.modules
        assert "_dynamo" not in vars(torch)

        import torch._dynamo
        from torch._dynamo import trace_rules
        assert id(opaque) in trace_rules._allowed_callable_ids
        assert disabled(1) == 3 and shallow(1) == 4
        graphs = []
        def noted(graph, inputs):
            graphs.append(graph)
            return graph.forward
        compiled = torch.compile(lambda x: disabled(x * 2) * 5, backend=noted)
        assert compiled(torch.ones(1)).item() == 20
        assert len(graphs) == 2, "the disabled function breaks the graph"
        print("done")
        """
    )
    assert output == "done\n"


@pytest.mark.long
def test_a_version_that_cannot_be_imported_so_is_imported_as_usual() -> None:
    output = run(
        """
        import unlearnbench.models.transformers_import as module

        def failing():
            raise RuntimeError("not this version")

        module.import_module = lambda name: failing()
        module.import_transformers()
        from transformers import LlamaForCausalLM
        print(LlamaForCausalLM.__name__)
        """
    )
    assert output == "LlamaForCausalLM\n"


# Garbage collection


def test_the_collector_works_again_after_imports() -> None:
    output = run(
        """
        import gc
        from unlearnbench.base.garbage_collection import collection_paused, keep_what_is_imported

        with collection_paused():
            paused = not gc.isenabled()
        assert paused and gc.isenabled() and gc.get_freeze_count() == 0
        keep_what_is_imported()
        with collection_paused():
            pass
        assert gc.isenabled() and gc.get_freeze_count() > 0
        gc.disable()
        with collection_paused():
            pass
        print(gc.isenabled())
        """
    )
    assert output == "False\n"
