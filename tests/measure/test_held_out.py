from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import make_text
from tests.data.corpora import write_jsonl
from tests.model.helpers import MakeModel
from tests.tokenizer.families import FAMILIES, trained
from unmask.core.results import Progress, parts_of
from unmask.data.data_folder import load_manifest, save_shard, token_rows
from unmask.data.prepare import prepare
from unmask.data.settings import CorpusSettings
from unmask.data.store import TokenStore
from unmask.measure.held_out import (
    HeldOut,
    HeldOutSet,
    explain_loss,
    on_plateau,
    predict_texts,
    unigram_losses,
)
from unmask.measure.text import passages_of_store
from unmask.measure.uncertainty import ratio_over_draws
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import TokenizerSettings
from unmask.train.step import Best


def test_the_loss_is_per_predicted_token(
    make_model: MakeModel, validation_store: TokenStore, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the batches: the sum over all targets, divided once."""
    model = make_model()
    results, shown = [], list[Progress]()
    for batch_positions in (32, 8192):
        monkeypatch.setattr("unmask.measure.held_out.BATCH_POSITIONS", batch_positions)
        held_out = HeldOutSet(validation_store, tokenizer, length=32, max_tokens=10**6)
        results.append(held_out.evaluate(model, notify=shown.append))
        assert shown[-1].done == shown[-1].total
    assert results[0].predicted_tokens == results[1].predicted_tokens == len(held_out.targets())
    assert results[0].loss == pytest.approx(results[1].loss, rel=1e-5)
    num_bytes = tokenizer.token_bytes[held_out.targets()].sum()
    expected = results[0].loss * results[0].predicted_tokens / math.log(2) / num_bytes
    assert results[0].bits_per_token_byte == pytest.approx(expected)
    assert results[0].perplexity == pytest.approx(math.exp(results[0].loss))


def test_masks_do_not_depend_on_the_training_text(tokenizer: Tokenizer, data_folder: Path, tmp_path: Path) -> None:
    """Held-out documents are numbered after those of training, which may be more."""
    (tmp_path / "held.txt").write_text(make_text(30, seed=3))
    batches, state = [], torch.random.get_rng_state()
    for number in (40, 41):
        (tmp_path / "a.txt").write_text(make_text(number, seed=4))
        out = tmp_path / str(number)
        corpus = CorpusSettings(validation=[str(tmp_path / "held.txt")])
        words = TokenizerSettings(path=str(data_folder / "tokenizer"))
        prepare([tmp_path / "a.txt"], out, corpus=corpus, tokenizer=words)
        store = TokenStore([out / file.name for file in load_manifest(out).validation.files])
        batches.append(HeldOutSet(store, tokenizer, length=32, max_tokens=10**6).batches)
    for one, other in zip(*batches, strict=True):
        assert torch.equal(one[0].input_ids, other[0].input_ids)
        assert torch.equal(one[1].labels, other[1].labels)
        assert torch.equal(one[0].segment_keys, other[0].segment_keys)
        assert torch.equal(one[1].input_ids == tokenizer.special.mask, one[1].labels != -100), "all are hidden"
    assert torch.equal(torch.random.get_rng_state(), state), "the generator of the training is not touched"


def test_dropout_is_off_in_validation(
    make_model: MakeModel, validation_store: TokenStore, tokenizer: Tokenizer
) -> None:
    """During training, a model is evaluated in evaluation mode, and then continues in training mode."""
    held_out = HeldOutSet(validation_store, tokenizer, length=64, max_tokens=2000)
    plain, dropping = make_model(layout="bert"), make_model(layout="bert", dropout=0.5)
    expected = held_out.evaluate(plain).loss
    assert held_out.evaluate(dropping.train()).loss == expected
    assert dropping.training


def test_unigram_entropy_by_hand() -> None:
    frequencies = np.array([5, 3, 0])
    ordinary = np.array([False, True, True])
    # One is added to each ordinary count: probabilities 4/5 and 1/5.
    losses = unigram_losses(np.array([1, 1, 1, 2]), frequencies, ordinary)
    assert losses == pytest.approx([-math.log(0.8)] * 3 + [-math.log(0.2)])


def test_the_plateau_is_near_the_entropy() -> None:
    result = HeldOut(2.0, None, None, 0.1, 1.0, None, 100, 1)
    assert [on_plateau(result, entropy) for entropy in (1.5, 2.05, 2.2)] == [True, True, False]


def test_a_loss_that_rose_is_not_called_stuck() -> None:
    result, facts = HeldOut(5.4, None, None, 0.1, 1.0, None, 100, 1), {"step": 900, "learning_rate": 0.01}
    best = Best(300, 4.2)
    assert "seen 30 times" in str(explain_loss(result, 5.1, best, epochs=30.0, **facts))
    assert "learning_rate" in str(explain_loss(result, 5.1, best, epochs=1.0, **facts))
    assert "does not use context" in str(explain_loss(result, 5.1, Best(300, 5.35), epochs=30.0, **facts))
    assert explain_loss(replace(result, loss=4.25), 5.1, best, epochs=30.0, **facts) is None


def test_the_standard_error_is_over_source_documents(
    make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Three documents in pieces, on rows that hold parts of several: found again by asking row by row.

    Documents are told by their tokens here, of which each has some to itself.
    """
    lengths, document = np.array([90, 50, 70, 40, 30, 80]), np.array([7, 7, 4, 4, 4, 11])
    first = int(np.flatnonzero(tokenizer.ordinary)[0])
    generator = np.random.default_rng(0)
    begins = first + 12 * np.array([(7, 4, 11).index(number) for number in document])
    ids = np.repeat(begins, lengths) + generator.integers(0, 12, lengths.sum())
    assert tokenizer.ordinary[ids].all()
    nothing = np.zeros(6, dtype=np.int64)
    numbers = {"document": document, "offset": nothing, "num_bytes": nothing}
    rows = token_rows(ids.astype(np.uint16), np.ones(len(ids), dtype=bool), lengths, numbers)
    save_shard(tmp_path, "a.arrow", [rows])
    held_out = HeldOutSet(TokenStore([tmp_path / "a.arrow"]), tokenizer, length=64, max_tokens=10**6)
    model = make_model().eval()
    result = held_out.evaluate(model)
    losses: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for rows, masked in held_out.batches:
        places = (masked.labels.flatten() >= 0).nonzero()[:, 0]
        with torch.no_grad():
            where = {"segment_ids_BS": rows.segment_ids, "position_ids_BS": rows.position_ids}
            logits = model(masked.input_ids, **where, positions_N=places)
        for line, target in zip(torch.log_softmax(logits.float(), -1), masked.labels.flatten()[places], strict=True):
            losses[(int(target) - first) // 12].append(-float(line[target]))
    sums, counts = [sum(each) for each in losses.values()], [len(each) for each in losses.values()]
    assert min(counts) > 5
    assert result.documents == 3
    assert result.predicted_tokens == sum(counts)
    expected = ratio_over_draws(sums, counts)
    assert result.loss == pytest.approx(expected.value, rel=1e-5)
    assert result.loss_stderr == pytest.approx(expected.stderr, rel=1e-3)
    assert result.loss_interval[0] < result.loss - 2 * result.loss_stderr
    assert result.bits_per_token_byte_interval is not None


def test_groups_that_were_held_out_are_what_is_drawn(
    make_model: MakeModel, tokenizer: Tokenizer, data_folder: Path, tmp_path: Path
) -> None:
    """From the column to the figures, also of passages. Rows without a value are groups of one."""
    rows = [
        {"text": f"{make_text(3, seed=100 * patient + n)} {n}", "patient": None if patient % 10 == 0 else f"p{patient}"}
        for n in range(5)
        for patient in range(60)
    ]
    write_jsonl(tmp_path / "a.jsonl", rows)
    data = tmp_path / "data"
    corpus = CorpusSettings.model_validate({"column": "text", "holdout": 0.2, "holdout_groups": "patient"})
    words = TokenizerSettings(path=str(data_folder / "tokenizer"))
    manifest = prepare([tmp_path / "a.jsonl"], data, corpus=corpus, tokenizer=words)
    store = TokenStore([data / file.name for file in manifest.validation.files])
    held = [rows[document] for document in store.column("document")]
    groups = {row["patient"] or row["text"] for row in held}
    assert 3 < len(groups) < len(held)
    assert store.grouped
    assert len(set(store.column("draw").tolist())) == len(groups)
    assert not TokenStore([data / file.name for file in manifest.train.files]).grouped
    result = HeldOutSet(store, tokenizer, length=64, max_tokens=10**6).evaluate(make_model())
    assert (result.documents, result.unit) == (len(groups), "groups")
    passages = passages_of_store(store, tokenizer, share=1.0)
    assert len({passage.document for passage in passages}) == len(groups)


@pytest.mark.parametrize("family", FAMILIES)
def test_predictions_stand_in_the_text_as_it_was_written(make_model: MakeModel, family: str) -> None:
    """White space and case included, and however a token begins: only what is hidden is replaced."""
    tokenizer = trained(family)
    special = {f"{role}_id": id_ for role, id_ in vars(tokenizer.special).items() if role != "unk"}
    model = make_model(vocab_size=tokenizer.vocab_size, **special)
    texts = [
        "2015-07-29 12:30:05  The King sees the ship;\n\tthe king's ship sees (the) sea.",
        "naïve 😀 王様 sees",
        "",
    ]
    shown = predict_texts(model, tokenizer, texts, longest=60)
    assert shown == predict_texts(model, tokenizer, texts, longest=60)
    assert len(shown) == 2
    for each, text in zip(shown, texts, strict=False):
        assert text.startswith(each["text"])
        hidden = [token for _, token in parts_of(each) if token is not None]
        assert hidden == each["hidden"]
        assert hidden
        rest, end = "", 0
        for part, token in parts_of(each):
            if token is None:
                rest += part
                assert each["text"][end:].startswith(part)
                end += len(part)
            else:
                rest += each["text"][token["begin"] : token["end"]]
                end = token["end"]
                assert token["right"] == (token["probability"] >= token["guesses"][0][1])
        assert rest == each["text"]
