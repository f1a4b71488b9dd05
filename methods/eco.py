"""ECO: detect forget questions, and corrupt their embeddings."""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor
from torch.nn.functional import softplus

from unlearnbench.api.hyperparameters import refuse_unused, setting
from unlearnbench.api.identity import IF_SET
from unlearnbench.api.inference_method import Prompt, Prompts, Shift, Wrapper

Corruption = Literal[
    "rand_noise_first_n",
    "rand_noise_rand_n",
    "rand_noise_top_k",
    "zero_out_first_n",
    "zero_out_top_k",
    "flip_sign_first_n",
    "flip_sign_top_k",
]


class ECO(Wrapper):
    """Embedding-corrupted prompts: Liu et al. 2024, arXiv:2406.07933.

    e'_td = f(e_td)  for t < T, d among D dimensions,  where c(x) > τ

    x     prompt of T tokens (template included), e_td  embedding [T, H] of its tokens;  D  `dims`
    c(x)  probability that x is a forget question;  τ  `threshold`
    f     `corruption`, by the names in the authors' code: rand_noise, e + n, n ~ N(0, (σ · s)²);
          zero_out, 0;  flip_sign, −e.  And where:  first_n, d ≤ D;  top_k, the D largest |e_td| of
          each token;  rand_n, D at random, the same for all tokens of a prompt
    s     root mean square of the model's embedding matrix, so that σ means the same in all models;
          1 with `absolute`, as in the authors' code

    No weight changes. All random numbers depend only on the seed of the run and on the prompt. The
    last token of a prompt stays as it is, as in the authors' code. (In their code, rand_n draws the
    dimensions once for a whole batch.)

    Literature: on TOFU the authors run four corruptions: `{corruption: [rand_noise_first_n,
    rand_noise_rand_n], absolute: true, sigma: [5, 50, H]}` with dims 1, the first with dims H as
    well; `{corruption: zero_out_top_k}` with dims 507, 766, 1243 (Phi-1.5) and 670, 881, 1000
    (Llama-2-7B) at forget 1, 5, 10 %; and `{corruption: flip_sign_top_k}` with dims H. H is 2048
    for Phi-1.5 and 4096 for Llama-2-7B. The thresholds are 0.99, and 0.9999 at forget 10 %, for a
    classifier that is surer than the one here. [source: chrisliu298/llm-unlearn-eco@9b0ba1a
    config/task_config/tofu.yaml, README.md]

    This method differs from the paper in several points. The classifier of the paper is a RoBERTa
    that is fine-tuned for the purpose. Here, it is a logistic regression on the mean of the start
    model's own final hidden states over the prompt, and both classes have the same weight. On TOFU,
    the paper corrupts only names, which a tagger finds. The paper searches σ (absolute) by
    zeroth-order steps towards a surrogate of the retain model's score, whereas a grid is the search
    here: `sigma: [1, 3, 10, 30]`. If the authors' code scores given answers, it also corrupts
    answer tokens. Here, as in the paper, only prompts are corrupted.
    """

    family = "prompts"

    corruption: Annotated[Corruption, IF_SET] = setting(
        "rand_noise_first_n",
        "what is done to which dimensions",
        "chrisliu298/llm-unlearn-eco@9b0ba1a config/task_config/tofu.yaml, the first of its four",
    )
    sigma: float = setting(
        10.0, "standard deviation σ of noise, in units of s", "ours: in the middle of 1 to 30", ge=0
    )
    absolute: Annotated[bool, IF_SET] = setting(
        False, "σ is in the embeddings' own units", "ours: the same σ for all models"
    )
    dims: int = setting(
        1,
        "dimensions that are corrupted, D",
        "chrisliu298/llm-unlearn-eco@9b0ba1a config/task_config/tofu.yaml, for noise",
        ge=1,
    )
    threshold: float = setting(
        0.5,
        "probability above which a prompt is corrupted, τ",
        "chrisliu298/llm-unlearn-eco@9b0ba1a eco/attack/classifier.py; 0.99, 0.9999 in its runs",
        ge=0,
        le=1,
    )
    penalty: float = setting(
        0.01, "L2 penalty of the classifier's standardised weights", "ours: the classifier is", gt=0
    )

    @model_validator(mode="after")
    def _has_noise(self) -> Self:
        if "noise" not in self.corruption:
            refuse_unused(self, "corruption", "sigma", "absolute")
        return self

    def fit(self, model: Any, prompts: Prompts) -> Shift:
        """Train the classifier, and return a function that corrupts the prompts that it flags."""
        states_of_forget = prompts.mean_states(prompts.forget)
        states_of_retain = prompts.mean_states(prompts.retain)
        classify = _Classifier(states_of_forget, states_of_retain, self.penalty)
        layer = model.get_input_embeddings()
        table = layer.weight.detach()
        norm = float(torch.linalg.vector_norm(table, dtype=torch.float32))
        root_mean_square = norm / table.numel() ** 0.5
        strength = self.sigma * (1.0 if self.absolute else root_mean_square)

        @torch.no_grad()
        def shift(questions: Sequence[Prompt]) -> list[Tensor | None]:
            is_flagged = classify(prompts.mean_states(questions)) > self.threshold
            shifts: list[Tensor | None] = []
            for prompt, is_forget in zip(questions, is_flagged.tolist(), strict=True):
                if not is_forget:
                    shifts.append(None)
                    continue
                # The layer's output, and not rows of the table, because some models scale it.
                embedded = layer(torch.tensor(prompt, device=table.device)).float().cpu()
                shifts.append(self._shift(prompt, embedded, strength, prompts.seed))
            return shifts

        return shift

    def _shift(self, prompt: Prompt, embedded: Tensor, strength: float, seed: int) -> Tensor:
        """Return what corrupts a prompt.

        Args:
            prompt: Tokens of the prompt.
            embedded: Embeddings of the tokens, [T, H].
            strength: Standard deviation of noise.
            seed: Seed of the run.

        Returns:
            A tensor [T, d] that is added to the first d dimensions of the embeddings. It is 0 for
            the last token. Adding −e or −2e is exact in each floating-point type.
        """
        tokens, width = embedded.shape
        dims = min(self.dims, width)
        # The draws depend only on the seed and the prompt.
        digest = hashlib.sha256(repr((seed, prompt)).encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
        added: Tensor | None = None
        if "noise" in self.corruption:
            added = torch.randn(tokens, dims, generator=generator) * strength
            if self.corruption == "rand_noise_first_n":
                added[-1] = 0
                return added
        if self.corruption.endswith("top_k"):
            corrupted = embedded.abs().topk(dims, dim=1).indices  # [T, D]
        elif self.corruption.endswith("rand_n"):
            corrupted = torch.randperm(width, generator=generator)[:dims].expand(tokens, dims)
        else:
            corrupted = torch.arange(dims).expand(tokens, dims)
        if added is None:
            factor = -1 if self.corruption.startswith("zero_out") else -2
            added = factor * embedded.gather(1, corrupted)
        shift = torch.zeros_like(embedded).scatter(1, corrupted, added)
        shift[-1] = 0
        return shift


class _Classifier:
    """Logistic regression by L-BFGS in float64."""

    def __init__(self, forget: Tensor, retain: Tensor, penalty: float) -> None:
        """Fit on features [n, H] of the two classes.

        Args:
            forget: Features of forget questions.
            retain: Features of retain questions.
            penalty: L2 penalty of the weights of standardised features.
        """
        features = torch.cat([forget, retain]).double()
        self.mean = features.mean(0)
        self.scale = features.std(0).clamp(min=1e-12)
        standard_forget = (forget.double() - self.mean) / self.scale
        standard_retain = (retain.double() - self.mean) / self.scale
        # [H + 1], of which the last one is the bias
        self.weights = self.mean.new_zeros(len(self.mean) + 1).requires_grad_()
        optimizer = torch.optim.LBFGS(
            [self.weights],
            max_iter=500,
            tolerance_grad=1e-9,
            tolerance_change=1e-14,
            line_search_fn="strong_wolfe",
        )

        def loss() -> Tensor:
            optimizer.zero_grad()
            forget_logits = standard_forget @ self.weights[:-1] + self.weights[-1]
            retain_logits = standard_retain @ self.weights[:-1] + self.weights[-1]
            # Each class has the same weight, whatever its number of questions is.
            errors = softplus(-forget_logits).mean() + softplus(retain_logits).mean()
            value: Tensor = errors / 2 + penalty / 2 * self.weights[:-1].square().sum()
            value.backward()
            return value

        with torch.enable_grad():
            optimizer.step(loss)
        self.weights.requires_grad_(False)

    def __call__(self, features: Tensor) -> Tensor:
        """Return the probabilities [n] that features are of forget questions."""
        logits = ((features.double() - self.mean) / self.scale) @ self.weights[:-1]
        return torch.sigmoid(logits + self.weights[-1])
