"""Checks that every form of a model equals the trained one: its network and folder by themselves, in transformers, and
as ONNX graphs.

Shape suffixes: N = positions of a text that a head uses, C = outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.core.errors import ModelError, UnmaskError, shown
from unmask.core.files import file_sha256, read_object, typed
from unmask.core.hub import CONFIG
from unmask.core.public import public
from unmask.core.results import Readable, Sheet, Shown, Styled
from unmask.exporting import graphs
from unmask.exporting.graphs import Check, CheckedModel, GraphKind, compare, none_wrong, splade_of, worst
from unmask.exporting.onnx import int8_follows_ours, onnx_equals_ours, onnx_tokenizer_equals_ours
from unmask.model.folder import CHECKSUMS, KEY, read_checksums
from unmask.model.onnx import ONNX
from unmask.model.pooling import check_splade
from unmask.model.transformers import why_in_transformers
from unmask.tokenizer.loading import quiet_transformers
from unmask.tokenizer.tokenizer import Tokenizer

# ----------------------------------------
# The network and the folder by themselves


def packed_equals_alone(subject: CheckedModel) -> Check:
    texts = subject.probe
    together = subject.run(**subject.packed())[0].split([len(ids) for ids in texts])
    alone = [subject.run(ids[None])[0] for ids in texts]
    return worst([compare(a, b, "three texts in one row") for a, b in zip(together, alone, strict=True)])


def padded_equals_unpadded(subject: CheckedModel) -> Check:
    rows, detail = subject.padded(), "rows padded to the longest"
    outputs = subject.run(rows["input_ids"], segment_ids_BS=rows["attention_mask"] - 1)
    pairs = zip(outputs, subject.probe, strict=True)
    return worst([compare(row[: len(ids)], subject.run(ids[None])[0], detail) for row, ids in pairs])


def files_unchanged(subject: CheckedModel) -> Check | str:
    """The files match the checksums that were written with them; a reason if there are none."""
    checksums = read_checksums(subject.folder)
    if checksums is None:
        return f"the folder has no {CHECKSUMS}, which training writes"
    wrong = []
    for name, checksum in checksums.items():
        if not (subject.folder / name).is_file():
            wrong.append(f"{name} is missing")
        elif file_sha256(subject.folder / name) != checksum:
            wrong.append(f"{name} has changed since it was written; if on purpose, remove {CHECKSUMS}")
    return none_wrong(wrong, f"checksums of {len(checksums)} files")


# Keys of config.json, and the roles whose ids they hold.
_ROLES = {
    "pad_token_id": "pad", "cls_token_id": "cls", "bos_token_id": "cls", "sep_token_id": "sep", "eos_token_id": "sep",
    "mask_token_id": "mask",
}  # fmt: skip


def special_ids(subject: CheckedModel) -> Check:
    """config.json and the tokenizer name the same special ids, the model has them, and texts get them at both ends."""
    tokenizer = subject.tokenizer
    ids = {role: id_ for role, id_ in vars(tokenizer.special).items() if id_ is not None}
    # BERT uses neither of bos and eos, and older folders of transformers name any ids.
    unused = ("bos_token_id", "eos_token_id") if subject.config.get("model_type") == "bert" else ()
    wrong = [
        f"config.json says {key} = {shown(value)}, the tokenizer {ids.get(role)}"
        for key, role in _ROLES.items()
        if (value := subject.config.get(key)) is not None and value != ids.get(role) and key not in unused
    ]
    vocab_size = subject.config.get("vocab_size", 0)
    if not isinstance(vocab_size, int) or tokenizer.vocab_size > vocab_size:
        wrong.append(f"the tokenizer has {tokenizer.vocab_size:,} ids, but the model has only {shown(vocab_size)}")
    if len(set(ids.values())) < len(ids):
        wrong.append(f"special tokens share an id: {ids}")
    around = tokenizer.encode_prompt("").tolist()
    if around != tokenizer.special.around:
        wrong.append(f"the tokenizer puts {around} around texts, not {tokenizer.special.around}")
    return none_wrong(wrong, "config.json and tokenizer")


def probe_texts(tokenizer: Tokenizer) -> list[str]:
    """Texts of random tokens of the vocabulary, word beginnings and other pieces alike; always the same."""
    ids = np.flatnonzero(tokenizer.ordinary)
    places = np.random.default_rng(0).integers(len(ids), size=(20, 16))  # texts, tokens of each
    texts = []
    for row in ids[places].tolist():
        spelled = [(" " if tokenizer.space_before(id_) else "") + tokenizer.text(id_) for id_ in row]
        texts.append("".join(spelled).strip())
    return [text for text in texts if " do not" not in text]  # WordPiece's decoder turns it into "don't"


# ----------------------------------------
# The folder as transformers loads it: its network, tokenizer and task head, against ours


def transformers_equals_ours(subject: CheckedModel) -> Check:
    """Logits (hidden states without a head) equal those of transformers, for texts alone, padded, and of two types."""
    theirs = load_network(subject)
    rows = subject.padded()
    real, segments = rows["attention_mask"].bool(), {"segment_ids_BS": rows["attention_mask"] - 1}
    if "token_type_ids" in rows:
        segments["token_type_ids_BS"] = rows["token_type_ids"]
    ours, alone = subject.run(rows["input_ids"], **segments), [ids[None] for ids in subject.probe]
    checks = [compare(subject.run(ids), theirs({"input_ids": ids}), "texts alone") for ids in alone]
    return worst([compare(ours[real], theirs(rows)[real], "padded texts"), *checks])


def sparse_vectors_equal_ours(subject: CheckedModel) -> Check:
    """Our sparse vectors of packed texts equal those of padded texts in transformers, pooled as the folder says."""
    check_splade(subject.folder)
    rows = {name: rows for name, rows in subject.padded().items() if name != "token_type_ids"}
    vectors = splade_of(load_network(subject)(rows), rows["attention_mask"])
    return compare(subject.sparse_vectors(), vectors, "padded texts")


def tokenizer_in_transformers(subject: CheckedModel) -> Check:
    """`AutoTokenizer` gives texts the same ids, masks included, and has the same special tokens. It gives token types
    to pairs of texts exactly if the model has several."""
    ours, theirs = subject.tokenizer, _from_pretrained(subject.folder, "AutoTokenizer")
    mask = ours.token(ours.special.mask)
    texts = probe_texts(ours)
    texts += [mask, *(f"{text} {mask} {text}" for text in texts[:3])]
    if ours.special.unk is not None:
        texts += [text.title() for text in texts[:3]]  # capitals may be unknown to the vocabulary
    wrong = [
        f"{text!r} has other ids in transformers"
        for text in texts
        if ours.encode_prompt(text).tolist() != list(theirs(text)["input_ids"])
    ]
    for role, id_ in vars(ours.special).items():
        if id_ is not None and (other := getattr(theirs, f"{role}_token_id")) != id_:
            wrong.append(f"transformers uses {other} as the {role} token, not {id_}")
    types = theirs(texts[0], texts[1]).get("token_type_ids")
    if (types is not None) != subject.has_types:
        wrong.append(
            f"transformers gives {'no ' if types is None else ''}token types for pairs, the model has "
            f"{'several' if subject.has_types else 'none'}: see model_input_names in tokenizer_config.json"
        )
    elif types and list(types) != ours.backend.encode(texts[0], texts[1]).type_ids:
        wrong.append("a pair of texts has other token types in transformers")
    return none_wrong(wrong, f"{len(texts)} texts", most=2)


def task_head_equals_ours(subject: CheckedModel) -> Check | str:
    """A fine-tuned model's logits of packed texts equal those of padded texts in transformers. Skipped if transformers
    has no such class, or if the model was fine-tuned elsewhere with a head that we cannot read."""
    import transformers

    architecture = next(iter(subject.config.get("architectures") or []), "")
    if architecture and not hasattr(transformers, architecture):
        return f"transformers {transformers.__version__} has no {architecture}"
    try:
        head = subject.task.task_head
        ours = subject.task_outputs()
    except ModelError as error:
        if KEY in subject.config:
            raise
        return str(error)
    auto = f"AutoModelFor{head.architecture}"
    theirs = load_network(subject, auto)(subject.padded())
    checks = []
    for ours_NC, theirs_C in zip(ours, theirs, strict=True):
        theirs_NC = theirs_C[None] if head.pooling is not None else theirs_C[: len(ours_NC)]
        checks.append(compare(ours_NC, theirs_NC, f"logits of {auto}", by_size=True))
    return worst(checks)


def load_network(subject: CheckedModel, auto: str | None = None) -> Callable[[dict[str, Tensor]], Tensor]:
    """The outputs of transformers' model, in evaluation mode and float32, as a function of its inputs. By default the
    class `auto` is that of masked language models, or of bare encoders if there is no head."""
    # Outputs of masked language models and bare encoders do not need BERT's pooler, which may be missing.
    default = "AutoModelForMaskedLM" if subject.has_head else "AutoModel"
    model, report = _from_pretrained(subject.folder, auto or default, output_loading_info=True)
    missing = sorted(name for name in report["missing_keys"] if auto is not None or "pooler" not in name)
    if missing:
        raise ModelError(f"{subject.folder}: transformers has no value for {', '.join(missing[:3])}")
    model.eval().float()

    @torch.no_grad()
    def outputs(inputs: dict[str, Tensor]) -> Tensor:
        output = model(**inputs)
        if "start_logits" in output:
            return torch.stack([output.start_logits, output.end_logits], -1)
        return output.logits if "logits" in output else output.last_hidden_state

    return outputs


def _from_pretrained(folder: Path, auto: str, **options: Any) -> Any:
    """Loads with a class of transformers, without progress bars and warnings; any exception becomes a ModelError."""
    import transformers

    try:
        with quiet_transformers():
            return getattr(transformers, auto).from_pretrained(folder, local_files_only=True, **options)
    except Exception as error:
        raise ModelError(f"{folder}: transformers cannot load it ({type(error).__name__}: {error})") from error


# ----------------------------------------
# All checks

MakeCheck = Callable[[CheckedModel], Check | str]  # a text is the reason why the check is skipped
# In the order of the report; the checks of graphs follow.
_CHECKS: tuple[MakeCheck, ...] = (
    files_unchanged, packed_equals_alone, padded_equals_unpadded, special_ids, transformers_equals_ours,
    tokenizer_in_transformers, task_head_equals_ours, sparse_vectors_equal_ours,
)  # fmt: skip
# Checks only for models of this purpose.
_PURPOSES: dict[MakeCheck, str | None] = {task_head_equals_ours: "task", sparse_vectors_equal_ours: "sparse"}
_IN_TRANSFORMERS = {transformers_equals_ours, tokenizer_in_transformers, *_PURPOSES}
_OF_NETWORK = {packed_equals_alone, padded_equals_unpadded, transformers_equals_ours, task_head_equals_ours}


@dataclass(frozen=True, repr=False)
class Verification(Readable):
    """The results of a model's checks, by name."""

    folder: Path  # the model's
    checks: dict[str, Check]
    skipped: dict[str, str]  # reasons why checks were skipped

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


@public
def verify(model: str | Path, *, onnx: str | Path | None = None) -> Verification:
    """Checks that all forms of a model agree. Its folder must be complete, too.

    Packed and padded texts must give the same results as each text alone. Transformers' model, the head of its task,
    sparse vectors and exported graphs must equal ours. Tokenizers must give the same ids. Special ids and checksums
    must be right. A check that cannot use a file of the folder has failed, and says why.

    Args:
        model: Folder of a model, such as RUN/model, or its name on the hub.
        onnx: Export of the model by unmask export. By default the folder onnx inside the model's.

    Returns:
        The checks. Floats may differ by 1e-3; 8-bit graphs must correlate with our model.

    Raises:
        ModelError: There is no model, or `onnx` holds no graph.
    """
    subject = graphs.open_checked_model(model)
    to_make: dict[str, MakeCheck] = {}
    skipped: dict[str, str] = {}
    elsewhere = subject.purpose == "task" and why_in_transformers(subject.folder) is not None
    for check in _CHECKS:
        if _PURPOSES.get(check, subject.purpose) != subject.purpose:
            continue
        if check in _IN_TRANSFORMERS and find_spec("transformers") is None:
            skipped[check.__name__] = "transformers is missing: pip install 'unmask[transformers]'"
        elif check in _OF_NETWORK and elsewhere:
            skipped[check.__name__] = "transformers runs this model here too, so there is nothing to compare"
        else:
            to_make[check.__name__] = check
    graph_checks = _graph_checks(subject, onnx)
    if isinstance(graph_checks, str):
        skipped["onnx_equals_ours"] = graph_checks
    else:
        to_make |= graph_checks
    results = {}
    for name, make in to_make.items():
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
    """The checks of the exported graphs; a reason if there are none, or no package to run them."""
    folder = subject.folder / ONNX if onnx is None else Path(onnx)
    places: list[tuple[GraphKind, Path]] = []
    if any(folder.rglob(graphs.FILE)):
        # Several graphs are in folders named after their tasks; a single one is in the folder itself.
        kinds = [kind for kind in graphs.KINDS if kind is graphs.EMBED or kind in graphs.kinds_of(subject)]
        places = [(kind, folder / kind.task) for kind in kinds if (folder / kind.task / ONNX / graphs.FILE).is_file()]
        if not places and (folder / ONNX / graphs.FILE).is_file():
            architectures = read_object(folder / CONFIG, "export the model again").get("architectures")
            bare = "For" not in str(architectures)
            # A model without a head can only embed. If the graph is another one, the check reports the mismatch.
            places = [(next((kind for kind in kinds if (kind is graphs.EMBED) == bare), graphs.EMBED), folder)]
    if not places and onnx is not None:
        command = f"unmask export {typed(subject.folder)} --out {typed(folder)}"
        raise ModelError(f"{folder}: there is no graph; write one with {command}")
    if not places:
        return "no exported graph was given (--onnx), and the model's folder `onnx` has none"
    to_make: dict[str, MakeCheck] = {}
    for kind, place in places:
        file = place / ONNX / graphs.FILE
        to_make[f"onnx_{kind.short}_equals_ours"] = partial(onnx_equals_ours, file=file, kind=kind)
        if (small := file.with_name(graphs.INT8_FILE)).is_file():
            to_make[f"onnx_{kind.short}_int8_follows_ours"] = partial(int8_follows_ours, file=small, kind=kind)
    folders = [place for _, place in places]
    to_make["onnx_tokenizer_equals_ours"] = partial(onnx_tokenizer_equals_ours, folders=folders)
    return to_make if (reason := graphs.missing_onnx()) is None else reason
