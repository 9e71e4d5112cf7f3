"""Checks of a model, and what each came to: here those of its network by itself, and of its folder.

Comparisons with transformers stand in `unmask.exporting.checks`, those with ONNX graphs in
`unmask.exporting.checks`.

Shape suffixes: B = texts, S = positions.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from unmask.core.errors import ModelError, shown
from unmask.core.files import file_sha256
from unmask.exporting.graphs import (
    VECTORS,
    CheckedModel,
    EmbedGraph,
    Graph,
    Probe,
    SpladeGraph,
    TaskGraph,
    make_probe,
    splade_of,
)
from unmask.model.encoder import MaskedLM
from unmask.model.folder import KEY, TaskHead, read_content
from unmask.model.sentence_files import check_splade
from unmask.model.stored_weights import CHECKSUMS, read_checksums
from unmask.model.transformers_folder import check_counts, check_size
from unmask.tasks.embed import pooled
from unmask.tasks.inputs import Example
from unmask.tasks.predict import outputs_of, task_of
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

TOLERANCE = 1e-3  # of logits and hidden states in float32, between two ways to compute them


@dataclass(frozen=True)
class Check:
    """A result.

    Attributes:
        passed: Whether the promise holds.
        largest_difference: Between the two things that were compared: of numbers the largest absolute one, of ids or
            files how many differ; None where it is no number (NaN, infinity, or the comparison broke off).
        detail: What was compared, or what is wrong and the way out.
        smallest_cosine: Of 8-bit graphs that make vectors: between one of theirs and ours of the same text; else None.
    """

    passed: bool
    largest_difference: float | None
    detail: str
    smallest_cosine: float | None = None


def compare(ours: Tensor, theirs: Tensor, detail: str, *, tolerance: float = TOLERANCE) -> Check:
    """Compares numbers; other shapes, and what is not finite, pass nothing."""
    if ours.shape != theirs.shape:
        return Check(False, None, f"{detail}: of shapes {tuple(ours.shape)} and {tuple(theirs.shape)}")
    difference = (ours.double() - theirs.double()).abs().max().item()
    if not math.isfinite(difference):
        return Check(False, None, f"{detail}: not finite")
    return Check(difference <= tolerance, difference, detail)


def count(wrong: list[str], detail: str) -> Check:
    """Passes where nothing is wrong; else says all that is.

    Args:
        wrong: A sentence for each thing.
        detail: What was compared.
    """
    return Check(not wrong, float(len(wrong)), "; ".join(wrong) or detail)


def at_least(cosine: float) -> str:
    """A cosine to four digits, never rounded up: 0.99996 is 0.9999."""
    return f"{math.floor(cosine * 1e4) / 1e4:.4f}"


def worst(checks: list[Check]) -> Check:
    """The first that failed, or the one with the largest difference."""
    failed = [check for check in checks if not check.passed]
    return failed[0] if failed else max(checks, key=lambda check: check.largest_difference or 0.0)


# Of the network: what stands beside a text in a batch must not change what is said of it.
def packed_equals_alone(subject: CheckedModel) -> Check:
    """Texts one behind another in a row, and each in a row of its own."""
    together = subject.run(**subject.probe.packed)[0].split([len(ids) for ids in subject.probe.texts])
    alone = [subject.run(ids[None])[0] for ids in subject.probe.texts]
    return worst([compare(a, b, "three texts in one row") for a, b in zip(together, alone, strict=True)])


def padded_equals_unpadded(subject: CheckedModel) -> Check:
    """Texts filled up to the longest, and each without padding."""
    rows = subject.probe.padded(subject.tokenizer.special.pad)
    padded = subject.run(rows["input_ids"], segment_ids_BS=rows["attention_mask"] - 1)
    checks = []
    for row, ids in zip(padded, subject.probe.texts, strict=True):
        checks.append(compare(row[: len(ids)], subject.run(ids[None])[0], "rows filled up to the longest"))
    return worst(checks)


def finite_weights(subject: CheckedModel) -> Check:
    """No stored weight is NaN or infinite."""
    wrong = [
        f"{name} holds {int((~tensor.isfinite()).sum()):,} values that are not finite"
        for name, tensor in subject.raw_weights.items()
        if torch.is_floating_point(tensor) and not tensor.isfinite().all()
    ]
    return count(wrong, f"{len(subject.raw_weights)} tensors")


# Of the folder: its files, its special ids, and the tie of decoder and embedding.

# Keys of config.json, and the role whose id they hold.
_ROLES = {
    "pad_token_id": "pad",
    "cls_token_id": "cls",
    "bos_token_id": "cls",
    "sep_token_id": "sep",
    "eos_token_id": "sep",
    "mask_token_id": "mask",
}


def files_unchanged(subject: CheckedModel) -> Check | str:
    """The files have the checksums that were written with them; a reason where there are none."""
    wanted = read_checksums(subject.folder)
    if wanted is None:
        return f"the folder has no {CHECKSUMS}, which pretrain and finetune write beside their models"
    wrong = []
    for name, checksum in wanted.items():
        file = subject.folder / name
        if not file.is_file():
            wrong.append(f"{name} is missing")
        elif file_sha256(file) != checksum:
            wrong.append(f"{name} is not what was written; if you changed it on purpose, remove {CHECKSUMS}")
    return count(wrong, f"checksums of {len(wanted)} files")


def special_ids(subject: CheckedModel) -> Check:
    """config.json and the tokenizer name the same ids, the model has them, and they stand around each text."""
    tokenizer = subject.tokenizer
    ids = {role: id_ for role, id_ in vars(tokenizer.special).items() if id_ is not None}
    wrong = [
        f"config.json says {key} = {shown(found)}, the tokenizer {ids.get(role)}"
        for key, role in _ROLES.items()
        if (found := subject.config.get(key)) is not None and found != ids.get(role)
    ]
    vocab_size = subject.config.get("vocab_size", 0)
    if not isinstance(vocab_size, int) or tokenizer.vocab_size > vocab_size:
        wrong.append(f"the tokenizer has {tokenizer.vocab_size:,} ids, the model only {shown(vocab_size)}")
    if len(set(ids.values())) < len(ids):
        wrong.append(f"special tokens share an id: {ids}")
    around = tokenizer.encode_prompt("").tolist()
    if around != tokenizer.special.around:
        wrong.append(f"the tokenizer puts {around} around texts, not {tokenizer.special.around}")
    return count(wrong, "config.json and tokenizer")


def tied_weights(subject: CheckedModel) -> Check | str:
    """A decoder that is stored beside the embedding (and a bias under two names) holds the same numbers."""
    if not subject.has_head:
        return "the folder holds no masked-language-model head"
    if subject.config.get("tie_word_embeddings", True) is not True:
        return Check(False, None, "config.json says tie_word_embeddings = false; these layouts tie them")
    names = subject.layout.names
    embedding = names.theirs("encoder.tokens")[0]
    stored = subject.weights
    checks = [Check(True, 0.0, "the decoder is the embedding, stored once")]
    decoders = [name for name in names.known if name in stored and name.endswith("decoder.weight")]
    checks += [_same(stored[name], stored[embedding], f"{name} and {embedding}") for name in decoders]
    raw = subject.raw_weights
    twice = [(other, name) for other, name in names.aliases.items() if other in raw and name in raw]
    checks += [_same(raw[other], raw[name], f"{other} and {name}") for other, name in twice]
    return worst(checks)


def _same(tensor: torch.Tensor, other: torch.Tensor, detail: str) -> Check:
    return compare(tensor, other, detail, tolerance=0.0)


# ----------------------------------------
# The folder as transformers loads it: its network, tokenizer and task head, against ours.
#
# The tokenizer is checked by itself, too: what it writes it reads again.
#
# Shape suffixes: B = texts, S = positions, N = places of a text, C = outputs.


def missing_transformers() -> str | None:
    """Why transformers cannot be asked; None where it can."""
    return None if find_spec("transformers") else "transformers is not installed: pip install 'unmask[transformers]'"


def transformers_equals_ours(subject: CheckedModel) -> Check:
    """The same logits (hidden states, where there is no head), of texts alone, padded, and of two types."""
    theirs = _auto_model(subject.folder, has_head=subject.has_head)
    rows = subject.probe.padded(subject.tokenizer.special.pad)
    real = rows["attention_mask"].bool()
    types = {"token_type_ids": rows["token_type_ids"]} if subject.num_types > 1 else {}
    ours = subject.run(
        rows["input_ids"],
        segment_ids_BS=rows["attention_mask"] - 1,
        **{f"{name}_BS": tensor for name, tensor in types.items()},
    )
    found = _output(theirs, input_ids=rows["input_ids"], attention_mask=rows["attention_mask"], **types)
    checks = [compare(ours[real], found[real], "padded texts")]
    alone = [ids[None] for ids in subject.probe.texts]
    checks += [compare(subject.run(ids), _output(theirs, input_ids=ids), "texts alone") for ids in alone]
    return worst(checks)


@torch.no_grad()
def sparse_vectors_equal_ours(subject: CheckedModel) -> Check:
    """Sparse vectors of texts padded in transformers, pooled as the folder says, and ours of packed texts.

    Raises:
        ModelError: The folder makes them in another way than we do.
    """
    check_splade(subject.folder)
    rows = subject.probe.padded(subject.tokenizer.special.pad)
    inputs = {name: rows[name] for name in ("input_ids", "attention_mask")}
    logits_BSV = _output(_auto_model(subject.folder, has_head=True), **inputs)
    return compare(subject.sparse_vectors(), splade_of(logits_BSV, rows["attention_mask"]), "padded texts")


def auto_tokenizer(folder: Path) -> Any:
    """transformers' tokenizer of a folder.

    Raises:
        ModelError: transformers cannot load it, or config.json counts further than the weights.
    """
    import transformers

    check_counts(folder, read_content(folder))
    with _quiet(), _as_model_error(folder):
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _auto_model(folder: Path, *, has_head: bool) -> torch.nn.Module:
    """In evaluation mode and float32.

    Raises:
        ModelError: transformers cannot load it, or finds no value for a weight that it needs.
    """
    return loaded(folder, "AutoModelForMaskedLM" if has_head else "AutoModel", unneeded="pooler")


def loaded(folder: Path, auto: str, *, unneeded: str | None = None) -> torch.nn.Module:
    """A model of transformers in evaluation mode and float32.

    Args:
        folder: With config.json and weights.
        auto: Name of the class that loads it.
        unneeded: Part of the names of weights that may be missing, since no output that is compared needs them.

    Raises:
        ModelError: transformers cannot load it, or finds no value for a weight that it needs; or config.json asks for
            much more than the weights hold.
    """
    import transformers

    check_size(getattr(transformers, auto), folder, read_content(folder))
    with _quiet(), _as_model_error(folder):
        model, report = getattr(transformers, auto).from_pretrained(
            folder, output_loading_info=True, local_files_only=True
        )
    missing = sorted(name for name in report["missing_keys"] if unneeded is None or unneeded not in name)
    if missing:
        raise ModelError(f"{folder}: transformers finds no value for {', '.join(missing[:3])}")
    return model.eval().float()


@torch.no_grad()
def _output(model: torch.nn.Module, **inputs: Tensor) -> Tensor:
    found = model(**inputs)
    return found.logits if "logits" in found else found.last_hidden_state


@contextlib.contextmanager
def _as_model_error(folder: Path) -> Iterator[None]:
    """transformers raises whatever its parts raise; here each of them means that it cannot load the folder."""
    try:
        yield
    except Exception as error:
        raise ModelError(f"{folder}: transformers cannot load it ({type(error).__name__}: {error})") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' bars and remarks, which would break into the table."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


NUM_TEXTS, TOKENS = 20, 16


def tokenizer_round_trip(subject: CheckedModel) -> Check:
    """Text to ids and back: no letter is lost or added, and what comes back has ids that come back too."""
    tokenizer = subject.tokenizer
    unknown = tokenizer.special.unk
    texts = [text for text in probe_texts(tokenizer) if unknown is None or unknown not in tokenizer.encode_prompt(text)]
    wrong = [sentence for text in texts if (sentence := _lost(tokenizer, text)) is not None]
    if not texts:
        wrong.append("no text can be written with the vocabulary's own tokens")
    return _few(wrong, f"{len(texts)} texts")


def _lost(tokenizer: Tokenizer, text: str) -> str | None:
    """What is wrong with the way back.

    White space is not compared, nor are the ids of the first way: decoders bring punctuation closer to words.
    """
    written = tokenizer.decode(tokenizer.encode_prompt(text).tolist())
    normalizer = tokenizer.backend.normalizer
    wanted = text if normalizer is None else normalizer.normalize_str(text)
    if _letters(written) != _letters(wanted):
        return f"{text!r} comes back as {written!r}"
    ids = tokenizer.encode_prompt(written)
    if not np.array_equal(ids, tokenizer.encode_prompt(tokenizer.decode(ids.tolist()))):
        return f"{written!r} has other ids after it was decoded and encoded again"
    return None


def _letters(text: str) -> str:
    """Without white space, and the sign that some vocabularies have for it."""
    return "".join(text.replace("▁", " ").split())


def tokenizer_in_transformers(subject: CheckedModel) -> Check:
    """`AutoTokenizer` gives the same ids to the same texts, masks included, and knows the same special tokens.

    Pairs of texts have token types exactly where the model tells them apart.
    """
    ours, theirs = subject.tokenizer, auto_tokenizer(subject.folder)
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
    wrong += _other_roles(ours, theirs)
    wrong += _other_types(ours, theirs, (texts[0], texts[1]), wanted=subject.tells_types)
    return _few(wrong, f"{len(texts)} texts")


def probe_texts(tokenizer: Tokenizer) -> list[str]:
    """Texts of random tokens of the vocabulary, beginnings of words and other parts alike; the same ones every time."""
    ids = np.flatnonzero(tokenizer.ordinary)
    places = np.random.default_rng(0).integers(len(ids), size=(NUM_TEXTS, TOKENS))
    texts = ["".join(_spelled(tokenizer, id_) for id_ in row).strip() for row in ids[places].tolist()]
    return [text for text in texts if " do not" not in text]  # which WordPiece's decoder makes "don't" of


def _spelled(tokenizer: Tokenizer, id_: int) -> str:
    return (" " if tokenizer.space_before(id_) else "") + tokenizer.text(id_)


def _other_roles(ours: Tokenizer, theirs: Any) -> list[str]:
    wrong = []
    for role, id_ in vars(ours.special).items():
        found = getattr(theirs, f"{role}_token_id")
        if id_ is not None and found != id_:
            wrong.append(f"transformers takes {found} for the {role} token, not {id_}")
    return wrong


def _other_types(ours: Tokenizer, theirs: Any, pair: tuple[str, str], *, wanted: bool) -> list[str]:
    found = theirs(*pair).get("token_type_ids")
    if not wanted:
        return [] if found is None else ["transformers gives token types, which the model does not have"]
    if found is None:
        return [
            "transformers gives no token types for pairs, but the model has two: add token_type_ids to "
            "model_input_names in tokenizer_config.json"
        ]
    same = list(found) == ours.backend.encode(*pair).type_ids
    return [] if same else ["a pair of texts has other token types in transformers"]


def _few(wrong: list[str], detail: str) -> Check:
    """All are counted, and the first two told."""
    check = count(wrong, detail)
    return (
        check
        if len(wrong) < 3
        else Check(False, float(len(wrong)), f"{wrong[0]}; {wrong[1]}; and {len(wrong) - 2} more")
    )


def task_head_equals_ours(subject: CheckedModel) -> Check | str:
    """The same logits of a fine-tuned model's task, of texts that share rows here and are padded there.

    Returns:
        What came of it; why it is not made where transformers has no such class, or where others than unmask
        fine-tuned the model, with a head that is not read here.

    Raises:
        ModelError: The head that unmask wrote cannot be loaded.
    """
    import transformers

    architecture = next(iter(subject.config.get("architectures") or []), "")
    if architecture and not hasattr(transformers, architecture):
        return f"transformers {transformers.__version__} has no {architecture}"
    try:
        head = task_of(subject.config, subject.folder).task_head
        ours = subject.fine_tuned
    except ModelError as error:
        if KEY in subject.config:
            raise
        return str(error)
    theirs = loaded(subject.folder, f"AutoModelFor{head.architecture}")
    assert isinstance(ours.network, MaskedLM), "transformers runs all others"
    probe = make_probe(ours.network.config, subject.tokenizer)
    rows = probe.padded(subject.tokenizer.special.pad)
    types_BS = rows["token_type_ids"] if ours.network.config.num_types > 1 else None
    found = outputs_of(ours.network, ours.task, probe_examples(probe, head, types_BS))
    expected = _theirs(theirs, {name: rows[name] for name in rows if types_BS is not None or name != "token_type_ids"})
    checks = []
    for row, output in enumerate(found):
        ours_NC = torch.from_numpy(output)
        theirs_NC = expected[row][None] if head.pooling is not None else expected[row][: len(output)]
        tolerance = TOLERANCE * max(1.0, ours_NC.abs().max().item())  # a regression's numbers may be thousands
        checks.append(compare(ours_NC, theirs_NC, f"logits of {type(theirs).__name__}", tolerance=tolerance))
    return worst(checks)


def probe_examples(probe: Probe, head: TaskHead, types_BS: Tensor | None) -> list[Example]:
    """The texts as inputs of the task: outputs are asked for where its head looks."""
    examples = []
    for number, ids in enumerate(probe.texts):
        places = np.arange(1 if head.pooling == "first" else len(ids))
        types = None if types_BS is None else types_BS[number, : len(ids)].numpy()
        examples.append(Example(number, ids.numpy(), types, places, places))
    return examples


@torch.no_grad()
def _theirs(model: torch.nn.Module, rows: dict[str, Tensor]) -> Tensor:
    """Logits [B, C] of texts, or [B, S, C] of their positions."""
    found = model(**rows)
    return torch.stack([found.start_logits, found.end_logits], -1) if "start_logits" in found else found.logits


# ----------------------------------------
# Graphs in onnxruntime against our network.

CORRELATION = 0.9  # of 8-bit graphs with the network: they are near, not equal


@dataclass(frozen=True)
class ComparedOutputs:
    """The same numbers, ours and a graph's."""

    what: str
    ours: Tensor
    theirs: Tensor
    are_vectors: bool = False


def onnx_equals_ours(subject: CheckedModel, file: Path, kind: type[Graph]) -> Check:
    """A graph in float32 gives our numbers, of padded texts and of each alone, and those of `embed` or `predict`.

    Numbers of a task may be large; theirs are compared by their size.
    """
    checks = []
    for each in _outputs(subject, file, kind):
        tolerance = TOLERANCE * (max(1.0, each.ours.abs().max().item()) if issubclass(kind, TaskGraph) else 1.0)
        checks.append(compare(each.ours, each.theirs, f"{file.name}, {each.what}", tolerance=tolerance))
    return worst(checks)


def int8_follows_ours(subject: CheckedModel, file: Path, kind: type[Graph]) -> Check:
    """A graph with 8-bit weights gives numbers that correlate with ours.

    The difference is told, not judged, and so are the cosines of its vectors with ours.
    """
    outputs = _outputs(subject, file, kind)
    ours, theirs = (torch.cat([getattr(each, side).flatten() for each in outputs]) for side in ("ours", "theirs"))
    found = compare(ours, theirs, f"{file.name}", tolerance=float("inf"))
    if not found.passed:
        return found
    correlation = torch.corrcoef(torch.stack([ours, theirs]))[0, 1].item()
    detail = f"{file.name}: correlation {correlation:.4f} with float32"
    cosines = [_cosines(each.ours, each.theirs).min().item() for each in outputs if each.are_vectors]
    if cosines:
        detail += f", cosines of vectors {at_least(min(cosines))} and more"
    return Check(correlation >= CORRELATION, found.largest_difference, detail, min(cosines, default=None))


def _cosines(ours_BD: Tensor, theirs_BD: Tensor) -> Tensor:
    """Of each vector with its like; 1 of two that are all zeros, as sparse ones may be."""
    cosines_B = cosine_similarity(ours_BD.double(), theirs_BD.double())
    return torch.where((ours_BD == theirs_BD).all(1), 1.0, cosines_B)


def onnx_tokenizer_equals_ours(subject: CheckedModel, folders: Sequence[Path]) -> Check:
    """The tokenizers beside the graphs are the model's."""
    wrong = [
        f"{folder / 'tokenizer.json'} is another one; export the model anew"
        for folder in folders
        if load_tokenizer(folder).fingerprint != subject.tokenizer.fingerprint
    ]
    return count(wrong, "tokenizer.json")


def _outputs(subject: CheckedModel, file: Path, kind: type[Graph]) -> list[ComparedOutputs]:
    """What is compared, an output each time, at real positions only.

    Raises:
        ModelError: onnxruntime cannot run the file; or the model's folder asks for a pooling that is not offered.
    """
    graph = kind.of(subject)
    rows = subject.probe.padded(subject.tokenizer.special.pad)
    batches = [rows]
    for row, ids in enumerate(subject.probe.texts):
        batches.append({name: tensor[row : row + 1, : len(ids)] for name, tensor in rows.items()})
    session = _session(file)
    for wanted, found in ((graph.inputs, session.get_inputs()), (graph.outputs, session.get_outputs())):
        names = tuple(value.name for value in found)
        if names != wanted:
            raise ModelError(f"{file}: has {', '.join(names)} in place of {', '.join(wanted)}; export the model anew")
    pairs = []
    for batch in batches:
        feeds = {name: batch[name].contiguous() for name in graph.inputs}
        with torch.no_grad():
            ours = graph(**feeds)
        real = batch["attention_mask"].bool()
        outputs = ours if isinstance(ours, tuple) else (ours,)
        for name, a, b, by_token in zip(
            graph.outputs, outputs, _run(session, file, feeds), graph.by_token, strict=True
        ):
            tokens = by_token and b.shape[:2] == real.shape
            ours, theirs = a[real] if by_token else a, b[real] if tokens else b
            pairs.append(ComparedOutputs("padded texts and texts alone", ours, theirs, name == VECTORS))
    if isinstance(graph, EmbedGraph | SpladeGraph):
        feeds = {name: rows[name] for name in graph.inputs} | _of_one_type(graph, rows)
        vectors = _run(session, file, feeds)[graph.outputs.index(VECTORS)]
        pairs.append(_vectors(subject, graph, vectors))
    if isinstance(graph, TaskGraph):
        feeds = {name: rows[name].contiguous() for name in graph.inputs}
        pairs += _predicted(subject, graph, rows, _run(session, file, feeds))
    return pairs


def _predicted(
    subject: CheckedModel, graph: TaskGraph, rows: Mapping[str, Tensor], found: list[Tensor]
) -> Iterator[ComparedOutputs]:
    """What the model of a task says of the texts, packed, and what the graph says of the same."""
    model, task_head = subject.fine_tuned, graph.task_head
    types_BS = rows["token_type_ids"] if "token_type_ids" in graph.inputs else None
    examples = probe_examples(subject.probe, task_head, types_BS)
    for row, ours_NC in enumerate(outputs_of(model.network, model.task, examples)):
        theirs = torch.stack([each[row] for each in found], -1) if len(found) > 1 else found[0][row]
        theirs_NC = theirs[: len(ours_NC)] if graph.by_token[0] else theirs[None]
        yield ComparedOutputs("outputs as of predict", torch.from_numpy(ours_NC), theirs_NC)


def _of_one_type(graph: Graph, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Token types as texts have them that are embedded: all 0."""
    return {name: torch.zeros_like(rows[name]) for name in graph.inputs if name == "token_type_ids"}


def _vectors(subject: CheckedModel, graph: EmbedGraph | SpladeGraph, theirs: Tensor) -> ComparedOutputs:
    """A graph's vectors of the texts, and those that the network makes of packed texts, as elsewhere."""
    if isinstance(graph, SpladeGraph):
        return ComparedOutputs("sparse vectors as in training", subject.sparse_vectors(), theirs, are_vectors=True)
    texts = [ids.numpy().astype(np.int32) for ids in subject.probe.texts]
    network, owners = subject.model.network, np.arange(len(texts), dtype=np.int64)
    ours = torch.from_numpy(pooled(network, subject.tokenizer, texts, owners, graph.settings, len(texts)))
    what = "vectors as of embed (export anew if the pooling has changed)"
    return ComparedOutputs(what, ours, theirs, are_vectors=True)


def _session(file: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions share no base of their own
        raise ModelError(f"{file}: onnxruntime cannot load it ({_first_line(error)}); export the model anew") from error


def _run(session: Any, file: Path, feeds: Mapping[str, Tensor]) -> list[Tensor]:
    try:
        return [torch.from_numpy(array) for array in session.run(None, {n: t.numpy() for n, t in feeds.items()})]
    except Exception as error:
        raise ModelError(f"{file}: onnxruntime cannot run it ({_first_line(error)}); export the model anew") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
