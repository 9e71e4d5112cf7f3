"""A model to ONNX graphs, each in a folder that can be used alone.

Optimum, sentence-transformers and transformers.js look for one name in a folder, whatever they want of the graph. So a
folder has one task, and a model with several gets a folder for each:

    feature-extraction/    config.json, tokenizer, README.md; onnx/model.onnx: hidden states and vectors
    fill-mask/             the same; onnx/model.onnx: logits over the vocabulary
"""

from __future__ import annotations

import glob
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from unmask.core.errors import ModelError, RunError, SettingsError
from unmask.core.files import LOCK, ClaimedFolder, held_file, typed
from unmask.core.remote import refused
from unmask.core.results import Readable, Sheet, Shown
from unmask.exporting.checks import Check, at_least, int8_follows_ours, onnx_equals_ours
from unmask.exporting.graphs import (
    GRAPHS,
    OPSET,
    AnswerGraph,
    CheckedModel,
    EmbedGraph,
    FillGraph,
    Graph,
    SpladeGraph,
    TagGraph,
    TextGraph,
    data_file,
    graphs_of,
    missing_onnx,
    open_checked_model,
    write_int8,
    write_onnx,
)
from unmask.model.folder import CONFIG
from unmask.model.pooling import POOLINGS
from unmask.model.sentence_files import POOLING_FOLDERS, SPARSE_FOLDER, copy_sentence_files

# ----------------------------------------
# README.md of a graph's folder: what loads it, and how onnxruntime and TensorRT take it.

_TEXT = """# ONNX: {task}

Made by `unmask export`, opset {opset}, standard operations only. `tokenizer.json` and `config.json` are beside it, so
this folder can be used alone, and these libraries find what they look for:

{libraries}

| file | outputs |
| --- | --- |
{files}

Inputs are {inputs}, each int64 of shape [batch, length]. Both axes are dynamic; the length goes up to {longest}. In
`attention_mask` a text's tokens are 1 and the padding behind them 0. Outputs at padding mean nothing.
{told}
## onnxruntime

```python
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
tokenizer.enable_truncation({longest})
tokenizer.enable_padding(pad_id={pad}, pad_token={pad_token})
encoded = tokenizer.encode_batch(["one text", "another, longer text"])
feeds = {{
    "input_ids": np.array([text.ids for text in encoded]),
    "attention_mask": np.array([text.attention_mask for text in encoded]),{types}
}}
{outputs} = onnxruntime.InferenceSession("onnx/model.onnx").run(None, feeds)
```

## TensorRT

TensorRT 10 reads graphs of this opset; give it the shapes to expect. Names end in `_quantized` where weights have
8 bits: these are for onnxruntime on CPUs, and TensorRT does not take them (their ranges are found at run time).

```
{trtexec}
```

`--fp16` rounds to half precision: compare some outputs with those of onnxruntime before relying on them. The same
graphs run on GPUs in onnxruntime with `providers=["TensorrtExecutionProvider", "CUDAExecutionProvider"]`.
"""
_LIBRARIES = {
    EmbedGraph: (
        '- sentence-transformers: `SentenceTransformer(FOLDER, backend="onnx")`',
        "- optimum: `ORTModelForFeatureExtraction.from_pretrained(FOLDER)`",
        '- transformers.js: `pipeline("feature-extraction", FOLDER)`',
    ),
    FillGraph: (
        '- sentence-transformers: `SparseEncoder(FOLDER, backend="onnx")` (SPLADE)',
        "- optimum: `ORTModelForMaskedLM.from_pretrained(FOLDER)`",
        '- transformers.js: `pipeline("fill-mask", FOLDER)`',
    ),
    SpladeGraph: (
        '- sentence-transformers: `SparseEncoder(FOLDER, backend="onnx")`',
        "- optimum: `ORTModelForMaskedLM.from_pretrained(FOLDER)`",
        '- transformers.js: `pipeline("fill-mask", FOLDER)`',
    ),
    TextGraph: (
        "- optimum: `ORTModelForSequenceClassification.from_pretrained(FOLDER)`",
        '- transformers.js: `pipeline("text-classification", FOLDER)`',
    ),
    TagGraph: (
        "- optimum: `ORTModelForTokenClassification.from_pretrained(FOLDER)`",
        '- transformers.js: `pipeline("token-classification", FOLDER)`',
    ),
    AnswerGraph: (
        "- optimum: `ORTModelForQuestionAnswering.from_pretrained(FOLDER)`",
        '- transformers.js: `pipeline("question-answering", FOLDER)`',
    ),
}
_SHAPES = {
    FillGraph: ("batch, length, vocabulary",),
    SpladeGraph: ("batch, length, vocabulary", "batch, vocabulary"),
    EmbedGraph: ("batch, length, hidden size", "batch, hidden size"),
    TextGraph: ("batch, classes",),
    TagGraph: ("batch, length, tags",),
    AnswerGraph: ("batch, length", "batch, length"),
}
_SPARSE = """
`sentence_embedding` is sparse (SPLADE): log(1 + relu(the largest logit over a text's tokens, special tokens included)),
most of it 0. Where it is all that is wanted, `run(["sentence_embedding"], feeds)` leaves the logits, which are large.
"""
_EIGHT_BITS = """
The graph with 8-bit weights is taken by `model_kwargs={"file_name": "model_quantized.onnx"}` in sentence-transformers,
`file_name="model_quantized.onnx"` in optimum and `{dtype: "q8"}` in transformers.js.
"""


def write_readme(folder: Path, *, graph: Graph, files: Sequence[str], max_length: int, pad: tuple[int, str]) -> None:
    """Writes it.

    Args:
        folder: Of the graph.
        graph: What is in it.
        files: Names of its files.
        max_length: Longest text in tokens.
        pad: Id and name of the padding token.
    """
    kind = type(graph)
    named = zip(graph.outputs, _SHAPES[kind], strict=True)
    outputs = ", ".join(f"`{output}` [{shape}]" for output, shape in named)
    types = '\n    "token_type_ids": np.array([text.type_ids for text in encoded]),' if len(graph.inputs) > 2 else ""
    told = ""
    if isinstance(graph, EmbedGraph):
        vector = POOLINGS[graph.settings.pooling].description
        by_length = ", divided by its length" if graph.settings.normalize else ""
        told = f"\n`sentence_embedding` of a text is {vector}{by_length}, as the model's folder says.\n"
    if isinstance(graph, SpladeGraph):
        told = _SPARSE
    if any("_quantized" in name for name in files):
        told += _EIGHT_BITS
    text = _TEXT.format(
        task=graph.task,
        opset=OPSET,
        libraries="\n".join(_LIBRARIES[kind]),
        files="\n".join(f"| `onnx/{name}` | {outputs} |" for name in files),
        inputs=", ".join(f"`{name}`" for name in graph.inputs),
        longest=max_length,
        pad=pad[0],
        pad_token=repr(pad[1]).replace("'", '"'),
        types=types,
        told=told,
        outputs=", ".join(graph.outputs) + ("," if len(graph.outputs) == 1 else ""),
        trtexec=_trtexec(graph.inputs, max_length),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def _trtexec(inputs: tuple[str, ...], max_length: int) -> str:
    lines = ["trtexec --onnx=onnx/model.onnx --saveEngine=model.plan --fp16"]
    for option, batch, length in (("min", 1, 1), ("opt", 8, max(1, max_length // 2)), ("max", 32, max_length)):
        shapes = ",".join(f"{name}:{batch}x{length}" for name in inputs)
        lines.append(f"    --{option}Shapes={shapes}")
    return " \\\n".join(lines)


log = logging.getLogger("unmask")
ONNX = "onnx"  # where sentence-transformers and transformers.js look within a folder
_OTHERS = (
    CONFIG, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "README.md", "modules.json",
    "sentence_bert_config.json", "config_sentence_transformers.json",
)  # fmt: skip


@dataclass(frozen=True)
class GraphFile:
    """A written graph.

    Attributes:
        bytes: Of the file, and of the one with its weights where there is one.
        largest_difference: From our network, of logits, hidden states or vectors.
        inputs, outputs: Their names.
        smallest_cosine: Of a graph with 8-bit weights that makes vectors: between one of them and ours of the same
            text, of three texts of random tokens, padded and alone. None of others.
    """

    bytes: int
    largest_difference: float
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    smallest_cosine: float | None = None


@dataclass(frozen=True, repr=False)
class Export(Readable):
    """A finished export.

    Attributes:
        model: What was exported, as it was named.
        folder: Where the files are.
        graphs: By the place of the file in the folder.
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
        for name, graph in self.graphs.items():
            if graph.smallest_cosine is not None:
                cosine = at_least(graph.smallest_cosine)
                yield f"{name}: cosines of its vectors with those in float32 are {cosine} and more"
        yield f"in {self.folder}, each with a README that says what loads it; check them again with"
        yield f"unmask verify {typed(self.model)} --onnx {typed(self.folder)}"


def export(
    model: str | Path,
    out: str | Path,
    *,
    format: str = "onnx",  # noqa: A002
    task: str | None = None,
    int8: bool = False,
    overwrite: bool = False,
) -> Export:
    """Writes ONNX graphs that embed texts, fill masks or do a fine-tuned model's task, and compares them with the
    model.

    It lies where optimum, sentence-transformers and transformers.js look for it:

        a masked language model   feature-extraction: hidden states, and a vector of each text as `Model.embed` makes it
                                  by default; fill-mask: logits over the vocabulary
        one with sparse vectors   fill-mask: logits, of which `SparseEncoder` makes them, and the vectors themselves
        a bare encoder            feature-extraction
        a fine-tuned model        text-classification, token-classification or question-answering

    One graph lies in `out` itself (`out/onnx/model.onnx`), several each in a folder that is called as the task.

    Args:
        model: Folder of a model, such as RUN/model, or its name on the hub.
        out: Folder of the graphs: new, empty, or that of an export.
        format: onnx is the only one.
        task: The only one that is written, such as feature-extraction or fill-mask. By default all that the model has.
        int8: Also write graphs with 8-bit weights, for CPUs: a quarter of the size, near, not equal.
        overwrite: Replace an export that is there.

    Raises:
        SettingsError: The format is unknown, the model has no such task, or a package is missing.
        ModelError: There is no model, its folder asks for a pooling that is not offered, or a written graph differs
            from it by more than 1e-3.
        RunError: The folder holds something.
    """
    if format != "onnx":
        raise SettingsError(f"unknown format {format!r}; known is 'onnx'")
    refused(out, "an export")
    subject, out = open_checked_model(model), Path(out)
    if (reason := missing_onnx()) is not None:
        raise SettingsError(f"ONNX cannot be written: {reason}")
    kinds = _wanted(subject, task)
    place = _folder(out)
    place.check(overwrite=overwrite)
    log.info("exporting %s, %s parameters", subject.folder, f"{subject.model.network.num_parameters:,}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with held_file(out), unfinished(out) as made:
            place.check(overwrite=overwrite)  # again: nobody else comes from now on
            graphs = _write(subject, made, kinds, int8=int8)
            place.make()
            place.clear(place.ours)
            for new in made.iterdir():
                if new.name != LOCK:
                    os.replace(new, out / new.name)
    except OSError as error:
        raise RunError(f"{out}: the export cannot be written ({error.strerror or error})") from error
    return Export(str(model), out, graphs)


@contextmanager
def unfinished(out: Path) -> Iterator[Path]:
    """A folder beside the export's for what is not compared yet; those of exports that were killed are removed.

    Whoever writes in one holds a lock there, which the system takes back from a process that is killed.
    """
    for left in out.parent.glob(f".{glob.escape(out.name)}-*"):
        if not (left / LOCK).is_file():
            continue
        with suppress(Timeout), FileLock(left / LOCK, timeout=0):
            log.info("%s was left by an export that was stopped: it is removed", left)
            shutil.rmtree(left, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent, ignore_cleanup_errors=True) as made,
        FileLock(Path(made) / LOCK),
    ):
        yield Path(made)


def _wanted(subject: CheckedModel, task: str | None) -> tuple[type[Graph], ...]:
    kinds = graphs_of(subject)
    if task is None:
        if kinds == (EmbedGraph,):
            log.warning("%s holds no masked-language-model head: only %s is written", subject.folder, EmbedGraph.task)
        return kinds
    dense: dict[str, type[Graph]] = {} if subject.is_sparse else {EmbedGraph.task: EmbedGraph}
    known = dense | {kind.task: kind for kind in kinds}
    if task not in known:
        raise SettingsError(f"unknown task {task!r} for {subject.folder}; it has {', '.join(known)}")
    return (known[task],)


def _write(subject: CheckedModel, folder: Path, kinds: Sequence[type[Graph]], *, int8: bool) -> dict[str, GraphFile]:
    """Writes all files, and makes sure of each graph."""
    graphs = {}
    for kind in kinds:
        place = folder / kind.task if len(kinds) > 1 else folder
        (place / ONNX).mkdir(parents=True)
        file = write_onnx(kind.of(subject), place / ONNX)
        name = str(file.relative_to(folder))
        check = onnx_equals_ours(subject, file, kind)
        if not check.passed:
            raise ModelError(f"{name} differs from the model by {check.largest_difference}; nothing was written")
        graphs[name] = _graph_file(subject, file, kind, check)
        if int8:
            small = write_int8(file)
            check = int8_follows_ours(subject, small, kind)
            if check.largest_difference is None:
                raise ModelError(f"{check.detail}; nothing was written")
            if not check.passed:
                log.warning("%s; use the graph in float32 instead", check.detail)
            graphs[str(small.relative_to(folder))] = _graph_file(subject, small, kind, check)
        _write_others(subject, place, kind)
    return graphs


def _write_others(subject: CheckedModel, place: Path, kind: type[Graph]) -> None:
    """What a library reads beside a graph."""
    network, content = subject.model.network, dict(subject.config)
    if kind is EmbedGraph:
        stem = str((content.get("architectures") or [""])[0]).partition("For")[0]
        content["architectures"] = [stem if stem.endswith("Model") or not stem else f"{stem}Model"]
    if kind in (EmbedGraph, SpladeGraph):
        copy_sentence_files(subject.folder, place)
    (place / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    length = network.config.max_position_embeddings
    subject.tokenizer.save(place, max_length=length, with_types=subject.tells_types)
    pad = subject.tokenizer.special.pad
    write_readme(
        place,
        graph=kind.of(subject),
        files=sorted(file.name for file in (place / ONNX).glob("*.onnx")),
        max_length=length,
        pad=(pad, subject.tokenizer.token(pad)),
    )


def _graph_file(subject: CheckedModel, file: Path, kind: type[Graph], check: Check) -> GraphFile:
    assert check.largest_difference is not None
    graph = kind.of(subject)
    size = sum(part.stat().st_size for part in (file, data_file(file)) if part.is_file())
    return GraphFile(size, check.largest_difference, graph.inputs, graph.outputs, check.smallest_cosine)


def _folder(out: Path) -> ClaimedFolder:
    """The folder of an export, which holds nothing else; all its files are moved there at the end."""
    tasks = dict.fromkeys(kind.task for kind in GRAPHS)
    ours = (*_OTHERS, ONNX, *tasks, *POOLING_FOLDERS, SPARSE_FOLDER)
    return ClaimedFolder(root=out, marker=None, what="an export", ours=ours, is_shared=False, options=("--overwrite",))
