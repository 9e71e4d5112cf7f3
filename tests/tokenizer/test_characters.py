from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.tokenizer.words import Kind, kind_of, kinds_of_bytes


@pytest.mark.parametrize(
    ("characters", "kind"),
    [
        (" \n\t\u00a0\u3000", Kind.SPACE),
        ("aÉжあ가ไ", Kind.LETTER),
        ("0९½²", Kind.DIGIT),
        (".,'-_$+~—。«", Kind.PUNCTUATION),
        ("😀€→\u200b", Kind.SYMBOL),
        ("中㐀\U00020000", Kind.IDEOGRAPH),
        ("\u0301\u093f\ufe0f\u200d", Kind.MARK),
    ],
)
def test_kinds(characters: str, kind: Kind) -> None:
    assert {kind_of(character) for character in characters} == {kind}


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=5))
def test_kinds_of_bytes_are_those_of_their_characters(texts: list[str]) -> None:
    utf8 = [text.encode() for text in texts]
    begins = np.concatenate([np.arange(len(part)) == 0 for part in utf8])
    found = kinds_of_bytes(np.frombuffer(b"".join(utf8), dtype=np.uint8), begins)
    expected = [kind_of(a) for text in texts for a in text for _ in a.encode()]
    assert found.tolist() == expected


def test_a_character_that_is_cut_off_is_no_character() -> None:
    half = np.frombuffer("中".encode()[:2] + "中".encode()[2:], dtype=np.uint8)
    assert kinds_of_bytes(half, np.array([True, False, False])).tolist() == [Kind.IDEOGRAPH] * 3
    assert kinds_of_bytes(half, np.array([True, False, True])).tolist() == [Kind.SYMBOL] * 3
