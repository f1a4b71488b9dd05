"""Membership by the loss over the text's zlib size."""

import zlib

from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.observations import FloatArray, SetEvaluation


class ZlibAttack(MembershipInference):
    """Mean loss / bytes of the answer after zlib (level 6): Carlini et al. 2021, arXiv:2012.07805.

    The text is that of the scored tokens, as in open-unlearning
    (locuslab/open-unlearning@d3d7cf9:src/evals/metrics/utils.py,
    `extract_target_texts_from_processed_data`).
    """

    label = "ZLib"
    key = "zlib"

    def scores(self, seen: SetEvaluation) -> FloatArray | None:
        """Return scores [n] in nats per byte; None if the texts are not known."""
        if seen.compressed_bytes is not None:
            return seen.answer_loss / seen.compressed_bytes
        if len(seen.references) != len(seen.answer_loss):
            return None
        sizes = [
            len(zlib.compress(text.encode(errors="surrogatepass"))) for text in seen.references
        ]
        return seen.answer_loss / sizes
