"""The proof that what leaves equals what was trained: every form of a model, against our network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from unmask.core.errors import ModelError, UnmaskError, load_json, shown
from unmask.core.files import read_object, typed
from unmask.core.results import Readable, Sheet, Shown, Styled
from unmask.exporting.checks import (
    Check,
    count,
    files_unchanged,
    finite_weights,
    int8_follows_ours,
    missing_transformers,
    onnx_equals_ours,
    onnx_tokenizer_equals_ours,
    packed_equals_alone,
    padded_equals_unpadded,
    sparse_vectors_equal_ours,
    special_ids,
    task_head_equals_ours,
    tied_weights,
    tokenizer_in_transformers,
    tokenizer_round_trip,
    transformers_equals_ours,
)
from unmask.exporting.graphs import (
    FILE,
    CheckedModel,
    EmbedGraph,
    Graph,
    graphs_of,
    int8_file,
    missing_onnx,
    open_checked_model,
)
from unmask.exporting.onnx import ONNX
from unmask.model.folder import CONFIG
from unmask.model.sentence_files import MODULES, pooling_file, read_normalize, read_pooling, sparse_file
from unmask.model.transformers_folder import runs_in_transformers
from unmask.tokenizer.tokenizer import SPELLINGS

# ----------------------------------------
# The check of the small files beside weights and tokenizer.json: that they can be read, and agree with the rest.

_OF_TOKENIZERS = ("tokenizer_config.json", "special_tokens_map.json")
_OF_SENTENCES = ("sentence_bert_config.json", "config_sentence_transformers.json")
_UNBOUNDED = 1 << 20  # tokens above which a longest input says that there is none


def side_files_agree(subject: CheckedModel) -> Check | str:
    """Pooling and settings of the tokenizer are readable, and as config.json and tokenizer.json have it.

    Returns:
        What came of it; a reason where there are no such files.
    """
    names = (*_OF_TOKENIZERS, MODULES, *_OF_SENTENCES)
    there = [name for name in names if (subject.folder / name).is_file()]
    if not there:
        return "there are no files beside the weights, config.json and tokenizer.json"
    wrong: list[str] = []
    for name in there:
        try:
            wrong += _WRONG[name](subject, subject.folder / name)
        except UnmaskError as error:
            wrong.append(str(error))
    return count(wrong, ", ".join(there))


def _wrong_tokens(subject: CheckedModel, file: Path) -> Iterator[str]:
    """Special tokens that are not those of tokenizer.json, and inputs longer than the model takes."""
    content, tokenizer = _table(file), subject.tokenizer
    for role in SPELLINGS:
        said = content.get(f"{role}_token")
        said = said.get("content") if isinstance(said, dict) else said
        found = tokenizer.special_names[role]
        if said is not None and said != found:
            yield f"{file.name} says {role}_token = {shown(said)}, tokenizer.json has {shown(found)}"
    added = content.get("added_tokens_decoder") or {}
    if not isinstance(added, dict):
        yield f"{file.name}: added_tokens_decoder = {shown(added)} is no table"
        return
    for id_, token in added.items():
        said = token.get("content") if isinstance(token, dict) else token
        found = tokenizer.backend.id_to_token(int(id_)) if id_.isdecimal() and len(id_) < 10 else None
        if said != found:
            yield f"{file.name} says that {shown(id_)} is {shown(said)}, tokenizer.json has {shown(found)}"
            return
    yield from _too_long(subject, content.get("model_max_length"), f"{file.name}: model_max_length")


def _wrong_modules(subject: CheckedModel, file: Path) -> Iterator[str]:
    """A pooling that cannot be made, or is of another width than the model."""
    pooling, name = sparse_file(subject.folder), "vocab_size"
    if pooling is None:
        read_pooling(subject.folder)
        read_normalize(subject.folder)
        pooling, name = pooling_file(subject.folder), "hidden_size"
    if pooling is None:
        return
    said, width = _table(pooling).get("word_embedding_dimension"), subject.config.get(name)
    if said is not None and said != width:
        where = pooling.relative_to(subject.folder).as_posix()
        yield f"{where} says word_embedding_dimension = {shown(said)}, config.json {name} = {shown(width)}"


def _wrong_sentences(subject: CheckedModel, file: Path) -> Iterator[str]:
    yield from _too_long(subject, _table(file).get("max_seq_length"), f"{file.name}: max_seq_length")


def _too_long(subject: CheckedModel, said: Any, what: str) -> Iterator[str]:
    """RoBERTa's kind has two positions more than it takes tokens, and released folders count either way."""
    if said is None:
        return
    if isinstance(said, bool) or not isinstance(said, int | float) or not said > 0:
        yield f"{what} = {shown(said)} is no number of tokens"
        return
    longest = subject.config.get("max_position_embeddings")
    if isinstance(longest, int) and longest < said < _UNBOUNDED:
        yield f"{what} = {said} is more than the model's {longest} positions"


def _table(file: Path) -> dict[str, Any]:
    try:
        content = load_json(file)
    except (OSError, ValueError) as error:
        raise ModelError(f"{file.name}: not readable as JSON ({error})") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file.name}: {shown(content)} is no table")
    return content


_WRONG = {
    **dict.fromkeys(_OF_TOKENIZERS, _wrong_tokens),
    MODULES: _wrong_modules,
    **dict.fromkeys(_OF_SENTENCES, _wrong_sentences),
}


_OURS: dict[str, Callable[[CheckedModel], Check | str]] = {
    "files_unchanged": files_unchanged,
    "finite_weights": finite_weights,
    "packed_equals_alone": packed_equals_alone,
    "padded_equals_unpadded": padded_equals_unpadded,
    "tokenizer_round_trip": tokenizer_round_trip,
    "special_ids": special_ids,
    "side_files_agree": side_files_agree,
    "tied_weights": tied_weights,
}
_TRANSFORMERS: dict[str, Callable[[CheckedModel], Check | str]] = {
    "transformers_equals_ours": transformers_equals_ours,
    "tokenizer_in_transformers": tokenizer_in_transformers,
}
_NETWORK = ("packed_equals_alone", "padded_equals_unpadded", "tied_weights", "transformers_equals_ours")  # need ours
_OF_SPARSE: dict[str, Callable[[CheckedModel], Check | str]] = {"sparse_vectors_equal_ours": sparse_vectors_equal_ours}
_OF_TASKS: dict[str, Callable[[CheckedModel], Check | str]] = {"task_head_equals_ours": task_head_equals_ours}


@dataclass(frozen=True, repr=False)
class Verification(Readable):
    """What the checks of a model came to.

    Attributes:
        folder: Of the model.
        checks: By name.
        skipped: By name, why a check was not made.
    """

    folder: Path
    checks: dict[str, Check]
    skipped: dict[str, str]

    @property
    def passed(self) -> bool:
        """Whether all that were made passed."""
        return all(check.passed for check in self.checks.values())

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        checks = {name: asdict(check) for name, check in self.checks.items()}
        return {"model": str(self.folder), "checks": checks, "skipped": self.skipped, "passed": self.passed}

    def shown(self) -> Iterator[Shown]:
        """A line a check."""
        rows: list[tuple[str | Styled, ...]] = []
        for name, check in self.checks.items():
            verdict = Styled("passed", "green") if check.passed else Styled("FAILED", "bold red")
            rows.append((name.replace("_", " "), verdict, _difference(check), check.detail))
        for name, reason in self.skipped.items():
            rows.append((name.replace("_", " "), Styled("not made", "yellow"), "", reason))
        yield Sheet(("check", "", ">difference", ""), rows)
        failed, made = sum(not check.passed for check in self.checks.values()), len(self.checks)
        not_made = f", {len(self.skipped)} not made" if self.skipped else ""
        yield f"{failed} of {made} checks failed" if failed else f"all {made} checks passed{not_made}"


def verify(model: str | Path, *, onnx: str | Path | None = None) -> Verification:
    """Checks that every form of a model says the same, and that its folder is whole.

    Packed texts equal texts alone, padded ones unpadded ones, transformers' model, the head of its task, sparse vectors
    and exported graphs ours; the tokenizer reads what it writes, and as transformers' does; special ids, the tie and
    the files are as they should. A check that breaks off has failed, and says why.

    Args:
        model: Folder of a model, such as RUN/model, or its name on the hub.
        onnx: What unmask export wrote of it. By default the folder onnx within the model's.

    Returns:
        The checks. Those of float numbers allow a difference of 1e-3; 8-bit graphs must correlate with ours.

    Raises:
        ModelError: There is no model, or `onnx` holds no graph.
    """
    subject = open_checked_model(model)
    jobs = dict(_OURS)
    skipped: dict[str, str] = {}
    theirs = _TRANSFORMERS | (_OF_TASKS if subject.does_task else _OF_SPARSE if subject.is_sparse else {})
    if (reason := missing_transformers()) is None:
        jobs |= theirs
    else:
        skipped |= dict.fromkeys(theirs, reason)
    if subject.does_task and runs_in_transformers(subject.folder):
        reason = "transformers runs this model here too, so there is nothing of ours to compare"
        skipped |= {name: reason for name in (*_NETWORK, *_OF_TASKS) if jobs.pop(name, None) is not None}
    graphs = _graph_jobs(subject, onnx)
    if isinstance(graphs, str):
        skipped["onnx_equals_ours"] = graphs
    else:
        jobs |= graphs
    checks = {}
    for name, job in jobs.items():
        try:
            result = job(subject)
        except UnmaskError as error:
            result = Check(False, None, str(error))
        if isinstance(result, str):
            skipped[name] = result
        else:
            checks[name] = result
    return Verification(subject.folder, checks, skipped)


def _difference(check: Check) -> str:
    if check.largest_difference is None:
        return "none"
    return f"{check.largest_difference:.1e}" if check.largest_difference else "0"


def _graph_jobs(
    subject: CheckedModel, onnx: str | Path | None
) -> dict[str, Callable[[CheckedModel], Check | str]] | str:
    """The checks of the graphs that are there; a reason where there are none."""
    folder = subject.folder / ONNX if onnx is None else Path(onnx)
    found = _exported(subject, folder)
    jobs: dict[str, Callable[[CheckedModel], Check | str]] = {}
    for kind, place in found.items():
        file = place / ONNX / FILE
        jobs[f"onnx_{kind.short}_equals_ours"] = partial(onnx_equals_ours, file=file, kind=kind)
        if int8_file(file).is_file():
            jobs[f"onnx_{kind.short}_int8_follows_ours"] = partial(int8_follows_ours, file=int8_file(file), kind=kind)
    if not jobs:
        if onnx is not None:
            raise ModelError(
                f"{folder}: there is no graph; write them with unmask export {typed(subject.folder)} --out "
                f"{typed(folder)}"
            )
        return "no exported graph was given (--onnx), nor is there one in the model's folder `onnx`"
    jobs["onnx_tokenizer_equals_ours"] = partial(onnx_tokenizer_equals_ours, folders=list(found.values()))
    return jobs if (reason := missing_onnx()) is None else reason


def _exported(subject: CheckedModel, folder: Path) -> dict[type[Graph], Path]:
    """Where the folders of a model's graphs are: each called as its task, or one that is the folder itself."""
    if not any(folder.rglob(FILE)):
        return {}
    kinds: list[type[Graph]] = list(dict.fromkeys((*graphs_of(subject), EmbedGraph)))
    found = {kind: folder / kind.task for kind in kinds if (folder / kind.task / ONNX / FILE).is_file()}
    if found or not (folder / ONNX / FILE).is_file():
        return found
    architectures = read_object(folder / CONFIG, "export the model anew").get("architectures")
    bare = "For" not in str(architectures)
    return {next(kind for kind in kinds if (kind is EmbedGraph) == bare): folder}
