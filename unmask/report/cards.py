"""Cards of pretrained and fine-tuned models: README.md of a model folder, whose head the hub reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from unmask.core.files import write_atomically
from unmask.core.results import documents, margin, over, sentence, unit_of_summary
from unmask.data.data_folder import Manifest
from unmask.model.card_head import CARD, CardSettings, Origin, card_head, encodable, name_of_folder
from unmask.report.pages import TEMPLATES
from unmask.tasks.settings import FinetuneSettings
from unmask.tasks.task import Task

# Parts of cards in Markdown, whatever a user's files and labels are called: names, tables, settings.

_BREAKS = re.compile(r"[\x00-\x1f\x7f]")


def as_code(text: str) -> str:
    """A name as Markdown shows it letter by letter, on one line, whatever signs are in it."""
    plain = _BREAKS.sub(" ", encodable(text))
    fence = "`" * (max((len(run) for run in re.findall("`+", plain)), default=0) + 1)
    space = " " if plain[:1] in "` " or plain[-1:] in "` " else ""
    return f"{fence}{space}{plain}{space}{fence}" if plain.strip() else "(empty)"


def called(origin: Origin) -> str:
    """What a model is called: its name and commit on the hub, or its folder and the beginning of its hash."""
    checkpoint = Path(origin.checkpoint)
    if not checkpoint.is_absolute():
        return as_code(origin.checkpoint)
    return f"{as_code(name_of_folder(checkpoint))} (sha256 `{origin.sha256[:12]}`)"


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose other columns are numbers."""
    lines = [names, ["---"] + ["---:"] * (len(names) - 1), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def toml(content: Mapping[str, Any]) -> str:
    """Settings as TOML; those without a value are left out, and of paths the name stays."""
    return f"```toml\n{tomli_w.dumps(_plain(content)).strip()}\n```"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str) and Path(value).is_absolute():
        return Path(value).name  # a card travels, and the machine that it was made on is private
    return value


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
    """Writes the card of a pretrained model, with what the reader must know of the result as a remark, if anything.

    The recipe is given by section. Licence and language are those of its section `card`: only the user knows them.
    """
    start, masking = summary.get("start"), recipe["masking"]
    origin = None
    began = "An encoder that was pretrained from raw text with `unmask`"
    knows = "and knows nothing else; what is wrong, private or one-sided in that text"
    if start is not None:
        origin = Origin(str(start["checkpoint"]), start["sha256"], tuple(start.get("base_models") or ()))
        changes = [f"An encoder that began as {called(origin)}."]
        if start["new_head"]:
            changes.append("It had no head for masked tokens, so one was drawn.")
        if start["positions"] is not None:
            changes.append("It was made longer, from {:,} positions to {:,}.".format(*start["positions"]))
        if start["new_words"]:
            changes.append(f"{start['new_words']:,} words were added to its vocabulary.")
        began = " ".join([*changes, "Trained on with `unmask`"])
        knows = (
            f"after all that {called(origin)} was trained on, whose licence and limits hold here too; what is wrong, "
            "private or one-sided in either"
        )
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
    strategy = f"Strategy `{masking['strategy']}`" if masking["strategy"] else "A strategy of its own"
    masks = "dynamic masks that are a function of seed, epoch and text"
    if masking.get("static"):
        masks = "static masks that are a function of seed and text"
    settings = toml({"masking": {name: value for name, value in masking.items() if name != "strategy"}})
    # Bits per byte of hidden tokens before and after, on the new text and on the old, where they were measured.
    domains, rows = summary.get("domains") or {}, []
    for name, text in (("new", "the data above"), ("old", "the model's own domain")):
        if (measured := domains.get(name)) is not None:
            rows.append([f"held-out text of {text}", *(_bits(measured[when]) for when in ("before", "after"))])
    size = summary["num_parameters"]
    card = TEMPLATES.get_template("card.md").render(
        head=head,
        layout=recipe["model"]["layout"],
        size=f"{size / 1e6:.1f}M" if size >= 1e6 else f"{size:,}",
        mask_token=json.dumps(mask_token, ensure_ascii=False),  # strings of JSON are strings of Python
        place=PLACE,
        origin=began,
        summary=summary,
        remark=None if remark is None else sentence(remark),
        data=_data_of_run(manifest),
        masking=f"{strategy}, with {masks}:\n\n{settings}",
        documents=documents(summary),
        figures=_figures_of_run(summary),
        warning=sentence(summary["validation_warning"] or ""),
        over=over(unit_of_summary(summary)),
        domains=table(["", "before", "after"], rows) if rows else None,
        max_length=recipe["model"]["max_position_embeddings"] or recipe["training"]["sequence_length"],
        knows=knows,
        knows_old=domains.get("old") is not None,
        recipe=toml({name: section for name, section in recipe.items() if name not in ("masking", "card")}),
    )
    write_atomically(folder / CARD, card)


def _data_of_run(manifest: Manifest) -> str:
    files = [f"{as_code(Path(source['path']).name)} ({source['bytes']:,} bytes)" for source in manifest.sources]
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
            f"Sources: {', '.join(files)}.",
            table(["", "documents", "bytes", "tokens", "unknown tokens"], rows),
            f"{manifest.plan[:1].upper()}{manifest.plan[1:]}. Left out: {skipped}.{near} "
            f"Vocabulary: {manifest.vocab_size:,}.",
            f"Fingerprint of the data: `{manifest.fingerprint}`",
        ]
    )


def _figures_of_run(summary: Mapping[str, Any]) -> str:
    loss = f"{summary['validation_loss']:.3f}{margin(summary['validation_loss_interval'])}"
    rows = [
        ["loss, nats per hidden token", loss],
        [
            "entropy of the token frequencies (what a model without context reaches)",
            f"{summary['unigram_entropy']:.3f}",
        ],
        ["hidden tokens predicted right", f"{summary['validation_accuracy']:.1%}"],
        ["perplexity", f"{summary['validation_perplexity']:.1f}"],
        ["bits per byte of hidden tokens", _bits(summary)],
        ["hidden tokens", f"{summary['predicted_tokens']:,}"],
    ]
    for name, figures in summary.get("objectives", {}).items():
        rows.append([f"{name.replace('_', ' ')}: right of {figures['count']:,}", f"{figures['accuracy']:.1%}"])
    return table(["", f"value ({over(unit_of_summary(summary))})"], rows)


def _bits(figures: Mapping[str, Any]) -> str:
    bits = figures["bits_per_token_byte"]
    return "-" if bits is None else f"{bits:.3f}{margin(figures.get('bits_per_token_byte_interval'))}"


MOST_CLASSES = 50
_PARTS = {"validation": ("metrics", ""), "test": ("test_metrics", "test_")}  # of a summary; what its means begin with
# What the hub calls a metric, where that is another name than ours. Those of entities are seqeval's.
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

    Args:
        folder: Of the model.
        task: What it does.
        summary: As in summary.json.
        settings: Of the fine-tuning; `card` says what only the user knows.
        files: Names of the files: train, validation and perhaps test.
        classes: How many examples of the training file have each class or tag; empty where there are none.
        max_length: Longest input in tokens, special tokens included.
        origin: What it was before.
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
            (
                files[part],
                part,
                {_shown_name(name): (_HUB_NAMES.get(name, name), value) for name, value in metrics.items()},
            )
            for part, (key, _) in _PARTS.items()
            if (metrics := summary.get(key))
        ],
    )
    counts = ("records", "inputs", "truncated", "split")
    examples = [
        [f"{part}: {as_code(files[part])}", *(f"{numbers[key]:,}" for key in counts)]
        for part, numbers in summary["examples"].items()
    ]
    # The commonest classes of the training file; many of them would be too long a table.
    ranked = sorted(classes.items(), key=lambda pair: -pair[1])
    class_rows = [[as_code(name), f"{count:,}"] for name, count in ranked[:MOST_CLASSES]]
    more = f"\n\nAnd {len(ranked) - MOST_CLASSES:,} more, which are rarer." if len(ranked) > MOST_CLASSES else ""
    unit = "tag" if task.pipeline == "token-classification" else "class"
    # All that a training with the same files needs, with the learning rate and the columns as resolved.
    values = {**settings.model_dump(exclude={"card", "columns"}), "learning_rate": summary["learning_rate"]}
    card = TEMPLATES.get_template("task_card.md").render(
        head=head,
        task=task,
        place=PLACE,
        called=called(origin),
        starts_anew=settings.initial_weights == "random",
        has_base=bool(origin.base_models),
        summary=summary,
        own=own,
        column=as_code(columns["label"]) if "label" in columns else None,
        of_entities="entity_f1" in summary["metrics"],
        data=table(["file", "examples", "inputs", "cut at the end", "seen in parts"], examples),
        classes=table([unit, "times"], class_rows) + more if classes else None,
        figures=_figures_of_task(summary, files),
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


def _figures_of_task(summary: Mapping[str, Any], files: Mapping[str, str]) -> str:
    """A row a metric: of the saved model, and of several seeds the mean, on each file."""
    several = len(summary["seeds"]) > 1
    parts = {part: keys for part, keys in _PARTS.items() if part in files}
    heads = ["metric"]
    for part in parts:
        heads += [part, *([f"{part}, mean of {len(summary['seeds'])} seeds ({over('seeds')})"] if several else [])]
    rows = []
    for name in summary["metrics"]:
        row = [_shown_name(name)]
        for key, prefix in parts.values():
            row.append(_number(summary[key][name]))
            if several:
                spread = summary[f"{prefix}margin"][name]
                mean = _number(summary[f"{prefix}mean"][name])
                row.append(mean if spread is None else f"{mean} ± {_number(spread)}")
        rows.append(row)
    return table(heads, rows)


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"
