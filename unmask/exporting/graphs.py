"""The model to check or export, the comparison of two ways to run it, and its graphs as modules and files.

Graphs give logits over the vocabulary, vectors, or the outputs of a task's head. They run the encoder's tensor
operations, not its compiled loops (`unmask.core.compiled.serves` returns False while exporting), and attention is
spelled out, so that every engine knows all operations. Files are in float32, or have 8-bit weights.

Shape suffixes: B = texts, S = positions, D = hidden size, V = vocabulary, N = positions of a text that a head uses, C =
outputs of a task.
"""

from __future__ import annotations

import logging
import math
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.utils.rnn import pad_sequence

from unmask.core.errors import ModelError, shown
from unmask.core.hub import HubName, hub_name
from unmask.model.encoder import MaskedLM
from unmask.model.folder import find_weights, has_prediction_head, read_config_file, read_content
from unmask.model.layout_names import LAYOUTS
from unmask.model.onnx import GRAPH_FILES
from unmask.model.pooling import POOLINGS, check_splade, module_file
from unmask.tasks.inputs import Example
from unmask.tasks.loaded_model import Model, does_task, load
from unmask.tasks.task import Task, outputs_of
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.contrast import splade_vectors

TOLERANCE = 1e-3  # for logits and hidden states in float32, between two ways to compute them


@dataclass(frozen=True)
class Check:
    passed: bool
    # The largest absolute difference of numbers, or the number of ids or files that differ; None if it is not finite
    # (NaN, infinity) or the comparison could not finish.
    largest_difference: float | None
    detail: str  # what was compared, or what is wrong and the way out


def compare(ours: Tensor, theirs: Tensor, detail: str, *, tolerance: float = TOLERANCE, by_size: bool = False) -> Check:
    """Compares numbers; different shapes and values that are not finite fail. With `by_size`, the tolerance grows with
    our largest number, since outputs of a regression may be in the thousands."""
    if ours.shape != theirs.shape:
        return Check(False, None, f"{detail}: of shapes {tuple(ours.shape)} and {tuple(theirs.shape)}")
    difference = (ours.double() - theirs.double()).abs().max().item()
    if not math.isfinite(difference):
        return Check(False, None, f"{detail}: not finite")
    if by_size:
        tolerance *= max(1.0, ours.abs().max().item())
    return Check(difference <= tolerance, difference, detail)


def none_wrong(wrong: Sequence[str], detail: str, *, most: int = 100) -> Check:
    more = f"; and {len(wrong) - most} more" if len(wrong) > most else ""
    return Check(not wrong, float(len(wrong)), "; ".join(wrong[:most]) + more or detail)


def worst(checks: Sequence[Check]) -> Check:
    """The first failed check, or else the one with the largest difference."""
    return min(checks, key=lambda check: (check.passed, -(check.largest_difference or 0.0) if check.passed else 0.0))


@dataclass(frozen=True)
class CheckedModel:
    """A model folder to check or export. Parts are read on first use, so a broken one does not hide others."""

    folder: Path  # with config.json, weights and tokenizer
    hub: HubName | None = None  # its name on the hub; None for a folder

    @cached_property
    def config(self) -> dict[str, Any]:
        return read_content(self.folder)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.folder)

    @cached_property
    def model(self) -> Model:
        model = load(self.folder)
        model.hub = self.hub
        return model

    @cached_property
    def network(self) -> MaskedLM:  # ours, on the CPU, in float32
        return self.model.network.to("cpu", torch.float32)

    @property
    def task(self) -> Task:  # of a fine-tuned model; a ModelError says why its head cannot be used
        return self.model.fine_tuned[1]

    @cached_property
    def has_head(self) -> bool:
        return has_prediction_head(self.folder, read_config_file(self.folder)[1].layout)

    @cached_property
    def purpose(self) -> str | None:
        """`task` for a fine-tuned model, `sparse` for one with sparse vectors, else None; also None if config.json or
        modules.json cannot be read, which checks report."""
        try:
            is_sparse = module_file(self.folder, "SpladePooling") is not None
            return "task" if does_task(self.config) else "sparse" if is_sparse else None
        except ModelError:
            return None

    @property
    def has_types(self) -> bool:
        """Whether config.json has several token types; BERT has two if it does not say."""
        types = self.config.get("type_vocab_size") or (2 if self.config.get("model_type") == "bert" else 1)
        return isinstance(types, int) and types > 1

    @cached_property
    def probe(self) -> tuple[Tensor, ...]:
        """Inputs on which forms of a model are compared: three texts of random tokens, int64 [S], always the same.

        They have 1/2, 1/3 and the rest of at most 192 positions. Every sixth token is masked. Without masks, a trained
        model's attention may be so sharp on random tokens that rounding in float32 alone changes logits by hundredths
        (for a model trained for ten minutes, transformers and we differed by 0.05 without masks, 0.00005 with them).
        """
        config = self.network.config
        length = min(config.max_position_embeddings, 192)  # more than the usual local window of 128
        ids = np.flatnonzero(self.tokenizer.ordinary)
        ids = ids[ids < config.vocab_size]
        tokens = torch.from_numpy(ids)[torch.randint(len(ids), (length,), generator=torch.Generator().manual_seed(0))]
        tokens[3::6] = self.tokenizer.special.mask
        return tokens.split((length // 2, length // 3, length - length // 2 - length // 3))

    def packed(self) -> dict[str, Tensor]:
        return {
            "input_ids_BS": torch.cat(self.probe)[None],
            "segment_ids_BS": torch.cat([torch.full_like(ids, number) for number, ids in enumerate(self.probe)])[None],
            "position_ids_BS": torch.cat([torch.arange(len(ids)) for ids in self.probe])[None],
        }

    def padded(self) -> dict[str, Tensor]:
        """A row for each text of the probe, padded to the longest, as transformers takes them. If the model has several
        token types, they change in the middle of each text, to test that it uses them."""
        rows = {
            "input_ids": pad_sequence(list(self.probe), batch_first=True, padding_value=self.tokenizer.special.pad),
            "attention_mask": pad_sequence([torch.ones_like(ids) for ids in self.probe], batch_first=True),
        }
        if self.network.config.num_types > 1:
            types = [(torch.arange(len(ids)) >= len(ids) // 2).long() for ids in self.probe]
            rows["token_type_ids"] = pad_sequence(types, batch_first=True)
        return rows

    def run(self, input_ids_BS: Tensor, **rows: Tensor) -> Tensor:
        """Our network's logits [B, S, V], or hidden states if the folder holds no head. Gradients are enabled, so that
        the same compiled loops run as in training."""
        network = self.network
        hidden_BSD = network.encoder(input_ids_BS, **rows)
        return (network.head(hidden_BSD, network.encoder.tokens) if self.has_head else hidden_BSD).detach()

    @torch.no_grad()
    def sparse_vectors(self) -> Tensor:
        """Sparse vectors [B, V] of the probe's texts, packed as in training."""
        network = self.network
        return splade_vectors(network, network.encoder(**self.packed())[0], tuple(map(len, self.probe)))

    def task_outputs(self) -> list[Tensor]:
        """The fine-tuned model's outputs [N, C] for each text of the probe, packed as in `predict`, at the positions
        that the task's head uses: the first one, or all of the text."""
        types_BS, examples = self.padded().get("token_type_ids"), []
        for row, ids in enumerate(self.probe):
            positions = np.arange(1 if self.task.task_head.pooling == "first" else len(ids))
            types = None if types_BS is None else types_BS[row, : len(ids)].numpy()
            examples.append(Example(row, ids.numpy(), types, positions, positions))
        return [torch.from_numpy(output) for output in outputs_of(self.network, self.task, examples)]


def open_checked_model(folder: str | Path) -> CheckedModel:
    subject = CheckedModel(find_weights(folder), hub_name(folder))
    try:
        kind = subject.config.get("model_type")
    except ModelError:  # reported by the checks
        return subject
    if isinstance(kind, str) and kind not in LAYOUTS and subject.purpose != "task":
        what = f"the layout {shown(kind)} is not one of ours ({', '.join(LAYOUTS)}), so it is not exported or verified"
        others = "other commands run it through transformers (fill, embed, evaluate, score, finetune)"
        raise ModelError(f"{subject.folder}: {what}; {others}, and optimum exports it")
    return subject


# ----------------------------------------
# Graphs

FILE, INT8_FILE = GRAPH_FILES["onnx"], GRAPH_FILES["onnx-int8"]
DATA_FILE = "model.onnx_data"  # weights that are too large for the graph's own file
VECTORS = "sentence_embedding"  # name of the output with a vector per text, if there is one


@dataclass(frozen=True)
class GraphKind:
    task: str  # its task on the hub; also the name of its folder if there are several graphs
    short: str  # its name in the names of checks
    outputs: dict[str, str]  # name to shape, in words
    optimum: str  # the class that loads it in optimum
    sentence: str | None = None  # how sentence-transformers loads it, if it can


EMBED = GraphKind(
    "feature-extraction", "embed",
    {"last_hidden_state": "batch, length, hidden size", VECTORS: "batch, hidden size"},
    "ORTModelForFeatureExtraction", 'SentenceTransformer(FOLDER, backend="onnx")',
)  # fmt: skip
FILL = GraphKind("fill-mask", "fill", {"logits": "batch, length, vocabulary"}, "ORTModelForMaskedLM")
SPLADE = replace(
    FILL, short="splade", outputs={**FILL.outputs, VECTORS: "batch, vocabulary"},
    sentence='SparseEncoder(FOLDER, backend="onnx")',
)  # fmt: skip
TASKS = {
    name: GraphKind(task, "task", outputs, f"ORTModelFor{name}")
    for name, task, outputs in (
        ("SequenceClassification", "text-classification", {"logits": "batch, classes"}),
        ("TokenClassification", "token-classification", {"logits": "batch, length, tags"}),
        ("QuestionAnswering", "question-answering", dict.fromkeys(("start_logits", "end_logits"), "batch, length")),
    )
}
KINDS = (EMBED, FILL, SPLADE, *TASKS.values())


def kinds_of(subject: CheckedModel) -> tuple[GraphKind, ...]:
    """The graphs of a model: for a fine-tuned one, its task; for sparse vectors, one graph of logits and vectors;
    otherwise vectors, and mask filling if it has the head."""
    if subject.purpose == "task":
        return (TASKS[subject.task.architecture],)
    if subject.purpose == "sparse":
        return (SPLADE,)
    return (EMBED, FILL) if subject.has_head else (EMBED,)


class Graph(nn.Module):
    """A function of `input_ids` and `attention_mask`, and of `token_type_ids` if the model has several types."""

    def __init__(self, subject: CheckedModel, kind: GraphKind) -> None:
        super().__init__()
        self.kind = kind
        if kind is SPLADE:
            check_splade(subject.folder)
            if not subject.has_head:
                raise ModelError(f"{subject.folder}: has no masked-language-model head, which sparse vectors need")
        self.model = subject.network
        self.settings = subject.model.embed_settings() if kind is EMBED else None
        self.task_head = subject.task.task_head if kind.short == "task" else None
        types = ("token_type_ids",) if self.model.config.num_types > 1 else ()
        self.inputs = ("input_ids", "attention_mask", *types)
        self.eval()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The kind's outputs; those at padding (0 in the mask, after each text) are meaningless."""
        hidden_BSD = self.model.encoder(input_ids, segment_ids_BS=attention_mask - 1, token_type_ids_BS=token_type_ids)
        if self.settings is not None:
            vectors_BD = POOLINGS[self.settings.pooling].vectors(hidden_BSD, attention_mask)
            if self.settings.normalize:
                vectors_BD = vectors_BD / (vectors_BD * vectors_BD).sum(1, keepdim=True).sqrt().clamp(min=1e-12)
            return hidden_BSD, vectors_BD
        if self.task_head is None:
            logits_BSV = self.model.head(hidden_BSD, self.model.encoder.tokens)
            return (logits_BSV, splade_of(logits_BSV, attention_mask)) if self.kind is SPLADE else (logits_BSV,)
        if self.task_head.pooling is not None:
            hidden_BSD = POOLINGS[self.task_head.pooling].vectors(hidden_BSD, attention_mask)
        logits = self.model.outputs(self.task_head.head, hidden_BSD)
        return logits.unbind(-1) if len(self.kind.outputs) == 2 else (logits,)


def splade_of(logits_BSV: Tensor, attention_mask_BS: Tensor) -> Tensor:
    """log(1 + relu(largest logit over a text's positions)), with 0 at padding: [B, V].

    Source: Formal et al. 2021 (SPLADE v2), section 3.1, with the maximum.
    """
    return (logits_BSV * attention_mask_BS[..., None].to(logits_BSV.dtype)).amax(1).relu().log1p()


# ----------------------------------------
# Files

OPSET = 18  # has layer norm as a single operation, and is supported by TensorRT 10 and current onnxruntime
_LARGEST_FILE = 1_900_000_000  # protobuf's limit is 2 GiB: larger weights go into a file beside the graph


def missing_onnx() -> str | None:
    """Why graphs can neither be written nor run; None if they can."""
    missing = [package for package in ("onnx", "onnxscript", "onnxruntime") if find_spec(package) is None]
    return f"{' and '.join(missing)} not installed: pip install 'unmask[onnx]'" if missing else None


def write_onnx(graph: Graph, folder: Path) -> Path:
    """Writes a graph in float32, for any number of texts and any length up to the model's. Weights of more than 1.9 GB
    are put into a file beside it, whose name ends in `_data`."""
    import onnx_ir

    longest = graph.model.config.max_position_embeddings
    # Two texts, since the exporter would take an axis of size 1 for a constant. And a separate tensor for each input,
    # since it would take one used twice for a single input.
    arguments: dict[str, Any] = {name: torch.ones((2, min(8, longest)), dtype=torch.int64) for name in graph.inputs}
    axes = {0: Dim("batch"), 1: Dim("length", max=longest)}
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns about each operation of torchvision
    try:
        with warnings.catch_warnings():
            # Warnings of the exporter about its own internals, and about axes that all inputs share.
            for text in (r"`isinstance\(treespec, LeafSpec\)` is deprec", r"# The axis name: \w+ will not be used"):
                warnings.filterwarnings("ignore", message=text)
            exported = torch.onnx.export(
                graph,
                kwargs=arguments,
                input_names=list(arguments),
                output_names=list(graph.kind.outputs),
                dynamic_shapes=dict.fromkeys(arguments, axes),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
            assert exported is not None
            is_large = sum(weight.nbytes for weight in graph.parameters()) > _LARGEST_FILE
            onnx_ir.save(exported.model, folder / FILE, external_data=DATA_FILE if is_large else None)
    finally:
        log.setLevel(level)
    return folder / FILE


def write_int8(file: Path) -> Path:
    """Writes an 8-bit version of a float32 graph: weights are rounded once, activations at run time.

    Source: Jacob et al. 2018, section 2.1, with activation ranges determined at run time.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    small, beside = file.with_name(INT8_FILE), file.with_name(DATA_FILE).is_file()
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
        shaped = str(Path(scratch) / file.name)
        quant_pre_process(
            str(file), shaped, skip_optimization=True, skip_symbolic_shape=True, save_as_external_data=beside
        )
        # onnxruntime transposes the weights of text classification heads (Gemm), but not their recorded shapes.
        model = onnx.load(shaped, load_external_data=False)
        del model.graph.value_info[:]
        onnx.save(model, shaped)
        # CPUs without VNNI (only AVX2) sum 8-bit products in 16 bits, which overflow; with 7-bit weights they do not.
        quantize_dynamic(shaped, str(small), weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)
    return small
