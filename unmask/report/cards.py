"""Cards of pretrained, fine-tuned and embedding models: README.md of a model folder, whose head the hub reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from unmask.core.files import write_atomically
from unmask.core.results import documents, margin, over
from unmask.data.data_folder import Manifest
from unmask.model.card_head import CARD, CardSettings, Origin, card_head, encodable, name_of_folder
from unmask.model.pooling import POOLINGS
from unmask.report.pages import RECALL_HEADS, TEMPLATES, recall_rows, task_figures
from unmask.tasks.task import FinetuneSettings, Task

# Parts of cards in Markdown: names, tables and settings, safe for any name of a user's file or label.

_BREAKS = re.compile(r"[\x00-\x1f\x7f]")


def as_code(text: str) -> str:
    """A name as code in Markdown, shown literally and on one line, whatever characters it has."""
    plain = _BREAKS.sub(" ", encodable(text))
    fence = "`" * (max((len(run) for run in re.findall("`+", plain)), default=0) + 1)
    space = " " if plain[:1] in "` " or plain[-1:] in "` " else ""
    return f"{fence}{space}{plain}{space}{fence}" if plain.strip() else "(empty)"


def called(origin: Origin) -> str:
    """A model's name for readers: its name and commit on the hub, or its folder and the beginning of its hash."""
    checkpoint = Path(origin.checkpoint)
    if not checkpoint.is_absolute():
        return as_code(origin.checkpoint)
    return f"{as_code(name_of_folder(checkpoint))} (sha256 `{origin.sha256[:12]}`)"


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; all columns after the first are numbers."""
    lines = [names, ["---"] + ["---:"] * (len(names) - 1), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def toml(content: Mapping[str, Any]) -> str:
    """Settings as TOML, without those that have no value; absolute paths are cut to their names."""
    return f"```toml\n{tomli_w.dumps(_plain(content)).strip()}\n```"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    # Cards are published, and folders of the user's machine are private. A text may begin with a slash, too.
    if isinstance(value, str) and Path(value).is_absolute() and len(Path(value).parts) > 2:
        return Path(value).name
    return value


_MOST_SOURCES = 8
PLACE = TEMPLATES.globals["place"] = "path/to/this/folder"  # in code snippets, which a test runs


def write_card(
    folder: Path,
    *,
    recipe: Mapping[str, Any],
    manifest: Manifest,
    summary: Mapping[str, Any],
    mask_token: str,
    remark: str | None = None,
) -> None:
    """Writes the card of a pretrained model, with a remark that readers must know, if any.

    `recipe` holds settings by section. Licence and language are in its section `card`, since only the user knows them.
    """
    start, masking = summary.get("start"), recipe["masking"]
    origin = None
    if start is not None:
        origin = Origin(str(start["checkpoint"]), start["sha256"], tuple(start.get("base_models") or ()))
    names = [Path(source["path"]).name for source in manifest.sources]
    more = f" and {len(names) - _MOST_SOURCES} more" if len(names) > _MOST_SOURCES else ""
    tags = ("unmask", "masked-language-model", recipe["model"]["layout"], "fill-mask", "feature-extraction")
    metrics = {
        "Loss, nats per hidden token": ("loss", summary["validation_loss"]),
        "Hidden tokens predicted right": ("accuracy", summary["validation_accuracy"]),
        "Perplexity of hidden tokens": ("perplexity", summary["validation_perplexity"]),
    }
    head = card_head(
        CardSettings.model_validate(recipe.get("card") or {}),
        name=name_of_folder(folder),
        task=("fill-mask", "Masked Language Modeling"),
        tags=(*tags, "sentence-transformers"),
        base=() if origin is None else origin.base_models,
        figures=[(", ".join(names[:_MOST_SOURCES]) + more, "validation", metrics)],
        mask_token=encodable(mask_token),
    )
    # Bits per byte of hidden tokens before and after, on the new and on the old text, if measured.
    domains, rows = summary.get("domains") or {}, []
    for name, text in (("new", "the data above"), ("old", "the model's own domain")):
        if (measured := domains.get(name)) is not None:
            held = f"held-out text of {text} ({summary['validation_unit']}: {measured['after']['documents']:,})"
            rows.append([held, *(_bits(measured[when]) for when in ("before", "after"))])
    card = TEMPLATES.get_template("card.md").render(
        head=head,
        layout=recipe["model"]["layout"],
        # JSON strings are valid Python strings.
        prompt=json.dumps(mask_token, ensure_ascii=False),
        start=start,
        called=None if origin is None else called(origin),
        summary=summary,
        remark=remark,
        manifest=manifest,
        sources=", ".join(map(as_code, names[:_MOST_SOURCES])) + more,
        masking=masking,
        masking_settings=toml({"masking": {name: value for name, value in masking.items() if name != "strategy"}}),
        documents=documents(summary),
        margin=margin,
        bits=_bits(summary),
        over=over(summary["validation_unit"]),
        domains=table(["", "before", "after"], rows) if rows else None,
        max_length=recipe["model"]["max_position_embeddings"] or recipe["training"]["sequence_length"],
        knows_old=domains.get("old") is not None,
        recipe=toml({name: section for name, section in recipe.items() if name not in ("masking", "card")}),
    )
    write_atomically(folder / CARD, card)


def _bits(figures: Mapping[str, Any]) -> str:
    bits = figures["bits_per_token_byte"]
    return "-" if bits is None else f"{bits:.3f}{margin(figures.get('bits_per_token_byte_interval'))}"


MOST_CLASSES = 50
# The hub's names of metrics, if they differ from ours. Metrics of entities have the names of seqeval's.
_HUB_NAMES = {
    "macro_f1": "f1",
    "micro_f1": "f1",
    "entity_f1": "f1",
    "entity_precision": "precision",
    "entity_recall": "recall",
    "subset_accuracy": "accuracy",
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "ranking_precision": "label_ranking_average_precision",
}
_SHOWN_NAMES = {
    "rmse": "Root mean squared error",
    "matthews": "Matthews correlation",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "ranking_precision": "Label ranking average precision",
}


def write_task_card(
    folder: Path,
    *,
    task: Task,
    summary: Mapping[str, Any],
    settings: FinetuneSettings,
    files: Mapping[str, str],
    classes: Mapping[str, int],
    max_length: int,
    origin: Origin,
) -> None:
    """Writes the card of a fine-tuned model.

    `files` has the names of the files by their part, `classes` the number of training examples with each class or tag.
    """
    own = task.task_head.own
    columns: Mapping[str, str] = own.get("columns", {})
    head = card_head(
        settings.card,
        name=name_of_folder(folder),
        task=(task.pipeline, task.pipeline.replace("-", " ").title()),
        tags=("unmask", task.pipeline, task.kind.replace("_", "-")),
        base=() if settings.initial_weights == "random" else origin.base_models,
        figures=[
            (files[part], part, {_shown_name(name): (_HUB_NAMES.get(name, name), metrics[name]) for name in metrics})
            for part, key in (("validation", "metrics"), ("test", "test_metrics"))
            if (metrics := summary.get(key))
        ],
    )
    counts = ("records", "inputs", "truncated", "split")
    rows = [
        [f"{part}: {as_code(files[part])}", *(f"{numbers[key]:,}" for key in counts)]
        for part, numbers in summary["examples"].items()
    ]
    # The most frequent classes of the training file, since there may be too many for a table.
    ranked = sorted(classes.items(), key=lambda pair: -pair[1])
    class_rows = [[as_code(name), f"{count:,}"] for name, count in ranked[:MOST_CLASSES]]
    more = f"\n\nAnd {len(ranked) - MOST_CLASSES:,} rarer ones." if len(ranked) > MOST_CLASSES else ""
    unit = "tag" if task.pipeline == "token-classification" else "class"
    # All that repeating the training with the same files needs; learning rate and columns as resolved.
    values = {**settings.model_dump(exclude={"card", "columns"}), "learning_rate": summary["learning_rate"]}
    heads, figures = task_figures(summary)
    card = TEMPLATES.get_template("task_card.md").render(
        head=head,
        task=task,
        called=called(origin),
        starts_anew=settings.initial_weights == "random",
        has_base=bool(origin.base_models),
        summary=summary,
        own=own,
        column=as_code(columns["label"]) if "label" in columns else None,
        of_entities="entity_f1" in summary["metrics"],
        data=table(["file", "examples", "inputs", "cut at the end", "seen in parts"], rows),
        classes=table([unit, "times"], class_rows) + more if classes else None,
        figures=table(["metric", *heads], [[_shown_name(name), *row] for name, row in figures.items()]),
        metric=_shown_name(summary["metric"]),
        chosen_on=as_code(files["validation"]),
        test=as_code(files["test"]) if "test" in files else None,
        max_length=max_length,
        settings=toml({"finetune": values | ({"columns": columns} if columns else {})}),
    )
    write_atomically(folder / CARD, card)


def _shown_name(metric: str) -> str:
    words = _SHOWN_NAMES.get(metric, metric.replace("_", " ").replace("f1", "F1"))
    return words[:1].upper() + words[1:]


def write_embedder_card(
    folder: Path,
    *,
    summary: Mapping[str, Any],
    settings: Mapping[str, Any],
    card: CardSettings,
    files: Sequence[str],
    origin: Origin,
) -> None:
    """Writes the card of an embedding model; `card` has what only the user knows, `files` names its training files."""
    sparse = summary["sparse"]
    kinds = ("sparse-encoder", "splade") if sparse else ("sentence-similarity", "feature-extraction")
    head = card_head(
        card,
        name=name_of_folder(folder),
        task=("feature-extraction", "Feature Extraction") if sparse else (kinds[0], "Sentence Similarity"),
        tags=("unmask", "sentence-transformers", *kinds),
        base=origin.base_models,
        library="sentence-transformers",
    )
    text = TEMPLATES.get_template("embedder_card.md").render(
        head=head,
        called=called(origin),
        has_base=bool(origin.base_models),
        summary=summary,
        files=", ".join(map(as_code, files)),
        figures=table(RECALL_HEADS, recall_rows(summary)) if summary["after"] is not None else None,
        pooling=POOLINGS[settings["pooling"]].description,
        settings=toml({"embedder": settings}),
    )
    write_atomically(folder / CARD, text)
