"""The model's card: its header as the hub reads it, its figures those of the run, its snippets running."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

import unmask
from unmask.core.results import FillExample
from unmask.data.data_folder import load_manifest
from unmask.report.cards import PLACE, write_card

MINIMAL_RECIPE: dict[str, dict[str, Any]] = {
    "model": {"layout": "bert", "max_position_embeddings": None},
    "training": {"sequence_length": 64},
    "masking": {"strategy": None, "units": {"lexicon": "/home/someone/mine.lexicon"}},
    "tokenizer": {"path": "/home/someone/secret/tokenizer"},
}


def card_of(run: unmask.Run) -> str:
    return (run.folder / "model" / "README.md").read_text(encoding="utf-8")


def written(run: unmask.Run, folder: Path, **changes: Any) -> ModelCard:
    """The card of a run, with another recipe, summary or manifest."""
    manifest = load_manifest(run.folder / "data")
    options = {"recipe": MINIMAL_RECIPE, "manifest": manifest, "summary": run.summary, "mask_token": "[MASK]"}
    write_card(folder, **(options | changes))
    return ModelCard.load(folder / "README.md")


def test_the_header_is_what_the_hub_reads(run: unmask.Run) -> None:
    data = ModelCard(card_of(run)).data
    assert (data.library_name, data.pipeline_tag, data.license) == ("transformers", "fill-mask", None)
    assert data.to_dict()["mask_token"] == "[MASK]"
    assert {"modernbert", "sentence-transformers", "unmask"} <= set(data.tags)
    assert {data.language, data.base_model, data.datasets} == {None}, "nothing is guessed"
    [index] = data.to_dict()["model-index"]
    [result] = index["results"]
    assert result["dataset"] == {"name": "corpus.txt", "type": "custom", "split": "validation"}
    metrics = {each["type"]: each["value"] for each in result["metrics"]}
    assert metrics == {name: run.summary[f"validation_{name}"] for name in ("loss", "accuracy", "perplexity")}


def test_figures_are_those_of_the_run(run: unmask.Run) -> None:
    card, summary, manifest = card_of(run), run.summary, load_manifest(run.folder / "data")
    low, high = summary["validation_loss_interval"]
    for text in (
        f"| {summary['validation_loss']:.3f} ± {(high - low) / 2:.3f} |",
        f"| {manifest.train.documents:,} | {manifest.train.bytes:,} | {manifest.train.tokens:,} |",
        manifest.fingerprint,
        "start = 0.5\nend = 0.2",
    ):
        assert text in card, text
    assert "nan" not in card.lower().replace("nano", "")


def test_the_snippets_run(run: unmask.Run, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("sentence_transformers")
    snippets = re.findall(r"```python\n(.*?)```", card_of(run), re.DOTALL)
    assert len(snippets) == 3
    for snippet in snippets:
        exec(compile(snippet.replace(PLACE, str(run.folder / "model")), "README.md", "exec"), {})
    assert capsys.readouterr().out.count("token") >= 4


def test_its_example_is_one_that_the_model_knows_unless_text_is_private(run: unmask.Run, tmp_path: Path) -> None:
    [prompt] = re.findall(r'fill\((".*?"), top_k=3\)', card_of(run))
    assert len(json.loads(prompt).split()) > 2
    [guess] = re.findall(r'# of held-out text; its first guess is right: "(.*?)" ', card_of(run))
    assert run.model.fill(json.loads(prompt), top_k=1).masks[0][0].text == guess
    example = FillExample('a "secret" [MASK]', "word", 0.5)
    private, public = (
        written(run, tmp_path, recipe=MINIMAL_RECIPE | {"card": {"quote": quote}}, example=example).text
        for quote in (False, True)
    )
    assert ("secret" in private, "secret" in public) == (False, True)


@pytest.mark.parametrize(
    ("checkpoint", "name", "base"),
    [
        ("/home/someone/runs/novels/model", "`novels` (sha256 `abababababab`)", None),
        ("google-bert/bert-base-uncased@0123", "`google-bert/bert-base-uncased@0123`", "google-bert/bert-base-uncased"),
    ],
)
def test_a_model_that_began_as_another(
    run: unmask.Run, tmp_path: Path, checkpoint: str, name: str, base: str | None
) -> None:
    start = {"checkpoint": checkpoint, "sha256": "ab" * 32, "new_head": True, "positions": [64, 128], "new_words": 1000,
             "base_models": [base] if base else []}  # fmt: skip
    after = {"bits_per_token_byte": 0.9942, "bits_per_token_byte_interval": [0.9, 1.1], "documents": 7}
    domains = {"new": {"before": {"bits_per_token_byte": 2.8351}, "after": after}, "old": None}
    card = written(run, tmp_path, summary=run.summary | {"start": start, "domains": domains})
    for text in (name, "64 to 128 positions", "1,000 words", "(documents: 7) | 2.835 | 0.994 ± 0.100 |"):
        assert text in card.text, text
    assert "someone" not in card.content
    assert (card.data.base_model, card.data.get("base_model_relation")) == (base, base and "finetune")


def test_a_run_with_less_and_with_more(run: unmask.Run, tmp_path: Path) -> None:
    """One held-out document, an objective beside masked tokens, paths, a remark, a `|` in a table's cell."""
    summary = run.summary | {
        "validation_loss_stderr": None, "validation_loss_interval": None, "bits_per_token_byte_interval": None,
        "validation_documents": 1, "validation_warning": "there is one document",
        "objectives": {"sentence_order": {"loss": 0.5, "accuracy": 0.75, "count": 1200}},
    }  # fmt: skip
    card = written(run, tmp_path, summary=summary, mask_token='<"mask>', remark="it is stuck")
    loss = f"| {summary['validation_loss']:.3f} |"
    quoted = ('lexicon = "mine.lexicon"', 'path = "tokenizer"', '.fill("<\\"mask>", top_k=3)')
    for text in (loss, "There is one document.", "1,200 | 75.0% |", "**It is stuck.**", *quoted):
        assert text in card.text, text
    assert "someone" not in card.content
    assert card.data["mask_token"] == '<"mask>'


def test_odd_names_of_files(run: unmask.Run, tmp_path: Path) -> None:
    """They are names in the header and in the text, whatever characters they contain."""
    names = ["a: b.txt", 'it\'s "quoted" # no.txt', "line\n---\nbreak.txt", "`code` | cell.txt", "<b>ünï\x85.txt",
             "\udcff.txt"]  # fmt: skip

    def card_with(paths: list[str]) -> ModelCard:
        sources = [{"path": path, "bytes": 1} for path in paths]
        return written(run, tmp_path, manifest=replace(load_manifest(run.folder / "data"), sources=sources))

    card = card_with([f"/home/someone/{name}" for name in names])
    assert card.data.eval_results[0].dataset_name == ", ".join(names).translate({0xDCFF: "?", 0x85: " "})
    assert card.text.startswith("\n# bert")
    for name in ("`a: b.txt`", "`line --- break.txt`", "`` `code` | cell.txt ``", "`<b>ünï .txt`", "`?.txt`"):
        assert name in card.text
    many = card_with([f"/{n}.txt" for n in range(20)])
    assert many.data.eval_results[0].dataset_name.endswith("7.txt and 12 more")
    assert "Sources: `0.txt`, " in many.text
    assert "`7.txt` and 12 more.\n" in many.text
