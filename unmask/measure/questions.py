"""Questions that measure a model: hidden tokens in a text, and how well it predicted each of them.

    Question   input_ids  [CLS] the [MASK] sees [MASK] [SEP]      places 2 4      targets cat dogs
    Answer     losses     0.7 2.3                                 ranks  0 3

`ask` puts any number of questions to a network. `judge` says how well it predicted hidden tokens, here and in held-out
rows. After them come scores of sentences, and files of minimal pairs.

Shape suffixes: T = positions of all rows in a line, D = hidden size, N = hidden tokens, V = vocabulary.
"""

from __future__ import annotations

import lzma
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from unmask.core.errors import CorpusError, ModelError, SettingsError, unknown
from unmask.core.files import absence
from unmask.core.results import Notify, Progress, ignore
from unmask.data.json_rows import json_form, json_rows
from unmask.data.reading import BadInput, bare_suffix, broken_character, check_characters
from unmask.measure.uncertainty import FEW, ratio_over_draws, wilson
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.runner import Predictor, evaluating, logits_at, run

TOP = 5
WINDOW = 1 << 16  # number of positions at which the questions gathered so far are packed and answered


class Question(NamedTuple):
    input_ids: NDArray[np.int64]  # [S]: what the model sees, with special tokens
    places: NDArray[np.int64]  # [N]: positions of the hidden tokens
    targets: NDArray[np.int64]  # [N]: the tokens at these places
    origin: Any = None  # returned with the answer


class Answer(NamedTuple):
    losses: NDArray[np.float64]  # [N], nats
    ranks: NDArray[np.int64]  # [N]: number of tokens that the model found likelier; 5 means 5 or more
    origin: Any = None  # the question's


Ask = Callable[[Iterable[Question]], Iterator[Answer]]  # `ask` with a network


def ask(network: Predictor, questions: Iterable[Question]) -> Iterator[Answer]:
    """Answers questions in their order, several batches at a time, with the network in evaluation mode.

    Questions are packed into rows. Which ones share a batch changes answers only by floating-point rounding. Raises a
    ModelError if a loss is not finite.
    """
    gathered: list[Question] = []
    positions = 0
    for question in questions:
        gathered.append(question)
        positions += len(question.input_ids)
        if positions >= WINDOW:
            yield from _answers(network, gathered)
            gathered, positions = [], 0
    yield from _answers(network, gathered)


def _answers(network: Predictor, questions: Sequence[Question]) -> list[Answer]:
    answers: dict[int, Answer] = {}
    places = [question.places for question in questions]
    with evaluating(network):
        for rows, hidden_TD in run(network, [question.input_ids for question in questions]):
            numbers = rows.numbers.tolist()
            targets = np.concatenate([questions[number].targets for number in numbers])
            losses_and_ranks = judge(network, hidden_TD, rows.places(places), torch.from_numpy(targets))
            ends = np.cumsum([len(places[number]) for number in numbers])[:-1]
            for number, losses, ranks in zip(
                numbers, *(np.split(part, ends) for part in losses_and_ranks), strict=True
            ):
                answers[number] = Answer(losses, ranks, questions[number].origin)
    for number, question in enumerate(questions):
        losses = answers[number].losses
        wrong = np.flatnonzero(~np.isfinite(losses))
        if len(wrong):  # NaN would count as a wrong prediction, and look like a figure
            what = f"the model's loss is {losses[wrong[0]]} at position {question.places[wrong[0]]} of a text"
            way_out = "give an earlier checkpoint, or train with a lower learning rate"
            raise ModelError(f"{what}, so its weights are not finite, or too large; {way_out}")
    return [answers[number] for number in range(len(questions))]


def judge(
    network: Predictor, hidden_TD: Tensor, places_N: Tensor, targets_N: Tensor, *, top: int = TOP
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """How well a network, in evaluation mode, predicts hidden tokens of a batch.

    Places and targets are int64, on any device. Returns losses [N] in nats, and ranks [N] of the right tokens: the
    number of tokens that the network found likelier, at most `top`, which means `top` or more; 1 costs least.
    """
    losses, ranks = [], []
    begin = 0
    for logits_NV in logits_at(network, hidden_TD, places_N):
        right_N = targets_N[begin : begin + len(logits_NV)].to(logits_NV.device)
        begin += len(logits_NV)
        losses.append(functional.cross_entropy(logits_NV, right_N, reduction="none").cpu().double().numpy())
        if top == 1:
            rank_N = (logits_NV.argmax(1) != right_N).long()
        else:
            hit_NK = logits_NV.topk(min(top, logits_NV.shape[1]), dim=1).indices == right_N[:, None]
            rank_N = torch.where(hit_NK.any(1), hit_NK.long().argmax(1), top)
        ranks.append(rank_N.cpu().numpy())
    return np.concatenate(losses), np.concatenate(ranks)


# Pseudo-log-likelihoods of sentences: how likely a masked language model finds a text, token by token.
#
#     sentence     the  em  ##broid  ##ery  fades          (of the word `embroidery`)
#
#     plain        the  em  [MASK]   ##ery  fades          to predict ##broid, the model sees all other pieces
#     word_l2r     the  em  [MASK]   [MASK] fades          it does not see later pieces of the same word
#
# The pieces of a word nearly give each other away, so the plain form finds long rare words too likely. `word_l2r` does
# not.
#
# Source: Salazar et al. 2020 (Masked language model scoring), section 2, for `plain`; Kauf and Ivanova 2023 (A better
# way to do masked language model scoring), for `word_l2r`. Words are the tokenizer's (`unmask.tokenizer.words`).

Form = Literal["plain", "word_l2r"]
_REPORT_EVERY = 256  # tokens


def checked_form(form: str) -> Form:
    if form not in get_args(Form):
        raise SettingsError(unknown("form of the pseudo-log-likelihood", form, get_args(Form)))
    return form  # type: ignore[return-value]


def pseudo_log_likelihoods(
    network: Predictor,
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    *,
    form: Form = "plain",
    contexts: Sequence[str] | None = None,
    notify: Notify = ignore,
) -> NDArray[np.float64]:
    """Scores each sentence by itself: the sum of its tokens' log-likelihoods in nats, never above 0.

    Every token of the text is predicted once, unknown tokens too; special tokens are not. Sentences with equal tokens
    are scored once, so sentences that a model cannot distinguish (white space, letters that the tokenizer lowers,
    unknown words) have equal scores, to the last bit. A `[MASK]` in a sentence is ordinary text. Each of `contexts` is
    put before its sentence, with a space between; the model sees it, but its tokens are not scored.

    Raises:
        ModelError: A loss is not finite.
        SettingsError: A sentence is empty, holds an invalid character or is too long for the model (the error names its
            number, counted from 1); or `sentences` is a single text.
    """
    if isinstance(sentences, str):
        raise SettingsError(f"give a list of sentences: [{sentences[:40]!r}]")
    sentences = list(sentences)
    for number, sentence in enumerate(sentences, 1):
        if not isinstance(sentence, str):
            raise SettingsError(f"sentence {number} is {sentence!r}, not a text; leave it out")
        check_characters(sentence, f"sentence {number} ({sentence[:60]!r})")
    if contexts is not None:
        sentences = [in_context(*each) for each in zip(contexts, sentences, strict=True)]
    encoded = tokenizer.encode_corpus(sentences)
    lengths = np.array([len(tokens.input_ids) for tokens in encoded], dtype=np.int64)
    skipped = np.zeros_like(lengths) if contexts is None else _context_lengths(tokenizer, sentences, contexts)
    longest = network.config.max_position_embeddings - len(tokenizer.special.around)
    wrong = np.flatnonzero((lengths == skipped) | (lengths > longest))
    if len(wrong):
        number, sentence = int(wrong[0]) + 1, sentences[wrong[0]]
        if lengths[wrong[0]] == skipped[wrong[0]]:
            raise SettingsError(f"sentence {number} ({sentence!r}) is empty; leave it out")
        what = f"{lengths[wrong[0]]} tokens, but the model takes {longest} beside the special tokens"
        raise SettingsError(f"sentence {number} has {what}; split it: {sentence[:60]!r}...")
    numbers: dict[tuple[bytes, bytes, int], int] = {}
    # Everything that a sentence's questions depend on; word starts decide what `word_l2r` hides.
    keys = (
        (tokens.input_ids.tobytes(), b"" if form == "plain" else tokens.word_starts.tobytes(), begin)
        for tokens, begin in zip(encoded, skipped.tolist(), strict=True)
    )
    which = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    first = np.unique(which, return_index=True)[1]  # the first sentence of those with the same questions
    scored = (lengths - skipped)[first]
    total = int(scored.sum())
    questions = chain.from_iterable(
        one_by_one(tokens.input_ids, tokens.word_starts, tokenizer, form=form, places=np.arange(begin, length))
        for tokens, begin, length in ((encoded[n], skipped[n], lengths[n]) for n in first.tolist())
    )
    losses = np.zeros(total)
    for number, answer in enumerate(ask(network, questions)):
        losses[number] = answer.losses[0]
        if (number + 1) % _REPORT_EVERY == 0 or number + 1 == total:
            notify(Progress("each token hidden in turn", number + 1, total))
    owner = np.repeat(np.arange(len(first)), scored)
    totals = -np.bincount(owner, weights=losses, minlength=len(first)).astype(np.float64)
    return totals[which]


def in_context(context: str, sentence: str) -> str:
    return f"{context} {sentence}" if context else sentence


def _context_lengths(tokenizer: Tokenizer, texts: Sequence[str], contexts: Sequence[str]) -> NDArray[np.int64]:
    """The number of tokens of each text that end within the context at its beginning."""
    _, places = tokenizer.encode_placed(texts)
    owner = np.repeat(np.arange(len(texts)), places.lengths)
    size = np.array([len(context) for context in contexts])[owner]
    end = places.end - np.cumsum([0, *map(len, texts)])[owner]
    inside = (end <= size) & (size > 0)  # a token at the beginning may cover no character at all
    return np.bincount(owner[inside], minlength=len(texts))


def one_by_one(
    input_ids: NDArray[np.int32],
    word_starts: NDArray[np.bool_],
    tokenizer: Tokenizer,
    *,
    form: Form = "plain",
    places: NDArray[np.int64] | None = None,
) -> Iterator[Question]:
    """A question for each token of a text [S] without special tokens, or for those at the places [N]."""
    special = tokenizer.special
    places = np.arange(len(input_ids)) if places is None else places
    whole = with_special(input_ids, tokenizer)
    first = int(special.cls is not None)
    word = np.cumsum(word_starts)
    ends = np.searchsorted(word, word, side="right")  # of each token's word
    for place in places.tolist():
        copy = whole.copy()
        end = place + 1 if form == "plain" else int(ends[place])
        copy[first + place : first + end] = special.mask
        yield Question(copy, np.array([first + place]), whole[first + place : first + place + 1])


def with_special(input_ids: NDArray[np.int32] | NDArray[np.int64], tokenizer: Tokenizer) -> NDArray[np.int64]:
    special = tokenizer.special
    before = [] if special.cls is None else [special.cls]
    behind = [] if special.sep is None else [special.sep]
    return np.concatenate([before, input_ids, behind]).astype(np.int64)


# Minimal pairs in BLiMP's or EWoK's format, and the share of them in which a model prefers the right sentence.
#
# Files hold JSON lines, each with a right and a wrong sentence:
#
#     {"sentence_good": "Katherine can't help herself.", "sentence_bad": "Katherine can't help himself.",
#      "linguistics_term": "anaphor_agreement", "UID": "anaphor_gender_agreement", ...}
#
# `UID` names the paradigm, `linguistics_term` the phenomenon that it belongs to. Without them, the file's name is the
# paradigm, and the paradigm is the phenomenon.
#
# EWoK's lines have two contexts, each of which fits one of two sentences. So a line is two pairs, of the paradigm
# `Domain`:
#
#     {"Context1": "Ann helps Bo.", "Target1": "Bo is glad.", "Context2": "Ann cheats Bo.", "Target2": "Bo is sad."}
#
# Only the sentence is scored, not its context. Repeated pairs count once: BabyLM's files repeat each line with its
# halves exchanged.
#
# Source: Warstadt et al. 2020 (BLiMP: the benchmark of linguistic minimal pairs for English); Ivanova et al. 2024
# (Elements of world knowledge), who compare contexts of a sentence; like BabyLM in 2025, we compare sentences.

_LINES = (".jsonl", ".ndjson", ".json")
_TARS = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")


class Pair(NamedTuple):
    good: str  # the right sentence
    bad: str
    paradigm: str  # name of a kind of pairs
    phenomenon: str  # name of a group of paradigms
    where: str  # file and line, for errors
    context: str = ""  # text before both sentences, not scored

    @property
    def texts(self) -> tuple[str, str]:
        """Both texts as the model sees them, context included."""
        return in_context(self.context, self.good), in_context(self.context, self.bad)


def read_pairs(path: Path) -> list[Pair]:
    """Reads minimal pairs from a file of JSON lines or with a JSON array (also compressed), or from all such files of a
    folder or a tar archive, in the order of their names. Raises a CorpusError with file and row."""
    if not (os.path.isdir(path) or os.path.isfile(path)):
        raise CorpusError(f"{path}: {absence(path)}; give a file, a folder or a tar archive of minimal pairs")
    pairs: list[Pair] = []
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
        files = {str(path): path}  # by their names in errors
        if path.is_dir():
            entries = (each for each in sorted(path.rglob("*")) if each.is_file() and bare_suffix(each) in _LINES)
            files = {str(each): each for each in entries if "/." not in f"/{each.relative_to(path).as_posix()}"}
        elif path.name.lower().endswith(_TARS):
            files = _unpacked(path, Path(scratch))
        for name, file in files.items():
            row = "line" if json_form(file) == "lines" else "row"
            try:
                for number, entry in json_rows(file, BadInput(skip=False, way_out=None)):
                    paradigm = str(entry.get("UID") or entry.get("Domain") or file.name.split(".")[0])
                    phenomenon = str(entry.get("linguistics_term") or paradigm)
                    for context, good, bad in _sentences(entry):
                        texts = (context, good, bad)
                        if not (all(isinstance(text, str) for text in texts) and good.strip() and bad.strip()):
                            raise CorpusError(
                                f"{file}: {row} {number}: not in BLiMP's format; a pair is a JSON object with the "
                                "texts sentence_good and sentence_bad, or EWoK's Context1, Target1, Context2, Target2"
                            )
                        if broken := broken_character("".join(texts) + paradigm + phenomenon):
                            what = f"holds {broken}, which is not a character; remove the pair"
                            raise CorpusError(f"{file}: {row} {number}: a sentence or a name {what}")
                        pairs.append(Pair(good, bad, paradigm, phenomenon, f"{name}: {row} {number}", context))
            except CorpusError as error:
                raise CorpusError(str(error).replace(str(file), name)) from error
    if not pairs:
        raise CorpusError(
            f"{path}: there are no minimal pairs in it; expected lines like "
            '{"sentence_good": "Cats sleep.", "sentence_bad": "Cats sleeps."} in files that end with .jsonl'
        )
    if any(pair.context for pair in pairs):
        first: dict[Pair, Pair] = {}
        for pair in pairs:
            first.setdefault(pair._replace(where=""), pair)
        return list(first.values())
    return pairs


def _sentences(entry: Mapping[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """The context, the right sentence and the wrong one of each pair in a line; None if a key is missing."""
    if "Context1" not in entry:
        yield "", entry.get("sentence_good"), entry.get("sentence_bad")
        return
    names = ("Context1", "Target1", "Target2"), ("Context2", "Target2", "Target1")
    yield from (tuple(entry.get(name) for name in each) for each in names)  # type: ignore[misc]


def _unpacked(path: Path, folder: Path) -> dict[str, Path]:
    """Extracts the files of an archive that may hold pairs; by their names in errors."""
    files = {}
    try:
        with tarfile.open(path) as archive:
            for number, member in enumerate(archive):
                name = Path(member.name).name  # macOS adds a file ._name beside each file
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None and not name.startswith("._") and bare_suffix(Path(name)) in _LINES:
                    (folder / str(number)).mkdir()
                    files[f"{path}:{member.name}"] = folder / str(number) / name
                    with (folder / str(number) / name).open("wb") as file:
                        shutil.copyfileobj(content, file)
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, ValueError, OverflowError) as error:
        reason = next(iter(str(error).splitlines()), "it ends too early").rstrip(":")  # further lines list all methods
        raise CorpusError(f"{path}: not a readable tar archive, or a cut-off one ({reason})") from error
    return dict(sorted(files.items()))


TIE = 1e-4  # nats: smaller differences may be rounding


def check_lengths(pairs: Sequence[Pair], tokenizer: Tokenizer, *, longest: int) -> None:
    """Raises SettingsError if a sentence does not fit into `longest` positions, special tokens included."""
    room = longest - len(tokenizer.special.around)
    for number, encoded in enumerate(tokenizer.encode_corpus([text for pair in pairs for text in pair.texts])):
        if not 0 < len(encoded.input_ids) <= room:
            what = f"a sentence of {len(encoded.input_ids)} tokens, but the model takes 1 to {room} beside special ones"
            raise SettingsError(f"{pairs[number // 2].where}: {what}; leave the pair out")


def tally(pairs: Sequence[Pair], differences: NDArray[np.float64]) -> dict[str, Any]:
    """The share of pairs whose right sentence has the higher score: the fields of `unmask.Scored`, except `form`.

    `differences` are the scores of the right sentences minus those of the wrong ones. Scores are sums, not means over
    tokens, as in the source: a sentence with more tokens has a lower one. Intervals are Wilson's, and do not cover the
    seed of training. They are over paradigms (`unmask.measure.uncertainty`), since the pairs of a paradigm follow one
    pattern and succeed or fail together. With a single paradigm, or if all paradigms have the same share, they are over
    the pairs of just these.

    Source: Salazar et al. 2020, section 4.2.
    """
    points = np.where(np.abs(differences) <= TIE, 0.5, differences > 0)
    paradigm = np.unique([pair.paradigm for pair in pairs], return_inverse=True)[1]

    def accuracy(chosen: NDArray[np.int64]) -> dict[str, Any]:
        """Of the pairs with these numbers."""
        won, count = float(points[chosen].sum()), len(chosen)
        which = np.unique(paradigm[chosen], return_inverse=True)[1]
        share = ratio_over_draws(np.bincount(which, weights=points[chosen]), np.bincount(which))
        interval = None if share.stderr is None else share.share_interval
        return {
            "accuracy": won / count,
            "interval": list(wilson(won, count) if interval is None else interval),
            "interval_over": "pairs" if interval is None else "paradigms",
            "pairs": count,
            "num_paradigms": share.draws,
            "ties": int((points[chosen] == 0.5).sum()),
        }

    def by_name(names: list[str]) -> dict[str, dict[str, Any]]:
        known, which, counts = np.unique(
            names, return_inverse=True, return_counts=True
        )  # each pair may have a name of its own
        groups = np.split(np.argsort(which, kind="stable"), np.cumsum(counts)[:-1])
        return {name: accuracy(chosen) for name, chosen in zip(known.tolist(), groups, strict=True)}

    overall, phenomena = accuracy(np.arange(len(pairs))), by_name([pair.phenomenon for pair in pairs])
    warning = None
    if overall["interval_over"] == "pairs":
        warning = "the interval is over pairs of these paradigms only: it says nothing about others"
    elif overall["num_paradigms"] < FEW:
        warning = (
            f"there are only {overall['num_paradigms']} paradigms: the interval over them is wide, and less reliable "
            f"than with {FEW} or more"
        )
    return {
        **overall,
        "phenomena": {name: figures["accuracy"] for name, figures in phenomena.items()},
        "by_phenomenon": phenomena,
        "paradigms": by_name([pair.paradigm for pair in pairs]),
        "warning": warning,
    }
