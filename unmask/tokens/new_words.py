"""Words that a text has often and a tokenizer spells in several pieces: candidates for entries of their own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import tokenizers

from unmask.errors import TokenizerError
from unmask.tokens.characters import Kind, kind_of
from unmask.tokens.tokenizer import Tokenizer

LEAST_COUNT = 5  # a word that hardly stands in the text is not learned from it
LEAST_CHARS = 3
_OF_WORDS = {Kind.LETTER, Kind.DIGIT, Kind.MARK}
_UNFIT = "--extend-vocab adds whole words to a WordPiece, byte-level BPE or Unigram vocabulary, but {}; leave it away"


@dataclass(frozen=True)
class NewWord:
    """A word that gets an entry.

    Attributes:
        entry: As the vocabulary spells it: `allocator`, `Ġallocator`, `▁allocator`.
        pieces: Ids that spelled it before.
        count: How often it stands in the text.
    """

    entry: str
    pieces: tuple[int, ...]
    count: int

    @property
    def saved(self) -> int:
        """Tokens of the text that its entry saves."""
        return self.count * (len(self.pieces) - 1)


def check_extensible(tokenizer: Tokenizer) -> None:
    """Makes sure that whole words can be added.

    Raises:
        TokenizerError: They cannot be added to this kind of tokenizer.
    """
    model, family = tokenizer.backend.model, tokenizer.word_starts.spelling.family
    kind = type(model).__name__
    if family == "plain":
        raise TokenizerError(_UNFIT.format("this tokenizer's entries are characters, which words are never joined of"))
    if kind not in ("WordPiece", "BPE", "Unigram") or family == "whole":
        raise TokenizerError(_UNFIT.format(f"this tokenizer is of the kind {kind}, whose entries mark no words"))
    if kind == "BPE" and family == "wordpiece":
        raise TokenizerError(_UNFIT.format("this BPE tokenizer marks continuations or ends of words"))
    if kind == "BPE" and model.dropout:
        raise TokenizerError(_UNFIT.format("this BPE tokenizer drops merges at random"))
    if tokenizer.backend.pre_tokenizer is None:
        raise TokenizerError(_UNFIT.format("this tokenizer does not cut text into words first (no pre_tokenizer)"))


def count_words(backend: tokenizers.Tokenizer, texts: Iterable[str]) -> Counter[str]:
    """Counts what the tokenizer's model is given one by one; only distinct words are held in memory."""
    normalizer, cutter = backend.normalizer, backend.pre_tokenizer
    counts: Counter[str] = Counter()
    for text in texts:
        normal = text if normalizer is None else normalizer.normalize_str(text)
        counts.update(word for word, _ in cutter.pre_tokenize_str(normal))
    return counts


def pieces_of(backend: tokenizers.Tokenizer, word: str) -> tuple[int, ...]:
    """Ids that the tokenizer's model spells a word with."""
    return tuple(token.id for token in backend.model.tokenize(word))


def rank_new_words(tokenizer: Tokenizer, counts: Mapping[str, int]) -> list[NewWord]:
    """All words that would gain from an entry, the one that saves most tokens first.

    A word counts by itself: what entries of two words that begin alike save together is not worked out.

    Args:
        tokenizer: For which `check_extensible` holds.
        counts: Words and how often they stand in the text.
    """
    unknown = tokenizer.special.unk
    found = []
    for entry, count in counts.items():
        if count < LEAST_COUNT or not _is_word(tokenizer.word_starts.text_of(entry)):
            continue
        pieces = pieces_of(tokenizer.backend, entry)
        if len(pieces) < 2 or unknown in pieces:
            continue
        if tokenizer.starts(np.array(pieces))[1:].any():  # several words to the masking: one entry would join them
            continue
        found.append(NewWord(entry, pieces, count))
    return sorted(found, key=lambda word: (-word.saved, word.entry))


def _is_word(text: str) -> bool:
    """Whether a text is letters, with digits perhaps, so that no word of the masking begins or ends within it."""
    kinds = {kind_of(character) for character in text}
    return len(text) >= LEAST_CHARS and Kind.LETTER in kinds and kinds <= _OF_WORDS


def unigram_scores(words: Iterable[NewWord], scores: Mapping[int, float]) -> list[float]:
    """Scores of new Unigram entries: a hair above what their pieces have together, but none below the least old one.

    With the hair an entry stands for just these pieces wherever they stood one behind another, and no other text
    changes. It grows with the number of pieces, so that a word is not spelled with the entry of a shorter new one.

    From the least score that of unknown letters follows, so with a lower one other text with such letters would be cut
    in other places. A word whose pieces are rare or many gets the least score itself, which is more than they have
    together, and a longer word is spelled with its entry where that is likelier than the old spelling.

    Example: the least is -13. `▁alloc` + `ator`, -9 each, become `▁allocator` with -13 instead of -18. `▁allocators`
    was `▁alloc` + `ators`, -9 and -8; with `s` of -3 it is `▁allocator` + `s` now: -16 instead of -17.

    Args:
        words: The new entries.
        scores: By id, of the old entries.
    """
    least = min(score for score in scores.values() if math.isfinite(score))
    return [max(sum(scores[id_] for id_ in word.pieces) + 1e-4 * (len(word.pieces) - 1), least) for word in words]
