"""How well a model searches, beside the words that texts share and beside other models, without labels.

    a text           crops, and titles where there are any, find their documents (`search_tasks.py`)
    a BEIR folder    queries find what somebody has judged right (`beir_folder.py`)

All systems answer the same queries, so differences are taken query by query. Intervals are over source documents of the
queries, or over the queries of a BEIR folder, by Student's t; those of differences share their error by Bonferroni's
correction, one comparison for each other system, and one figure decides: nDCG@10.
"""

from __future__ import annotations

import hashlib
import heapq
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import CorpusError, DataError, SettingsError, parse_json, shown
from unmask.core.results import Notify, Progress, Result, Sheet, Shown, Styled, margin, over, usual_notify
from unmask.core.settings import validated
from unmask.data.corpus import Corpus
from unmask.data.data_folder import MANIFEST, load_manifest
from unmask.data.documents import naming_column
from unmask.data.reading import BadInput, json_rows, whole_lines
from unmask.data.settings import CorpusSettings, DocumentUnit
from unmask.data.sources import Source, Texts, keep_given, told_apart
from unmask.data.survey import text_hash
from unmask.data.tables import AskedColumn, columns_of, rows_of, text_of, value_or_none
from unmask.measure.held_out import few_draws
from unmask.measure.uncertainty import FEW, Uncertain, percent, plain_interval, ratio_over_draws, student_margin
from unmask.search.encoder import (
    TITLES,
    AskedEncoding,
    DocumentPart,
    PassageCutter,
    SearchEncoder,
    Similarity,
    first_line_title,
    open_encoder,
)
from unmask.search.exact import Vectors, blocks_of, search_exactly
from unmask.search.snippets import words_of
from unmask.tasks.embed import SparseVectors
from unmask.tasks.loaded_model import Model, Precision

# ----------------------------------------
# Search by the words that texts share, which a model should beat: BM25, and TF-IDF with cosines.
#
# Both see whole documents, and the same words: runs of letters and digits in small letters, ideographs and kana one by
# one. There are no stop words and no stems, which are a language's; frequent words weigh little in either. What shares
# no
# word with a query is not found at all.
#
# Source: Robertson and Zaragoza 2009 (The probabilistic relevance framework), in the form of Lucene, which bm25s has as
# `lucene` (Lù 2024, BM25S); Salton and Buckley 1988 (Term-weighting approaches) for TF-IDF, with logarithms of counts.

Lexical = Literal["bm25", "tfidf"]
_NEEDS: dict[Lexical, str] = {"bm25": "bm25s", "tfidf": "sklearn"}
_K1, _B = 1.2, 0.75  # Lucene's own


def check_lexical(names: Sequence[str]) -> tuple[Lexical, ...]:
    """Which baselines were asked for, each once.

    Raises:
        SettingsError: There is none of this name, or what it takes is not installed.
    """
    found: list[Lexical] = []
    for asked in dict.fromkeys(names):
        name = next((each for each in _NEEDS if each == asked), None)
        if name is None:
            raise SettingsError(f"--baselines {asked}: there are {', '.join(_NEEDS)}, and none")
        if find_spec(_NEEDS[name]) is None:
            package = {"sklearn": "scikit-learn"}.get(_NEEDS[name], _NEEDS[name])
            raise SettingsError(
                f"{name} takes {package}, which is not installed: pip install 'unmask[search]', or go without: "
                "--baselines none"
            )
        found.append(name)
    return tuple(found)


def rank_lexically(kind: Lexical, documents: Sequence[str], queries: Sequence[str], top_k: int) -> NDArray[np.int64]:
    """The documents [queries, top_k] that share most with each query, the best first; -1 where no more do.

    Documents that share equally much come in the order of their numbers.

    Args:
        kind: How words are weighed.
        documents, queries: Texts.
        top_k: At least 1.
    """
    scores = _bm25(documents, queries) if kind == "bm25" else _tfidf(documents, queries)
    found = np.full((len(queries), top_k), -1, dtype=np.int64)
    for query, scores_N in enumerate(scores):
        shares = np.flatnonzero(scores_N > 0.0)
        if len(shares) > top_k:
            kth = np.partition(scores_N[shares], len(shares) - top_k)[len(shares) - top_k]
            shares = shares[scores_N[shares] >= kth]
        best = shares[np.argsort(-scores_N[shares], kind="stable")][:top_k]
        found[query, : len(best)] = best
    return found


def _bm25(documents: Sequence[str], queries: Sequence[str]) -> Iterator[NDArray[np.float64]]:
    """Scores [documents] of each query, one after the other."""
    import bm25s

    words = [words_of(text) for text in documents]
    if not any(words):
        yield from np.zeros((len(queries), len(documents)))
        return
    index = bm25s.BM25(method="lucene", k1=_K1, b=_B)
    index.index(words, show_progress=False)
    for query in queries:
        asked = words_of(query)
        yield index.get_scores(asked) if asked else np.zeros(len(documents))


def _tfidf(documents: Sequence[str], queries: Sequence[str]) -> Iterator[NDArray[np.float64]]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(analyzer=words_of, sublinear_tf=True)
    try:
        of_documents = vectorizer.fit_transform(documents).T.tocsr()
    except ValueError:  # of texts without a word
        yield from np.zeros((len(queries), len(documents)))
        return
    for query_1V in vectorizer.transform(queries):
        yield (query_1V @ of_documents).toarray()[0]


# ----------------------------------------
# How good rankings are: nDCG, reciprocal rank and recall among the first ten, of each query.
#
#     relevant 2 1 1, found . 2 . 1 .    nDCG@10 = (2/log2(3) + 1/log2(5)) / (2/log2(2) + 1/log2(3) + 1/log2(4)) = 0.54
#                                        MRR@10 = 1/2, recall@1 = 0, recall@10 = 2/3
#
# As trec_eval has them, and by it BEIR: the gain of a document is its grade itself (2 to the power of the grade, less
# 1,
# is another nDCG); the best ranking is that of all judged documents, found or not; grades of 0 and less are not
# relevant.
#
# Source: Järvelin and Kekäläinen 2002 (Cumulated gain-based evaluation of IR techniques), with the discount of Burges
# et
# al. 2005, log2(1 + rank); Voorhees 1999 (The TREC-8 question answering track report) for the reciprocal rank; Thakur
# et
# al. 2021 (BEIR).

DEPTH = 10
FIGURES = ("ndcg_at_10", "mrr_at_10", "recall_at_1", "recall_at_10")
NAMES = {"ndcg_at_10": "nDCG@10", "mrr_at_10": "MRR@10", "recall_at_1": "recall@1", "recall_at_10": "recall@10"}


def ranking_figures(
    documents_QK: NDArray[np.int64], relevant: Sequence[Mapping[int, int]]
) -> dict[str, NDArray[np.float64]]:
    """The figures of each query [Q], by their names.

    Args:
        documents_QK: Documents found, the best first; -1 where there are no more. Only the first ten count.
        relevant: Of each query the grades of the documents that are judged, one of them above 0 at the least.
    """
    found = {name: np.zeros(len(relevant)) for name in FIGURES}
    discount = 1.0 / np.log2(np.arange(DEPTH) + 2.0)
    for query, grades in enumerate(relevant):
        best = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
        gains = np.array([max(0, grades.get(document, 0)) for document in documents_QK[query, :DEPTH].tolist()])
        places = np.flatnonzero(gains)
        found["ndcg_at_10"][query] = gains @ discount[: len(gains)] / (np.array(best[:DEPTH]) @ discount[: len(best)])
        found["mrr_at_10"][query] = 1.0 / (places[0] + 1) if len(places) else 0.0
        found["recall_at_1"][query] = np.count_nonzero(gains[:1]) / len(best)
        found["recall_at_10"][query] = len(places) / len(best)
    return found


# ----------------------------------------
# Queries whose right documents are known without anybody's labels: crops and titles of held-out documents.
#
#     document                A title                 The first sentence. The second one, longer. The third.
#     crop task    query                                                  The second one, longer.
#                  text searched                      The first sentence.                         The third.
#     title task   query      A title
#                  text searched                      The first sentence. The second one, longer. The third.
#
# A crop is taken out of its document before that is searched. Left inside, whoever compares words finds it at once,
# BM25
# with hardly an error, and nothing is learned of a model but whether it remembers words; taken out, what is left is
# about
# the same matter in other words, which is what a search by meaning is for, and so it is the default. `inside` leaves
# it,
# which tells how well a model remembers. Whether either is what somebody's users ask is not known; that takes
# judgements
# of theirs (`beir_folder.py`).
#
# Of several documents with equal texts, or with equal titles, one could not say which is right: of equal texts the
# first
# is kept, and equal titles are no queries.
#
# Source: Lee, Chang and Toutanova 2019 (Latent retrieval for weakly supervised open domain question answering), section
# 4, whose inverse cloze task this is, there for training; Izacard et al. 2022 (Unsupervised dense information retrieval
# with contrastive learning), section 3.1, for crops.

Crops = Literal["removed", "inside"]
CROP_CHARS = 120  # about twenty words of English
_ROOM = 40  # letters that a crop's ends move, at most, to the beginning of a word


@dataclass(frozen=True)
class ItemDocument:
    """A document that may be asked for.

    Attributes:
        text: Without its title.
        title: None where it has none.
        draw: Number of the source document that it is, or is a part of: what figures are drawn from.
        is_held_out: Whether it may be asked for, or is only searched among.
    """

    text: str
    title: str | None
    draw: int
    is_held_out: bool


@dataclass(frozen=True)
class SearchTask:
    """Queries, the documents that are searched, and which are right.

    Attributes:
        name: `crop`, `title` or `judged`.
        documents: Their texts, by number.
        queries: Their texts.
        relevant: Of each query the grades of documents.
        draws: [queries]: what each is drawn from; those of one are dependent.
        pairs: Of each query, the right document, and the character of it that the query is next to.
        not_asked: Why documents are no queries: reason to number.
        excluded: Of each query a document that is not shown; -1: none.
    """

    name: str
    documents: Sequence[str]
    queries: Sequence[str]
    relevant: Sequence[dict[int, int]]
    draws: NDArray[np.int64]
    pairs: Sequence[tuple[int, int]]
    not_asked: Counter[str]
    excluded: NDArray[np.int64] | None = None


def crop_task(
    documents: Sequence[ItemDocument], *, num_queries: int, crop_chars: int, crops: Crops, seed: int
) -> SearchTask:
    """Crops as queries, of documents that hashes of their text and the seed choose.

    Args:
        documents: All that are searched.
        num_queries: At most.
        crop_chars: Letters of a crop, about; what is left of its document is as long at the least.
        crops: Whether they are taken out of the documents that are searched.
        seed: Another one chooses other documents, and other crops.

    Raises:
        DataError: Every document is too short.
    """
    not_asked: Counter[str] = Counter()
    asked = [n for n, each in enumerate(documents) if each.is_held_out]
    long = [n for n in asked if len(documents[n].text) >= 2 * (crop_chars + _ROOM)]
    if len(long) < len(asked):
        not_asked["documents too short to crop"] = len(asked) - len(long)
    if not long:
        raise DataError(
            f"all of the {len(asked):,} documents that may be asked for are too short to take a crop of {crop_chars} "
            f"characters out of them ({2 * (crop_chars + _ROOM)} at the least); give longer ones, or --crop-chars "
            f"{crop_chars // 2}"
        )
    texts = [each.text for each in documents]
    chosen = _chosen(long, texts, num_queries, seed)
    queries, pairs = [], []
    for number in chosen:
        text = texts[number]
        begin, end = _crop(text, crop_chars, seed)
        if not (query := text[begin:end].strip()):
            not_asked["documents of which white space was taken out"] += 1
            continue
        queries.append(query)
        pairs.append((number, begin))
        if crops == "removed":
            texts[number] = f"{text[:begin]} {text[end:]}"
    if not queries:
        raise DataError("all crops are white space; give other text, or longer crops (--crop-chars)")
    relevant = [{number: 1} for number, _ in pairs]
    draws = np.array([documents[number].draw for number, _ in pairs])
    return SearchTask("crop", texts, queries, relevant, draws, pairs, not_asked)


def title_task(documents: Sequence[ItemDocument], *, num_queries: int, seed: int) -> SearchTask | None:
    """Titles as queries; None where fewer than two held-out documents have one of their own. Arguments as above."""
    titles = Counter(each.title.lower() for each in documents if each.title is not None)
    asked = [(n, each.title) for n, each in enumerate(documents) if each.is_held_out and each.title is not None]
    own = {n: title for n, title in asked if titles[title.lower()] == 1}
    if len(own) < 2:
        return None
    not_asked: Counter[str] = Counter()
    if len(own) < len(asked):
        not_asked["documents whose title others have too"] = len(asked) - len(own)
    texts = [each.text for each in documents]
    chosen = _chosen(list(own), texts, num_queries, seed)
    return SearchTask(
        "title",
        texts,
        [own[number] for number in chosen],
        [{number: 1} for number in chosen],
        np.array([documents[number].draw for number in chosen]),
        [(number, 0) for number in chosen],
        not_asked,
    )


def _chosen(numbers: Sequence[int], texts: Sequence[str], count: int, seed: int) -> list[int]:
    """Some of the documents, by hashes of their texts, in their order."""
    ordered = sorted(numbers, key=lambda number: (text_hash(f"{seed} {texts[number]}"), number))
    return sorted(ordered[:count])


def _crop(text: str, crop_chars: int, seed: int) -> tuple[int, int]:
    """Where the crop is: anywhere, from the beginning of a word to that of another where spaces are near."""
    begin = text_hash(f"crop {seed} {text}") % (len(text) - crop_chars - 2 * _ROOM + 1)
    begin = _next_word(text, begin) if begin else 0
    return begin, _next_word(text, begin + crop_chars)


def _next_word(text: str, place: int) -> int:
    """The next beginning of a word, if there is one near."""
    for near in range(place, min(place + _ROOM, len(text))):
        if text[near - 1].isspace() and not text[near].isspace():
            return near
    return place


# ----------------------------------------
# What vectors of texts are like, whatever is searched: alignment, uniformity, effective rank.
#
#     alignment         mean of |x - y|^2 over pairs of texts that belong together; lower is nearer
#     uniformity        log of the mean of exp(-2 |x - y|^2) over pairs of different texts; lower is more spread out
#     effective rank    exp of the entropy of the singular values, divided by their sum; 1: all texts lie on a line
#
# All of vectors of length 1. Alignment alone says nothing: where all texts have one vector it is 0. A plain masked
# language model mostly has both near 0, since its vectors share a large common part, which the effective rank shows
# too.
#
# Source: Wang and Isola 2020 (Understanding contrastive representation learning through alignment and uniformity on the
# hypersphere), section 4, with their exponents 2 and t = 2; Roy and Vetterli 2007 (The effective rank), section 2, of
# the
# matrix of vectors as it is, whose mean is not taken away.

MOST_VECTORS = 2000  # that pairs and singular values are taken of


def unit(vectors_ND: NDArray[np.float32]) -> NDArray[np.float64]:
    """Vectors divided by their length; those of length 0 stay."""
    wide = vectors_ND.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return wide / np.where(lengths > 0.0, lengths, 1.0)


def alignment(first_ND: NDArray[np.float32], second_ND: NDArray[np.float32]) -> NDArray[np.float64]:
    """The squared distance of each pair [N], whose mean is the alignment."""
    squares: NDArray[np.float64] = np.square(unit(first_ND) - unit(second_ND)).sum(axis=1)
    return squares


def uniformity(vectors_ND: NDArray[np.float32]) -> float | None:
    """Over all pairs of two different rows; None where there are none."""
    if len(vectors_ND) < 2:
        return None
    found = unit(vectors_ND)
    squares = np.maximum(0.0, 2.0 - 2.0 * (found @ found.T))[np.triu_indices(len(found), k=1)]
    return float(np.log(np.mean(np.exp(-2.0 * squares))))


def effective_rank(vectors_ND: NDArray[np.float32]) -> float:
    """From 1 to the smaller of the numbers of rows and columns."""
    values = np.linalg.svd(unit(vectors_ND), compute_uv=False)
    if not values.any():
        return 1.0
    share = values / values.sum()
    share = share[share > 0.0]
    return float(np.exp(-(share * np.log(share)).sum()))


def coordinates(vectors_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors [N, at most N] with the same inner products, which is all that the figures above depend on: short ones
    in place of those that are longer than there are of them.
    """
    if vectors_ND.shape[1] <= len(vectors_ND):
        return vectors_ND
    wide = vectors_ND.astype(np.float64)
    values, rotated = np.linalg.eigh(wide @ wide.T)
    short: NDArray[np.float32] = (rotated * np.sqrt(np.maximum(values, 0.0))).astype(np.float32)
    short[~vectors_ND.any(axis=1)] = 0.0  # and not what rounding left
    return short


def sampled(num_vectors: int, seed: int, most: int = MOST_VECTORS) -> NDArray[np.int64]:
    """Which vectors are looked at: all, or that many of them, by the seed alone; sorted."""
    if num_vectors <= most:
        return np.arange(num_vectors)
    return np.sort(np.random.default_rng(seed).choice(num_vectors, most, replace=False))


# ----------------------------------------
# Folders in the format of BEIR, with somebody's judgements of what is right.
#
#     corpus.jsonl      {"_id": "d1", "title": "...", "text": "..."}      a document a line
#     queries.jsonl     {"_id": "q1", "text": "..."}
#     qrels/test.tsv    query-id <tab> corpus-id <tab> score              with a head; the score is a grade
#
# As BEIR does, a document is its title and its text with a space between them, and one with the query's own id is not
# shown for it. Documents that are judged and not in the corpus count as relevant and not found, as in trec_eval, and
# are
# told of. Queries without a relevant document are passed over.
#
# Source: Thakur et al. 2021 (BEIR), and the format of its repository.

CORPUS, QUERIES_FILE, QRELS = "corpus.jsonl", "queries.jsonl", "qrels"
_HEAD = ["query-id", "corpus-id", "score"]


def is_beir(path: str | Path) -> bool:
    """Whether a path names a folder in this format, or one that lacks a single part of it."""
    root = Path(path)
    there = ((root / CORPUS).is_file(), (root / QUERIES_FILE).is_file(), (root / QRELS).is_dir())
    return root.is_dir() and sum(there) >= 2


def read_beir(root: Path, *, split: str, num_queries: int | None, seed: int) -> SearchTask:
    """Reads a folder. The corpus is held in memory.

    Args:
        root: The folder.
        split: Of `qrels`, such as `test`.
        num_queries: At most; None takes all.
        seed: Chooses them, where there are more.

    Raises:
        CorpusError: A file is missing or cannot be read, an id is there twice, or no judgement is of a query and a
            document that are there.
    """
    ids, texts = _corpus(root / CORPUS)
    queries = dict(_records(root / QUERIES_FILE, "text"))
    judged = _judgements(root, split)
    number_of = {id_: number for number, id_ in enumerate(ids)}
    passed: Counter[str] = Counter()
    chosen: list[tuple[str, dict[int, int]]] = []
    missing = len(ids)  # numbers of documents that are judged and not there begin behind those that are
    for query, grades in judged.items():
        if query not in queries:
            passed[f"judged queries that {QUERIES_FILE} lacks"] += 1
        elif not any(grade > 0 and id_ in number_of for id_, grade in grades.items()):
            passed["judged queries without a relevant document in the corpus"] += 1
        elif not queries[query].strip():
            passed["queries without text"] += 1
        else:
            found = {}
            for id_, grade in grades.items():
                if id_ not in number_of:
                    missing += 1
                    passed[f"judged documents that {CORPUS} lacks, counted as not found"] += 1
                found[number_of.get(id_, missing)] = grade
            chosen.append((query, found))
    if not chosen:
        why = ", ".join(f"{count:,} {reason}" for reason, count in passed.items()) or "it is empty"
        raise CorpusError(
            f"{root / QRELS / split}.tsv: none of its judgements is of a query in {QUERIES_FILE} and a document in "
            f"{CORPUS} that is relevant to it ({why}); mind that ids are those of `_id`"
        )
    if num_queries is not None and len(chosen) > num_queries:
        kept = np.random.default_rng(seed).choice(len(chosen), num_queries, replace=False)
        chosen = [chosen[number] for number in np.sort(kept).tolist()]
    right = [max(found, key=lambda n: (found[n] * (n < len(ids)), -n)) for _, found in chosen]
    return SearchTask(
        "judged",
        texts,
        [queries[query] for query, _ in chosen],
        [found for _, found in chosen],
        np.arange(len(chosen)),
        [(number, 0) for number in right],
        passed,
        np.array([number_of.get(query, -1) for query, _ in chosen], dtype=np.int64),
    )


def _corpus(file: Path) -> tuple[list[str], list[str]]:
    """Ids and texts of the documents."""
    found = dict(_records(file, "text", title=True))
    if not found:
        raise CorpusError(f"{file}: there is no document in it")
    return list(found), list(found.values())


def _records(file: Path, name: str, *, title: bool = False) -> Iterator[tuple[str, str]]:
    if not file.is_file():
        raise CorpusError(
            f"{file}: there is no such file; a folder of BEIR has {CORPUS}, {QUERIES_FILE} and {QRELS}/test.tsv"
        )
    seen = set()
    for number, row in json_rows(file, BadInput(skip=False, way_out=None)):
        id_, text = row.get("_id"), row.get(name)
        if isinstance(id_, bool) or not isinstance(id_, str | int) or not isinstance(text, str):
            raise CorpusError(
                f"{file}: row {number} has {shown(id_)} as _id and {shown(text)} as {name}; both must be texts"
            )
        if str(id_) in seen:
            raise CorpusError(f"{file}: row {number} has the _id {shown(id_)}, which stood before; make ids unique")
        seen.add(str(id_))
        head = row.get("title") if title else None
        yield str(id_), f"{head} {text}".strip() if isinstance(head, str) and head else text


def _judgements(root: Path, split: str) -> dict[str, dict[str, int]]:
    """Grades by query and document."""
    file = root / QRELS / f"{split}.tsv"
    if not file.is_file():
        others = sorted(path.stem for path in (root / QRELS).glob("*.tsv")) if (root / QRELS).is_dir() else []
        way_out = f"name one with --split: {', '.join(others)}" if others else f"put judgements into {QRELS}/test.tsv"
        raise CorpusError(f"{file}: there is no such file; {way_out}")
    found: dict[str, dict[str, int]] = {}
    for number, line in enumerate(whole_lines(file, BadInput(skip=False, way_out=None)), 1):
        cells = line.rstrip("\r\n").split("\t")
        if not line.strip() or (number == 1 and cells[:1] == _HEAD[:1]):
            continue
        try:
            query, document, grade = cells
            found.setdefault(query, {})[document] = int(grade)
        except ValueError as error:
            raise CorpusError(
                f"{file}: line {number} is {shown(line)}, not a query, a document and a whole number with tabs between"
            ) from error
    return found


# ----------------------------------------
# Held-out documents of a text, to be searched among and asked for.
#
# What is held out goes by the rule that pretraining has (`CorpusSettings`): that of the run or the embedder which made
# the model, where its folder says one, and else the default. Equal text always falls on the same side, so documents
# that
# a run has held out are held out here, wherever the text lies now.
#
# A document of more than some 16,000 characters (a book) is searched in stretches of about so many, each of which is an
# item, as embedding models are trained on stretches (the embedder). Figures are drawn from documents.

HELD_OUT = "held_out"  # in settings.json of an embedder: the settings of its text
STRETCH_CHARS = 16_384  # of a long document: about the 4,096 tokens of `unmask.embedding`


@dataclass(frozen=True)
class ItemsRead:
    """What was read.

    Attributes:
        documents: Those that are searched, in the order of the text.
        described: How, in lines.
        passed_over: Reason to number.
    """

    documents: list[ItemDocument]
    described: list[str]
    passed_over: Counter[str]


@dataclass(frozen=True, kw_only=True)
class ItemSettings:
    """Which documents of a text are searched.

    Attributes:
        column: Where the text of tables stands; None: as the run has it, or found.
        title_column: Where titles of tables stand; None: in `title`, if it is there.
        documents: What a document is in text files; None: as the run has it, or found.
        every: Whether all documents may be asked for, since the model was trained on none.
        among_all: Whether all documents are searched among, and not those that may be asked for alone.
        most: Documents at most; of more, some are taken by a hash of their text, those that may be asked for first.
        seed: Of that hash.
    """

    column: AskedColumn = None
    title_column: str | None = None
    documents: str | None = None
    every: bool = False
    among_all: bool = False
    most: int = 10_000
    seed: int = 0


def read_items(paths: Sequence[str | Path], model: Path, asked: ItemSettings) -> ItemsRead:
    """Reads the documents of a text that are searched; memory grows with these, and by a hash for each other document.

    Args:
        paths: Files, folders or patterns.
        model: Folder of the model, which may be that of a run.
        asked: Which of them.

    Raises:
        UnmaskError: The text cannot be read; there are fewer than two documents, or no title column of this name.
    """
    run, settings = held_out_rule(model)
    changes = {"column": asked.column, "documents": asked.documents}
    values = settings.model_dump() | {name: value for name, value in changes.items() if value is not None}
    passed_over: Counter[str] = Counter()
    with naming_column():
        corpus = Corpus(paths, validated(CorpusSettings, values, where="evaluate-search"), hold_out=not asked.every)
        kept = _Kept(asked.most, asked.seed, passed_over)
        for item in _items(corpus):
            if asked.every or item.is_held_out or asked.among_all:
                kept.add(item._replace(is_held_out=asked.every or item.is_held_out))
        found = kept.documents()
        passed_over.update(corpus.skipped)
        _check_several(paths, found, every=asked.every)
        titles, where = _titles(corpus, found, asked.title_column)
    items = [
        ItemDocument(body, title, item.draw, item.is_held_out)
        for (body, title), item in zip(titles, found, strict=True)
    ]
    described = corpus.describe(corpus.decided())
    if not asked.every:
        unknown = "by the default rule: no run is known that made the model, which may have seen them"
        described += f" ({unknown if run is None else f'as in {run}'})"
    return ItemsRead(_without_equal(items, passed_over), [described, where], passed_over)


def _check_several(paths: Sequence[str | Path], found: Sequence[_Item], *, every: bool) -> None:
    if len(found) >= 2 and any(item.is_held_out for item in found):
        return
    raise DataError(
        f"{', '.join(map(str, paths))}: {len(found)} {'' if every else 'held-out '}document{'s' * (len(found) != 1)}, "
        "which is too few to search among; give more text, --documents line or block for smaller documents"
        f"{'' if every else ', or --all for a text that the model was not trained on'}"
    )


def held_out_rule(model: Path) -> tuple[Path | None, CorpusSettings]:
    """The run or embedder that made a model, and by which rule it held text out; the default one where none is known.

    Raises:
        DataError: What the run keeps of its data is damaged.
    """
    if (found := _rule_of_embedder(model.parent)) is not None:
        return model.parent, found
    run = model.parent
    data, sources = [run / "data"], run / "sources.json"
    if sources.is_file():
        try:
            data += [Path(source) for source in parse_json(sources.read_text(encoding="utf-8"))][:1]
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"{sources}: damaged ({error}); mend it, or copy the model out of the run") from error
    if not (run / "recipe.toml").is_file() or not (prepared := [root for root in data if (root / MANIFEST).is_file()]):
        return None, CorpusSettings()
    manifest = load_manifest(prepared[0])
    return run, validated(CorpusSettings, manifest.settings["corpus"], where=str(prepared[0] / MANIFEST))


def _rule_of_embedder(folder: Path) -> CorpusSettings | None:
    file = folder / "settings.json"
    if not file.is_file():
        return None
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: damaged ({error}); mend it, or copy the model out of the folder") from error
    if not isinstance(content, dict) or HELD_OUT not in content:
        return None
    return validated(CorpusSettings, content[HELD_OUT], where=str(file))


class _Item(NamedTuple):
    """A text that may be searched.

    Attributes:
        text: A document, or a stretch of a long one.
        draw: Number of the source document.
        is_held_out: Whether it may be asked for.
        begins: Whether the document begins with it, so that there may be a title.
    """

    text: str
    draw: int
    is_held_out: bool
    begins: bool


def _items(corpus: Corpus) -> Iterator[_Item]:
    """Documents, long ones in stretches, in the order of the text."""
    in_parts = corpus.plan.holdout_unit in ("part", "end")
    text, draw, is_held, begins = "", -1, False, True

    def rest() -> list[_Item]:
        return [_Item(each, draw, is_held, begins and not n) for n, each in enumerate(_halves(text))]

    for piece, held in corpus.pieces():
        if text and (in_parts or piece.document != draw):
            yield from rest()
            text = ""
        if not text:
            begins = piece.offset == 0
        text, draw, is_held = text + piece.text, piece.document, held
        while len(text) >= 2 * STRETCH_CHARS:
            end = _good_end(text, STRETCH_CHARS)
            yield _Item(text[:end], draw, is_held, begins)
            text, begins = text[end:], False
    if text:
        yield from rest()


def _halves(text: str) -> list[str]:
    """The rest of a document: whole, or in two where it is much longer than a stretch."""
    if len(text) < 3 * STRETCH_CHARS // 2:
        return [text]
    end = _good_end(text, len(text) // 2)
    return [text[:end], text[end:]]


def _good_end(text: str, near: int) -> int:
    """Behind the last line that ends before a place, or the last word, if either is not far before it."""
    for mark in ("\n", " "):
        if (found := text.rfind(mark, near // 2, near)) >= 0:
            return found + 1
    return near


class _Kept:
    """Some of the documents: those with the lowest hashes, held-out ones first, without equal ones."""

    def __init__(self, most: int, seed: int, passed_over: Counter[str]) -> None:
        self.most, self.seed, self.passed_over = most, seed, passed_over
        self.heap: list[tuple[bool, int, int, _Item]] = []
        self.seen: set[bytes] = set()
        self.count = 0

    def add(self, item: _Item) -> None:
        """Takes a document, if it is among them so far."""
        key = hashlib.blake2b(item.text.encode(), digest_size=16).digest()
        if key in self.seen:
            self.passed_over["documents with the text of another"] += 1
            return
        self.seen.add(key)
        self.count += 1
        entry = (item.is_held_out, -text_hash(f"{self.seed} {item.text}"), self.count, item)
        if len(self.heap) < self.most:
            heapq.heappush(self.heap, entry)
        else:
            heapq.heappushpop(self.heap, entry)

    def documents(self) -> list[_Item]:
        """In the order of reading."""
        if self.count > self.most:
            self.passed_over["documents more than --max-documents"] = self.count - self.most
        return [item for *_, item in sorted(self.heap, key=lambda entry: entry[2])]


def _titles(
    corpus: Corpus, found: Sequence[_Item], title_column: str | None
) -> tuple[list[tuple[str, str | None]], str]:
    """Body and title of each document, and where titles are, in words."""
    texts = [item.text for item in found]
    tables = [source for source in corpus.all_sources() if source.is_table]
    if tables:
        by_text, name = _titles_in_tables(tables, title_column, set(map(text_hash, texts)))
        titled = [(text, by_text.get(text_hash(text))) for text in texts]
        if name is None:
            return titled, "no titles: the table has no column title (--title-column names another)"
        return titled, f"titles: column {name!r}, {sum(title is not None for _, title in titled):,} of {len(texts):,}"
    if title_column is not None:
        raise CorpusError(f"--title-column {title_column}: there are no columns in a text file")
    firsts = [first_line_title(item.text) if item.begins else None for item in found]
    count, whole = sum(title is not None for title in firsts), sum(item.begins for item in found)
    if 2 * count < whole:
        return [(text, None) for text in texts], "no titles: few documents begin with a line that looks like one"
    bodies = [
        text if title is None else text.lstrip().partition("\n")[2] for text, title in zip(texts, firsts, strict=True)
    ]
    return list(zip(bodies, firsts, strict=True)), f"titles: first lines, of {count:,} of {whole:,} documents"


def _titles_in_tables(
    tables: Sequence[Source], asked: str | None, wanted: set[int]
) -> tuple[dict[int, str], str | None]:
    """Titles by the hash of the text that they stand beside, and the column. A document that is a stretch of a long
    row, or that cleaning has changed, has none.
    """
    found: dict[int, str] = {}
    name = None
    for source in tables:
        assert source.column is not None, "tables have one"
        names = [asked] if asked is not None else [each for each in TITLES if each not in columns_of(source.column)]
        bad, titles = BadInput(skip=True), Counter[str]()
        only = [*columns_of(source.column), *names]
        for number, row in rows_of(source, bad, source.column, known=names, only=only):
            text = text_of(source, number, row, source.column, bad)
            title = next(((each, row_title) for each in names if (row_title := value_or_none(row, each))), None)
            if title is not None and isinstance(title[1], str):
                titles[title[0]] += 1
                said = " ".join(title[1].split())
                if said and text is not None and (key := text_hash(text.rstrip("\n"))) in wanted:
                    found[key] = said
        if titles:
            name = titles.most_common(1)[0][0]
        elif asked is not None:
            raise CorpusError(f"{source.path}: there is no title in column {asked!r}")
    return found, name


def _without_equal(items: Sequence[ItemDocument], passed_over: Counter[str]) -> list[ItemDocument]:
    """Bodies that are equal although titles are not."""
    seen: set[str] = set()
    kept = []
    for item in items:
        if item.text in seen:
            passed_over["documents with the text of another"] += 1
        elif item.text.strip():
            kept.append(item)
            seen.add(item.text)
    return kept


# ----------------------------------------
# A model that answers the queries of tasks, by its vectors of the passages of documents.
#
# Tasks share most of their documents, so the vectors of a text are made once and kept.

_AT_ONCE = 1024  # passages
_PAIRS_AT_ONCE = 256


@dataclass(frozen=True)
class _DocumentVectors:
    """Vectors of a document's passages [P, D], and the character at which each ends."""

    vectors_PD: Vectors
    ends_P: NDArray[np.int64]


class ModelSearch:
    """A model that is asked.

    Args:
        encoder: What embeds.
    """

    def __init__(self, encoder: SearchEncoder) -> None:
        self.encoder = encoder
        self._cutter = PassageCutter(encoder.model.tokenizer, encoder.settings)
        self._made: dict[str, _DocumentVectors] = {}
        self._queries: dict[str, Vectors] = {}

    def rank(self, task: SearchTask, top_k: int, count: Callable[[int, int], None]) -> NDArray[np.int64]:
        """The documents [queries, top_k] that are nearest to each query; -1 where there are no more.

        Args:
            task: What is asked, and searched.
            top_k: At least 1.
            count: Told how many documents are embedded, and of how many.
        """
        self._embed(task.documents, count)
        self._queries[task.name] = queries_QD = self.encoder.embed_queries(task.queries)
        vectors_ND, documents_N = self._passages(task)
        return search_exactly(queries_QD, blocks_of(vectors_ND, documents_N), top_k).documents_QK

    def _passages(self, task: SearchTask) -> tuple[Vectors, NDArray[np.int64]]:
        made = [self._made[text].vectors_PD for text in task.documents]
        return _joined(made), np.repeat(np.arange(len(made)), list(map(len, made)))

    def _embed(self, texts: Sequence[str], count: Callable[[int, int], None]) -> None:
        missing = [text for text in dict.fromkeys(texts) if text not in self._made]
        parts = (DocumentPart(n, "", n, None, 0, text) for n, text in enumerate(missing))
        done: list[list[Any]] = [[[], []] for _ in missing]
        waiting: list[tuple[int, int, str]] = []

        def flush() -> None:
            vectors = self.encoder.embed_documents([text for _, _, text in waiting])
            for place, (number, end, _) in enumerate(waiting):
                done[number][0].append(vectors[place : place + 1])
                done[number][1].append(end)
            count(waiting[-1][0] + 1, len(missing))
            waiting.clear()

        count(0, len(missing))
        for passage in self._cutter.cut(parts):
            waiting.append((passage.part.document, passage.end, passage.embedded))
            if len(waiting) >= _AT_ONCE:
                flush()
        if waiting:
            flush()
        for text, (vectors, ends) in zip(missing, done, strict=True):
            self._made[text] = _DocumentVectors(_joined(vectors), np.array(ends))

    def alignments(self, task: SearchTask) -> NDArray[np.float64]:
        """The squared distance [queries] of each query and the passage that it belongs to, of a task that was ranked.

        That is the passage which a crop was taken out of, and the first one for titles and judged queries: not the
        nearest, which would be a choice by what is measured.
        """
        right = []
        for document, place in task.pairs:
            made = self._made[task.documents[document]]
            number = min(int(np.searchsorted(made.ends_P, place)), len(made.ends_P) - 1)
            right.append(made.vectors_PD[number : number + 1])
        queries = self._queries[task.name]
        parts = range(0, len(right), _PAIRS_AT_ONCE)
        each = [(queries[n : n + _PAIRS_AT_ONCE], _joined(right[n : n + _PAIRS_AT_ONCE])) for n in parts]
        return np.concatenate([alignment(_dense(one), _dense(other)) for one, other in each])

    def spread(self, task: SearchTask, seed: int) -> dict[str, Any]:
        """Uniformity and effective rank of the passages of a task that was ranked, some of them if they are many."""
        vectors_ND = self._passages(task)[0]
        chosen = sampled(len(vectors_ND), seed)
        if isinstance(vectors_ND, SparseVectors):
            some = coordinates(_dense(_joined([vectors_ND[number : number + 1] for number in chosen.tolist()])))
        else:
            some = vectors_ND[chosen]
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
        crops: Whether a crop is `removed` from its document, or left `inside`; see `unmask.search.evaluate`.
        crop_chars: Characters of a crop, about.
        every: Whether all documents may be asked for, since the model was trained on none of them (`--all`).
        among_all: Whether all documents are searched among, and not held-out ones alone.
        split: Of a BEIR folder's judgements.
        column, title_column, documents: As for `unmask.search.evaluate.ItemSettings`.
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
