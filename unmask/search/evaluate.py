"""How well a model searches, compared with lexical search and with other models, without labels.

    a text           crops, and titles if there are any, must find their documents (`known_items.py`)
    a BEIR folder    queries must find the documents that people judged relevant (`known_items.py`)

All systems answer the same queries, so differences are taken query by query. Intervals are over the source documents of
queries, or over the queries of a BEIR folder. Figures have Wilson's intervals; differences have Student's, with
Bonferroni's correction for the number of other systems. One figure decides: nDCG@10.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import SettingsError
from unmask.core.public import public
from unmask.core.results import Notify, Progress, Result, Sheet, Shown, Styled, margin, over, usual_reporter
from unmask.data.columns import ColumnNames
from unmask.data.settings import DocumentUnit
from unmask.data.sources import Texts, keep_as_files, paths_or_texts
from unmask.measure.uncertainty import FEW, Uncertain, few_draws, percent, plain_interval, ratio_over_draws
from unmask.search import blocks
from unmask.search.encoder import SearchEncoder, Similarity, open_encoder
from unmask.search.exact import Ranking, Vectors, blocks_of, no_hits, search_exactly, stacked
from unmask.search.known_items import (
    DOCUMENTS,
    QUERIES,
    ItemSettings,
    SearchTask,
    crop_task,
    is_beir,
    read_beir,
    read_items,
    title_task,
    ways_to_more,
)
from unmask.search.passages import DocumentPart, words_of
from unmask.search.words import FUSED, WordSearch, best_of, fused, word_line
from unmask.tasks.loaded_model import Model, Precision

DECIDES = "ndcg_at_10"
DEPTH = 10
FIGURES = {"ndcg_at_10": "nDCG@10", "mrr_at_10": "MRR@10", "recall_at_1": "recall@1", "recall_at_10": "recall@10"}
LEAST_QUERIES = 50  # for a verdict
Floats = NDArray[np.float64]
_ERROR = 0.05  # share of evaluations that may show a difference by chance
_PASSAGES_AT_ONCE = 1024


class SearchEvaluation(Result):
    """How well a model and others searched.

    Attributes:
        model: The model under evaluation.
        tasks: By name (`crop`, `title`; `judged` for a BEIR folder): `queries`, `documents`, `draws` (what intervals
            are over), `not_asked`, the figures of each of the `systems` (with bm25 also of `both` combined), the
            model's `differences` from each other system, query by query, which of `vectors`, `words` and `both` is the
            `best`, and how far it is `ahead` of the next. Figures are `ndcg_at_10`, `mrr_at_10`, `recall_at_1`,
            `recall_at_10`, with `..._interval`, at 95 %, or at `confidence` for differences; None if no interval can be
            computed.
        verdict: For each task, in words; with fewer than 50 queries there is no verdict, no difference and no best
            system.
        described: How the text was read, in lines.
        passed_over: Number of texts skipped for each reason.
        unit: What intervals are over: `documents` or `queries`.
        warning: Set if there are few draws, otherwise None.
    """

    model: str
    tasks: dict[str, dict[str, Any]]
    verdict: dict[str, str]
    described: list[str]
    passed_over: dict[str, int]
    unit: str
    warning: str | None

    def shown(self) -> Iterator[Shown]:
        for line in self.described:
            yield Styled(line, "dim")
        for reason, count in self.passed_over.items():
            yield Styled(f"skipped: {count:,} {reason}", "dim")
        heads = {"crop": "crops find the documents they were taken out of", "title": "titles find their documents"}
        for name, task in self.tasks.items():
            what = heads.get(name, "judged queries")
            yield ""
            yield Styled(
                f"{what}: {task['queries']:,} queries, {task['documents']:,} documents; {over(self.unit)}", "dim"
            )
            difference_head = f">{FIGURES[DECIDES]}: model minus this, at {percent(task['confidence'])}"
            columns = ("", *(f">{name}" for name in FIGURES.values()), difference_head)
            lines = []
            for system, figures in task["systems"].items():
                cells = [f"{figures[f]:.3f}{margin(figures[f'{f}_interval'], of=figures[f])}" for f in FIGURES]
                minus, difference = "", task["differences"].get(system)
                if difference is not None:
                    minus = f"{difference[DECIDES]:+.3f}{margin(difference[f'{DECIDES}_interval'])}"
                lines.append((system, *cells, minus))
            yield Sheet(columns, lines)
            yield self.verdict[name]
        if self.warning is not None:
            yield Styled(f"\n{self.warning}", "yellow")


@public
def evaluate_search(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    model: str | Path | Model,
    corpus: Texts,
    *,
    against: str | Path | Model | Sequence[str | Path | Model] = (),
    baselines: str | Sequence[str] | None = None,
    queries: int = QUERIES,
    max_documents: int = DOCUMENTS,
    every: bool = False,
    among_all: bool = False,
    split: str = "test",
    column: ColumnNames = None,
    title_column: str | None = None,
    documents: DocumentUnit | str | None = None,
    encoding: str | None = None,
    passage_tokens: int | None = None,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    similarity: Similarity | None = None,
    seed: int = 0,
    precision: Precision = "float32",
    strict: bool = False,
    notify: Notify | None = None,
) -> SearchEvaluation:
    """Measures search without labels. Crops and titles of held-out documents must find their documents.

    Args:
        model: Folder of a model, such as RUN/model, or its name on the hub.
        corpus: Files, folders or patterns of text; or a folder in BEIR's format.
        against: Another model to compare with.
        baselines: bm25, tfidf, both, or none; bm25 also adds the model and BM25 combined. By default bm25, and tfidf
            if scikit-learn is installed.
        queries: Maximum number of queries of each kind.
        max_documents: Maximum number of documents to search; a BEIR folder is searched whole.
        every: Make queries from all documents, for a text no model was trained on.
        among_all: Search among all documents, not only held-out ones.
        split: Split of the judgements in a BEIR folder.
        column: Text column of a table: a name, a path within a column (doc.text), or several (a,b). By default it is
            detected.
        title_column: Title column of a table. By default title, if there is one.
        documents: What counts as a document in text files: line, block, file, or auto. By default as in the model's
            run.
        encoding: Encoding of text that is not Unicode, such as cp1252.
        passage_tokens: Tokens per passage of a long document; the model reads passages beyond its limit in windows. By
            default the model's limit, at most 512.
        query_prompt: Text put before each query. By default as the model's folder says.
        document_prompt: Text put before each passage. By default as the model's folder says.
        similarity: By default as the model's folder says, otherwise cosine; dot for sparse vectors.
        seed: Seed for choosing queries and crops.
        precision: Type of the activations; bf16 is several times faster on hardware that supports it, and auto uses it
            there.
        strict: Refuse a model whose files differ from its checksums.json.
        notify: Called with the progress.

    Raises:
        UnmaskError: The text cannot be read, or its documents are too few or too short; a file of a BEIR folder is
            missing, or its ids match nothing; a model cannot be used; an option is out of range; or the package of a
            baseline is not installed.
    """
    settings = ItemSettings(
        queries=queries, max_documents=max_documents, every=every,
        among_all=among_all, column=column, title_column=title_column, documents=documents, encoding=encoding,
        seed=seed,
    )  # fmt: skip
    named = paths_or_texts(corpus)
    is_judged = len(named) == 1 and isinstance(named[0], str | Path) and is_beir(named[0])
    unused = ["split"] * (split != "test" and not is_judged)
    if is_judged:
        usual = vars(ItemSettings(queries=queries, max_documents=max_documents, seed=seed))
        unused = [name for name, value in vars(settings).items() if value != usual[name]]
    if unused:
        beir = "a folder in BEIR's format"
        where = f"{beir};" if is_judged else f"text, and this is not {beir}; correct the path, or"
        raise SettingsError(f"{unused[0]} has no effect on {where} leave it out", options=unused)
    lexical = check_lexical(baselines)
    others = (against,) if isinstance(against, str | Path | Model) else against
    options: dict[str, Any] = {
        "passage_tokens": passage_tokens, "query_prompt": query_prompt, "document_prompt": document_prompt,
        "similarity": similarity,
    }  # fmt: skip
    searches: dict[str, ModelSearch] = {}
    # Prompts and similarity belong to a model; the size of a passage is the same for all.
    of_others = {"passage_tokens": passage_tokens}
    for source, encoding_options in ((model, options), *((other, of_others) for other in others)):
        name = str(source.folder if isinstance(source, Model) else source)
        if name in (*_LEXICAL, "both"):
            what = "has the name of a baseline; write ./ before it"
            raise SettingsError(f"the model {name} {what}", options=("against",))
        if name in searches:
            raise SettingsError(f"the model {name} is given twice; give it once", options=("against",))
        searches[name] = ModelSearch(open_encoder(source, precision=precision, strict=strict, **encoding_options))
    name, first_search = next(iter(searches.items()))

    passed_over: Counter[str] = Counter()
    if is_judged:
        tasks = [read_beir(Path(str(named[0])), split=split, num_queries=queries, seed=seed)]
        described = [f"{named[0]}: a folder in BEIR's format, judgements of its split {split}"]
    else:
        with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
            files = list(keep_as_files(named, Path(scratch)))
            texts, described, passed_over = read_items(files, first_search.encoder.model.folder, settings)
        tasks = [crop_task(texts, settings)]
        shortest, *_, longest = sorted(map(len, (*tasks[0].queries, tasks[0].queries[0])))
        described.append(f"crops: {shortest:,} to {longest:,} characters")
        titles = title_task(texts, settings)
        if titles is not None and len(titles.queries) >= FEW:
            tasks.append(titles)
        elif titles is not None:
            described.append(f"titles: only {len(titles.queries)} can serve as queries, too few to measure")
    for task in tasks:
        passed_over += task.not_asked

    notify = notify or usual_reporter().notify
    measured = {task.name: _measure(task, searches, lexical, notify) for task in tasks}
    unit = "queries" if is_judged else "documents"
    more = "judge more" if is_judged else ways_to_more(every=settings.every)[0]
    more = "raise queries" if queries < LEAST_QUERIES else more
    return SearchEvaluation(
        {
            "model": name,
            "tasks": measured,
            "verdict": {task: _verdict(name, figures, more) for task, figures in measured.items()},
            "encoding": {each: search.encoder.settings.model_dump() for each, search in searches.items()},
            "described": described,
            "passed_over": dict(passed_over),
            "unit": unit,
            "seed": seed,
            "warning": few_draws(min(each["draws"] for each in measured.values()), unit),
        }
    )


class ModelSearch:
    """A model that answers queries by its vectors of passages. Tasks share most texts, which are embedded once."""

    def __init__(self, encoder: SearchEncoder) -> None:
        self.encoder = encoder
        self._vectors: list[Vectors] = []  # of all passages; joined after each task
        self._passages: dict[str, NDArray[np.int64]] = {}  # of each text, by number in `_vectors`

    def rank(self, task: SearchTask, top_k: int, name: str, notify: Notify) -> Ranking:
        """The documents nearest to each query; progress is reported under the model's `name`."""
        what = f"embedding documents with {name}"
        missing = [text for text in dict.fromkeys(task.documents) if text not in self._passages]
        counts = np.zeros(len(missing), dtype=np.int64)
        number = sum(map(len, self._passages.values()))
        notify(Progress(what, 0, len(missing), "texts"))
        passages = self.encoder.passages(DocumentPart(n, "", n, None, 0, text) for n, text in enumerate(missing))
        while group := list(islice(passages, _PASSAGES_AT_ONCE)):
            self._vectors.append(self.encoder.embed_documents([passage.embedded for passage in group]))
            for passage in group:
                counts[passage.part.document] += 1
            notify(Progress(what, group[-1].part.document + 1, len(missing), "texts"))
        self._vectors = [stacked(self._vectors)]
        for text, count in zip(missing, counts.tolist(), strict=True):
            self._passages[text] = number + np.arange(count)
            number += count
        queries_QD = self.encoder.embed_queries(task.queries)
        numbers = [self._passages[text] for text in task.documents]
        documents_N = np.repeat(np.arange(len(numbers)), list(map(len, numbers)))
        vectors_ND = self._vectors[0][np.concatenate(numbers)]
        return search_exactly(queries_QD, blocks_of(vectors_ND, documents_N), top_k)


def _measure(
    task: SearchTask, searches: dict[str, ModelSearch], lexical: Sequence[str], notify: Notify
) -> dict[str, Any]:
    ranked = {name: search.rank(task, FUSED, name, notify) for name, search in searches.items()}
    for kind in lexical:
        notify(Progress(f"scoring documents with {kind}", 0, len(task.documents), "texts"))
        ranked[kind] = rank_lexically(kind, task.documents, task.queries, FUSED)
    if "bm25" in ranked:
        ranked["both"] = fused(ranked[next(iter(searches))], ranked["bm25"], FUSED)
    rankings = {name: ranking.documents_QK for name, ranking in ranked.items()}
    if task.excluded is not None:  # drop the query's own document from its hits
        for name, documents_QK in rankings.items():
            rows = [row[row != own][:DEPTH] for row, own in zip(documents_QK, task.excluded, strict=True)]
            rankings[name] = np.stack([np.pad(row, (0, DEPTH - len(row)), constant_values=-1) for row in rows])
    per_query = {name: ranking_figures(documents_QK, task.relevant) for name, documents_QK in rankings.items()}
    first, *others = per_query
    confidence = 1.0 - _ERROR / max(1, len(others))
    has_enough = len(task.queries) >= LEAST_QUERIES
    # Which `rank` option of an index is best, and how far it is ahead of the next one.
    offered = {"vectors": first, "words": "bm25", "both": "both"} if "bm25" in ranked else {"vectors": first}
    decides = {name: per_query[system][DECIDES] for name, system in offered.items()}
    best, *rest = sorted(decides, key=lambda name: -decides[name].mean())
    ahead = {
        name: _means({DECIDES: decides[best] - decides[name]}, task.draws, confidence)
        for name in rest[:1]
        if has_enough
    }
    return {
        "queries": len(task.queries),
        "documents": len(task.documents),
        "draws": len(np.unique(task.draws)),
        "not_asked": dict(task.not_asked),
        "systems": {name: _means(figures, task.draws, None) for name, figures in per_query.items()},
        "differences": {
            name: _means({f: per_query[first][f] - per_query[name][f] for f in FIGURES}, task.draws, confidence)
            for name in others
            if has_enough
        },
        "confidence": confidence,
        "best": best if has_enough else None,
        "ahead": ahead,
    }


def _means(figures: Mapping[str, Floats], draws: NDArray[np.int64], confidence: float | None) -> dict[str, Any]:
    """Means over queries and their intervals: at 95 % for shares (no `confidence`), at `confidence` for differences."""
    means: dict[str, Any] = {}
    for name, values in figures.items():
        mean = _mean_over_draws(values, draws)
        interval = mean.share_interval if confidence is None else mean.interval_at(confidence)
        means |= {name: mean.value, f"{name}_interval": plain_interval(interval)}
    return means


def _mean_over_draws(values_Q: NDArray[np.float64], draws_Q: NDArray[np.int64]) -> Uncertain:
    """The mean over queries; queries of the same document are one draw."""
    of_draw = np.unique(draws_Q, return_inverse=True)[1]
    return ratio_over_draws(np.bincount(of_draw, weights=values_Q), np.bincount(of_draw))


def _verdict(model: str, task: dict[str, Any], more: str) -> str:
    """Which systems the model is better than, worse than, and not shown to differ from; then the best ranking. `more`
    says how to have more queries."""
    if task["queries"] < LEAST_QUERIES:
        return f"{task['queries']} queries are too few to compare systems (at least {LEAST_QUERIES}); {more}"
    if not task["differences"]:
        return "there is nothing to compare with"
    better, worse, unclear = list[str](), list[str](), list[str]()
    for name, difference in task["differences"].items():
        interval, by = difference[f"{DECIDES}_interval"], f"{name} by {abs(difference[DECIDES]):.3f}"
        if interval is None or interval[0] <= 0.0 <= interval[1]:
            unclear.append(name)
        else:
            (better if interval[0] > 0.0 else worse).append(by)
    facts = [f"{what} than {', '.join(names)}" for what, names in (("better", better), ("worse", worse)) if names]
    results = [f"{model} is {' and '.join(facts)}"] * bool(facts)
    results += [f"no difference shown between {model} and {' or '.join(unclear)}"] * bool(unclear)
    lines = [f"{'; '.join(results)} ({FIGURES[DECIDES]}; intervals of differences at {percent(task['confidence'])})"]
    for second, ahead in task["ahead"].items():
        interval = ahead[f"{DECIDES}_interval"]
        is_shown = interval is not None and interval[0] > 0.0
        by_chance = f"perhaps by chance: {second} may be as good"
        lead = f"{ahead[DECIDES]:.3f} better than {second}" if is_shown else by_chance
        lines.append(f"best here: `search query --rank {task['best']}`, {lead}")
    return "\n".join(lines)


# ----------------------------------------
# Lexical search, which a model should beat. BM25 (`words.py`) and TF-IDF with cosines see whole documents.
#
# Source: Salton and Buckley 1988 (Term-weighting approaches) for TF-IDF, with logarithms of counts.

_LEXICAL = ("bm25", "tfidf")


def check_lexical(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """The names of the baselines, each once, without `none`; None: all that can run.

    Raises `SettingsError` if one is unknown or cannot run.
    """
    if names is None:
        return tuple(name for name in _LEXICAL if name != "tfidf" or find_spec("sklearn"))
    names = [name for name in ([names] if isinstance(names, str) else names) if name != "none"]
    for name in names:
        if name not in _LEXICAL:
            raise SettingsError(f"baseline {name}: give {', '.join(_LEXICAL)} or none", options=("baselines",))
    if "tfidf" in names and find_spec("sklearn") is None:
        raise SettingsError("tfidf needs scikit-learn: pip install 'unmask[search]', or omit it", options=["baselines"])
    return tuple(dict.fromkeys(names))


def rank_lexically(kind: str, documents: Sequence[str], queries: Sequence[str], top_k: int) -> Ranking:
    if kind == "bm25":
        size = blocks.BLOCK_PASSAGES
        lines = [word_line(documents[begin : begin + size]) for begin in range(0, len(documents), size)]
        return WordSearch(np.arange(len(documents)), lambda: lines).rank(queries, top_k)
    ranking = no_hits(len(queries), top_k)
    if any(map(words_of, documents)):
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(analyzer=words_of, sublinear_tf=True)
        of_documents = vectorizer.fit_transform(documents).T.tocsr()
        for query, query_1V in enumerate(vectorizer.transform(queries)):
            scores_N = (query_1V @ of_documents).toarray()[0]
            best = best_of(scores_N, top_k)
            ranking.documents_QK[query, : len(best)] = best
            ranking.scores_QK[query, : len(best)] = scores_N[best]
    return ranking


# ----------------------------------------
# Figures of rankings and of vectors.
#
# nDCG, reciprocal rank and recall of each query, among its first ten documents:
#
#     relevant 2 1 1, ranked . 2 . 1 .    nDCG@10 = (2/log2(3) + 1/log2(5)) / (2/log2(2) + 1/log2(3) + 1/log2(4)) = 0.54
#                                        MRR@10 = 1/2, recall@1 = 0, recall@10 = 2/3
#
# As in trec_eval, and so in BEIR: the gain of a document is its grade itself (another nDCG uses 2^grade - 1); the ideal
# ranking is of all judged documents, ranked or not; documents with grades of 0 or less are not relevant.
#
# Source: Järvelin and Kekäläinen 2002 (Cumulated gain-based evaluation of IR techniques), with the discount of Burges
# et al. 2005, log2(1 + rank); Voorhees 1999 (The TREC-8 question answering track report) for the reciprocal rank;
# Thakur et al. 2021 (BEIR).


def ranking_figures(documents_QK: NDArray[np.int64], relevant: Sequence[Mapping[int, int]]) -> dict[str, Floats]:
    """The figures of each query [Q], by name.

    Args:
        documents_QK: Documents, the best first; -1 after the last one. Only the first ten count.
        relevant: For each query, the grades of the judged documents, at least one of them above 0.
    """
    figures = {name: np.zeros(len(relevant)) for name in FIGURES}
    discount = 1.0 / np.log2(np.arange(DEPTH) + 2.0)
    for query, grades in enumerate(relevant):
        ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
        gains = np.array([max(0, grades.get(document, 0)) for document in documents_QK[query, :DEPTH].tolist()])
        places = np.flatnonzero(gains)
        best = np.array(ideal[:DEPTH]) @ discount[: len(ideal)]
        figures["ndcg_at_10"][query] = gains @ discount[: len(gains)] / best
        figures["mrr_at_10"][query] = 1.0 / (places[0] + 1) if len(places) else 0.0
        figures["recall_at_1"][query] = np.count_nonzero(gains[:1]) / len(ideal)
        figures["recall_at_10"][query] = len(places) / len(ideal)
    return figures
