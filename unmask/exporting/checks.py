"""Checks of a model: of its network and folder by themselves, in transformers, and as ONNX graphs.

Shape suffixes: B = texts, S = positions, N = places of a text, C = outputs.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from unmask.core.errors import ModelError, shown
from unmask.core.files import file_sha256
from unmask.exporting.graphs import (
    EMBED,
    SPLADE,
    VECTORS,
    CheckedModel,
    Graph,
    GraphKind,
    splade_of,
)
from unmask.model.encoder import MaskedLM
from unmask.model.folder import KEY, TaskHead
from unmask.model.pooling import check_splade
from unmask.model.stored_weights import CHECKSUMS, read_checksums
from unmask.tasks.embed import pooled
from unmask.tasks.inputs import Example
from unmask.tasks.predict import outputs_of, task_of
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

TOLERANCE = 1e-3  # of logits and hidden states in float32, between two ways to compute them
CORRELATION = 0.9  # of 8-bit graphs with the network: they are near, not equal


@dataclass(frozen=True)
class Check:
    """The result of a check."""

    passed: bool
    # Between the two things that were compared: of numbers the largest absolute one, of ids or files how many differ;
    # None where it is no number (NaN, infinity, or the comparison broke off).
    largest_difference: float | None
    detail: str  # what was compared, or what is wrong and the way out
    smallest_cosine: float | None = None  # of 8-bit graphs that make vectors: between one of theirs and ours of a text


def compare(ours: Tensor, theirs: Tensor, detail: str, *, tolerance: float = TOLERANCE) -> Check:
    """Compares numbers; other shapes, and what is not finite, pass nothing."""
    if ours.shape != theirs.shape:
        return Check(False, None, f"{detail}: of shapes {tuple(ours.shape)} and {tuple(theirs.shape)}")
    difference = (ours.double() - theirs.double()).abs().max().item()
    if not math.isfinite(difference):
        return Check(False, None, f"{detail}: not finite")
    return Check(difference <= tolerance, difference, detail)


def none_wrong(wrong: Sequence[str], detail: str, *, most: int = 100) -> Check:
    """Passes where there is no sentence about what is wrong; else says the first ones."""
    more = f"; and {len(wrong) - most} more" if len(wrong) > most else ""
    return Check(not wrong, float(len(wrong)), "; ".join(wrong[:most]) + more or detail)


def worst(checks: Sequence[Check]) -> Check:
    """The first that failed, or the one with the largest difference."""
    return min(checks, key=lambda check: (check.passed, -(check.largest_difference or 0.0) if check.passed else 0.0))


# ----------------------------------------
# The network and the folder by themselves


def packed_equals_alone(subject: CheckedModel) -> Check:
    """Texts one behind another in a row, and each in a row of its own."""
    texts = subject.probe
    together = subject.run(**subject.packed())[0].split([len(ids) for ids in texts])
    alone = [subject.run(ids[None])[0] for ids in texts]
    return worst([compare(a, b, "three texts in one row") for a, b in zip(together, alone, strict=True)])


def padded_equals_unpadded(subject: CheckedModel) -> Check:
    """Texts filled up to the longest, and each without padding."""
    rows = subject.padded()
    outputs = subject.run(rows["input_ids"], segment_ids_BS=rows["attention_mask"] - 1)
    pairs = zip(outputs, subject.probe, strict=True)
    return worst(
        [compare(row[: len(ids)], subject.run(ids[None])[0], "rows filled up to the longest") for row, ids in pairs]
    )


def finite_weights(subject: CheckedModel) -> Check:
    """No stored weight is NaN or infinite."""
    wrong = [
        f"{name} holds {int((~tensor.isfinite()).sum()):,} values that are not finite"
        for name, tensor in subject.raw_weights.items()
        if torch.is_floating_point(tensor) and not tensor.isfinite().all()
    ]
    return none_wrong(wrong, f"{len(subject.raw_weights)} tensors")


def files_unchanged(subject: CheckedModel) -> Check | str:
    """The files have the checksums that were written with them; a reason where there are none."""
    checksums = read_checksums(subject.folder)
    if checksums is None:
        return f"the folder has no {CHECKSUMS}, which pretrain and finetune write beside their models"
    wrong = []
    for name, checksum in checksums.items():
        if not (subject.folder / name).is_file():
            wrong.append(f"{name} is missing")
        elif file_sha256(subject.folder / name) != checksum:
            wrong.append(f"{name} is not what was written; if you changed it on purpose, remove {CHECKSUMS}")
    return none_wrong(wrong, f"checksums of {len(checksums)} files")


# Keys of config.json, and the role whose id they hold.
_ROLES = {
    "pad_token_id": "pad", "cls_token_id": "cls", "bos_token_id": "cls", "sep_token_id": "sep", "eos_token_id": "sep",
    "mask_token_id": "mask",
}  # fmt: skip


def special_ids(subject: CheckedModel) -> Check:
    """config.json and the tokenizer name the same ids, the model has them, and they stand around each text."""
    tokenizer = subject.tokenizer
    ids = {role: id_ for role, id_ in vars(tokenizer.special).items() if id_ is not None}
    wrong = [
        f"config.json says {key} = {shown(said)}, the tokenizer {ids.get(role)}"
        for key, role in _ROLES.items()
        if (said := subject.config.get(key)) is not None and said != ids.get(role)
    ]
    vocab_size = subject.config.get("vocab_size", 0)
    if not isinstance(vocab_size, int) or tokenizer.vocab_size > vocab_size:
        wrong.append(f"the tokenizer has {tokenizer.vocab_size:,} ids, the model only {shown(vocab_size)}")
    if len(set(ids.values())) < len(ids):
        wrong.append(f"special tokens share an id: {ids}")
    around = tokenizer.encode_prompt("").tolist()
    if around != tokenizer.special.around:
        wrong.append(f"the tokenizer puts {around} around texts, not {tokenizer.special.around}")
    return none_wrong(wrong, "config.json and tokenizer")


def tied_weights(subject: CheckedModel) -> Check | str:
    """A decoder that is stored beside the embedding (and a bias under two names) holds the same numbers."""
    if not subject.has_head:
        return "the folder holds no masked-language-model head"
    if subject.config.get("tie_word_embeddings", True) is not True:
        return Check(False, None, "config.json says tie_word_embeddings = false; these layouts tie them")
    names, canonical, raw = subject.layout, subject.weights, subject.raw_weights
    embedding = names.theirs("encoder.tokens")[0]
    decoders = [name for name in names.known if name in canonical and name.endswith("decoder.weight")]
    twice = [(other, name) for other, name in names.aliases.items() if other in raw and name in raw]
    return worst(
        [
            Check(True, 0.0, "the decoder is the embedding, stored once"),
            *(compare(canonical[n], canonical[embedding], f"{n} and {embedding}", tolerance=0.0) for n in decoders),
            *(compare(raw[other], raw[name], f"{other} and {name}", tolerance=0.0) for other, name in twice),
        ]
    )


NUM_TEXTS, TOKENS = 20, 16


def probe_texts(tokenizer: Tokenizer) -> list[str]:
    """Texts of random tokens of the vocabulary, beginnings of words and other parts alike; the same ones every time."""
    ids = np.flatnonzero(tokenizer.ordinary)
    places = np.random.default_rng(0).integers(len(ids), size=(NUM_TEXTS, TOKENS))
    texts = []
    for row in ids[places].tolist():
        spelled = [(" " if tokenizer.space_before(id_) else "") + tokenizer.text(id_) for id_ in row]
        texts.append("".join(spelled).strip())
    return [text for text in texts if " do not" not in text]  # which WordPiece's decoder makes "don't" of


def tokenizer_round_trip(subject: CheckedModel) -> Check:
    """Text to ids and back: no letter is lost or added, and what comes back has ids that come back too.

    White space is not compared, nor are the ids of the first way: decoders bring punctuation closer to words.
    """
    tokenizer, wrong, count = subject.tokenizer, [], 0
    unknown, normalizer = tokenizer.special.unk, tokenizer.backend.normalizer

    def letters(text: str) -> str:
        return "".join(text.replace("▁", " ").split())  # the sign that some vocabularies have for a space

    for text in probe_texts(tokenizer):
        text_ids = tokenizer.encode_prompt(text)
        if unknown is not None and unknown in text_ids:
            continue
        count += 1
        written = tokenizer.decode(text_ids.tolist())
        ids = tokenizer.encode_prompt(written)
        if letters(written) != letters(text if normalizer is None else normalizer.normalize_str(text)):
            wrong.append(f"{text!r} comes back as {written!r}")
        elif not np.array_equal(ids, tokenizer.encode_prompt(tokenizer.decode(ids.tolist()))):
            wrong.append(f"{written!r} has other ids after it was decoded and encoded again")
    if not count:
        wrong.append("no text can be written with the vocabulary's own tokens")
    return none_wrong(wrong, f"{count} texts", most=2)


# ----------------------------------------
# The folder as transformers loads it: its network, tokenizer and task head, against ours


def transformers_equals_ours(subject: CheckedModel) -> Check:
    """The same logits (hidden states, where there is no head), of texts alone, padded, and of two types."""
    theirs = _masked_model(subject)
    rows = subject.padded()
    real = rows["attention_mask"].bool()
    segments = {"segment_ids_BS": rows["attention_mask"] - 1}
    if subject.model.network.config.num_types > 1:
        segments["token_type_ids_BS"] = rows["token_type_ids"]
    else:
        del rows["token_type_ids"]
    ours = subject.run(rows["input_ids"], **segments)
    checks = [compare(ours[real], _outputs(theirs, rows)[real], "padded texts")]
    alone = [ids[None] for ids in subject.probe]
    checks += [compare(subject.run(ids), _outputs(theirs, {"input_ids": ids}), "texts alone") for ids in alone]
    return worst(checks)


def sparse_vectors_equal_ours(subject: CheckedModel) -> Check:
    """Sparse vectors of texts padded in transformers, pooled as the folder says, and ours of packed texts."""
    check_splade(subject.folder)
    rows = {name: rows for name, rows in subject.padded().items() if name != "token_type_ids"}
    logits_BSV = _outputs(_masked_model(subject), rows)
    return compare(subject.sparse_vectors(), splade_of(logits_BSV, rows["attention_mask"]), "padded texts")


def tokenizer_in_transformers(subject: CheckedModel) -> Check:
    """`AutoTokenizer` gives the same ids to the same texts, masks included, and knows the same special tokens.

    Pairs of texts have token types exactly where the model has several.
    """
    import transformers

    ours = subject.tokenizer
    with _transformers_loading(subject.folder):
        theirs = transformers.AutoTokenizer.from_pretrained(subject.folder, local_files_only=True)
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
        if id_ is not None and (said := getattr(theirs, f"{role}_token_id")) != id_:
            wrong.append(f"transformers takes {said} for the {role} token, not {id_}")
    types = theirs(texts[0], texts[1]).get("token_type_ids")
    if types is not None and not subject.has_types:
        wrong.append("transformers gives token types, which the model does not have")
    if types is None and subject.has_types:
        wrong.append(
            "transformers gives no token types for pairs, but the model has two: add token_type_ids to "
            "model_input_names in tokenizer_config.json"
        )
    if types and subject.has_types and list(types) != ours.backend.encode(texts[0], texts[1]).type_ids:
        wrong.append("a pair of texts has other token types in transformers")
    return none_wrong(wrong, f"{len(texts)} texts", most=2)


def task_head_equals_ours(subject: CheckedModel) -> Check | str:
    """The same logits of a fine-tuned model's task, of texts that share rows here and are padded there.

    Returns:
        The check; or why it is not made, where transformers has no such class, or where the model was fine-tuned
        elsewhere, with a head that is not read here.
    """
    import transformers

    architecture = next(iter(subject.config.get("architectures") or []), "")
    if architecture and not hasattr(transformers, architecture):
        return f"transformers {transformers.__version__} has no {architecture}"
    try:
        head = task_of(subject.config, subject.folder).task_head
        fine_tuned = subject.fine_tuned
    except ModelError as error:
        if KEY in subject.config:
            raise
        return str(error)
    theirs = load_in_transformers(subject.folder, f"AutoModelFor{head.architecture}")
    network = fine_tuned.network
    assert isinstance(network, MaskedLM), "transformers runs all others"
    texts, rows = subject.probe, subject.padded()
    types_BS: Tensor | None = rows["token_type_ids"]
    if network.config.num_types == 1:
        types_BS = None
        del rows["token_type_ids"]
    expected = _outputs(theirs, rows)
    checks = []
    for row, output in enumerate(outputs_of(network, fine_tuned.task, probe_examples(texts, head, types_BS))):
        ours_NC = torch.from_numpy(output)
        theirs_NC = expected[row][None] if head.pooling is not None else expected[row][: len(output)]
        checks.append(compare(ours_NC, theirs_NC, f"logits of {type(theirs).__name__}", tolerance=by_size(ours_NC)))
    return worst(checks)


def by_size(numbers: Tensor) -> float:
    """The tolerance of a task's outputs: a regression's numbers may be thousands."""
    return TOLERANCE * max(1.0, numbers.abs().max().item())


def probe_examples(texts: Sequence[Tensor], head: TaskHead, types_BS: Tensor | None) -> list[Example]:
    """The texts as inputs of the task: outputs are asked for where its head looks."""
    examples = []
    for number, ids in enumerate(texts):
        places = np.arange(1 if head.pooling == "first" else len(ids))
        types = None if types_BS is None else types_BS[number, : len(ids)].numpy()
        examples.append(Example(number, ids.numpy(), types, places, places))
    return examples


def load_in_transformers(folder: Path, auto: str, *, unneeded: str | None = None) -> torch.nn.Module:
    """A model of transformers in evaluation mode and float32, by the name of the class that loads it.

    Weights whose names contain `unneeded` may be missing, since no compared output needs them.

    Raises:
        ModelError: transformers cannot load it, or finds no value for a weight that it needs.
    """
    import transformers

    with _transformers_loading(folder):
        model, report = getattr(transformers, auto).from_pretrained(
            folder, output_loading_info=True, local_files_only=True
        )
    missing = sorted(name for name in report["missing_keys"] if unneeded is None or unneeded not in name)
    if missing:
        raise ModelError(f"{folder}: transformers finds no value for {', '.join(missing[:3])}")
    return model.eval().float()


def _masked_model(subject: CheckedModel) -> torch.nn.Module:
    auto = "AutoModelForMaskedLM" if subject.has_head else "AutoModel"
    return load_in_transformers(subject.folder, auto, unneeded="pooler")


@torch.no_grad()
def _outputs(model: torch.nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    output = model(**inputs)
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], -1)
    return output.logits if "logits" in output else output.last_hidden_state


@contextlib.contextmanager
def _transformers_loading(folder: Path) -> Iterator[None]:
    """Without transformers' bars and remarks; whatever it raises means that it cannot load the folder."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except Exception as error:
        raise ModelError(f"{folder}: transformers cannot load it ({type(error).__name__}: {error})") from error
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


# ----------------------------------------
# Graphs in onnxruntime against our network


def onnx_equals_ours(subject: CheckedModel, file: Path, kind: GraphKind) -> Check:
    """A graph in float32 gives our numbers, of padded texts and of each alone, and those of `embed` or `predict`."""
    checks = []
    for what, ours, theirs in compared_outputs(subject, file, kind):
        tolerance = by_size(ours) if kind.short == "task" else TOLERANCE
        checks.append(compare(ours, theirs, f"{file.name}, {what}", tolerance=tolerance))
    return worst(checks)


def int8_follows_ours(subject: CheckedModel, file: Path, kind: GraphKind) -> Check:
    """A graph with 8-bit weights gives numbers that correlate with ours.

    The difference is reported, not judged, and so are the cosines of its vectors with ours.
    """
    outputs = compared_outputs(subject, file, kind)
    ours = torch.cat([each.flatten() for _, each, _ in outputs])
    theirs = torch.cat([each.flatten() for _, _, each in outputs])
    numbers = compare(ours, theirs, file.name, tolerance=float("inf"))
    if not numbers.passed:
        return numbers
    correlation = torch.corrcoef(torch.stack([ours, theirs]))[0, 1].item()
    detail, smallest = f"{file.name}: correlation {correlation:.4f} with float32", None
    cosines = [
        # Sparse vectors may be all zeros.
        torch.where((a == b).all(1), 1.0, cosine_similarity(a.double(), b.double())).min().item()
        for what, a, b in outputs
        if "vectors" in what
    ]
    if cosines:
        smallest = min(cosines)
        detail += f", cosines of vectors {at_least(smallest)} and more"
    return Check(correlation >= CORRELATION, numbers.largest_difference, detail, smallest)


def at_least(cosine: float) -> str:
    """Four digits, never rounded up: 0.99996 is 0.9999."""
    return f"{math.floor(cosine * 1e4) / 1e4:.4f}"


def onnx_tokenizer_equals_ours(subject: CheckedModel, folders: Sequence[Path]) -> Check:
    """The tokenizers beside the graphs are the model's."""
    wrong = [
        f"{folder / 'tokenizer.json'} is another one; export the model anew"
        for folder in folders
        if load_tokenizer(folder).fingerprint != subject.tokenizer.fingerprint
    ]
    return none_wrong(wrong, "tokenizer.json")


def compared_outputs(subject: CheckedModel, file: Path, kind: GraphKind) -> list[tuple[str, Tensor, Tensor]]:
    """What is compared, our numbers and those of a file, at real positions only.

    Raises:
        ModelError: onnxruntime cannot run the file; or the model's folder asks for a pooling that is not offered.
    """
    graph = Graph(subject, kind)
    texts, rows = subject.probe, subject.padded()
    session = _session(file)
    for names, values in ((graph.inputs, session.get_inputs()), (tuple(kind.outputs), session.get_outputs())):
        if (in_file := tuple(value.name for value in values)) != names:
            raise ModelError(f"{file}: has {', '.join(in_file)} in place of {', '.join(names)}; export the model anew")

    def run(batch: dict[str, Tensor]) -> list[Tensor]:
        feeds = {name: batch[name].contiguous().numpy() for name in graph.inputs}
        try:
            return [torch.from_numpy(array) for array in session.run(None, feeds)]
        except Exception as error:
            raise ModelError(f"{file}: onnxruntime cannot run it ({_line(error)}); export the model anew") from error

    compared = []
    alone = [{name: rows[name][n : n + 1, : len(ids)] for name in rows} for n, ids in enumerate(texts)]
    for batch in (rows, *alone):
        with torch.no_grad():
            ours = graph(**{name: batch[name].contiguous() for name in graph.inputs})
        real = batch["attention_mask"].bool()
        for name, a, b, by_token in zip(kind.outputs, ours, run(batch), kind.by_token, strict=True):
            what = f"padded texts and texts alone{', vectors' if name == VECTORS else ''}"
            tokens = by_token and b.shape[:2] == real.shape
            compared.append((what, a[real] if by_token else a, b[real] if tokens else b))
    if VECTORS in kind.outputs:  # packed, and of one type, as texts are embedded
        one_type = rows | {"token_type_ids": torch.zeros_like(rows["token_type_ids"])}
        vectors = run(one_type)[list(kind.outputs).index(VECTORS)]
        if kind is SPLADE:
            compared.append(("sparse vectors as in training", subject.sparse_vectors(), vectors))
        if kind is EMBED:
            assert graph.settings is not None
            ids, owners = [each.numpy().astype(np.int32) for each in texts], np.arange(len(texts))
            ours_BD = pooled(subject.model.network, ids, owners, graph.settings, len(texts))
            what = "vectors as of embed (export anew if the pooling has changed)"
            compared.append((what, torch.from_numpy(ours_BD), vectors))
    if graph.task_head is not None:  # packed, as texts are predicted
        types_BS = rows["token_type_ids"] if "token_type_ids" in graph.inputs else None
        examples, outputs = probe_examples(texts, graph.task_head, types_BS), run(rows)
        for row, ours_NC in enumerate(outputs_of(graph.model, subject.fine_tuned.task, examples)):
            theirs = torch.stack([each[row] for each in outputs], -1) if len(outputs) > 1 else outputs[0][row]
            theirs_NC = theirs[: len(ours_NC)] if kind.by_token[0] else theirs[None]
            compared.append(("outputs as of predict", torch.from_numpy(ours_NC), theirs_NC))
    return compared


def _session(file: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions share no base of their own
        raise ModelError(f"{file}: onnxruntime cannot load it ({_line(error)}); export the model anew") from error


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
