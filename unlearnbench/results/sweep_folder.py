"""Owner and lock of a sweep's folder, and leftovers of interrupted commands.

The lock is the kernel's (`flock`), which releases it when its process ends, however it ends. The
file's text only names the process.
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
FIX = "choose another with --set name=… or --set output=…"
VIEWS = {
    *("report.html", "results.csv", "attacks.csv", "sweep.log", "selection.json", "search.jsonl"),
    *("tradeoff.svg", "tradeoff.html"),
    *(TABLE_FILE, "state", "mlflow.db", "mlflow.json", "links.json", "mlruns", "mlartifacts"),
}
"""Other files of a sweep than its plan and records; none of them identifies it."""


def claim_folder(plan: Plan, *, extend: bool = False) -> Path:
    """Write `plan.json` into the sweep's folder; RecordError where that is another sweep's.

    A folder is this sweep's if its plan has the same name and, on the splits of both,
    the same data. The grid may differ: a sweep can be extended, and finished runs are recognised
    by their ids. A lost or damaged plan is written again from the configuration.

    extend  keep the runs that a sweep of the same configuration has added by its results
    """
    folder = plan.folder
    check_owner(plan)
    # Renamed into place, so that a kill leaves the old plan or the new one, never half of one.
    config = plan.config
    rules, chosen = profile_of(config.evaluation), config.evaluation.metrics
    schema = BenchmarkSchema.of(config.data, rules, chosen, references=config.references)
    entry = {KEY: replace(schema, unit=config.unit).to_json()}
    document: dict[str, Any] = plan.to_json() | entry
    with suppress(OSError, ValueError, KeyError, TypeError):
        written = json.loads((folder / PLAN_FILE).read_text(encoding="utf-8")) if extend else {}
        known, same = {r["id"] for r in written["runs"]}, written["config"] == document["config"]
        if same and known.issuperset(run.id for run in plan.runs):
            document["runs"] = written["runs"]
    text = json.dumps(document, indent=1, allow_nan=False)
    write_file(folder / PLAN_FILE, text, "the plan", "what is recorded is kept")
    return folder


def check_owner(plan: Plan) -> None:
    """RecordError where the sweep's folder is not this sweep's to write to; writes nothing."""
    folder, path = plan.folder, plan.folder / PLAN_FILE
    if folder.exists() and not folder.is_dir():
        raise RecordError(f"{folder} is a file, not a sweep folder; {FIX}")
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        name, data = str(written["name"]), dict(written["data"])
    except FileNotFoundError:
        return _check_known_files(folder, f"has no {PLAN_FILE}")
    except (ValueError, KeyError, TypeError) as error:
        return _check_known_files(folder, f"holds a {PLAN_FILE} that is damaged ({error})")
    if name != plan.config.name:
        raise RecordError(f"{folder} contains sweep {name!r}, not {plan.config.name!r}; {FIX}")
    for fraction, fingerprint in plan.fingerprints.items():
        other = data.get(split_text(fraction), fingerprint)
        if other != fingerprint:
            raise RecordError(
                f"{folder} contains sweep {name!r} on other data: the rows of "
                f"{split_label(fraction)} had the hash {other} and have {fingerprint} now; {FIX}"
            )
    had_texts = dict(written.get("config", {})).get("keep_texts", True)
    has_records = any((folder / "records").glob("[!.]*"))
    if not has_records or had_texts == plan.config.keep_texts:
        return
    if had_texts:
        raise RecordError(
            f"{folder} has records with texts, from before keep_texts: false was set; delete "
            f"the folder, or {FIX}"
        )
    # Questions of later evaluations would not match those of the start and retain models.
    raise RecordError(
        f"{folder} has records without texts, from when keep_texts: false was set; set it again, "
        f"delete the folder, or {FIX}"
    )


def _check_known_files(folder: Path, state: str) -> None:
    """Raise RecordError for a folder with files of others, and no records, whose plan is lost."""
    strange = [p.name for p in folder.glob("[!.]*") if p.name not in VIEWS | {PLAN_FILE, "records"}]
    if strange and not (folder / "records").is_dir():
        raise RecordError(f"{folder} {state} and holds {min(strange)!r}: not a sweep folder; {FIX}")


@contextmanager
def lock_folder(folder: Path) -> Generator[None, None, None]:
    """Lock the folder for this process.

    Raises: RecordError that names the holder, where another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    with path.open("a+", encoding="utf-8") as file:
        try:
            flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, folder)
        except BlockingIOError:
            file.seek(0)
            raise RecordError(
                f"{folder}: another command works in it: {file.read().strip() or 'just started'}; "
                "wait for it or stop it, then start this one again: finished runs are kept"
            ) from None
        file.truncate(0)
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        file.write(f"process {os.getpid()} on {platform.node()} since {since}\n")
        file.flush()
        try:
            yield
        finally:
            # Emptied, not removed: if another process waits for the removed file, two processes
            # could each lock one.
            file.truncate(0)


def remove_leftovers(folder: Path) -> None:
    """Delete half-written records of commands that were killed; call with the folder locked."""
    for part in (folder / "records").glob(f"{PART}*"):
        shutil.rmtree(part, ignore_errors=True)


def set_aside_damaged(folder: Path, warn: Callable[[str], None]) -> None:
    """Rename each damaged record, so that its run is repeated."""
    for path in sorted((folder / "records").glob("[!.]*")):
        if not path.is_dir() or path.suffix == DAMAGED:
            continue
        try:
            evaluations = read_record(path).evaluations
            if isinstance(evaluations, StoredEvaluations):
                for file in evaluations.files.values():
                    file.check()
        except DamagedError as error:
            aside = path.with_name(path.name + DAMAGED)
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
            reason = str(error).partition("; delete")[0]
            warn(f"{reason}; it is set aside as {aside.name}, and done again")
