"""What can be said on the command line. What is done about it is in `commands.py` (sweeps),
`evaluating.py` (single models) and `listing.py` (what is installed).
"""

from __future__ import annotations

import argparse
from importlib.metadata import version

from unlearnbench import checking, commands, evaluating, listing
from unlearnbench.arguments import (
    DTYPES,
    PRECISIONS,
    TEMPLATES,
    Subparsers,
    add_config,
    add_data,
    add_json,
    add_plugin,
    add_profile,
    at_least_one,
    command,
    key_and_value,
    positive,
)
from unlearnbench.bench_parser import add_bench
from unlearnbench.comparing import add_compare
from unlearnbench.figures_parser import add_figures
from unlearnbench.memory import FLOPS
from unlearnbench.mlflow_parser import add_mlflow
from unlearnbench.outputs import Output
from unlearnbench.review_parser import add_leaderboard, add_report

_EPILOG = """\
start here:
  unlearnbench quickstart                     every method on a small benchmark made here: no
                                              network, no GPU, minutes; ends with a page to open
  unlearnbench configs list                   what else is ready to run
  unlearnbench plan tofu_llama2_7b            the runs of a sweep, and their cost, before any
  unlearnbench sweep tofu_llama2_7b           ... and the sweep; the same command resumes it
  unlearnbench sweep my.yaml --set epochs=10  any key of the YAML can be overridden
  unlearnbench compare npo+nll ce-u           which of two forgets more at equal utility, and
                                              how sure that is
  unlearnbench evaluate ./my-model --data ~/tofu
                                              one model: TOFU's metrics, answers, log
  unlearnbench score log.json --retain retain90.json
                                              Model Utility and Forget Quality of a TOFU log

A CONFIG is a YAML file or the name of a shipped one. `COMMAND --help` says more.
Exit codes: 0 done; 1 some runs failed; 2 an error, which one line explains; 130 interrupted;
141 the reader of the output has gone (`| head`).
"""


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
    add_bench(subparsers)
    _add_results(subparsers)
    add_compare(subparsers)
    add_figures(subparsers)
    _add_listings(subparsers)
    return parser


def _add_sweeps(subparsers: Subparsers) -> None:
    quickstart = command(
        subparsers,
        "quickstart",
        commands.quickstart,
        "sweep every method on a small benchmark made here; minutes on a laptop",
        "Short for `unlearnbench sweep quickstart`.",
    )
    add_config(quickstart, named=False)
    plan = command(
        subparsers,
        "plan",
        commands.plan,
        "print the runs of a config and what they cost; runs and writes nothing",
        "examples:\n  unlearnbench plan quickstart\n"
        "  unlearnbench plan my.yaml --set seeds=[0,1,2] --json\n"
        "  unlearnbench plan tofu_phi_1_5 --memory --flops 200e12\n"
        "  unlearnbench plan tofu_llama2_7b --schedule --set methods=[ce-u]",
    )
    plan.add_argument(
        "--schedule",
        action="store_true",
        help="also every optimiser step of each kind of run: its epoch, rows and learning rate",
    )
    plan.add_argument(
        "--memory",
        action="store_true",
        help="also memory and hours of each kind of run, with the formula; asks for configs only",
    )
    plan.add_argument(
        "--flops",
        type=positive,
        default=FLOPS,
        metavar="N",
        help="FLOP/s that a process reaches (default: %(default)g, 40 %% of an H100's in bf16)",
    )
    plan.add_argument(
        "--device-memory",
        type=positive,
        metavar="GB",
        help="memory of a GPU, in 1e9 bytes (default: that of this machine's, else 80)",
    )
    add_config(plan)
    sweep = command(
        subparsers,
        "sweep",
        commands.sweep,
        "carry out every run of a config; resumes, and skips what is finished",
        "examples:\n"
        "  unlearnbench sweep tofu_tiny --set data.path=~/tofu\n"
        "  unlearnbench sweep my.yaml --set methods=[ce-u] --set learning_rates=[1e-5,2e-5]\n"
        "  unlearnbench sweep my.yaml --set models.0.base=./my-model --set ray.concurrent=1\n"
        "  unlearnbench sweep my.yaml --plugin my_method.py\n\n"
        "Files go to output/name: report.html, results.csv, records/, plan.json, mlflow.db.",
    )
    add_config(sweep)
    run = command(
        subparsers,
        "run",
        commands.run,
        "carry out one run of a config in this process, without Ray",
        "examples:\n  unlearnbench run quickstart                 lists the runs\n"
        "  unlearnbench run quickstart --select 3      the fourth of them\n"
        "  unlearnbench run quickstart --select 5f0c   the one whose id begins with 5f0c",
    )
    run.add_argument("--select", metavar="RUN", help="position in the list, or start of the id")
    add_config(run)


def _add_evaluations(subparsers: Subparsers) -> None:
    """`evaluate` and `score`."""
    evaluate = command(
        subparsers,
        "evaluate",
        evaluating.evaluate,
        "evaluate a model and write its log in TOFU's format",
        "examples:\n"
        "  unlearnbench evaluate ./my-model --data ~/tofu --forget 0.10 --out log.json\n"
        "  unlearnbench evaluate ./my-adapter --data ~/tofu --retain ./my-retain90-model\n"
        "  unlearnbench evaluate ./my-model --questions answers.parquet\n"
        "  unlearnbench evaluate locuslab/tofu_ft_phi-1.5 --tokenizer microsoft/phi-1_5 \\\n"
        "      --data tofu --retain retain90.json",
        writes=[Output("out", "the evaluation log"), Output("questions", "the questions")],
    )
    evaluate.add_argument("model", metavar="MODEL", help="hub id, folder, or LoRA adapter's folder")
    evaluate.add_argument("--tokenizer", metavar="MODEL", help="where MODEL has none of its own")
    add_data(evaluate, "tofu")
    evaluate.add_argument(
        "--template",
        default="auto",
        choices=TEMPLATES,
        help="how question and answer become text (default: auto)",
    )
    evaluate.add_argument(
        "--template-arg",
        type=key_and_value,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="variable of the chat template, or system_prompt; may be given several times",
    )
    evaluate.add_argument("--dtype", default="float32", choices=DTYPES)
    evaluate.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="of the evaluation; bf16: autocast, where weights are float32 (default: bf16 on a "
        "GPU, the weights' own on a CPU)",
    )
    evaluate.add_argument(
        "--batch-tokens",
        type=at_least_one,
        help="of a forward pass, where memory is short (default: what is fast on the device)",
    )
    evaluate.add_argument(
        "--retain",
        metavar="MODEL_OR_LOG",
        help="the retain model, which Forget Quality needs: its log, or the model itself",
    )
    evaluate.add_argument("--out", metavar="FILE", help="log to write, gzipped if it ends in .gz")
    evaluate.add_argument(
        "--layout",
        default="tofu",
        choices=("tofu", "open-unlearning"),
        help="of the log (default: tofu)",
    )
    evaluate.add_argument(
        "--questions", metavar="FILE", help="table of all questions to write: .parquet or .jsonl"
    )
    score = command(
        subparsers,
        "score",
        evaluating.score,
        "compute the metrics of an evaluation log: ours, TOFU's or open-unlearning's",
        "examples:\n"
        "  unlearnbench score eval_log_aggregated.json --retain retain90.json --json\n"
        "  unlearnbench score TOFU_EVAL.json --retain retain90/TOFU_EVAL.json \\\n"
        "      --profile open-unlearning",
    )
    score.add_argument("log", metavar="LOG", help="a log's JSON, plain or gzipped")
    score.add_argument("--retain", metavar="LOG", help="the retain model's, for Forget Quality")
    for parser in (evaluate, score):
        add_profile(parser)
        parser.add_argument(
            "--max-length", type=at_least_one, help="tokens, in place of the profile's"
        )
        parser.add_argument(
            "--question-key",
            choices=("question", "paraphrased_question"),
            help="column that is asked of forget and retain sets, in place of the profile's",
        )
        add_json(parser)


def _add_results(subparsers: Subparsers) -> None:
    add_report(subparsers)
    add_leaderboard(subparsers)
    add_mlflow(subparsers)


def _add_listings(subparsers: Subparsers) -> None:
    for kind, lister, shower, what in (
        ("methods", listing.list_methods, listing.show_method, "equation and hyper-parameters"),
        ("configs", listing.list_configs, listing.show_config, "the YAML, or resolved as JSON"),
    ):
        parser = subparsers.add_parser(kind, help=f"{kind} that are installed", allow_abbrev=False)
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
        lists = command(verbs, "list", lister, f"{kind} that are installed", "")
        shows = command(verbs, "show", shower, what, "")
        shows.add_argument("name", metavar="NAME")
        for one in (lists, shows):
            add_json(one)
            if kind == "methods":
                add_plugin(one)
        if kind == "methods":
            checking.add_commands(verbs)
    parser = subparsers.add_parser(
        "profiles", help="evaluation rules by name, and how they differ", allow_abbrev=False
    )
    verbs = parser.add_subparsers(dest="verb", metavar="list|show|diff", required=True)
    every = command(verbs, "list", listing.list_profiles, "profiles, and their ids", "")
    one = command(verbs, "show", listing.show_profile, "every choice with its meaning", "")
    one.add_argument("name", metavar="NAME")
    diff = command(
        verbs,
        "diff",
        listing.diff_profiles,
        "only what differs",
        "example:\n  unlearnbench profiles diff tofu open-unlearning",
    )
    diff.add_argument("first", metavar="A")
    diff.add_argument("second", metavar="B")
    for parser in (every, one, diff):
        add_json(parser)
