"""Graphs in onnxruntime against our network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from unmask.errors import ModelError
from unmask.exporting.checked_model import CheckedModel
from unmask.exporting.checks import TOLERANCE, Check, at_least, compare, count, worst
from unmask.exporting.onnx_graphs import VECTORS, EmbedGraph, Graph, SpladeGraph, TaskGraph
from unmask.exporting.transformers_checks import probe_examples
from unmask.tasks.task_model import outputs_of
from unmask.tokenizer.loading import load_tokenizer
from unmask.using.embedding import pooled

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
