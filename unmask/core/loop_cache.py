"""A cache of compiled loops whose first process gets the bits that all later ones get."""

from __future__ import annotations

import copy
import functools
from types import SimpleNamespace
from typing import Any

from numba.core.caching import FunctionCache
from numba.core.codegen import JITCPUCodegen
from numba.core.sigutils import normalize_signature


class SharedLoopCache(FunctionCache):
    """Has the first process on a machine run the code that all later ones find, so that it gets the same bits.

    Numba compiles what threads share out by itself, and again inside the loop around it, where sums are put into
    another order. Both are functions of one name: the process that compiles runs the first of them, whereas only the
    second is kept. So a loop is compiled apart from what this process runs, and then loaded like any that was kept.
    """

    def __init__(self, loop: Any) -> None:
        super().__init__(loop.py_func)
        self._compiler = loop._compiler

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The loop for these types, compiled before if it is not there."""
        loop = super().load_overload(sig, target_context)
        if loop is None:
            compiler = copy.copy(self._compiler)
            target = compiler.targetdescr
            compiler.targetdescr = SimpleNamespace(
                options=target.options,
                typing_context=target.typing_context,
                target_context=_apart(target.target_context),
            )
            self.save_overload(sig, compiler.compile(*normalize_signature(sig)))
            loop = super().load_overload(sig, target_context)
        return loop


@functools.cache
def _apart(target_context: Any) -> Any:
    # A context with its own names for what is compiled.
    return target_context.subtarget(_internal_codegen=JITCPUCodegen("unmask.exec"))
