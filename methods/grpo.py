"""GRPO: sample answers, and prefer those that reveal less."""

from collections.abc import Mapping

from torch import Tensor

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs, Part, Sampling, Terms
from unlearnbench.stats.text_overlap import rouge_recall

_SAMPLE: frozenset[Part] = frozenset({"sample"})
_EQUAL = 1e-6
"""Largest standard deviation of rewards that count as equal, because of rounding."""
_LARGEST = 60.0
"""Largest d, so that e^d does not overflow in fp32."""


class GRPO(Method):
    """Group relative policy optimisation: Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300.

    L = mean_i mean_t [ −A_i · p_it / sg(p_it) + β · (exp(d_it) − d_it − 1) ]
    A_i = (R_i − mean R) / std R over the G samples to one question;  0 where all R are equal

    i, t   sampled answer to a forget question, and its token;  sg  detached
    p_it   probability of the token;  d_it = log p_ref,it − log p_it, with the frozen start model
    R_i    1 − ROUGE-L recall of the sample against the answer to forget: the fewer of its words are
           given away, the better. (The paper's rewards are for solving problems, this one is ours.)
    std    divides by G;  d is at most 60

    Every sample is used for one step. The paper's ratio of the new to the old policy is therefore
    1, and its clipping never applies. Only the gradient of the ratio is left. Samples are drawn at
    temperature 1, as the gradient assumes. With β = 0, which is the default, no reference model is
    in memory. With a larger β, the start model is in memory. A micro-batch of n questions contains
    n · G samples. As an unlearning method, GRPO is experimental.

    Literature: DeepSeekMath uses G 64 and β 0.04 for mathematics: `{samples: 64, beta: 0.04}`.
    [source: Shao et al. 2024, arXiv:2402.03300, section 4.2] The reward does not measure whether an
    answer makes sense, so a retain term is advisable. [source: ours: the reward is our own]
    """

    family = "sampled answers"
    needs = Needs(parts=_SAMPLE, logprobs=_SAMPLE, samples=Sampling(8))

    samples: int = setting(
        8,
        "number G of answers sampled to each question",
        "ours: 64 in arXiv:2402.03300, 8 for memory, which is also huggingface/trl's default",
        ge=2,
    )
    max_new_tokens: int = setting(
        64,
        "maximal number of tokens of a sampled answer",
        "ours: the answers of TOFU are about as long",
        ge=1,
    )
    beta: float = setting(
        0.0,
        "weight of the KL from the start, β",
        "ours: 0.04 in arXiv:2402.03300; 0, which is also huggingface/trl's default, needs no "
        "reference in memory",
        ge=0,
    )

    def needed(self) -> Needs:
        """Return the needs, with the reference only if its KL has a weight."""
        sampling = Sampling(self.samples, max_new_tokens=self.max_new_tokens)
        compared: frozenset[Part] = _SAMPLE if self.beta else frozenset()
        return Needs(parts=_SAMPLE, logprobs=compared, samples=sampling)

    def reward(self, answer: str, truth: str) -> float:
        """Return the reward R of an answer, in [0, 1]."""
        return withheld(answer, truth)

    def loss(self, batch: LossBatch) -> Terms:
        """Return `policy`, and `kl` if it has a weight. The mean reward is reported."""
        if batch.rewards is None:
            raise LookupError(f"{type(self).__name__} needs the samples' rewards")
        samples = batch.sample
        batch.report("reward", samples.mean_sequences(batch.rewards))
        policy = self.policy(batch, advantages(batch.rewards, self.samples))
        if not self.beta:
            return {"policy": policy}
        d = batch.reference.sample.token_logprob - samples.token_logprob  # [N]
        kl = samples.mean_sequences(samples.mean_rows(d.clamp(max=_LARGEST).exp() - d - 1))
        return {"policy": policy, "kl": self.beta * kl}

    def value_at_reference(self) -> Mapping[str, float] | None:
        """Return a divergence of 0. The policy term depends on the samples."""
        return {"kl": 0.0} if self.beta else None

    def policy(self, batch: LossBatch, advantage: Tensor) -> Tensor:
        """Return the term that the advantages [B] weigh."""
        log_p = batch.sample.token_logprob
        ratio = (log_p - log_p.detach()).exp()  # 1, with the gradient of log p
        return -batch.sample.mean_sequences(advantage * batch.sample.mean_rows(ratio))


def withheld(answer: str, truth: str) -> float:
    """Return 1 − ROUGE-L recall of an answer: the share of the truth's words not given away."""
    return 1.0 - float(rouge_recall([truth], [answer])[1][0])


def advantages(rewards: Tensor, count: int) -> Tensor:
    """Return the advantages A [B].

    Args:
        rewards: Rewards [B] of samples. The samples to one question follow each other.
        count: Number G of samples to a question.
    """
    if not len(rewards):
        return rewards
    groups = rewards.view(-1, count)
    centred = groups - groups.mean(1, keepdim=True)
    spread = groups.std(1, correction=0, keepdim=True)
    return (centred / spread.clamp(min=_EQUAL)).where(spread > _EQUAL, 0.0).flatten()
