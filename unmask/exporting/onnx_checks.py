"""Graphs in onnxruntime against our network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.errors import ModelError
from unmask.exporting.checked_model import CheckedModel
from unmask.exporting.checks import TOLERANCE, Check, compare, count, worst
from unmask.exporting.onnx_graphs import EmbedGraph, Graph, TaskGraph
from unmask.exporting.transformers_checks import probe_examples
from unmask.tasks.task_model import outputs_of
from unmask.tokenizer.loading import load_tokenizer
from unmask.using.embedding import pooled

CORRELATION = 0.9  # of 8-bit graphs with the network: they are near, not equal


def onnx_equals_ours(subject: CheckedModel, file: Path, kind: type[Graph]) -> Check:
    """A graph in float32 gives our numbers, of padded texts and of each alone, and those of `embed` or `predict`.

    Numbers of a task may be large; theirs are compared by their size.
    """
    checks = []
    for what, ours, theirs in _outputs(subject, file, kind):
        tolerance = TOLERANCE * (max(1.0, ours.abs().max().item()) if issubclass(kind, TaskGraph) else 1.0)
        checks.append(compare(ours, theirs, f"{file.name}, {what}", tolerance=tolerance))
    return worst(checks)


def int8_follows_ours(subject: CheckedModel, file: Path, kind: type[Graph]) -> Check:
    """A graph with 8-bit weights gives numbers that correlate with ours; the difference is told, not judged."""
    pairs = [(a.flatten(), b.flatten()) for _, a, b in _outputs(subject, file, kind)]
    ours, theirs = map(torch.cat, zip(*pairs, strict=True))
    found = compare(ours, theirs, f"{file.name}", tolerance=float("inf"))
    if not found.passed:
        return found
    correlation = torch.corrcoef(torch.stack([ours, theirs]))[0, 1].item()
    detail = f"{file.name}: correlation {correlation:.4f} with float32"
    return Check(correlation >= CORRELATION, found.largest_difference, detail)


def onnx_tokenizer_equals_ours(subject: CheckedModel, folders: Sequence[Path]) -> Check:
    """The tokenizers beside the graphs are the model's."""
    wrong = [
        f"{folder / 'tokenizer.json'} is another one; export the model anew"
        for folder in folders
        if load_tokenizer(folder).fingerprint != subject.tokenizer.fingerprint
    ]
    return count(wrong, "tokenizer.json")


def _outputs(subject: CheckedModel, file: Path, kind: type[Graph]) -> list[tuple[str, Tensor, Tensor]]:
    """What is compared, ours and theirs, an output each time, at real positions only.

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
        for a, b, by_token in zip(outputs, _run(session, file, feeds), graph.by_token, strict=True):
            tokens = by_token and b.shape[:2] == real.shape
            pairs.append(("padded texts and texts alone", a[real] if by_token else a, b[real] if tokens else b))
    if isinstance(graph, EmbedGraph):
        feeds = {name: rows[name] for name in graph.inputs} | _of_one_type(graph, rows)
        vectors = _run(session, file, feeds)[graph.outputs.index("sentence_embedding")]
        what = "vectors as of embed (export anew if the pooling has changed)"
        pairs.append((what, _embedded(subject, graph), vectors))
    if isinstance(graph, TaskGraph):
        feeds = {name: rows[name].contiguous() for name in graph.inputs}
        pairs += _predicted(subject, graph, rows, _run(session, file, feeds))
    return pairs


def _predicted(
    subject: CheckedModel, graph: TaskGraph, rows: Mapping[str, Tensor], found: list[Tensor]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """What the model of a task says of the texts, packed, and what the graph says of the same."""
    model, task_head = subject.fine_tuned, graph.task_head
    types_BS = rows["token_type_ids"] if "token_type_ids" in graph.inputs else None
    examples = probe_examples(subject.probe, task_head, types_BS)
    for row, ours_NC in enumerate(outputs_of(model.network, model.task, examples)):
        theirs = torch.stack([each[row] for each in found], -1) if len(found) > 1 else found[0][row]
        theirs_NC = theirs[: len(ours_NC)] if graph.by_token[0] else theirs[None]
        yield "outputs as of predict", torch.from_numpy(ours_NC), theirs_NC


def _of_one_type(graph: Graph, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Token types as texts have them that are embedded: all 0."""
    return {name: torch.zeros_like(rows[name]) for name in graph.inputs if name == "token_type_ids"}


def _embedded(subject: CheckedModel, graph: EmbedGraph) -> Tensor:
    """The vectors of the texts as `Model.embed` makes them, packed and by the network itself."""
    texts = [ids.numpy().astype(np.int32) for ids in subject.probe.texts]
    network, owners = subject.model.network, np.arange(len(texts), dtype=np.int64)
    return torch.from_numpy(pooled(network, subject.tokenizer, texts, owners, graph.settings, len(texts)))


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
