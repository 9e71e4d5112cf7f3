"""Checks of the tokenizer: what it writes it reads again, and transformers reads the folder as we do."""

from __future__ import annotations

from typing import Any

import numpy as np

from unmask.exporting.check import Check, count
from unmask.exporting.subject import Subject
from unmask.exporting.transformers_side import auto_tokenizer
from unmask.tokens.tokenizer import Tokenizer

NUM_TEXTS, WORDS = 20, 12


def tokenizer_round_trip(subject: Subject) -> Check:
    """Ids to text and back. The text is written by the tokenizer itself, so that case and spacing are its own."""
    tokenizer = subject.tokenizer
    texts = probe_texts(tokenizer)
    wrong = []
    for text in texts:
        ids = tokenizer.encode_prompt(text)
        again = tokenizer.encode_prompt(tokenizer.decode(ids.tolist()))
        if not np.array_equal(ids, again):
            wrong.append(f"{text!r} has {len(ids)} ids, and others when it is decoded and encoded again")
    if not texts:
        wrong.append("the vocabulary has no words to write a text with")
    return _few(wrong, f"{len(texts)} texts")


def tokenizer_in_transformers(subject: Subject) -> Check:
    """`AutoTokenizer` gives the same ids to the same texts, masks included, and knows the same special tokens."""
    ours, theirs = subject.tokenizer, auto_tokenizer(subject.folder)
    mask = ours.token(ours.special.mask)
    texts = [*probe_texts(ours), mask, *(f"{text} {mask} {text}" for text in probe_texts(ours)[:3])]
    wrong = [
        f"{text!r} has other ids in transformers"
        for text in texts
        if ours.encode_prompt(text).tolist() != list(theirs(text)["input_ids"])
    ]
    wrong += _other_roles(ours, theirs)
    return _few(wrong, f"{len(texts)} texts")


def probe_texts(tokenizer: Tokenizer) -> list[str]:
    """Texts of words of the vocabulary, spelled as the tokenizer itself spells them; the same ones every time."""
    ids = np.flatnonzero(tokenizer.ordinary)
    words = ids[tokenizer.starts(ids)]
    if len(words) == 0:
        return []
    unknown = tokenizer.special.unk
    places = np.random.default_rng(0).integers(len(words), size=(NUM_TEXTS, WORDS))
    texts = []
    for row in words[places]:
        first = tokenizer.encode_prompt(tokenizer.decode(row.tolist()))
        if unknown is None or unknown not in first:  # a piece of a word may be no word, and say so
            texts.append(tokenizer.decode(first.tolist()))
    return texts


def _other_roles(ours: Tokenizer, theirs: Any) -> list[str]:
    wrong = []
    for role, id_ in vars(ours.special).items():
        found = getattr(theirs, f"{role}_token_id")
        if id_ is not None and found != id_:
            wrong.append(f"transformers takes {found} for the {role} token, not {id_}")
    return wrong


def _few(wrong: list[str], detail: str) -> Check:
    """All are counted, and the first two told."""
    check = count(wrong, detail)
    return (
        check
        if len(wrong) < 3
        else Check(False, float(len(wrong)), f"{wrong[0]}; {wrong[1]}; and {len(wrong) - 2} more")
    )
