"""How good rankings are: nDCG, reciprocal rank and recall among the first ten, of each query.

    relevant 2 1 1, found . 2 . 1 .    nDCG@10 = (2/log2(3) + 1/log2(5)) / (2/log2(2) + 1/log2(3) + 1/log2(4)) = 0.54
                                       MRR@10 = 1/2, recall@1 = 0, recall@10 = 2/3

As trec_eval has them, and by it BEIR: the gain of a document is its grade itself (2 to the power of the grade, less 1,
is another nDCG); the best ranking is that of all judged documents, found or not; grades of 0 and less are not relevant.

Source: Järvelin and Kekäläinen 2002 (Cumulated gain-based evaluation of IR techniques), with the discount of Burges et
al. 2005, log2(1 + rank); Voorhees 1999 (The TREC-8 question answering track report) for the reciprocal rank; Thakur et
al. 2021 (BEIR).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

DEPTH = 10
FIGURES = ("ndcg_at_10", "mrr_at_10", "recall_at_1", "recall_at_10")
NAMES = {"ndcg_at_10": "nDCG@10", "mrr_at_10": "MRR@10", "recall_at_1": "recall@1", "recall_at_10": "recall@10"}


def ranking_figures(
    documents_QK: NDArray[np.int64], relevant: Sequence[Mapping[int, int]]
) -> dict[str, NDArray[np.float64]]:
    """The figures of each query [Q], by their names.

    Args:
        documents_QK: Documents found, the best first; -1 where there are no more. Only the first ten count.
        relevant: Of each query the grades of the documents that are judged, one of them above 0 at the least.
    """
    found = {name: np.zeros(len(relevant)) for name in FIGURES}
    discount = 1.0 / np.log2(np.arange(DEPTH) + 2.0)
    for query, grades in enumerate(relevant):
        best = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
        gains = np.array([max(0, grades.get(document, 0)) for document in documents_QK[query, :DEPTH].tolist()])
        places = np.flatnonzero(gains)
        found["ndcg_at_10"][query] = gains @ discount[: len(gains)] / (np.array(best[:DEPTH]) @ discount[: len(best)])
        found["mrr_at_10"][query] = 1.0 / (places[0] + 1) if len(places) else 0.0
        found["recall_at_1"][query] = np.count_nonzero(gains[:1]) / len(best)
        found["recall_at_10"][query] = len(places) / len(best)
    return found
