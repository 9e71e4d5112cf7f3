"""Pairs of an embedder: the texts that they come from, how they are drawn and held out, and their loss by hand."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import unmask
from tests.commands.test_embedder import FAST
from tests.model.helpers import MakeModel
from tests.train.helpers import gradients_of_a_step
from unmask.commands import embedder_pairs
from unmask.commands.embedder_pairs import NO_PAIRS, PairDrawer, PairParts, PairStream, pair_data, pair_parts
from unmask.commands.embedder_run import measure
from unmask.commands.embedder_settings import EmbedderSettings
from unmask.commands.embedder_texts import TokenTexts, _with_near_duplicates, paragraphs_of, read_pairs, read_texts
from unmask.core.errors import CorpusError
from unmask.core.hashing import mix_ints, permutation
from unmask.data.rows import Cursor
from unmask.data.settings import CorpusSettings
from unmask.data.survey import fraction
from unmask.masking.masker import Masker, unmasked
from unmask.model.fused import Losses
from unmask.search.known_items import ItemSettings, held_out_rule, read_items
from unmask.tasks.files import example_files
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.contrast import (
    FIRST,
    SECOND,
    SPARSE,
    WRONG,
    TextTargets,
    VectorKind,
    compared,
    contrast_losses,
    dense,
    pair_objective,
)
from unmask.train.objectives import PREDICT_MASKED, Objective
from unmask.train.step import parts_of

NOUNS = ("king", "queen", "dog", "cat", "ship")
LONG = "The king sees the queen in the garden and the dog follows the ship,"
HINDI = "राजा बगीचे में रानी को देखता है और कुत्ता जहाज के पीछे चलता है।"
THAI = "พระราชาเห็นพระราชินีในสวนและสุนัขก็วิ่งตามเรือที่แล่นอยู่ในทะเล"


@pytest.mark.parametrize(
    ("text", "paragraphs"),
    [
        ("He sees the queen.\nThe dog loves.", ["He sees the queen.", "The dog loves."]),
        ("\nHe sees\nthe queen.\n\nThe dog.", ["He sees the queen.", "The dog."]),
        (f"{LONG}\nwhich sails at sea.\nThe end.", [f"{LONG} which sails at sea.", "The end."]),
        (f"{HINDI}\n{THAI}\n{THAI}", [HINDI, THAI, THAI]),
        ("\n \n", []),
    ],
)
def test_paragraphs_of_a_text(text: str, paragraphs: list[str]) -> None:
    assert paragraphs_of(text) == paragraphs


def word(number: int) -> str:
    """A word for a number: near-duplicates are equal but for numbers."""
    return "".join("balominter"[int(digit)] for digit in f"{number:04}")


def read(path: Path, tokenizer: Tokenizer, **settings: Any) -> TokenTexts:
    chosen = CorpusSettings.model_validate(settings)
    return read_texts([path], tokenizer, chosen, note=lambda text: None, notify=lambda progress: None)


@pytest.fixture
def titled(tokenizer: Tokenizer, tmp_path: Path) -> TokenTexts:
    """Sixty documents with a title and five paragraphs, a fifth of them held out."""
    documents = []
    for n, noun in itertools.product(range(12), NOUNS):
        title = f"the {noun} {word(n)}"
        documents.append("\n".join([title, *(f"{title} sees the {other} in the garden." for other in NOUNS)]))
    (tmp_path / "titled.txt").write_text("\n\n".join(documents))
    return read(tmp_path / "titled.txt", tokenizer, documents="block", holdout=0.2)


SHORT = EmbedderSettings(first_lengths=(2, 5), second_lengths=(3, 9), part_tokens=16, batch_size=4)


def test_what_is_drawn(titled: TokenTexts) -> None:
    parts = pair_parts(titled, SHORT, held=False)
    assert parts.can.all(), "crops, titles and neighbours"
    drawer = PairDrawer(titled.ids, titled.word_starts, parts, SHORT)
    chosen = np.arange(len(parts))
    lengths = []
    for epoch in range(20):
        drawn = drawer.draw(chosen, epoch, kind=0)
        begin, end = drawn.begin[:2], drawn.begin[:2] + drawn.length[:2]
        assert ((parts.begin <= begin) & (begin < end) & (end <= parts.end)).all()
        assert titled.word_starts[begin].mean() > 0.8, "all but those within a word"
        assert not ((end[0] <= begin[1]) | (end[1] <= begin[0])).all(), "crops may overlap"
        lengths.append(drawn.length[0])
    assert drawn.length[0].max() <= 5
    assert 2.0 < np.mean(lengths) < 4.0
    by_title = drawer.draw(chosen, 1, kind=1)
    assert (by_title.begin[0] == parts.title_begin).all()
    assert (by_title.begin[1] >= parts.begin).all()
    neighbours = drawer.draw(chosen, 1, kind=2)
    assert (neighbours.begin[0] + neighbours.length[0] == neighbours.begin[1]).all()
    assert np.isin(neighbours.begin[1], titled.paragraph).all()
    assert 2 <= neighbours.length[:2].min() <= neighbours.length[:2].max() <= 9
    mixed = drawer.draw(chosen, 7)
    assert 0 < (mixed.begin[0] == parts.title_begin).mean() < 1
    again = drawer.draw(chosen[5:9], 7)
    assert again.begin.tolist() == mixed.begin[:, 5:9].tolist(), "a function of the part and the key"


def test_an_epoch_has_each_part_once(tokenizer: Tokenizer, titled: TokenTexts, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pairs are shuffled once an epoch, not in each step."""
    monkeypatch.setattr(embedder_pairs, "permutation", shuffled := Mock(wraps=permutation))
    stream = pair_data(titled, None, tokenizer, SHORT, max_positions=64, note=lambda text: None).stream
    cursor, seen = Cursor(), []
    shuffled.reset_mock()
    while cursor.epoch == 0:
        batch = stream.batch(cursor, 1)
        pairs = batch.rows.classes["pair"][batch.rows.classes["side"] == 0]
        assert 3 <= len(pairs) <= 4
        seen += batch.rows.classes["document"][batch.rows.classes["side"] == 0].tolist()
        cursor = batch.cursor
    assert sorted(seen) == sorted(stream.drawer.parts.key.tolist())
    assert shuffled.call_count == 1
    assert not set(seen) & set(np.unique(titled.cluster[titled.held == 1]).tolist())


def test_titles_are_first_lines_that_no_other_document_has(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for kind, own in (("titles", "the ship {}"), ("licences", "the king")):
        for n in range(40):
            body = "\n\n".join(f"the {word(n)} sees the {word(7 * n + m)} at sea." for m in range(5))
            (tmp_path / kind / "a").mkdir(parents=True, exist_ok=True)
            (tmp_path / kind / f"{n}.py").write_text(f"{own.format(word(n))}\n{body}\n")
        (tmp_path / kind / "a" / "0.py").write_bytes((tmp_path / kind / "0.py").read_bytes())
    assert read(tmp_path / "titles", tokenizer, documents="file", holdout=0.2).titled.all(), "also of a copy"
    assert not read(tmp_path / "licences", tokenizer, documents="file", holdout=0.2).titled.any()


def test_only_the_beginning_of_a_document_has_a_title(tokenizer: Tokenizer, tmp_path: Path) -> None:
    book = "\n".join(f"the {word(n)} and the {word(n + 2000)}" for n in range(2000))
    (tmp_path / "book.txt").write_text(book)
    texts = read(tmp_path / "book.txt", tokenizer, documents="file")
    assert texts.held.sum() > 0, "in parts"
    assert not texts.titled.any(), "which begin with any line"


def test_given_pairs(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text(
        "question,passage,label\na king,the king,1\na king,the dog,0\na dog,the dog,0.5\nx,,1\na cat,the,0\n"
    )
    notes: list[str] = []
    table = read_pairs(example_files(file), {}, notes.append)
    assert table == (["a king", "a dog"], ["the king", "the dog", "the dog", ""])
    stream = pair_data(None, table, tokenizer, SHORT, max_positions=64, note=notes.append).stream
    assert len(stream.own) == 2
    assert "pairs: 2, with 1 wrong answers" in notes
    sides = stream.batch(Cursor(), 1).rows.classes["side"]
    assert [int((sides == side).sum()) for side in (0, 1, 2)] == [2, 2, 1]


def test_wrong_answers_of_a_pair_take_turns(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Epoch by epoch; the pair counts once, whatever the number of its wrong answers."""
    rows = [{"query": "a king", "pos": ["the king"], "neg": ["the dog", "the ship", "the cat"]},
            {"query": "a dog", "pos": ["dogs", "the dogs"], "neg": []}]  # fmt: skip
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    notes: list[str] = []
    pairs = read_pairs(example_files(tmp_path / "p.jsonl"), {}, notes.append)
    data = pair_data(None, pairs, tokenizer, SHORT, max_positions=64, note=notes.append)
    assert "pairs: 3, with 3 wrong answers" in notes
    assert (data.stream.size, data.facts["given_pairs"]) == (3, 3)
    seen = []
    for epoch in range(4):
        rows_of = data.stream.batch(Cursor(epoch), 1).rows
        (at,) = (rows_of.classes["side"].view(-1) == 2).nonzero()
        ids = rows_of.input_ids.view(-1)[at[0] + 1 :].tolist()
        seen.append(tokenizer.backend.decode(ids[: ids.index(tokenizer.special.sep)]))
    assert seen == ["the dog", "the ship", "the cat", "the dog"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.jsonl", '{"frage": "a b", "antwort": "c d", "quelle": "e f"}\n', "embedder.columns.query"),
        ("p.jsonl", '{"query": "a", "pos": [7, 8], "neg": [9]}\n', "columns are query, pos, neg"),
        ("p.txt", "one line", "p.txt"),
        ("p.csv", "query,label\na,1\n", "text"),
        ("p.csv", "query,text,class\na,b,neutral\n", "row 2 .* 'neutral' in column 'class'"),
        ("p.csv", "query,text,label\na,b,0\n", "no row"),
        ("p.csv", "premise,hypothesis,label\na,b,0\na,c,2\n", "row 3 .* '2' in column 'label'"),
        ("p.csv", "sentence1,sentence2,score\na,b,0.5\nc,d,4.2\n", "row 3 .* '4.2' in column 'score'"),
        ("p.jsonl", '{"query": "a", "text": 7}\n', "row 1 has 7 in column 'text'"),
    ],
)
def test_bad_pairs(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(CorpusError, match=message):
        read_pairs(example_files(tmp_path / name), {"label": "class"} if "class" in content else {}, print)


@pytest.mark.parametrize(
    ("content", "columns", "count", "said"),
    [
        ("query,text,has_image\na,b,0\nc,d,1\n", {}, 2, "if column 'has_image' says which do"),
        ("question1,question2,is_duplicate\na,b,0\na,d,1\n", {}, 1, "label in 'is_duplicate'"),
        ("the king,his crown,1\nthe king,a dog,0\na dog,its bone,1\n", {}, 2, "label in '2'"),
        ("Is water wet?,true,false\nIs ice hot?,false,true\nIs it warm?,true,false\n", {}, 3, ""),
        ("question,answer\nA?,true\nB?,false\n", {}, 2, ""),
        ("__index_level_0__,question,antwort\nx,a,b\ny,c,d\n", {}, 2, "text in 'antwort'"),
        ("query,text,label\na,b,0\nc,d,1\n", {"label": ""}, 2, ""),
        ("query,text,label\na,b,1\nc,d,\ne,f,NaN\n", {}, 1, "left out: 2 rows"),
    ],
)
def test_labels_are_found_by_name(content: str, columns: dict[str, str], count: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(content)
    notes: list[str] = []
    assert len(read_pairs(example_files(tmp_path / "p.csv"), columns, notes.append)[0]) == count
    assert said in "\n".join(notes)


def test_pairs_beside_documents_are_held_out_with_them(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A text that occurs in pairs and as a document has one key and falls on one side; so do wrong answers."""
    stories = [f"the {word(n)} sees the {word(n + 300)} and the {word(n + 600)} at sea" for n in range(200)]
    (tmp_path / "t.txt").write_text("\n".join(stories))
    (tmp_path / "p.csv").write_text("query,text,negative\n" + "".join(
        f"{text[:9]},{text.upper()},{other}\n" for text, other in zip(stories, stories[1:] + stories[:1], strict=True)
    ))  # fmt: skip
    pairs, notes = read_pairs(example_files(tmp_path / "p.csv"), {}, print), list[str]()
    texts = read(tmp_path / "t.txt", tokenizer)
    data = pair_data(texts, pairs, tokenizer, SHORT, max_positions=64, note=notes.append)
    held = set(texts.cluster[texts.held == 1].tolist())
    own, held_given = data.stream.own, data.held["given"]
    assert 2 < len(held_given) == len(held) < 30
    assert set(held_given.document[1].tolist()) == held
    assert not set(own.document[1].tolist()) & held
    has_wrong = own.length[2] > 0
    assert not set(own.document[2, has_wrong].tolist()) & held
    assert f"pairs: left out: {int((~has_wrong).sum()):,} wrong answers that are held-out documents" in notes
    assert set(own.document[1].tolist()) <= set(texts.cluster.tolist())


SYLLABLES = ["king", "queen", "dog", "cat", "ship", "winter", "garden", "sea", "bridge"]
FEW_STEPS = FAST | {"embedder.mlm_weight": 0}


def story(number: int) -> str:
    """One line; stories have few triples of words in common."""
    return " ".join(random.Random(number).choices(SYLLABLES, k=40))


def check(folder: Path, corpus: Path) -> None:
    """Documents that an evaluation queries for are held out of training, by the rule of the folder."""
    tokenizer = load_tokenizer(folder / "model")
    documents, described, _ = read_items([corpus], folder / "model", ItemSettings())
    assert f"(by the rule of {folder}: " in described[0]
    chosen = {tuple(tokenizer.encode_joined([" ".join(each.text.split())])[0].input_ids) for each in documents}
    texts = TokenTexts.load(folder / "texts.safetensors")
    sides: tuple[set[tuple[int, ...]], set[tuple[int, ...]]] = (set(), set())
    for begin, end, is_held in zip(texts.begins, texts.ends, texts.held, strict=True):
        sides[is_held].add(tuple(texts.ids[begin:end].tolist()))
    trained, held = sides
    assert 1 < len(chosen) <= len(held) < len(trained)
    assert chosen <= held
    assert not chosen & trained


def test_from_a_run_to_a_table_with_titles_and_on(corpus_file: Path, tmp_path: Path) -> None:
    """The run's rule applies to its embedder, and to an embedder that starts from that; other titles change nothing."""
    settings = (
        "model.num_layers=1", "model.hidden_size=32", "model.num_heads=2", "training.batch_tokens=256",
        "tokenizer.vocab_size=200", "corpus.holdout=0.3",
    )  # fmt: skip
    run = unmask.pretrain([corpus_file], out=tmp_path / "run", steps=1, settings=settings).folder
    table = tmp_path / "t.jsonl"
    rows = [{"title": f"the {SYLLABLES[n % 9]}", "text": story(n)} for n in range(150)]
    rows += [{"title": "again", "text": story(n)} for n in range(40)]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first = unmask.embedder(run / "model", [table], out=tmp_path / "a", steps=1, settings=FEW_STEPS)
    check(first.folder, table)
    maker, rule = held_out_rule(first.folder / "model")
    assert (maker, rule.holdout) == (first.folder, 0.3)
    texts = TokenTexts.load(first.folder / "texts.safetensors")
    held = [fraction(row["text"]) < 0.3 for row in rows]
    assert texts.held.astype(bool).tolist() == held
    assert texts.titled.all()
    second = unmask.embedder(first.folder / "model", [table], out=tmp_path / "b", steps=1, settings=FEW_STEPS)
    check(second.folder, table)
    assert held_out_rule(second.folder / "model") == (second.folder, rule)
    chosen = FEW_STEPS | {"embedder.holdout": 0.1}
    third = unmask.embedder(run / "model", [table], out=tmp_path / "c", steps=1, settings=chosen)
    assert held_out_rule(third.folder / "model")[1].holdout == 0.1, "unless another share is asked for"


def test_near_duplicates_of_what_is_held_out_are_not_trained_on(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "t.txt"
    stories = [f"{story(n)} {story(n + 1000)} {story(n + 2000)}" for n in range(200)]
    file.write_text("\n".join([*stories, *(f"{text} ship" for text in stories)]) + "\n")
    notes: list[str] = []
    texts = read_texts([file], tokenizer, CorpusSettings(holdout=0.1), note=notes.append, notify=lambda progress: None)
    either = [fraction(a) < 0.1 or fraction(f"{a} ship") < 0.1 for a in stories]
    assert texts.held.astype(bool).tolist() == either * 2
    assert any("near-duplicates of held-out ones, and held out with them" in note for note in notes)


def test_near_duplicates_are_trained_on_if_hardly_anything_else_is_left() -> None:
    rule = np.array([True, False, False, True])
    held, near = _with_near_duplicates(rule, np.array([0, 0, 1, 1]))
    assert held.tolist() == rule.tolist()
    assert "too many to hold out" in near
    with pytest.raises(CorpusError, match="nothing to train on"):
        _with_near_duplicates(np.ones(5, dtype=np.bool_), np.arange(5))


# ----------------------------------------
# The loss of pairs, which answers it leaves out, and gradients through vectors.

NOTHING = torch.zeros(0, dtype=torch.int64)


def texts(pairs: list[int], sides: list[int], documents: list[int], hashes: list[int]) -> TextTargets:
    return TextTargets(NOTHING, torch.tensor([pairs, sides, documents, hashes]).T, num_pairs=sides.count(FIRST))


def entropy(right: float, *others: float) -> float:
    return -math.log(math.exp(right) / sum(math.exp(score) for score in (right, *others)))


def angle(*degrees: float) -> torch.Tensor:
    """Vectors of unequal lengths."""
    turned = torch.tensor(degrees) * math.pi / 180
    return torch.stack([turned.cos(), turned.sin()], 1) * torch.arange(1, len(degrees) + 1)[:, None]


def score(one: float, other: float) -> float:
    return math.cos((one - other) * math.pi / 180) / 0.5


def test_the_loss_by_hand_with_what_is_left_out() -> None:
    """Pairs a, b, c; b and c are of one document; w is given as a wrong answer."""
    a1, a2, b1, b2, c1, c2, w = 0.0, 20.0, 90.0, 80.0, 200.0, 170.0, 10.0
    # In an order that is no order of sides or pairs.
    vectors = angle(b2, a1, w, c1, a2, b1, c2)
    actual = contrast_losses(
        vectors,
        texts([1, 0, 0, 2, 0, 1, 2], [SECOND, FIRST, WRONG, FIRST, SECOND, FIRST, SECOND],
              [7, 5, 9, 7, 5, 7, 7], [11, 12, 13, 14, 15, 16, 17]),
        temperature=0.5,
    )  # fmt: skip
    forth = [
        entropy(score(a1, a2), score(a1, b2), score(a1, c2), score(a1, w)),
        entropy(score(b1, b2), score(b1, a2), score(b1, w)),
        entropy(score(c1, c2), score(c1, a2), score(c1, w)),
    ]
    back = [
        entropy(score(a1, a2), score(a2, b1), score(a2, c1)),
        entropy(score(b1, b2), score(b2, a1)),
        entropy(score(c1, c2), score(c2, a1)),
    ]
    expected = [(one + other) / 2 for one, other in zip(forth, back, strict=True)]
    np.testing.assert_allclose(actual.each_N, expected, atol=1e-6)
    assert float(actual.total) == pytest.approx(sum(expected), abs=1e-5)
    assert actual.wrong_N.tolist() == [True, False, False], "w is nearer to a than its partner"


def test_what_another_pair_says_is_right_is_no_wrong_answer() -> None:
    """(q, A), (q, B), (r, B), (s, q), of different documents: B is right for q in any pair, and so are q and r for B. q
    is right only for s, but no wrong answer to itself."""
    q, r, s, a, b = range(5)
    of = texts([*range(4), *range(4), 3], [FIRST] * 4 + [SECOND] * 4 + [WRONG], [1, 2, 4, 3, 1, 2, 4, 3, 5],
               [q, q, r, s, a, b, b, q, b])  # fmt: skip
    first, others, barred = compared(of)
    no, yes = False, True
    assert (first.tolist(), others.tolist()) == ([0, 1, 2, 3], [4, 5, 6, 7, 8])
    assert barred.tolist() == [
        [no, yes, yes, yes, yes], [yes, no, yes, yes, yes], [no, yes, no, no, yes], [no, no, no, no, no],
    ]  # fmt: skip


def test_beginnings_of_vectors_are_learned_too() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(6, 8, generator=generator)
    of = texts([0, 1, 2, 0, 1, 2], [FIRST] * 3 + [SECOND] * 3, [1, 2, 3] * 2, list(range(6)))
    whole, *some = (contrast_losses(vectors[:, :size], of, temperature=0.1).each_N for size in (8, 4, 2))
    actual = contrast_losses(vectors, of, temperature=0.1, dimensions=(4, 2)).each_N
    np.testing.assert_allclose(actual, (whole + some[0] + some[1]) / 3, atol=1e-6)


def test_the_loss_of_sparse_vectors_is_that_of_products_and_the_regulariser() -> None:
    """After a sixth of the training, for two pairs and a wrong answer."""
    vectors = torch.tensor([[1.0, 0.0], [2.0, 0.5], [0.0, 1.0], [0.5, 3.0], [1.0, 1.0]])
    of = texts([0, 0, 1, 1, 1], [0, 1, 0, 1, 2], [0, 0, 1, 1, 2], [0, 1, 2, 3, 4])
    objective = pair_objective(SPARSE, temperature=2.0, sparse_weights=(0.1, 0.01), progress=lambda: 1 / 6)
    actual = objective.losses.losses(vectors, of.columns_EK, of.num_pairs)
    # Halves of products: first texts (1, 0) and (0, 1) with (2, 0.5), (0.5, 3) and (1, 1).
    pairs = [(entropy(1, 0.25, 0.5) + entropy(1, 0.25)) / 2, (entropy(1.5, 0.25, 0.5) + entropy(1.5, 0.25)) / 2]
    assert actual.each_N.tolist() == pytest.approx(pairs, abs=1e-6)
    first, second = 0.5**2 + 0.5**2, (3.5 / 3) ** 2 + (4.5 / 3) ** 2
    assert float(actual.total) == pytest.approx(sum(pairs) + 2 * 0.25 * (0.1 * first + 0.01 * second), abs=1e-6)
    assert contrast_losses(vectors, of, temperature=2.0).each_N.tolist() != pytest.approx(pairs, abs=1e-2)


def stream_of(tokenizer: Tokenizer, settings: EmbedderSettings, *, num_texts: int = 24) -> PairStream:
    """Parts of 30 random tokens."""
    generator = np.random.default_rng(0)
    ordinary = np.flatnonzero(tokenizer.ordinary)
    ids = generator.choice(ordinary, size=30 * num_texts).astype(np.int32)
    begin = np.arange(num_texts, dtype=np.int64) * 30
    can = np.tile(np.array([True, False, False]), (num_texts, 1))
    parts = PairParts(begin, begin + 30, begin, begin, begin + 1000, can, begin * 0, begin * 0, begin[:0])
    drawer = PairDrawer(ids, np.ones(len(ids), dtype=np.uint8), parts, settings)
    return PairStream(drawer, NO_PAIRS, tokenizer, max_positions=64)


SETTINGS = EmbedderSettings(batch_size=24, first_lengths=(4, 12), second_lengths=(8, 20))


def test_the_reported_loss_is_without_the_regulariser(make_model: MakeModel, tokenizer: Tokenizer) -> None:
    stream = stream_of(tokenizer, SETTINGS)
    rows, _ = stream.rows(stream.drawer.draw(np.arange(24), 3))
    both = (pair_objective(SPARSE, temperature=5.0, sparse_weights=each) for each in (None, (1.0, 1.0)))
    plain, costly = (gradients_of_a_step(make_model(), rows, unmasked(rows), each) for each in both)
    assert plain[0].read().loss == costly[0].read().loss
    assert any(not torch.equal(plain[1][name], costly[1][name]) for name in plain[1])


@pytest.mark.parametrize(("each", "unit", "recall"), [(0.0, False, 0.0), (1.0, False, 1.0), (1.0, True, 1.0)])
def test_equal_vectors_are_not_found_first(
    make_model: MakeModel, tokenizer: Tokenizer, each: float, unit: bool, recall: float
) -> None:
    """No text is first among equals, or found at all without a common token."""
    stream, equal = stream_of(tokenizer, SETTINGS), lambda _, __, lengths: torch.full((len(lengths), 1), each)
    held = {"crops": stream.drawer.draw(np.arange(5), 3)}
    crops = measure(make_model(), stream, held, VectorKind(equal, unit=unit), 1.0, None)["kinds"]["crops"]
    assert (crops["recall_at_1"], crops["recall_at_10"]) == (0.0, recall)


def at_once(pairs: Objective) -> Objective:
    """The same objective, its losses computed from the hidden states of a single part."""
    joint: Any = pairs.losses

    def losses(model: Any, hidden_TD: torch.Tensor, targets: TextTargets, _: object) -> Losses:
        return joint.losses(joint.vectors(model, hidden_TD, targets), targets.columns_EK, targets.num_pairs)

    return replace(pairs, losses=losses)


def test_gradients_by_way_of_vectors_are_those_of_all_at_once(make_model: MakeModel, tokenizer: Tokenizer) -> None:
    """With masked tokens beside the pairs, and wrong answers."""
    stream = stream_of(tokenizer, SETTINGS)
    drawn = stream.drawer.draw(np.arange(24), 3)
    drawn.begin[WRONG, 10:15], drawn.length[WRONG, 10:15] = drawn.begin[SECOND, :5] + 1, drawn.length[SECOND, :5]
    drawn.document[WRONG, 10:15] = drawn.document[SECOND, :5]
    rows, _ = stream.rows(drawn)
    masked = Masker.from_tokenizer(tokenizer, rate=0.3)(rows)
    pairs = pair_objective(dense(), temperature=0.1, dimensions=(8,))
    objectives = (pairs, replace(PREDICT_MASKED, weight=0.2))
    figures, expected = gradients_of_a_step(make_model(), rows, masked, at_once(pairs), objectives[1])
    assert (figures.predicted_tokens, figures.micro_batches) == (24, 1)
    for micro_rows in (None, 2, 1):
        result, gradients = gradients_of_a_step(make_model(), rows, masked, *objectives, micro_rows=micro_rows)
        assert (result.micro_batches == 1) == (micro_rows is None)
        assert result.read().loss == pytest.approx(figures.read().loss, abs=1e-6)
        masked_tokens = (each.read().objectives["masked_tokens"].loss for each in (result, figures))
        assert next(masked_tokens) == pytest.approx(next(masked_tokens), abs=1e-6)
        assert gradients.keys() == expected.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-4)


def test_a_step_that_runs_out_of_memory_still_compares_all_its_texts(
    make_model: MakeModel, tokenizer: Tokenizer
) -> None:
    """In the backward pass of its only part."""
    stream, pairs, failures = stream_of(tokenizer, SETTINGS), pair_objective(dense(), temperature=0.1), [MemoryError()]
    rows, _ = stream.rows(stream.drawer.draw(np.arange(24), 3))

    def fail(gradient: torch.Tensor) -> None:
        if failures:
            raise failures.pop()

    model = make_model()
    model.encoder.tokens.register_hook(fail)
    result, gradients = gradients_of_a_step(model, rows, unmasked(rows), pairs)
    _, expected = gradients_of_a_step(make_model(), rows, unmasked(rows), at_once(pairs))
    assert result.micro_batches == 2
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-4)


def test_both_passes_of_a_part_drop_the_same(make_model: MakeModel, tokenizer: Tokenizer) -> None:
    stream = stream_of(tokenizer, SETTINGS)
    rows, _ = stream.rows(stream.drawer.draw(np.arange(24), 3))
    objective = pair_objective(dense(), temperature=0.1)
    model = make_model(dropout=0.2)
    result, gradients = gradients_of_a_step(model, rows, unmasked(rows), objective, micro_rows=2, seed=5)
    model = make_model(dropout=0.2).train()
    parts = parts_of(rows, unmasked(rows), (objective,), micro_rows=2, device=torch.device("cpu"), width=32)
    step_seed = mix_ints(5, 1, 3)
    vectors = [
        dense().vectors(
            model,
            model.encoder(part.input_ids_BS, **part.inputs, dropout_seed=mix_ints(step_seed, number)).flatten(0, 1),
            part.targets[0],
        )
        for number, part in enumerate(parts)
    ]
    assert result.micro_batches == len(parts) > 1
    loss = contrast_losses(
        torch.cat(vectors), TextTargets.joined([part.targets[0] for part in parts]), temperature=0.1
    ).total / 24  # fmt: skip
    loss.backward()
    assert result.read().loss == pytest.approx(loss.item(), abs=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, model.get_parameter(name).grad, atol=1e-5, rtol=1e-4)


def test_rows_tell_what_their_texts_are(tokenizer: Tokenizer) -> None:
    """Every text is in the rows once, whole; tokens are hidden only in second texts."""
    stream = stream_of(tokenizer, SETTINGS)
    drawer = stream.drawer
    drawn = drawer.draw(np.arange(24), 3)
    rows, num_tokens = stream.rows(drawn)
    targets = TextTargets.of(rows)
    assert num_tokens == int(drawn.length.sum())
    pairs, sides, documents, _ = targets.columns_EK.T.tolist()
    assert sorted(zip(pairs, sides, strict=True)) == [(pair, side) for pair in range(24) for side in (FIRST, SECOND)]
    ids = rows.input_ids.flatten()[targets.positions_N].split(list(targets.lengths))
    for text, pair, side, document in zip(ids, pairs, sides, documents, strict=True):
        begin, length = drawn.begin[side, pair], drawn.length[side, pair]
        assert text.tolist() == [tokenizer.special.cls, *drawer.ids[begin : begin + length], tokenizer.special.sep]
        assert document == drawn.document[side, pair]
    hidden = rows.maskable.flatten()[targets.positions_N].split(list(targets.lengths))
    assert [int(text.sum()) for text in hidden] == [
        0 if side == FIRST else int(drawn.length[side, pair]) for pair, side in zip(pairs, sides, strict=True)
    ]
