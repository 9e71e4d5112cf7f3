"""Checks of a model: of its network and folder by themselves, in transformers, and as ONNX graphs.

Shape suffixes: B = texts, S = positions, N = positions of a text that a head looks at, C = outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from unmask.core.errors import ModelError, UnmaskError, shown
from unmask.core.files import file_sha256, read_object
from unmask.exporting.graphs import VECTORS, CheckedModel, Graph, GraphKind, splade_of
from unmask.model.folder import CHECKSUMS, KEY, read_checksums
from unmask.model.pooling import MODULES, check_splade, module_file, read_pooling
from unmask.tasks.embed import pooled
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import SPELLINGS, Tokenizer

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


def compare(ours: Tensor, theirs: Tensor, detail: str, *, tolerance: float = TOLERANCE, by_size: bool = False) -> Check:
    """Compares numbers; other shapes, and what is not finite, pass nothing.

    With `by_size` the tolerance grows with our largest number: those of a regression may be thousands.
    """
    if ours.shape != theirs.shape:
        return Check(False, None, f"{detail}: of shapes {tuple(ours.shape)} and {tuple(theirs.shape)}")
    difference = (ours.double() - theirs.double()).abs().max().item()
    if not math.isfinite(difference):
        return Check(False, None, f"{detail}: not finite")
    if by_size:
        tolerance *= max(1.0, ours.abs().max().item())
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
    rows, detail = subject.padded(), "rows filled up to the longest"
    outputs = subject.run(rows["input_ids"], segment_ids_BS=rows["attention_mask"] - 1)
    pairs = zip(outputs, subject.probe, strict=True)
    return worst([compare(row[: len(ids)], subject.run(ids[None])[0], detail) for row, ids in pairs])


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
        f"config.json says {key} = {shown(value)}, the tokenizer {ids.get(role)}"
        for key, role in _ROLES.items()
        if (value := subject.config.get(key)) is not None and value != ids.get(role)
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


_UNBOUNDED = 1 << 20  # tokens above which a longest input says that there is none
_SIDE_FILES = {  # and their key for how long an input may be
    "tokenizer_config.json": "model_max_length",
    "special_tokens_map.json": "model_max_length",
    MODULES: "",
    "sentence_bert_config.json": "max_seq_length",
}


def side_files_agree(subject: CheckedModel) -> Check | str:
    """The small files beside weights and tokenizer.json are readable, and agree with the rest."""
    folder, tokenizer, config = subject.folder, subject.tokenizer, subject.config
    names = {name: key for name, key in _SIDE_FILES.items() if (folder / name).is_file()}
    if not names:
        return "there are no files beside the weights, config.json and tokenizer.json"
    wrong, way_out = [], "write the model anew"
    for name, key in names.items():
        try:
            pooling, width_key = None, "vocab_size"
            if name == MODULES and (pooling := module_file(folder, "SpladePooling")) is None:
                read_pooling(folder)  # which raises where nothing can be made of the files
                pooling, width_key = module_file(folder, "Pooling"), "hidden_size"
            if pooling is not None:
                width = read_object(pooling, way_out).get("word_embedding_dimension")
                if width is not None and width != config.get(width_key):
                    place, hidden = pooling.relative_to(folder).as_posix(), shown(config.get(width_key))
                    text = f"{place} says word_embedding_dimension = {shown(width)}, config.json {width_key} = {hidden}"
                    wrong.append(text)
            content = {} if name == MODULES else read_object(folder / name, way_out)
        except UnmaskError as error:
            wrong.append(str(error))
            continue
        for role in SPELLINGS:
            token, ours = content.get(f"{role}_token"), tokenizer.special_names[role]
            token = token.get("content") if isinstance(token, dict) else token
            if token is not None and token != ours:
                wrong.append(f"{name} says {role}_token = {shown(token)}, tokenizer.json has {shown(ours)}")
        length, longest = content.get(key), config.get("max_position_embeddings")
        if length is None:
            continue
        if isinstance(length, bool) or not isinstance(length, int | float) or not length > 0:
            wrong.append(f"{name}: {key} = {shown(length)} is no number of tokens")
        # RoBERTa's kind has two positions more than it takes tokens, and released folders count either way.
        elif isinstance(longest, int) and longest < length < _UNBOUNDED:
            wrong.append(f"{name}: {key} = {length} is more than the model's {longest} positions")
    return none_wrong(wrong, ", ".join(names))


def tied_weights(subject: CheckedModel) -> Check | str:
    """A decoder that is stored beside the embedding (and a bias under two names) holds the same numbers."""
    if not subject.has_head:
        return "the folder holds no masked-language-model head"
    if subject.config.get("tie_word_embeddings", True) is not True:
        return Check(False, None, "config.json says tie_word_embeddings = false; these layouts tie them")
    names, raw = subject.layout, subject.raw_weights
    canonical, embedding = names.canonical(raw), names.theirs("encoder.tokens")[0]
    decoders = [name for name in names.known if name in canonical and name.endswith("decoder.weight")]
    pairs = [(name, embedding, canonical) for name in decoders]
    pairs += [(other, name, raw) for other, name in names.aliases.items() if other in raw and name in raw]
    checks = [compare(weights[a], weights[b], f"{a} and {b}", tolerance=0.0) for a, b, weights in pairs]
    return worst([Check(True, 0.0, "the decoder is the embedding, stored once"), *checks])


def probe_texts(tokenizer: Tokenizer) -> list[str]:
    """Texts of random tokens of the vocabulary, beginnings of words and other parts alike; the same ones every time."""
    ids = np.flatnonzero(tokenizer.ordinary)
    places = np.random.default_rng(0).integers(len(ids), size=(20, 16))  # texts, tokens of each
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
    for text in probe_texts(tokenizer):
        text_ids = tokenizer.encode_prompt(text)
        if unknown is not None and unknown in text_ids:
            continue
        count += 1
        written = tokenizer.decode(text_ids.tolist())
        ids = tokenizer.encode_prompt(written)
        texts = text if normalizer is None else normalizer.normalize_str(text), written
        # Some vocabularies have a sign for a space.
        before, after = ("".join(each.replace("▁", " ").split()) for each in texts)
        if before != after:
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
    theirs = load_network(subject)
    rows = subject.padded()
    real, segments = rows["attention_mask"].bool(), {"segment_ids_BS": rows["attention_mask"] - 1}
    if subject.network.config.num_types > 1:
        segments["token_type_ids_BS"] = rows["token_type_ids"]
    else:
        del rows["token_type_ids"]
    ours, alone = subject.run(rows["input_ids"], **segments), [ids[None] for ids in subject.probe]
    checks = [compare(subject.run(ids), theirs({"input_ids": ids}), "texts alone") for ids in alone]
    return worst([compare(ours[real], theirs(rows)[real], "padded texts"), *checks])


def sparse_vectors_equal_ours(subject: CheckedModel) -> Check:
    """Sparse vectors of texts padded in transformers, pooled as the folder says, and ours of packed texts."""
    check_splade(subject.folder)
    rows = {name: rows for name, rows in subject.padded().items() if name != "token_type_ids"}
    vectors = splade_of(load_network(subject)(rows), rows["attention_mask"])
    return compare(subject.sparse_vectors(), vectors, "padded texts")


def tokenizer_in_transformers(subject: CheckedModel) -> Check:
    """`AutoTokenizer` gives the same ids to the same texts, masks included, and knows the same special tokens.

    Pairs of texts have token types exactly where the model has several.
    """
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
            wrong.append(f"transformers takes {other} for the {role} token, not {id_}")
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
    """The same logits of a fine-tuned model's task, of texts that share rows here and are padded there.

    Not made where transformers has no such class, or where the model was fine-tuned elsewhere with a head that is not
    read here.
    """
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
    rows, auto = subject.padded(), f"AutoModelFor{head.architecture}"
    if subject.network.config.num_types == 1:
        del rows["token_type_ids"]
    theirs = load_network(subject, auto)(rows)
    checks = []
    for ours_NC, theirs_C in zip(ours, theirs, strict=True):
        theirs_NC = theirs_C[None] if head.pooling is not None else theirs_C[: len(ours_NC)]
        checks.append(compare(ours_NC, theirs_NC, f"logits of {auto}", by_size=True))
    return worst(checks)


def load_network(subject: CheckedModel, auto: str | None = None) -> Callable[[dict[str, Tensor]], Tensor]:
    """The outputs of transformers' model, in evaluation mode and float32, as a function of its inputs.

    It is loaded by the class `auto`, by default that of masked language models or, without a head, of bare encoders.

    Raises:
        ModelError: transformers cannot load it, or finds no value for a weight that the outputs need.
    """
    # No output of masked language models and bare encoders needs BERT's pooler, which may be missing.
    default = "AutoModelForMaskedLM" if subject.has_head else "AutoModel"
    model, report = _from_pretrained(subject.folder, auto or default, output_loading_info=True)
    missing = sorted(name for name in report["missing_keys"] if auto is not None or "pooler" not in name)
    if missing:
        raise ModelError(f"{subject.folder}: transformers finds no value for {', '.join(missing[:3])}")
    model.eval().float()

    @torch.no_grad()
    def outputs(inputs: dict[str, Tensor]) -> Tensor:
        output = model(**inputs)
        if "start_logits" in output:
            return torch.stack([output.start_logits, output.end_logits], -1)
        return output.logits if "logits" in output else output.last_hidden_state

    return outputs


def _from_pretrained(folder: Path, auto: str, **options: Any) -> Any:
    """What a class of transformers loads, without bars and remarks; whatever it raises is a ModelError."""
    import transformers
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        return getattr(transformers, auto).from_pretrained(folder, local_files_only=True, **options)
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
    outputs, by_size = compared_outputs(subject, file, kind), kind.short == "task"
    return worst([compare(ours, theirs, f"{file.name}, {what}", by_size=by_size) for what, ours, theirs in outputs])


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
    graph, texts, rows = Graph(subject, kind), subject.probe, subject.padded()
    run, compared = open_graph(file, graph), []
    # The same tensors in onnxruntime and here, all texts at once and each alone.
    alone = [{name: rows[name][n : n + 1, : len(ids)] for name in rows} for n, ids in enumerate(texts)]
    for batch in (rows, *alone):
        with torch.no_grad():
            ours = graph(**{name: batch[name].contiguous() for name in graph.inputs})
        real = batch["attention_mask"].bool()
        for (name, shape), a, b in zip(kind.outputs.items(), ours, run(batch), strict=True):
            by_token = shape.startswith("batch, length")
            what = f"padded texts and texts alone{', vectors' if name == VECTORS else ''}"
            same = by_token and b.shape[:2] == real.shape
            compared.append((what, a[real] if by_token else a, b[real] if same else b))
    # Vectors and a task's outputs, with what embedding, training and predicting make of packed texts.
    if VECTORS in kind.outputs:  # of one type, as texts are embedded
        vectors = run(rows | {"token_type_ids": torch.zeros_like(rows["token_type_ids"])})[1]
        if graph.settings is None:
            compared.append(("sparse vectors as in training", subject.sparse_vectors(), vectors))
        else:
            ids, owners = [each.numpy().astype(np.int32) for each in texts], np.arange(len(texts))
            ours_BD = pooled(subject.network, ids, owners, graph.settings, len(texts))
            what = "vectors as of embed (export anew if the pooling has changed)"
            compared.append((what, torch.from_numpy(ours_BD), vectors))
    elif graph.task_head is not None:
        outputs = run(rows)
        for row, ours_NC in enumerate(subject.task_outputs()):
            theirs = torch.stack([each[row] for each in outputs], -1) if len(outputs) > 1 else outputs[0][row]
            theirs_NC = theirs[None] if graph.task_head.pooling is not None else theirs[: len(ours_NC)]
            compared.append(("outputs as of predict", ours_NC, theirs_NC))
    return compared


def open_graph(file: Path, graph: Graph) -> Callable[[dict[str, Tensor]], list[Tensor]]:
    """The outputs of a file in onnxruntime, as a function of padded rows; `graph` is what was written to it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions share no base of their own
        line = str(error).partition("\n")[0]
        raise ModelError(f"{file}: onnxruntime cannot load it ({line}); export the model anew") from error
    for names, values in ((graph.inputs, session.get_inputs()), (tuple(graph.kind.outputs), session.get_outputs())):
        if (in_file := tuple(value.name for value in values)) != names:
            raise ModelError(f"{file}: has {', '.join(in_file)} in place of {', '.join(names)}; export the model anew")

    def run(rows: dict[str, Tensor]) -> list[Tensor]:
        feeds = {name: rows[name].contiguous().numpy() for name in graph.inputs}
        try:
            return [torch.from_numpy(array) for array in session.run(None, feeds)]
        except Exception as error:
            line = str(error).partition("\n")[0]
            raise ModelError(f"{file}: onnxruntime cannot run it ({line}); export the model anew") from error

    return run
