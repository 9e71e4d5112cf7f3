from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import unmask
from tests.measure.oracle import naive_losses
from unmask.core.errors import SettingsError
from unmask.measure.questions import Likelihoods, Question, ask, one_by_one, pseudo_log_likelihoods
from unmask.model.encoder import MaskedLM
from unmask.tokenizer.tokenizer import Tokenizer

SENTENCES = [
    "The mountaineer misunderstands the queen in Constantinople.",
    "The cat sees the dog.",
    "Embroidery",
    "The cat sees the dog.",
    "Balo and the philosopher photographs the embroidery under the bridge at sea.",
]


@pytest.mark.parametrize("layout", ["modernbert", "bert"])
@pytest.mark.parametrize("form", ["plain", "word_l2r"])
def test_the_naive_loop_gives_the_same(
    make_model: Callable[..., MaskedLM], tokenizer: Tokenizer, layout: str, form: str
) -> None:
    model = make_model(layout=layout)
    found = pseudo_log_likelihoods(model, tokenizer, SENTENCES, form=form)  # type: ignore[arg-type]
    for sentence, total, count in zip(SENTENCES, found.totals, found.num_tokens, strict=True):
        losses = list(naive_losses(model, tokenizer, sentence, l2r=form == "word_l2r"))
        assert count == len(losses)
        assert total == pytest.approx(-sum(losses), rel=1e-4)
    assert found.totals[1] == found.totals[3], "equal sentences, equal to the last bit"


def test_progress_is_told_to_the_end(make_model: Callable[..., MaskedLM], tokenizer: Tokenizer) -> None:
    told: list[tuple[int, int | None]] = []
    network = make_model()
    sentences = [f"{SENTENCES[0]} {'the ' * number}cat." for number in range(40)]
    found = pseudo_log_likelihoods(
        network, tokenizer, sentences, notify=lambda progress: told.append((progress.done, progress.total))
    )
    total = int(found.num_tokens.sum())
    assert told == [*((done, total) for done in range(256, total, 256)), (total, total)]
    assert len(told) > 2
    told.clear()
    found = pseudo_log_likelihoods(
        network, tokenizer, SENTENCES, notify=lambda progress: told.append((progress.done, progress.total))
    )
    assert told == [(int(found.num_tokens[[0, 1, 2, 4]].sum()),) * 2], "what stands there twice is scored once"


@pytest.mark.parametrize("form", ["plain", "word_l2r"])
def test_sentences_of_the_same_tokens_are_scored_once(
    make_model: Callable[..., MaskedLM], tokenizer: Tokenizer, form: str
) -> None:
    told: list[tuple[int, int | None]] = []
    same = ["The cat sees the dog.", "The  cat sees the dog. ", "The cat sees the dog"]
    ids = [encoded.input_ids.tolist() for encoded in tokenizer.encode_corpus(same)]
    assert ids[0] == ids[1] != ids[2]
    found = pseudo_log_likelihoods(
        make_model(),
        tokenizer,
        same,
        form=form,
        notify=lambda progress: told.append((progress.done, progress.total)),
    )
    assert told == [(len(ids[0]) + len(ids[2]),) * 2]
    assert found.totals[0] == found.totals[1] != found.totals[2]
    assert found.num_tokens.tolist() == [len(each) for each in ids]


def test_what_is_hidden_by_hand(tokenizer: Tokenizer) -> None:
    special = tokenizer.special
    ids, starts = np.array([10, 11, 12, 13], dtype=np.int32), np.array([1, 1, 0, 0], dtype=bool)
    c, s, m = special.cls, special.sep, special.mask
    plain = [question.input_ids.tolist() for question in one_by_one(ids, starts, tokenizer)]
    assert plain[1:3] == [[c, 10, m, 12, 13, s], [c, 10, 11, m, 13, s]]
    l2r = list(one_by_one(ids, starts, tokenizer, form="word_l2r"))
    assert [question.input_ids.tolist() for question in l2r] == [
        [c, m, 11, 12, 13, s],
        [c, 10, m, m, m, s],
        [c, 10, 11, m, m, s],
        [c, 10, 11, 12, m, s],
    ]
    assert [question.targets.tolist() for question in l2r] == [[10], [11], [12], [13]]
    assert [question.places.tolist() for question in l2r] == [[1], [2], [3], [4]]
    some = one_by_one(ids, starts, tokenizer, places=np.array([2]))
    assert [question.targets.tolist() for question in some] == [[12]]


def test_pseudo_perplexity_by_hand() -> None:
    found = Likelihoods(np.array([-np.log(4.0), -np.log(4.0)]), np.array([1, 1]))
    assert found.pseudo_perplexity == pytest.approx(4.0)


def test_a_mask_in_a_sentence_is_text(run: unmask.Run) -> None:
    assert run.model.score(["[MASK]"])[0] != 0.0
    assert len(run.model.score([])) == 0


def test_sentences_that_cannot_be_scored(run: unmask.Run) -> None:
    with pytest.raises(SettingsError, match=r"sentence 2 \(' '\) is empty; leave it out"):
        run.model.score(["The king.", " "])
    with pytest.raises(SettingsError, match="sentence 2 has 80 tokens, but the model takes 62 beside the special"):
        run.model.score(["The king.", "the " * 80])
    with pytest.raises(SettingsError, match="unknown form 'l2r' of the pseudo-log-likelihood; known are plain, word_l"):
        run.model.score(["The king."], form="l2r")
    with pytest.raises(SettingsError, match="give a list of sentences"):
        run.model.score("The king.")


class Reading:
    """Says at every place what it sees there, and notes the shapes of its batches."""

    training = True
    pad_id = 0
    config = SimpleNamespace(max_position_embeddings=50, vocab_size=400)
    device = torch.device("cpu")
    shares_rows = takes_padding = True
    width = 1

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int]] = []
        self.encoder = self

    def train(self, mode: bool = True) -> None:
        self.training = mode

    def __call__(self, input_ids: torch.Tensor, **_: object) -> torch.Tensor:
        assert not self.training
        self.shapes.append(tuple(input_ids.shape))
        return input_ids[..., None]

    def predict(self, seen_T1: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(seen_T1[positions_N, 0], 400) * 50.0


@pytest.mark.parametrize(("shared", "padded"), [(True, True), (False, True), (False, False)])
def test_batches_keep_the_order_and_their_size(monkeypatch: pytest.MonkeyPatch, shared: bool, padded: bool) -> None:
    monkeypatch.setattr("unmask.train.runner.BATCH_POSITIONS", 64)
    monkeypatch.setattr("unmask.measure.questions.WINDOW", 1024)
    rng = np.random.default_rng(0)
    right = rng.random(300) < 0.5
    questions = []
    for number in range(300):
        length = int(rng.integers(3, 50))
        place = int(rng.integers(length))
        ids = rng.integers(300, 400, length)
        ids[place] = number
        questions.append(Question(ids, np.array([place]), np.array([number if right[number] else 399])))
    network = Reading()
    network.shares_rows, network.takes_padding = shared, padded
    answers = list(ask(network, questions))  # type: ignore[arg-type]
    assert [answer.ranks[0] == 0 for answer in answers] == right.tolist()
    assert [answer.losses[0] < 1e-6 for answer in answers] == right.tolist()
    assert network.training, "the mode is put back"
    assert len(network.shapes) > 50
    assert max(rows * length for rows, length in network.shapes) <= 64
