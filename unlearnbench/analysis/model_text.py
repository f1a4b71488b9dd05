"""One model in words: has it forgotten, is it private, and what does it keep?

Commands that judge one model print these sentences. Each begins with its question, for example
"Private? No: …". A membership attack guesses whether a model was trained on a row. An area under
its ROC curve (AUC) of ½ is chance.
"""

from collections.abc import Iterator, Mapping

from unlearnbench.analysis.over_questions import KEPT_SHARE, Difference, Ends, OverQuestions
from unlearnbench.analysis.wording import between, missing_for_privacy
from unlearnbench.evaluation.word_check import MOST_ANSWERS
from unlearnbench.results.table import TableRow


def model_sentences(
    row: TableRow, over_questions: OverQuestions, intervals: Mapping[str, Ends], profile: str
) -> tuple[str, ...]:
    """Answer whether a model has forgotten, is private, and keeps the rest, as far as known.

    Args:
        row: The model.
        over_questions: The models that it is compared with, and tests over questions.
        intervals: `OverQuestions.intervals` of the row.
        profile: Id of the evaluation rules, for example `tofu@1a2b`.
    """
    share = over_questions.kept_share(row)
    lines = (
        " ".join(_forgotten(row, over_questions)),
        _private(row, over_questions),
        _kept(row, share, intervals, profile),
        _lacking(over_questions),
        missing_for_privacy(row.schema),
    )
    return tuple(line for line in lines if line)


def _forgotten(row: TableRow, over_questions: OverQuestions) -> Iterator[str]:
    """Yield what is known of whether the model has forgotten; nothing if nothing is known."""
    removed = _removed(row)
    if removed:
        yield removed
    if over_questions.retain is not None:
        yield from _against_retain_model(row, over_questions)
    memorization = over_questions.memorization(row)
    if memorization is not None:
        yield _memorized(memorization)


def _removed(row: TableRow) -> str:
    """Say how much is gone without a retain model; empty if there is one, or if it is unknown."""
    schema = row.schema
    if schema.has_retain or not schema.could_have_retain or row.forgotten is None:
        return ""
    forgotten = row.headline.forgotten
    return (
        f"Forgotten? {forgotten.plain_label} {forgotten.text(row.forgotten)} of what the start "
        "model knows of the forget rows. Without a retain model, 1 is not the aim, and "
        "over-forgetting cannot be seen."
    )


def _against_retain_model(row: TableRow, over_questions: OverQuestions) -> Iterator[str]:
    """Say whether the headline's test tells the model from the retain model."""
    test = row.headline.forgotten.test
    if test is None:
        return
    p = row.metrics.get(test.p_value)
    distance = row.metrics.get(test.distance)
    if p is None or distance is None:
        return
    answer, verb = "No", "distinguishes"
    if p > test.level:
        answer, verb = "Perhaps", "does not distinguish"
    yield (
        f"Forgotten? {answer}: {test.label} p = {p:.2g} {verb} it from the retain "
        f"model (D = {distance:.3g})."
    )
    if over_questions.sensitivity:
        yield over_questions.sensitivity.summary


def _memorized(memorization: Difference) -> str:
    """Compare the most telling number of memorisation with the retain model's."""
    finding = "no difference beyond chance"
    if memorization.is_above:
        finding = "more is memorised than there"
    elif memorization.is_below:
        finding = "less is memorised than there"
    return (
        f"{memorization.label}: {memorization.value:.3f}, the retain model's "
        f"{memorization.retain:.3f}; difference {memorization.value - memorization.retain:+.3f}"
        f"{between(memorization.interval, '+.3f')}, {finding}."
    )


def _private(row: TableRow, over_questions: OverQuestions) -> str:
    """Say how far the strongest membership attack is off; empty without such an attack."""
    attack = over_questions.strongest_attack(row)
    if attack is None:
        return ""
    aim = "½, chance" if attack.retain is None else f"{attack.retain:.2f}, the retain model's"
    answer = "Not known"
    if attack.interval is not None:
        low, high = attack.interval
        answer = "Perhaps" if low <= attack.aim <= high else "No"
    return (
        f"Private? {answer}: of all membership attacks {attack.label} is farthest off, "
        f"AUC {attack.area:.2f}{between(attack.interval, '.2f')}; the aim is {aim}."
    )


def _kept(row: TableRow, share: float | None, intervals: Mapping[str, Ends], profile: str) -> str:
    """Say how much utility the model has, and what share of the start model's that is.

    Args:
        row: The model.
        share: `OverQuestions.kept_share`.
        intervals: As in `model_sentences`.
        profile: As in `model_sentences`.
    """
    kept = row.headline.kept
    if row.kept is None:
        return ""
    largest_uncounted = max(row.uncounted.values(), default=0.0)
    if largest_uncounted >= MOST_ANSWERS and row.kept == 0:
        return (
            f"Kept? Not known: {kept.plain_label} is 0 because profile {profile.partition('@')[0]} "
            f"does not count the words of the true answers of {', '.join(row.uncounted)}."
        )
    text = f"Kept? {kept.plain_label} {row.kept:.3f}{between(intervals.get(kept.column))}"
    ends = intervals.get(KEPT_SHARE)
    if ends is None or share is None:
        return f"{text}."
    low, high = ends
    percents = f"{100 * share:.0f} % [{100 * low:.0f}, {100 * high:.0f} %]"
    return f"{text}, which is {percents} of the start model's."


def _lacking(over_questions: OverQuestions) -> str:
    """Say which questions need a model that was not passed; empty if both were."""
    lacking: list[str] = []
    if over_questions.retain is None:
        lacking.append(
            "pass --retain to answer: is it forgotten and private, against a model that never saw "
            "the forget rows"
        )
    if over_questions.start is None:
        lacking.append("pass --start to answer: how much is kept of the model before unlearning")
    return f"Not known: {'; '.join(lacking)}." if lacking else ""
