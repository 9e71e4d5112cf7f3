"""Words of raw text, and the loss of hiding them, against cases computed by hand."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from tests.conftest import make_text
from tests.model.helpers import MakeModel
from tests.tokenizer.families import built, numbered, trained
from unmask.data.corpus import Corpus
from unmask.data.data_folder import save_shard, token_rows
from unmask.data.documents import Document
from unmask.data.settings import CorpusSettings
from unmask.data.store import TokenStore
from unmask.measure.questions import Answer, Question, ask
from unmask.measure.text import (
    PASSAGE_TOKENS,
    MeasuredPassages,
    Passage,
    Standing,
    cut,
    hidden,
    kinds_of,
    measure_pseudo,
    measure_tokens,
    measure_words,
    passages_of_store,
    passages_of_text,
    segments,
    share_of_text,
    spaced_words,
    standing_of,
    uniform,
)
from unmask.tokenizer.tokenizer import Tokenizer

TEXT = "Anna, 12 dogs.\nnaïve 東京 x" + "y" * 40


class Guessing:
    """Every token is as likely as any other, whatever the text."""

    def __init__(self, loss: float) -> None:
        self.loss = loss
        self.questions: list[Question] = []

    def __call__(self, questions: Iterable[Question]) -> Iterator[Answer]:
        for question in questions:
            self.questions.append(question)
            count = len(question.places)
            yield Answer(np.full(count, self.loss), np.full(count, 3), question.origin)


def passages(text: str, tokenizer: Tokenizer, folder: Path, max_tokens: int = 10**6) -> list[Passage]:
    (folder / "text.txt").write_text(text, encoding="utf-8")
    corpus = Corpus([folder / "text.txt"], CorpusSettings(), hold_out=False)
    return list(passages_of_text(corpus, tokenizer, share=share_of_text(corpus, max_tokens), labels=[]))


def measured(network: Guessing, tokenizer: Tokenizer, *, length: int = 64, masks: int = 1) -> MeasuredPassages:
    return MeasuredPassages(network, tokenizer, length, masks, lambda _: None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TEXT, ["Anna,", "12", "dogs.", "naïve", "東京", "x" + "y" * 31, "y" * 9]),
        # Without spaces they end at signs and after sixteen characters.
        ("人々はiPhoneを、" + "東" * 17 + "。", ["人々は", "iPhone", "を", "、", "東" * 16, "東", "。"]),
        (" \n", []),
    ],
)
def test_words_by_hand(text: str, expected: list[str]) -> None:
    begin, end, num_bytes = spaced_words(text)
    assert [text[b:e] for b, e in zip(begin, end, strict=True)] == expected
    assert num_bytes.tolist() == [len(word.encode()) for word in expected]


def test_shares_of_tokens_by_hand() -> None:
    """Words `aaaa` and `bé`, tokens `aa`, `aab`, ` `, `é` and an empty one within the first word."""
    begin, end, _ = spaced_words("aaaa bé")
    places = np.array([[0, 2], [2, 6], [4, 5], [6, 7], [1, 1]])
    standing = standing_of("aaaa bé", places[:, 0], places[:, 1], begin, end)
    assert standing.token.tolist() == [0, 1, 1, 3, 4]
    assert standing.word.tolist() == [0, 0, 1, 1, 0]
    assert standing.share.tolist() == pytest.approx([1, 2 / 3, 1 / 3, 1, 1])
    assert standing.num_crossing == 1
    assert standing.share_in(np.array([False, True]), 5).tolist() == pytest.approx([0, 1 / 3, 0, 1, 0])
    assert standing.share_in(np.array([True, True]), 5).tolist() == pytest.approx([1, 1, 0, 1, 1])


def test_masks_are_nested_and_turned_against_each_other() -> None:
    draws = uniform(5, 20_000, 1)
    assert 0 <= draws.min() < 0.01
    assert 0.99 < draws.max() < 1
    few, many = hidden(draws, 0.15, 0, 4), hidden(draws, 0.3, 0, 4)
    assert (few <= many).all()
    masks = np.stack([hidden(draws, 0.25, number, 4) for number in range(4)])
    assert (masks.sum(0) == 1).all(), "four masks of a quarter hide everything once"
    assert few.mean() == pytest.approx(0.15, abs=4 * math.sqrt(0.15 * 0.85 / 20_000))


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "char"])
def test_the_same_words_are_hidden_for_every_tokenizer(kind: str, tmp_path: Path) -> None:
    """And the figure is that of a model that knows nothing: its loss times the pieces, divided by the words' bytes."""
    tokenizer = trained(kind)
    text = make_text(40, seed=3)
    measurable = passages(text, tokenizer, tmp_path)
    network = Guessing(2.0)
    bits = measure_words(measured(network, tokenizer, masks=2), measurable, 0.2)
    expected_bytes = 0
    for passage in measurable:
        for mask in range(2):
            draws = uniform(passage.key, len(passage.word_bytes), 20181011, 2)
            expected_bytes += int(passage.word_bytes[hidden(draws, 0.2, mask, 2)].sum())
    assert bits.denominator == expected_bytes
    pieces = sum(len(question.places) for question in network.questions)
    assert bits.result.value == pytest.approx(2.0 / math.log(2.0) * pieces / expected_bytes)
    # All tokens that cover a part of a chosen word are hidden: no part of it stays visible.
    spelled = sum(int(tokenizer.token_bytes[question.targets].sum()) for question in network.questions)
    assert spelled == pytest.approx(expected_bytes, abs=0)
    assert not any(passage.standing.num_crossing for passage in measurable)
    reference = passages(text, trained("wordpiece"), tmp_path)
    assert [passage.key for passage in measurable] == [passage.key for passage in reference]
    assert [passage.word_bytes.tolist() for passage in measurable] == [p.word_bytes.tolist() for p in reference]
    assert len(measurable) >= 40


def ideographs(num_lines: int) -> list[str]:
    """Lines of 20 to 40 characters without a space, so that each has a word that was cut for its length."""
    rng = random.Random(0)
    characters = [chr(0x4E00 + number) for number in range(60)] + ["は", "の", "タ"]
    return ["".join(rng.choices(characters, k=rng.randint(20, 40))) + "。" for _ in range(num_lines)]


def test_words_of_ideographs_are_hidden_whole_and_paid_for_once(tmp_path: Path) -> None:
    """Two masks at a rate of one half hide every word once, so each token counts once, whatever words it covers."""
    lines = ideographs(60)
    pairs = sorted({(line[15], line[16]) for line in lines})  # tokens that cover two words
    vocab = numbered(*sorted(set("".join(lines))), *map("".join, pairs))
    tokenizer = Tokenizer(tokenizers.Tokenizer(models.BPE(vocab, pairs, unk_token="[UNK]")))
    measurable = passages("\n".join(lines) + "\n", tokenizer, tmp_path)
    network = Guessing(2.0)
    bits = measure_words(measured(network, tokenizer, masks=2), measurable, 0.5)
    expected: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    num_tokens = num_crossing = 0
    for line, passage in zip(lines, measurable, strict=True):
        encoding = tokenizer.backend.encode(line)
        assert passage.input_ids.tolist() == encoding.ids
        num_tokens += len(encoding.ids)
        words = list(zip(*(array.tolist() for array in spaced_words(line)[:2]), strict=True))
        assert words[0] == (0, 16)
        cuts = [first for first, _ in words]
        num_crossing += sum(any(begin < cut < end for cut in cuts) for begin, end in encoding.offsets)
        draws = uniform(passage.key, len(words), 20181011, 2)
        for mask in range(2):
            shown = [word for word, chosen in zip(words, hidden(draws, 0.5, mask, 2), strict=True) if chosen]
            places = tuple(
                place
                for place, (begin, end) in enumerate(encoding.offsets, 1)
                if any(begin < last and first < end for first, last in shown)
            )
            expected[tuple(encoding.ids), places] += bool(places)
    asked = Counter[tuple[tuple[int, ...], tuple[int, ...]]]()
    for question in network.questions:
        ids = question.input_ids.copy()
        ids[question.places] = question.targets
        asked[tuple(ids[1:-1].tolist()), tuple(question.places.tolist())] += 1
    assert asked == +expected, "all tokens that show anything of a hidden word, and no others"
    assert bits.denominator == sum(len(line.encode()) for line in lines)
    assert bits.result.value == pytest.approx(2.0 / math.log(2.0) * num_tokens / bits.denominator)
    assert sum(passage.standing.num_crossing for passage in measurable) == num_crossing
    assert num_crossing > 20
    assert sum(len(question.places) for question in network.questions) > num_tokens


def test_unknown_words_are_paid_for_by_the_byte(tmp_path: Path) -> None:
    """Every word is hidden: `bb` costs 8 bits a byte beside its [UNK]."""
    model = models.WordLevel(numbered("aaa"), unk_token="[UNK]")
    tokenizer = built(model, pre_tokenizer=pre_tokenizers.WhitespaceSplit(), decoder=decoders.WordPiece())
    measurable = passages("aaa bb", tokenizer, tmp_path)
    network = Guessing(math.log(2.0))
    bits = measure_words(measured(network, tokenizer), measurable, 0.999999)
    assert bits.denominator == 5
    assert bits.result.value == pytest.approx((1 + 1 + 2 * 8) / 5)
    kinds = kinds_of(measurable, with_pos=False)
    tokens = measure_tokens(measured(network, tokenizer), measurable, kinds, {}, 0.999999)
    assert tokens.loss.denominator == 1, "unknown tokens are no text to predict"
    assert measure_pseudo(measured(network, tokenizer), measurable, 100).denominator == 1
    assert tokens.accuracy.result.value == 0.0
    assert tokens.accuracy_top5.result.value == 1.0


def test_a_real_model_one_text_at_a_time(
    make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss, accuracy and standard error against a pass for each text, each alone."""
    model = make_model()
    measurable = passages(make_text(12, seed=2), tokenizer, tmp_path)
    monkeypatch.setattr("unmask.train.runner.BATCH_POSITIONS", 300)
    asked: list[Question] = []

    def watched(questions: Iterable[Question]) -> Iterator[Answer]:
        asked.extend(questions)
        return ask(model, asked)

    settings = MeasuredPassages(watched, tokenizer, 64, 2, lambda _: None)
    figures = measure_tokens(settings, measurable, kinds_of(measurable, with_pos=False), {}, 0.3)
    losses, right, among = [], 0, 0
    for question in asked:
        with torch.no_grad():
            logits = model(torch.from_numpy(question.input_ids)[None], positions_N=torch.from_numpy(question.places))
        for line, target in zip(torch.log_softmax(logits.float(), -1), question.targets.tolist(), strict=True):
            losses.append(-float(line[target]))
            likelier = int((line > line[target]).sum())
            right, among = right + (likelier == 0), among + (likelier < 5)
    assert len(losses) > 100
    assert figures.loss.denominator == len(losses)
    assert figures.loss.result.value == pytest.approx(np.mean(losses), rel=1e-4)
    assert figures.accuracy.result.value * len(losses) == pytest.approx(right)
    assert figures.accuracy_top5.result.value * len(losses) == pytest.approx(among)


def test_long_passages_are_cut_and_nothing_is_lost(tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = " ".join(["mountaineer"] * 900)
    measurable = passages(text, tokenizer, tmp_path)
    assert len(measurable) == 6, "166 words each"
    network = Guessing(1.0)
    kinds = kinds_of(measurable, with_pos=False)
    figures = measure_tokens(measured(network, tokenizer, length=20, masks=4), measurable, kinds, {}, 0.25)
    assert figures.loss.denominator == sum(len(passage.input_ids) for passage in measurable)
    assert max(len(question.input_ids) for question in network.questions) <= 20
    for question in network.questions:
        assert question.input_ids[0] == tokenizer.special.cls
        assert (question.input_ids[question.places] == tokenizer.special.mask).all()
    pseudo = measure_pseudo(measured(Guessing(3.0), tokenizer, length=20), measurable, 300)
    assert pseudo.result.value == 3.0
    assert pseudo.denominator == pytest.approx(300, abs=4 * math.sqrt(300))


def test_blocks_join_to_the_text() -> None:
    text = "word " * 1000 + "x" * 4500
    blocks = list(cut(Document(0, 0, text)))
    assert "".join(block.text for block in blocks) == text
    assert max(len(block.text) for block in blocks) == 2000
    assert all(block.text.endswith(" ") for block in blocks[:2])


def test_segments_by_hand() -> None:
    starts = np.array([1, 0, 0, 1, 0, 1, 1], dtype=bool)
    assert list(segments(starts, 7)) == [(0, 7)]
    assert list(segments(starts, 4)) == [(0, 3), (3, 7)]
    assert list(segments(np.zeros(5, dtype=bool), 2)) == [(0, 2), (2, 4), (4, 5)]
    assert list(segments(np.ones(3, dtype=bool), 1)) == [(0, 1), (1, 2), (2, 3)]


def test_a_share_of_the_text_is_taken_everywhere(tokenizer: Tokenizer, tmp_path: Path) -> None:
    text = "\n\n".join(make_text(1, seed=number).strip() for number in range(600))
    whole = passages(text, tokenizer, tmp_path)
    part = passages(text, tokenizer, tmp_path, max_tokens=len(text) // 16)
    assert len(whole) == 600
    assert len(part) == pytest.approx(150, abs=4 * math.sqrt(600 * 0.25 * 0.75))
    assert {passage.key for passage in part} < {passage.key for passage in whole}
    documents = np.array([passage.document for passage in part])
    assert 200 < documents.mean() < 400


@pytest.mark.parametrize("rows", [800, 1])
def test_a_share_of_equal_tokens_is_taken(rows: int, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Of many rows, and of stretches of one row."""
    number = 800
    ids = np.full(number * PASSAGE_TOKENS, tokenizer.vocab_size - 1, dtype=np.uint16)
    size, nothing = len(ids) // rows, np.zeros(rows, dtype=np.int64)
    numbers = {"document": np.arange(rows), "offset": nothing, "num_bytes": nothing}
    lengths = np.full(rows, size, dtype=np.int64)
    save_shard(tmp_path, "a.arrow", [token_rows(ids, np.ones(len(ids), dtype=bool), lengths, numbers)])
    store = TokenStore([tmp_path / "a.arrow"])
    taken = list(passages_of_store(store, tokenizer, share=0.25))
    assert len(taken) == pytest.approx(number / 4, abs=4 * math.sqrt(number * 0.25 * 0.75))


def test_kinds_by_hand() -> None:
    """Words a, bcd (three pieces), a: twice `a`."""

    def made(ids: list[int], starts: list[int]) -> Iterator[Passage]:
        size, nothing = len(ids), np.zeros(len(ids), dtype=np.int64)
        yield Passage(
            0, 0, np.array(ids, dtype=np.int32), np.array(starts, dtype=bool),
            Standing(np.arange(size), nothing, np.ones(size)), np.ones(1, dtype=np.int64), nothing, np.arange(size),
        )  # fmt: skip

    [first], [second] = list(made([7, 8, 9, 9, 7], [1, 1, 0, 0, 1])), list(made([8, 9], [0, 0]))
    kinds, other = kinds_of([first, second], with_pos=True)
    assert kinds["word_frequency"].tolist() == [1, 0, 0, 0, 1]
    assert kinds["word_pieces"].tolist() == [0, 2, 2, 2, 0]
    assert kinds["piece"].tolist() == [0, 0, 1, 1, 0]
    assert kinds["part_of_speech"].tolist() == [-1, 0, 1, 2, 3]
    assert other["word_pieces"].tolist() == [1, 1], "a passage begins with a word, even if it was cut within one"
