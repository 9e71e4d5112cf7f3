"""Lists of texts, joint filling, words of several tokens, candidates and long texts."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch

import unmask
from tests.tokenizer.families import FAMILIES, trained
from unmask.core.errors import SettingsError, TokenizerError
from unmask.model.encoder import MaskedLM
from unmask.tasks.fill import FillSettings, WordPieces, fill_texts, read_candidates
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import train_chars
from unmask.train import runner

TEXTS = [
    "The king [MASK] the queen at sea.",
    "[MASK]",
    "In the [MASK] of Constantinople, the [MASK] and the dog and the [MASK] at sea",
    "the dog [MASK]",
] * 3


def log_probabilities(model: MaskedLM, ids: list[int]) -> torch.Tensor:
    """[S, V], of a text by itself: the plain way."""
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids]), positions_N=torch.arange(len(ids))).float(), -1)


def test_a_list_gives_what_each_text_gives(run: unmask.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [run.model.fill(text, top_k=3) for text in TEXTS]
    for positions, logits in ((4096, 1 << 25), (40, 2 * 200)):  # batches of one or two texts, few places of the head
        monkeypatch.setattr(runner, "BATCH_POSITIONS", positions)
        monkeypatch.setattr(runner, "HEAD_LOGITS", logits)
        together = run.model.fill(TEXTS, top_k=3)
        assert len(together) == len(TEXTS)
        for one, other in zip(alone, together, strict=True):
            assert [len(mask) for mask in one.masks] == [len(mask) for mask in other.masks]
            for mine, theirs in zip(sum(one.masks, ()), sum(other.masks, ()), strict=True):
                assert mine.probability == pytest.approx(theirs.probability, rel=1e-3)
            assert one.masks[0][0].token == other.masks[0][0].token
            assert one.fillings[0].tokens == other.fillings[0].tokens
    assert run.model.fill([]) == []


def test_transformers_pipeline_agrees_on_a_list(run: unmask.Run) -> None:
    transformers = pytest.importorskip("transformers")
    pipeline = transformers.pipeline("fill-mask", str(run.folder / "model"))
    theirs = pipeline(TEXTS, top_k=4, batch_size=5)
    compared = 0
    for filled, result in zip(run.model.fill(TEXTS, top_k=4, joint="none"), theirs, strict=True):
        assert filled.fillings == ()
        masks = [result] if len(filled.masks) == 1 else result
        for ours, others in zip(filled.masks, masks, strict=True):
            assert [c.probability for c in ours] == pytest.approx([o["score"] for o in others], rel=1e-3)
            assert ours[0].token_id == others[0]["token"]
            compared += 1
    assert compared == 18


def test_the_surest_mask_is_filled_first(run: unmask.Run) -> None:
    """Against the loop written out."""
    text, tokenizer = TEXTS[2], run.model.tokenizer
    ids = tokenizer.encode_prompt(text).tolist()
    left, expected = [n for n, id_ in enumerate(ids) if id_ == tokenizer.special.mask], 0.0
    places, order = list(left), []
    while left:
        found = log_probabilities(run.model.network, ids)
        surest = max(left, key=lambda place: float(found[place].max()))
        expected += float(found[surest].max())
        ids[surest] = int(found[surest].argmax())
        left.remove(surest)
        order.append(surest)
    (filling,) = run.model.fill(text, joint="confidence").fillings
    assert filling.tokens == tuple(tokenizer.token(ids[place]) for place in places)
    assert filling.probability == pytest.approx(math.exp(expected), rel=1e-3)
    several = run.model.fill([text, *TEXTS], joint="confidence")
    assert several[0].fillings[0].tokens == filling.tokens == several[3].fillings[0].tokens
    assert len(order) == 3


def test_candidates_have_the_probabilities_of_transformers_targets(run: unmask.Run) -> None:
    transformers = pytest.importorskip("transformers")
    pipeline = transformers.pipeline("fill-mask", str(run.folder / "model"))
    words = [word for word in ("king", "queen", "the", "sea") if run.model.tokenizer.backend.token_to_id(word)]
    assert len(words) > 1
    filled = run.model.fill(TEXTS[0], candidates=words)
    theirs = {result["token"]: result["score"] for result in pipeline(TEXTS[0], targets=words)}
    assert {c.token_id: pytest.approx(c.probability, rel=1e-3) for c in filled.masks[0]} == theirs
    assert filled.words is None
    both = run.model.fill("[MASK] [MASK]", candidates=words)
    assert {token for filling in both.fillings for token in filling.tokens} <= set(words)


def test_candidates_of_several_tokens_by_hand(run: unmask.Run) -> None:
    """Each word's chain of pieces, in a text with as many masks, one forward pass a piece."""
    tokenizer, network = run.model.tokenizer, run.model.network
    words = ["the", "embroidery", "Balomin", "Vurionska", "sea"]
    pieces = {word: tokenizer.encode_corpus([word])[0].input_ids.tolist() for word in words}
    assert len({len(ids) for ids in pieces.values()}) > 1
    before, behind = (
        tokenizer.encode_prompt("The king sees").tolist()[:-1],
        tokenizer.encode_prompt("at sea").tolist()[1:],
    )
    expected = {}
    for word, ids in pieces.items():
        total = 0.0
        for turn, id_ in enumerate(ids):
            row = [*before, *ids[:turn], *[tokenizer.special.mask] * (len(ids) - turn), *behind]
            total += float(log_probabilities(network, row)[len(before) + turn, id_])
        expected[word] = (math.exp(total), total / len(ids))
    filled = run.model.fill("The king sees [MASK] at sea", candidates=words)
    assert filled.words is not None
    found = filled.words[0]
    assert [word.text for word in found] == sorted(expected, key=lambda word: -expected[word][1])
    for word in found:
        assert word.probability == pytest.approx(expected[word.text][0], rel=1e-3)
        assert word.score == pytest.approx(expected[word.text][1], rel=1e-3)
        assert [tokenizer.token(id_) for id_ in pieces[word.text]] == list(word.tokens)
    assert filled.fillings[0].tokens == (found[0].text,)
    assert filled.fillings[0].probability == found[0].probability
    assert "[MASK]" not in filled.fillings[0].text


def test_words_of_two_pieces_are_the_best_of_all(make_model: Callable[..., MaskedLM], tokenizer: Tokenizer) -> None:
    """Against all pairs of a beginning and a continuation, with beams as wide as the vocabulary."""
    model = make_model()
    text, size = "the king [MASK] dog", tokenizer.vocab_size
    ids = tokenizer.encode_prompt(text).tolist()
    place = ids.index(tokenizer.special.mask)
    opened = [*ids[:place], *[tokenizer.special.mask] * 2, *ids[place + 1 :]]
    vocabulary = {id_: tokenizer.token(id_) for id_ in np.flatnonzero(tokenizer.ordinary).tolist()}
    starts = {id_ for id_, token in vocabulary.items() if not token.startswith("##")}
    further = set(vocabulary) - starts
    assert min(len(starts), len(further)) > 20
    first = log_probabilities(model, opened)[place]
    chains = {}
    for begin in (id_ for id_ in starts if vocabulary[id_].isalnum()):  # nothing goes on with a full stop
        second = log_probabilities(model, [*opened[:place], begin, *opened[place + 1 :]])[place + 1]
        chains |= {(begin, end): float(first[begin] + second[end]) for end in further}
    single = log_probabilities(model, ids)[place]
    scores = {(begin,): float(single[begin]) for begin in starts} | {pair: c / 2 for pair, c in chains.items()}
    best = sorted(scores, key=lambda pieces: -scores[pieces])[:5]
    (filled,) = fill_texts(model, tokenizer, [text], FillSettings(top_k=size, max_pieces=2))
    assert filled.words is not None
    assert [word.token_ids for word in filled.words[0][:5]] == best
    assert {len(word.tokens) for word in filled.words[0]} == {1, 2}


@pytest.mark.parametrize("joint", ["beam", "confidence"])
def test_words_at_several_masks_together(make_model: Callable[..., MaskedLM], tokenizer: Tokenizer, joint: str) -> None:
    """Against all pairs of words, each scored by the chain of both."""
    model, words = make_model(), ["king", "Balomin", "sea"]
    pieces = {word: tokenizer.encode_corpus([word])[0].input_ids.tolist() for word in words}
    assert len(pieces["king"]) == 1 < len(pieces["Balomin"])
    mask = tokenizer.special.mask

    def score(before: list[int], word: str, behind: list[int]) -> float:
        ids, total = pieces[word], 0.0
        for turn, id_ in enumerate(ids):
            row = [*before, *ids[:turn], *[mask] * (len(ids) - turn), *behind]
            total += float(log_probabilities(model, row)[len(before) + turn, id_])
        return total / len(ids)

    the, dog = (tokenizer.encode_corpus([word])[0].input_ids.tolist() for word in ("the", "dog"))
    head, tail = [2, *the], [*dog, 3]
    left_first = {
        (a, b): score(head, a, [mask, *tail]) + score([*head, *pieces[a]], b, tail) for a, b in product(words, words)
    }
    settings = FillSettings(top_k=9, candidates=words, joint=joint)  # type: ignore[arg-type]
    (filled,) = fill_texts(model, tokenizer, ["the [MASK] [MASK] dog"], settings)
    if joint == "beam":
        assert [filling.tokens for filling in filled.fillings] == sorted(left_first, key=lambda pair: -left_first[pair])
        return
    left, right = (max(score(head, w, [mask, *tail]) for w in words), max(score([*head, mask], w, tail) for w in words))
    if left >= right:
        a = max(words, key=lambda w: score(head, w, [mask, *tail]))
        expected = (a, max(words, key=lambda w: score([*head, *pieces[a]], w, tail)))
    else:
        b = max(words, key=lambda w: score([*head, mask], w, tail))
        expected = (max(words, key=lambda w: score(head, w, [*pieces[b], *tail])), b)
    assert [filling.tokens for filling in filled.fillings] == [expected]


@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_of_words_by_what_they_spell(family: str) -> None:
    """A word that text has at the least can be found."""
    tokenizer = trained(family)
    pieces = WordPieces.of(tokenizer).spaced
    whole, opening, further = (set(ids.tolist()) for ids in (pieces.whole_A, pieces.opening_A, pieces.further_A))
    assert opening <= whole
    if family != "char":
        assert not whole & further
    found = 0
    for word in ("Balomin", "Constantinople", "king", "Vurionska"):
        begin, *rest = spell(tokenizer, word)
        assert begin in (opening if rest else whole)
        assert set(rest) <= further
        found += len(rest)
    assert found > 3


def spell(tokenizer: Tokenizer, word: str) -> list[int]:
    """The tokens of a word behind another."""
    before = len(tokenizer.encode_corpus(["the"])[0].input_ids)
    ids = tokenizer.encode_corpus([f"the {word}"])[0].input_ids.tolist()[before:]
    return ids[1:] if tokenizer.text(ids[0]) == " " and len(ids) > 1 else ids


@pytest.mark.parametrize("family", FAMILIES)
def test_candidates_are_spelled_as_in_text(family: str) -> None:
    """Behind a space, as most words stand."""
    tokenizer = trained(family)
    given = read_candidates(tokenizer, ["king", " king ", "philosopher"])
    spelled = [tuple(ids) for words in given.spaced.by_length.values() for ids in words.tolist()]
    inside = tokenizer.encode_corpus(["the king philosopher"])[0].input_ids.tolist()
    assert len(spelled) == 2, "the same word once"
    for ids in spelled:
        assert any(tuple(inside[n : n + len(ids)]) == ids for n in range(len(inside)))


def test_candidates_of_a_vocabulary_without_a_space() -> None:
    tokenizer = Tokenizer(train_chars(lambda: ["MKLVA", "AVLK"], bare=True))
    given = read_candidates(tokenizer, ["MK", "A"])
    for spelling in (given.spaced, given.bare):
        lengths = spelling.by_length.values()
        spelled = {tuple(map(tokenizer.token, ids)) for words in lengths for ids in words.tolist()}
        assert spelled == {("M", "K"), ("A",)}
    with pytest.raises(TokenizerError, match="the character 'X' is not in the vocabulary"):
        read_candidates(tokenizer, ["X"])


def test_texts_longer_than_the_model(
    make_model: Callable[..., MaskedLM], tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    """Each mask is seen with as much text around it as the model takes."""
    model = make_model(max_position_embeddings=16)
    text = "the king sees [MASK] at sea and the dog loves the cat in the garden at sea the [MASK] and the ship at sea"
    ids = tokenizer.encode_prompt(text)
    assert len(ids) > 24
    with caplog.at_level(logging.WARNING, logger="unmask"):
        filled, short = fill_texts(model, tokenizer, [text, "the [MASK]"], FillSettings(top_k=2))
    assert "texts longer than the model's 16 tokens: 1; each mask is seen with the text around it" in caplog.text
    for mask, place in zip(filled.masks, np.flatnonzero(ids == tokenizer.special.mask).tolist(), strict=True):
        begin = min(max(place - 7, 1), len(ids) - 1 - 14)
        window = [2, *ids[begin : begin + 14].tolist(), 3]
        found = log_probabilities(model, window)[place - begin + 1].exp()
        assert mask[0].token_id == int(found.argmax())
        assert mask[0].probability == pytest.approx(float(found.max()), rel=1e-3)
    assert len(filled.fillings) == 2
    assert len(short.masks) == 1
    words = fill_texts(model, tokenizer, [text], FillSettings(top_k=2, max_pieces=2))[0].words
    assert words is not None
    assert [len(mask) for mask in words] == [2, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"joint": "both"}, "joint is 'beam' or 'confidence' or 'none', not 'both'"),
        ({"max_pieces": 0}, "max_pieces is a number from 1 to 32, not 0"),
        ({"max_pieces": 2, "candidates": ["a"]}, "candidates have as many pieces as they have; leave max_pieces out"),
        ({"candidates": []}, "candidates: there are none; give a word at the least"),
        ({"candidates": "king"}, "candidates are a list of words; put brackets around a single one"),
        ({"candidates": ["king", " "]}, "candidates: ' ' is no word"),
        ({"candidates": ["中文字"]}, "candidates: the tokenizer has no tokens for '中文字'; leave it out"),
        ({"candidates": ["Balomin " * 20]}, "tokens; at most 32 can be filled in"),
        ({"top_k": 100_000}, "top_k is a number from 1 to"),
    ],
)
def test_mistakes(run: unmask.Run, options: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        run.model.fill("The [MASK].", **options)  # type: ignore[call-overload]


def test_a_list_with_something_else_in_it(run: unmask.Run) -> None:
    with pytest.raises(SettingsError, match="fill takes a text or a list of texts, not int"):
        run.model.fill(["[MASK]", 3])  # type: ignore[list-item]
    with pytest.raises(SettingsError, match=r"there is no \[MASK\] in the text 'The king'"):
        run.model.fill(["[MASK]", "The king"])
