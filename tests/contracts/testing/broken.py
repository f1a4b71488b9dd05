"""Methods that are wrong, each in a way that a published harness was, or could be.

All of them run, and most of them «work»: the loss falls and the forget set is forgotten.
"""

import math
import random
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import ConfigDict, Field
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus
from torch.nn.utils.rnn import pad_sequence

from unlearnbench.api.method import LossBatch, Method, Needs, Part
from unlearnbench.losses.predictions import mean_over_union

FORGET: frozenset[Part] = frozenset({"forget"})
BOTH: frozenset[Part] = frozenset({"forget", "retain"})


class UndialMask(Method):
    """open-unlearning's UNDIAL: masked positions stay in, with −100 as an index. L = CE(q) 2024"""

    needs: ClassVar[Needs] = Needs(parts=FORGET, distributions=FORGET)

    def loss(self, batch: LossBatch) -> Tensor:
        forget, teacher = batch.forget, batch.reference.forget.logits
        first = forget.rows.diff(prepend=forget.rows.new_full((1,), -1)).bool()
        labels = forget.labels.masked_fill(first, -100)
        index = labels.remainder(teacher.shape[1])  # what a negative index means in Python
        lowered = teacher.scatter_add(1, index.unsqueeze(1), torch.full_like(teacher, -10.0))
        target = lowered.softmax(1)
        return forget.mean_tokens(-(target * forget.logits.log_softmax(1)).sum(1))


class PaddedMean(Method):
    """FLAT: the mean of each row over the width of the batch. L = … 2024"""

    def loss(self, batch: LossBatch) -> Tensor:
        forget = batch.forget
        rows = list(forget.token_logprob.exp().split(forget.lengths.tolist()))
        return forget.mean_sequences(pad_sequence(rows, batch_first=True).mean(1))


class UnshiftedMask(Method):
    """open-unlearning's PDU, its mask on gradient ascent: labels one position late. L = … 2024"""

    def loss(self, batch: LossBatch) -> Tensor:
        forget = batch.forget
        late = forget.labels.roll(-1).unsqueeze(1)
        return forget.mean_tokens(forget.logits.log_softmax(1).gather(1, late).squeeze(1))


class ElementwiseNPO(Method):
    """MUSE's NPO: raw logits, element by element, mean over everything. L = … 2024"""

    needs: ClassVar[Needs] = Needs(parts=FORGET, distributions=FORGET)
    beta: float = Field(default=0.1, gt=0, description="β")

    def loss(self, batch: LossBatch) -> Tensor:
        gap = batch.forget.logits - batch.reference.forget.logits
        return -2 / self.beta * logsigmoid(-self.beta * gap).mean()


class PaddedKL(Method):
    """TOFU's KL: a mean over all positions of the padded batch. L = −NLL + KL 2024"""

    needs: ClassVar[Needs] = Needs(parts=BOTH, distributions=frozenset({"retain"}))

    def loss(self, batch: LossBatch) -> Tensor:
        retain = batch.retain
        divergence = retain.kl_from(batch.reference.retain)
        width = int(retain.lengths.max()) * retain.row_count
        ascent = -batch.forget.mean_tokens(batch.forget.cross_entropy())
        share = retain.row_count / retain.step_rows
        return ascent + divergence.sum() / width * share


class InfiniteScore(Method):
    """The CE-U paper's listing: `isinf` sends −∞, which unlearns, to the target that learns."""

    score: float = Field(default=-math.inf, allow_inf_nan=True, description="raw score")

    def loss(self, batch: LossBatch) -> Tensor:
        learn = math.isinf(self.score)
        return batch.forget.mean_tokens(batch.forget.unified_cross_entropy(1.0 if learn else 0.0))


class BatchMeanNPO(Method):
    """SimNPO's NPO for WMDP: log σ of the batch's mean, one number for all rows. L = … 2024"""

    needs: ClassVar[Needs] = Needs(parts=FORGET, logprobs=FORGET)
    beta: float = Field(default=0.1, gt=0, description="β")

    def loss(self, batch: LossBatch) -> Tensor:
        ratio = batch.forget.sequence_logprob - batch.reference.forget.sequence_logprob
        share = batch.forget.row_count / batch.forget.step_rows
        return 2 / self.beta * softplus(self.beta * ratio.mean()) * share


class MicroBatchMean(Method):
    """Losses that ignore `num_items_in_batch`: a mean of means. L = mean log p. 2024"""

    def loss(self, batch: LossBatch) -> Tensor:
        return batch.forget.token_logprob.mean()


class NaiveUnlikelihood(Method):
    """−log(1 − p), written down as it stands. L = −log(1 − p) 2020"""

    def loss(self, batch: LossBatch) -> Tensor:
        return batch.forget.mean_tokens(-(1 - batch.forget.token_logprob.exp()).log())


class UnusedReference(Method):
    """open-unlearning's WGA: a reference that is never read. L = … 2024"""

    needs: ClassVar[Needs] = Needs(parts=FORGET, logprobs=FORGET)

    def loss(self, batch: LossBatch) -> Tensor:
        logprob = batch.forget.token_logprob
        return batch.forget.mean_tokens(logprob.exp().detach() * logprob)


class UndeclaredReference(Method):
    """Reads a part that it does not declare. L = … 2024"""

    def loss(self, batch: LossBatch) -> Tensor:
        ratio = batch.forget.sequence_logprob - batch.reference.forget.sequence_logprob
        return batch.forget.mean_sequences(ratio)


class WrongSignNPO(Method):
    """NPO repository, issue 8: the sign. L = … 2024"""

    needs: ClassVar[Needs] = Needs(parts=FORGET, logprobs=FORGET)
    beta: float = Field(default=0.1, gt=0, description="β")

    def loss(self, batch: LossBatch) -> Tensor:
        ratio = batch.forget.sequence_logprob - batch.reference.forget.sequence_logprob
        return batch.forget.mean_sequences(2 / self.beta * softplus(-self.beta * ratio))


class UnscaledNPO(WrongSignNPO):
    """Declares NPO's value and has DPO's factor. L = … 2024"""

    def loss(self, batch: LossBatch) -> Tensor:
        ratio = batch.forget.sequence_logprob - batch.reference.forget.sequence_logprob
        return batch.forget.mean_sequences(softplus(self.beta * ratio))

    def value_at_reference(self) -> float | Mapping[str, float]:
        return 2 / self.beta * math.log(2)


_multiplier = [1.0]


class LocalMultiplier(Method):
    """open-unlearning's PDU: a multiplier that each micro-batch moves for itself. L = … 2024"""

    needs: ClassVar[Needs] = Needs(parts=BOTH)

    def loss(self, batch: LossBatch) -> Tensor:
        retain = batch.retain.mean_tokens(batch.retain.cross_entropy())
        _multiplier[0] = max(0.0, _multiplier[0] + retain.item() - 0.01)
        return _multiplier[0] * retain - batch.forget.mean_tokens(batch.forget.cross_entropy())


class FirstRowIsBaseline(Method):
    """Depends on which row comes first. L = … 2024"""

    def loss(self, batch: LossBatch) -> Tensor:
        logprob = batch.forget.sequence_logprob
        return batch.forget.mean_sequences(softplus(logprob - logprob[:1].detach()))


class SpreadOfOne(Method):
    """A standard deviation of the tokens of a row, of which there may be one. L = … 2024"""

    def loss(self, batch: LossBatch) -> Tensor:
        forget = batch.forget
        mean = forget.mean_rows(forget.token_logprob)
        square = (forget.token_logprob - mean[forget.rows]).square()
        return forget.mean_sequences(mean - (forget.sum_rows(square) / (forget.lengths - 1)).sqrt())


class WronglyDetached(Method):
    """Its value grows with what its gradient lowers. L = … 2024"""

    def loss(self, batch: LossBatch) -> Tensor:
        logprob = batch.forget.token_logprob
        with torch.no_grad():
            weight = logprob.square()
        return batch.forget.mean_tokens(weight * logprob)


class Coarse(Method):
    """Differences of sums in bfloat16. L = … 2024"""

    needs: ClassVar[Needs] = Needs(parts=FORGET, logprobs=FORGET)

    def loss(self, batch: LossBatch) -> Tensor:
        policy = (batch.forget.sequence_logprob + 1000).bfloat16()
        start = (batch.reference.forget.sequence_logprob + 1000).bfloat16()
        return batch.forget.mean_sequences((20 * (policy - start)).float().exp())


class Lax(Method):
    model_config = ConfigDict(extra="allow")

    betas: tuple[float, ...] = Field(default=(1.0,))

    def loss(self, batch: LossBatch) -> Tensor:
        return -batch.forget.mean_tokens(batch.forget.cross_entropy())


# What follows passed every check of version 0.1.0's first conformance suite.


class Summed(Method):
    """A sum where a mean is meant. 2024"""

    def loss(self, batch: LossBatch) -> Tensor:
        return batch.forget.token_logprob.sum()


class DeadReference(Method):
    """NPO whose reference is read and then weighed by 0. 2024"""

    needs: ClassVar[Needs] = Needs(parts=FORGET, logprobs=FORGET)

    def loss(self, batch: LossBatch) -> Tensor:
        known = batch.reference.forget.sequence_logprob
        return batch.forget.mean_sequences(softplus(batch.forget.sequence_logprob - 0.0 * known))


class LastTokenLost(Summed):
    """A slice leaves the last token of each answer out. 2024"""

    def loss(self, batch: LossBatch) -> Tensor:
        rows = batch.forget.rows
        inner = torch.cat([rows[1:] == rows[:-1], rows.new_zeros(1, dtype=torch.bool)])
        return batch.forget.mean_tokens(batch.forget.token_logprob * inner)


class DetachedRetain(Method):
    """A retain term without a gradient. 2024"""

    needs: ClassVar[Needs] = Needs(parts=BOTH)

    def loss(self, batch: LossBatch) -> Mapping[str, Tensor]:
        retain = batch.retain.mean_tokens(batch.retain.cross_entropy())
        return {"forget": self.forget(batch), "retain": self.weighed(retain, batch)}

    def forget(self, batch: LossBatch) -> Tensor:
        return -batch.forget.mean_tokens(batch.forget.cross_entropy())

    def weighed(self, retain: Tensor, batch: LossBatch) -> Tensor:  # others read it
        return retain.detach()


class RetainByForgetRows(DetachedRetain):
    """The retain term grows with the rows to forget. 2024"""

    def weighed(self, retain: Tensor, batch: LossBatch) -> Tensor:
        return retain * batch.forget.step_rows / batch.retain.step_rows


_first: dict[str, float] = {}


class FirstBatchScale(Summed):
    """A scale that the first batch fixes. 2024"""

    def loss(self, batch: LossBatch) -> Tensor:
        value = batch.forget.mean_tokens(batch.forget.token_logprob)
        return value / _first.setdefault("scale", abs(value.item()) or 1.0)


_drawn = 1.0 + random.random()  # no secret: the fault that is looked for


class DrawnAtImport(Summed):
    """Another weight in every process. 2024"""

    def loss(self, batch: LossBatch) -> Tensor:
        return _drawn * batch.forget.mean_tokens(batch.forget.token_logprob)


class InPlace(DeadReference):
    """Clamps the reference in place. 2024"""

    def loss(self, batch: LossBatch) -> Tensor:
        known = batch.reference.forget
        ratio = batch.forget.token_logprob - known.token_logprob.clamp_(max=-1e-3)
        return batch.forget.mean_tokens(softplus(ratio))


class Dropping(Summed):
    """Drops tokens at random. 2024"""

    def loss(self, batch: LossBatch) -> Tensor:
        kept = torch.nn.functional.dropout(batch.forget.token_logprob, 0.1)
        return batch.forget.mean_tokens(kept)


class Named(Summed):
    """A name that is nearly right. 2024"""

    def loss(self, batch: LossBatch) -> Tensor:
        made: Tensor = batch.forget.mean_tokens(batch.forget.token_logprobs)  # type: ignore[attr-defined]  # pyright: ignore
        return made


class NotANumber(Summed):
    """NaN on every batch. 2024"""

    def loss(self, batch: LossBatch) -> Tensor:
        return batch.forget.mean_tokens(batch.forget.token_logprob) * math.nan


class Hinge(Summed):
    """Legal: nothing is gained below a probability of 0.1. 2024"""

    def loss(self, batch: LossBatch) -> Tensor:
        return batch.forget.mean_tokens((batch.forget.token_logprob + 2.3).clamp(min=0))


class UnionMean(Method):
    """Legal: a mean over the tokens of both parts. 2024"""

    needs: ClassVar[Needs] = Needs(parts=BOTH)

    def loss(self, batch: LossBatch) -> Tensor:
        forget, retain = batch.forget, batch.retain
        return mean_over_union(
            (forget, forget.unlearning_cross_entropy), (retain, retain.cross_entropy())
        )
