"""README.md of a graph's folder: what loads it, and how onnxruntime and TensorRT take it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unmask.exporting.onnx_graphs import (
    OPSET,
    AnswerGraph,
    EmbedGraph,
    FillGraph,
    Graph,
    SpladeGraph,
    TagGraph,
    TextGraph,
)

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
_VECTORS = {
    "mean": "the mean of a text's hidden states, special tokens included",
    "first": "the hidden state of a text's first token",
}


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
        by_length = ", divided by its length" if graph.settings.normalize else ""
        told = f"\n`sentence_embedding` is {_VECTORS[graph.settings.pooling]}{by_length}, as the model's folder says.\n"
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
