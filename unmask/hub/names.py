"""Which strings name a model of the hub, and which are paths.

answerdotai/ModernBERT-base           the main branch
answerdotai/ModernBERT-base@COMMIT    a commit, a tag, a branch, or refs/pr/1
bert-base-uncased                     the oldest models have no owner
runs/mine/model, ./mine, mine.json    paths, whether they are there or not
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"([A-Za-z0-9]([\w.-]*\w)?/)?[A-Za-z0-9]([\w.-]*\w)?", re.ASCII)
_REVISION = re.compile(r"refs/[\w./-]{1,99}|[\w.-]{1,99}", re.ASCII)
_LONGEST = 96
_OF_FILES = (
    ".bin", ".csv", ".git", ".gz", ".html", ".json", ".jsonl", ".md", ".model", ".npy", ".onnx", ".parquet", ".pt",
    ".pth", ".safetensors", ".tar", ".toml", ".tsv", ".txt", ".yaml", ".zip",
)  # fmt: skip


@dataclass(frozen=True)
class HubName:
    """A model of the hub.

    Attributes:
        name: `owner/name`, or `name`.
        revision: Branch, tag or commit; None is the main branch.
    """

    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


def hub_name(source: str | Path) -> HubName | None:
    """The name that a string is, or None where it is a path.

    Whatever exists is a path. So is what can only be a mistyped one, so that nobody waits for the network to be told of
    it: a `Path`; a name with more than one `/`; one that begins with `.`, `/` or `~`, ends as files do, or has signs
    that the hub does not allow; and one in a folder that is there.
    """
    if not isinstance(source, str):
        return None
    name, at, revision = source.partition("@")
    if len(name) > _LONGEST or not _NAME.fullmatch(name) or (at and not _REVISION.fullmatch(revision)):
        return None
    if "--" in name or ".." in name or name.lower().endswith(_OF_FILES):
        return None
    if Path(source).exists() or ("/" in name and Path(name).parent.is_dir()):
        return None
    return HubName(name, revision or None)
