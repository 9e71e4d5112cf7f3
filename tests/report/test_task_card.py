"""The card of a fine-tuned model: odd names, missing figures, and the base model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from unmask.model.card_head import Origin
from unmask.report.cards import MOST_CLASSES, write_task_card
from unmask.report.pages import WORST_CHARS, worst_of
from unmask.tasks.classify import Classify, ClassPrediction, MultiLabel, Pairs, TextRecord
from unmask.tasks.tag import Tag, TagsPrediction, WordsRecord
from unmask.tasks.task import FinetuneSettings, Judged, Task

COUNTS = {"records": 1200, "inputs": 1201, "truncated": 2, "split": 3}


def written(folder: Path, task: Task, **changes: Any) -> ModelCard:
    """The card of a result with two seeds and one metric, which is not defined on the test file."""
    summary = {
        "metric": "matthews", "metrics": {"matthews": 0.125}, "mean": {"matthews": 0.1}, "margin": {"matthews": 0.05},
        "test_metrics": {"matthews": None}, "test_mean": {"matthews": None}, "test_margin": {"matthews": None},
        "seeds": [{}, {}], "examples": dict.fromkeys(("train", "validation", "test"), COUNTS),
        "learning_rate": 0.5, "num_parameters": 1234, "warning": None,
    }  # fmt: skip
    options: dict[str, Any] = {
        "settings": FinetuneSettings(), "classes": {}, "max_length": 512,
        "files": {"train": "train.csv", "validation": "dev.csv", "test": "test.csv"},
        "origin": Origin("/home/someone/runs/novels/model", "ab" * 32),
    }  # fmt: skip
    write_task_card(folder, task=task, summary=summary, **(options | changes))
    return ModelCard.load(folder / "README.md")


def test_names_of_files_and_labels_are_names_whatever_they_are(tmp_path: Path) -> None:
    odd = ["a: 'b' \"c\" # |.csv", "---\n---\n# head\n.csv", "<script>`x`</script>ü.csv"]
    labels = {"| cell | `code` |": 9, "\n```\n## Heading": 8, "": 7, "yes": 1, "<b>{{ 1 }}": 1}
    values = {"class_weights": {"\n```\n# out": 2.0}, "label_separator": "/", "card": {"license": "mit"}}
    settings = FinetuneSettings.model_validate(values)
    files = dict(zip(("train", "validation", "test"), odd, strict=True))
    task = Classify(tuple(labels), columns={"label": 'my "label"\n'})
    card = written(tmp_path, task, files=files, classes=labels, settings=settings)
    [result] = card.data.eval_results
    assert (result.dataset_name, result.dataset_split, result.metric_value) == (odd[1], "validation", 0.125)
    assert card.data.to_dict()["license"] == "mit"
    headings = [line for line in card.text.splitlines() if line.startswith("#")]
    assert len(headings) == 6, "none of a name"
    assert card.text.count("\n```") == 6, "two snippets and the settings"
    assert "| ``\\| cell \\| `code` \\|`` | 9 |\n| ````  ``` ## Heading ```` | 8 |\n| (empty) | 7 |\n" in card.text
    assert "| `<b>{{ 1 }}` | 1 |" in card.text
    assert "| test: ``<script>`x`</script>ü.csv`` | 1,200 | 1,201 | 2 | 3 |" in card.text
    assert '"\\n```\\n# out" = 2.0' in card.text
    assert 'label_separator = "/"' in card.text


def test_what_is_not_there(tmp_path: Path) -> None:
    """An undefined metric, a base model without a name, too many classes for a table, and random weights."""
    card = written(tmp_path, Tag(("O", "X")), classes={f"t{n:03}": 1 for n in range(MOST_CLASSES + 20)})
    assert {card.data.base_model, card.data.license} == {None}
    assert card.data.metrics == ["matthews_correlation"]
    assert "| 0.125 | 0.100 ± 0.050 | undefined | undefined |" in card.text
    assert "| `t049` | 1 |\n\nAnd 20 rarer" in card.text
    assert "t050" not in card.text
    assert "`novels` (sha256 `abababababab`)" in card.text
    assert "someone" not in card.content
    origin = Origin("owner/name@0123", "ab" * 32, ("owner/name",))
    card = written(tmp_path, Tag(("O", "X")), origin=origin)
    assert (card.data.base_model, card.data["base_model_relation"]) == ("owner/name", "finetune")
    settings = FinetuneSettings(initial_weights="random")
    card = written(tmp_path, Tag(("O", "X")), origin=origin, settings=settings)
    assert card.data.base_model is None, "nothing of it is in these weights"
    assert "top_k=None" in written(tmp_path, MultiLabel(("a", "b"))).text, "every label of a text"


def test_the_surest_mistakes_come_first() -> None:
    task = Classify(("a", "b"))
    records = [TextRecord(n, f'text "{n}"', label="ab"[n % 2]) for n in range(6)]
    shares = (0.6, 0.7, 0.8, 0.99, 0.9, 1.0)
    predictions = [ClassPrediction(label, share, {}) for label, share in zip("abbbab", shares, strict=True)]
    judged = task.judged([*records, *records], [*predictions, *predictions])
    assert [each.texts for each, _ in worst_of(judged)] == [('text "2"',)]
    pair = [TextRecord(1, "one", "two", label="a")]
    [only] = Pairs(("a", "b"), paired=True).judged(pair, [ClassPrediction("a", 0.5, {})])
    assert only.texts == ("one", "two")


def test_a_wrong_tag_stands_in_its_text() -> None:
    task, text = Tag(("B-x", "O")), "The king  sleeps."
    record = WordsRecord(1, ("The", "king", "sleeps."), ("O", "B-x", "O"), text)
    prediction = TagsPrediction(record.words, ("O", "O", None), (0.9, 0.8, None), text, (), (0, 4, 10), (3, 8, 17))
    judged = task.judged([record], [prediction])
    [(wrong, [parts])] = worst_of(judged)
    assert (wrong.right, wrong.predicted, wrong.probability) == ("B-x", "O", 0.8)
    assert parts == ("The ", "king", "  sleeps.")
    long = Judged(("x" * 900 + "king" + "y" * 900,), "a", "b", 1.0, (900, 904))
    [(_, [(before, part, behind)])] = worst_of([long])
    assert (before[:2], part, behind[-2:]) == ("…x", "king", "y…")
    assert len(before + part + behind) == WORST_CHARS + 2
