"""How much of the forget set is gone, by five metrics."""

from pydantic import Field

from unlearnbench.api.metric import MetricColumn, MetricInputs, Summary, Values


class ForgetEfficacy(Summary):
    """1 − the arithmetic mean of x over `of` and of 1 − x over `closeness`.

    The columns `of` are ROUGE-L recall, probability, sentence similarity and answer entailment of
    the forget set. The column `closeness` is its truth ratio min(R, 1/R), so that 1 − x is large if
    the model tells true answers from false ones, in either direction. Token entropy is no part.

    Yuan et al. 2025, arXiv:2410.08109; sail-sg/closer-look-LLM-unlearning@b622294:
    metrics/metrics.py, `get_eval_results`. The score is relative to no retain model, so that a
    destroyed model comes near 1.
    """

    of: tuple[str, ...] = Field(
        default=(
            "rouge_forget",
            "probability_forget",
            "sentence_similarity_forget",
            "answer_entailment_forget",
        ),
        description="columns that are high if the model knows the forget set",
    )
    closeness: tuple[str, ...] = Field(
        default=("truth_ratio_forget",),
        description="columns that are low if the model knows the forget set",
    )

    def columns(self) -> tuple[MetricColumn, ...]:
        """Return the column `forget_efficacy`."""
        return (MetricColumn("forget_efficacy", "Forget Efficacy", "higher"),)

    def parts(self) -> tuple[str, ...]:
        """Return the columns that the score is the mean of."""
        return (*self.of, *self.closeness)

    def compute(self, of: MetricInputs) -> Values:
        """Return the score. It is None if a column has no number."""
        knowledge: list[float] = []
        for name in self.parts():
            value = of.model.values.get(name)
            if value is None:
                return {"forget_efficacy": None}
            knowledge.append(1 - value if name in self.closeness else value)
        if not knowledge:
            return {"forget_efficacy": None}
        return {"forget_efficacy": 1 - sum(knowledge) / len(knowledge)}
