"""Vocabularies of existing models, extended by words of a text, or replaced by another tokenizer's.

Words are added that are frequent in a text and that the tokenizer splits into pieces. Old entries keep their ids, and
text without any of the new words keeps its tokens.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tokenizers
from tokenizers import models

from unmask.core.errors import TokenizerError
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.words import Kind, kind_of, spelling

LEAST_COUNT = 5  # rarer words are not added
LEAST_BYTES = 3  # of a word in UTF-8, with each Latin letter as one: `of` and `là` are too short, `있다` is not
_LATIN = re.compile("[\u0080-\u036f\u1e00-\u1eff]")  # other than ASCII, with the accents
_OF_WORDS = {Kind.LETTER, Kind.DIGIT, Kind.MARK}


@dataclass(frozen=True)
class NewWord:
    entry: str  # as the vocabulary spells it: `allocator`, `Ġallocator`, `▁allocator`
    pieces: tuple[int, ...]  # ids that spelled it so far
    count: int  # occurrences in the text

    @property
    def saved(self) -> int:
        """Tokens of the text that the entry saves."""
        return self.count * (len(self.pieces) - 1)


def check_extensible(tokenizer: Tokenizer) -> None:
    """Raises a TokenizerError if `extend_vocabulary` cannot add words."""
    backend, family = tokenizer.backend, tokenizer.word_starts.spelling.family
    kind = type(backend.model).__name__
    fits = {
        "WordPiece": True,
        "BPE": family != "wordpiece" and not getattr(backend.model, "dropout", None),
        # Positions in its list of entries are ids, so the list cannot grow if added tokens follow it.
        "Unigram": backend.get_vocab_size(with_added_tokens=False) == tokenizer.vocab_size,
    }
    if family in ("plain", "whole") or not fits.get(kind) or len(_words_of(backend, "a b")) < 2:
        raise TokenizerError(
            f"words cannot be added to this {kind} tokenizer: it must be WordPiece, byte-level BPE without dropout, or "
            "Unigram without added tokens after its entries, and cut text into words first; add none",
            options=("extend_vocab",),
        )


def _words_of(backend: tokenizers.Tokenizer, *texts: str) -> Counter[str]:
    words = Counter[str]()
    for text in filter(None, texts):
        normal = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
        cut = [(normal, (0, 0))] if backend.pre_tokenizer is None else backend.pre_tokenizer.pre_tokenize_str(normal)
        words.update(word for word, _ in cut)
    return words


def _count_words(tokenizer: Tokenizer, texts: Iterable[str]) -> tuple[Counter[str], int]:
    """Counts words as entries spell them. Only distinct words are held in memory.

    The text of added tokens is not counted, as it is cut out first: an entry for it would take the token's id, or never
    occur. Also returns the number of these tokens.
    """
    backend, counts, num_added = tokenizer.backend, Counter[str](), 0
    roles, added = tokenizer.special_names.values(), backend.get_added_tokens_decoder().values()
    finder = tokenizers.Tokenizer(models.BPE())  # without entries, so it finds only the added tokens
    finder.normalizer = backend.normalizer
    is_needed = finder.add_tokens([token for token in added if token.content not in roles])  # their number

    def parts_of(text: str) -> list[str]:
        if not is_needed:
            return [text]
        cuts = [0, *(place for offsets in finder.encode(text).offsets for place in offsets), len(text)]
        return [text[begin:end] for begin, end in zip(cuts[::2], cuts[1::2], strict=True)]

    for text in texts:
        num_added += len(parts := parts_of(text)) - 1
        counts.update(_words_of(backend, *parts))
    return counts, num_added


def _pieces_of(backend: tokenizers.Tokenizer, word: str) -> tuple[int, ...]:
    return tuple(token.id for token in backend.model.tokenize(word))


def unigram_scores(words: Iterable[NewWord], scores: Mapping[int, float]) -> list[float]:
    """Scores of new Unigram entries: a little above the sum of their pieces' scores, but at least the lowest old score.

    The surplus makes an entry replace exactly these pieces wherever they followed each other, and changes no other
    text. It grows with the number of pieces, so that a word is not spelled with a shorter new entry. With a score below
    the lowest, text with unknown letters would be cut in other places. A word of rare or many pieces gets the lowest
    score; then longer words may be spelled with its entry, too.

    Example: the lowest score is -13. `▁alloc` + `ator`, -9 each, become `▁allocator` with -13 instead of -18.
    `▁allocators` was `▁alloc` + `ators`, -9 and -8; with `s` of -3 it is `▁allocator` + `s` now: -16 instead of -17.
    """
    lowest = min(score for score in scores.values() if math.isfinite(score))
    return [max(sum(scores[id_] for id_ in word.pieces) + 1e-4 * (len(word.pieces) - 1), lowest) for word in words]


@dataclass(frozen=True)
class Extension:
    tokenizer: Tokenizer  # with the new entries
    words: tuple[NewWord, ...]  # sorted by tokens saved, most first; their ids are consecutive
    first_id: int  # id of the first
    tokens_before: int  # tokens of the text without the new entries
    tokens_after: int  # with them


def extend_vocabulary(tokenizer: Tokenizer, texts: Iterable[str], most: int) -> Extension:
    """Finds the `most` words that cost a text the most tokens, and gives them entries.

    - WordPiece: a word becomes an entry. Longer words that begin with it are spelled with it too, since WordPiece takes
      the longest entry first.
    - BPE: a word becomes an entry, and words that are entries are not merged (`ignore_merges`); others do not change.
    - Unigram: a word becomes an entry, a little likelier than its pieces together and no less likely than the least
      likely old entry (`unigram_scores`). In the latter case some longer words are spelled with it too.

    New entries are ordinary pieces, not added tokens, which would be cut out of the middle of words.
    """
    check_extensible(tokenizer)
    backend, (counts, num_added) = tokenizer.backend, _count_words(tokenizer, texts)
    unknown, candidates = tokenizer.special.unk, list[NewWord]()
    for entry, count in counts.items():  # savings are counted word by word, not for entries together
        # Only letters and digits, so that masking sees no word begin or end within it.
        text = tokenizer.word_starts.spelling.text_bytes(entry).decode(errors="replace")
        kinds = {kind_of(character) for character in text}
        num_bytes = len(_LATIN.sub("x", text).encode())
        if count < LEAST_COUNT or num_bytes < LEAST_BYTES or Kind.LETTER not in kinds or not kinds <= _OF_WORDS:
            continue
        pieces = _pieces_of(backend, entry)
        if len(pieces) < 2 or unknown in pieces:
            continue
        if backend.token_to_id(entry) is not None:  # an added token, or an entry that no merges lead to
            continue
        if tokenizer.word_starts.of_ids(np.array(pieces))[1:].any():  # several words, which an entry would join
            continue
        candidates.append(NewWord(entry, pieces, count))
    words = sorted(candidates, key=lambda word: (-word.saved, word.entry))[:most]
    while words:
        extended = _with_entries(tokenizer, words)
        before = after = num_added
        lost = []  # words that became unknown with the new entries
        for word, count in counts.items():
            old, new = _pieces_of(backend, word), _pieces_of(extended.backend, word)
            before, after = before + count * len(old), after + count * len(new)
            if unknown in new and unknown not in old:
                lost.append(word)
        if not lost:
            return Extension(extended, tuple(words), tokenizer.vocab_size, before, after)
        # WordPiece takes the longest entry and does not backtrack, so new entries can make other words unknown.
        words = [word for word in words if not any(other.startswith(word.entry) for other in lost)]
    raise TokenizerError(
        f"there is nothing to add: no word that the tokenizer splits occurs {LEAST_COUNT} times in this text; "
        "add none, or give more text",
        options=("extend_vocab",),
    )


def _with_entries(tokenizer: Tokenizer, words: Sequence[NewWord]) -> Tokenizer:
    content = json.loads(tokenizer.backend.to_str())
    model, first = content["model"], tokenizer.vocab_size
    if model["type"] == "Unigram":
        vocab = model["vocab"]
        scores = {id_: float(score) for id_, (_, score) in enumerate(vocab)}
        vocab += [[word.entry, score] for word, score in zip(words, unigram_scores(words, scores), strict=True)]
    else:
        # Added tokens may have ids between old and new entries; the library requires consecutive ids.
        added = {token["content"]: token["id"] for token in content["added_tokens"]}
        model["vocab"] = added | model["vocab"] | {word.entry: first + number for number, word in enumerate(words)}
        if model["type"] == "BPE":
            model["ignore_merges"] = True
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    return Tokenizer(backend, tokenizer.special_names, tokenizer.class_name)


# ----------------------------------------
# Another vocabulary.


def respelled(old: Tokenizer, new: Tokenizer) -> tuple[list[list[int]], list[int]]:
    """For each id of a new vocabulary the ids of the old one that spell its text, none if nothing does; and the new ids
    that are not in the old vocabulary.

    A token is in both vocabularies if its text is the same and a word begins at both or at neither, whatever marks
    that. Special tokens correspond by their roles.
    """
    pieces, known = [list[int]() for _ in range(new.vocab_size)], dict[bytes, int]()
    for id_ in np.flatnonzero(old.ordinary).tolist():
        known.setdefault(old.word_starts.spelling.spell(old.token(id_)), id_)
    ordinary = np.flatnonzero(new.ordinary).tolist()
    spelled = {id_: new.word_starts.spelling.spell(new.token(id_)) for id_ in ordinary}
    unknown = [id_ for id_ in ordinary if spelled[id_] not in known]
    for id_ in ordinary:
        if spelled[id_] in known:
            pieces[id_] = [known[spelled[id_]]]
    with spelling():
        encodings = old.backend.encode_batch_fast(
            [spelled[id_].decode(errors="ignore") for id_ in unknown], add_special_tokens=False
        )
    for id_, encoding in zip(unknown, encodings, strict=True):
        pieces[id_] = [piece for piece in encoding.ids if old.ordinary[piece]]
    for role, id_ in vars(new.special).items():
        if id_ is not None and (same := getattr(old.special, role)) is not None:
            pieces[id_] = [same]
    return pieces, unknown
