"""Which terms of a loss are about forget rows and which about retain rows, seen in its graph.

A modifier asks for the gradient of one role, `forget` or `retain`, of a loss whose formula is not
known. Two facts make that possible:

1. If some parts of a step have no rows, the terms that read them are 0. Means divide by the counts
   of the whole step. So the gradients of passes over some parts each add up to the gradient of the
   loss, unless the parts that one term reads are separated.
2. Which parts a term reads can be seen in its autograd graph.

A *group* is a set of parts that terms read together, directly or through each other. For example,
NPO with a retain term has the groups {forget} and {retain}, and a loss that contrasts forget and
retain rows in one term has the single group {forget, retain}. A group of retain parts only belongs
to the role `retain`, any other group to the role `forget`.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from torch import Tensor

from unlearnbench.api.method import PARTS, RETAIN_PARTS, LossBatch, Part, Terms
from unlearnbench.api.modifier import Role

Groups = Mapping[Role, Sequence[frozenset[Part]]]
"""Groups of parts by role, without roles that have no group."""
ONE_ROLE: Groups = {"forget": [frozenset(PARTS)]}
"""All parts in one pass, for modifiers that do not need the roles apart."""


def groups_by_role(batch: LossBatch, terms: Terms) -> Groups:
    """Find the groups of a loss.

    Args:
        batch: Predictions of at least one row of each part.
        terms: The loss of the batch by term, with its graph.
    """
    together = [parts_read(value, batch) for value in terms.values()]
    groups = joined(batch.parts, together)
    by_role: Groups = {
        "forget": [group for group in groups if not group <= RETAIN_PARTS],
        "retain": [group for group in groups if group <= RETAIN_PARTS],
    }
    return {role: of_role for role, of_role in by_role.items() if of_role}


def joined(parts: Iterable[Part], together: Iterable[Set[Part]]) -> list[frozenset[Part]]:
    """Divide parts into the smallest groups that separate none of the given sets.

    The last group that was joined comes first. For example, the sets {a, c} and {c, d} leave the
    groups {a, c, d} and {b} of the parts a, b, c and d.
    """
    groups: list[frozenset[Part]] = [frozenset({part}) for part in parts]
    for parts_of_term in together:
        touched = [group for group in groups if group & parts_of_term]
        others = [group for group in groups if not group & parts_of_term]
        if touched:
            groups = [frozenset[Part]().union(*touched), *others]
    return groups


def parts_read(value: Tensor, batch: LossBatch) -> frozenset[Part]:
    """Find the parts whose predictions a term of a loss was computed from.

    The graph of the term is followed backwards. If it reaches the hidden states of a part, the term
    reads that part. The model behind the hidden states is not followed.

    Args:
        value: The term.
        batch: The predictions that the loss was called with.
    """
    part_of_node: dict[Any, Part] = {}
    for part, predictions in batch.parts.items():
        for states in (predictions.hidden, *predictions.states.values()):
            part_of_node[states.grad_fn] = part

    read: set[Part] = set()
    visited: set[Any] = set()
    ahead: list[Any] = [value.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if node in part_of_node:
            read.add(part_of_node[node])
        else:
            ahead += [before for before, _ in node.next_functions]
    return frozenset(read)
