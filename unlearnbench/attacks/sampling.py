"""Sample many answers to each question."""

from unlearnbench.api.attack import SamplingAttack


class RepeatedSampling(SamplingAttack):
    """Sample many answers to each question: greedy ones show the likeliest answer alone.

    Scholten et al. 2025, arXiv:2410.03523; Reisizadeh et al. 2025 (leak@k), arXiv:2511.04934, who
    take 200 samples at temperature 1. The metrics `expected-best`, `leak-at-k`, `ed-score` and
    `sampling-bounds` read the answers; `k` of all but `ed-score` is at most `samples`.
    """

    label = "Sampling"
