"""Candidates and joint fillings, against transformers' pipeline, the chain rule written out, and texts by hand; the
token of a word in the place of a mask, with or without the space before it."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch

import unmask
from tests.model.helpers import MakeModel
from tests.tokenizer.families import FAMILIES, trained, wordpiece
from unmask.core.errors import SettingsError
from unmask.model.encoder import MaskedLM
from unmask.tasks.fill import allowed_tokens, fill_texts, read_masked
from unmask.tokenizer.tokenizer import Tokenizer
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
        for one, other in zip(alone, together, strict=True):
            assert [len(mask) for mask in one.masks] == [len(mask) for mask in other.masks]
            for mine, theirs in zip(sum(one.masks, ()), sum(other.masks, ()), strict=True):
                assert mine.probability == pytest.approx(theirs.probability, rel=1e-3)
            assert one.masks[0][0].token == other.masks[0][0].token
            assert one.fillings[0].tokens == other.fillings[0].tokens
    assert run.model.fill(text for text in TEXTS[:3]) == run.model.fill(TEXTS[:3])
    assert run.model.fill([]) == []


def test_transformers_pipeline_agrees(run: unmask.Run) -> None:
    transformers = pytest.importorskip("transformers")
    pipeline = transformers.pipeline("fill-mask", str(run.folder / "model"))
    theirs = pipeline(TEXTS, top_k=4, batch_size=5)
    compared = 0
    for filled, result in zip(run.model.fill(TEXTS, top_k=4), theirs, strict=True):
        masks = [result] if len(filled.masks) == 1 else result
        for ours, others in zip(filled.masks, masks, strict=True):
            assert [c.probability for c in ours] == pytest.approx([o["score"] for o in others], rel=1e-3)
            assert ours[0].token_id == others[0]["token"]
            assert ours[0].token == run.model.tokenizer.token(ours[0].token_id)
            compared += 1
    assert compared == 18
    words = [word for word in ("king", "queen", "the", "sea") if run.model.tokenizer.backend.token_to_id(word)]
    assert len(words) > 1
    filled = run.model.fill(TEXTS[0], candidates=np.array(words))
    targets = {result["token"]: result["score"] for result in pipeline(TEXTS[0], targets=words)}
    assert {c.token_id: pytest.approx(c.probability, rel=1e-3) for c in filled.masks[0]} == targets
    both = run.model.fill("[MASK] [MASK]", candidates=words)
    assert {token for filling in both.fillings for token in filling.tokens} <= set(words)


def test_joint_fillings_are_the_best_by_the_chain_rule(run: unmask.Run) -> None:
    """Against all pairs, with beams as wide as the vocabulary."""
    model, tokenizer = run.model.network, run.model.tokenizer
    size = tokenizer.vocab_size
    ids = torch.from_numpy(tokenizer.encode_prompt("The king [MASK] [MASK] dog."))
    places = (ids == tokenizer.special.mask).nonzero()[:, 0]
    with torch.no_grad():
        first = torch.softmax(model(ids[None].long(), positions_N=places[:1])[0], -1)
        variants = ids.long().repeat(size, 1)
        variants[:, places[0]] = torch.arange(size)
        second = torch.softmax(model(variants, positions_N=torch.arange(size) * len(ids) + places[1]), -1)
    joint = first[:, None] * second
    best = max(product(range(size), range(size)), key=lambda pair: float(joint[pair]))
    filled = fill_texts(model, tokenizer, ["The king [MASK] [MASK] dog."], top_k=size)[0]
    assert filled.fillings[0].tokens == tuple(tokenizer.token(i) for i in best)
    assert filled.fillings[0].probability == pytest.approx(float(joint[best]), rel=1e-3)


def test_texts_longer_than_the_model(make_model: MakeModel, tokenizer: Tokenizer) -> None:
    """Each mask is predicted with as much text around it as the model takes."""
    model = make_model(max_position_embeddings=16)
    text = "the king sees [MASK] at sea and the dog loves the cat in the garden at sea the [MASK] and the ship at sea"
    ids = tokenizer.encode_prompt(text)
    assert len(ids) > 24
    filled, short = fill_texts(model, tokenizer, [text, "the [MASK]"], top_k=2)
    chances = []
    for mask, place in zip(filled.masks, np.flatnonzero(ids == tokenizer.special.mask).tolist(), strict=True):
        begin = min(max(place - 7, 1), len(ids) - 1 - 14)
        window = [2, *ids[begin : begin + 14].tolist(), 3]
        found = log_probabilities(model, window)[place - begin + 1]
        assert mask[0].token_id == int(found.argmax())
        assert mask[0].probability == pytest.approx(math.exp(found.max()), rel=1e-3)
        chances.append(mask[0].probability)
    assert len(filled.fillings) == 2
    assert filled.fillings[0].probability == pytest.approx(math.prod(chances), rel=1e-3), "neither window sees both"
    assert len(short.masks) == 1


@pytest.mark.parametrize(
    ("text", "options", "names"),
    [
        ("[MASK]", {"top_k": 100_000}, "top_k"),
        ("[MASK]", {"candidates": []}, "candidates"),
        ("[MASK]", {"candidates": "king"}, "candidates"),
        ("[MASK]", {"candidates": ["king", "Balomin"]}, "Balomin"),
        (["[MASK]", 3], {}, "int"),
        (["[MASK]", "The king"], {}, "The king"),
        (["[MASK]", "[MASK] the king \udcff"], {}, r"the text '\[MASK\] the king \\udcff'"),
        ("[MASK]", {"candidates": ["sea", "the king \udcff"]}, r"candidates: 'the king \\udcff'"),
    ],
)
def test_texts_that_cannot_be_filled(run: unmask.Run, text: str, options: dict[str, object], names: str) -> None:
    with pytest.raises(SettingsError, match=names):
        run.model.fill(text, **options)  # type: ignore[call-overload]


def with_tokens(tokenizer: Tokenizer, text: str, *tokens: str) -> str:
    """The text filled with tokens, given as in the vocabulary."""
    ids = [tokenizer.backend.token_to_id(token) for token in tokens]
    assert None not in ids
    return read_masked(tokenizer, [text])[0].filled(tokenizer, ids)


def test_tokens_of_each_family() -> None:
    bpe, wordpiece = trained("bpe"), trained("wordpiece")
    assert with_tokens(bpe, "Zoë: [MASK] ([MASK])", "Ġthe", "the") == "Zoë: the (the)"
    assert with_tokens(bpe, "a [MASK][MASK]", "the", "Ġthe") == "a the the"
    heart = bpe.encode_corpus(["♥"])[0].input_ids.tolist()
    assert len(heart) == 3
    assert with_tokens(bpe, "I [MASK][MASK][MASK] you", *map(bpe.token, heart)) == "I ♥ you"
    assert with_tokens(bpe, "the [MASK] ([MASK]).", "Ġthe", "the") == "the the (the)."
    assert with_tokens(bpe, "the  [MASK]\n[MASK]", "Ġthe", "Ġthe") == "the  the\nthe"
    assert with_tokens(bpe, "[MASK] sees", "Ġthe") == "the sees", "no space where a text begins"
    assert with_tokens(bpe, "New[MASK]", "Ġthe") == "New the"
    half = bpe.token(heart[0])
    assert with_tokens(bpe, "\u4e2d[MASK]!", half) == "\u4e2d\ufffd!"
    assert with_tokens(wordpiece, "([MASK][MASK])", "the", "the") == "(the the)"
    assert (
        with_tokens(wordpiece, "♥ UN[MASK] ([MASK]) [MASK][MASK].", "##t", "the", "the", "the")
        == "♥ UNt (the) the the."
    )
    assert with_tokens(wordpiece, "[MASK][MASK], [MASK]", "the", ".", "[SEP]") == "the., [SEP]"
    assert with_tokens(trained("unigram"), "a [MASK], [MASK]", ".", "▁Balo") == "a ., Balo"
    assert with_tokens(trained("char"), "a[MASK]b [MASK]", " ", "c") == "a b c"


def test_no_space_separates_a_word_from_an_ideograph() -> None:
    """As in the text that has these tokens: WordPiece splits around each ideograph."""
    tokenizer = wordpiece("私", "校", "へ", "5", "は")
    for tokens, text in (
        (("校", "へ"), "私校へ"),
        (("校", "5"), "私校5"),
        (("へ", "校"), "私へ校"),
        (("は", "5"), "私は 5"),
    ):
        assert with_tokens(tokenizer, "私[MASK][MASK]", *tokens) == text
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
