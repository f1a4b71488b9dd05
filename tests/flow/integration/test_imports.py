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
from unlearnbench.models.transformers_import import from_last_assignment

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


@pytest.mark.long
def test_the_process_of_a_trial_imports_no_analysis_and_no_views() -> None:
    output = run(
        """
        import sys
        import unlearnbench.sweep.worker
        of_the_command = ("unlearnbench.analysis", "unlearnbench.report", "dashboards", "mlflow")
        print([name for name in sys.modules if name.startswith(of_the_command)])
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
def test_the_compiler_knows_what_it_was_told_in_all_contexts() -> None:
    output = run(
        """
        import weakref
        import torch
        from unlearnbench.base.deferred_imports import deferred_imports

        with deferred_imports():
            first = torch.compiler.disable(lambda x: x + 1)
        with deferred_imports():
            second = torch.compiler.disable(lambda x: x + 2)
            unused = weakref.ref(torch.compiler.disable(lambda x: x + 3))
        assert unused() is None

        import torch._dynamo
        graphs = []
        def noted(graph, inputs):
            graphs.append(graph)
            return graph.forward
        compiled = torch.compile(lambda x: second(first(x * 2) * 3) * 5, backend=noted)
        assert compiled(torch.ones(1)).item() == 55
        print(len(graphs))
        """
    )
    assert output == "3\n"


def test_optimisers_take_the_same_steps_without_the_compiler() -> None:
    output = run(
        """
        import sys
        import torch
        from unlearnbench.base.deferred_imports import deferred_imports

        def train(kind, **options):
            torch.manual_seed(3)
            model = torch.nn.Linear(4, 3, bias=False)
            optimizer = kind(model.parameters(), lr=0.1, **options)
            for step in range(4):
                optimizer.zero_grad()
                model(torch.arange(4.0) / (step + 1)).square().sum().backward()
                optimizer.step()
                optimizer.load_state_dict(optimizer.state_dict())
                assert torch.is_grad_enabled()
            return model.weight.detach()

        kinds = [(torch.optim.AdamW, {}), (torch.optim.SGD, {"momentum": 0.9})]
        kinds.append((torch.optim.Muon, {}))
        with deferred_imports():
            weights = [train(kind, **options) for kind, options in kinds]
        assert "torch._dynamo" not in sys.modules
        assert "sympy" not in sys.modules

        import torch._dynamo
        for weight, (kind, options) in zip(weights, kinds, strict=True):
            assert torch.equal(weight, train(kind, **options))
            with deferred_imports():
                assert torch.equal(weight, train(kind, **options))
        assert torch.optim.Optimizer.zero_grad.__wrapped__.__dynamo_disable is not None
        print("done")
        """
    )
    assert output == "done\n"


@pytest.mark.long
def test_a_training_imports_no_compiler_and_resumes(tmp_path: Path) -> None:
    output = run(
        f"""
        import sys
        from pathlib import Path
        import torch
        from unlearnbench.base.deferred_imports import deferred_imports
        with deferred_imports():
            from tests.conftest import QUESTIONS
            from tests.factories.trainers import (
                assert_resumes, objective_of, trainer_of, training_rows
            )
            from tests.families import FAMILIES, VOCABULARY
            from unlearnbench.models.tiny import build_tokenizer
            from unlearnbench.models.transformers_import import import_transformers

            import_transformers()
            model = FAMILIES["llama"].build()
            texts = [f"{{question.question}} {{question.answer}}" for question in QUESTIONS]
            tokenizer = build_tokenizer(texts, VOCABULARY)

        rows = training_rows(tokenizer, QUESTIONS)
        objective = objective_of("npo")

        def make():
            return trainer_of(model, tokenizer, rows, objective, Path({str(tmp_path)!r}))

        assert_resumes(make, Path({str(tmp_path)!r}))
        print([name for name in ("sympy", "torch._dynamo") if name in sys.modules])
        """
    )
    assert output.splitlines()[-1] == "[]"


@pytest.mark.long
def test_a_plan_imports_no_compiler(tmp_path: Path) -> None:
    output = run(
        f"""
        import os, sys
        os.chdir({str(tmp_path)!r})
        from unlearnbench.cli.main import main
        assert main(["plan", "smoke", "--memory"]) == 0
        names = ("datasets", "mlflow", "ray", "scipy.stats", "setuptools", "torch._dynamo")
        print([name for name in names if name in sys.modules])
        """
    )
    assert output.splitlines()[-1] == "[]"


@pytest.mark.long
def test_sizes_are_the_same_without_the_compiler() -> None:
    output = run(
        """
        import sys
        from tests.families import FAMILIES
        from unlearnbench.config.schema import ModelSettings
        from unlearnbench.models.transformers_import import import_transformers
        from unlearnbench.results import model_shape

        import_transformers()

        def shapes():
            model_shape._trainable_names.cache_clear()
            model_shape._counted.cache_clear()
            found = []
            for family in ("gpt2", "llama", "mixtral"):
                config = FAMILIES[family].config()
                for checkpointing in (False, True):
                    settings = ModelSettings(
                        name="tiny", base="tiny", gradient_checkpointing=checkpointing
                    )
                    for autocast in (False, True):
                        found.append(
                            model_shape.shape_of(
                                config, settings, lambda *_: True, autocast=autocast, width=24
                            )
                        )
            return found

        without = shapes()
        deferred = "torch._dynamo" not in sys.modules
        import torch._dynamo
        assert without == shapes()
        print(deferred)
        """
    )
    assert output == "True\n"


# transformers


@pytest.mark.long
def test_transformers_exports_the_same_names() -> None:
    code = """
        import sys
        {imported}
        import transformers
        import transformers.models
        from transformers.utils import import_utils
        assert hasattr(import_utils.create_import_structure_from_path, "cache_parameters")
        assert import_utils.fetch__all__.__module__ == "transformers.utils.import_utils"
        for module in (transformers, transformers.models):
            print(sorted(module._class_to_module.items()))
            print(sorted((name, sorted(of)) for name, of in module._object_missing_backend.items()))
            print(sorted((name, sorted(of)) for name, of in module._import_structure.items()))
        """
    ours = (
        "from unlearnbench.models.transformers_import import import_transformers\n"
        "        import_transformers()"
    )
    outputs = {run(code.format(imported=imported)) for imported in (ours, "")}
    assert len(outputs) == 1
    assert "LlamaForCausalLM" in outputs.pop()


def test_the_names_of_a_file_are_read_from_its_last_assignment() -> None:
    def last_line(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith("__all__")][-1:]

    names = from_last_assignment(last_line)
    texts = {
        "": [],
        "print(__all__)": [],
        "  __all__ = [1]": [],
        "__all__ = [1]": ["__all__ = [1]"],
        "__all__ = [1]\n__all__ += [2]\nprint(__all__)": ["__all__ += [2]"],
        "x\r\n__all__ = [1]\n '__all__'": ["__all__ = [1]"],
    }
    for end in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029":
        texts[f"x{end}__all__ = [1]{end} y"] = ["__all__ = [1]"]
    for text, expected in texts.items():
        assert last_line(text) == expected
        assert names(text) == expected


@pytest.mark.long
def test_a_version_that_reads_its_models_otherwise_is_left_as_it_is(tmp_path: Path) -> None:
    package = tmp_path / "transformers"
    (package / "utils").mkdir(parents=True)
    (package / "__init__.py").write_text("from .utils import import_utils\n", encoding="utf-8")
    (package / "utils" / "__init__.py").touch()
    (package / "utils" / "import_utils.py").write_text("def other():\n    pass\n", "utf-8")
    output = run(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        from unlearnbench.models.transformers_import import import_transformers
        import_transformers()
        import transformers
        print([name for name in vars(transformers.import_utils) if not name.startswith("__")])
        """
    )
    assert output == "['other']\n"


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
