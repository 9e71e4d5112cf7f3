"""How well a model searches, beside search by shared words and beside other models, without labels.

    a text           crops, and titles where there are any, find their documents (`known_items.py`)
    a BEIR folder    queries find what people have judged relevant (`beir.py`)

All systems answer the same queries, so differences are taken query by query. Intervals are over source documents of the
queries, or over the queries of a BEIR folder, by Student's t; those of differences share their error by Bonferroni's
correction, one comparison for each other system, and one figure decides: nDCG@10.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import SettingsError
from unmask.core.results import Notify, Progress, Result, Sheet, Shown, Styled, margin, over, usual_notify
from unmask.data.settings import DocumentUnit
from unmask.data.sources import Texts, keep_as_files, paths_or_texts
from unmask.data.tables import ColumnNames
from unmask.measure.held_out import few_draws
from unmask.measure.uncertainty import FEW, Uncertain, percent, plain_interval, ratio_over_draws, student_margin
from unmask.search.beir import is_beir, read_beir
from unmask.search.encoder import SearchEncoder, Similarity, open_encoder
from unmask.search.exact import Vectors, blocks_of, search_exactly
from unmask.search.figures import (
    DEPTH,
    FIGURES,
    NAMES,
    alignment,
    coordinates,
    effective_rank,
    ranking_figures,
    sampled,
    uniformity,
)
from unmask.search.known_items import (
    CROP_CHARS,
    DOCUMENTS,
    QUERIES,
    Crops,
    ItemSettings,
    SearchTask,
    crop_task,
    read_items,
    title_task,
)
from unmask.search.lexical import Lexical, check_lexical, rank_lexically
from unmask.search.passages import DocumentPart
from unmask.tasks.embed import SparseVectors
from unmask.tasks.loaded_model import Model, Precision

DECIDES = "ndcg_at_10"
_ERROR = 0.05  # of evaluations may show a difference where there is none
_PASSAGES_AT_ONCE = 1024
_PAIRS_AT_ONCE = 256


class SearchEvaluation(Result):
    """How well a model and others searched.

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
        removed = "taken out of" if self.crops == "removed" else "left inside"
        heads = {"crop": f"crops find the documents that they were {removed}", "title": "titles find their documents"}
        for name, task in self.tasks.items():
            what = heads.get(name, "judged queries")
            yield ""
            yield Styled(
                f"{what}: {task['queries']:,} queries, {task['documents']:,} documents; {over(self.unit)}", "dim"
            )
            yield _sheet(task)
            yield self.verdict[name]
        yield ""
        yield Styled("vectors; a lower alignment is nearer, a lower uniformity more spread out", "dim")
        rows = [
            (
                name,
                *(f"{v['alignment'][t]:.3f}{margin(v['alignment_interval'][t])}" for t in self.tasks),
                "" if v["uniformity"] is None else f"{v['uniformity']:.2f}",
                f"{v['effective_rank']:.0f} of {v['dimension']}",
            )
            for name, v in self.vectors.items()
        ]
        yield Sheet(("", *(f">alignment, {task}" for task in self.tasks), ">uniformity", ">effective rank"), rows)
        if self.warning is not None:
            yield Styled(f"\n{self.warning}", "yellow")


def _sheet(task: dict[str, Any]) -> Sheet:
    heads = ("", *(f">{NAMES[figure]}" for figure in FIGURES), f">{NAMES[DECIDES]}: model less this")
    rows = []
    for system, figures in task["systems"].items():
        cells = [f"{figures[name]:.3f}{margin(figures[f'{name}_interval'])}" for name in FIGURES]
        difference = task["differences"].get(system)
        less = "" if difference is None else f"{difference[DECIDES]:+.3f}{margin(difference[f'{DECIDES}_interval'])}"
        rows.append((system, *cells, less))
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
    column: ColumnNames = None,
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
    """Measures how well a model searches, without labels: crops and titles of held-out documents find their documents.

    Args:
        model: Folder of a model, such as RUN/model, or its name on the hub.
        corpus: Files, folders or patterns of text; or a folder in BEIR's format.
        against: Another model to compare with.
        baselines: bm25, tfidf, both, or none.
        queries: Queries of each kind at most.
        max_documents: Documents that are searched at most; a BEIR folder is searched whole.
        crops: Whether crops are removed from their documents, or left inside.
        crop_chars: Characters of a crop, about.
        every: Query for all documents: a text that no model was trained on.
        among_all: Search among all documents, not among held-out ones alone.
        split: Of the judgements in a BEIR folder.
        column: Of the text in tables: a name, a path within a column (doc.text), or several (a,b). By default it is
            found.
        title_column: Of the titles in tables. By default title, if it is there.
        documents: A document of text files: line, block, file, or auto. By default as the model's run has it.
        passage_tokens: Tokens of a passage of a long document; longer ones than the model takes are seen in windows. By
            default what the model takes, at most 512.
        query_prompt: Text before each query. By default what the model's folder says.
        document_prompt: Text before each passage. By default what the model's folder says.
        similarity: By default what the model's folder says, else cosine; dot for sparse vectors.
        seed: Of the choice of queries and crops.
        precision: Of the activations; bf16 is several times faster on hardware made for it, and auto takes it there.
        strict: Refuse a model whose files differ from its checksums.json.
        notify: Called with the progress.

    Raises:
        UnmaskError: The text cannot be read, or holds too few documents, or only ones that are too short; a file of a
            BEIR folder is missing, or its ids match nothing; a model cannot be used; an option is out of range; or the
            package of a baseline is not installed.
    """
    settings = ItemSettings(
        queries=queries,
        max_documents=max_documents,
        crops=crops,
        crop_chars=crop_chars,
        every=every,
        among_all=among_all,
        column=column,
        title_column=title_column,
        documents=documents,
        seed=seed,
    )
    lexical = check_lexical(baselines)
    name = _called(model)
    encoder = open_encoder(
        model,
        passage_tokens=passage_tokens,
        query_prompt=query_prompt,
        document_prompt=document_prompt,
        similarity=similarity,
        precision=precision,
        strict=strict,
    )
    searches = {name: ModelSearch(encoder)}
    for other in against:
        if _called(other) in searches:
            text = f"against {_called(other)}: this model is there already; name others"
            raise SettingsError(text, options=("against",))
        searches[_called(other)] = ModelSearch(open_encoder(other, precision=precision, strict=strict))

    named = paths_or_texts(corpus) or []
    is_judged = len(named) == 1 and isinstance(named[0], str | Path) and is_beir(named[0])
    if is_judged:
        tasks = [read_beir(Path(str(named[0])), split=split, num_queries=queries, seed=seed)]
        described, passed_over = [f"{named[0]}: a folder in BEIR's format, judgements of its part {split}"], {}
    else:
        with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
            items = read_items(list(keep_as_files(named, Path(scratch))), encoder.model.folder, settings)
        described, passed_over = items.described, dict(items.passed_over)
        tasks = [crop_task(items.documents, settings)]
        titles = title_task(items.documents, settings)
        if titles is not None and len(titles.queries) >= FEW:
            tasks.append(titles)
        elif titles is not None:
            described.append(f"titles: {len(titles.queries)} that may be asked for, too few to measure by")
    for task in tasks:
        passed_over |= task.not_asked

    notify = notify or usual_notify()
    measured = {task.name: _measure(task, searches, lexical, notify) for task in tasks}
    unit = "queries" if is_judged else "documents"
    return SearchEvaluation(
        {
            "model": name,
            "tasks": measured,
            "verdict": {task: _verdict(name, figures) for task, figures in measured.items()},
            "vectors": {each: _vectors(search, tasks, seed) for each, search in searches.items()},
            "encoding": {each: search.encoder.settings.model_dump() for each, search in searches.items()},
            "described": described,
            "passed_over": passed_over,
            "unit": unit,
            "crops": None if is_judged else crops,
            "seed": seed,
            "warning": few_draws(min(each["draws"] for each in measured.values()), unit),
        }
    )


def _called(model: str | Path | Model) -> str:
    return str(model.folder if isinstance(model, Model) else model)


class ModelSearch:
    """A model that answers the queries of tasks by its vectors of the documents' passages.

    Tasks share most of their documents, so the vectors of a text are made once.
    """

    def __init__(self, encoder: SearchEncoder) -> None:
        self.encoder = encoder
        # Of each text the vectors [P, D] of its passages, and the characters [P] at which these end.
        self._passages: dict[str, tuple[Vectors, NDArray[np.int64]]] = {}
        self._queries: dict[str, Vectors] = {}

    def rank(self, task: SearchTask, top_k: int, count: Callable[[int, int], None]) -> NDArray[np.int64]:
        """The documents [queries, top_k] that are nearest to each query; -1 where there are no more.

        Args:
            task: Queries and documents.
            top_k: At least 1.
            count: Called with the number of documents that are embedded, and of all.
        """
        self._embed(task.documents, count)
        self._queries[task.name] = queries_QD = self.encoder.embed_queries(task.queries)
        vectors = [self._passages[text][0] for text in task.documents]
        documents_N = np.repeat(np.arange(len(vectors)), list(map(len, vectors)))
        return search_exactly(queries_QD, blocks_of(_joined(vectors), documents_N), top_k).documents_QK

    def _embed(self, texts: Sequence[str], count: Callable[[int, int], None]) -> None:
        missing = [text for text in dict.fromkeys(texts) if text not in self._passages]
        parts = (DocumentPart(n, "", n, None, 0, text) for n, text in enumerate(missing))
        vectors: list[list[Vectors]] = [[] for _ in missing]
        ends: list[list[int]] = [[] for _ in missing]
        waiting: list[tuple[int, str]] = []

        def flush() -> None:
            embedded = self.encoder.embed_documents([text for _, text in waiting])
            for place, (number, _) in enumerate(waiting):
                vectors[number].append(embedded[place : place + 1])
            count(waiting[-1][0] + 1, len(missing))
            waiting.clear()

        count(0, len(missing))
        for passage in self.encoder.passages(parts):
            ends[passage.part.document].append(passage.end)
            waiting.append((passage.part.document, passage.embedded))
            if len(waiting) >= _PASSAGES_AT_ONCE:
                flush()
        if waiting:
            flush()
        for text, of_text, ends_P in zip(missing, vectors, ends, strict=True):
            self._passages[text] = _joined(of_text), np.array(ends_P)

    def alignments(self, task: SearchTask) -> NDArray[np.float64]:
        """The squared distance [queries] of each query and the passage that it belongs to, of a task that was ranked.

        That is the passage which a crop was taken out of, and the first one for titles and judged queries: not the
        nearest, which would be a choice by what is measured.
        """
        right = []
        for document, place in task.pairs:
            vectors, ends_P = self._passages[task.documents[document]]
            number = min(int(np.searchsorted(ends_P, place)), len(ends_P) - 1)
            right.append(vectors[number : number + 1])
        queries, distances = self._queries[task.name], []
        for begin in range(0, len(right), _PAIRS_AT_ONCE):
            some = slice(begin, begin + _PAIRS_AT_ONCE)
            distances.append(alignment(_dense(queries[some]), _dense(_joined(right[some]))))
        return np.concatenate(distances)

    def spread(self, task: SearchTask, seed: int) -> dict[str, Any]:
        """Uniformity and effective rank of the passages of a task that was ranked, some of them if they are many."""
        vectors = _joined([self._passages[text][0] for text in task.documents])
        chosen = sampled(len(vectors), seed)
        if isinstance(vectors, SparseVectors):
            some = coordinates(_dense(_joined([vectors[number : number + 1] for number in chosen.tolist()])))
        else:
            some = vectors[chosen]
        return {
            "uniformity": uniformity(some),
            "effective_rank": effective_rank(some),
            "dimension": self.encoder.width,
            "vectors": len(some),
        }


def _joined(parts: Sequence[Any]) -> Vectors:
    """Vectors one after the other, all of them dense or all sparse."""
    return SparseVectors.joined(parts) if isinstance(parts[0], SparseVectors) else np.concatenate(parts)


def _dense(vectors: Vectors) -> NDArray[np.float32]:
    return vectors.dense() if isinstance(vectors, SparseVectors) else vectors


def _measure(
    task: SearchTask, searches: dict[str, ModelSearch], lexical: Sequence[Lexical], notify: Notify
) -> dict[str, Any]:
    """The figures of all systems, and the differences of the first to the others."""
    depth = DEPTH + (task.excluded is not None)
    rankings: dict[str, NDArray[np.int64]] = {}
    for name, search in searches.items():

        def count(done: int, total: int, what: str = f"documents by {name}") -> None:
            notify(Progress(what, done, total, "texts"))

        rankings[name] = search.rank(task, depth, count)
    for kind in lexical:
        notify(Progress(f"words by {kind}", 0, len(task.documents), "texts"))
        rankings[kind] = rank_lexically(kind, task.documents, task.queries, depth)
    if task.excluded is not None:  # the ten that are left without the query's own document
        for name, documents_QK in rankings.items():
            rows = [row[row != own][:DEPTH] for row, own in zip(documents_QK, task.excluded, strict=True)]
            rankings[name] = np.stack([np.pad(row, (0, DEPTH - len(row)), constant_values=-1) for row in rows])
    per_query = {name: ranking_figures(documents_QK, task.relevant) for name, documents_QK in rankings.items()}
    first, *others = per_query
    confidence = 1.0 - _ERROR / max(1, len(others))
    return {
        "queries": len(task.queries),
        "documents": len(task.documents),
        "draws": len(np.unique(task.draws)),
        "not_asked": dict(task.not_asked),
        "systems": {name: _means(figures, task.draws, None) for name, figures in per_query.items()},
        "differences": {
            name: _means({f: per_query[first][f] - per_query[name][f] for f in FIGURES}, task.draws, confidence)
            for name in others
        },
        "confidence": confidence,
    }


def _means(
    figures: dict[str, NDArray[np.float64]], draws: NDArray[np.int64], confidence: float | None
) -> dict[str, Any]:
    """Means over queries and their intervals: of shares at 95 %, of differences at a confidence of their own."""
    means: dict[str, Any] = {}
    for name, values in figures.items():
        mean = _mean_over_draws(values, draws)
        means[name] = mean.value
        if confidence is None:
            interval = mean.share_interval
        elif mean.stderr is None or mean.degrees is None:
            interval = None
        else:
            half = student_margin(mean.stderr, mean.degrees, confidence)
            interval = mean.value - half, mean.value + half
        means[f"{name}_interval"] = plain_interval(interval)
    return means


def _mean_over_draws(values_Q: NDArray[np.float64], draws_Q: NDArray[np.int64]) -> Uncertain:
    """The mean over queries, of which those of one document are one draw."""
    of_draw = np.unique(draws_Q, return_inverse=True)[1]
    return ratio_over_draws(np.bincount(of_draw, weights=values_Q), np.bincount(of_draw))


def _verdict(model: str, task: dict[str, Any]) -> str:
    """Which systems the model is better than, worse than, and not told apart from."""
    if not task["differences"]:
        return "there is nothing to compare with"
    systems: dict[str, list[str]] = {"is better than": [], "is worse than": [], "has no difference shown to": []}
    for name, difference in task["differences"].items():
        interval = difference[f"{DECIDES}_interval"]
        if interval is None or interval[0] <= 0.0 <= interval[1]:
            systems["has no difference shown to"].append(name)
        else:
            better = "is better than" if interval[0] > 0.0 else "is worse than"
            systems[better].append(f"{name} by {abs(difference[DECIDES]):.3f}")
    facts = [f"{what} {', '.join(names)}" for what, names in systems.items() if names]
    # One verb for all of them, as it was first.
    said = "; ".join([facts[0], *(fact.removeprefix("is ").removeprefix("has ") for fact in facts[1:])])
    return f"{model} {said} ({NAMES[DECIDES]}; intervals of differences at {percent(task['confidence'])})"


def _vectors(search: ModelSearch, tasks: Sequence[SearchTask], seed: int) -> dict[str, Any]:
    """What the vectors of a model are like."""
    means = {task.name: _mean_over_draws(search.alignments(task), task.draws) for task in tasks}
    return {
        "alignment": {name: mean.value for name, mean in means.items()},
        "alignment_interval": {name: plain_interval(mean.interval) for name, mean in means.items()},
        **search.spread(tasks[0], seed),
    }
