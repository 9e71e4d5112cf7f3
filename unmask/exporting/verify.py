"""The proof that what leaves equals what was trained: every form of a model, against our network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unmask.core.errors import ModelError, UnmaskError, shown
from unmask.core.files import read_object, typed
from unmask.core.results import Readable, Sheet, Shown, Styled
from unmask.exporting import checks as all_checks
from unmask.exporting.checks import Check, int8_follows_ours, none_wrong, onnx_equals_ours, onnx_tokenizer_equals_ours
from unmask.exporting.graphs import (
    EMBED,
    FILE,
    CheckedModel,
    GraphKind,
    int8_file,
    kinds_of,
    missing_onnx,
    open_checked_model,
)
from unmask.exporting.onnx import ONNX
from unmask.model.folder import CONFIG
from unmask.model.pooling import MODULES, pooling_file, read_normalize, read_pooling, sparse_file
from unmask.model.transformers import runs_in_transformers
from unmask.tokenizer.tokenizer import SPELLINGS

MakeCheck = Callable[[CheckedModel], Check | str]
_TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json")
_LENGTH_KEYS = {  # of files that say how long an input may be
    "tokenizer_config.json": "model_max_length",
    "special_tokens_map.json": "model_max_length",
    "sentence_bert_config.json": "max_seq_length",
    "config_sentence_transformers.json": "max_seq_length",
}
_UNBOUNDED = 1 << 20  # tokens above which a longest input says that there is none


def side_files_agree(subject: CheckedModel) -> Check | str:
    """The small files beside weights and tokenizer.json are readable, and agree with the rest.

    Returns:
        The check; a reason where there are no such files.
    """
    files = [subject.folder / name for name in (*_TOKENIZER_FILES, MODULES, *list(_LENGTH_KEYS)[2:])]
    files = [file for file in files if file.is_file()]
    if not files:
        return "there are no files beside the weights, config.json and tokenizer.json"
    wrong: list[str] = []
    for file in files:
        try:
            wrong += _wrong_modules(subject) if file.name == MODULES else _wrong_values(subject, file)
        except UnmaskError as error:
            wrong.append(str(error))
    return none_wrong(wrong, ", ".join(file.name for file in files))


def _wrong_values(subject: CheckedModel, file: Path) -> Iterator[str]:
    """Special tokens that are not those of tokenizer.json, and inputs longer than the model takes."""
    content, tokenizer = read_object(file, "write the model anew"), subject.tokenizer
    if file.name in _TOKENIZER_FILES:
        for role in SPELLINGS:
            token, ours = content.get(f"{role}_token"), tokenizer.special_names[role]
            token = token.get("content") if isinstance(token, dict) else token
            if token is not None and token != ours:
                yield f"{file.name} says {role}_token = {shown(token)}, tokenizer.json has {shown(ours)}"
        added = content.get("added_tokens_decoder") or {}
        if not isinstance(added, dict):
            yield f"{file.name}: added_tokens_decoder = {shown(added)} is no table"
            return
        for id_, entry in added.items():
            token = entry.get("content") if isinstance(entry, dict) else entry
            ours = tokenizer.backend.id_to_token(int(id_)) if id_.isdecimal() and len(id_) < 10 else None
            if token != ours:
                yield f"{file.name} says that {shown(id_)} is {shown(token)}, tokenizer.json has {shown(ours)}"
                return
    # RoBERTa's kind has two positions more than it takes tokens, and released folders count either way.
    key, longest = _LENGTH_KEYS[file.name], subject.config.get("max_position_embeddings")
    length = content.get(key)
    if length is None:
        return
    if isinstance(length, bool) or not isinstance(length, int | float) or not length > 0:
        yield f"{file.name}: {key} = {shown(length)} is no number of tokens"
    elif isinstance(longest, int) and longest < length < _UNBOUNDED:
        yield f"{file.name}: {key} = {length} is more than the model's {longest} positions"


def _wrong_modules(subject: CheckedModel) -> Iterator[str]:
    """A pooling that cannot be made, or is of another width than the model."""
    pooling, key = sparse_file(subject.folder), "vocab_size"
    if pooling is None:
        read_pooling(subject.folder)
        read_normalize(subject.folder)
        pooling, key = pooling_file(subject.folder), "hidden_size"
    if pooling is None:
        return
    dimension = read_object(pooling, "write the model anew").get("word_embedding_dimension")
    width = subject.config.get(key)
    if dimension is not None and dimension != width:
        where = pooling.relative_to(subject.folder).as_posix()
        yield f"{where} says word_embedding_dimension = {shown(dimension)}, config.json {key} = {shown(width)}"


_OF_NETWORK = (
    "packed_equals_alone", "padded_equals_unpadded", "tied_weights", "transformers_equals_ours",
    "task_head_equals_ours",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Verification(Readable):
    """The results of a model's checks.

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
        return all(check.passed for check in self.checks.values())

    def to_dict(self) -> dict[str, Any]:
        checks = {name: asdict(check) for name, check in self.checks.items()}
        return {"model": str(self.folder), "checks": checks, "skipped": self.skipped, "passed": self.passed}

    def shown(self) -> Iterator[Shown]:
        rows: list[tuple[str | Styled, ...]] = []
        for name, check in self.checks.items():
            verdict = Styled("passed", "green") if check.passed else Styled("FAILED", "bold red")
            difference = "none" if check.largest_difference is None else f"{check.largest_difference:.1e}"
            rows.append((name.replace("_", " "), verdict, difference.replace("0.0e+00", "0"), check.detail))
        for name, reason in self.skipped.items():
            rows.append((name.replace("_", " "), Styled("not made", "yellow"), "", reason))
        yield Sheet(("check", "", ">difference", ""), rows)
        failed, made = sum(not check.passed for check in self.checks.values()), len(self.checks)
        not_made = f", {len(self.skipped)} not made" if self.skipped else ""
        yield f"{failed} of {made} checks failed" if failed else f"all {made} checks passed{not_made}"


def verify(model: str | Path, *, onnx: str | Path | None = None) -> Verification:
    """Checks that every form of a model says the same, and that its folder is whole.

    Packed texts equal texts alone, padded ones unpadded ones; transformers' model, the head of its task, sparse vectors
    and exported graphs equal ours; the tokenizer reads what it writes, and as transformers' does; special ids, the tie
    and the files are as they should be. A check that breaks off has failed, and says why.

    Args:
        model: Folder of a model, such as RUN/model, or its name on the hub.
        onnx: What unmask export wrote of it. By default the folder onnx within the model's.

    Returns:
        The checks. Those of float numbers allow a difference of 1e-3; 8-bit graphs must correlate with ours.

    Raises:
        ModelError: There is no model, or `onnx` holds no graph.
    """
    subject = open_checked_model(model)
    skipped: dict[str, str] = {}
    to_make: dict[str, MakeCheck] = {
        check.__name__: check
        for check in (
            all_checks.files_unchanged,
            all_checks.finite_weights,
            all_checks.packed_equals_alone,
            all_checks.padded_equals_unpadded,
            all_checks.tokenizer_round_trip,
            all_checks.special_ids,
            side_files_agree,
            all_checks.tied_weights,
        )
    }
    in_transformers: list[Any] = [all_checks.transformers_equals_ours, all_checks.tokenizer_in_transformers]
    if subject.does_task:
        in_transformers.append(all_checks.task_head_equals_ours)
    elif subject.is_sparse:
        in_transformers.append(all_checks.sparse_vectors_equal_ours)
    reason = None if find_spec("transformers") else "transformers is missing: pip install 'unmask[transformers]'"
    for check in in_transformers:
        if reason is None:
            to_make[check.__name__] = check
        else:
            skipped[check.__name__] = reason
    if subject.does_task and runs_in_transformers(subject.folder):
        reason = "transformers runs this model here too, so there is nothing of ours to compare"
        skipped |= {name: reason for name in _OF_NETWORK if to_make.pop(name, None) is not None}
    of_graphs = _graph_checks(subject, onnx)
    if isinstance(of_graphs, str):
        skipped["onnx_equals_ours"] = of_graphs
    else:
        to_make |= of_graphs
    made = {}
    for name, make in to_make.items():
        try:
            result = make(subject)
        except UnmaskError as error:
            result = Check(False, None, str(error))
        if isinstance(result, str):
            skipped[name] = result
        else:
            made[name] = result
    return Verification(subject.folder, made, skipped)


def _graph_checks(subject: CheckedModel, onnx: str | Path | None) -> dict[str, MakeCheck] | str:
    """The checks of the graphs that are there; a reason where there are none."""
    folder = subject.folder / ONNX if onnx is None else Path(onnx)

    # Each graph lies in a folder that is called as its task, or one in the folder itself.
    exported: list[tuple[GraphKind, Path]] = []
    if any(folder.rglob(FILE)):
        kinds = [*kinds_of(subject), *(() if EMBED in kinds_of(subject) else (EMBED,))]
        exported = [(kind, folder / kind.task) for kind in kinds if (folder / kind.task / ONNX / FILE).is_file()]
        if not exported and (folder / ONNX / FILE).is_file():
            architectures = read_object(folder / CONFIG, "export the model anew").get("architectures")
            is_bare = "For" not in str(architectures)
            exported = [(next(kind for kind in kinds if (kind is EMBED) == is_bare), folder)]
    if not exported:
        if onnx is not None:
            raise ModelError(
                f"{folder}: there is no graph; write them with unmask export {typed(subject.folder)} --out "
                f"{typed(folder)}"
            )
        return "no exported graph was given (--onnx), nor is there one in the model's folder `onnx`"
    checks: dict[str, MakeCheck] = {}
    for kind, place in exported:
        file = place / ONNX / FILE
        checks[f"onnx_{kind.short}_equals_ours"] = partial(onnx_equals_ours, file=file, kind=kind)
        if (small := int8_file(file)).is_file():
            checks[f"onnx_{kind.short}_int8_follows_ours"] = partial(int8_follows_ours, file=small, kind=kind)
    checks["onnx_tokenizer_equals_ours"] = partial(onnx_tokenizer_equals_ours, folders=[place for _, place in exported])
    return checks if (reason := missing_onnx()) is None else reason
