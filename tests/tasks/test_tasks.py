"""Records as inputs: nothing is lost or cut in silence; packed equals alone; answers by trying every span; figures of
any number of labels by hand."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tests.model.helpers import LAYOUTS, MakeModel
from tests.tokenizer.families import wordpiece
from unmask.core.errors import CorpusError, SettingsError
from unmask.masking.masker import unmasked
from unmask.model.encoder import MaskedLM
from unmask.model.folder import with_task_head
from unmask.tasks import inputs
from unmask.tasks.answer import BEGIN, END, AnswerPrediction, AnswerSpan, AnswerTask, QuestionRecord
from unmask.tasks.classify import Classify, LabelsPrediction, MultiLabel, Pairs, Regress, TextRecord
from unmask.tasks.inputs import Example, InputEncoder, first_pieces, pack_examples
from unmask.tasks.tag import Tag, WordsRecord
from unmask.tasks.task import Task, outputs_of
from unmask.tokenizer.tokenizer import Tokenizer, UnknownText
from unmask.train.runner import Sharing, in_rows
from unmask.train.trainer import with_empty_rows

TEXTS = [
    "The king loves the queen.",
    "A ship.",
    "In the garden the philosopher remembers the winter in Constantinople.",
]
SENTENCE = ("The", "mountaineer", "photographs", "Constantinople", ".")
HELD = ("label 00", "label 61", "label 62", "label 69")
ONES = (1.0, 1.0, 1.0)


@pytest.fixture
def encoder(make_model: MakeModel, tokenizer: Tokenizer) -> InputEncoder:
    return InputEncoder(tokenizer, make_model(layout="bert").config)


def examples_of(info: Task, encoder: InputEncoder) -> list[Example]:
    if info.kind == "tag":
        records = [WordsRecord(1, SENTENCE, ("O", "B-x", "O", "B-x", "O")), WordsRecord(2, ("Winter",), ("O",))]
        return info.encode(records, encoder, with_targets=True).examples
    if info.kind == "answer":
        found = [
            QuestionRecord(n, str(n), "Who?", t, (AnswerSpan(t.split()[1], t.index(t.split()[1])),))
            for n, t in enumerate(TEXTS)
        ]
        return info.encode(found, encoder, with_targets=True).examples
    label = {"regress": 0.5, "multi_label": HELD}.get(info.kind, info.names[-1])
    texts = [TextRecord(n, text, "other" if info.paired else None, label) for n, text in enumerate(TEXTS)]
    return info.encode(texts, encoder, with_targets=True).examples


def naive_loss(info: Task, example: Example, logits: torch.Tensor, weights: Sequence[float] = ONES) -> float:
    """From the outputs for a text, [C], or for each of its tokens, [S, C]."""
    if info.kind == "regress":
        return float((logits[0] - 0.5) ** 2)
    if info.kind == "multi_label":
        held, shares = torch.tensor([name in HELD for name in info.names]), torch.sigmoid(logits)
        return -float(torch.where(held, shares, 1 - shares).log().mean())
    if info.kind == "answer":
        shares = logits.log_softmax(0)
        return -float(shares[example.targets[BEGIN][0], 0] + shares[example.targets[END][0], 1]) / 2
    shares, targets = logits.log_softmax(-1), example.targets["target"].tolist()
    rows = shares[torch.from_numpy(example.places).long()] if info.kind == "tag" else shares[None]
    return -sum(weights[target] * float(row[target]) for row, target in zip(rows, targets, strict=True))


INFOS = [
    Classify(("a", "b", "c"), columns={"text": "what", "label": "kind"}),
    Pairs(("a", "b"), paired=True),
    Regress(("x",)),
    Tag(("B-x", "O")),
    AnswerTask(stride=48, longest_answer=9),
    Classify(("a", "b", "c"), pooling="mean"),
    Regress(("x",), pooling="mean"),
    MultiLabel(tuple(f"label {n:02}" for n in range(70)), pooling="mean"),
]


@pytest.mark.parametrize("at_once", [1, 2, 256])
def test_unknown_letters_of_records(
    encoder: InputEncoder, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """3 + 3 + 5 letters, 8 and 3 in the second text; a long sentence in several parts counts once. Few are joined at
    once, since that copies them."""
    monkeypatch.setattr(inputs, "_AT_ONCE", at_once)
    counted, unknown_in = list[int](), tokenizer.unknown_in

    def watched(texts: list[str], *tokens: Any) -> UnknownText:
        counted.append(len(texts))
        return unknown_in(texts, *tokens)

    monkeypatch.setattr(tokenizer, "unknown_in", watched)
    texts = [TextRecord(0, "The ЖЖЖ king.", None, "a"), TextRecord(1, "The ship.", "ЖaЖ", "b")]
    encoded = Pairs(("a", "b"), paired=True).encode(texts, encoder, with_targets=True)
    unknown = encoded.unknown_in(texts, tokenizer)
    assert (unknown.letters, unknown.unknown, set(unknown.examples)) == (22, 6, {"ЖЖЖ", "ЖaЖ"})
    sentence = WordsRecord(1, ("Ж", *("mountaineer",) * 90), ("O",) * 91)
    encoded = Tag(("O",)).encode([sentence] * 3, encoder, with_targets=True)
    assert len(encoded.examples) > 3
    assert encoded.unknown_in([sentence] * 3, tokenizer) == UnknownText(3 * (1 + 90 * 11), 3, ("Ж",))
    assert (max(counted), sum(counted)) == (min(at_once, 3), 5)


def loss_of(
    model: MaskedLM, info: Task, examples: list[Example], weights: list[float] | None = None
) -> tuple[float, float]:
    """The sum of losses of packed examples, and the weight of their targets."""
    rows = with_empty_rows(pack_examples(examples, pad_id=0, max_length=64), 4, pad_id=0)  # as of several processes
    assert rows.shape[1] == 64, "no longer than the model"
    hidden = model.encoder(
        rows.input_ids, segment_ids_BS=rows.segment_ids, position_ids_BS=rows.position_ids,
        token_type_ids_BS=rows.token_type_ids,
    )  # fmt: skip
    objective = info.objective(weights)
    targets = objective.targets(rows, unmasked(rows))
    return objective.losses(model, hidden.flatten(0, 1), targets, None).total.item(), targets.total


@pytest.mark.parametrize("info", INFOS, ids=lambda info: f"{info.kind}-{info.pooling}")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_equals_alone(make_model: MakeModel, tokenizer: Tokenizer, layout: str, info: Task) -> None:
    """Outputs and loss of an example do not depend on other examples in its row."""
    if info.pooling == "mean" and layout != "modernbert":
        pytest.skip("its heads take the first token")
    model = with_task_head(make_model(layout=layout), info.task_head, seed=0).eval()
    encoder = InputEncoder(tokenizer, model.config)
    examples = examples_of(info, encoder)
    told: list[tuple[int, int | None]] = []
    together = outputs_of(model, info, examples, notify=lambda progress: told.append((progress.done, progress.total)))
    tokens = sum(len(example.input_ids) for example in examples if len(example.places))
    assert told[-1] == (tokens, tokens)
    assert np.concatenate([output.ravel() for output in together]).std() > 0.01
    for example, packed in zip(examples, together, strict=True):
        [alone] = outputs_of(model, info, [example])
        assert alone.shape == packed.shape
        np.testing.assert_allclose(packed, alone, rtol=1e-4, atol=1e-5)
    total, _ = loss_of(model, info, examples)
    assert total == pytest.approx(sum(loss_of(model, info, [example])[0] for example in examples), rel=1e-4)
    assert total > 0.0


@pytest.mark.parametrize("info", INFOS, ids=lambda info: f"{info.kind}-{info.pooling}")
def test_losses_equal_the_naive_ones(make_model: MakeModel, tokenizer: Tokenizer, info: Task) -> None:
    """From the outputs at each place, one example after another."""
    model = with_task_head(make_model(layout="bert"), info.task_head, seed=0).eval()
    examples = examples_of(info, InputEncoder(tokenizer, model.config))
    weights = [0.5, 1.5, 2.0][: len(info.names)] if info.kind in ("classify", "pairs", "tag") else None
    loss, num_targets = loss_of(model, info, examples, weights)
    naive = 0.0
    for example in examples:
        ids = torch.from_numpy(example.input_ids)[None].long()
        types = None if example.type_ids is None else torch.from_numpy(example.type_ids)[None].long()
        states = model.encoder(ids, token_type_ids_BS=types)[0]
        if info.of_texts:
            states = states.mean(0, keepdim=True) if info.pooling == "mean" else states[:1]
        logits = model.outputs(info.head, states).detach()
        naive += naive_loss(info, example, logits[0] if info.of_texts else logits, weights or ONES)
    assert loss == pytest.approx(naive, rel=1e-4)
    if info.kind == "tag":  # two words are B-x, four O
        assert num_targets == 2 * 0.5 + 4 * 1.5


def test_tags_stand_at_first_pieces(tokenizer: Tokenizer, encoder: InputEncoder) -> None:
    """The tokens of each word are those of the word alone."""
    [[(first, encoding)]] = encoder.sentences([SENTENCE])
    assert first == 0
    positions, numbers = first_pieces(SENTENCE, encoding)
    assert numbers.tolist() == list(range(len(SENTENCE)))
    sizes = [len(tokenizer.backend.encode(word, add_special_tokens=False)) for word in SENTENCE]
    assert max(sizes) > 1
    assert positions.tolist() == [1 + sum(sizes[:n]) for n in range(len(SENTENCE))]


def test_long_sentences_are_halved_and_lose_nothing(tokenizer: Tokenizer, make_model: MakeModel) -> None:
    encoder = InputEncoder(tokenizer, make_model().config, max_length=12)
    words = SENTENCE * 9
    encoded = INFOS[3].encode([WordsRecord(1, words, ("O",) * 45)], encoder, with_targets=True)
    assert (encoded.split, encoded.truncated) == (1, 0)
    assert len(encoded.examples) > 4
    assert all(len(example) <= 12 for example in encoded.examples)
    assert sorted(np.concatenate([example.items for example in encoded.examples]).tolist()) == list(range(45))
    letters = SENTENCE[1] * 8
    [[(_, cut)]] = encoder.sentences([[letters]])
    assert len(cut.ids) == 12
    assert first_pieces([letters], cut)[0].tolist() == [1]


def test_long_texts_are_cut_and_counted(tokenizer: Tokenizer, make_model: MakeModel) -> None:
    encoder = InputEncoder(tokenizer, make_model().config, max_length=10)
    records = [TextRecord(1, "The king.", label="a"), TextRecord(2, "The king and the queen " * 9, label="b")]
    encoded = INFOS[0].encode(records, encoder, with_targets=False)
    assert encoded.truncated == 1
    assert len(encoded.examples[1]) == 10
    assert encoded.examples[1].input_ids[[0, -1]].tolist() == [tokenizer.special.cls, tokenizer.special.sep]
    with pytest.raises(SettingsError, match="finetune.max_length 65"):
        InputEncoder(tokenizer, make_model().config, max_length=65)


def test_windows_cover_the_text_and_know_the_answer(encoder: InputEncoder) -> None:
    context = " ".join(["The king sleeps."] * 12 + ["The philosopher loves the winter."] + ["A queen follows."] * 12)
    record = QuestionRecord(1, "q", "Who loves?", context, (AnswerSpan("philosopher", context.index("philosopher")),))
    encoded = AnswerTask(stride=16).encode([record], encoder, with_targets=True)
    assert encoded.split == 1
    assert len(encoded.examples) > 2
    seen = np.zeros(len(context), dtype=bool)
    held = 0
    for example in encoded.examples:
        assert len(example) <= 64
        arrays = example.input_ids, example.type_ids, example.places, example.items
        assert sum(array.nbytes for array in arrays if array is not None) <= 17 * len(example), "many are in memory"
        for begin, end in example.items[1:]:
            seen[begin:end] = True
        begin, end = int(example.targets[BEGIN][0]), int(example.targets[END][0])
        if (begin, end) != (0, 0):
            held += 1
            places = example.places.tolist()
            span = example.items[places.index(begin), 0], example.items[places.index(end), 1]
            assert context[span[0] : span[1]] == "philosopher"
    assert held >= 1
    assert "".join(itertools.compress(context, seen)) == context.replace(" ", "")


@pytest.mark.parametrize("answer", ["cafe\u0301", "\u0939\u0948"])
def test_answers_may_end_in_marks_that_no_token_covers(answer: str, make_model: MakeModel) -> None:
    """Uncased BERT strips accents and Hindi vowel signs. Words that go on in the next window are not extended."""
    tokenizer = wordpiece("ca", "##fe", "\u0939", "no", "who", "?", ".", lowercase=True)
    encoder = InputEncoder(tokenizer, make_model(layout="bert").config)
    context = " ".join(["cafe"] * 99 + ["no", answer, "no."])
    record = QuestionRecord(1, "q", "who?", context, (AnswerSpan(answer, context.index(answer)),))
    encoded = AnswerTask(stride=15).encode([record], encoder, with_targets=True)
    assert encoded.lost == 0
    pieces = {context[begin:end] for example in encoded.examples for begin, end in example.items[1:]}
    assert pieces == {"ca", "fe", "no", "."} | ({"fe\u0301"} if answer.startswith("cafe") else {answer})
    answers = []
    for example in encoded.examples:
        begin, end = (example.places.tolist().index(int(example.targets[name][0])) for name in (BEGIN, END))
        outputs = np.zeros((len(example.places), 2), dtype=np.float32)
        outputs[begin, 0] = outputs[end, 1] = 9.0
        answers += AnswerTask(may_be_missing=True).decode([record], [example], [outputs])
    assert answer in {found.answer for found in answers}


def test_questions_that_leave_no_room_are_counted(encoder: InputEncoder) -> None:
    questions = [QuestionRecord(n, f"q{n}", "Who loves? " * n, "The king sleeps. " * 30) for n in (1, 30, 2, 31)]
    with pytest.raises(CorpusError, match="2 of 4.*'q30'"):
        AnswerTask(stride=16).encode(questions, encoder, with_targets=False)
    assert len(AnswerTask(stride=16).encode(questions[::2], encoder, with_targets=False).examples) > 4


def test_threads_get_their_own_windows(encoder: InputEncoder) -> None:
    """A second thread, which begins in the middle of a question, waits for its end."""
    question = ["Who loves?"], ["The king sleeps. " * 30], ["q"]
    [expected] = encoder.windows(*question, stride=16)
    other = threading.Thread(target=lambda: list(encoder.windows(*question, stride=16)))

    class Interrupted:
        whole = encoder._whole

        def __getattr__(self, name: str) -> object:
            if name == "encode" and other.ident is None:
                other.start()
                other.join(0.2)
            return getattr(self.whole, name)

    encoder._whole = Interrupted()  # type: ignore[assignment]
    [windows] = encoder.windows(*question, stride=16)
    other.join()
    assert [window.ids for window in windows] == [window.ids for window in expected]


def test_a_text_without_a_token_has_no_answer(encoder: InputEncoder) -> None:
    task, record = AnswerTask(stride=16), QuestionRecord(1, "q", "Who?", " ")
    examples = task.encode([record], encoder, with_targets=False).examples
    outputs = [np.zeros((len(example.places), 2), dtype=np.float32) for example in examples]
    assert task.decode([record], examples, outputs) == [AnswerPrediction("", None, 1.0)]


@pytest.mark.parametrize(
    ("context", "token", "answer"),
    [
        ("the capital is Paris", (14, 20), AnswerPrediction("Paris", 15, 1.0)),
        ("the capital is Paris", (14, 15), AnswerPrediction("", None, 1.0)),
        ("x" * 99_999 + " Paris", (99_999, 100_005), AnswerPrediction("Paris", 100_000, 1.0)),
    ],
)
def test_an_answer_begins_behind_the_space_that_its_token_carries(
    context: str, token: tuple[int, int], answer: AnswerPrediction
) -> None:
    """As tokens of a byte-level vocabulary do."""
    empty = np.zeros(2, dtype=np.int64)
    example, outputs = Example(0, empty, None, empty, np.array([[-1, -1], token])), np.zeros((2, 2), dtype=np.float32)
    task = AnswerTask(stride=1, longest_answer=3)
    assert task.decode([QuestionRecord(1, "q", "?", context)], [example], [outputs]) == [answer]


@pytest.mark.parametrize("may_be_missing", [False, True])
def test_the_best_answer_of_all_stretches(may_be_missing: bool) -> None:
    """Against trying every span of every window."""
    rng = np.random.default_rng(0)
    record = QuestionRecord(1, "q", "?", "abcdefghij")
    task = AnswerTask(may_be_missing=may_be_missing, stride=1, longest_answer=3)
    empty = np.zeros(3, dtype=np.int64)
    for _ in range(50):
        windows = [(0, 7), (4, 10)]
        examples = [
            Example(0, empty, None, empty, np.array([[-1, -1], *([n, n + 1] for n in range(a, b))])) for a, b in windows
        ]
        outputs = [rng.normal(size=(b - a + 1, 2)).astype(np.float32) for a, b in windows]
        scores: dict[tuple[int, int], float] = {}  # the windows share e to g
        for (a, b), output in zip(windows, outputs, strict=True):
            for i in range(b - a):
                for j in range(i, min(i + 3, b - a)):
                    place, score = (a + i, a + j + 1), float(output[1 + i, 0] + output[1 + j, 1])
                    scores[place] = max(score, scores.get(place, score))
        nothing = min(float(output[0].sum()) for output in outputs)
        total = sum(np.exp(score) for score in scores.values()) + (np.exp(nothing) if may_be_missing else 0.0)
        score, (begin, end) = max((score, place) for place, score in scores.items())
        [found] = task.decode([record], examples, outputs)
        if may_be_missing and nothing > score:
            assert (found.answer, found.begin) == ("", None)  # type: ignore[union-attr]
            score = nothing
        else:
            assert (found.answer, found.begin) == (record.context[begin:end], begin)  # type: ignore[union-attr]
        assert found.probability == pytest.approx(np.exp(score) / total, rel=1e-4)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("lengths", "longest", "sharing", "shapes"),
    [
        ((3, 9, 8, 4, 1, 30, 9), 32, "shared", [(3, 32)]),
        ((3, 9, 8), 512, "shared", [(1, 24)]),  # few texts, a short row
        ((300, 100, 30, 200, 2, 128), 400, "shared", [(1, 304), (1, 200), (3, 128)]),  # texts of similar length
        ((40,) * 30, 128, "shared", [(8, 128), (2, 128)]),  # 1,024 positions a batch
        ((600, 600), 1024, "shared", [(1, 1024), (1, 1024)]),
        ((300, 500, 400), 512, "padded", [(2, 500), (1, 300)]),  # for networks that cannot separate texts of a row
        ((5, 12, 3, 5), 64, "equal", [(1, 12), (2, 5), (1, 3)]),
    ],
)
def test_rows_lose_no_token(
    lengths: tuple[int, ...], longest: int, sharing: Sharing, shapes: list[tuple[int, int]]
) -> None:
    rng = np.random.default_rng(0)
    sequences = [rng.integers(5, 99, size=n).astype(np.int32) for n in lengths]
    seen, found = {}, []
    for batch in in_rows(sequences, pad_id=0, longest=longest, positions=1024, sharing=sharing):
        rows = batch.rows
        found.append(rows.shape)
        ids, segments = rows.input_ids.flatten(), rows.segment_ids.flatten()
        positions = rows.position_ids.flatten()
        assert ids[segments < 0].eq(0).all()
        assert int((segments >= 0).sum()) == batch.lengths.sum()
        for number, begin, length in zip(batch.numbers, batch.begins, batch.lengths, strict=True):
            place = slice(begin, begin + length)
            assert positions[place].tolist() == list(range(length))
            assert len(set(segments[place].tolist())) == 1
            seen[int(number)] = ids[place].tolist()
        for row in rows.segment_ids:
            real = row[row >= 0]
            assert len(real.unique_consecutive()) == len(real.unique())
    assert seen == {number: sequence.tolist() for number, sequence in enumerate(sequences)}
    assert found == shapes


def test_figures_by_hand() -> None:
    """Labels a and b; c is right once, and not known. Right: ab, none, c, a; predicted: a, b, none, a."""
    task = MultiLabel(("a", "b"))
    right = [TextRecord(row, "t", label=labels) for row, labels in enumerate((("a", "b"), (), ("c",), ("a",)))]
    shares = ((0.9, 0.4), (0.1, 0.6), (0.3, 0.2), (0.7, 0.4))
    found = [
        LabelsPrediction(labels, dict(zip("ab", share, strict=True)))
        for labels, share in zip((("a",), ("b",), (), ("a",)), shares, strict=True)
    ]
    metrics = task.measure(right, found)
    assert metrics["micro_f1"] == pytest.approx(2 * 2 / (2 * 2 + 1 + 2))  # two right, one b too many, b and c missed
    assert metrics["macro_f1"] == pytest.approx((1 + 0 + 0) / 3)
    assert metrics["subset_accuracy"] == pytest.approx(1 / 4)
    # ab stand first and second; without a right label all is right; c stands last of three; a stands first
    assert metrics["ranking_precision"] == pytest.approx((1 + 1 + 1 / 3 + 1) / 4)
    assert task.items(right, "micro_f1") == 4
