"""Batches of a collator: the masks of its masker, whatever the features, the loader, its workers and the epoch."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.masking.helpers import FAMILIES, features_of, masker_of, wrapped
from tests.tokenizer.families import trained
from unmask import Masker, MaskingCollator, count_tokens
from unmask.core.errors import DataError, SettingsError
from unmask.masking.draw import POINT, FlatRows, FlatUnits
from unmask.masking.settings import MaskingSettings
from unmask.masking.tables import Tables
from unmask.masking.units import SpanUnits, TokenUnits
from unmask.masking.weights import FrequencyWeights

pytest.importorskip("transformers")
# Python 3.12 and later warn wherever a process with threads forks, which data loaders do.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def collator_of(family: str = "wordpiece", **options: Any) -> MaskingCollator:
    return MaskingCollator(wrapped(family), **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_is_what_the_masker_makes_of_its_rows(family: str) -> None:
    """An independent way to the same masks: plain ids, passed to the masker directly."""
    features = features_of(family)
    masker = masker_of(trained(family), strategy="whole_word", rate=0.3, seed=5)
    batch = MaskingCollator.from_masker(masker)(features)
    masked = masker([feature["input_ids"] for feature in features])
    assert list(batch) == ["input_ids", "attention_mask", "labels", "token_type_ids"]
    for name in ("input_ids", "attention_mask", "labels"):
        assert torch.equal(batch[name], masked[name]), name
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())
    assert (batch["labels"] != -100).sum() > 50
    lengths = torch.tensor([len(feature["input_ids"]) for feature in features])
    assert torch.equal(batch["attention_mask"].sum(1), lengths)


def test_forms_of_features() -> None:
    """Lists, arrays, tensors, bare ids."""
    features = features_of("wordpiece", 5)
    expected = collator_of()(features)["input_ids"]
    for convert in (np.asarray, torch.tensor):
        converted = [{name: convert(column) for name, column in feature.items()} for feature in features]
        assert torch.equal(collator_of()(converted)["input_ids"], expected)
    assert torch.equal(collator_of()([feature["input_ids"] for feature in features])["input_ids"], expected)
    assert collator_of().tokenizer is not None, "Trainer saves it"
    assert MaskingCollator(trained("wordpiece")).tokenizer is None


def test_padding_changes_no_mask() -> None:
    """Padding to a multiple; features already padded left or right, marked by attention mask or by pad tokens."""
    feature = {name: features_of("wordpiece", 1)[0][name] for name in ("input_ids", "attention_mask")}
    length = len(feature["input_ids"])
    alone = collator_of(rate=0.5)([feature])
    left = {name: [0] * 5 + column for name, column in feature.items()}
    right = {name: column + [0] * 5 for name, column in feature.items()}
    wide = collator_of(rate=0.5, pad_to_multiple_of=64)([feature])
    assert wide["input_ids"].shape == (1, 64)
    longer = MaskingCollator.from_masker(collator_of(rate=0.5).masker, pad_to_length=80)([feature])
    assert longer["input_ids"].shape == (1, 80)
    padded = [collator_of(rate=0.5)([row]) for row in (right, {"input_ids": right["input_ids"]}, left)]
    for batch, begin in zip((wide, longer, *padded), (0, 0, 0, 0, 5), strict=True):
        for name in ("input_ids", "labels"):
            assert torch.equal(batch[name][:, begin : begin + length], alone[name])
        assert batch["attention_mask"].sum() == length
        assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()


def test_columns_that_say_what_may_be_masked() -> None:
    ids = [2, 50, 51, 52, 53, 3]
    collator = collator_of(strategy="random", rate=0.99)
    batch = collator([{"input_ids": ids, "special_tokens_mask": [1, 0, 1, 0, 1, 1]}])
    assert set((batch["labels"][0] != -100).nonzero().flatten().tolist()) <= {1, 3}
    word = {"input_ids": ids, "word_starts": [0, 1, 0, 0, 0, 0]}
    collator = collator_of(strategy="whole_word", rate=0.5)
    seen = set()
    for epoch in range(30):
        collator.set_epoch(epoch)
        seen.add(int((collator([word])["labels"] != -100).sum()))
    assert seen == {0, 4}, "one word, as the column says"


def test_a_worker_makes_the_same_masks_and_learns_the_epoch() -> None:
    """A spawned and persistent one, which gets a pickled collator; forked ones are those of `Trainer`. Progress is that
    of the batch, not of the moment."""
    features: Any = features_of("wordpiece", 24)

    def batches(**options: Any) -> list[dict[str, torch.Tensor]]:
        """Of two epochs."""
        collator = collator_of(rate={"kind": "linear", "start": 0.6, "end": 0.1})
        loader: Any = DataLoader(features, batch_size=4, collate_fn=collator, **options)
        made: list[dict[str, torch.Tensor]] = []
        for epoch in range(2):
            collator.set_epoch(epoch, progress=epoch / 2, progress_a_batch=1 / 12)
            made += loader
        return made

    expected = batches()
    shares = [float((batch["labels"] != -100).sum() / batch["attention_mask"].sum()) for batch in expected]
    assert shares[0] > shares[5] > shares[11]
    assert not torch.equal(expected[0]["labels"], expected[6]["labels"])
    spawned = batches(num_workers=1, multiprocessing_context="spawn", persistent_workers=True)
    for one, two in zip(expected, spawned, strict=True):
        assert torch.equal(one["input_ids"], two["input_ids"])
        assert torch.equal(one["labels"], two["labels"])


def mixture_of(family: str, per: str, *, moves: bool = False) -> Masker:
    shares = [{"kind": "linear", "start": start, "end": 1.0 - start} if moves else 1.0 for start in (0.0, 1.0)]
    parts = [{"strategy": name, "share": share} for name, share in zip(("whole_word", "random"), shares, strict=True)]
    content = {"units": {"kind": "mixture", "per": per, "parts": parts}, "rate": 0.4}
    return Masker(MaskingSettings.model_validate(content), trained(family))


def test_a_mixture_of_steps_differs_from_batch_to_batch() -> None:
    """Without progress, by the batch's number, which workers know, too; with progress, by it, also after resuming."""
    features: Any = features_of("bpe", 3)
    masker = mixture_of("bpe", "step")
    ids = [feature["input_ids"] for feature in features]

    def batches(epoch: int, workers: int = 0, begin: int = 0, a_batch: float = 0.0) -> list[torch.Tensor]:
        collator = MaskingCollator.from_masker(masker)
        collator.set_epoch(epoch, progress=begin * a_batch, progress_a_batch=a_batch)
        loader = DataLoader(features * (16 - begin), batch_size=3, collate_fn=collator, num_workers=workers)
        return [batch["labels"] for batch in loader]

    def assert_equal(ones: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> None:
        assert all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))

    for epoch in range(2):
        by_number = batches(epoch)
        assert_equal(by_number, [masker(ids, epoch=epoch, step=n).labels for n in range(16)])
        assert_equal(by_number, batches(epoch, workers=2))
        assert len({tuple(labels.flatten().tolist()) for labels in by_number}) == 2, "each part has its steps"
    by_progress = batches(1, a_batch=1 / 16)
    assert_equal(by_progress, [masker(ids, epoch=1, progress=n / 16).labels for n in range(16)])
    assert_equal(by_progress[5:], batches(1, begin=5, a_batch=1 / 16))
    assert len({tuple(labels.flatten().tolist()) for labels in by_progress}) == 2


@pytest.mark.parametrize("moves", [False, True])
def test_fixed_rows_of_a_mixture_have_every_part_in_its_mean_share(moves: bool) -> None:
    """They are those of the same mixture by row."""
    features = features_of("wordpiece", 24)
    steps = MaskingCollator.from_masker(mixture_of("wordpiece", "step", moves=moves)).fixed(features, rate=0.4)
    by_row = mixture_of("wordpiece", "row")
    for row, feature in zip(steps, features, strict=True):
        assert row["labels"] == by_row([feature["input_ids"]]).labels[0].tolist()


def test_fixed_rows_have_a_rate_of_their_own() -> None:
    features = features_of("wordpiece", 10)
    collator = collator_of(rate=0.4, strategy="whole_word")
    fixed = collator.fixed({"one": features, "two": features[:3]}, rate=0.2)
    assert [len(fixed[name]) for name in ("one", "two")] == [10, 3]
    masker = Masker.from_tokenizer(trained("wordpiece"), strategy="whole_word", rate=0.2)
    masked = masker([feature["input_ids"] for feature in features])
    batch = collator(fixed["one"].__getitems__(range(10)))
    assert torch.equal(batch["input_ids"], masked.input_ids)
    assert torch.equal(batch["labels"], masked.labels)
    assert "token_type_ids" in batch


def test_positions_are_passed_on() -> None:
    features = [
        {"input_ids": [2, 50, 51, 3], "position_ids": [4, 5, 6, 7]},
        {"input_ids": [2, 52, 3], "position_ids": [0, 1, 1]},
    ]
    collator = collator_of(rate=0.5)
    for rows in (features, collator.fixed(features).__getitems__([0, 1])):
        batch = collator(rows)
        assert batch["position_ids"].tolist() == [[4, 5, 6, 7], [0, 1, 1, 0]]
    assert sorted(batch) == ["attention_mask", "input_ids", "labels", "position_ids"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_row_that_comes_again_without_an_epoch_is_said_once(caplog: pytest.LogCaptureFixture, workers: int) -> None:
    features: Any = features_of("wordpiece", 8)
    collator = collator_of()
    loader: Any = DataLoader(features, batch_size=2, collate_fn=collator, num_workers=workers)
    list(loader)
    assert not caplog.records
    for _ in range(2):
        list(loader)
    collator(features)
    # Workers have their own log; their messages do not appear here again.
    assert ["collator.callback" in record.message for record in caplog.records] == [True] * (workers == 0)


def test_no_epoch_is_missed_where_it_was_set_or_masks_are_static(caplog: pytest.LogCaptureFixture) -> None:
    features = features_of("wordpiece", 3)
    for static in (True, False):
        settings = MaskingSettings.model_validate({"strategy": "span", "static": static, "rate": 0.4})
        collator = MaskingCollator.from_masker(Masker(settings, trained("wordpiece")))
        if not static:
            collator.set_epoch(0)
        first = collator(features)["labels"]
        collator(features)
        collator.set_epoch(1)
        assert torch.equal(collator(features)["labels"], first) == static
    assert not caplog.records


def test_annotations_are_handed_to_the_strategy() -> None:
    """A column of one integer per token; other content of features is ignored."""
    weights = {"kind": "first", "share": 1.0}
    settings = MaskingSettings.model_validate({"units": {"kind": "entity"}, "weights": weights, "rate": 0.5})
    collator = MaskingCollator.from_masker(Masker(settings, trained("wordpiece")))
    features: list[dict[str, Any]] = [
        {"input_ids": [2, 50, 51, 3], "entities": [0, 0, 3, 0], "text": "a b", "scores": [0.5] * 4, "idx": 1},
        {"input_ids": [2, 52, 53, 3], "entities": [0, 3, 0, 0], "text": "c d", "scores": [1.0] * 4, "idx": 2},
    ]
    batch = collator(features)
    assert (batch["labels"] >= 0).int().tolist() == [[0, 0, 1, 0], [0, 1, 0, 0]]
    assert sorted(batch) == ["attention_mask", "input_ids", "labels"]
    features[0]["entities"] = [0, 1]
    with pytest.raises(DataError, match="one integer per token"):
        collator(features)
    for feature in features:
        del feature["entities"]
    with pytest.raises(DataError, match="'entities', .* input_ids, text, scores, idx.*remove_unused_columns=False"):
        collator(features)


ROW = {"input_ids": [2, 3], "attention_mask": [1, 1]}


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([{"text": "a"}], "no input_ids; they have text"),
        ([{"input_ids": [2, 3]}, {}], "feature 1 has no input_ids"),
        ([ROW, {"input_ids": [2, 3]}], "feature 1 has no attention_mask"),
        ([{"input_ids": [2, 3], "attention_mask": [1]}], "feature 0 has 2 input_ids but 1 attention_mask"),
        ([ROW, {"input_ids": [2, 50, 3], "attention_mask": [1, 2, 2]}], "attention_mask of feature 1 holds 2"),
        ([[2**63, 2**63]], "input_ids of feature 0"),
        ([{"input_ids": [2.5, 3]}], "input_ids of feature 0"),
        ([{"input_ids": [[2], [3]]}], "input_ids of feature 0"),
        ([{"input_ids": [2, 3], "labels": [2, 3]}], "feature 0 has labels"),
        ([ROW, {**ROW, "labels": 1}], "feature 1 has labels"),
    ],
)
def test_features_that_cannot_be_used(features: list[dict[str, Any]], message: str) -> None:
    collator = collator_of()
    with pytest.raises(DataError, match=message):
        collator(features)
    if "labels" in features[-1]:  # their tokens may be masked already
        with pytest.raises(DataError, match="has labels"):
            collator.fixed(features).__getitems__([0, len(features) - 1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: collator_of(pad_to_multiple_of=0), "pad_to_multiple_of"),
        (lambda: collator_of(pad_to_length=8, pad_to_multiple_of=4), "pad_to_multiple_of"),
        (lambda: collator_of(strategy="frequency"), "count_tokens"),
        (lambda: collator_of(weights={"kind": "pos_loss"}), "'pos_loss'"),
        (lambda: collator_of(rate={"kind": "uniform", "loss_weight": "inverse"}), "loss_weight"),
        (lambda: collator_of().set_epoch(0, progress=2.0), "epoch"),
        (lambda: collator_of().set_epoch(0, progress_a_batch=-1.0), "epoch"),
        (lambda: collator_of().fixed(iter([[2, 3]])), "cannot be indexed"),
    ],
)
def test_what_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make()


def test_counting_tokens() -> None:
    tokenizer = trained("wordpiece")
    counts = count_tokens([[2, 50, 50, 3], [2, 51, 3]] * 700, tokenizer)
    assert {int(n): int(counts[n]) for n in counts.nonzero()[0]} == {2: 1400, 3: 1400, 50: 1400, 51: 700}
    with pytest.raises(SettingsError, match="id 999"):
        count_tokens([{"input_ids": [999]}], tokenizer)
    with pytest.raises(DataError, match="feature 1400 is not"):
        count_tokens([*[[2, 50, 3]] * 1400, None], tokenizer)
    with pytest.raises(DataError, match="feature 0 has no input_ids"):
        count_tokens([{"ids": [9]}], tokenizer)


class Halves:
    """A row is two units, whatever its content."""

    replaced_per = "unit"

    def starts(self, rows: FlatRows, tables: Tables) -> torch.Tensor:
        places = torch.arange(len(rows.input_ids_T)) - rows.segment_begin_T
        return (places <= 1) | (places == 11)


class LikesLast:
    """The later a unit begins, the likelier it is: the second half of a row at any rate up to a half."""

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> torch.Tensor:
        return (units.begin_T - rows.segment_begin_T) * (4 << POINT)


def test_units_and_weights_of_ones_own() -> None:
    collator = collator_of(units=Halves(), weights=LikesLast(), rate=0.5, replacement=(1, 0, 0))
    rows = [[2, *range(30, 50), 3], [2, *range(40, 60), 3]]
    for made in (collator, pickle.loads(pickle.dumps(collator))):
        batch = made(rows)
        assert (batch["labels"] != -100).nonzero()[:, 1].tolist() == [*range(11, 21)] * 2
        assert (batch["input_ids"][:, 11:21] == 4).all()
    fixed = collator.fixed([{"input_ids": row} for row in rows])
    assert (collator([fixed[n] for n in range(2)])["labels"] != -100).any()
    with pytest.raises(SettingsError, match="mixture"):
        collator_of(strategy="mixture", weights=LikesLast())


def test_units_and_weights_as_objects_or_tables() -> None:
    counts = np.ones(len(wrapped("wordpiece")))
    units, weights = SpanUnits(p=0.9), FrequencyWeights(exponent=-1.0)
    for one in (units, units.model_dump()):
        settings = collator_of(units=one, weights=weights, frequencies=counts).masker.settings
        assert (settings.units, settings.weights) == (units, weights)
    assert collator_of().masker.settings == MaskingSettings(), "as `run_mlm` and a recipe that says nothing"
    assert collator_of(weights={"kind": "uniform"}).masker.settings.units == TokenUnits()


def test_frequencies_are_counts() -> None:
    counts = np.arange(len(wrapped("wordpiece")))
    for wrong in (counts / counts.sum(), -counts, counts + np.nan):
        with pytest.raises(SettingsError, match="whole numbers"):
            collator_of(strategy="frequency", frequencies=wrong)


def test_pickling_keeps_everything() -> None:
    collator = collator_of("bpe", strategy="frequency", frequencies=np.arange(trained("bpe").vocab_size) + 1)
    collator.set_epoch(7)
    copy = pickle.loads(pickle.dumps(collator))
    features = features_of("bpe", 4)
    assert torch.equal(copy(features)["input_ids"], collator(features)["input_ids"])
    copy.set_epoch(8)
    assert not torch.equal(copy(features)["labels"], collator(features)["labels"]), "a copy has a time of its own"
    next(iter(DataLoader(features, collate_fn=copy, num_workers=1)))  # type: ignore[arg-type]
