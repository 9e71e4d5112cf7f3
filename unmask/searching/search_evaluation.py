"""How well a model searches, beside the words that texts share and beside other models, without labels.

    a text           crops, and titles where there are any, find their documents (`search_tasks.py`)
    a BEIR folder    queries find what somebody has judged right (`beir_folder.py`)

All systems answer the same queries, so differences are taken query by query. Intervals are over source documents of the
queries, or over the queries of a BEIR folder, by Student's t; those of differences share their error by Bonferroni's
correction, one comparison for each other system, and one figure decides: nDCG@10.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import SettingsError
from unmask.margins import margin, over
from unmask.measuring.held_out import few_draws
from unmask.measuring.paired_comparison import percent
from unmask.measuring.uncertainty import FEW, Uncertain, plain_interval, ratio_over_draws, student_margin
from unmask.notebook import usual_notify
from unmask.progress import Notify, Progress
from unmask.results import Result, Sheet, Shown, Styled
from unmask.searching.beir_folder import is_beir, read_beir
from unmask.searching.item_documents import ItemSettings, read_items
from unmask.searching.lexical_search import check_lexical, rank_lexically
from unmask.searching.model_search import ModelSearch
from unmask.searching.ranking_figures import DEPTH, FIGURES, NAMES, ranking_figures
from unmask.searching.search_encoder import AskedEncoding, SearchEncoder, Similarity, open_encoder
from unmask.searching.search_tasks import CROP_CHARS, Crops, SearchTask, crop_task, title_task
from unmask.text.given import Texts, keep_given, told_apart
from unmask.text.settings import DocumentUnit
from unmask.text.table_rows import AskedColumn
from unmask.using.loaded_model import Model, Precision

QUERIES = 1000
DOCUMENTS = 10_000
DECIDES = "ndcg_at_10"
_ERROR = 0.05  # of evaluations, in which a difference may be shown that is none


class SearchEvaluation(Result):
    """What searches came to.

    Attributes:
        model: That is evaluated.
        tasks: By name (`crop`, `title`; `judged` of a BEIR folder): `queries`, `documents`, `draws` (what intervals are
            over), `not_asked`, the figures of each of the `systems`, and the `differences` of the model to each other
            one, query by query. Figures are `ndcg_at_10`, `mrr_at_10`, `recall_at_1`, `recall_at_10`, with
            `..._interval`, at 95 %, or at `confidence` for differences; None where chance says nothing.
        verdict: Of each task, in words.
        vectors: Of each model `alignment` (by task, with its interval), `uniformity`, `effective_rank`, `dimension`.
        described: How the text was read, in lines.
        passed_over: Reason to number.
        unit: What intervals are over: `documents` or `queries`.
        crops: Whether crops were `removed` from their documents or left `inside`; None of a BEIR folder.
        warning: Where there are few draws; None else.
    """

    model: str
    tasks: dict[str, dict[str, Any]]
    verdict: dict[str, str]
    vectors: dict[str, dict[str, Any]]
    described: list[str]
    passed_over: dict[str, int]
    unit: str
    crops: Crops | None
    warning: str | None

    def shown(self) -> Iterator[Shown]:
        """A table a task, its verdict, and what the vectors are like."""
        for line in self.described:
            yield Styled(line, "dim")
        for reason, count in self.passed_over.items():
            yield Styled(f"passed over: {count:,} {reason}", "dim")
        for name, task in self.tasks.items():
            yield ""
            yield Styled(f"{self._head(name, task)}; {over(self.unit)}", "dim")
            yield _sheet(task)
            yield self.verdict[name]
        yield ""
        yield Styled("vectors; a lower alignment is nearer, a lower uniformity more spread out", "dim")
        yield _vector_sheet(self.vectors)
        if self.warning is not None:
            yield Styled(f"\n{self.warning}", "yellow")

    def _head(self, name: str, task: dict[str, Any]) -> str:
        out = "taken out of" if self.crops == "removed" else "left inside"
        what = {"crop": f"crops find the documents that they were {out}", "title": "titles find their documents"}
        return f"{what.get(name, 'judged queries')}: {task['queries']:,} queries, {task['documents']:,} documents"


def _sheet(task: dict[str, Any]) -> Sheet:
    heads = ("", *(f">{NAMES[figure]}" for figure in FIGURES), f">{NAMES[DECIDES]}: model less this")
    rows = []
    for system, figures in task["systems"].items():
        cells = [f"{figures[name]:.3f}{margin(figures[f'{name}_interval'])}" for name in FIGURES]
        difference = task["differences"].get(system)
        less = "" if difference is None else f"{difference[DECIDES]:+.3f}{margin(difference[f'{DECIDES}_interval'])}"
        rows.append((system, *cells, less))
    return Sheet(heads, rows)


def _vector_sheet(vectors: dict[str, dict[str, Any]]) -> Sheet:
    tasks = list(next(iter(vectors.values()))["alignment"])
    rows = [
        (
            name,
            *(f"{found['alignment'][t]:.3f}{margin(found['alignment_interval'][t])}" for t in tasks),
            "" if found["uniformity"] is None else f"{found['uniformity']:.2f}",
            f"{found['effective_rank']:.0f} of {found['dimension']}",
        )
        for name, found in vectors.items()
    ]
    heads = ("", *(f">alignment, {task}" for task in tasks), ">uniformity", ">effective rank")
    return Sheet(heads, rows)


def evaluate_search(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    model: str | Path | Model,
    corpus: Texts,
    *,
    against: Sequence[str | Path | Model] = (),
    baselines: Sequence[str] = ("bm25", "tfidf"),
    queries: int = QUERIES,
    max_documents: int = DOCUMENTS,
    crops: Crops = "removed",
    crop_chars: int = CROP_CHARS,
    every: bool = False,
    among_all: bool = False,
    split: str = "test",
    column: AskedColumn = None,
    title_column: str | None = None,
    documents: DocumentUnit | str | None = None,
    passage_tokens: int | None = None,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    similarity: Similarity | None = None,
    seed: int = 0,
    precision: Precision = "float32",
    strict: bool = False,
    notify: Notify | None = None,
) -> SearchEvaluation:
    """Measures how well a model searches, beside BM25, TF-IDF and other models.

    Args:
        model: A model, its folder, or its name on the hub.
        corpus: Files, folders or patterns of text, of which held-out documents are used; texts in memory; or a folder
            in BEIR's format, of which everything is.
        against: Other models, with which it is compared; each is used as its own folder says.
        baselines: `bm25`, `tfidf`, both or none.
        queries: Of each task at most.
        max_documents: That are searched at most; a BEIR folder is searched whole.
        crops: Whether a crop is `removed` from its document, or left `inside`; see `unmask.searching.search_tasks`.
        crop_chars: Characters of a crop, about.
        every: Whether all documents may be asked for, since the model was trained on none of them (`--all`).
        among_all: Whether all documents are searched among, and not held-out ones alone.
        split: Of a BEIR folder's judgements.
        column, title_column, documents: As for `unmask.searching.item_documents.ItemSettings`.
        passage_tokens, query_prompt, document_prompt, similarity: As for `Index.build`; of the model, not of others.
        seed: Of the choice of queries and crops.
        precision, strict: As for `unmask.load`.
        notify: Told of the progress.

    Raises:
        UnmaskError: The text cannot be read, or holds too few documents, or only ones that are too short; a file of a
            BEIR folder is missing, or its ids match nothing; a model cannot be used; an option is out of range; or
            what a baseline takes is not installed.
    """
    _check(queries=queries, max_documents=max_documents, crop_chars=crop_chars, crops=crops)
    lexical = check_lexical(baselines)
    asked = AskedEncoding(
        passage_tokens=passage_tokens,
        query_prompt=query_prompt,
        document_prompt=document_prompt,
        similarity=similarity,
    )
    first = open_encoder(model, asked, precision=precision, strict=strict)
    encoders = {_called(model): first}
    for other in against:
        if _called(other) in encoders:
            raise SettingsError(f"--against {_called(other)}: this model is there already; name others")
        encoders[_called(other)] = open_encoder(other, AskedEncoding(), precision=precision, strict=strict)

    def items(paths: Sequence[str | Path]) -> _Questions:
        wanted = ItemSettings(
            column=column, title_column=title_column, documents=documents, every=every, among_all=among_all,
            most=max_documents, seed=seed,
        )  # fmt: skip
        read = read_items(paths, first.model.folder, wanted)
        cropped = crop_task(read.documents, num_queries=queries, crop_chars=crop_chars, crops=crops, seed=seed)
        titled = title_task(read.documents, num_queries=queries, seed=seed)
        tasks, described = [cropped], list(read.described)
        if titled is not None and len(titled.queries) >= FEW:
            tasks.append(titled)
        elif titled is not None:
            described.append(f"titles: {len(titled.queries)} that may be asked for, too few to measure by")
        return _Questions(tasks, described, dict(read.passed_over), "documents", crops)

    found = _read(corpus, items, split=split, queries=queries, seed=seed)
    tell = notify or usual_notify()
    searches = {name: ModelSearch(encoder) for name, encoder in encoders.items()}
    measured = [_measure(task, searches, lexical, tell) for task in found.tasks]
    draws = min(each["draws"] for each in measured)
    vectors = {name: _vectors(search, found.tasks, seed) for name, search in searches.items()}
    return SearchEvaluation(
        {
            "model": _called(model),
            "tasks": {task.name: each for task, each in zip(found.tasks, measured, strict=True)},
            "verdict": {
                task.name: _verdict(_called(model), each) for task, each in zip(found.tasks, measured, strict=True)
            },
            "vectors": vectors,
            "encoding": {name: _plain_encoding(encoder) for name, encoder in encoders.items()},
            "described": found.described,
            "passed_over": found.passed_over,
            "unit": found.unit,
            "crops": found.crops,
            "seed": seed,
            "warning": few_draws(draws, found.unit),
        }
    )


@dataclass(frozen=True)
class _Questions:
    """What is asked, and how the text was read."""

    tasks: list[SearchTask]
    described: list[str]
    passed_over: dict[str, int]
    unit: str
    crops: Crops | None


def _check(*, queries: int, max_documents: int, crop_chars: int, crops: str) -> None:
    for name, value, least in (
        ("queries", queries, 1),
        ("max-documents", max_documents, 2),
        ("crop-chars", crop_chars, 8),
    ):
        if value < least:
            raise SettingsError(f"--{name}: a number from {least} on, not {value}")
    if crops not in ("removed", "inside"):
        raise SettingsError(f"--crops is removed or inside, not {crops!r}")


def _called(model: str | Path | Model) -> str:
    return str(model.folder if isinstance(model, Model) else model)


def _plain_encoding(encoder: SearchEncoder) -> dict[str, Any]:
    return {name: getattr(encoder.settings, name) for name in encoder.settings.__dataclass_fields__}


def _read(
    corpus: Texts, items: Callable[[Sequence[str | Path]], _Questions], *, split: str, queries: int, seed: int
) -> _Questions:
    named = told_apart(corpus) or []
    if len(named) == 1 and isinstance(named[0], str | Path) and is_beir(named[0]):
        task = read_beir(Path(named[0]), split=split, num_queries=queries, seed=seed)
        described = [f"{named[0]}: a folder in BEIR's format, judgements of its part {split}"]
        return _Questions([task], described, dict(task.not_asked), "queries", None)
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
        found = items(list(keep_given(named, Path(scratch))))
    not_asked = {reason: count for task in found.tasks for reason, count in task.not_asked.items()}
    return _Questions(found.tasks, found.described, found.passed_over | not_asked, found.unit, found.crops)


def _measure(
    task: SearchTask, searches: dict[str, ModelSearch], lexical: Sequence[Any], notify: Notify
) -> dict[str, Any]:
    """The figures of all systems, and the differences of the first to the others."""
    depth = DEPTH + (task.excluded is not None)
    per_query: dict[str, dict[str, NDArray[np.float64]]] = {}
    for name, search in searches.items():
        ranked = search.rank(task, depth, _noting(notify, f"documents by {name}"))
        per_query[name] = ranking_figures(_shown_documents(task, ranked), task.relevant)
    for kind in lexical:
        notify(Progress(f"words by {kind}", 0, len(task.documents), "texts"))
        ranked = rank_lexically(kind, task.documents, task.queries, depth)
        per_query[kind] = ranking_figures(_shown_documents(task, ranked), task.relevant)
    first, *others = per_query
    confidence = 1.0 - _ERROR / max(1, len(others))
    return {
        "queries": len(task.queries),
        "documents": len(task.documents),
        "draws": len(np.unique(task.draws)),
        "not_asked": dict(task.not_asked),
        "systems": {name: _means(found, task.draws, None) for name, found in per_query.items()},
        "differences": {
            name: _means({f: per_query[first][f] - per_query[name][f] for f in FIGURES}, task.draws, confidence)
            for name in others
        },
        "confidence": confidence,
    }


def _noting(notify: Notify, what: str) -> Callable[[int, int], None]:
    return lambda done, total: notify(Progress(what, done, total, "texts"))


def _shown_documents(task: SearchTask, documents_QK: NDArray[np.int64]) -> NDArray[np.int64]:
    """Without what is not shown of each query: the ten that are left."""
    if task.excluded is None:
        return documents_QK
    kept = [row[row != hidden][:DEPTH] for row, hidden in zip(documents_QK, task.excluded, strict=True)]
    return np.stack([np.pad(row, (0, DEPTH - len(row)), constant_values=-1) for row in kept])


def _means(
    figures: dict[str, NDArray[np.float64]], draws: NDArray[np.int64], confidence: float | None
) -> dict[str, Any]:
    """Means over queries and their intervals: of shares at 95 %, of differences at a confidence of their own."""
    found: dict[str, Any] = {}
    for name, values in figures.items():
        mean = _mean_over_draws(values, draws)
        found[name] = mean.value
        interval = mean.share_interval if confidence is None else _interval(mean, confidence)
        found[f"{name}_interval"] = plain_interval(interval)
    return found


def _mean_over_draws(values_Q: NDArray[np.float64], draws_Q: NDArray[np.int64]) -> Uncertain:
    """The mean over queries, of which those of one document are one draw."""
    of_draw = np.unique(draws_Q, return_inverse=True)[1]
    return ratio_over_draws(np.bincount(of_draw, weights=values_Q), np.bincount(of_draw))


def _interval(found: Uncertain, confidence: float) -> tuple[float, float] | None:
    if found.stderr is None or found.degrees is None:
        return None
    half = student_margin(found.stderr, found.degrees, confidence)
    return found.value - half, found.value + half


def _verdict(model: str, task: dict[str, Any]) -> str:
    """Which systems the model is better than, worse than, and not told apart from."""
    if not task["differences"]:
        return "there is nothing to compare with"
    better: list[str] = []
    worse: list[str] = []
    same: list[str] = []
    for name, difference in task["differences"].items():
        interval = difference[f"{DECIDES}_interval"]
        if interval is None or interval[0] <= 0.0 <= interval[1]:
            same.append(name)
        else:
            (better if interval[0] > 0.0 else worse).append(f"{name} by {abs(difference[DECIDES]):.3f}")
    told = [("better than", better), ("worse than", worse), ("no difference shown to", same)]
    said = "; ".join(f"{what} {', '.join(names)}" for what, names in told if names)
    return f"{model} is {said}".replace("is no difference", "has no difference") + (
        f" ({NAMES[DECIDES]}; intervals of differences at {percent(task['confidence'])})"
    )


def _vectors(search: ModelSearch, tasks: Sequence[SearchTask], seed: int) -> dict[str, Any]:
    """What the vectors of a model are like."""
    found: dict[str, Any] = {"alignment": {}, "alignment_interval": {}}
    for task in tasks:
        mean = _mean_over_draws(search.alignments(task), task.draws)
        found["alignment"][task.name] = mean.value
        found["alignment_interval"][task.name] = plain_interval(mean.interval)
    return {**found, **search.spread(tasks[0], seed)}
