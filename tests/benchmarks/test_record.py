"""What the speed record checks and measures, and its table."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import record as script
import time_to_loss
import transformers

import unmask
from tests.conftest import make_text

PAIR = {"sentence_good": "The cat sees the dog.", "sentence_bad": "The cat the dog sees.", "UID": "order"}


def write_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Books and pairs, whose hashes are then the record's."""
    books, pairs = folder / "books", folder / "pairs.jsonl"
    books.mkdir()
    names = ("A_b_1.txt", script.HELD_OUT[0])
    for seed, name in enumerate(names):
        (books / name).write_text(make_text(60, seed=seed))
    pairs.write_text(json.dumps(PAIR))
    # As `sha256sum` prints them: two spaces, and capital letters first.
    lines = [f"{hashlib.sha256((books / name).read_bytes()).hexdigest()}  {name}\n" for name in sorted(names)]
    monkeypatch.setattr(script, "BOOKS_SHA256", hashlib.sha256("".join(lines).encode()).hexdigest())
    line = "order\tThe cat sees the dog.\tThe cat the dog sees.\n"
    monkeypatch.setattr(script, "PAIRS_SHA256", hashlib.sha256(line.encode()).hexdigest())
    return books, pairs


def test_other_text_or_pairs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    books, pairs = write_files(tmp_path, monkeypatch)
    train, held_out = script.check(books, pairs)
    assert [[book.name for book in some] for some in (train, held_out)] == [["A_b_1.txt"], [script.HELD_OUT[0]]]
    pairs.write_text(json.dumps({**PAIR, "UID": "other"}))
    with pytest.raises(SystemExit, match=r"pairs\.jsonl"):
        script.check(books, pairs)
    (books / "A_b_1.txt").write_text("other")
    with pytest.raises(SystemExit, match="books"):
        script.check(books, pairs)


def test_blimp_is_the_records(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "BOOKS_SHA256", hashlib.sha256(b"").hexdigest())
    assert script.check(tmp_path, shared_data / "blimp" / "blimp.tar.gz") == ([], [])


def test_the_saved_folder_is_measured(run: unmask.Run, tmp_path: Path) -> None:
    """As the public functions measure the run's own folder; our model, and transformers'."""
    text, pairs = tmp_path / "text.txt", tmp_path / "pairs.jsonl"
    text.write_text(make_text(20, seed=9))
    pairs.write_text(json.dumps({**PAIR, "sentence_bad": PAIR["sentence_good"]}))
    work = script.Work(str(run.folder / "data"), "ours", 1.0, 512, 1e-3, held_out=[str(text)], pairs=str(pairs))
    whole = unmask.evaluate(run.folder / "model", [text], max_tokens=100_000, pseudo_tokens=0)
    for model in (run.model.network, transformers.AutoModelForMaskedLM.from_pretrained(run.folder / "model")):
        bits, error = script.measure(work, model)
        assert bits == pytest.approx(whole.bits_per_byte, rel=1e-5)
        assert error == 0.5


def entry(system: str, seed: int, points: list[list[float]], **more: Any) -> dict[str, Any]:
    made = {"date": "2026-01-01", "processor": "P", "cores": 2, "versions": {"torch": "2"}, "commit": "c0ffee"}
    facts = {"track": "cpu", "command": "record.py", "facts": {"parameters": 1000}, "line": seed + 1}
    return {"work": {"system": system, "seed": seed}, "points": points, **made, **facts, **more}


def test_times_to_both_targets_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(script.TRACKS, "cpu", script.TRACKS["cpu"]._replace(bits=2.0, share=0.6))
    slow = entry("trainer", 0, [[100.0, 3.0, 0.5], [200.0, 2.5, 0.45]])
    # Bits are at 2 half-way between the looks, then after a tenth: 150 and 110 s, 130 ± 12.706 * 20. BLiMP is
    # at 60 % after 150 s with one seed, and never with the other.
    fast = [entry("ours", seed, points) for seed, points in enumerate((
        [[100.0, 2.5, 0.45], [200.0, 1.5, 0.35]], [[100.0, 2.1, 0.45], [200.0, 1.1, 0.45]]
    ))]  # fmt: skip
    head, _, first, second, *rest = script.table([slow, *fast], "log.jsonl")
    assert "seconds to 2 bits a byte | seconds to 60% of BLiMP" in head
    assert first == (
        "| 2026-01-01 | ours | 130 ± 254 | 1 of 2 runs | 200 | 1.300 ± 2.541 | 60.0 ± 63.5 % | 1,000 | 0, 1 | c0ffee "
        "| [1](log.jsonl#L1), [2](log.jsonl#L2) |"
    )
    assert second.startswith("| 2026-01-01 | trainer | 0 of 1 runs | 0 of 1 runs | 200 | 2.500 | 55.0 % |")
    assert rest == ["", "- c0ffee: `record.py`", "", "2026-01-01, P, 2 cores, torch 2."]


@pytest.mark.slow
def test_the_whole_script(
    without_processes: Any, run_script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With our system alone; the peers' trainings are in test_time_to_loss.py."""
    books, pairs = write_files(tmp_path, monkeypatch)
    page, results = tmp_path / "page.md", tmp_path / "results.jsonl"
    page.write_text("<!-- record-cpu -->\n<!-- end record-cpu -->\n")
    without_processes(time_to_loss)
    monkeypatch.setattr(script, "VOCAB_SIZE", 200)
    monkeypatch.setitem(script.TRACKS, "cpu", script.TRACKS["cpu"]._replace(size=(1, 64), bits=100.0))
    small = ("--set", "model.num_layers=1", "--set", "model.hidden_size=64", "--set", "model.num_heads=1")
    short = ("--systems", "ours", "--seeds", 3, "--minutes", 0.1, "--batch-tokens", 512)
    paths = ("--pairs", pairs, "--out", tmp_path / "out", "--results", results, "--table", page)
    run_script(script, books, *small, *short, *paths)
    (line,) = map(json.loads, results.read_text().splitlines())
    assert str(tmp_path) not in results.read_text(), "no folder of this machine"
    assert (line["work"]["system"], line["work"]["seed"]) == ("ours", 3)
    ((_, bits, error),) = line["points"]
    assert 0.0 < bits < 100.0
    assert error in (0.0, 0.5, 1.0)
    assert "| ours |" in page.read_text()
