"""Texts with words in place of their masks, and the token of a word there: with or without the space before it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.model.helpers import MakeModel
from tests.tasks.test_fill import log_probabilities
from tests.tokenizer.families import FAMILIES, trained, wordpiece
from unmask.core.errors import SettingsError
from unmask.tasks.fill import allowed_tokens, fill_texts, read_masked
from unmask.tokenizer.tokenizer import Tokenizer


def filled(tokenizer: Tokenizer, text: str, *tokens: str) -> str:
    """The text filled with tokens, given as in the vocabulary."""
    ids = [tokenizer.backend.token_to_id(token) for token in tokens]
    assert None not in ids
    return read_masked(tokenizer, [text])[0].filled(tokenizer, ids)


def test_tokens_of_each_family() -> None:
    bpe, wordpiece = trained("bpe"), trained("wordpiece")
    assert filled(bpe, "Zoë: [MASK] ([MASK])", "Ġthe", "the") == "Zoë: the (the)"
    assert filled(bpe, "a [MASK][MASK]", "the", "Ġthe") == "a the the"
    heart = bpe.encode_corpus(["♥"])[0].input_ids.tolist()
    assert len(heart) == 3
    assert filled(bpe, "I [MASK][MASK][MASK] you", *map(bpe.token, heart)) == "I ♥ you"
    assert filled(bpe, "the [MASK] ([MASK]).", "Ġthe", "the") == "the the (the)."
    assert filled(bpe, "the  [MASK]\n[MASK]", "Ġthe", "Ġthe") == "the  the\nthe"
    assert filled(bpe, "[MASK] sees", "Ġthe") == "the sees", "no space where a text begins"
    assert filled(bpe, "New[MASK]", "Ġthe") == "New the"
    half = bpe.token(heart[0])
    assert filled(bpe, "\u4e2d[MASK]!", half) == "\u4e2d\ufffd!"
    assert filled(wordpiece, "([MASK][MASK])", "the", "the") == "(the the)"
    assert filled(wordpiece, "♥ UN[MASK] ([MASK]) [MASK][MASK].", "##t", "the", "the", "the") == "♥ UNt (the) the the."
    assert filled(wordpiece, "[MASK][MASK], [MASK]", "the", ".", "[SEP]") == "the., [SEP]"
    assert filled(trained("unigram"), "a [MASK], [MASK]", ".", "▁Balo") == "a ., Balo"
    assert filled(trained("char"), "a[MASK]b [MASK]", " ", "c") == "a b c"


def test_no_space_separates_a_word_from_an_ideograph() -> None:
    """As in the text that has these tokens: WordPiece splits around each ideograph."""
    tokenizer = wordpiece("私", "校", "へ", "5", "は")
    for tokens, text in (
        (("校", "へ"), "私校へ"),
        (("校", "5"), "私校5"),
        (("へ", "校"), "私へ校"),
        (("は", "5"), "私は 5"),
    ):
        assert filled(tokenizer, "私[MASK][MASK]", *tokens) == text
        assert tokenizer.backend.encode(text, add_special_tokens=False).tokens == ["私", *tokens]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", ["the [MASK] sees", "[MASK] sees", "the ([MASK] sees"])
def test_candidates_have_the_token_that_the_text_with_them_has(family: str, text: str) -> None:
    tokenizer = trained(family)
    query = read_masked(tokenizer, [text])[0]
    place = int(query.places[0])
    found = 0
    texts = (tokenizer.text(id_).strip() for id_ in np.flatnonzero(tokenizer.ordinary).tolist())
    for word in sorted({"king", "Balomin", *filter(str.isalpha, texts)})[::5]:
        ids = tokenizer.encode_prompt(text.replace("[MASK]", word))
        if len(ids) != len(query.input_ids):
            with pytest.raises(SettingsError, match=word):
                allowed_tokens(tokenizer, [word], [query])
            continue
        found += 1
        assert allowed_tokens(tokenizer, [word], [query]).tolist() == [[ids[place]]]
    assert found


def test_candidates_in_both_spellings(make_model: MakeModel) -> None:
    tokenizer = trained("bpe")
    model = make_model(vocab_size=tokenizer.vocab_size)
    known = tokenizer.backend.get_vocab()
    letters = sorted(token for token in known if token.isascii() and token.isalpha())
    words = [token for token in letters if f"Ġ{token}" in known][:3]
    spaced, bare = {f"Ġ{word}" for word in words}, set(words)
    assert len(bare) == 3
    texts = ["the [MASK] sees", "[MASK] sees", "the [MASK] ([MASK] sees"]
    found = fill_texts(model, tokenizer, texts, top_k=9, candidates=words)
    for text, result, expected in zip(texts, found, ([spaced], [bare], [spaced, bare]), strict=True):
        assert [{candidate.token for candidate in mask} for mask in result.masks] == expected
        ids = tokenizer.encode_prompt(text).tolist()
        chances = log_probabilities(model, ids)[ids.index(tokenizer.special.mask)].exp()
        for candidate in result.masks[0]:
            assert candidate.probability == pytest.approx(float(chances[candidate.token_id]), rel=1e-3)
    together = [filling.tokens for filling in found[2].fillings]
    assert sorted(together) == sorted(product(spaced, bare))
    assert {filling.text for filling in found[2].fillings} == {f"the {a} ({b} sees" for a, b in product(words, words)}
