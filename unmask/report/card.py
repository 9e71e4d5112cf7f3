"""README.md of a model folder: the model's card, written from the run. Its header is what the hub reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from unmask.files import write_atomically
from unmask.margins import documents, margin, over, sentence, unit_of_summary
from unmask.report.card_start import base_model, called, changed, domain_rows
from unmask.report.card_use import how_to_use
from unmask.tokens.manifest import Manifest

CARD = "README.md"


def write_card(
    folder: Path,
    *,
    recipe: Mapping[str, Any],
    manifest: Manifest,
    summary: Mapping[str, Any],
    mask_token: str,
    remark: str | None = None,
) -> None:
    """Writes the card. A licence is not named: only the user knows it.

    Args:
        folder: Of the model.
        recipe: Settings by section.
        manifest: Ledger of the data.
        summary: As in summary.json.
        mask_token: As the tokenizer spells it.
        remark: What the reader must know of the result, if anything.
    """
    layout = recipe["model"]["layout"]
    title = f"{layout}, {_size(summary['num_parameters'])} parameters, masked language model"
    parts = [
        _header(layout, mask_token, summary.get("start")),
        f"# {title}",
        f"{_origin(summary.get('start'))}: {summary['steps']:,} steps, "
        f"{summary['tokens_seen']:,} tokens of text, {summary['seconds'] / 60:.1f} minutes on {summary['device']}.",
        *([f"**{sentence(remark)}**"] if remark else []),
        "## How to use it",
        how_to_use(mask_token),
        "## Data",
        _ledger(manifest),
        "## Masking",
        _masking(recipe["masking"]),
        "## Evaluation",
        _evaluation(summary),
        "## Limits",
        _limits(summary, recipe),
        "## Recipe",
        _recipe(recipe),
    ]
    write_atomically(folder / CARD, "\n\n".join(parts) + "\n")


def _header(layout: str, mask_token: str, start: Mapping[str, Any] | None) -> str:
    """YAML; strings are quoted as JSON does, which is YAML too."""
    base = None if start is None else base_model(start)
    tags = ["unmask", "masked-language-model", layout, "fill-mask", "feature-extraction", "sentence-transformers"]
    lines = ["library_name: transformers", "pipeline_tag: fill-mask", f"mask_token: {json.dumps(mask_token)}"]
    lines += [] if base is None else [f"base_model: {json.dumps(base)}"]
    return "\n".join(["---", *lines, "tags:", *(f"- {tag}" for tag in tags), "---"])


def _origin(start: Mapping[str, Any] | None) -> str:
    if start is None:
        return "An encoder that was pretrained from raw text with `unmask`"
    return " ".join(
        filter(None, [f"An encoder that began as {called(start)}.", changed(start), "Trained on with `unmask`"])
    )


def _size(number: int) -> str:
    return f"{number / 1e6:.1f}M" if number >= 1e6 else f"{number:,}"


def _table(names: list[str], rows: list[list[str]]) -> str:
    lines = [names, ["---"] + ["---:"] * (len(names) - 1), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _ledger(manifest: Manifest) -> str:
    sources = ", ".join(f"`{Path(source['path']).name}` ({source['bytes']:,} bytes)" for source in manifest.sources)
    rows = [
        [name, *(f"{value:,}" for value in (split.documents, split.bytes, split.tokens, split.unknown_tokens))]
        for name, split in (("training", manifest.train), ("held out", manifest.validation))
    ]
    skipped = ", ".join(f"{number:,} {reason}" for reason, number in manifest.skipped.items()) or "nothing"
    near = f" Held-out documents that also stand in the training text: {manifest.overlap:,}."
    if manifest.near_duplicates is not None:
        near = f" {manifest.near_duplicates.sentence}"
    return "\n\n".join(
        [
            f"Sources: {sources}.",
            _table(["", "documents", "bytes", "tokens", "unknown tokens"], rows),
            f"{manifest.plan[:1].upper()}{manifest.plan[1:]}. Left out: {skipped}.{near} "
            f"Vocabulary: {manifest.vocab_size:,}.",
            f"Fingerprint of the data: `{manifest.fingerprint}`",
        ]
    )


def _masking(masking: Mapping[str, Any]) -> str:
    strategy = masking["strategy"]
    named = f"Strategy `{strategy}`" if strategy else "A strategy of its own"
    content = {"masking": {name: value for name, value in masking.items() if name != "strategy"}}
    masks = (
        "static masks that are a function of seed and text"
        if masking.get("static")
        else "dynamic masks that are a function of seed, epoch and text"
    )
    return f"{named}, with {masks}:\n\n{_toml(content)}"


def _evaluation(summary: Mapping[str, Any]) -> str:
    rows = [
        [
            "loss, nats per hidden token",
            f"{summary['validation_loss']:.3f}{margin(summary['validation_loss_interval'])}",
        ],
        [
            "entropy of the token frequencies (what a model without context reaches)",
            f"{summary['unigram_entropy']:.3f}",
        ],
        ["hidden tokens predicted right", f"{summary['validation_accuracy']:.1%}"],
        ["perplexity", f"{summary['validation_perplexity']:.1f}"],
        [
            "bits per byte of hidden tokens",
            f"{summary['bits_per_token_byte']:.3f}{margin(summary['bits_per_token_byte_interval'])}",
        ],
        ["hidden tokens", f"{summary['predicted_tokens']:,}"],
    ]
    for name, figures in summary.get("objectives", {}).items():
        rows.append([f"{name.replace('_', ' ')}: right of {figures['count']:,}", f"{figures['accuracy']:.1%}"])
    parts = [
        f"On held-out text ({documents(summary)}), with fixed masks of 15 % of the tokens that are the same for every "
        "strategy:",
        _table(["", f"value ({over(unit_of_summary(summary))})"], rows),
    ]
    if summary["validation_warning"] is not None:
        parts.append(sentence(summary["validation_warning"]))
    if compared := domain_rows(summary.get("domains") or {}):
        parts += [
            f"Bits per byte of hidden text ({over(unit_of_summary(summary))}):",
            _table(["", "before", "after"], compared),
        ]
    return "\n\n".join(parts)


def _limits(summary: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    max_length = recipe["model"]["max_position_embeddings"] or recipe["training"]["sequence_length"]
    knows_old = (summary.get("domains") or {}).get("old") is not None
    sources = "the same sources and from the checkpoint's own domain" if knows_old else "the same sources"
    points = [
        f"Inputs are at most {max_length:,} tokens long, special tokens included.",
        f"It saw {summary['epochs']:.1f} epochs of the text above {_knows(summary.get('start'))} may come back in its "
        "predictions.",
        f"The figures are of text from {sources}. Nothing was measured on other text or on tasks.",
        "Sentence vectors are means over an encoder that was not trained to compare sentences: fine-tune it for that.",
    ]
    return "\n".join(f"- {point}" for point in points)


def _knows(start: Mapping[str, Any] | None) -> str:
    if start is None:
        return "and knows nothing else; what is wrong, private or one-sided in that text"
    return (
        f"after all that {called(start)} was trained on, whose licence and limits hold here too; what is wrong, "
        "private or one-sided in either"
    )


def _recipe(recipe: Mapping[str, Any]) -> str:
    shown = {name: section for name, section in recipe.items() if name != "masking"}
    return (
        f"Every other setting, as a file for `unmask pretrain --recipe`:\n\n<details>\n\n{_toml(shown)}\n\n</details>"
    )


def _toml(content: Mapping[str, Any]) -> str:
    return f"```toml\n{tomli_w.dumps(_plain(content)).strip()}\n```"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str) and Path(value).is_absolute():
        return Path(value).name  # a card travels, and whose machine this was is nobody's business
    return value
