"""Texts to annotated tokens: tokenizer and annotator brought together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unmask.annotation.annotator import Annotator
from unmask.corpus.spans import Spans
from unmask.tokens.alignment import Aligned, TextPlaces
from unmask.tokens.tokenizer import Encoded, Tokenizer


def annotated_tokens(
    tokenizer: Tokenizer, annotator: Annotator, texts: Sequence[str], given: Sequence[Spans | None]
) -> tuple[Encoded, NDArray[np.int64], dict[str, Aligned]]:
    """Tokenizes texts and annotates the tokens.

    Args:
        tokenizer: The tokenizer.
        annotator: Of the texts.
        texts: Any number.
        given: Annotations that came with each of them.

    Returns:
        The tokens of all texts one behind another, how many each text has, and the columns of annotation.

    Raises:
        TokenizerError: As `Tokenizer.encode_joined`.
        SettingsError: A pipeline cannot be used.
        DataError: A label was not announced.
    """
    encoded, places = tokenizer.encode_placed(texts)
    spans = annotator.annotate(texts, given)
    characters = TextPlaces(texts, places)
    aligned = {column: characters.align(column, spans, labels) for column, labels in annotator.plan.labels.items()}
    return encoded, places.lengths, aligned
