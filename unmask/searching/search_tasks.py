"""Queries whose right documents are known without anybody's labels: crops and titles of held-out documents.

    document                A title                 The first sentence. The second one, longer. The third.
    crop task    query                                                  The second one, longer.
                 text searched                      The first sentence.                         The third.
    title task   query      A title
                 text searched                      The first sentence. The second one, longer. The third.

A crop is taken out of its document before that is searched. Left inside, whoever compares words finds it at once, BM25
with hardly an error, and nothing is learned of a model but whether it remembers words; taken out, what is left is about
the same matter in other words, which is what a search by meaning is for, and so it is the default. `inside` leaves it,
which tells how well a model remembers. Whether either is what somebody's users ask is not known; that takes judgements
of theirs (`beir_folder.py`).

Of several documents with equal texts, or with equal titles, one could not say which is right: of equal texts the first
is kept, and equal titles are no queries.

Source: Lee, Chang and Toutanova 2019 (Latent retrieval for weakly supervised open domain question answering), section
4, whose inverse cloze task this is, there for training; Izacard et al. 2022 (Unsupervised dense information retrieval
with contrastive learning), section 3.1, for crops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.errors import DataError
from unmask.text.survey import text_hash

Crops = Literal["removed", "inside"]
CROP_CHARS = 120  # about twenty words of English
_ROOM = 40  # letters that a crop's ends move, at most, to the beginning of a word


@dataclass(frozen=True)
class ItemDocument:
    """A document that may be asked for.

    Attributes:
        text: Without its title.
        title: None where it has none.
        draw: Number of the source document that it is, or is a part of: what figures are drawn from.
        is_held_out: Whether it may be asked for, or is only searched among.
    """

    text: str
    title: str | None
    draw: int
    is_held_out: bool


@dataclass(frozen=True)
class SearchTask:
    """Queries, the documents that are searched, and which are right.

    Attributes:
        name: `crop`, `title` or `judged`.
        documents: Their texts, by number.
        queries: Their texts.
        relevant: Of each query the grades of documents.
        draws: [queries]: what each is drawn from; those of one are dependent.
        pairs: Of each query, the right document, and the character of it that the query is next to.
        not_asked: Why documents are no queries: reason to number.
        excluded: Of each query a document that is not shown; -1: none.
    """

    name: str
    documents: Sequence[str]
    queries: Sequence[str]
    relevant: Sequence[dict[int, int]]
    draws: NDArray[np.int64]
    pairs: Sequence[tuple[int, int]]
    not_asked: Counter[str]
    excluded: NDArray[np.int64] | None = None


def crop_task(
    documents: Sequence[ItemDocument], *, num_queries: int, crop_chars: int, crops: Crops, seed: int
) -> SearchTask:
    """Crops as queries, of documents that hashes of their text and the seed choose.

    Args:
        documents: All that are searched.
        num_queries: At most.
        crop_chars: Letters of a crop, about; what is left of its document is as long at the least.
        crops: Whether they are taken out of the documents that are searched.
        seed: Another one chooses other documents, and other crops.

    Raises:
        DataError: Every document is too short.
    """
    not_asked: Counter[str] = Counter()
    asked = [n for n, each in enumerate(documents) if each.is_held_out]
    long = [n for n in asked if len(documents[n].text) >= 2 * (crop_chars + _ROOM)]
    if len(long) < len(asked):
        not_asked["documents too short to crop"] = len(asked) - len(long)
    if not long:
        raise DataError(
            f"all of the {len(asked):,} documents that may be asked for are too short to take a crop of {crop_chars} "
            f"characters out of them ({2 * (crop_chars + _ROOM)} at the least); give longer ones, or --crop-chars "
            f"{crop_chars // 2}"
        )
    texts = [each.text for each in documents]
    chosen = _chosen(long, texts, num_queries, seed)
    queries, pairs = [], []
    for number in chosen:
        text = texts[number]
        begin, end = _crop(text, crop_chars, seed)
        if not (query := text[begin:end].strip()):
            not_asked["documents of which white space was taken out"] += 1
            continue
        queries.append(query)
        pairs.append((number, begin))
        if crops == "removed":
            texts[number] = f"{text[:begin]} {text[end:]}"
    if not queries:
        raise DataError("all crops are white space; give other text, or longer crops (--crop-chars)")
    relevant = [{number: 1} for number, _ in pairs]
    draws = np.array([documents[number].draw for number, _ in pairs])
    return SearchTask("crop", texts, queries, relevant, draws, pairs, not_asked)


def title_task(documents: Sequence[ItemDocument], *, num_queries: int, seed: int) -> SearchTask | None:
    """Titles as queries; None where fewer than two held-out documents have one of their own. Arguments as above."""
    titles = Counter(each.title.lower() for each in documents if each.title is not None)
    asked = [(n, each.title) for n, each in enumerate(documents) if each.is_held_out and each.title is not None]
    own = {n: title for n, title in asked if titles[title.lower()] == 1}
    if len(own) < 2:
        return None
    not_asked: Counter[str] = Counter()
    if len(own) < len(asked):
        not_asked["documents whose title others have too"] = len(asked) - len(own)
    texts = [each.text for each in documents]
    chosen = _chosen(list(own), texts, num_queries, seed)
    return SearchTask(
        "title",
        texts,
        [own[number] for number in chosen],
        [{number: 1} for number in chosen],
        np.array([documents[number].draw for number in chosen]),
        [(number, 0) for number in chosen],
        not_asked,
    )


def _chosen(numbers: Sequence[int], texts: Sequence[str], count: int, seed: int) -> list[int]:
    """Some of the documents, by hashes of their texts, in their order."""
    ordered = sorted(numbers, key=lambda number: (text_hash(f"{seed} {texts[number]}"), number))
    return sorted(ordered[:count])


def _crop(text: str, crop_chars: int, seed: int) -> tuple[int, int]:
    """Where the crop is: anywhere, from the beginning of a word to that of another where spaces are near."""
    begin = text_hash(f"crop {seed} {text}") % (len(text) - crop_chars - 2 * _ROOM + 1)
    begin = _next_word(text, begin) if begin else 0
    return begin, _next_word(text, begin + crop_chars)


def _next_word(text: str, place: int) -> int:
    """The next beginning of a word, if there is one near."""
    for near in range(place, min(place + _ROOM, len(text))):
        if text[near - 1].isspace() and not text[near].isspace():
            return near
    return place
