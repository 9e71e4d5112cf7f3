from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import unmask
from tests.model.helpers import MakeModel
from unmask.core.errors import SettingsError
from unmask.measure.questions import pseudo_log_likelihoods
from unmask.model.encoder import MaskedLM
from unmask.tokenizer.tokenizer import Tokenizer

SENTENCES = [
    "The mountaineer misunderstands the queen in Constantinople.",
    "The cat sees the dog.",
    "Embroidery",
    "The cat sees the dog.",
    "Balo and the philosopher photographs the embroidery under the bridge at sea.",
]


def naive_losses(model: MaskedLM, tokenizer: Tokenizer, sentence: str, *, l2r: bool = False) -> Iterator[float]:
    """The naive way, one hidden token a pass: nats of each token of a sentence."""
    special: Any = tokenizer.special
    [tokens] = tokenizer.encode_corpus([sentence])
    ids = [special.cls, *tokens.input_ids.tolist(), special.sep]
    starts = [True, *tokens.word_starts.tolist(), True]
    for place in range(1, len(ids) - 1):
        hidden = list(ids)
        hidden[place] = special.mask
        behind = place + 1
        while l2r and not starts[behind]:
            hidden[behind] = special.mask
            behind += 1
        with torch.no_grad():
            logits = model(torch.tensor([hidden]), positions_N=torch.tensor([place]))
        yield -float(torch.log_softmax(logits[0].float(), -1)[ids[place]])


@pytest.mark.parametrize("layout", ["modernbert", "bert"])
@pytest.mark.parametrize("form", ["plain", "word_l2r"])
def test_the_naive_loop_gives_the_same(make_model: MakeModel, tokenizer: Tokenizer, layout: str, form: str) -> None:
    model = make_model(layout=layout)
    totals = pseudo_log_likelihoods(model, tokenizer, SENTENCES, form=form)  # type: ignore[arg-type]
    for sentence, total in zip(SENTENCES, totals, strict=True):
        losses = naive_losses(model, tokenizer, sentence, l2r=form == "word_l2r")
        assert total == pytest.approx(-sum(losses), rel=1e-4)
    assert totals[1] == totals[3], "equal sentences, equal to the last bit"


@pytest.mark.parametrize("form", ["plain", "word_l2r"])
def test_a_context_is_seen_and_not_scored(make_model: MakeModel, tokenizer: Tokenizer, form: str) -> None:
    model, context, sentence = make_model(), "The philosopher sees", "the embroidery."
    alone, behind = pseudo_log_likelihoods(
        model,
        tokenizer,
        [sentence] * 2,
        form=form,
        contexts=["", context],  # type: ignore[arg-type]
    )
    losses = list(naive_losses(model, tokenizer, f"{context} {sentence}", l2r=form == "word_l2r"))
    [before, after] = tokenizer.encode_corpus([context, sentence])
    assert len(losses) == len(before.input_ids) + len(after.input_ids)
    assert behind == pytest.approx(-sum(losses[len(before.input_ids) :]), rel=1e-4)
    # In a batch of another size, products may be summed in another order.
    [by_itself] = pseudo_log_likelihoods(model, tokenizer, [sentence], form=form)  # type: ignore[arg-type]
    assert alone == pytest.approx(by_itself, rel=1e-6)
    with pytest.raises(SettingsError, match="sentence 1"):
        pseudo_log_likelihoods(model, tokenizer, [" "], contexts=[context])


@pytest.mark.parametrize("form", ["plain", "word_l2r"])
def test_sentences_of_the_same_tokens_are_scored_once(make_model: MakeModel, tokenizer: Tokenizer, form: str) -> None:
    notes: list[tuple[int, int | None]] = []
    same = ["The cat sees the dog.", "The  cat sees the dog. ", "The cat sees the dog"]
    ids = [encoded.input_ids.tolist() for encoded in tokenizer.encode_corpus(same)]
    assert ids[0] == ids[1] != ids[2]
    totals = pseudo_log_likelihoods(
        make_model(),
        tokenizer,
        same,
        form=form,  # type: ignore[arg-type]
        notify=lambda progress: notes.append((progress.done, progress.total)),
    )
    assert notes == [(len(ids[0]) + len(ids[2]),) * 2]
    assert totals[0] == totals[1] != totals[2]


def test_a_mask_in_a_sentence_is_text(run: unmask.Run) -> None:
    assert run.model.score(["[MASK]"])[0] != 0.0
    assert len(run.model.score([])) == 0


@pytest.mark.parametrize(
    ("sentences", "form", "named"),
    [
        (["The king.", " "], "plain", "sentence 2"),
        (["The king.", "the " * 80], "plain", "sentence 2 .*80"),
        (["The king."], "l2r", "'l2r'"),
        ("The king.", "plain", "list"),
    ],
)
def test_sentences_that_cannot_be_scored(run: unmask.Run, sentences: list[str], form: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        run.model.score(sentences, form=form)
