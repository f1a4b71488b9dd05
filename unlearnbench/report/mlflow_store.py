"""MLflow's store in a sweep's folder, and what happens to it if the folder is moved.

MLflow writes the absolute addresses of artifacts into its store. After the folder was moved or
copied, they point to where it was.
"""

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

STORE = "mlflow.db"
"""MLflow's store in a sweep's folder, which is used if no other is configured."""
ARTIFACTS = "mlartifacts"
"""Folder of the artifacts beside the store."""
_BUSY_SECONDS = 60.0


def folder_store(folder: Path) -> str:
    """Return the address of the store in a sweep's folder."""
    return f"sqlite:///{(folder / STORE).resolve()}"


def store_uri(uri: str | None, folder: Path) -> str:
    """Return the address of the store.

    Args:
        uri: Address in the configuration. If it is None, the environment variable
            MLFLOW_TRACKING_URI decides, and without one the store is in the sweep's folder.
        folder: The sweep's folder.
    """
    return uri or os.environ.get("MLFLOW_TRACKING_URI") or folder_store(folder)


def correct_artifact_addresses(folder: Path) -> int:
    """Let MLflow find the artifacts of a sweep's folder that was moved or copied.

    Only the addresses of experiments whose artifacts are in this folder are corrected: a store may
    also have experiments whose artifacts are elsewhere.

    Returns:
        The number of experiments whose addresses were corrected. 0 if the folder has no store, or
        if its store cannot be written: MLflow then shows everything but the artifacts.
    """
    store, artifacts = folder / STORE, (folder / ARTIFACTS).resolve()
    if not store.is_file() or not artifacts.is_dir():
        return 0
    corrected = 0
    with suppress(sqlite3.Error), closing(sqlite3.connect(store, timeout=_BUSY_SECONDS)) as known:
        experiments: list[tuple[int, str]] = known.execute(
            "SELECT experiment_id, artifact_location FROM experiments"
        ).fetchall()
        for experiment, location in experiments:
            address = artifacts.as_uri()
            is_here = location == address
            if is_here or not str(location).endswith(f"/{ARTIFACTS}"):
                continue
            if not _has_artifacts_here(known, experiment, artifacts):
                continue
            with known:
                known.execute(
                    "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?",
                    (address, experiment),
                )
                known.execute(
                    "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?) "
                    "WHERE experiment_id = ? AND substr(artifact_uri, 1, ?) = ?",
                    (address, len(location) + 1, experiment, len(location), location),
                )
            corrected += 1
    return corrected


def _has_artifacts_here(store: sqlite3.Connection, experiment: int, artifacts: Path) -> bool:
    """Whether a run of the experiment has its folder of artifacts below `artifacts`."""
    runs: list[tuple[str]] = store.execute(
        "SELECT run_uuid FROM runs WHERE experiment_id = ?", (experiment,)
    ).fetchall()
    return any((artifacts / run).is_dir() for (run,) in runs)
