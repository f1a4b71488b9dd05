"""Sentences for the user on numbers that `finalize` could not compute, or that it left out.

A sweep has many rows, and one reason often holds for many of them. So reasons are collected while
rows are made, and each kind of reason gives one sentence with a count and an example.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class FinalizationNotes:
    """Reasons that are collected during one call of `finalize`."""

    ambiguous_models: list[str] = field(default_factory=list[str])
    """Finished sentences on panels that have several different start or retain models."""
    unusable_metrics: set[str] = field(default_factory=set[str])
    """Names of metrics that the configuration names and that cannot be used here."""
    not_computed: list[str] = field(default_factory=list[str])
    """For each row whose numbers could not be computed, its label and the reason."""
    metrics_without_texts: set[str] = field(default_factory=set[str])
    """Names of metrics that read texts which were not kept."""
    unread_before: dict[tuple[str, int, str], str] = field(
        default_factory=dict[tuple[str, int, str], str]
    )
    """Why observations before attacks could not be read, by record id, epoch and variant."""
    without_observations: list[str] = field(default_factory=list[str])
    """Labels of rows that are shown as recorded, since only their numbers are stored."""
    records_observed_by_other_code: dict[str, list[str]] = field(
        default_factory=lambda: defaultdict[str, list[str]](list)
    )
    """Ids of records by the metric whose observing code has changed since they were evaluated."""
    not_restored: list[str] = field(default_factory=list[str])
    """Ids of runs for which `known_faults.was_not_restored` holds."""

    def sentences(self, record_count: int) -> Iterator[str]:
        """Yield a sentence for each kind of reason that occurred.

        Args:
            record_count: Number of records of the table.
        """
        yield from self.ambiguous_models
        for name in sorted(self.unusable_metrics):
            yield (
                f"metric {name} cannot be used here, because its plug-in is not given or does not "
                "take these settings: its numbers are shown as stored, but are left out if its "
                "settings have changed; give the plug-in with --plugin"
            )
        if self.not_computed:
            yield (
                f"numbers of {len(self.not_computed)} evaluations are shown as recorded, because "
                f"they cannot be computed ({min(self.not_computed)})"
            )
        for name in sorted(self.metrics_without_texts):
            yield (
                f"{name} has no numbers, because it reads texts that were not kept (keep_texts: "
                "false), and its values by these settings were not stored when the models were "
                "evaluated; delete the records and start the sweep again"
            )
        if self.unread_before:
            yield (
                f"numbers before attacks are not known of {len(self.unread_before)} evaluations, "
                f"because they cannot be read ({min(self.unread_before.values())})"
            )
        if self.without_observations:
            yield (
                f"numbers of {len(self.without_observations)} evaluations are shown as recorded, "
                "because what was observed is not stored here "
                f"({min(self.without_observations)})"
            )
        for name, ids in sorted(self.records_observed_by_other_code.items()):
            yield (
                f"{name}: its code has changed since {len(ids)} of {record_count} records "
                f"({min(ids)} for one) were evaluated, and what it observes cannot be observed "
                "again without the models; delete these folders in records/ and start the sweep "
                "again, or give the sweep another name"
            )
        if self.not_restored:
            yield (
                f"numbers of {len(self.not_restored)} of {record_count} records "
                f"({min(self.not_restored)} for one) may be wrong: before version 0.4.1, a run of "
                "several processes on CPUs did not restore its weights after an attack that "
                "trains; start the sweep under another name, so that its start and retain models "
                "are attacked again, too"
            )
