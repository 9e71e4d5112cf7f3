"""How good predictions are: scikit-learn's, scipy's and seqeval's metrics; exact match and F1 of answers.

A metric that is not defined (a correlation with predictions that are all equal) is None.
"""

from __future__ import annotations

import importlib.util
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from unmask.errors import SettingsError
from unmask.model.task_folder import TaskInfo
from unmask.tasks.predictions import AnswerPrediction, ClassPrediction, NumberPrediction, Prediction, TagsPrediction
from unmask.tasks.records import QuestionRecord, Record, TextRecord, WordsRecord

Metrics = dict[str, float | None]
LOWER_IS_BETTER = {"rmse"}
_CLASSES = ("accuracy", "macro_f1", "micro_f1", "matthews")
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ENTITY = re.compile(r"(B|I|E|L|S|U)-.+")
_PACKAGES = {"sklearn": "scikit-learn", "scipy": "scipy", "seqeval": "seqeval"}
_ENTITIES = ("entity_f1", "entity_precision", "entity_recall")


def are_entities(names: Sequence[str]) -> bool:
    """Whether tags are those of entities: `O` and `B-`, `I-` with a label (also of BIOES and BILOU)."""
    return "O" in names and all(name == "O" or _ENTITY.fullmatch(name) for name in names)


def metric_names(info: TaskInfo) -> tuple[str, ...]:
    """The metrics of a task; the first one tells the best model unless the settings say otherwise."""
    match info.kind:
        case "classify" | "pairs":
            return _CLASSES
        case "regress":
            return ("pearson", "spearman", "rmse")
        case "tag":
            plain = ("accuracy", "macro_f1")
            return (*_ENTITIES, *plain) if are_entities(info.names) else plain
        case "answer":
            return ("f1", "exact_match")


def selecting_metric(info: TaskInfo, wanted: str | None) -> str:
    """The metric that the best model is told by.

    Raises:
        SettingsError: The task has no such metric.
    """
    names = metric_names(info)
    if wanted is not None and wanted not in names:
        raise SettingsError(f"finetune.metric = {wanted!r}: metrics of this task are {', '.join(names)}")
    return wanted or names[0]


def needs_packages() -> None:
    """Finds out before training that the packages are there.

    Raises:
        SettingsError: One is missing.
    """
    for name, package in _PACKAGES.items():
        if importlib.util.find_spec(name) is None:
            raise SettingsError(f"metrics need {package}; install it with: pip install 'unmask[metrics]'")


def measure(info: TaskInfo, records: Sequence[Record], predictions: Sequence[Prediction]) -> Metrics:
    """The metrics of a task, by name; shares lie in [0, 1].

    Args:
        info: The task.
        records: With what is right.
        predictions: As many.
    """
    match info.kind:
        case "classify" | "pairs":
            return _of_classes(*right_and_predicted(records, predictions))
        case "regress":
            return _of_numbers(records, predictions)
        case "tag":
            return _of_tags(info, records, predictions)
        case "answer":
            return _of_answers(records, predictions)


def right_and_predicted(records: Sequence[Record], predictions: Sequence[Prediction]) -> tuple[list[str], list[str]]:
    """The right and the predicted classes; of tags those of all words. A word without prediction has an empty one."""
    right: list[str] = []
    predicted: list[str] = []
    for record, prediction in zip(records, predictions, strict=True):
        if isinstance(record, TextRecord) and isinstance(prediction, ClassPrediction):
            right.append(record.label or "")
            predicted.append(prediction.label)
        elif isinstance(record, WordsRecord) and isinstance(prediction, TagsPrediction):
            right += record.tags or ()
            predicted += [tag or "" for tag in prediction.tags]
    return right, predicted


def _of_classes(right: list[str], predicted: list[str]) -> Metrics:
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    known = sorted(set(right))  # a class that only predictions have counts by what it takes from the others
    return {
        "accuracy": float(accuracy_score(right, predicted)),
        "macro_f1": float(f1_score(right, predicted, labels=known, average="macro", zero_division=0)),
        "micro_f1": float(f1_score(right, predicted, average="micro", zero_division=0)),
        "matthews": float(matthews_corrcoef(right, predicted)),
    }


def _of_numbers(records: Sequence[Record], predictions: Sequence[Prediction]) -> Metrics:
    from scipy.stats import pearsonr, spearmanr

    right = np.array([record.value for record in records if isinstance(record, TextRecord)], dtype=np.float64)
    found = np.array([each.value for each in predictions if isinstance(each, NumberPrediction)], dtype=np.float64)
    defined = len(set(right.tolist())) > 1 and len(set(found.tolist())) > 1
    return {
        "pearson": float(pearsonr(right, found).statistic) if defined else None,
        "spearman": float(spearmanr(right, found).statistic) if defined else None,
        "rmse": float(np.sqrt(np.mean((right - found) ** 2))),
    }


def _of_tags(info: TaskInfo, records: Sequence[Record], predictions: Sequence[Prediction]) -> Metrics:
    words = _of_classes(*right_and_predicted(records, predictions))
    plain: Metrics = {name: words[name] for name in ("accuracy", "macro_f1")}
    if not are_entities(info.names):
        return plain
    from seqeval.metrics import f1_score, precision_score, recall_score

    right = [_bioes(record.tags or ()) for record in records if isinstance(record, WordsRecord)]
    found = [_bioes(each.tags) for each in predictions if isinstance(each, TagsPrediction)]
    of: dict[str, Any] = {"entity_f1": f1_score, "entity_precision": precision_score, "entity_recall": recall_score}
    return {name: float(function(right, found, zero_division=0)) for name, function in of.items()} | plain


def _bioes(tags: Sequence[str | None]) -> list[str]:
    """Tags as seqeval knows them, without BILOU's `L` and `U`; a word without a tag is outside."""
    return [{"L-": "E-", "U-": "S-"}.get(tag[:2], tag[:2]) + tag[2:] if tag else "O" for tag in tags]


def _of_answers(records: Sequence[Record], predictions: Sequence[Prediction]) -> Metrics:
    exact, overlap = [], []
    for record, prediction in zip(records, predictions, strict=True):
        assert isinstance(record, QuestionRecord)
        assert isinstance(prediction, AnswerPrediction)
        answers = [answer.text for answer in record.answers or ()] or [""]
        exact.append(max(normalised(answer) == normalised(prediction.answer) for answer in answers))
        overlap.append(max(answer_f1(answer, prediction.answer) for answer in answers))
    return {"f1": float(np.mean(overlap)), "exact_match": float(np.mean(exact))}


def normalised(answer: str) -> list[str]:
    """The words of an answer, as SQuAD's evaluation script counts them.

    In lower case; then ASCII's punctuation is taken out, and nothing put in its place; then articles, wherever they
    stand between edges of words (signs beyond ASCII make such edges); then it is cut at white space. The order matters:
    `A-team` becomes `ateam`, which holds no article, but `a–team`, with a dash, becomes `–team`.

    Source: Rajpurkar et al. 2016 (SQuAD), section 6.1; `normalize_answer` of the official script, versions 1.1 and 2.0.
    """
    return _ARTICLE.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split()


def answer_f1(right: str, predicted: str) -> float:
    """F1 of the words that two answers share, each as often as both have it; of empty ones 1, if both are.

    Example: `the red fox` and `a fox`: one word of two and one of one, so 2/3.

    Source: Rajpurkar et al. 2016, section 6.1; of no answer: Rajpurkar et al. 2018, section 3.
    """
    first, second = normalised(right), normalised(predicted)
    if not first or not second:
        return float(first == second)
    shared = (Counter(first) & Counter(second)).total()
    return 2.0 * shared / (len(first) + len(second))
