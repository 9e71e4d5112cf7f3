from __future__ import annotations

import numpy as np
import pytest

from tests.data.lexicon_helpers import chunks_of, id_of, letter_ids
from unmask.data.lexicon import Role, WordReader, role_of
from unmask.tokenizer.tokenizer import Tokenizer


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("king", Role.WORD), ("1984", Role.WORD), ("王", Role.WORD), ("\u0301", Role.WORD), ("\ufffd", Role.WORD),
        ("l'été", Role.WORD), ("'", Role.JOINER), ("’", Role.JOINER), ("-", Role.JOINER), (" ", Role.JOINER),
        ("", Role.JOINER), (",", Role.BARRIER), ("--,", Role.BARRIER), ("€", Role.BARRIER), ("—", Role.BARRIER),
    ],
)  # fmt: skip
def test_what_a_word_is_to_a_collocation(text: str, role: Role) -> None:
    assert role_of(text) is role


def test_words_end_at_signs_unknown_tokens_and_documents(tokenizer: Tokenizer) -> None:
    a, b, c = letter_ids(tokenizer, 3)
    stop, unknown = id_of(tokenizer, "."), tokenizer.special.unk
    assert unknown is not None
    documents = [[(a, b), (c,), (stop,), (a,)], [], [(b,), (a, unknown), (c,)]]
    (chunk,) = chunks_of(documents)()
    words = WordReader(tokenizer).read(*chunk)
    assert words.num_words == 7
    assert words.begins.tolist() == [0, 2, 4, 5, 8], "without the stop and the word that is not wholly known"
    assert words.lengths.tolist() == [2, 1, 1, 1, 1]
    assert words.whole.all()
    together = [np.flatnonzero(ok).tolist() for _, ok in words.grams(3)]
    assert together == [[0, 1, 2, 3, 4], [0], []], "only `ab c` stand together"


def test_a_word_is_known_by_its_tokens_and_their_order(tokenizer: Tokenizer) -> None:
    a, b, c = letter_ids(tokenizer, 3)
    documents = [[(a, b), (c,)], [(a, b), (c,)], [(b, a), (c,)], [(a,), (b, c)], [(c,), (a, b)], [(a,), (b,), (c,)]]
    (chunk,) = chunks_of(documents)()
    hashes = dict(enumerate(WordReader(tokenizer).read(*chunk).grams(3), start=1))
    pairs, together = hashes[2]
    pairs = pairs[together]
    assert pairs[0] == pairs[1]
    assert len(set(pairs.tolist())) == len(pairs) - 1, "all others differ, also with the same tokens in other words"
    assert hashes[3][1].sum() == 1
