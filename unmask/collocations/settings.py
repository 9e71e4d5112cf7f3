"""What a lexicon is made like."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from unmask.settings import Settings

MOST_WORDS = 5
LARGEST_SIZE = 800_000
_WORDS_PER_ENTRY = 256


class LexiconSettings(Settings):
    """Settings of a lexicon.

    Attributes:
        size: Most collocations; None is one for 256 words of the corpus, but not more than the paper's 800,000.
        min_count: Collocations stand in the corpus more often than this.
        max_words: Longest collocation.

    Source: Levine et al. 2021 (PMI-Masking), section 4: 2 to 5 words, more than 10 occurrences, 800,000 entries for
    16 GB of text.
    """

    size: Annotated[int, Field(ge=1)] | None = None
    min_count: Annotated[int, Field(ge=1)] = 10
    max_words: Annotated[int, Field(ge=2, le=MOST_WORDS)] = 5

    def size_for(self, num_words: int) -> int:
        """Most collocations for a corpus of so many words."""
        return self.size or min(LARGEST_SIZE, num_words // _WORDS_PER_ENTRY)
