"""Graphs to ONNX files, in float32 and with 8-bit weights."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor
from torch.export import Dim

from unmask.exporting.graphs import Graph

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
        The file; weights of more than 1.9 GB lie in one beside it, named with `.data` behind.
    """
    file = folder / graph.file
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
        exported.save(str(file), external_data=num_bytes > _LARGEST_FILE)
    return file


def data_file(file: Path) -> Path:
    """Where the weights of a graph lie that are too large for its own file."""
    return file.with_name(file.name + ".data")


def write_int8(file: Path) -> Path:
    """Writes a graph anew, with products of 8-bit integers: weights are rounded once, inputs where they arise.

    Args:
        file: A graph in float32.

    Returns:
        The new file, named as optimum does (`model_quantized.onnx`).

    Source: Jacob et al. 2018, section 2.1, with ranges found at run time.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    quantized = file.with_stem(f"{file.stem}_quantized")
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
