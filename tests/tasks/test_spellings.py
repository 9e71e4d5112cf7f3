"""Words with the space before them and without it: which of both stands at a mask, and how it is spelled."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import product

import pytest
import tokenizers
from tokenizers import processors

from tests.tasks.test_fill_options import log_probabilities
from tests.tokenizer.families import FAMILIES, trained
from unmask.model.encoder import MaskedLM
from unmask.tasks.fill import FillSettings, WordPieces, fill_texts, read_candidates, read_masked, with_pieces
from unmask.tokenizer.tokenizer import Tokenizer

MARKING = ("bpe", "bpe_prefix", "unigram")
WORDS = ("king", "Constantinople", "Balomin", "Vurionska")


def spaced_in(tokenizer: Tokenizer, text: str) -> list[bool]:
    return read_masked(tokenizer, [text])[0].query.spaced.tolist()


@pytest.mark.parametrize("family", MARKING)
@pytest.mark.parametrize("trimmed", [False, True])
def test_where_a_space_stands_before_the_mask(family: str, trimmed: bool) -> None:
    tokenizer = trained(family)
    if trimmed and family != "unigram":  # as in RoBERTa's own files: offsets without spaces
        backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
        backend.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2), trim_offsets=True)
        tokenizer = Tokenizer(backend)
    where_a_text_begins = family != "bpe"
    for text, expected in {
        "the [MASK] sees": [True],
        "the  [MASK]": [True],
        "king\n[MASK]": [True],
        " [MASK] sees": [True],
        "[MASK] sees": [where_a_text_begins],
        "the ([MASK]) sees": [False],
        '"[MASK]"': [False],
        "mount[MASK]": [False],
        "中[MASK]": [False],
        "the [MASK][MASK] [MASK]": [True, False, True],
        "[MASK] [MASK]": [where_a_text_begins, True],
    }.items():
        assert spaced_in(tokenizer, text) == expected, text


def test_a_mask_that_leaves_the_space_to_a_token_of_its_own() -> None:
    """Byte-level BPE has one there, Metaspace has none."""
    for family, expected in (("bpe", False), ("unigram", True)):
        content = json.loads(trained(family).backend.to_str())
        for token in content["added_tokens"]:
            token["lstrip"] = False
        tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)))
        assert spaced_in(tokenizer, "the [MASK] sees") == [expected]
        assert spaced_in(tokenizer, "the ([MASK] sees") == [False]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", ["the [MASK] sees", "[MASK] sees", "the ([MASK] sees"])
def test_candidates_have_the_tokens_that_the_text_with_them_has(family: str, text: str) -> None:
    tokenizer = trained(family)
    query = read_masked(tokenizer, [text])[0].query
    for word in WORDS:
        [[pieces]] = read_candidates(tokenizer, [word]).of(query.spaced[0]).by_length.values()
        filled = with_pieces(query.input_ids, int(query.places[0]), pieces)
        assert filled.tolist() == tokenizer.encode_prompt(text.replace("[MASK]", word)).tolist()


def test_chinese_words_have_no_space_within_chinese_text() -> None:
    tokenizer = trained("bpe")
    assert spaced_in(tokenizer, "我爱[MASK]。") == [False]
    [[pieces]] = read_candidates(tokenizer, ["中文"]).bare.by_length.values()
    assert tokenizer.decode(pieces.tolist()) == "中文"
    assert not any(tokenizer.space_before(id_) for id_ in pieces.tolist())


@pytest.mark.parametrize("family", FAMILIES)
def test_beginnings_of_words_in_both_spellings(family: str) -> None:
    tokenizer = trained(family)
    both = WordPieces.of(tokenizer)
    if family not in MARKING:
        assert both.spaced is both.bare
        return
    whole, opening, further = (
        set(ids.tolist()) for ids in (both.bare.whole_A, both.bare.opening_A, both.bare.further_A)
    )
    assert not any(tokenizer.space_before(id_) for id_ in whole)
    assert opening <= whole
    found = 0
    for word in WORDS:
        [[pieces]] = read_candidates(tokenizer, [word]).bare.by_length.values()
        begin, *rest = pieces.tolist()
        assert begin in (opening if rest else whole)
        assert begin not in both.spaced.opening_A.tolist(), "so it could not be found before"
        assert set(rest) <= further
        found += len(rest)
    assert found > 3


def test_words_where_a_text_begins(make_model: Callable[..., MaskedLM]) -> None:
    """Given ones have the probabilities of their own tokens there; others begin without a space, too."""
    tokenizer = trained("bpe")
    model = make_model(vocab_size=tokenizer.vocab_size)
    text, words = "[MASK] sees the dog", ["king", "Constantinople"]
    (filled,) = fill_texts(model, tokenizer, [text], FillSettings(candidates=words))
    assert filled.words is not None
    found = {word.text: word for word in filled.words[0]}
    assert set(found) == set(words)
    ids, mask = tokenizer.encode_prompt(text).tolist(), tokenizer.special.mask
    place = ids.index(mask)
    for word in words:
        pieces = tokenizer.encode_corpus([word])[0].input_ids.tolist()
        assert found[word].token_ids == tuple(pieces)
        total = 0.0
        for turn, id_ in enumerate(pieces):
            row = [*ids[:place], *pieces[:turn], *[mask] * (len(pieces) - turn), *ids[place + 1 :]]
            total += float(log_probabilities(model, row)[place + turn, id_])
        assert found[word].probability == pytest.approx(math.exp(total), rel=1e-3)
    (filled,) = fill_texts(model, tokenizer, [text], FillSettings(top_k=tokenizer.vocab_size, max_pieces=2))
    assert filled.words is not None
    assert {len(word.tokens) for word in filled.words[0]} == {1, 2}
    assert not any(tokenizer.space_before(word.token_ids[0]) for word in filled.words[0])
    (behind,) = fill_texts(
        model, tokenizer, ["the [MASK] sees"], FillSettings(top_k=tokenizer.vocab_size, max_pieces=2)
    )
    assert behind.words is not None
    assert any(tokenizer.space_before(word.token_ids[0]) for word in behind.words[0])


def entries(tokenizer: Tokenizer, *, also_bare: bool) -> list[str]:
    """Words that are a token with the space before them, and without it are one, too, or are several."""
    known = tokenizer.backend.get_vocab()
    words = sorted(token[1:] for token in known if token.startswith("Ġ"))
    return [word for word in words if word.isascii() and word.isalpha() and (word in known) == also_bare]


@pytest.mark.parametrize("joint", ["beam", "confidence"])
def test_candidates_of_one_token_in_both_spellings(make_model: Callable[..., MaskedLM], joint: str) -> None:
    tokenizer = trained("bpe")
    model = make_model(vocab_size=tokenizer.vocab_size)
    words = entries(tokenizer, also_bare=True)[:3]
    spaced, bare = {f"Ġ{word}" for word in words}, set(words)
    assert len(bare) == 3
    texts = ["the [MASK] sees", "[MASK] sees", "the [MASK] ([MASK] sees"]
    settings = FillSettings(top_k=9, candidates=words, joint=joint)  # type: ignore[arg-type]
    found = fill_texts(model, tokenizer, texts, settings)
    for text, filled, expected in zip(texts, found, ([spaced], [bare], [spaced, bare]), strict=True):
        assert filled.words is None
        assert [{candidate.token for candidate in mask} for mask in filled.masks] == expected
        ids = tokenizer.encode_prompt(text).tolist()
        place = ids.index(tokenizer.special.mask)
        chances = log_probabilities(model, ids)[place].exp()
        for candidate in filled.masks[0]:
            assert candidate.probability == pytest.approx(float(chances[candidate.token_id]), rel=1e-3)
    together = [filling.tokens for filling in found[2].fillings]
    assert set(together) <= set(product(spaced, bare))
    assert len(together) == (9 if joint == "beam" else 1)


def test_whether_candidates_are_one_token_depends_on_their_spelling(make_model: Callable[..., MaskedLM]) -> None:
    tokenizer = trained("bpe")
    model = make_model(vocab_size=tokenizer.vocab_size)
    one, several = entries(tokenizer, also_bare=True)[0], entries(tokenizer, also_bare=False)[0]
    texts = ["the ([MASK] sees", "the [MASK] sees", "the [MASK] ([MASK] sees"]
    bare, spaced, both = fill_texts(model, tokenizer, texts, FillSettings(candidates=[one, several]))
    assert spaced.words is None
    assert {candidate.token for candidate in spaced.masks[0]} == {f"Ġ{one}", f"Ġ{several}"}
    assert bare.words is not None
    assert {word.text: len(word.tokens) > 1 for word in bare.words[0]} == {one: False, several: True}
    assert [[candidate.token for candidate in mask] for mask in bare.masks] == [[one]]
    assert both.words is not None
    assert [len(mask) for mask in both.masks] == [2, 1]
    assert [{word.text for word in words} for words in both.words] == [{one, several}] * 2
