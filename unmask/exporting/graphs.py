"""What is exported, as modules over plain tensors, and the ONNX files that are written of it.

Exported are the functions that users want of a model: logits at masks, vectors, what a task's head says. They run the
encoder's tensor operations, not its compiled loops (`compiled.serves` says no while exporting), and attention is
written out, so that every engine finds operations that it knows. Files are in float32, or with 8-bit weights.

Shape suffixes: B = texts, S = positions, D = hidden size, V = vocabulary, C = outputs of a task.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from unmask.core.errors import ModelError, shown
from unmask.core.hub import HubName, hub_name
from unmask.model.config import EncoderConfig
from unmask.model.encoder import MaskedLM
from unmask.model.folder import CONFIG, LAYOUTS, TaskHead, find_weights, read_content
from unmask.model.layout_names import FolderLayout
from unmask.model.pooling import POOLINGS
from unmask.model.sentence_files import check_splade, sparse_file
from unmask.model.stored_weights import read_weights
from unmask.tasks.embed import EmbedSettings
from unmask.tasks.loaded_model import Model, load
from unmask.tasks.predict import TaskModel, does_task, open_fine_tuned
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.contrast import TextTargets, splade_vectors

# ----------------------------------------
# The model that is checked or exported, and the inputs on which its forms are compared.
#
# The inputs are of the model's own vocabulary, and the same ones every time.
#
# Shape suffixes: B = texts, S = positions, D = hidden size.

LONGEST = 192  # positions: more than the usual local window of 128 reaches
MASK_EVERY = 6  # positions: a sixth is hidden, as in training


@dataclass(frozen=True)
class Probe:
    """Three texts of different lengths, one behind another and each alone.

    Attributes:
        texts: Ids of each text, int64 [S].
    """

    texts: tuple[Tensor, ...]

    @property
    def packed(self) -> dict[str, Tensor]:
        """All texts in one row, as the encoder's arguments."""
        numbers = [torch.full_like(ids, number) for number, ids in enumerate(self.texts)]
        places = [torch.arange(len(ids)) for ids in self.texts]
        return {
            "input_ids_BS": torch.cat(self.texts)[None],
            "segment_ids_BS": torch.cat(numbers)[None],
            "position_ids_BS": torch.cat(places)[None],
        }

    def padded(self, pad_id: int) -> dict[str, Tensor]:
        """A row for each text, filled up to the longest: `input_ids`, `attention_mask`, `token_type_ids`.

        The types alternate in the second half of each text, so that a model which has types is seen to use them.
        """
        length = max(len(ids) for ids in self.texts)
        rows = {name: torch.zeros(len(self.texts), length, dtype=torch.int64) for name in _INPUTS}
        rows["input_ids"] += pad_id
        for row, ids in enumerate(self.texts):
            rows["input_ids"][row, : len(ids)] = ids
            rows["attention_mask"][row, : len(ids)] = 1
            rows["token_type_ids"][row, len(ids) // 2 : len(ids)] = 1
        return rows


_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def make_probe(config: EncoderConfig, tokenizer: Tokenizer) -> Probe:
    """Texts of random tokens, of 1/2, 1/3 and the rest of the longest row that is looked at; a sixth of them is masked.

    The masks matter. Without them a trained model stands outside of what it knows, and its attention may be so sharp
    that rounding in float32 alone changes logits by hundredths (measured on a model of ten minutes' training: 0.05
    between transformers and us without masks, 0.00005 with them). A difference would then say nothing.

    Args:
        config: Says how long inputs may be, and which ids there are.
        tokenizer: Says which ids text consists of.
    """
    length = min(config.max_position_embeddings, LONGEST)
    lengths = (length // 2, length // 3, length - length // 2 - length // 3)
    ids = np.flatnonzero(tokenizer.ordinary)
    ids = ids[ids < config.vocab_size]
    drawn = torch.randint(len(ids), (length,), generator=torch.Generator().manual_seed(0))
    tokens = torch.from_numpy(ids)[drawn]
    tokens[MASK_EVERY // 2 :: MASK_EVERY] = tokenizer.special.mask
    return Probe(tokens.split(lengths))


@dataclass(frozen=True)
class CheckedModel:
    """A model folder; its parts are read when they are first asked for, so that one broken part hides no other.

    Attributes:
        folder: With config.json, weights and tokenizer.
        hub: The name by which the hub has it; None for a folder that was given as such.
    """

    folder: Path
    hub: HubName | None = None

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        return read_content(self.folder)

    @cached_property
    def layout(self) -> FolderLayout:
        """The model's layout."""
        kind = self.config.get("model_type")
        if not isinstance(kind, str) or kind not in LAYOUTS:
            raise ModelError(f"{self.folder / CONFIG}: model_type {shown(kind)} is not supported")
        return LAYOUTS[kind]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return load_tokenizer(self.folder)

    @cached_property
    def model(self) -> Model:
        """The loaded model, on the CPU, in float32."""
        model = load(self.folder)
        model.hub = self.hub
        model.network.to("cpu", torch.float32).encoder.compute_dtype = torch.float32
        return model

    @cached_property
    def fine_tuned(self) -> TaskModel:
        """The model with the head of its task, in float32."""
        return open_fine_tuned(self.folder, self.tokenizer)

    @cached_property
    def raw_weights(self) -> dict[str, Tensor]:
        """The stored weights, under the names that they have in the file."""
        return read_weights(self.folder)

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """The stored weights under canonical names."""
        return self.layout.names.canonical(self.raw_weights)

    @cached_property
    def has_head(self) -> bool:
        """Whether the folder holds a masked-language-model head; folders of bare encoders do not."""
        return self.layout.names.theirs("head.bias")[0] in self.weights

    @property
    def does_task(self) -> bool:
        """Whether the model is fine-tuned for a task; of a config.json that cannot be read other checks tell."""
        try:
            return does_task(self.config)
        except ModelError:
            return False

    @property
    def is_sparse(self) -> bool:
        """Whether the folder makes sparse vectors; of a modules.json that cannot be read other checks tell."""
        try:
            return sparse_file(self.folder) is not None
        except ModelError:
            return False

    @cached_property
    def probe(self) -> Probe:
        """What it is compared on."""
        return make_probe(self.model.network.config, self.model.tokenizer)

    @torch.no_grad()
    def run(self, input_ids_BS: Tensor, **rows: Tensor) -> Tensor:
        """What our network says [B, S, vocabulary], or the hidden states where the folder holds no head."""
        network = self.model.network
        hidden_BSD = network.encoder(input_ids_BS, **rows)
        return network.head(hidden_BSD, network.encoder.tokens) if self.has_head else hidden_BSD

    @torch.no_grad()
    def sparse_vectors(self) -> Tensor:
        """Sparse vectors of the probe's texts, packed, as the training of them makes them: [B, vocabulary]."""
        network, lengths = self.model.network, tuple(map(len, self.probe.texts))
        hidden_TD = network.encoder(**self.probe.packed)[0]
        places_T, none = torch.arange(len(hidden_TD)), torch.zeros(0, dtype=torch.int64)
        texts = TextTargets(places_T, none, none, none, none, none, num_pairs=0, lengths=lengths)
        return splade_vectors(network, hidden_TD, texts)

    @property
    def tells_types(self) -> bool:
        """Whether config.json says that the model tells token types apart; BERT's do where it says nothing."""
        said = self.config.get("type_vocab_size") or (2 if self.config.get("model_type") == "bert" else 1)
        return isinstance(said, int) and said > 1

    @property
    def num_types(self) -> int:
        """Token types that the layout tells apart."""
        return self.model.network.config.num_types


def open_checked_model(folder: str | Path) -> CheckedModel:
    """Finds the model.

    Args:
        folder: Of the model, or of a run; or the name of a model on the hub.

    Raises:
        ModelError: There is none, or it is neither of one of our layouts nor fine-tuned.
    """
    subject = CheckedModel(find_weights(folder), hub_name(folder))
    try:
        kind = subject.config.get("model_type")
    except ModelError:  # of what cannot be read checks tell
        return subject
    if isinstance(kind, str) and kind not in LAYOUTS and not subject.does_task:
        raise ModelError(
            f"{subject.folder}: the layout {shown(kind)} is none of ours ({', '.join(LAYOUTS)}), so there is no "
            "network to compare it with, nor to export; transformers runs it here (fill, embed, evaluate, score, "
            "finetune), and optimum exports it"
        )
    return subject


FILE = "model.onnx"  # the only name that optimum, sentence-transformers and transformers.js look for
VECTORS = "sentence_embedding"  # the output that has a vector of each text, where there is one


class Graph(nn.Module):
    """A function of `input_ids` and `attention_mask`, and `token_type_ids` where the layout tells two types apart.

    Attributes:
        task: What it does, in the hub's words; its folder is called so where there are several.
        short: What it is called in tables.
        outputs: Names of what `forward` returns.
        by_token: For each output, whether it has a value for each position.
    """

    task: str
    short: str
    outputs: tuple[str, ...]
    by_token: tuple[bool, ...]

    def __init__(self, model: MaskedLM) -> None:
        super().__init__()
        self.model = model
        self.eval()

    @classmethod
    def of(cls, subject: CheckedModel) -> Self:
        """The graph of a model."""
        return cls(subject.model.network)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, each int64 [B, S]."""
        types = ("token_type_ids",) if self.model.config.num_types > 1 else ()
        return ("input_ids", "attention_mask", *types)

    def encode(self, input_ids_BS: Tensor, attention_mask_BS: Tensor, token_type_ids_BS: Tensor | None) -> Tensor:
        """Hidden states [B, S, D]. Padding (0 in the mask) stands behind each text and gets the segment -1."""
        return self.model.encoder(
            input_ids_BS, segment_ids_BS=attention_mask_BS - 1, token_type_ids_BS=token_type_ids_BS
        )


class FillGraph(Graph):
    """Logits [B, S, V] at every position."""

    task = "fill-mask"
    short = "fill"
    outputs = ("logits",)
    by_token = (True,)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Logits; at padding they mean nothing."""
        return self.model.head(self.encode(input_ids, attention_mask, token_type_ids), self.model.encoder.tokens)


class SpladeGraph(Graph):
    """Logits [B, S, V], of which sentence-transformers makes sparse vectors, and these vectors [B, V] themselves.

    Source: Formal et al. 2021 (SPLADE v2), section 3.1, with the maximum.
    """

    task = "fill-mask"
    short = "splade"
    outputs = ("logits", VECTORS)
    by_token = (True, False)

    @classmethod
    def of(cls, subject: CheckedModel) -> Self:
        """The graph of a model whose folder makes sparse vectors.

        Raises:
            ModelError: It makes them in another way, or of no head.
        """
        check_splade(subject.folder)
        if not subject.has_head:
            raise ModelError(f"{subject.folder}: holds no masked-language-model head to make sparse vectors of")
        return cls(subject.model.network)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits, which mean nothing at padding, and vectors, in which it does not count."""
        hidden_BSD = self.encode(input_ids, attention_mask, token_type_ids)
        logits_BSV = self.model.head(hidden_BSD, self.model.encoder.tokens)
        return logits_BSV, splade_of(logits_BSV, attention_mask)


def splade_of(logits_BSV: Tensor, attention_mask_BS: Tensor) -> Tensor:
    """log(1 + relu(the largest logit over a text's positions)), where padding counts as 0: [B, V]."""
    return (logits_BSV * attention_mask_BS[..., None].to(logits_BSV.dtype)).amax(1).relu().log1p()


class EmbedGraph(Graph):
    """Hidden states [B, S, D], and a vector of each text [B, D], made of them as `Model.embed` does.

    Args:
        model: The network.
        settings: The pooling, and whether vectors are divided by their length; long texts are not split here.
    """

    task = "feature-extraction"
    short = "embed"
    outputs = ("last_hidden_state", VECTORS)
    by_token = (True, False)

    def __init__(self, model: MaskedLM, settings: EmbedSettings) -> None:
        super().__init__(model)
        self.settings = settings

    @classmethod
    def of(cls, subject: CheckedModel) -> Self:
        """The graph of a model, which pools as its folder says.

        Raises:
            ModelError: The folder asks for a pooling that is not offered; or a file is damaged.
        """
        return cls(subject.model.network, subject.model.embed_settings())

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Hidden states, which mean nothing at padding, and vectors, in which it does not count."""
        hidden_BSD = self.encode(input_ids, attention_mask, token_type_ids)
        vectors_BD = POOLINGS[self.settings.pooling].vectors(hidden_BSD, attention_mask)
        if self.settings.normalize:
            vectors_BD = vectors_BD / (vectors_BD * vectors_BD).sum(1, keepdim=True).sqrt().clamp(min=1e-12)
        return hidden_BSD, vectors_BD


class TaskGraph(Graph):
    """What a fine-tuned model says: the outputs of its head, named as transformers' class for the task has them.

    Args:
        model: The network.
        head: Of the task.
    """

    short = "task"

    def __init__(self, model: MaskedLM, head: TaskHead) -> None:
        super().__init__(model)
        self.task_head = head

    @classmethod
    def of(cls, subject: CheckedModel) -> Self:
        """The graph of a fine-tuned model.

        Raises:
            ModelError: Transformers runs it here too; its head cannot be read.
        """
        network = subject.fine_tuned.network
        if not isinstance(network, MaskedLM):
            raise ModelError(
                f"{subject.folder}: transformers runs this model, so there is no graph of ours; write one with "
                "optimum-cli export onnx"
            )
        return cls(network, subject.fine_tuned.task.task_head)


class TextGraph(TaskGraph):
    """Logits [B, C] of whole texts."""

    task = "text-classification"
    outputs = ("logits",)
    by_token = (False,)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Logits, or the number of a regression."""
        hidden_BSD = self.encode(input_ids, attention_mask, token_type_ids)
        x_BD = POOLINGS[self.task_head.pooling or "first"].vectors(hidden_BSD, attention_mask)
        return self.model.outputs(self.task_head.head, x_BD)


class TagGraph(TaskGraph):
    """Logits [B, S, C] of the tags of tokens."""

    task = "token-classification"
    outputs = ("logits",)
    by_token = (True,)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Logits; at padding they mean nothing."""
        return self.model.outputs(self.task_head.head, self.encode(input_ids, attention_mask, token_type_ids))


class AnswerGraph(TaskGraph):
    """Logits [B, S] that an answer begins at a token, and that it ends there."""

    task = "question-answering"
    outputs = ("start_logits", "end_logits")
    by_token = (True, True)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits; at padding they mean nothing."""
        hidden_BSD = self.encode(input_ids, attention_mask, token_type_ids)
        start_BS, end_BS = self.model.outputs(self.task_head.head, hidden_BSD).unbind(-1)
        return start_BS, end_BS


GRAPHS: tuple[type[Graph], ...] = (EmbedGraph, FillGraph, SpladeGraph, TextGraph, TagGraph, AnswerGraph)
_OF_ARCHITECTURES: dict[str, type[TaskGraph]] = {
    "SequenceClassification": TextGraph,
    "TokenClassification": TagGraph,
    "QuestionAnswering": AnswerGraph,
}


def graphs_of(subject: CheckedModel) -> tuple[type[Graph], ...]:
    """What can be made of a model: of a fine-tuned one its task, else vectors and, where it has the head, masks filled.

    Where vectors are sparse, both are one graph.

    Raises:
        ModelError: It is fine-tuned, and its head cannot be read.
    """
    if subject.does_task:
        return (_OF_ARCHITECTURES[subject.fine_tuned.task.task_head.architecture],)
    if subject.is_sparse:
        return (SpladeGraph,)
    return (EmbedGraph, FillGraph) if subject.has_head else (EmbedGraph,)


OPSET = 18  # has layer norms as one operation, and is known to every TensorRT 10 and onnxruntime of today
_LARGEST_FILE = 1_900_000_000  # protobuf ends at 2 GiB: larger weights go into a file beside the graph
# What the exporter says of its own insides, and of axes that all inputs share.
_CHATTER = (r"`isinstance\(treespec, LeafSpec\)` is deprecated", r"# The axis name: \w+ will not be used")


def missing_onnx() -> str | None:
    """Why graphs can neither be written nor run; None where they can."""
    missing = [package for package in ("onnx", "onnxscript", "onnxruntime") if find_spec(package) is None]
    return f"{' and '.join(missing)} not installed: pip install 'unmask[onnx]'" if missing else None


def write_onnx(graph: Graph, folder: Path) -> Path:
    """Writes a graph in float32, with any number of texts and any length up to the model's.

    Args:
        graph: On the CPU.
        folder: An existing folder.

    Returns:
        The file; weights of more than 1.9 GB lie in one beside it, named with `_data` behind.
    """
    import onnx_ir

    file = folder / FILE
    batch, length = Dim("batch"), Dim("length", max=graph.model.config.max_position_embeddings)
    # Two texts: an axis of size 1 would be taken for one that always has this size.
    # And a tensor for each input: one that stands in two places would be taken for one input.
    shape = (2, min(8, graph.model.config.max_position_embeddings))
    arguments: dict[str, Tensor] = {name: torch.ones(shape, dtype=torch.int64) for name in graph.inputs}
    num_bytes = sum(weight.numel() * weight.element_size() for weight in graph.parameters())
    with _quiet():
        exported = torch.onnx.export(
            graph,
            kwargs=arguments,
            input_names=list(arguments),
            output_names=list(graph.outputs),
            dynamic_shapes={name: {0: batch, 1: length} for name in arguments},
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
        assert exported is not None
        beside = data_file(file).name if num_bytes > _LARGEST_FILE else None
        onnx_ir.save(exported.model, file, external_data=beside)
    return file


def data_file(file: Path) -> Path:
    """Where the weights of a graph lie that are too large for its own file; optimum asks for no other name."""
    return file.with_name(file.name + "_data")


def int8_file(file: Path) -> Path:
    """Where a graph lies with 8-bit weights; optimum and transformers.js call it so."""
    return file.with_stem(f"{file.stem}_quantized")


def write_int8(file: Path) -> Path:
    """Writes a graph anew, with products of 8-bit integers: weights are rounded once, inputs where they arise.

    Args:
        file: A graph in float32.

    Returns:
        The new file (`model_quantized.onnx`).

    Source: Jacob et al. 2018, section 2.1, with ranges found at run time.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    quantized = int8_file(file)
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch, _quiet():
        shaped = Path(scratch) / file.name
        quant_pre_process(
            str(file),
            str(shaped),
            skip_optimization=True,
            skip_symbolic_shape=True,
            save_as_external_data=data_file(file).is_file(),
        )
        quantize_dynamic(str(shaped), str(quantized), weight_type=QuantType.QInt8, per_channel=True)
    return quantized


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps back what the exporter says of its own insides, such as a line on each operation of torchvision."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for text in _CHATTER:
                warnings.filterwarnings("ignore", message=text)
            yield
    finally:
        log.setLevel(level)
