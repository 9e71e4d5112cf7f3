"""Inputs that broke a reader once, made anew: a small function each, for tests and as what a fuzzer begins with.

Each function of `SEEDS` writes one file into a folder and gives its path back.
"""

from __future__ import annotations

DEEP = "[" * 100_000 + "]" * 100_000  # nested deeper than Python goes
DIGITS = "9" * 10_000  # more than Python converts
HEX = "0x" + "f" * 20_000  # TOML's, which Python converts and does not print
