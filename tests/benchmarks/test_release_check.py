"""A short version of `make release-check`; and the script itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
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


AUDIT = {name: {"rate": 0.3, "broken": []} for name in STRATEGIES}
FIGURES = {"validation_loss": 4.0, "unigram_entropy": 6.0, "tokens_per_second": 12_345.6}


@pytest.mark.parametrize(
    ("audited", "trained", "message"),
    [
        (AUDIT | {"span": {"rate": 0.4, "broken": ["too much"]}}, FIGURES, "audit of span with bpe: too much"),
        ({}, FIGURES, "random was not audited with char: no reason"),
        (AUDIT, {**FIGURES, "validation_loss": 5.95}, "training by pmi is only 0.05 nats below"),
        (AUDIT, None, "train by random: the disk is full"),
    ],
)
def test_what_is_wrong_is_named_at_the_end(
    audited: dict[str, Any], trained: dict[str, Any] | None, message: str, tmp_path: Path, run_script: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The script, with results in place of commands."""

    def pretrain(*_: object, **__: object) -> SimpleNamespace:
        if trained is None:
            raise unmask.UnmaskError("the disk is full")
        return SimpleNamespace(**trained)

    monkeypatch.setattr(script.unmask, "prepare", lambda *_, **__: {})
    monkeypatch.setattr(script.unmask, "audit", lambda *_, **__: SimpleNamespace(
        strategies=audited, not_audited={"random": "no reason"}
    ))  # fmt: skip
    monkeypatch.setattr(script.unmask, "pretrain", pretrain)
    (tmp_path / "text.txt").write_text("a line\n")
    with pytest.raises(SystemExit, match=message):
        run_script(script, tmp_path / "text.txt", "--out", tmp_path / "out", "--annotate", "none")
