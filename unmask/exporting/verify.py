"""The proof that what leaves equals what was trained: every form of a model, against our network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unmask.core.errors import ModelError, UnmaskError
from unmask.core.files import read_object, typed
from unmask.core.hub import CONFIG
from unmask.core.results import Readable, Sheet, Shown, Styled
from unmask.exporting import checks, graphs
from unmask.exporting.checks import Check
from unmask.exporting.graphs import CheckedModel, GraphKind
from unmask.exporting.onnx import ONNX
from unmask.model.transformers import why_in_transformers

MakeCheck = Callable[[CheckedModel], Check | str]
# In the order of the report. Those of the graphs follow.
_CHECKS: dict[str, MakeCheck] = {
    "files_unchanged": checks.files_unchanged,
    "finite_weights": checks.finite_weights,
    "packed_equals_alone": checks.packed_equals_alone,
    "padded_equals_unpadded": checks.padded_equals_unpadded,
    "tokenizer_round_trip": checks.tokenizer_round_trip,
    "special_ids": checks.special_ids,
    "side_files_agree": checks.side_files_agree,
    "tied_weights": checks.tied_weights,
    "transformers_equals_ours": checks.transformers_equals_ours,
    "tokenizer_in_transformers": checks.tokenizer_in_transformers,
    "task_head_equals_ours": checks.task_head_equals_ours,
    "sparse_vectors_equal_ours": checks.sparse_vectors_equal_ours,
}
_PURPOSES = {"task_head_equals_ours": "task", "sparse_vectors_equal_ours": "sparse"}  # of models without, not made
_IN_TRANSFORMERS = {"transformers_equals_ours", "tokenizer_in_transformers", *_PURPOSES}
_OF_NETWORK = {
    "packed_equals_alone", "padded_equals_unpadded", "tied_weights", "transformers_equals_ours",
    "task_head_equals_ours",
}  # fmt: skip


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
    subject = graphs.open_checked_model(model)
    to_make = {name: make for name, make in _CHECKS.items() if _PURPOSES.get(name, subject.purpose) == subject.purpose}
    skipped: dict[str, str] = {}
    if find_spec("transformers") is None:
        reason = "transformers is missing: pip install 'unmask[transformers]'"
        skipped |= {name: reason for name in to_make if name in _IN_TRANSFORMERS}
    if subject.purpose == "task" and why_in_transformers(subject.folder) is not None:
        reason = "transformers runs this model here too, so there is nothing of ours to compare"
        skipped |= {name: reason for name in to_make if name in _OF_NETWORK and name not in skipped}
    graph_checks = _graph_checks(subject, onnx)
    if isinstance(graph_checks, str):
        skipped["onnx_equals_ours"] = graph_checks
    else:
        to_make |= graph_checks
    results = {}
    for name, make in to_make.items():
        if name in skipped:
            continue
        try:
            result = make(subject)
        except UnmaskError as error:
            result = Check(False, None, str(error))
        if isinstance(result, str):
            skipped[name] = result
        else:
            results[name] = result
    return Verification(subject.folder, results, skipped)


def _graph_checks(subject: CheckedModel, onnx: str | Path | None) -> dict[str, MakeCheck] | str:
    """The checks of the graphs that are there; a reason where there are none, or no package to run them."""
    folder = subject.folder / ONNX if onnx is None else Path(onnx)
    places: list[tuple[GraphKind, Path]] = []
    if any(folder.rglob(graphs.FILE)):
        # Each in a folder that is called as its task, or one in the folder itself.
        kinds = [kind for kind in graphs.KINDS if kind is graphs.EMBED or kind in graphs.kinds_of(subject)]
        places = [(kind, folder / kind.task) for kind in kinds if (folder / kind.task / ONNX / graphs.FILE).is_file()]
        if not places and (folder / ONNX / graphs.FILE).is_file():
            architectures = read_object(folder / CONFIG, "export the model anew").get("architectures")
            bare = "For" not in str(architectures)
            places = [(next(kind for kind in kinds if (kind is graphs.EMBED) == bare), folder)]
    if not places and onnx is not None:
        command = f"unmask export {typed(subject.folder)} --out {typed(folder)}"
        raise ModelError(f"{folder}: there is no graph; write them with {command}")
    if not places:
        return "no exported graph was given (--onnx), nor is there one in the model's folder `onnx`"
    to_make: dict[str, MakeCheck] = {}
    for kind, place in places:
        file = place / ONNX / graphs.FILE
        to_make[f"onnx_{kind.short}_equals_ours"] = partial(checks.onnx_equals_ours, file=file, kind=kind)
        if (small := file.with_name(graphs.INT8_FILE)).is_file():
            to_make[f"onnx_{kind.short}_int8_follows_ours"] = partial(checks.int8_follows_ours, file=small, kind=kind)
    folders = [place for _, place in places]
    to_make["onnx_tokenizer_equals_ours"] = partial(checks.onnx_tokenizer_equals_ours, folders=folders)
    return to_make if (reason := graphs.missing_onnx()) is None else reason
