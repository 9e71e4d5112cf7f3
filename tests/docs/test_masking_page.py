"""The page on masking: its settings mask, its commands run, its figures are right, the engine drew its pictures."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import unmask
from tests.command_line import Main
from tests.docs.test_pages import smaller
from tests.masking.helpers import make_rows, tables_of
from unmask.core.settings import validated
from unmask.masking.masker import Masker
from unmask.masking.settings import STRATEGIES, MaskingSettings, rate_at
from unmask.tokenizer.tokenizer import Tokenizer

DOCS = Path(__file__).parents[2] / "docs"
PAGE = re.sub(  # without the table of strategies, whose script writes it
    r"<!-- strategies -->.*<!-- end strategies -->",
    "",
    (DOCS / "explanation" / "masking.md").read_text(encoding="utf-8"),
    flags=re.DOTALL,
)
FENCES = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SNIPPETS = [text for language, text in FENCES if language == "toml"]
PICTURES = re.findall(r"!\[[^\]]+\]\(\.\./(pictures/[^)]+)\)", PAGE)


@pytest.fixture(scope="module")
def drawing() -> Iterator[types.ModuleType]:
    """The script that makes the pictures, which lies outside of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        yield importlib.import_module("make_pictures")


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_settings_mask_as_much_as_they_say(tokenizer: Tokenizer, snippet: str) -> None:
    values = tomllib.loads(snippet)
    assert list(values) == ["masking"]
    settings = validated(MaskingSettings, values["masking"], where="docs/explanation/masking.md")
    tables = tables_of(tokenizer)
    rows = make_rows(tokenizer, 300, [100], mean_word=1.5)
    masked = Masker(settings, tokenizer, tables=tables)(rows)
    counts = (masked.labels >= 0).sum(1).double()
    expected = 100 * (settings.prediction_rate or rate_at(settings.rate, 0.0))
    assert abs(counts.mean() - expected) < 4 * counts.std() / 300**0.5 + 1e-9


def test_every_strategy_unit_and_weight_has_a_place() -> None:
    headings = re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE)
    assert sorted(headings) == sorted(STRATEGIES)
    schema = str(MaskingSettings.model_json_schema())
    kinds = set(re.findall(r"'const': '(\w+)'", schema)) - {"linear", "cosine", "steps", "uniform"}
    named = set(re.findall(r"`(\w+)`", PAGE.split("## More units and weights")[1].split("**")[0]))
    assert kinds <= named, kinds - named


@pytest.mark.slow
def test_commands_run(corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: Main) -> None:
    """On a small corpus with annotations, instead of an annotating pipeline."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_bytes(corpus_file.read_bytes())
    lines = [line for line in corpus_file.read_text("utf-8").splitlines() if line[:1].strip()]
    rows = [{"text": line, "entities": [[0, len(line.split()[0]), "WORD"]]} for line in lines]
    (tmp_path / "tagged.jsonl").write_text("\n".join(map(json.dumps, rows)))
    main("prepare", "corpus.txt", "--out", "data/mine", "--vocab-size", 200)
    commands = [shlex.split(line)[1:] for language, text in FENCES if not language for line in text.splitlines()]
    assert [command[0] for command in commands] == ["masks", "audit", "prepare", "pretrain", "lexicon", "masks"]
    for command in commands:
        arguments = list(command)
        if command[0] == "prepare":
            arguments[arguments.index("corpus.txt")] = "tagged.jsonl"
            arguments[arguments.index("--annotate") + 1] = "entities"
            arguments += ["--vocab-size", "200"]
        code, _, err = main(*smaller(*arguments))
        assert code == 0, err


def test_the_python_snippet_runs(run: unmask.Run, capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = [text for language, text in FENCES if language == "python"]
    exec(compile(snippet.replace("runs/mine/model", str(run.folder / "model")), "masking.md", "exec"), {})
    assert re.match(r"\d+ tokens are predicted", capsys.readouterr().out)


def test_pictures_are_whole_and_in_their_place(drawing: types.ModuleType) -> None:
    assert {Path(name).stem for name in PICTURES} == {*drawing.all_settings(), "strategies"}
    shown = {
        name
        for page in DOCS.rglob("*.md")
        for name in re.findall(r"\]\(\.\./pictures/([^)]+)\)", page.read_text("utf-8"))
    }
    assert {path.name for path in (DOCS / "pictures").iterdir()} == shown


def test_pictures_are_what_the_engine_makes_today(drawing: types.ModuleType, tmp_path: Path) -> None:
    """Pictures that need neither a pipeline nor a model; if masks change, `docs/make_pictures.py` draws them anew."""
    data = drawing.prepared(tmp_path / "data")
    tables = drawing.static_tables(data, tmp_path)
    for name in ("span", "pmi", "contextual"):
        drawn = drawing.draw(name, drawing.all_settings()[name], data.tokenizer, tables)
        assert drawn == (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8"), name
