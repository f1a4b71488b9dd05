"""The command line: what can be said. What is done about it is in `commands.py`.

Nothing heavy is imported before a command needs it, so `--help` and errors are immediate.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, get_args

from unlearnbench import commands, listing
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.settings import ModelSettings

Subparsers = Any  # what `add_subparsers` returns is a private class of argparse

USER_ERROR, INTERRUPTED, BROKEN_PIPE = 2, 130, 141

_EPILOG = """\
start here:
  unlearnbench quickstart                     every method on a small benchmark made here: no
                                              network, no GPU, minutes; ends with a page to open
  unlearnbench configs list                   what else is ready to run
  unlearnbench plan tofu_llama2_7b            the runs of a sweep, and their cost, before any
  unlearnbench sweep tofu_llama2_7b           ... and the sweep; the same command resumes it
  unlearnbench sweep my.yaml --set epochs=10  any key of the YAML can be overridden
  unlearnbench score log.json --retain retain90.json
                                              Model Utility and Forget Quality of a TOFU log

A CONFIG is a YAML file or the name of a shipped one. `COMMAND --help` says more.
Exit codes: 0 done; 1 some runs failed; 2 something to mend, said in one line; 130 interrupted.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without «·» is no reason to fail
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    try:
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except UnlearnbenchError as error:
        sys.stderr.write(f"{error}\n")
        return USER_ERROR
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the same command goes on where this one stopped\n")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left. Python flushes once more at exit: let it go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="unlearnbench",
        description="Compare methods that make a language model forget.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=version("unlearnbench"))
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_sweeps(subparsers)
    _add_evaluations(subparsers)
    _add_results(subparsers)
    _add_listings(subparsers)
    return parser


def _add_sweeps(subparsers: Subparsers) -> None:
    quickstart = _command(
        subparsers,
        "quickstart",
        commands.quickstart,
        "sweep every method on a small benchmark made here; minutes on a laptop",
        "Short for `unlearnbench sweep quickstart`.",
    )
    _add_config_options(quickstart, with_config=False)
    plan = _command(
        subparsers,
        "plan",
        commands.plan,
        "print the runs of a config and what they cost; runs and writes nothing",
        "examples:\n  unlearnbench plan quickstart\n"
        "  unlearnbench plan my.yaml --set seeds=[0,1,2] --json",
    )
    _add_config_options(plan)
    sweep = _command(
        subparsers,
        "sweep",
        commands.sweep,
        "carry out every run of a config; resumes, and skips what is finished",
        "examples:\n"
        "  unlearnbench sweep tofu_tiny --set data.path=~/tofu\n"
        "  unlearnbench sweep my.yaml --set methods=[ce-u] --set learning_rates=[1e-5,2e-5]\n"
        "  unlearnbench sweep my.yaml --set models.0.base=./my-model --set sweep.concurrent=1\n"
        "  unlearnbench sweep my.yaml --plugin my_method.py\n\n"
        "Files go to output/name: report.html, results.csv, records/, plan.json, mlflow.db.",
    )
    _add_config_options(sweep)
    run = _command(
        subparsers,
        "run",
        commands.run,
        "carry out one run of a config in this process, without Ray",
        "examples:\n  unlearnbench run quickstart                 lists the runs\n"
        "  unlearnbench run quickstart --select 3      the fourth of them\n"
        "  unlearnbench run quickstart --select 5f0c   the one whose id begins with 5f0c",
    )
    run.add_argument("--select", metavar="RUN", help="position in the list, or start of the id")
    _add_config_options(run)


def _add_evaluations(subparsers: Subparsers) -> None:
    evaluate = _command(
        subparsers,
        "evaluate",
        commands.evaluate,
        "evaluate a model and write its log in TOFU's format",
        "examples:\n"
        "  unlearnbench evaluate ./my-model --data ~/tofu --forget 0.10 --out log.json\n"
        "  unlearnbench evaluate locuslab/tofu_ft_phi-1.5 --tokenizer microsoft/phi-1_5 \\\n"
        "      --data tofu --retain retain90.json",
    )
    evaluate.add_argument("model", metavar="MODEL", help="hub id or folder")
    evaluate.add_argument("--tokenizer", metavar="MODEL", help="where MODEL has none of its own")
    evaluate.add_argument(
        "--data",
        default="tofu",
        metavar="DATA",
        help="`tofu` (from the hub), a folder of its files, or `synthetic` (default: tofu)",
    )
    evaluate.add_argument(
        "--forget", type=_fraction, default=0.1, metavar="FRACTION", help="default: 0.1"
    )
    evaluate.add_argument(
        "--template",
        default="auto",
        choices=get_args(ModelSettings.model_fields["template"].annotation),
        help="how question and answer become text (default: auto)",
    )
    evaluate.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    evaluate.add_argument("--out", metavar="FILE", help="log to write, gzipped if it ends in .gz")
    score = _command(
        subparsers,
        "score",
        commands.score,
        "compute the metrics of an evaluation log, ours or TOFU's own",
        "example:\n  unlearnbench score eval_log_aggregated.json --retain retain90.json --json",
    )
    score.add_argument("log", metavar="LOG", help="eval_log_aggregated.json, plain or gzipped")
    for parser in (evaluate, score):
        parser.add_argument(
            "--retain", metavar="LOG", help="the retain model's log, which Forget Quality needs"
        )
        parser.add_argument("--profile", default="tofu", help="evaluation rules (default: tofu)")
        parser.add_argument("--rows", type=int, help="first rows of each set, for the profile's")
        parser.add_argument("--max-length", type=int, help="tokens, in place of the profile's")
        _add_json(parser)


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} must lie between 0 and 1")
    return value


def _add_results(subparsers: Subparsers) -> None:
    report = _command(
        subparsers, "report", commands.report, "write a sweep's page and table again", ""
    )
    report.add_argument(
        "folder", metavar="FOLDER", help="a sweep's folder, such as runs/quickstart"
    )
    report.add_argument("--out", metavar="FILE", help="page (default: FOLDER/report.html)")
    track = _command(
        subparsers,
        "track",
        commands.track,
        "log a sweep's records to MLflow again, or to another server",
        "example:\n  unlearnbench track runs/quickstart --uri http://localhost:5000",
    )
    track.add_argument("folder", metavar="FOLDER", help="a sweep's folder")
    track.add_argument("--uri", help="tracking server (default: as in the sweep)")
    ui = _command(
        subparsers, "ui", commands.ui, "open MLflow's pages of a sweep, on this machine only", ""
    )
    ui.add_argument(
        "folder",
        metavar="FOLDER",
        nargs="?",
        default="runs/quickstart",
        help="a sweep's folder (default: %(default)s)",
    )


def _add_listings(subparsers: Subparsers) -> None:
    for kind, lister, shower, what in (
        ("methods", listing.list_methods, listing.show_method, "equation and hyper-parameters"),
        ("configs", listing.list_configs, listing.show_config, "the YAML, or resolved as JSON"),
    ):
        parser = subparsers.add_parser(kind, help=f"{kind} that are installed", allow_abbrev=False)
        verbs = parser.add_subparsers(dest="verb", metavar="list|show", required=True)
        lists = _command(verbs, "list", lister, f"{kind} that are installed", "")
        shows = _command(verbs, "show", shower, what, "")
        shows.add_argument("name", metavar="NAME")
        for one in (lists, shows):
            _add_json(one)
            if kind == "methods":
                _add_plugin(one)


def _command(
    subparsers: Subparsers, name: str, run: commands.Command, summary: str, epilog: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    return parser


def _add_config_options(parser: argparse.ArgumentParser, with_config: bool = True) -> None:
    if with_config:
        parser.add_argument(
            "config", metavar="CONFIG", help="YAML file, or a shipped config's name"
        )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key, by its dotted path; the value is YAML (repeatable)",
    )
    _add_plugin(parser)
    _add_json(parser)


def _add_plugin(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE",
        help="Python file that defines a method, named as the file (repeatable)",
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for a program")


if __name__ == "__main__":
    sys.exit(main())
