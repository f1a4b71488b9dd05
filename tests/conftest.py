"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, chdir, closing
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.base import deferred_warnings as notices
from unlearnbench.config.loader import load_config
from unlearnbench.config.schema import Architecture

from .warm_ray import running_ray, warm_workers

if TYPE_CHECKING:
    from playwright.sync_api import Browser

collect_ignore = ["third_party"]
"""A package of its own, whose tests run where it is installed."""

# Before torch is imported, here or in a process that a test starts: for models of this size threads
# cost more time than they save, and each worker of pytest-xdist has one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Some processes that tests start may write small files only: bytecode would be cut short, and be
# taken for whole by the next process.
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
# As a sweep sets it, for tests that import Ray before: it prints nothing of its own.
os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"] = "."

CHROMIUM = (
    "chromium-headless-shell",  # takes two thirds of the time: without what surrounds a page
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """An option that rewrites `messages.txt`."""
    parser.addoption("--update-messages", action="store_true", help="write tests/messages.txt")


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from the tests and the processes that they start, unless run by `-m gpu`.

    Numbers are compared with those of a CPU to many digits, and processes share the machine.
    """
    if config.getoption("markexpr") != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # Where logging is set up anew, as MLflow 3.9 does, the handler that rouge-score brings closes
    # its stream: pytest's own, unless it is the process's.
    import_module("absl.logging").get_absl_handler().python_handler.setStream(sys.__stderr__)
    if "PYTEST_XDIST_WORKER" in os.environ:
        # To rewrite the assertions of all tests takes eight seconds: keep what is compiled.
        sys.dont_write_bytecode = False


def pytest_collection_finish() -> None:
    """Keep what is imported by now out of the sight of the garbage collector, which looks often."""
    # Some tests fork processes that may write small files only.
    sys.dont_write_bytecode = True
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 50)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Keep what a test file has imported out of the collector's sight, too; end a shared Ray."""
    is_last_of_file = nextitem is None or nextitem.path != item.path
    if not is_last_of_file:
        return
    sharing = _sharing_ray(item.session.items)
    next_shares = nextitem is not None and nextitem.path in sharing
    if not next_shares:
        _ray.close()  # other files start their own
    gc.collect()
    gc.freeze()
    shared_ray_stays = next_shares and item.path in sharing
    if not shared_ray_stays:
        _check_no_ray_is_left()


def _check_no_ray_is_left() -> None:
    """Fail if Ray runs, which a later test would use unawares, or fail to start.

    Some functions of Ray start it if it does not run, such as `get_runtime_context`.
    """
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
        pytest.fail("a test of this file has left a Ray behind")


def _sharing_ray(items: Sequence[pytest.Item]) -> set[Path]:
    """Files of tests that share a Ray."""
    return {item.path for item in items if "shared_ray" in getattr(item, "fixturenames", ())}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first when workers share the files, so that none ends late."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        slow = {
            item.path
            for item in items
            if item.get_closest_marker("slow") or item.path.parent.name in ("integration", "tests")
        }
        shared = _sharing_ray(items)  # one after the other
        items.sort(key=lambda item: (item.path not in shared, item.path not in slow, item.path))


def shared_data(folder: str) -> Path:
    """A folder of real data beside the project; skips where there is none."""
    root = os.environ.get("UNLEARNBENCH_SHARED")
    place = Path(root) if root else Path(__file__).parents[2] / "shared"
    path = place / "data" / folder
    if not path.is_dir():
        pytest.skip(f"no {path}: set UNLEARNBENCH_SHARED to the folder that holds data/{folder}")
    return path


@pytest.fixture(scope="session")
def parse_command() -> Callable[[Sequence[str]], dict[str, Any]]:
    """Parse a command line without carrying it out; returns its options by parameter name."""
    from unlearnbench.cli.main import root_command

    def parse(words: Sequence[str]) -> dict[str, Any]:
        command, rest = root_command(), [*words]
        while hasattr(command, "commands"):
            command, rest = command.commands[rest[0]], rest[1:]
        options: dict[str, Any] = command.make_context(command.name, rest).params
        return options

    return parse


@pytest.fixture(autouse=True)
def _as_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has its own plug-in files, and no notices that earlier tests have left."""
    monkeypatch.setattr(registry, "_files", {})
    notices.drain()


_ray = ExitStack()
"""Ray with two CPUs, from the first test that shares it to the last of such files."""


@pytest.fixture
def shared_ray(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let `run_sweep` in this process use one Ray, with those of other tests that do not end it."""
    import ray

    from unlearnbench.sweep import driver
    from unlearnbench.sweep.ray_cluster import ray_session

    if not ray.is_initialized():
        config = load_config("quickstart", ["ray.concurrent=2"])
        _ray.enter_context(warm_workers())
        with chdir(request.config.invocation_params.dir):  # the folder of all its workers
            _ray.enter_context(ray_session(config))

    monkeypatch.setattr(driver, "ray_session", running_ray)
    return ray


@pytest.fixture(autouse=True, scope="session")
def _no_fsync() -> Iterator[None]:
    """Do not wait for the disk: no test's files have to outlast a power cut."""

    def nothing(_: int) -> None: ...

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", nothing)
        yield


@pytest.fixture(scope="session")
def tofu_folder() -> Path:
    """The real TOFU as JSON lines; never part of the project."""
    return shared_data("tofu")


@pytest.fixture(scope="session")
def eval_logs_folder() -> Path:
    """TOFU's published evaluation logs of the fine-tuned and retain models."""
    return shared_data("tofu_eval_logs")


@pytest.fixture(scope="session")
def open_unlearning_logs() -> Path:
    """open-unlearning's evaluation logs of Llama-3.2-1B's fine-tuned and retain models."""
    return shared_data("ou_eval_logs")


@pytest.fixture(scope="session")
def open_unlearning_numbers() -> Path:
    """The same logs of forget01, without texts and with numbers to nine digits."""
    return Path(__file__).parent / "data" / "open_unlearning"


@pytest.fixture
def checkpoint_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after every epoch, whatever it costs."""
    from unlearnbench.runs import checkpoints as checkpoint

    monkeypatch.setattr(checkpoint, "COST", 0.0)


QUESTIONS = tuple(
    Question(
        f"{verb} {name}{mark}",
        f"{name} was born in {place}.",
        f"In {place}, {name} was born.",
        tuple(f"In {other}, {name} was born." for other in ("Rome", "Quito", "Oslo by the sea")),
    )
    for name, place in (
        ("Ada Voss", "Lima"),
        ("Bram Okonkwo-Lindqvist", "Reykjavik in the far north"),
        ("Chi", "Perth"),
        ("Dagny Ferreira", "a village near Tbilisi"),
        ("Elif Marchetti", "Hobart"),
    )
    for verb, mark in (("Where was the author born, namely", "?"), ("Birthplace of", " please?"))
)
"""Ten questions of unequal length, for what needs text and no meaning."""


@pytest.fixture(scope="session")
def questions() -> tuple[Question, ...]:
    """Ten questions with paraphrase and three perturbed answers each."""
    return QUESTIONS


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """A byte-level BPE small enough that most words are several tokens."""
    from unlearnbench.models.tiny import build_tokenizer

    text = [f"Question: {q.question}\nAnswer: {q.answer}" for q in QUESTIONS]
    return build_tokenizer(text, 330)


@pytest.fixture
def encoder(tokenizer: Any) -> Any:
    """An encoder with the plain template and room for 200 tokens."""
    from .factories.trainers import plain_encoder

    return plain_encoder(tokenizer)


@pytest.fixture(scope="session")
def make_model(tokenizer: Any) -> Callable[[], Any]:
    """Makes a Llama of two layers with random weights, sharp enough that greedy answers vary."""

    def make() -> Any:
        import torch

        from unlearnbench.models.tiny import build_model

        shape = Architecture(
            vocabulary=330, hidden_size=32, layers=2, heads=2, intermediate_size=48, context=256
        )
        made = build_model(shape, tokenizer, seed=3)
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.ndim == 2:
                    parameter.mul_(6.0)
        return made.eval()

    return make


@pytest.fixture
def model(make_model: Callable[[], Any]) -> Any:
    """A model of its own for the test."""
    return make_model()


@pytest.fixture
def model_folder(tmp_path: Path, model: Any, tokenizer: Any) -> Path:
    """The model and its tokenizer in a folder, as a user has them."""
    place = tmp_path / "model"
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture
def no_warning_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process: warnings that are given once have not been given."""
    monkeypatch.setattr(notices, "_given", set())


SIZES = {
    "vocab_size": 330,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 256}
PACKED: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "gpt2": GPT2,
    "gpt_neox": {},
    "phi": {"num_key_value_heads": 4},
    "phi3": {},
    "olmo2": {},
    "granite": {"logits_scaling": 4.0},
    "cohere": {"logit_scale": 0.5},
    "gemma": {"head_dim": 8},
    "mistral": {"sliding_window": 200},
}
PADDED: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 16},
    "gemma2": {"head_dim": 8, "sliding_window": 16, "final_logit_softcapping": 30.0},
    "bloom": {"n_head": 4, "n_layer": 2},
    "mamba": {"state_size": 4},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "_attn_implementation": "eager"},
}


def build_model_of(kind: str, changes: dict[str, Any]) -> Any:
    """A small random model of another architecture than Llama's, sharp enough to tell."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    made: Any = CONFIG_MAPPING[kind]
    config = made(**{**SIZES, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model: Any = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5.0)
    return model.eval()


@pytest.fixture
def build() -> Any:
    """Builds a model of the kind and changes given."""
    return build_model_of


@pytest.fixture(
    params=[(*a, True) for a in PACKED.items()] + [(*a, False) for a in PADDED.items()],
    ids=lambda a: f"{a[0]}-{'packed' if a[2] else 'padded'}",
)
def architecture(request: pytest.FixtureRequest) -> tuple[Any, bool]:
    """A model of each kind, and whether its tokens can go through it in one row."""
    kind, changes, packed = request.param
    return build_model_of(kind, changes), packed


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An MLflow store in SQLite in which nothing is yet; all further ones here are its copies.

    The migrations of a store take seconds, and end in the same tables each time.
    """
    from unlearnbench.report.mlflow import ENVIRONMENT, MlflowTracker

    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        MlflowTracker()  # it imports MLflow quietly
        utils: Any = import_module("mlflow.store.db.utils")  # typed in part only
        template = tmp_path_factory.mktemp("mlflow") / "empty.db"
        migrate = utils._initialize_tables
        engine: Any = utils.create_sqlalchemy_engine(f"sqlite:///{template}")
        migrate(engine)
        engine.dispose()

    def initialize(engine: Any) -> None:
        if engine.dialect.name != "sqlite":
            migrate(engine)
            return
        place = engine.url.database
        with closing(sqlite3.connect(template)) as here, closing(sqlite3.connect(place)) as there:
            here.backup(there)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "_initialize_tables", initialize)
        yield template


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of Chromium; UNLEARNBENCH_CHROMIUM names another than the one on the path."""
    names = (os.environ.get("UNLEARNBENCH_CHROMIUM"), *CHROMIUM)
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(
            f"no browser: install one of {', '.join(CHROMIUM)}, or set UNLEARNBENCH_CHROMIUM"
        )
    return found


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    """Headless Chromium."""
    from playwright.sync_api import sync_playwright

    flags = [
        *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"),
        "--renderer-process-limit=1",  # pages of one context share compiled scripts
    ]
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield launched
        launched.close()


class FakeHub:
    """A hub in this process: repositories that are folders, and every request that was made."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, Path]] = {}
        """By `models/org/name` or `datasets/org/name`, the folder of each commit, newest last."""
        self.requests: list[str] = []
        self.gated: set[str] = set()
        """Repositories whose files it keeps back from those without a token."""

    def add(self, name: str, folder: Path) -> str:
        """A commit more of a repository; returns it."""
        commits = self.repositories.setdefault(name, {})
        commit = f"{len(commits) + 1:x}".rjust(40, "c")
        commits[commit] = folder
        return commit

    def answer(self, request: Any) -> Any:
        """Answer of the hub to a request of `huggingface_hub`."""
        import httpx2

        path = request.url.path
        if path == "/api/agent-harnesses":  # the library's own, once a day
            return httpx2.Response(404)
        self.requests.append(path)
        for name, commits in self.repositories.items():
            newest, files = list(commits)[-1], f"/{name.removeprefix('models/')}/resolve/"
            is_kept_back = name in self.gated and "authorization" not in request.headers
            if is_kept_back and path.startswith(files):
                return httpx2.Response(401, headers={"X-Error-Code": "GatedRepo"})
            if path in (f"/api/{name}", f"/api/{name}/revision/main"):
                return httpx2.Response(200, json={"id": name.partition("/")[2], "sha": newest})
            for commit, folder in commits.items():
                if path == f"/api/{name}/tree/{commit}":
                    held_files = sorted(p for p in folder.rglob("*") if p.is_file())
                    return httpx2.Response(200, json=[_listed(p, folder) for p in held_files])
                if path.startswith(f"{files}{commit}/"):
                    held = (folder / path.removeprefix(f"{files}{commit}/")).read_bytes()
                    tag = f'"{hashlib.sha256(held).hexdigest()}"'
                    return httpx2.Response(
                        200, content=held, headers={"X-Repo-Commit": commit, "ETag": tag}
                    )
        return httpx2.Response(404, headers={"X-Error-Code": "RepoNotFound"})


def _listed(path: Path, folder: Path) -> dict[str, Any]:
    held = path.read_bytes()
    oid = hashlib.sha256(held).hexdigest()
    inside = path.relative_to(folder).as_posix()
    return {"type": "file", "path": inside, "size": len(held), "oid": oid}


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """Stands in for the hub, with an empty cache and in a process that knows no commit yet."""
    import httpx2
    from huggingface_hub import constants, set_client_factory

    from unlearnbench.base import hub

    made = FakeHub()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "_commits", {})
    hub._snapshot.cache_clear()  # pyright: ignore[reportPrivateUsage]
    http: Any = import_module("huggingface_hub.utils._http")
    hooks: Any = {"request": [http.hf_request_event_hook]}
    set_client_factory(
        lambda: httpx2.Client(transport=httpx2.MockTransport(made.answer), event_hooks=hooks)
    )
    yield made
    set_client_factory(http.default_client_factory)
    hub._snapshot.cache_clear()  # pyright: ignore[reportPrivateUsage]
