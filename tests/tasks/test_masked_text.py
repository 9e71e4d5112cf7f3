"""Texts with words in place of their masks: what the user wrote stays as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import unmask
from tests.tokenizer.families import trained
from unmask.model.encoder import MaskedLM
from unmask.tasks.fill import FillSettings, Put, fill_texts, put_token, read_masked
from unmask.tokenizer.tokenizer import Tokenizer


def filled(tokenizer: Tokenizer, text: str, *tokens: str) -> str:
    """The text with tokens, as they are spelled in the vocabulary."""
    ids = [tokenizer.backend.token_to_id(token) for token in tokens]
    assert None not in ids
    return read_masked(tokenizer, [text])[0].filled([put_token(tokenizer, id_) for id_ in ids])


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("the [MASK] ([MASK]).", [Put(b"king", carries_space=True), Put(b"queen")], "the king (queen)."),
        ("the  [MASK]\n[MASK]", [Put(b"king", carries_space=True)] * 2, "the  king\nking"),
        ("the\u3000[MASK]", [Put(b"king", carries_space=True)], "the\u3000king"),
        ("the [MASK] sees", [Put(b"ing")], "the ing sees"),
        ("[MASK] sees", [Put(b"Paris", carries_space=True)], "Paris sees"),
        ("New[MASK]", [Put(b"York", carries_space=True)], "New York"),
        ("New[MASK][MASK]", [Put(b"", carries_space=True), Put(b"York")], "New York"),
        ("[MASK][MASK]", [Put(b"New", carries_space=True), Put(b"York", carries_space=True)], "New York"),
        ("([MASK][MASK])", [Put(b"the", begins_word=True), Put(b"king", begins_word=True)], "(the king)"),
        ("\u4e2d[MASK][MASK]", [Put(b"\xe6\x96"), Put(b"\x87")], "\u4e2d\u6587"),
        ("\u4e2d[MASK]!", [Put(b"\xe6\x96")], "\u4e2d\ufffd!"),
    ],
)
def test_by_hand(text: str, words: list[Put], expected: str) -> None:
    for family in ("bpe", "bpe_prefix", "unigram", "wordpiece", "char"):
        assert read_masked(trained(family), [text])[0].filled(words) == expected, family


def test_tokens_of_each_family() -> None:
    bpe, wordpiece = trained("bpe"), trained("wordpiece")
    assert filled(bpe, "Zoë: [MASK] ([MASK])", "Ġthe", "the") == "Zoë: the (the)"
    assert filled(bpe, "a [MASK][MASK]", "the", "Ġthe") == "a the the"
    heart = bpe.encode_corpus(["♥"])[0].input_ids.tolist()
    assert len(heart) == 3
    assert filled(bpe, "I [MASK][MASK][MASK] you", *map(bpe.token, heart)) == "I ♥ you"
    assert filled(wordpiece, "♥ UN[MASK] ([MASK]) [MASK][MASK].", "##t", "the", "the", "the") == "♥ UNt (the) the the."
    assert filled(wordpiece, "[MASK][MASK], [MASK]", "the", ".", "[SEP]") == "the., [SEP]"
    assert filled(trained("unigram"), "a [MASK], [MASK]", ".", "▁Balo") == "a ., Balo"
    assert filled(trained("char"), "a[MASK]b [MASK]", " ", "c") == "a b c"


def test_what_the_vocabulary_does_not_know_is_not_lost(run: unmask.Run) -> None:
    tokenizer = run.model.tokenizer
    result = run.model.fill("♥ hello [MASK] [SEP] THE [MASK]…", top_k=3)
    assert len(result.fillings) == 3
    for filling in result.fillings:
        first, second = (tokenizer.text(tokenizer.backend.token_to_id(token)) for token in filling.tokens)
        assert filling.text == f"♥ hello {first} [SEP] THE {second}…"
    (surest,) = run.model.fill("♥ [MASK] [SEP]", joint="confidence").fillings
    assert surest.text == f"♥ {tokenizer.text(tokenizer.backend.token_to_id(surest.tokens[0]))} [SEP]"
    given = run.model.fill("♥ [MASK], [SEP]", candidates=["Balomin", "sea"])
    assert given.words is not None
    assert {filling.text for filling in given.fillings} == {"♥ Balomin, [SEP]", "♥ sea, [SEP]"}


def test_a_space_that_the_mask_takes_along_is_neither_lost_nor_doubled(make_model: Callable[..., MaskedLM]) -> None:
    tokenizer = trained("bpe")
    model = make_model(vocab_size=tokenizer.vocab_size)
    settings = FillSettings(candidates=["Constantinople", "the"])
    (result,) = fill_texts(model, tokenizer, ["♥  in [MASK] ([MASK])"], settings)
    names = ("Constantinople", "the")
    assert len(result.fillings) == 4
    assert {filling.text for filling in result.fillings} <= {f"♥  in {a} ({b})" for a in names for b in names}
    (result,) = fill_texts(model, tokenizer, ["[MASK] sees"], settings)
    assert {filling.text for filling in result.fillings} == {"Constantinople sees", "the sees"}
