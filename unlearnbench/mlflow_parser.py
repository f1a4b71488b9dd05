"""What can be said after `unlearnbench track` and `unlearnbench ui`."""

from __future__ import annotations

from unlearnbench import mlflow_commands
from unlearnbench.arguments import Subparsers, add_json, at_least_one, command


def add_mlflow(subparsers: Subparsers) -> None:
    """`track` and `ui`."""
    track = command(
        subparsers,
        "track",
        mlflow_commands.track,
        "log a sweep's records to MLflow again, or to another server",
        "examples:\n"
        "  unlearnbench track runs/quickstart\n"
        "  unlearnbench track runs/quickstart --uri http://localhost:5000 --json\n\n"
        "What is there already stays as it is; what is there in part is logged anew.",
    )
    track.add_argument("folder", metavar="FOLDER", help="a sweep's folder")
    track.add_argument("--uri", help="tracking server (default: as in the sweep)")
    add_json(track)
    ui = command(
        subparsers,
        "ui",
        mlflow_commands.ui,
        "open MLflow's pages of a sweep, on this machine only",
        "examples:\n"
        "  unlearnbench ui runs/quickstart\n"
        "  unlearnbench ui runs/quickstart --port 8080 --no-browser\n\n"
        "Prints the address; Ctrl-C ends it. A sweep that a server tracks is opened there.",
    )
    ui.add_argument(
        "folder",
        metavar="FOLDER",
        nargs="?",
        default="runs/quickstart",
        help="a sweep's folder (default: %(default)s)",
    )
    ui.add_argument(
        "--port",
        type=at_least_one,
        help="of the server (default: the first free one from 5000)",
    )
    ui.add_argument(
        "--no-browser", dest="browser", action="store_false", help="print the address only"
    )
