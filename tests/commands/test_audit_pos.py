"""`unmask audit`: rates by part of speech, annotated strategies on raw text, and sentence pairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import unmask
from tests.commands.test_audit import audited
from tests.data.tagged import TAGS, tagged_jsonl
from tests.masking.helpers import make_rows, masker_of
from unmask.data.rows import Cursor, Rows, RowStream
from unmask.data.store import TokenStore
from unmask.masking.masker import MaskedRows
from unmask.tokenizer.tokenizer import Tokenizer

COLUMNS = ("--set", 'annotation.columns=["pos", "dependencies"]', "--set", "tokenizer.vocab_size=150")


def masked_at(rows: Rows, places: list[int]) -> MaskedRows:
    """The first row with these columns as targets that are left unchanged."""
    labels = torch.full_like(rows.input_ids, -100)
    labels[0, places] = rows.input_ids[0, places]
    return MaskedRows(rows.input_ids.clone(), labels, torch.ones_like(labels))


def test_parts_of_speech_by_hand(tokenizer: Tokenizer) -> None:
    """DET NOUN NOUN - VERB -: targets are the first noun and the last untagged token."""
    rows = make_rows(tokenizer, 1, [6])
    rows.annotations["pos"][0] = torch.tensor([0, 1, 2, 2, 0, 3, 0, *[0] * (rows.shape[1] - 7)])
    masked = masked_at(rows, [2, 6])
    by_pos = audited(tokenizer, rows, masked).by_pos
    assert by_pos == {"DET": (1, 0), "NOUN": (2, 1), "VERB": (1, 0), "(none)": (2, 1)}
    assert list(by_pos)[-1] == "(none)"
    rows.annotations["pos"][0, 5] = 1
    assert set(audited(tokenizer, rows, masked).by_pos) == {"DET", "NOUN", "(none)"}, "what does not stand in the text"


def test_every_strategy_of_raw_text_with_annotations(tmp_path: Path) -> None:
    """The recipe's annotation reaches the preparation: what needs it is audited, and rates by tag are shown."""
    text, page = tagged_jsonl(tmp_path / "a.jsonl"), tmp_path / "audit.html"
    found = unmask.audit(text, settings=COLUMNS[1::2], out=page)
    result = json.loads(json.dumps(found.to_dict()))
    assert result["passed"]
    assert "syntax" in result["strategies"]
    assert set(result["not_audited"]) == {"entity", "phrase"}
    tags = {tag for tag in TAGS.values() if tag is not None}
    for entry in result["strategies"].values():
        assert set(entry["by_pos"]) == tags | {"(none)"}
        tokens, targets = (sum(column) for column in zip(*entry["by_pos"].values(), strict=True))
        assert tokens == entry["tokens"]
        assert targets == round(entry["rate"] * tokens)
        assert entry["pairs"] is None
    html = page.read_text()
    assert html.count("<svg") == 5 * len(result["strategies"])
    assert html.count("part of speech") >= len(result["strategies"])
    line = next(line for line in repr(found).splitlines() if line.startswith("PROPN"))
    shown = [float(cell) for cell in line.split()[1:]]
    expected = [100 * e["by_pos"]["PROPN"][1] / e["by_pos"]["PROPN"][0] for e in result["strategies"].values()]
    assert shown == pytest.approx(expected, abs=0.051)


def pair_rows(store: TokenStore, tokenizer: Tokenizer) -> Rows:
    return RowStream(store, tokenizer, length=64, seed=0, pairs="next_sentence").batch(Cursor(), 300).rows


def test_pairs_by_the_naive_count(store: TokenStore, tokenizer: Tokenizer) -> None:
    rows, masker = pair_rows(store, tokenizer), masker_of(tokenizer, rate=0.15)
    masked = masker(rows)
    found = audited(tokenizer, rows, masked, masker)
    assert rows.token_type_ids is not None
    assert found.pairs is not None
    tokens, targets = [0, 0], [0, 0]
    pairs: dict[tuple[int, int], list[list[int]]] = {}
    for r, s in torch.nonzero(rows.maskable).tolist():
        half, target = int(rows.token_type_ids[r, s]), int(masked.labels[r, s] >= 0)
        tokens[half] += 1
        targets[half] += target
        counts = pairs.setdefault((r, int(rows.segment_ids[r, s])), [[0, 0], [0, 0]])
        counts[half][0] += 1
        counts[half][1] += target
    whole = [(first[1], second[1]) for first, second in pairs.values() if first[0] and second[0]]
    assert found.pairs.first.rate == pytest.approx(targets[0] / tokens[0])
    assert found.pairs.second.rate == pytest.approx(targets[1] / tokens[1])
    assert found.pairs.pairs == len(whole) > 300
    assert found.pairs.with_both == sum(a > 0 and b > 0 for a, b in whole)
    assert 0 < found.pairs.with_both < len(whole)
    assert found.rows == len(pairs) + len(whole), "each half is a draw of its own"
    assert not found.broken


def test_a_recipe_with_pairs_is_audited_with_pairs(data_folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "audit.html"
    pairs = ("--set", "model.layout=bert", "--set", "objectives.pairs.kind=sentence_order")
    audited_ = unmask.audit(data_folder, settings=pairs[1::2], strategy="span", out=page)
    (entry,) = audited_.to_dict()["strategies"].values()
    found = entry["pairs"]
    assert 0 < found["with_both"] <= found["pairs"]
    for half in ("first", "second"):
        assert abs(found[f"{half}_rate"] - entry["expected_rate"]) < 4.5 * found[f"{half}_rate_stderr"]
    line = f"some in both of {found['with_both']:,} of {found['pairs']:,} pairs"
    assert line in repr(audited_)
    assert line in page.read_text()
