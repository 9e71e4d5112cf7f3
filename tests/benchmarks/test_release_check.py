"""A short version of `make release-check`; and the script itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import release_check as script

import unmask
from tests.contract.samples import write_samples
from unmask.masking.settings import STRATEGIES


@pytest.mark.parametrize(  # tests/contract audits with WordPiece
    "kind", ["char", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("bpe", "unigram"))]
)
def test_every_strategy_keeps_its_promises_with_every_kind_of_tokenizer(kind: str, tmp_path: Path) -> None:
    write_samples(tmp_path)
    unmask.prepare(
        tmp_path / "annotated.jsonl",
        out=tmp_path / "data",
        tokenizer_kind=kind,
        vocab_size=None if kind == "char" else 400,
        annotate=["entities", "pos", "dependencies", "chunks"],
        workers=1,
    )
    result = unmask.audit(tmp_path / "data", settings=["masking.rate=0.15"], max_tokens=40_000).to_dict()
    assert result["not_audited"] == {}
    assert set(result["strategies"]) >= set(STRATEGIES)
    for name, entry in result["strategies"].items():
        assert not entry["broken"], name
        assert entry["rate"] == pytest.approx(0.15, abs=0.01), name
        assert entry["special_targets"] == entry["special_replacements"] == 0, name
    assert result["passed"]


AUDIT = {"strategies": {name: {"rate": 0.3, "broken": []} for name in STRATEGIES}, "not_audited": {}}
SUMMARY = {"validation_loss": 4.0, "unigram_entropy": 6.0, "tokens_per_second": 12_345.6}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"audit": {**AUDIT, "strategies": {**AUDIT["strategies"], "span": {"rate": 0.4, "broken": ["too much"]}}}},
            "audit of span with bpe: too much",
        ),
        ({"audit": {"strategies": {}, "not_audited": {"random": "no reason"}}}, "random was not audited with char"),
        ({"pretrain": {**SUMMARY, "validation_loss": 5.95}}, "training by pmi is only 0.05 nats below"),
        ({"code": 2}, "train by random ended with exit code 2"),
    ],
)
def test_what_is_wrong_is_named_at_the_end(
    change: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script, with answers in place of commands."""
    answers = {"prepare": {"tokens": 1}, "audit": AUDIT, "pretrain": SUMMARY, "code": 0} | change
    monkeypatch.setattr(script.Check, "_call", lambda _, words: (answers["code"], json.dumps(answers[words[0]])))
    (tmp_path / "text.txt").write_text("a line\n")
    arguments = [str(tmp_path / "text.txt"), "--out", str(tmp_path / "out"), "--annotate", "none"]
    monkeypatch.setattr("sys.argv", ["release_check.py", *arguments])
    with pytest.raises(SystemExit, match=message):
        script.main()
