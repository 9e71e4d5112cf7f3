"""A tokenizer with entries for new words. Old entries keep their ids, and text in which no new word stands its tokens.

Longer words in which one stands may be spelled with it, too: in WordPiece, which takes the longest entry first, and in
Unigram where that is the likelier spelling (`unigram_scores`). In BPE they stay as they were.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers

from unmask.errors import TokenizerError
from unmask.tokens.new_words import (
    LEAST_COUNT,
    NewWord,
    check_extensible,
    count_words,
    pieces_of,
    rank_new_words,
    unigram_scores,
)
from unmask.tokens.tokenizer import Tokenizer


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
    roles = vars(tokenizer.special).items()
    names = {role: tokenizer.token(id_) for role, id_ in roles if id_ is not None}
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)), names)


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
