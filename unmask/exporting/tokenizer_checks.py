"""Checks of the tokenizer: what it writes it reads again, and transformers reads the folder as we do."""

from __future__ import annotations

from typing import Any

import numpy as np

from unmask.exporting.check import Check, count
from unmask.exporting.subject import Subject
from unmask.exporting.transformers_side import auto_tokenizer
from unmask.tokens.tokenizer import Tokenizer

NUM_TEXTS, TOKENS = 20, 16


def tokenizer_round_trip(subject: Subject) -> Check:
    """Text to ids and back: no letter is lost or added, and what comes back has ids that come back too."""
    tokenizer = subject.tokenizer
    unknown = tokenizer.special.unk
    texts = [text for text in probe_texts(tokenizer) if unknown is None or unknown not in tokenizer.encode_prompt(text)]
    wrong = [sentence for text in texts if (sentence := _lost(tokenizer, text)) is not None]
    if not texts:
        wrong.append("no text can be written with the vocabulary's own tokens")
    return _few(wrong, f"{len(texts)} texts")


def _lost(tokenizer: Tokenizer, text: str) -> str | None:
    """What is wrong with the way back.

    White space is not compared, nor are the ids of the first way: decoders bring punctuation closer to words.
    """
    written = tokenizer.decode(tokenizer.encode_prompt(text).tolist())
    normalizer = tokenizer.backend.normalizer
    wanted = text if normalizer is None else normalizer.normalize_str(text)
    if _letters(written) != _letters(wanted):
        return f"{text!r} comes back as {written!r}"
    ids = tokenizer.encode_prompt(written)
    if not np.array_equal(ids, tokenizer.encode_prompt(tokenizer.decode(ids.tolist()))):
        return f"{written!r} has other ids after it was decoded and encoded again"
    return None


def _letters(text: str) -> str:
    """Without white space, and the sign that some vocabularies have for it."""
    return "".join(text.replace("▁", " ").split())


def tokenizer_in_transformers(subject: Subject) -> Check:
    """`AutoTokenizer` gives the same ids to the same texts, masks included, and knows the same special tokens.

    Pairs of texts have token types exactly where the model tells them apart.
    """
    ours, theirs = subject.tokenizer, auto_tokenizer(subject.folder)
    mask = ours.token(ours.special.mask)
    texts = probe_texts(ours)
    texts += [mask, *(f"{text} {mask} {text}" for text in texts[:3])]
    if ours.special.unk is not None:
        texts += [text.title() for text in texts[:3]]  # capitals may be unknown to the vocabulary
    wrong = [
        f"{text!r} has other ids in transformers"
        for text in texts
        if ours.encode_prompt(text).tolist() != list(theirs(text)["input_ids"])
    ]
    wrong += _other_roles(ours, theirs)
    wrong += _other_types(ours, theirs, (texts[0], texts[1]), wanted=subject.tells_types)
    return _few(wrong, f"{len(texts)} texts")


def probe_texts(tokenizer: Tokenizer) -> list[str]:
    """Texts of random tokens of the vocabulary, beginnings of words and other parts alike; the same ones every time."""
    ids = np.flatnonzero(tokenizer.ordinary)
    places = np.random.default_rng(0).integers(len(ids), size=(NUM_TEXTS, TOKENS))
    texts = ["".join(_spelled(tokenizer, id_) for id_ in row).strip() for row in ids[places].tolist()]
    return [text for text in texts if " do not" not in text]  # which WordPiece's decoder makes "don't" of


def _spelled(tokenizer: Tokenizer, id_: int) -> str:
    return (" " if tokenizer.space_before(id_) else "") + tokenizer.text(id_)


def _other_roles(ours: Tokenizer, theirs: Any) -> list[str]:
    wrong = []
    for role, id_ in vars(ours.special).items():
        found = getattr(theirs, f"{role}_token_id")
        if id_ is not None and found != id_:
            wrong.append(f"transformers takes {found} for the {role} token, not {id_}")
    return wrong


def _other_types(ours: Tokenizer, theirs: Any, pair: tuple[str, str], *, wanted: bool) -> list[str]:
    found = theirs(*pair).get("token_type_ids")
    if not wanted:
        return [] if found is None else ["transformers gives token types, which the model does not have"]
    if found is None:
        return [
            "transformers gives no token types for pairs, but the model has two: add token_type_ids to "
            "model_input_names in tokenizer_config.json"
        ]
    same = list(found) == ours.backend.encode(*pair).type_ids
    return [] if same else ["a pair of texts has other token types in transformers"]


def _few(wrong: list[str], detail: str) -> Check:
    """All are counted, and the first two told."""
    check = count(wrong, detail)
    return (
        check
        if len(wrong) < 3
        else Check(False, float(len(wrong)), f"{wrong[0]}; {wrong[1]}; and {len(wrong) - 2} more")
    )
