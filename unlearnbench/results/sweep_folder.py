"""Owner and lock of a sweep's folder, and leftovers of interrupted commands.

The kernel holds the lock (`flock`), and releases it when the process ends, however it ends. The
text in the lock file only names the process for messages.
"""

import fcntl
import json
import os
import platform
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from unlearnbench.api.benchmark import split_label, split_text
from unlearnbench.base.atomic import PART
from unlearnbench.base.errors import DamagedError, RecordError
from unlearnbench.base.locks import flock
from unlearnbench.base.outputs import write_file
from unlearnbench.config.plan import Plan
from unlearnbench.config.plan_file import PLAN_FILE
from unlearnbench.config.profiles import profile_of
from unlearnbench.evaluation.benchmark_schema import KEY, BenchmarkSchema
from unlearnbench.results.records import DAMAGED, StoredEvaluations, read_record
from unlearnbench.results.stored_table import TABLE_FILE

LOCK_FILE = ".lock"
"""File that is locked while a command works in the folder."""
FIX = "choose another with --set name=… or --set output=…"
VIEWS = {
    "report.html",
    "results.csv",
    "attacks.csv",
    "sweep.log",
    "gpu_sharing.json",
    "selection.json",
    "search.jsonl",
    "tradeoff.svg",
    "tradeoff.html",
    TABLE_FILE,
    "state",
    "mlflow.db",
    "mlflow.json",
    "links.json",
    "mlruns",
    "mlartifacts",
}
"""Other files of a sweep than its plan and records. None of them says whose folder it is."""


def claim_folder(plan: Plan, *, extend: bool = False) -> Path:
    """Write `plan.json` into the sweep's folder.

    A folder is this sweep's if its plan has the same name and, on the splits of both, the same
    data. The grid may differ: a sweep can be extended, and finished runs are recognised by their
    ids. A lost or damaged plan is written again from the configuration.

    Args:
        plan: The plan of the sweep.
        extend: Whether to keep the runs in the folder's plan that a sweep of the same configuration
            has added because of its results.

    Returns:
        The folder.

    Raises:
        RecordError: If the folder is another sweep's.
    """
    check_owner(plan)
    config = plan.config
    schema = BenchmarkSchema.of(
        config.data,
        profile_of(config.evaluation),
        config.evaluation.metrics,
        references=config.references,
    )
    document: dict[str, Any] = plan.to_json()
    document[KEY] = replace(schema, unit=config.unit).to_json()
    path = plan.folder / PLAN_FILE
    if extend:
        # A lost or damaged plan has no runs to keep.
        with suppress(OSError, ValueError, KeyError, TypeError):
            written = json.loads(path.read_text(encoding="utf-8"))
            written_ids = {run["id"] for run in written["runs"]}
            has_same_config = written["config"] == document["config"]
            if has_same_config and written_ids.issuperset(run.id for run in plan.runs):
                document["runs"] = written["runs"]
    text = json.dumps(document, indent=1, allow_nan=False)
    write_file(path, text, "the plan", "what is recorded is kept")
    return plan.folder


def check_owner(plan: Plan) -> None:
    """Check that the sweep may write to its folder. Nothing is written.

    Raises:
        RecordError: If the folder is another sweep's, or contains other files.
    """
    folder = plan.folder
    if folder.exists() and not folder.is_dir():
        raise RecordError(f"{folder} is a file, not a sweep folder; {FIX}")
    try:
        written = json.loads((folder / PLAN_FILE).read_text(encoding="utf-8"))
        name = str(written["name"])
        data = dict(written["data"])
    except FileNotFoundError:
        _check_known_files(folder, f"has no {PLAN_FILE}")
        return
    except (ValueError, KeyError, TypeError) as error:
        _check_known_files(folder, f"holds a {PLAN_FILE} that is damaged ({error})")
        return
    if name != plan.config.name:
        raise RecordError(f"{folder} contains sweep {name!r}, not {plan.config.name!r}; {FIX}")
    for fraction, fingerprint in plan.fingerprints.items():
        written_fingerprint = data.get(split_text(fraction), fingerprint)
        if written_fingerprint != fingerprint:
            raise RecordError(
                f"{folder} contains sweep {name!r} on other data: the rows of "
                f"{split_label(fraction)} had the hash {written_fingerprint} and have "
                f"{fingerprint} now; {FIX}"
            )
    had_texts = dict(written.get("config", {})).get("keep_texts", True)
    _check_texts(plan, had_texts=had_texts)


def _check_texts(plan: Plan, *, had_texts: bool) -> None:
    """Raise RecordError if records have texts and new ones would not, or the other way round.

    Args:
        plan: The plan of the sweep.
        had_texts: The setting `keep_texts` of the plan in the folder.
    """
    folder = plan.folder
    has_records = any((folder / "records").glob("[!.]*"))
    if not has_records or had_texts == plan.config.keep_texts:
        return
    if had_texts:
        raise RecordError(
            f"{folder} has records with texts, from before keep_texts: false was set; delete "
            f"the folder, or {FIX}"
        )
    # Later evaluations would have questions, and those of the start and retain models have none.
    raise RecordError(
        f"{folder} has records without texts, from when keep_texts: false was set; set it again, "
        f"delete the folder, or {FIX}"
    )


def _check_known_files(folder: Path, state: str) -> None:
    """Raise RecordError if a folder without a plan does not look like a sweep's.

    A folder with records does, and so does one with only views of a sweep.

    Args:
        folder: The folder.
        state: What is wrong with its plan, for the message: `has no plan.json`.
    """
    known = VIEWS | {PLAN_FILE, "records"}
    strange = [path.name for path in folder.glob("[!.]*") if path.name not in known]
    if strange and not (folder / "records").is_dir():
        raise RecordError(f"{folder} {state} and holds {min(strange)!r}: not a sweep folder; {FIX}")


@contextmanager
def lock_folder(folder: Path) -> Generator[None, None, None]:
    """Lock the folder for this process while the context is open.

    Raises:
        RecordError: If another process holds the lock. The message names it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    with path.open("a+", encoding="utf-8") as file:
        try:
            flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, folder)
        except BlockingIOError:
            file.seek(0)
            # Between its lock and its text, the other process has not said who it is.
            holder = file.read().strip() or "just started"
            raise RecordError(
                f"{folder}: another command works in it: {holder}; "
                "wait for it or stop it, then start this one again: finished runs are kept"
            ) from None
        file.truncate(0)
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        file.write(f"process {os.getpid()} on {platform.node()} since {since}\n")
        file.flush()
        try:
            yield
        finally:
            # The file is emptied and not removed. If another process waited for the removed file
            # and a third one made a new file, both could have a lock.
            file.truncate(0)


def remove_leftovers(folder: Path) -> None:
    """Delete what commands that were killed have half written, from a folder that is locked."""
    for parent in (folder / "records", folder / "state"):
        for part in parent.glob(f"{PART}*"):
            shutil.rmtree(part, ignore_errors=True)


def set_aside_damaged(folder: Path, warn: Callable[[str], None]) -> None:
    """Rename each damaged record, so that its run is repeated.

    Args:
        folder: The sweep's folder, which is locked.
        warn: Is called with a sentence for each damaged record.
    """
    for path in sorted((folder / "records").glob("[!.]*")):
        if not path.is_dir() or path.suffix == DAMAGED:
            continue
        try:
            _check_record(path)
        except DamagedError as error:
            aside = path.with_name(path.name + DAMAGED)
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
            # The rest of the message advises to delete the record, which is not needed here.
            reason = str(error).partition("; delete")[0]
            warn(f"{reason}; it is set aside as {aside.name}, and done again")


def _check_record(path: Path) -> None:
    """Raise DamagedError if a record or one of its files of observations is damaged."""
    evaluations = read_record(path).evaluations
    if isinstance(evaluations, StoredEvaluations):
        for file in evaluations.files.values():
            file.check()
