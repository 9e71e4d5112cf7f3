"""A model to a folder of ONNX graphs that can be used alone."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unmask.claimed import ClaimedFolder
from unmask.errors import ModelError, RunError, SettingsError
from unmask.exporting.checked_model import CheckedModel, open_checked_model
from unmask.exporting.onnx_checks import GRAPHS, int8_file, int8_follows_ours, onnx_equals_ours
from unmask.exporting.onnx_graphs import OPSET, EmbedGraph, Graph, data_file, missing_onnx, write_int8, write_onnx
from unmask.exporting.onnx_readme import write_readme
from unmask.folders.model_folder import CONFIG
from unmask.results import Readable, Sheet, Shown

log = logging.getLogger("unmask")
_OTHERS = (CONFIG, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "README.md")


@dataclass(frozen=True)
class GraphFile:
    """A written graph.

    Attributes:
        bytes: Of the file, and of the one with its weights where there is one.
        largest_difference: From our network, of logits, hidden states or vectors.
        inputs, outputs: Their names.
    """

    bytes: int
    largest_difference: float
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Export(Readable):
    """A finished export.

    Attributes:
        model: What was exported, as it was named.
        folder: Where the files are.
        graphs: By the name of the file.
    """

    model: str
    folder: Path
    graphs: dict[str, GraphFile]

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        graphs = {name: asdict(graph) for name, graph in self.graphs.items()}
        return {"out": str(self.folder), "format": "onnx", "opset": OPSET, "graphs": graphs}

    def shown(self) -> Iterator[Shown]:
        """A line a graph."""
        rows = [
            (name, f"{graph.bytes / 1e6:.1f}", f"{graph.largest_difference:.1e}", ", ".join(graph.outputs))
            for name, graph in self.graphs.items()
        ]
        yield Sheet(("graph", ">MB", ">largest difference", "outputs"), rows)
        yield f"in {self.folder}, with a README for onnxruntime and TensorRT; check them again with"
        yield f"unmask verify {self.model} --onnx {self.folder}"


def export(
    model: str | Path,
    out: str | Path,
    *,
    format: str = "onnx",  # noqa: A002
    int8: bool = False,
    overwrite: bool = False,
) -> Export:
    """Writes `model.onnx` (logits) and `embed.onnx` (hidden states, and a vector of each text as `Model.embed` makes it
    by default), and compares them with the model.

    A folder without a masked-language-model head gets `embed.onnx` alone.

    Args:
        model: Folder of a model, or of a run; or the name of a model on the hub.
        out: A new or empty folder, or one that an export wrote.
        format: `onnx`; there is no other.
        int8: Also write each graph with 8-bit weights (`model_quantized.onnx`): a quarter of the size, near, not equal.
        overwrite: Replace an export that is there.

    Raises:
        SettingsError: The format is unknown, or a package is missing.
        ModelError: There is no model, its folder asks for a pooling that is not offered, or a written graph differs
            from it by more than 1e-3.
        RunError: The folder holds something.
    """
    if format != "onnx":
        raise SettingsError(f"unknown format {format!r}; known is 'onnx'")
    subject, out = open_checked_model(model), Path(out)
    if (reason := missing_onnx()) is not None:
        raise SettingsError(f"ONNX cannot be written: {reason}")
    place = _folder(out)
    place.check(overwrite=overwrite)
    log.info("exporting %s, %s parameters", subject.folder, f"{subject.model.network.num_parameters:,}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as made:
            graphs = _write(subject, Path(made), int8=int8)
            place.make()
            place.clear(place.ours)
            for new in Path(made).iterdir():
                os.replace(new, out / new.name)
    except OSError as error:
        raise RunError(f"{out}: the export cannot be written ({error.strerror or error})") from error
    return Export(str(model), out, graphs)


def _write(subject: CheckedModel, folder: Path, *, int8: bool) -> dict[str, GraphFile]:
    """Writes all files, and makes sure of each graph."""
    settings = subject.model.embed_settings()
    kinds = GRAPHS if subject.has_head else (EmbedGraph,)
    if not subject.has_head:
        log.warning("%s holds no masked-language-model head: only %s is written", subject.folder, EmbedGraph.file)
    graphs = {}
    for kind in kinds:
        file = write_onnx(kind.of(subject.model), folder)
        check = onnx_equals_ours(subject, file, kind)
        if not check.passed:
            raise ModelError(f"{kind.file} differs from the model by {check.largest_difference}; nothing was written")
        graphs[file.name] = _graph_file(subject, file, kind, check.largest_difference)
        if int8:
            small = write_int8(file)
            check = int8_follows_ours(subject, small, kind)
            if check.largest_difference is None:
                raise ModelError(f"{check.detail}; nothing was written")
            if not check.passed:
                log.warning("%s; use the graph in float32 instead", check.detail)
            graphs[small.name] = _graph_file(subject, small, kind, check.largest_difference)
    shutil.copyfile(subject.folder / CONFIG, folder / CONFIG)
    length = subject.model.network.config.max_position_embeddings
    subject.tokenizer.save(folder, max_length=length, with_types=subject.tells_types)
    pad = subject.tokenizer.special.pad
    write_readme(
        folder,
        inputs=graphs[EmbedGraph.file].inputs,
        max_length=length,
        graphs=tuple(graphs),
        pad=(pad, subject.tokenizer.token(pad)),
        settings=settings,
    )
    return graphs


def _graph_file(subject: CheckedModel, file: Path, kind: type[Graph], difference: float | None) -> GraphFile:
    assert difference is not None
    graph = kind.of(subject.model)
    size = sum(part.stat().st_size for part in (file, data_file(file)) if part.is_file())
    return GraphFile(size, difference, graph.inputs, graph.outputs)


def _folder(out: Path) -> ClaimedFolder:
    """The folder of an export, which holds nothing else; all its files are moved there at the end."""
    graphs = [name for kind in GRAPHS for name in (kind.file, int8_file(kind))]
    ours = (*_OTHERS, *graphs, *(f"{name}.data" for name in graphs))
    return ClaimedFolder(root=out, marker=None, what="an export", ours=ours, is_shared=False, options=("--overwrite",))
