"""The model's card: its header as the hub reads it, its figures those of the run, its snippets running."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

import unmask
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


def test_the_header_is_what_the_hub_reads(run: unmask.Run) -> None:
    data = ModelCard(card_of(run)).data
    assert (data.library_name, data.pipeline_tag, data.license) == ("transformers", "fill-mask", None)
    assert data.to_dict()["mask_token"] == "[MASK]"
    assert {"modernbert", "sentence-transformers", "unmask"} <= set(data.tags)
    assert {data.language, data.base_model, data.datasets} == {None}, "nothing is guessed"
    [index] = data.to_dict()["model-index"]
    [result] = index["results"]
    assert index["name"] == "short"
    assert result["task"] == {"type": "fill-mask", "name": "Masked Language Modeling"}
    assert result["dataset"] == {"name": "corpus.txt", "type": "custom", "split": "validation"}
    summary = json.loads((run.folder / "summary.json").read_text())
    figures = {"loss": "validation_loss", "accuracy": "validation_accuracy", "perplexity": "validation_perplexity"}
    assert {each["type"]: each["value"] for each in result["metrics"]} == {
        name: summary[key] for name, key in figures.items()
    }
    assert data.metrics == list(figures)


def test_figures_and_ledger_are_those_of_the_run(run: unmask.Run) -> None:
    card, summary, manifest = card_of(run), run.summary, load_manifest(run.folder / "data")
    low, high = summary["validation_loss_interval"]
    half = (high - low) / 2
    assert f"| loss, nats per hidden token | {summary['validation_loss']:.3f} ± {half:.3f} |" in card
    assert "|  | value (± 95 %, over documents) |" in card
    assert f"On held-out text ({summary['validation_documents']} documents)" in card
    assert f"| training | {manifest.train.documents:,} | {manifest.train.bytes:,} | {manifest.train.tokens:,} |" in card
    assert manifest.fingerprint in card
    assert "`corpus.txt`" in card
    assert "Left out: nothing." in card
    assert 'kind = "linear"\nstart = 0.3\nend = 0.15' in card, "the rate's schedule"
    assert "nan" not in card.lower().replace("nano", "")


def test_the_snippets_run(run: unmask.Run, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("sentence_transformers")
    snippets = re.findall(r"```python\n(.*?)```", card_of(run), re.DOTALL)
    assert len(snippets) == 3
    for snippet in snippets:
        exec(compile(snippet.replace(PLACE, str(run.folder / "model")), "README.md", "exec"), {})
    assert capsys.readouterr().out.count("token") >= 4


@pytest.mark.parametrize(
    ("checkpoint", "called", "base"),
    [
        ("/home/someone/runs/novels/model", "`novels` (sha256 `abababababab`)", None),
        ("google-bert/bert-base-uncased@0123", "`google-bert/bert-base-uncased@0123`", "google-bert/bert-base-uncased"),
    ],
)
def test_a_model_that_began_as_another(
    run: unmask.Run, tmp_path: Path, checkpoint: str, called: str, base: str | None
) -> None:
    start = {"checkpoint": checkpoint, "sha256": "ab" * 32, "new_head": True, "positions": [64, 128], "new_words": 1000,
             "base_models": [base] if base else []}  # fmt: skip
    new = {
        "before": {"bits_per_token_byte": 2.8351},
        "after": {"bits_per_token_byte": 0.9942, "bits_per_token_byte_interval": [0.9, 1.1]},
    }
    summary = run.summary | {"start": start, "domains": {"new": new, "old": None}}
    manifest = load_manifest(run.folder / "data")
    write_card(tmp_path, recipe=MINIMAL_RECIPE, manifest=manifest, summary=summary, mask_token="[MASK]")
    card = (tmp_path / "README.md").read_text()
    assert f"An encoder that began as {called}. It had no head" in card
    assert "from 64 positions to 128. 1,000 words were added to its vocabulary. Trained on with `unmask`: " in card
    assert f"after all that {called} was trained on" in card
    assert "| held-out text of the data above | 2.835 | 0.994 ± 0.100 |" in card
    assert "The figures are of text from the same sources. " in card
    assert "knows nothing else" not in card
    assert "someone" not in card
    data = ModelCard(card).data
    assert (data.base_model, data.get("base_model_relation")) == (base, base and "finetune")


def test_a_run_with_less_and_with_more(run: unmask.Run, tmp_path: Path) -> None:
    """One held-out document, an objective beside masked tokens, paths, a remark, a sign that parts a table's cells."""
    summary = run.summary | {
        "validation_loss_stderr": None,
        "validation_loss_interval": None,
        "bits_per_token_byte_interval": None,
        "validation_documents": 1,
        "validation_warning": "there is one document",
        "objectives": {"sentence_order": {"loss": 0.5, "accuracy": 0.75, "count": 1200}},
    }
    manifest = load_manifest(run.folder / "data")
    write_card(
        tmp_path,
        recipe=MINIMAL_RECIPE | {"masking": {**MINIMAL_RECIPE["masking"], "static": True}},
        manifest=manifest,
        summary=summary,
        mask_token='<"mask>',
        remark="it is stuck",
    )
    card = (tmp_path / "README.md").read_text()
    assert f"| loss, nats per hidden token | {summary['validation_loss']:.3f} |" in card
    assert "On held-out text (1 document), with fixed masks" in card
    assert "\n\nThere is one document.\n\n" in card
    assert "| sentence order: right of 1,200 | 75.0% |" in card
    assert "**It is stuck.**" in card
    assert "A strategy of its own, with static masks that are a function of seed and text:" in card
    assert 'lexicon = "mine.lexicon"' in card
    assert 'path = "tokenizer"' in card
    assert "someone" not in card
    assert ModelCard(card).data["mask_token"] == '<"mask>'
    assert '.fill("<\\"mask>", top_k=3)' in card


def test_what_the_user_says_stands_in_the_head(run: unmask.Run, tmp_path: Path) -> None:
    """Codes that YAML would take for other things, and a licence of one's own."""
    manifest = load_manifest(run.folder / "data")
    card = {"license": "other", "license_name": "my-license-1.0", "license_link": "LICENSE", "language": ["no", "fin"]}
    write_card(
        tmp_path, recipe=MINIMAL_RECIPE | {"card": card}, manifest=manifest, summary=run.summary, mask_token="[MASK]"
    )
    found = ModelCard.load(tmp_path / "README.md")
    assert {name: found.data.get(name) for name in card} == card
    assert "my-license" not in found.text


def test_odd_names_of_files(run: unmask.Run, tmp_path: Path) -> None:
    """They are names in the head and in the text, whatever signs they have."""
    names = [
        "a: b.txt",
        'it\'s "quoted" # no.txt',
        "line\n---\nbreak.txt",
        "`code` | cell.txt",
        "<b>ünï\x85.txt",
        "\udcff.txt",
    ]
    manifest = dataclasses.replace(
        load_manifest(run.folder / "data"), sources=[{"path": f"/home/someone/{name}", "bytes": 1} for name in names]
    )
    write_card(tmp_path, recipe=MINIMAL_RECIPE, manifest=manifest, summary=run.summary, mask_token="[MASK]")
    card = ModelCard.load(tmp_path / "README.md")
    [result] = card.data.eval_results[:1]
    assert result.dataset_name == ", ".join(names).translate({0xDCFF: "?", 0x85: " "})
    assert card.text.startswith("\n# bert")
    assert (
        'Sources: `a: b.txt` (1 bytes), `it\'s "quoted" # no.txt` (1 bytes), `line --- break.txt` (1 bytes), '
        in card.text
    )
    assert "`` `code` | cell.txt `` (1 bytes), `<b>ünï .txt` (1 bytes), `?.txt` (1 bytes)." in card.text
    many = dataclasses.replace(manifest, sources=[{"path": f"/{n}.txt", "bytes": 1} for n in range(20)])
    write_card(tmp_path, recipe=MINIMAL_RECIPE, manifest=many, summary=run.summary, mask_token="[MASK]")
    [result] = ModelCard.load(tmp_path / "README.md").data.eval_results[:1]
    assert result.dataset_name == "0.txt, 1.txt, 2.txt, 3.txt, 4.txt, 5.txt, 6.txt, 7.txt and 12 more"
