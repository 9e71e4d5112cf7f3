"""How often each token stands in a data set."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.collating.features import as_mappings, joined
from unmask.masking.plain import check_ids
from unmask.tokens.loading import as_tokenizer


def count_tokens(dataset: Any, tokenizer: Any) -> NDArray[np.int64]:
    """Counts how often each id stands in a tokenised data set, for strategies and replacements by frequency.

    Args:
        dataset: Features with `input_ids`, or lists of token ids, one after the other.
        tokenizer: In any form that `Masker.from_tokenizer` takes.

    Returns:
        [vocab_size], int64. Special tokens are counted as they stand; masking leaves them out.

    Raises:
        DataError: A feature has no `input_ids`, or they are not integers.
        SettingsError: Ids lie outside the vocabulary.
        TokenizerError: The tokenizer cannot be used.
    """
    known = as_tokenizer(tokenizer)
    counts = np.zeros(known.vocab_size, dtype=np.int64)
    features = iter(dataset)
    while part := list(islice(features, 1000)):
        ids, _ = joined("input_ids", as_mappings(part))
        check_ids(ids, known)
        counts += np.bincount(ids, minlength=known.vocab_size)
    return counts
