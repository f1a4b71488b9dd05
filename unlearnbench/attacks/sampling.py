"""Sample many answers to each question."""

from unlearnbench.api.attack import SamplingAttack


class RepeatedSampling(SamplingAttack):
    """Sample many answers to each question, because a greedy answer is only the likeliest one.

    Scholten et al. 2025, arXiv:2410.03523; Reisizadeh et al. 2025 (leak@k), arXiv:2511.04934, who
    take 200 samples at temperature 1. The metrics `expected-best`, `leak-at-k`, `ed-score` and
    `sampling-bounds` read the answers. Except for `ed-score`, their `k` is at most `samples`.
    """

    label = "Sampling"
