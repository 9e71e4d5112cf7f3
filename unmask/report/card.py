"""README.md of a model folder: the model's card, written from the run. Its header is what the hub reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.files import write_atomically
from unmask.folders.card_head import (
    CARD,
    CardFigures,
    CardSettings,
    Origin,
    base_models,
    card_head,
    encodable,
    name_of_folder,
)
from unmask.margins import documents, margin, over, sentence, unit_of_summary
from unmask.report.markdown import as_code, called, table, toml
from unmask.report.page import TEMPLATES
from unmask.shards.manifest import Manifest

_MOST_SOURCES = 8
PLACE = "path/to/this/folder"  # in its snippets, which a test runs


def write_card(
    folder: Path,
    *,
    recipe: Mapping[str, Any],
    manifest: Manifest,
    summary: Mapping[str, Any],
    mask_token: str,
    remark: str | None = None,
) -> None:
    """Writes the card. Licence and language are those of the recipe's section `card`: only the user knows them.

    Args:
        folder: Of the model.
        recipe: Settings by section.
        manifest: Ledger of the data.
        summary: As in summary.json.
        mask_token: As the tokenizer spells it.
        remark: What the reader must know of the result, if anything.
    """
    start, text = summary.get("start"), TEMPLATES.get_template("card.md")
    origin = None if start is None else _origin_of(start)
    card = text.render(
        head=_head(folder, recipe, manifest, summary, mask_token, origin),
        layout=recipe["model"]["layout"],
        size=_size(summary["num_parameters"]),
        mask_token=json.dumps(mask_token, ensure_ascii=False),  # strings of JSON are strings of Python
        place=PLACE,
        origin=_began(origin, start),
        summary=summary,
        remark=None if remark is None else sentence(remark),
        ledger=_ledger(manifest),
        masking=_masking(recipe["masking"]),
        documents=documents(summary),
        figures=_figures(summary),
        warning=sentence(summary["validation_warning"] or ""),
        over=over(unit_of_summary(summary)),
        domains=table(["", "before", "after"], rows) if (rows := _domain_rows(summary.get("domains") or {})) else None,
        max_length=recipe["model"]["max_position_embeddings"] or recipe["training"]["sequence_length"],
        knows=_knows(origin),
        knows_old=(summary.get("domains") or {}).get("old") is not None,
        recipe=toml({name: section for name, section in recipe.items() if name not in ("masking", "card")}),
    )
    write_atomically(folder / CARD, card)


def _head(
    folder: Path,
    recipe: Mapping[str, Any],
    manifest: Manifest,
    summary: Mapping[str, Any],
    mask_token: str,
    origin: Origin | None,
) -> str:
    names = [Path(source["path"]).name for source in manifest.sources]
    more = f" and {len(names) - _MOST_SOURCES} more" if len(names) > _MOST_SOURCES else ""
    metrics = {
        "Loss, nats per hidden token": ("loss", summary["validation_loss"]),
        "Hidden tokens predicted right": ("accuracy", summary["validation_accuracy"]),
        "Perplexity of hidden tokens": ("perplexity", summary["validation_perplexity"]),
    }
    tags = ("unmask", "masked-language-model", recipe["model"]["layout"], "fill-mask", "feature-extraction")
    return card_head(
        CardSettings.model_validate(recipe.get("card") or {}),
        name=name_of_folder(folder),
        task=("fill-mask", "Masked Language Modeling"),
        tags=(*tags, "sentence-transformers"),
        base=() if origin is None else origin.base_models,
        figures=[CardFigures(", ".join(names[:_MOST_SOURCES]) + more, "validation", metrics)],
        mask_token=encodable(mask_token),
    )


def _origin_of(start: Mapping[str, Any]) -> Origin:
    """Runs of earlier versions did not note what the hub calls a model that came from a folder."""
    checkpoint = str(start["checkpoint"])
    known = start.get("base_models")
    if known is None:
        known = () if Path(checkpoint).is_absolute() else base_models(checkpoint, Path())
    return Origin(checkpoint, start["sha256"], tuple(known))


def _began(origin: Origin | None, start: Mapping[str, Any] | None) -> str:
    if origin is None or start is None:
        return "An encoder that was pretrained from raw text with `unmask`"
    return " ".join(
        filter(None, [f"An encoder that began as {called(origin)}.", _changed(start), "Trained on with `unmask`"])
    )


def _size(number: int) -> str:
    return f"{number / 1e6:.1f}M" if number >= 1e6 else f"{number:,}"


def _ledger(manifest: Manifest) -> str:
    sources = ", ".join(
        f"{as_code(Path(source['path']).name)} ({source['bytes']:,} bytes)" for source in manifest.sources
    )
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
            table(["", "documents", "bytes", "tokens", "unknown tokens"], rows),
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
    return f"{named}, with {masks}:\n\n{toml(content)}"


def _figures(summary: Mapping[str, Any]) -> str:
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
    return table(["", f"value ({over(unit_of_summary(summary))})"], rows)


def _knows(origin: Origin | None) -> str:
    if origin is None:
        return "and knows nothing else; what is wrong, private or one-sided in that text"
    return (
        f"after all that {called(origin)} was trained on, whose licence and limits hold here too; what is wrong, "
        "private or one-sided in either"
    )


def _changed(start: Mapping[str, Any]) -> str:
    """What was done to it before the training, in sentences; empty where nothing was."""
    found = []
    if start["new_head"]:
        found.append("It had no head for masked tokens, so one was drawn.")
    if start["positions"] is not None:
        before, after = start["positions"]
        found.append(f"It was made longer, from {before:,} positions to {after:,}.")
    if start["new_words"]:
        found.append(f"{start['new_words']:,} words were added to its vocabulary.")
    return " ".join(found)


def _domain_rows(domains: Mapping[str, Mapping[str, Mapping[str, Any]] | None]) -> list[list[str]]:
    """Bits per byte of hidden tokens before the training and after it, on the new text and on the old, where known."""
    return [
        [f"held-out text of {kind}", *(_bits(figures[when]) for when in ("before", "after"))]
        for name, kind in (("new", "the data above"), ("old", "the model's own domain"))
        if (figures := domains.get(name)) is not None
    ]


def _bits(figures: Mapping[str, Any]) -> str:
    bits = figures["bits_per_token_byte"]
    return "-" if bits is None else f"{bits:.3f}{margin(figures.get('bits_per_token_byte_interval'))}"
