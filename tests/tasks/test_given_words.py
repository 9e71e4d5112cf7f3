"""Candidates of several tokens: what is asked of the model for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from unmask.model.encoder import MaskedLM
from unmask.tasks import fill as words_module
from unmask.tasks.fill import FillSettings, Query, fill_texts, log_probabilities
from unmask.tokenizer.tokenizer import Tokenizer


def test_only_the_words_themselves_are_asked_about_a_few_beginnings_at_a_time(
    make_model: Callable[..., MaskedLM], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither memory nor time grows with the square of their number, and the results are the same."""
    model = make_model()
    ends = ("min", "ska", "vu", "ter", "lo")
    candidates = [a + b + c for a in ("Ba", "Vu", "Ri", "Te") for b in ends for c in ends]
    settings = FillSettings(top_k=len(candidates), candidates=candidates, joint="none")
    (whole,) = fill_texts(model, tokenizer, ["the king [MASK] dog"], settings)
    asked: list[tuple[int, int]] = []

    def counted(
        model: MaskedLM, tokenizer: Tokenizer, queries: Sequence[Query], wanted: Sequence[NDArray[np.int64]]
    ) -> Any:
        asked.append((len(queries), sum(map(len, wanted))))
        return log_probabilities(model, tokenizer, queries, wanted)

    monkeypatch.setattr(words_module, "log_probabilities", counted)
    monkeypatch.setattr(words_module, "BEGINNINGS", 3)
    (parts,) = fill_texts(model, tokenizer, ["the king [MASK] dog"], settings)
    assert whole.words is not None
    assert parts.words is not None
    assert len(whole.words[0]) == len(candidates)
    scores = {word.token_ids: word.score for word in whole.words[0]}
    assert {word.token_ids: word.score for word in parts.words[0]} == pytest.approx(scores, rel=1e-4)
    assert max(queries for queries, _ in asked) == 3
    assert len(asked) > 5
    assert sum(pairs for _, pairs in asked) == sum(map(len, scores)), "each piece of each word once"
