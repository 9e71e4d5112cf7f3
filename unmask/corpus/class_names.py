"""Names of classes that `datasets` writes into its Parquet and Arrow files, whose columns hold numbers.

    ner_tags  list<int64>   [3, 0, 4]
    metadata  huggingface   {"info": {"features": {"ner_tags": {"_type": "List", "feature": {
                            "_type": "ClassLabel", "names": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]}}}}}

-1 stands where there is no class.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from unmask.corpus.sources import Source

_KEY = b"huggingface"
_LISTS = ("Sequence", "List", "LargeList")


def class_names(source: Source, column: str | None) -> tuple[str, ...] | None:
    """The names of a column's classes, or of those in its lists, in the order of their numbers.

    Args:
        source: A table.
        column: Of the classes.

    Returns:
        None where the file says none; what cannot be read of it is told where its rows are read.
    """
    if column is None or source.kind not in ("parquet", "arrow"):
        return None
    try:
        content = json.loads((_schema(source).metadata or {}).get(_KEY, b"{}"))
        return _names_of(content["info"]["features"][column])
    except (pa.ArrowInvalid, OSError, ValueError, KeyError, TypeError):
        return None


def _schema(source: Source) -> pa.Schema:
    if source.kind == "parquet":
        with pq.ParquetFile(source.path) as file:
            return file.schema_arrow
    with pa.memory_map(str(source.path)) as file, pa.ipc.open_stream(file) as stream:
        return stream.schema


def _names_of(feature: Any) -> tuple[str, ...] | None:
    """Lists are written as `{"_type": "List", "feature": ...}`, by older versions as `Sequence` or `[...]`."""
    if isinstance(feature, list) and len(feature) == 1:
        return _names_of(feature[0])
    if not isinstance(feature, dict):
        return None
    if feature.get("_type") in _LISTS:
        return _names_of(feature.get("feature"))
    names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return tuple(names) or None
