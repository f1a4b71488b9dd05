"""Two threads that share an evaluation, against one thread that does all of it."""

import threading
from collections.abc import Generator
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import nn

from unlearnbench.api.benchmark import Question
from unlearnbench.api.observations import Evaluation
from unlearnbench.config.profiles import get_profile
from unlearnbench.evaluation import decoding, generation, side_by_side
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.predictor import Keys, Predictor
from unlearnbench.evaluation.prefix_tree import build_tree
from unlearnbench.evaluation.question_scores import KeptKeys
from unlearnbench.evaluation.side_by_side import (
    counting_in_this_thread,
    map_side_by_side,
    predictors_side_by_side,
)
from unlearnbench.models.limits import pad_id
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.models.token_row import Row

from .test_generation import assert_equal_columns


@pytest.fixture(autouse=True)
def two_torch_threads() -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2, "the number from before is restored"
    torch.set_num_threads(before)


@pytest.fixture
def lots(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of answers of each lot that is decoded. A thread may take two lots."""
    sizes: list[int] = []
    run = decoding.Decoding.run

    def recorded(self: decoding.Decoding) -> None:
        sizes.append(len(self.waiting))
        run(self)

    monkeypatch.setattr(decoding.Decoding, "run", recorded)
    return sizes


def evaluate(
    model: Any, tokenizer: Any, rows: tuple[Question, ...], counted: list[tuple[int, int]]
) -> Evaluation:
    sets: Any = {"retain": rows[3:], "forget": rows[:3]}
    sets |= {"real_authors": rows[:1], "world_facts": rows[4:5]}
    profile = get_profile("tofu", max_length=90)
    evaluator = Evaluator(sets, tokenizer, TEMPLATES["plain"], profile, pad_id(tokenizer), 200)
    return evaluator(model, progress=lambda done, total: counted.append((done, total)))


def test_two_threads_give_the_numbers_and_answers_of_one(
    sharp: Any,
    tokenizer: Any,
    questions: tuple[Question, ...],
    lots: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[tuple[int, int]] = []
    torch.set_num_threads(1)
    alone = evaluate(sharp, tokenizer, questions, counted)
    [lot] = lots

    torch.set_num_threads(2)
    lots.clear()
    counted.clear()
    monkeypatch.setattr(generation, "_FEWEST_SIDE_BY_SIDE", 1)
    together = evaluate(sharp, tokenizer, questions, counted)
    assert sorted(lots) == [lot // 2, lot - lot // 2]
    assert together.answers == alone.answers
    for name, seen in together.sets.items():
        assert_equal_columns(seen, alone.sets[name])
    assert counted[-1] == (2 * 12, 2 * 12)
    assert counted == sorted(counted)


def test_few_answers_are_decoded_in_one_thread(
    sharp: Any, tokenizer: Any, questions: tuple[Question, ...], lots: list[int]
) -> None:
    evaluate(sharp, tokenizer, questions, [])
    assert len(lots) == 1


def predictor_of(model: Any, tokenizer: Any) -> Predictor:
    trial = build_tree([Row((5, 6, 7, 8, 9), 2), Row((5, 6, 7, 3, 4, 2), 2)])
    return Predictor(model.eval(), trial, pad=pad_id(tokenizer), longest=20)


def test_the_second_thread_shares_weights_and_has_its_own_buffers(
    model: Any, tokenizer: Any
) -> None:
    predictor = predictor_of(model, tokenizer)
    with predictor.ready():
        first, second = predictors_side_by_side(predictor)
    assert first is predictor
    weights = dict(first.model.named_parameters())
    assert all(weight is weights[name] for name, weight in second.model.named_parameters())
    buffers = dict(first.model.named_buffers())
    assert buffers
    assert not any(buffer is buffers[name] for name, buffer in second.model.named_buffers())
    modules = {*first.model.modules()}
    assert modules.isdisjoint(second.model.modules())


def test_keys_that_a_thread_has_kept_serve_the_other_one(model: Any, tokenizer: Any) -> None:
    predictor = predictor_of(model, tokenizer)
    kept: list[Any] = []
    with predictor.ready():
        for of_thread in predictors_side_by_side(predictor):
            keys: Any = {}
            of_thread.tree_states([predictor.trial], keys)
            kept.append(keys)
            own = of_thread.own_keys(keys)
            assert {*own} <= {*of_thread.model.modules()}
            assert [*own.values()] == [*keys.values()]
    assert [*kept[0]] == [*kept[1]]
    assert len(kept[0]) > 1
    for layer, (key, value) in kept[0].items():
        assert torch.equal(key, kept[1][layer][0])
        assert torch.equal(value, kept[1][layer][1])


class _Uncopied(nn.Module):
    """A module with something that cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_a_model_that_cannot_be_copied_is_evaluated_in_one_thread(
    model: Any, tokenizer: Any
) -> None:
    model.lock = _Uncopied()
    predictor = predictor_of(model, tokenizer)
    with predictor.ready():
        assert predictors_side_by_side(predictor) == (predictor,)


def test_a_model_whose_copy_computes_with_other_modules_is_evaluated_in_one_thread(
    model: Any, tokenizer: Any
) -> None:
    """Functions are not copied, so this copy would still run the original's modules."""
    forward = model.forward

    def call_original(*args: Any, **options: Any) -> Any:
        return forward(*args, **options)

    model.forward = call_original
    predictor = predictor_of(model, tokenizer)
    with predictor.ready():
        assert predictors_side_by_side(predictor) == (predictor,)


def test_results_come_in_the_order_of_the_items(model: Any, tokenizer: Any) -> None:
    predictor = predictor_of(model, tokenizer)
    meeting = threading.Barrier(2, timeout=60)

    def work(of_thread: Predictor, item: int) -> tuple[int, bool, int]:
        if item < 2:
            meeting.wait()  # so each thread has one of the first two items
        return item, of_thread is predictor, torch.get_num_threads()

    with predictor.ready():
        predictors = predictors_side_by_side(predictor)
        results = map_side_by_side(predictors, work, range(9))
    assert [item for item, _, _ in results] == [*range(9)]
    assert {results[0][1], results[1][1]} == {True, False}
    assert {threads for _, _, threads in results} == {1}


@pytest.mark.parametrize("in_own_thread", [True, False])
def test_an_error_in_either_thread_ends_the_work(
    model: Any, tokenizer: Any, in_own_thread: bool
) -> None:
    predictor = predictor_of(model, tokenizer)
    meeting = threading.Barrier(2, timeout=60)
    begun: list[int] = []

    def work(of_thread: Predictor, item: int) -> None:
        begun.append(item)
        if item < 2:
            meeting.wait()
        if (of_thread is predictor) is in_own_thread:
            raise torch.OutOfMemoryError("planted")
        while not any_error.wait(0.01):
            pass

    any_error = threading.Event()
    threading.Timer(0.3, any_error.set).start()
    with predictor.ready():
        predictors = predictors_side_by_side(predictor)
        with pytest.raises(torch.OutOfMemoryError, match="planted"):
            map_side_by_side(predictors, work, range(50))
    assert len(begun) == 2


def test_only_the_first_thread_reports_progress() -> None:
    reported: list[tuple[int, int]] = []
    count = counting_in_this_thread(lambda more: reported.append((more, threading.get_ident())))
    other = threading.Thread(target=count, args=(5,))
    other.start()
    other.join()
    assert reported == []
    count(2)
    count(0)
    assert reported == [(7, threading.get_ident())]


def keep_nothing(*_: Any) -> int:
    return 0


@pytest.mark.parametrize("room", [0, 3, 5, 9])
def test_what_is_kept_does_not_depend_on_which_batch_ends_first(room: int) -> None:
    layer: nn.Module = nn.Identity()
    tree = build_tree([Row(tuple(range(8)), 2)])
    keys: Keys = {layer: (torch.arange(7.0).reshape(7, 1, 1), torch.arange(7.0).reshape(7, 1, 1))}
    wanted = (3, 4, 2, 1)
    kept_by_order: list[list[int]] = []
    for order in permutations(range(4)):
        kept = KeptKeys(keep_nothing, room)
        for question in order:
            offers = kept.offer(question, tree, 0, wanted[question], keys)
            kept.end_batch(question, offers)
        kept_by_order.append(sorted(kept.by_question))
        for question, stored in kept.by_question.items():
            assert len(stored[layer][0]) == wanted[question]

    expected: list[int] = []
    for question, count in enumerate(wanted):
        if count <= room:
            room -= count
            expected.append(question)
    assert kept_by_order == [expected] * 24


def test_without_a_second_thread_of_torch_there_is_one_predictor(
    model: Any, tokenizer: Any
) -> None:
    predictor = predictor_of(model, tokenizer)
    torch.set_num_threads(1)
    with predictor.ready():
        assert side_by_side.predictors_side_by_side(predictor) == (predictor,)
    torch.set_num_threads(2)
