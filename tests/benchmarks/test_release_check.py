"""What `make release-check` does at length, in short; and the script itself."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import release_check as script

import unmask
from tests.conftest import SMALL
from unmask.commands.run_data import packaged_corpus
from unmask.data.prepare import prepare
from unmask.data.settings import AnnotationSettings, CorpusSettings
from unmask.masking.settings import STRATEGIES
from unmask.tokenizer.trainers import TokenizerSettings

COLUMNS = ("entities", "pos", "dependencies", "chunks")
ARTICLES = {"the", "a", "my", "thy", "his", "her", "our", "your"}


def annotated_rows(speech: str) -> dict[str, object]:
    """A speech with annotations by rules that a person could follow: enough for masks, too little for grammar.

    Names are capitalised words that do not begin a line; a chunk is an article and the next word; words hang on the
    word before them, articles on the one behind.
    """
    words = [(m.start(), m.end(), m.group()) for m in re.finditer(r"[\w']+", speech)]
    names = [(b, e, "NAME") for b, e, word in words if word.istitle() and b and speech[b - 1] != "\n" and len(word) > 2]
    tags = [(b, e, "DET" if word.lower() in ARTICLES else "X") for b, e, word in words]
    parse, chunks = [], []
    for number, (begin, end, _) in enumerate(words):
        article = tags[number][2] == "DET" and number + 1 < len(words)
        head = number + 1 if article else max(number - 1, 0)
        if number and tags[number - 1][2] == "DET":
            head = max(number - 2, 0) if number > 1 else number
            chunks.append((words[number - 1][0], end, "NP"))
        parse.append((begin, end, "det" if article else "root" if head == number else "obj", head))
    return {"text": speech, "entities": names, "pos": tags, "dependencies": parse, "chunks": chunks}


@pytest.fixture(scope="module")
def annotated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("annotated") / "speeches.jsonl"
    speeches = packaged_corpus().read_text(encoding="utf-8").split("\n\n")[:1200]
    rows = [json.dumps(annotated_rows(speech.partition(":\n")[2])) for speech in speeches if ":\n" in speech]
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def prepared(annotated_file: Path) -> Callable[[str], Path]:
    """The speeches by a kind of tokenizer."""

    @functools.cache
    def by(kind: str) -> Path:
        prepare(
            [annotated_file],
            annotated_file.parent / kind,
            corpus=CorpusSettings(),
            tokenizer=TokenizerSettings(kind=kind, vocab_size=None if kind == "char" else 1000),
            annotation=AnnotationSettings(columns=COLUMNS),
            workers=1,
        )
        return annotated_file.parent / kind

    return by


@pytest.mark.parametrize(
    "kind", ["wordpiece", "char", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("bpe", "unigram"))]
)
def test_every_strategy_keeps_its_promises_with_every_kind_of_tokenizer(
    prepared: Callable[[str], Path], kind: str
) -> None:
    result = unmask.audit(prepared(kind), settings=["masking.rate=0.15"], max_tokens=40_000).to_dict()
    assert result["not_audited"] == {}
    assert set(result["strategies"]) >= set(STRATEGIES)
    for name, entry in result["strategies"].items():
        assert not entry["broken"], name
        assert entry["rate"] == pytest.approx(0.15, abs=0.01), name
        assert entry["special_targets"] == entry["special_replacements"] == 0, name
    assert result["passed"]


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_every_strategy_trains_on_real_text(prepared: Callable[[str], Path], tmp_path: Path, strategy: str) -> None:
    """A few steps lower the loss that chance would have; scores of a model are made and followed."""
    run = unmask.pretrain(
        [prepared("wordpiece")],
        out=tmp_path / "run",
        steps=12,
        strategy=strategy,
        settings=(
            *SMALL,
            "masking.refresh_steps=4",
            "evaluation.times=1",
            "training.schedule.kind=warmup_stable_decay",
        ),
    )
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert run.summary["steps"] == 12
    assert f'strategy = "{strategy}"' in (run.folder / "recipe.toml").read_text()
    assert losses[-1] < losses[0]
    assert run.summary["validation_loss"] < 6.908, "log of 1,000 entries"


AUDIT = {"strategies": {name: {"rate": 0.3, "broken": []} for name in STRATEGIES}, "not_audited": {}}
SUMMARY = {"validation_loss": 4.0, "unigram_entropy": 6.0, "tokens_per_second": 12_345.6}


Run = Callable[..., list[list[str]]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs the script with answers in place of commands; returns the commands."""

    def call(*options: str, code: int = 0, audit: object = AUDIT, summary: object = SUMMARY) -> list[list[str]]:
        answers, commands = {"prepare": {"tokens": 1}, "audit": audit, "pretrain": summary}, list[list[str]]()

        def answer(check: object, words: list[str]) -> tuple[int, str]:
            commands.append(words)
            return code, json.dumps(answers[words[0]])

        monkeypatch.setattr(script.Check, "_call", answer)
        arguments = [str(tmp_path / "text.txt"), "--out", str(tmp_path / "out"), "--annotate", "none", *options]
        monkeypatch.setattr("sys.argv", ["release_check.py", *arguments])
        script.main()
        return commands

    return call


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"audit": {**AUDIT, "strategies": {**AUDIT["strategies"], "span": {"rate": 0.4, "broken": ["too much"]}}}},
         "audit of span with bpe: too much"),
        ({"audit": {"strategies": {}, "not_audited": {"random": "no reason"}}}, "random was not audited with char: no"),
        ({"summary": {**SUMMARY, "validation_loss": 5.95}}, "training by pmi is only 0.05 nats below"),
        ({"code": 2}, "train by random ended with exit code 2; see"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_at_the_end(run: Run, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    (tmp_path / "text.txt").write_text("a line\n")
    with pytest.raises(SystemExit, match=message):
        run(**change)
