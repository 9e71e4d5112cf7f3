"""A tokenizer with entries for the new words of a text: those that it has often and the tokenizer spells in pieces.

Old entries keep their ids, and text in which no new word stands its tokens. Longer words in which one stands may be
spelled with it, too: in WordPiece, which takes the longest entry first, and in Unigram where that is the likelier
spelling (`unigram_scores`). In BPE they stay as they were.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers

from unmask.core.errors import TokenizerError
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.words import Kind, kind_of

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


@dataclass(frozen=True)
class Extension:
    """New words and the tokenizer that has them.

    Attributes:
        tokenizer: With the new entries.
        words: The new words, by falling number of tokens saved; their ids follow each other.
        first_id: Id of the first.
        tokens_before: Tokens of the text that the words were found in, without the new entries.
        tokens_after: With them.
    """

    tokenizer: Tokenizer
    words: tuple[NewWord, ...]
    first_id: int
    tokens_before: int
    tokens_after: int


def extend_vocabulary(tokenizer: Tokenizer, texts: Iterable[str], most: int) -> Extension:
    """Finds the words that the tokenizer splits most to the cost of a text, and gives them entries.

    - WordPiece: a word is an entry. Longer words that begin with it are spelled with it too, since WordPiece takes
      the longest entry first.
    - BPE: a word is an entry, and words that are entries are not merged (`ignore_merges`); others are as they were.
    - Unigram: a word is an entry that is a hair likelier than its pieces together, and no less likely than the least
      likely old entry (`unigram_scores`); where that is more than a hair, some longer words are spelled with it too.

    New entries are pieces like others, not added tokens: these would be cut out of the middle of words, and would go
    on where whole-word masking begins a word.

    Args:
        tokenizer: Of the model; left as it is.
        texts: The new domain; gone through once, only distinct words are held in memory.
        most: How many words at most.

    Raises:
        TokenizerError: Words cannot be added to this kind of tokenizer, or the text has no such words.
    """
    check_extensible(tokenizer)
    counts = count_words(tokenizer.backend, texts)
    words = rank_new_words(tokenizer, counts)[:most]
    while words:
        extended = _with_entries(tokenizer, words)
        before, after, lost = _compare(tokenizer, extended, counts)
        if not lost:
            return Extension(extended, tuple(words), tokenizer.vocab_size, before, after)
        # WordPiece takes the longest entry and has no way back: with these entries other words become unknown.
        words = [word for word in words if not any(other.startswith(word.entry) for other in lost)]
    raise TokenizerError(
        f"no word of this text is spelled in several pieces and stands in it {LEAST_COUNT} times: there is nothing to "
        "add; leave --extend-vocab away, or give more text"
    )


def _compare(tokenizer: Tokenizer, extended: Tokenizer, counts: Mapping[str, int]) -> tuple[int, int, list[str]]:
    """Tokens of a text without the new entries and with them, and words that only then have unknown tokens."""
    unknown = tokenizer.special.unk
    before = after = 0
    lost = []
    for word, count in counts.items():
        old, new = pieces_of(tokenizer.backend, word), pieces_of(extended.backend, word)
        before, after = before + count * len(old), after + count * len(new)
        if unknown in new and unknown not in old:
            lost.append(word)
    return before, after, lost


def _with_entries(tokenizer: Tokenizer, words: Sequence[NewWord]) -> Tokenizer:
    """The tokenizer with these entries behind its last id."""
    content = json.loads(tokenizer.backend.to_str())
    model, first = content["model"], tokenizer.vocab_size
    added = {token["id"]: token["content"] for token in content["added_tokens"]}
    if model["type"] == "Unigram":
        _add_to_unigram(model["vocab"], words, first)
    else:
        # Added tokens may stand between the old entries and the new; the library wants a vocabulary without holes.
        model["vocab"] = {token: id_ for id_, token in added.items()} | model["vocab"]
        model["vocab"] |= {word.entry: first + number for number, word in enumerate(words)}
        if model["type"] == "BPE":
            model["ignore_merges"] = True
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    return Tokenizer(backend, tokenizer.special_names, tokenizer.class_name)


def _add_to_unigram(vocab: list[list[Any]], words: Sequence[NewWord], first: int) -> None:
    """Adds pieces; the place in the list is the id, so there must be nothing between the list's end and the first."""
    if len(vocab) != first:
        raise TokenizerError(
            f"--extend-vocab: ids {len(vocab)} to {first - 1} of this Unigram tokenizer are added tokens, behind which "
            "its vocabulary cannot grow; leave --extend-vocab away"
        )
    scores = {id_: float(score) for id_, (_, score) in enumerate(vocab)}
    for word, score in zip(words, unigram_scores(words, scores), strict=True):
        vocab.append([word.entry, score])
