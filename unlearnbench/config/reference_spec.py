"""The values that the numbers of start and retain models depend on, and ids made from them.

As in `RunSpec`, each field declares its part in ids, see `api/identity.py`. The ids are hashes of
lists, because they were so in earlier versions. A list begins with the values that always count,
`["tiny", "full", "<weights>", 0.1, "<profile>", "<rows>"]`. It ends with the settings that are set,
such as `precision bf16`.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final

from unlearnbench.api.benchmark import SplitKey
from unlearnbench.api.identity import ALWAYS, IF_SET, LEFT_OUT, Id, Place, Rule, identity_of
from unlearnbench.base.hashing import content_hash
from unlearnbench.config.entries import AttackSpec
from unlearnbench.config.evaluation_settings import EvaluationSettings
from unlearnbench.config.model_settings import ModelSettings
from unlearnbench.config.section import Settings
from unlearnbench.config.training_settings import TrainingSettings


def _named_if_set(place: Place) -> Any:
    """Return name and value of a field as one text, or leave out a field with its default."""
    is_set = place.value != place.default
    return f"{place.name} {place.value}" if is_set else LEFT_OUT


NAMED_IF_SET: Final = Rule("only if set, with its name", _named_if_set)
"""In a list, a hash without a name could be taken for another hash."""


class ReferenceSpec(Settings):
    """A start or retain model, and the rules by which it is evaluated."""

    model: Annotated[str, ALWAYS]
    """Name of the model in the configuration."""
    target: Annotated[str, ALWAYS]
    """`full` for the start model, or the retain model's name: `retain90`."""
    weights: Annotated[str, ALWAYS]
    """Name of a prepared model's folder, or identity of published weights."""
    split: Annotated[SplitKey, ALWAYS]
    profile: Annotated[str, ALWAYS]
    data: Annotated[str, ALWAYS]
    """Hash of the rows of the split."""
    template_digest: Annotated[str, IF_SET] = ""
    """Digest of the rendered chat template."""
    turns: Annotated[str, NAMED_IF_SET] = ""
    """Hash of how turns and answers end. Empty if only EOS ends them."""
    evaluation: Annotated[EvaluationSettings, ALWAYS]
    published: Annotated[ModelSettings | None, IF_SET] = None
    """Settings of published weights. None for a prepared model, because the name of its folder
    already depends on them."""
    correction: Annotated[str, IF_SET] = ""
    """Corrected fault that concerns evaluations of published weights, see `models/corrections.py`.
    Empty for prepared models, because the names of their folders depend on all corrections."""

    @property
    def identity(self) -> list[str | float]:
        """The list whose hash is the id."""
        identity: list[str | float] = []
        for entry in identity_of(self, Id.EVALUATION).values():
            if isinstance(entry, Mapping):
                settings: Mapping[str, Any] = entry
                identity += [f"{name} {_text(value)}" for name, value in sorted(settings.items())]
            else:
                identity.append(entry)
        return identity


def _text(value: Any) -> str:
    """Write a value of an entry as text."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


class AttackedReferenceSpec(Settings):
    """The training of an attack on a start or retain model."""

    training: Annotated[TrainingSettings, ALWAYS]
    model: Annotated[ModelSettings, ALWAYS]
    turn_end: Annotated[tuple[str, ...], IF_SET] = ()
    """Tokens that end a turn in training. Empty if it is only EOS."""
    corrections: Annotated[tuple[str, ...], IF_SET] = ()
    """Corrected faults that concern evaluations under the attack only."""

    def id_under(self, attack: AttackSpec, plain: list[str | float]) -> str:
        """Return the id of the evaluation under an attack.

        Args:
            attack: The attack.
            plain: `ReferenceSpec.identity` of the plain evaluation.
        """
        entries = identity_of(self, Id.ATTACK)
        # Settings of training and model stand side by side, as in ids of earlier versions.
        of_training = entries.pop("training") | entries.pop("model") | entries
        return content_hash([*plain, attack.identity, of_training])
