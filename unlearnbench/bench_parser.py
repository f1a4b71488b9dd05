"""What can be said after `unlearnbench bench`."""

from __future__ import annotations

import argparse

from unlearnbench import benching
from unlearnbench.arguments import (
    DTYPES,
    Subparsers,
    add_data,
    add_json,
    add_plugin,
    add_profile,
    at_least_one,
    command,
)
from unlearnbench.bench import SIZES, STATES
from unlearnbench.outputs import Output

_METHODS = ["npo+nll", "ce-u", "kl-minimization", "dpo"]


def add_bench(subparsers: Subparsers) -> None:
    """`bench evaluation`, `bench losses`, `bench step` and `bench sweep`."""
    bench = subparsers.add_parser("bench", help="measure what we claim", allow_abbrev=False)
    verbs = bench.add_subparsers(dest="verb", metavar="WHAT", required=True)
    _add_evaluation(verbs)
    losses = command(
        verbs,
        "losses",
        benching.losses,
        "time the fused losses against library functions over full logits",
        "examples:\n"
        "  unlearnbench bench losses\n"
        "  unlearnbench bench losses --sizes 4096x2048x128256 --primitives CE-U KL --repeats 1\n\n"
        "Output layer and loss, forward and back. Memory: beyond inputs and their gradients.",
    )
    losses.add_argument(
        "--sizes",
        nargs="+",
        default=["2048x1024x32000"],
        metavar="SIZE",
        help="tokens x hidden size x vocabulary; fewer tokens where memory ends",
    )
    losses.add_argument("--dtype", default="float32", choices=DTYPES)
    losses.add_argument("--primitives", nargs="+", metavar="NAME", help="default: all")
    _add_common(losses)
    step = command(
        verbs,
        "step",
        benching.step,
        "time an optimiser step of methods against the usual way of writing them",
        "examples:\n"
        "  unlearnbench bench step\n"
        "  unlearnbench bench step --size 100m --batch-size 8 --methods npo+nll ce-u\n\n"
        "The usual way: a forward pass for each part, padded, logits everywhere, the reference\n"
        "model in memory and run at every step. Exit code 1 where the two ways' losses differ.",
    )
    _add_size(step)
    step.add_argument(
        "--methods",
        nargs="+",
        default=_METHODS,
        metavar="METHOD",
        help=f"names; +nll or +kl adds a retain term (default: {' '.join(_METHODS)})",
    )
    step.add_argument(
        "--batch-size", type=at_least_one, default=32, help="rows to forget a step (default: 32)"
    )
    step.add_argument(
        "--data", default="synthetic", metavar="DATA", help="as in `evaluate` (default: synthetic)"
    )
    add_plugin(step)
    _add_common(step)
    _add_sweep(verbs)


def _add_evaluation(verbs: Subparsers) -> None:
    evaluation = command(
        verbs,
        "evaluation",
        benching.evaluation,
        "time the evaluator against a plain one, and compare their numbers",
        "examples:\n"
        "  unlearnbench bench evaluation               a tiny model, made and trained here\n"
        "  unlearnbench bench evaluation --data ~/tofu --rows 400 --models bench-models\n"
        "  unlearnbench bench evaluation --size 1b --dtype bfloat16\n\n"
        "The plain way: batches of 32 in dataset order, padded, full logits, every answer variant\n"
        "by itself, `model.generate`. Exit code 1 where the two ways' metrics differ.",
    )
    _add_size(evaluation)
    evaluation.add_argument("--dtype", default="float32", choices=DTYPES)
    evaluation.add_argument(
        "--states", nargs="+", choices=STATES, help="of the model (default: all that there are)"
    )
    add_data(evaluation, "synthetic")
    add_profile(evaluation)
    evaluation.add_argument(
        "--models", metavar="FOLDER", help="keep the models there, and use them the next time"
    )
    evaluation.add_argument(
        "--quick", action="store_true", help="tiniest model, few rows: whether it works at all"
    )
    _add_common(evaluation)


def _add_sweep(verbs: Subparsers) -> None:
    sweep = command(
        verbs,
        "sweep",
        benching.sweep,
        "time a sweep against one Python process per run, and runs that do nothing",
        "examples:\n"
        "  unlearnbench bench sweep\n"
        "  unlearnbench bench sweep --noop 0 --repeats 1\n\n"
        "Both ways start from the same prepared models. Exit code 1 where their metrics differ,\n"
        "or where a record was lost or written twice.",
    )
    sweep.add_argument(
        "--noop", type=int, default=1000, metavar="N", help="runs that do nothing (default: 1000)"
    )
    sweep.add_argument("--quick", action="store_true", help="few runs: whether it works at all")
    _add_common(sweep)


def _add_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--size", default="tiny", choices=SIZES, help="of the model built here (default: tiny)"
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=at_least_one, default=3, help="of each way (default: 3)")
    parser.add_argument("--threads", type=at_least_one, help="of torch (default: its choice)")
    parser.add_argument("--record", metavar="FILE", help="append the result as a JSON line")
    parser.set_defaults(writes=(Output("record", "the record", kind="appended"),))
    parser.add_argument("--markdown", action="store_true", help="print tables for a README")
    add_json(parser)
