"""Exporting a model to ONNX graphs, each in a folder that can be used alone.

Optimum, sentence-transformers and transformers.js look for the same file name in a folder, whatever the graph computes.
So a folder has one task, and a model with several tasks gets a folder for each:

    feature-extraction/    config.json, tokenizer, README.md; onnx/model.onnx: hidden states and vectors
    fill-mask/             the same; onnx/model.onnx: logits over the vocabulary
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor

from unmask.core.errors import ModelError, RunError, SettingsError, unknown
from unmask.core.files import ClaimedFolder, locked, typed, whole_folder
from unmask.core.hub import CONFIG, LIMITS, MODULES, PROMPTS
from unmask.core.public import public
from unmask.core.remote import refused
from unmask.core.results import Readable, Sheet, Shown
from unmask.exporting import graphs
from unmask.exporting.graphs import (
    EMBED,
    KINDS,
    OPSET,
    SPLADE,
    VECTORS,
    Check,
    CheckedModel,
    Graph,
    GraphKind,
    compare,
    none_wrong,
    open_checked_model,
    worst,
)
from unmask.model.folder import KEY
from unmask.model.onnx import ONNX, open_session, run_session
from unmask.model.pooling import POOLING_FOLDERS, POOLINGS, SPARSE_FOLDER, copy_sentence_files
from unmask.tasks.embed import pooled
from unmask.tokenizer.loading import load_tokenizer

GraphFormat = Literal["onnx"]
log = logging.getLogger("unmask")
_README = Environment(
    loader=PackageLoader("unmask.exporting"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    keep_trailing_newline=True, autoescape=False,
).get_template("readme.md")  # fmt: skip
CORRELATION = 0.9  # minimum correlation of 8-bit graphs with the network: results are close, not equal
_OTHERS = (
    CONFIG, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "README.md", MODULES, LIMITS, PROMPTS,
)  # fmt: skip


@dataclass(frozen=True)
class GraphFile:
    bytes: int  # size of the file, with its weights if these are in a separate file
    largest_difference: float  # from our network, in logits, hidden states or vectors
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Export(Readable):
    """A finished export."""

    model: str  # as the user named it
    folder: Path  # folder of the files
    graphs: dict[str, GraphFile]  # by the path of the file in the folder

    def to_dict(self) -> dict[str, Any]:
        graphs = {name: asdict(graph) for name, graph in self.graphs.items()}
        return {"out": str(self.folder), "format": "onnx", "opset": OPSET, "graphs": graphs}

    def shown(self) -> Iterator[Shown]:
        rows = [
            (name, f"{graph.bytes / 1e6:.1f}", f"{graph.largest_difference:.1e}", ", ".join(graph.outputs))
            for name, graph in self.graphs.items()
        ]
        yield Sheet(("graph", ">MB", ">largest difference", "outputs"), rows)
        yield f"in {self.folder}, each with a README on how to load it; check them again with"
        yield f"unmask verify {typed(self.model)} --onnx {typed(self.folder)}"


@public
def export(
    model: str | Path,
    out: str | Path,
    *,
    format: GraphFormat = "onnx",  # noqa: A002
    task: str | None = None,
    int8: bool = False,
    overwrite: bool = False,
) -> Export:
    """Exports a model to ONNX. Graphs embed, fill masks or do its fine-tuned task, and are compared with the model.

    Graphs are stored where optimum, sentence-transformers and transformers.js look for them:

        a masked language model   feature-extraction: hidden states, and a vector of each text, as `Model.embed` returns
                                  by default; fill-mask: logits over the vocabulary
        one with sparse vectors   fill-mask: logits, from which `SparseEncoder` computes vectors, and the vectors, too
        a bare encoder            feature-extraction
        a fine-tuned model        text-classification, token-classification or question-answering

    A single graph is put into `out` itself (`out/onnx/model.onnx`); several are put into folders named by task.

    Args:
        model: Folder of a model, such as RUN/model, or its name on the hub.
        out: Folder of the graphs: new, empty, or that of an export.
        format: Only onnx is supported.
        task: Write only this task, such as feature-extraction or fill-mask. By default all that the model has.
        int8: Also write graphs with 8-bit weights, for CPUs: a quarter of the size, with close but not equal results.
        overwrite: Replace an existing export.

    Raises:
        SettingsError: The format is unknown, the model has no such task, or a package is missing.
        ModelError: There is no model, its folder names an unsupported pooling, or a graph differs from it by more than
            1e-3.
        RunError: The folder is not empty, or is the current one.
    """
    if format != "onnx":
        raise SettingsError(unknown("format", format, ["onnx"]), options=["format"])
    refused(out, "an export")
    if Path(out).resolve() == Path.cwd():
        raise RunError(f"{out}: an export replaces its folder, so it cannot be the current one", options=("out",))
    subject, out = open_checked_model(model), Path(out)
    if (reason := graphs.missing_onnx()) is not None:
        raise SettingsError(f"ONNX cannot be written: {reason}")
    kinds = graphs.kinds_of(subject)
    if task is not None:
        known = {kind.task: kind for kind in (*kinds, *(() if subject.purpose == "sparse" else (EMBED,)))}
        if task not in known:
            raise SettingsError(f"unknown task {task!r} for {subject.folder}; it has {', '.join(known)}")
        kinds = (known[task],)
    elif kinds == (EMBED,):
        log.warning("%s has no masked-language-model head: only %s is written", subject.folder, EMBED.task)
    ours = (*_OTHERS, ONNX, *dict.fromkeys(kind.task for kind in KINDS), *POOLING_FOLDERS, SPARSE_FOLDER)
    place = ClaimedFolder(root=out, marker=None, what="an export", ours=ours, is_shared=False, options=("overwrite",))
    log.info("exporting %s, %s parameters", subject.folder, f"{subject.network.num_parameters:,}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with locked(out):
            place.check(overwrite=overwrite)
            with whole_folder(out) as made:
                written = _write(subject, made, kinds, int8=int8)
    except OSError as error:
        raise RunError(f"{out}: the export cannot be written ({error.strerror or error})") from error
    return Export(str(model), out, written)


def _write(subject: CheckedModel, folder: Path, kinds: Sequence[GraphKind], *, int8: bool) -> dict[str, GraphFile]:
    files, length, special = {}, subject.network.config.max_position_embeddings, subject.tokenizer.special
    for kind in kinds:
        place = folder / kind.task if len(kinds) > 1 else folder
        (place / ONNX).mkdir(parents=True)
        graph = Graph(subject, kind)
        file = graphs.write_onnx(graph, place / ONNX)
        checks = {file: onnx_equals_ours(subject, file, kind)}
        if not checks[file].passed:
            name, difference = file.relative_to(folder), checks[file].largest_difference
            raise ModelError(f"{name} differs from the model by {difference}, so nothing was written")
        if int8:
            checks |= _int8(subject, file, kind)
        for written, check in checks.items():
            assert check.largest_difference is not None
            parts = (written, written.with_name(f"{written.name}_data"))
            files[written.relative_to(folder).as_posix()] = GraphFile(
                sum(part.stat().st_size for part in parts if part.is_file()),
                check.largest_difference,
                graph.inputs,
                tuple(kind.outputs),
            )
        # The files that libraries read beside the graph.
        config = dict(subject.config)
        if kind is EMBED:
            stem = str((config.get("architectures") or [""])[0]).partition("For")[0]
            config["architectures"] = [stem if stem.endswith("Model") or not stem else f"{stem}Model"]
            config.pop(KEY, None)  # the task of a head that is not in the graph
        if kind in (EMBED, SPLADE):
            copy_sentence_files(subject.folder, place)
        (place / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        subject.tokenizer.save(place, max_length=length, with_types=subject.has_types)
        text = _README.render(
            kind=kind, opset=OPSET, files=[written.name for written in checks], inputs=graph.inputs, longest=length,
            settings=graph.settings, vector=graph.settings and POOLINGS[graph.settings.pooling].description,
            sparse=kind is SPLADE, pad=special.pad, pad_token=subject.tokenizer.token(special.pad),
        )  # fmt: skip
        (place / "README.md").write_text(text, encoding="utf-8")
    return files


def _int8(subject: CheckedModel, file: Path, kind: GraphKind) -> dict[Path, Check]:
    """Writes the 8-bit graph beside a float32 one, and returns it with its check; nothing if it cannot be made."""
    small = file.with_name(graphs.INT8_FILE)
    try:
        check = int8_follows_ours(subject, graphs.write_int8(file), kind)
        if check.largest_difference is None:
            raise ModelError(check.detail)
    except Exception as error:  # errors of onnx, onnxruntime and protobuf share no base class
        small.unlink(missing_ok=True)
        reason = str(error).partition("\n")[0] or type(error).__name__
        log.warning("%s: not written, only the graph in float32 (%s)", small.name, reason)
        return {}
    if not check.passed:
        log.warning("%s; use the graph in float32 instead", check.detail)
    return {small: check}


# ----------------------------------------
# Graphs in onnxruntime against our network


def onnx_equals_ours(subject: CheckedModel, file: Path, kind: GraphKind) -> Check:
    """A float32 graph equals our network, for padded texts and for each alone, and `embed` or `predict`."""
    outputs, by_size = compared_outputs(subject, file, kind), kind.short == "task"
    return worst([compare(ours, theirs, f"{file.name}, {what}", by_size=by_size) for what, ours, theirs in outputs])


def int8_follows_ours(subject: CheckedModel, file: Path, kind: GraphKind) -> Check:
    """The outputs of an 8-bit graph correlate with ours. Differences are reported but not judged."""
    outputs = compared_outputs(subject, file, kind)
    ours = torch.cat([each.flatten() for _, each, _ in outputs])
    theirs = torch.cat([each.flatten() for _, _, each in outputs])
    numbers = compare(ours, theirs, file.name, tolerance=float("inf"))
    if not numbers.passed:
        return numbers
    correlation = torch.corrcoef(torch.stack([ours, theirs]))[0, 1].item()
    detail = f"{file.name}: correlation {correlation:.4f} with float32"
    return Check(correlation >= CORRELATION, numbers.largest_difference, detail)


def onnx_tokenizer_equals_ours(subject: CheckedModel, folders: Sequence[Path]) -> Check:
    wrong = [
        f"{folder / 'tokenizer.json'} is a different tokenizer; export the model again"
        for folder in folders
        if load_tokenizer(folder).fingerprint != subject.tokenizer.fingerprint
    ]
    return none_wrong(wrong, "tokenizer.json")


def compared_outputs(subject: CheckedModel, file: Path, kind: GraphKind) -> list[tuple[str, Tensor, Tensor]]:
    """Descriptions, our outputs and those of a graph file, without padding; a ModelError if onnxruntime cannot run the
    file."""
    graph, texts, rows = Graph(subject, kind), subject.probe, subject.padded()
    run, compared = open_graph(file, graph), []
    # Run the same tensors in onnxruntime and here, all texts at once and each alone.
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
    # Compare vectors and a task's outputs with those of embedding, training and predicting, which pack texts.
    if VECTORS in kind.outputs:  # with a single token type, as in embedding
        vectors = run(rows | {"token_type_ids": torch.zeros_like(rows["input_ids"])})[1]
        if graph.settings is None:
            compared.append(("sparse vectors as in training", subject.sparse_vectors(), vectors))
        else:
            ids, owners = [each.numpy().astype(np.int32) for each in texts], np.arange(len(texts))
            ours_BD = pooled(subject.network, ids, owners, graph.settings, len(texts))
            what = "vectors as from embed (export again if the pooling has changed)"
            compared.append((what, torch.from_numpy(ours_BD), vectors))
    elif graph.task_head is not None:
        outputs = run(rows)
        for row, ours_NC in enumerate(subject.task_outputs()):
            theirs = torch.stack([each[row] for each in outputs], -1) if len(outputs) > 1 else outputs[0][row]
            theirs_NC = theirs[None] if graph.task_head.pooling is not None else theirs[: len(ours_NC)]
            compared.append(("outputs as from predict", ours_NC, theirs_NC))
    return compared


def open_graph(file: Path, graph: Graph) -> Callable[[dict[str, Tensor]], list[Tensor]]:
    """A function from padded rows to the outputs of a file in onnxruntime; `graph` is the graph that it should hold."""
    session = open_session(file)
    for names, values in ((graph.inputs, session.get_inputs()), (tuple(graph.kind.outputs), session.get_outputs())):
        if (in_file := tuple(value.name for value in values)) != names:
            raise ModelError(f"{file}: has {', '.join(in_file)} instead of {', '.join(names)}; export the model again")
    return lambda rows: list(run_session(session, file, rows).values())
