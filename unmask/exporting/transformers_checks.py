"""The folder as transformers loads it: its network, tokenizer and task head, against ours.

The tokenizer is checked by itself, too: what it writes it reads again.

Shape suffixes: B = texts, S = positions, N = places of a text, C = outputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.errors import ModelError
from unmask.exporting.checked_model import CheckedModel, Probe, make_probe
from unmask.exporting.checks import TOLERANCE, Check, compare, count, worst
from unmask.exporting.onnx_graphs import splade_of
from unmask.folders.bounded_models import check_counts, check_size
from unmask.folders.model_folder import read_content
from unmask.folders.sentence_files import check_splade
from unmask.folders.task_folder import KEY, TaskHead
from unmask.network.encoder import MaskedLM
from unmask.tasks.examples import Example
from unmask.tasks.known import task_of
from unmask.tasks.task_model import outputs_of
from unmask.tokenizer.tokenizer import Tokenizer


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
