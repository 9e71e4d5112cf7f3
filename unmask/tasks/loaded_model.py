"""A loaded model, which fills masks, embeds, scores and predicts; and loading one."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.core.compiled import keep_to_quota
from unmask.core.errors import ModelError, RunError, SettingsError
from unmask.core.files import read_object
from unmask.core.hub import LIMITS, HubName, fetch_sentence_files, hub_name
from unmask.core.public import public
from unmask.core.results import Finished, Notify, Readable, Shown, ignore
from unmask.data.reading import check_characters
from unmask.model.config import EncoderConfig
from unmask.model.encoder import MaskedLM
from unmask.model.folder import (
    KEY,
    architecture_of,
    check_vocabulary,
    files_checked,
    find_model,
    has_prediction_head,
    load_model,
    load_task_model,
    read_content,
)
from unmask.model.pooling import check_splade, module_file, read_pooling, read_side_file
from unmask.model.transformers import (
    TaskNetwork,
    TransformersNetwork,
    check_transformers,
    load_transformers_model,
    load_transformers_task,
    why_in_transformers,
)
from unmask.tasks.embed import EmbedSettings, LongTexts, embed_texts, is_table, notes_on, texts_in_memory
from unmask.tasks.files import Record
from unmask.tasks.fill import Filled, fill_texts
from unmask.tasks.inputs import EncodedInput, InputEncoder
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.hardware import choose_device, choose_dtype

if TYPE_CHECKING:  # imported only for models with a task
    from unmask.tasks.task import Task

log = logging.getLogger("unmask")


def does_task(content: Mapping[str, Any]) -> bool:
    architecture = architecture_of(content)
    if "For" not in architecture or architecture.endswith("ForMaskedLM"):
        return False
    from unmask.tasks.kinds import TASKS, tasks_of  # slow to import

    own = content.get(KEY)
    is_unknown = isinstance(own, dict) and str(own.get("kind")) not in TASKS  # of a plug-in; `task_of` says so
    return is_unknown or bool(tasks_of(content))


Precision = Literal["float32", "bf16", "auto"]
Backend = Literal["torch", "onnx", "onnx-int8"]


class Model(Readable):
    """An encoder with its tokenizer and, if fine-tuned, the head of its task; all in evaluation mode.

    Args:
        network: Our network, or one of transformers that predicts tokens; None if it is of transformers and cannot.
        embedder: The encoder of a model that transformers runs; our network is its own encoder.
        fine_tuned: The network with the head of a task, and the task; or the reason why the head cannot be used, if the
            encoder can.
        has_head: Whether the folder holds a head for masked tokens. Our network always has one, which is untrained in a
            bare encoder.
        hub: The model's name on the hub; None for a folder.
    """

    def __init__(
        self,
        folder: Path,
        network: MaskedLM | TransformersNetwork | None,
        tokenizer: Tokenizer,
        fine_tuned: tuple[TaskNetwork, Task] | ModelError | None = None,
        *,
        embedder: TransformersNetwork | None = None,
        has_head: bool = True,
        precision: Precision = "float32",
        hub: HubName | None = None,
    ) -> None:
        self.folder = folder
        self.backend: Backend = "torch"  # `load` sets another for a graph
        self._predictor = network
        self._embedder = network if isinstance(network, MaskedLM) else embedder
        self._fine_tuned = fine_tuned
        self.task = fine_tuned[1] if isinstance(fine_tuned, tuple) else None
        networks = (network, self._embedder, fine_tuned[0] if isinstance(fine_tuned, tuple) else None)
        self._networks = list({id(each): each.eval() for each in networks if each is not None}.values())
        self.tokenizer = tokenizer
        self.has_head = has_head
        self.precision: Precision = precision
        self.hub = hub

    def to_dict(self) -> dict[str, Any]:
        """The model's sizes; `runs` is the layout of our encoder, or the class in transformers."""
        network = self._networks[0]
        config = network.config
        return {
            "folder": str(self.folder),
            "runs": config.layout if isinstance(config, EncoderConfig) else type(network.encoder.model).__name__,
            "hidden_size": config.hidden_size,
            "vocab_size": config.vocab_size,
            "max_position_embeddings": config.max_position_embeddings,
            "num_parameters": sum(parameter.numel() for parameter in network.parameters()) or None,  # None for a graph
            "task": None if self.task is None else self.task.kind,
            "has_head": self.has_head,
        }

    def shown(self) -> Iterator[Shown]:
        facts = self.to_dict()
        size = f"{facts['num_parameters']:,} parameters, " if facts["num_parameters"] else ""
        yield (
            f"{facts['runs']} of width {facts['hidden_size']}, {size}"
            f"{facts['vocab_size']:,} entries, {facts['max_position_embeddings']:,} positions; {self.folder}"
        )
        if self.task is not None:
            names = self.task.names
            labels = f" ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})" if names else ""
            yield f"fine-tuned: {self.task.kind}{labels}, for {self.task.takes}"
        elif not self.has_head:
            yield "a bare encoder: it can embed texts, but not fill masks"

    @property
    def network(self) -> MaskedLM:
        """Our encoder with its head; a ModelError if transformers runs the model."""
        if self.backend != "torch":
            raise ModelError(f"{self.folder}: this is an exported graph; load the model that it was made from")
        if not isinstance(self._embedder, MaskedLM):
            what = f"transformers runs this model, not our encoder: {why_in_transformers(self.folder)}"
            raise ModelError(f"{self.folder}: {what}; it cannot be exported or pretrained further")
        return self._embedder

    @property
    def predictor(self) -> MaskedLM | TransformersNetwork:
        """The network that predicts tokens. Raises the errors of `check_head`."""
        self.check_head()
        assert self._predictor is not None, "the head was checked"
        return self._predictor

    @property
    def embedder(self) -> MaskedLM | TransformersNetwork:
        """The network that gives hidden states; a ModelError for an encoder-decoder."""
        if self._embedder is None and self.backend != "torch":
            raise ModelError(f"{self.folder}: this graph has no hidden states; load the one in feature-extraction")
        if self._embedder is None:
            what = "has a decoder, or a head that transformers does not separate, so it gives no hidden states"
            raise ModelError(f"{self.folder}: {what}; give an encoder")
        return self._embedder

    @property
    def fine_tuned(self) -> tuple[TaskNetwork, Task]:
        """The network with the head of the task, and the task; a ModelError if there is no usable one."""
        if isinstance(self._fine_tuned, tuple):
            return self._fine_tuned
        what = "this model is not fine-tuned for a task; fine-tune it with unmask finetune first"
        raise self._fine_tuned or ModelError(f"{self.folder}: {what}")

    def to(self, device: torch.device | None = None) -> None:
        """Moves the networks, and sets the dtype of their activations, which depends on the device if it is `auto`."""
        for network in self._networks:
            if device is not None:
                network.to(device)
            network.encoder.compute_dtype = choose_dtype(self.precision, network.encoder.device)

    @overload
    def fill(self, text: str, *, top_k: int = 5, candidates: Sequence[str] | None = None) -> Filled: ...

    @overload
    def fill(
        self,
        text: list[str] | tuple[str, ...] | Iterator[str],
        *,
        top_k: int = 5,
        candidates: Sequence[str] | None = None,
    ) -> list[Filled]: ...

    @public
    def fill(
        self, text: str | Iterable[str], *, top_k: int = 5, candidates: Sequence[str] | None = None
    ) -> Filled | list[Filled]:
        """Predicts the token at every `[MASK]` of a text. Several texts at once are much faster than one by one.

        Args:
            text: A text of any length with one or more masks, in the tokenizer's spelling; or several.
            top_k: Number of candidates per mask, and of joint fillings of all masks.
            candidates: Words to choose from, each a single token; None: any token.

        Raises:
            ModelError: The model has no head for masked tokens.
            SettingsError: A text has no mask, or a candidate is not one token.
        """
        texts = [text] if isinstance(text, str) else list(text)
        filled = fill_texts(self.predictor, self.tokenizer, texts, top_k=top_k, candidates=candidates)
        return filled[0] if isinstance(text, str) else filled

    @public
    def embed(
        self,
        texts: Iterable[str] | Any,
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        long_texts: LongTexts = "split",
    ) -> NDArray[np.float32]:
        """Embeddings [texts, hidden_size], by default equal to those of sentence-transformers from the same folder.

        Texts are a list, a column of pandas or `datasets`, a whole table or dataset, whose text column is detected, or
        a `Path`. None, NaN and empty lines are empty texts; the log reports how many. Texts longer than the model are
        embedded in parts, which the log reports, too; `long_texts="truncate"` cuts them, as sentence-transformers does.

        Its limits and prompts are ignored: `max_seq_length` is often below the model's limit, and a default prompt
        would be put before every text. Arguments and errors as for `embed_settings` and `embed_texts`.
        """
        settings = self.embed_settings(pooling=pooling, normalize=normalize, long_texts=long_texts)
        listed = texts_in_memory(texts)
        embedded = embed_texts(self.embedder, self.tokenizer, listed, settings)
        num_blank, longest = sum(not text.strip() for text in listed), self.embedder.config.max_position_embeddings
        for line in notes_on(len(listed), num_blank, embedded.num_long, longest, settings.long_texts):
            log.warning("%s", line)
        return embedded.vectors

    def embed_settings(
        self, *, pooling: str | None = None, normalize: bool | None = None, long_texts: LongTexts = "split"
    ) -> EmbedSettings:
        """How texts are embedded: by the arguments, else by the folder's files for sentence-transformers, else by the
        mean, not normalized. For a model of the hub whose copy lacks these files, the hub is queried once.

        Raises:
            ModelError: The folder names an unsupported pooling or lower-cases texts that its tokenizer does not, and no
                pooling is given; or a file is damaged.
            SettingsError: There is no such pooling.
        """
        if self.hub is not None and (pooling is None or normalize is None):
            fetch_sentence_files(self.hub, self.folder)
        if pooling is None:
            self._check_case()
        return EmbedSettings(
            read_pooling(self.folder) if pooling is None else pooling,
            module_file(self.folder, "Normalize") is not None if normalize is None else normalize,
            long_texts,
        )

    @property
    def makes_sparse(self) -> bool:
        """Whether the folder's files name sparse vectors (SPLADE); a ModelError if they cannot be used."""
        if self.hub is not None:
            fetch_sentence_files(self.hub, self.folder)
        if module_file(self.folder, "SpladePooling") is None:
            return False
        check_splade(self.folder)
        self._check_case()
        return True

    def _check_case(self) -> None:
        """Raises a ModelError if sentence-transformers would lower-case texts for a tokenizer that does not."""
        normalizer, limits = self.tokenizer.backend.normalizer, self.folder / LIMITS
        keeps_case = normalizer is None or "A" in normalizer.normalize_str("A")
        if keeps_case and read_side_file(limits, optional=True).get("do_lower_case"):
            what = "do_lower_case = true is not supported, since the tokenizer itself does not lower-case"
            way_out = "save the folder with sentence-transformers 6, or, for lower-case texts, remove it"
            raise ModelError(f"{limits}: {what}; {way_out}")

    def check_head(self) -> None:
        """Raises a ModelError if the model has no head for masked tokens."""
        if self.task is not None:
            what = f"fine-tuned ({self.task.kind}), so it no longer predicts tokens"
            raise ModelError(f"{self.folder}: {what}; give the model that it was made from")
        if not self.has_head and self.backend != "torch":
            raise ModelError(f"{self.folder}: this graph predicts no tokens; load the one in fill-mask")
        if not self.has_head:
            what = "a discriminator or bare encoder, which cannot predict tokens"
            raise ModelError(f"{self.folder}: {what}; pretrain it first (--from), or give another model")

    @public
    def score(self, sentences: Sequence[str], *, form: str = "plain") -> NDArray[np.float64]:
        """Pseudo-log-likelihoods of sentences [num_sentences], in nats; see `unmask.measure.questions`.

        Raises:
            ModelError: The model has no head for masked tokens, or a loss is not finite.
            SettingsError: A sentence is empty, not Unicode or longer than the model; or there is no such form.
        """
        from unmask.measure.questions import checked_form, pseudo_log_likelihoods

        return pseudo_log_likelihoods(self.predictor, self.tokenizer, sentences, form=checked_form(form))

    @public
    def predict(self, inputs: Sequence[Any]) -> list[Any]:
        """A prediction for each input, a frozen dataclass of the model's task. (`unmask.predict` returns rows, and also
        takes tables and files.) Texts longer than the model are cut, with a warning.

        Args:
            inputs: Texts; for a model of pairs (text, text); for tags sentences, as texts or lists of words; for
                answers (question, text) pairs.

        Raises:
            ModelError: The model is not fine-tuned.
            SettingsError: An input does not fit the task, or is not Unicode.
        """
        predictions, encoded = self.predict_records(self.records_of(inputs))
        if encoded.truncated:
            longest = self._input_encoder.max_length
            log.warning("texts longer than the model's %d tokens: %d; their ends are cut", longest, encoded.truncated)
        return list(predictions)

    def records_of(self, inputs: Iterable[Any]) -> list[Record]:
        task, records = self.fine_tuned[1], list[Any]()
        if isinstance(inputs, str | os.PathLike) or is_table(inputs):
            what = "predict takes a list of inputs; put brackets around a single one"
            raise SettingsError(f"{what} (for tables and files use unmask.predict)")
        for number, value in enumerate(inputs, 1):
            if (record := task.of_input(number, value)) is None:
                raise SettingsError(f"input {number} is {type(value).__name__}, but this model takes {task.takes}")
            for text in record.texts:
                check_characters(text, f"input {number}")
            records.append(record)
        return records

    @public
    def predict_records(
        self, records: Sequence[Record], *, notify: Notify = ignore
    ) -> tuple[Sequence[Any], EncodedInput]:
        """A prediction for each record of a file, and the inputs made from the records. An output that is not finite is
        a ModelError: it would look like a prediction of the first class."""
        from unmask.tasks.task import outputs_of

        network, task = self.fine_tuned
        records = [task.ready(record) for record in records]
        encoded = task.encode(records, self._input_encoder, with_targets=False)
        self.tokenizer.watch(encoded.unknown_in(records, self.tokenizer))
        outputs = outputs_of(network, task, encoded.examples, notify=notify)
        for example, output in zip(encoded.examples, outputs, strict=True):
            if not np.isfinite(output).all():
                what = f"the output for row {records[example.record].row} is not finite"
                raise ModelError(f"{self.folder}: {what}; the model is damaged or diverged")
        return task.decode(records, encoded.examples, outputs), encoded

    @cached_property
    def _input_encoder(self) -> InputEncoder:
        network, task = self.fine_tuned
        return InputEncoder(self.tokenizer, network.config, max_length=task.max_length)


@public
def fill(
    model: str | Path | Model,
    text: str,
    *,
    top_k: int = 5,
    candidates: Sequence[str] | None = None,
    strict: bool = False,
) -> Filled:
    """Predicts the token at every `[MASK]` of a text.

    Args:
        model: Folder of a model, such as RUN/model, or its name on the hub.
        text: A text with one or several [MASK] (<mask> for models of RoBERTa's kind); - reads standard input.
        top_k: Candidates for each mask.
        candidates: Words to choose from, each a single token. By default any token.
        strict: Refuse a model whose files differ from its checksums.json.

    Raises:
        UnmaskError: As `load` and `Model.fill`.
    """
    loaded = model if isinstance(model, Model) else load(model, strict=strict)
    return loaded.fill(text, top_k=top_k, candidates=candidates)


@public
def load(
    folder: str | Path, *, precision: Precision = "float32", strict: bool = False, backend: Backend = "torch"
) -> Model:
    """Loads a model written by unmask or transformers. A bare encoder can embed texts but not predict tokens.

    Our layouts run in our encoder. Others (DistilBERT, ELECTRA, DeBERTa, MPNet, ALBERT, ESM, ...) run in transformers,
    as do models of our layouts with parts that our encoder lacks, and weights outside of safetensors.

    Args:
        folder: Folder with config.json, model.safetensors and tokenizer.json, such as `RUN/model`; or a run's folder;
            or as a string a name on the hub (`owner/name`, `owner/name@revision`; see `unmask.core.hub`).
        precision: Type of the activations: `float32` equals transformers; `bf16` is several times faster on hardware
            that supports it, and accurate to two or three digits; `auto` is bf16 there and float32 elsewhere.
        strict: A file that differs from the folder's checksums is an error, not a warning.
        backend: `onnx` runs the graph of a folder that `unmask export` wrote (`fill-mask`, `feature-extraction`, a
            task) in onnxruntime; `onnx-int8` the one with 8-bit weights.

    Raises:
        ModelError: The folder is missing, lacks a file, holds a damaged one, or has a model type for which neither
            unmask nor transformers has a masked language model; or it needs transformers, which is not installed.
        SettingsError: The precision or the backend is unknown.
        TokenizerError: The tokenizer cannot be used.
    """
    for name, value, kinds in (("precision", precision, Precision), ("backend", backend, Backend)):
        if value not in get_args(kinds):
            raise SettingsError(f"{name} is {' or '.join(map(repr, get_args(kinds)))}, not {value!r}")
    if backend != "torch":
        if precision != "float32":
            raise SettingsError(f"precision {precision!r}: a graph has the precision of its export; leave this out")
        path = find_model(folder)
        with files_checked(path, strict=strict):
            return _load_graph(path, backend)
    keep_to_quota()
    model = _load_weights(folder, precision, strict=strict)
    model.to()
    return model


def _load_weights(folder: str | Path, precision: Precision, *, strict: bool) -> Model:
    path = find_model(folder)
    with files_checked(path, strict=strict):
        in_transformers = why_in_transformers(path) is not None
        content = read_content(path)
        is_fine_tuned = does_task(content)
        if in_transformers and not is_fine_tuned:
            check_transformers(path)
        tokenizer = load_tokenizer(path)
        special, vocab_size = tokenizer.special, tokenizer.vocab_size
        fine_tuned: tuple[TaskNetwork, Task] | ModelError | None = None
        network: MaskedLM | TransformersNetwork | None = None  # first for the task, then for masked tokens
        if is_fine_tuned:
            try:
                from unmask.tasks.kinds import task_of

                task = task_of(content, path, pools_itself=in_transformers)
                if in_transformers:
                    network = load_transformers_task(
                        path, task.task_head, vocab_size=vocab_size, pad_id=special.pad, max_length=task.max_length
                    )
                else:
                    network = load_task_model(path, task.task_head, mask_id=special.mask)
                fine_tuned = network, task
            except ModelError as error:
                if in_transformers:
                    raise
                log.warning("ignoring the head of the task: %s", error)  # the encoder can still embed, and be trained
                fine_tuned = error
        bare: TransformersNetwork | None = None
        if isinstance(network, TransformersNetwork):
            bare, network, has_head = network.bare(), None, False
        elif in_transformers:
            network, bare = load_transformers_model(path, vocab_size=vocab_size, pad_id=special.pad)
            has_head = network is not None
        else:
            network = network or load_model(path, mask_id=special.mask)
            assert isinstance(network, MaskedLM)
            check_vocabulary(path, vocab_size, network.config.vocab_size)
            has_head = has_prediction_head(path, network.config.layout)
    return Model(
        path, network, tokenizer, fine_tuned, embedder=bare, has_head=has_head, precision=precision,
        hub=hub_name(folder),
    )  # fmt: skip


def _load_graph(path: Path, backend: Backend) -> Model:
    from unmask.model.onnx import find_graph, load_onnx

    file = find_graph(path, backend)
    tokenizer = load_tokenizer(path)
    network, output = load_onnx(file, mask_id=tokenizer.special.mask, pad_id=tokenizer.special.pad)
    if does_task(content := read_content(path)):
        from unmask.tasks.kinds import task_of

        fine_tuned = network, task_of(content, path, pools_itself=True)
        model = Model(path, None, tokenizer, fine_tuned, has_head=False)
    elif output == "logits":
        model = Model(path, network, tokenizer)
    else:
        model = Model(path, None, tokenizer, embedder=network, has_head=False)
    model.backend = backend
    return model


class FinishedModel(Finished):
    @cached_property
    def model(self) -> Model:
        """The model of these figures. Raises a RunError if the folder now holds another result."""
        way_out = "it was moved, or holds another result by now, whose model does not belong to these figures"
        present = read_object(self.folder / "summary.json", way_out)
        here = {"model": ""}  # not compared, since the folder may have been moved
        if json.dumps(present | here) != json.dumps(self.summary | here):
            raise RunError(f"{self.folder}: {way_out}")
        return load(self.folder / "model")


def as_model(model: Model | str | Path, *, precision: Precision = "float32", strict: bool = False) -> Model:
    """A loaded model as it is; if only its name or folder is given, it is loaded onto the fastest device."""
    if isinstance(model, Model):
        return model
    loaded = load(model, precision=precision, strict=strict)
    loaded.to(choose_device())
    return loaded


def as_predictor(model: Model | str | Path, *, strict: bool = False) -> Model:
    loaded = as_model(model, strict=strict)
    loaded.check_head()
    return loaded
