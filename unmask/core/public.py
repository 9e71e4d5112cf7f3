"""What every function of `unmask.__all__` does first: checks plain arguments, and protects the caller's torch state."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import numbers
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ParamSpec, TypeVar

from unmask.core.errors import RunError, SettingsError, shown

log = logging.getLogger("unmask")
P = ParamSpec("P")
Value = TypeVar("Value")
_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "int": (numbers.Integral, "a whole number"),
    "float": (numbers.Real, "a number"),
    "bool": (bool, "true or false"),
    "str": (str, "a text"),
    "Path": (os.PathLike, "a path"),
    "None": (type(None), "None"),
}
_fork = {"is_new": False, "loops_ran": False}  # of this process, if it was forked


def _note_fork() -> None:
    # GNU's OpenMP kills a forked child that runs compiled loops if its parent has run some.
    parallel = sys.modules.get("numba.np.ufunc.parallel")
    _fork.update(is_new=True, loops_ran=bool(getattr(parallel, "_is_initialized", False)))


def _check_fork() -> None:
    """Threads of the parent do not exist here, and torch would wait for them, so it continues with one thread."""
    if _fork["loops_ran"]:
        raise RunError(
            "this process was forked after a model was used, and its threads did not survive the fork; start "
            'processes with multiprocessing.get_context("spawn"), or use models only after the fork'
        )
    torch: Any = sys.modules.get("torch")
    if _fork["is_new"] and torch is not None and torch.get_num_threads() > 1:
        torch.set_num_threads(1)
        log.warning("this process was forked, so it computes with one thread; spawn it to use all of them")
    _fork["is_new"] = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def public(function: Callable[P, Value]) -> Callable[P, Value]:
    """Makes a function public; see the module's docstring.

    Arguments are checked here if their annotation has only `int`, `float`, `bool`, `str`, `Path` and `None`; others are
    checked where they are used. Whatever the caller has set, the function runs with float32 as torch's default, on the
    CPU unless it says otherwise, with gradients, and without autocast and inference mode.

    Raises:
        SettingsError: An argument has another type, is not finite, or is an impossible path.
        RunError: The process was forked after compiled loops had run.
    """
    signature = inspect.signature(function)
    checks = {name: kinds for name, each in signature.parameters.items() if (kinds := _kinds(each.annotation))}

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Value:
        _check_fork()
        try:
            arguments = signature.bind(*args, **kwargs).arguments
        except TypeError:  # the call below raises a better error
            arguments = {}
        for name, kinds in checks.items():
            if name in arguments:
                _check(name, arguments[name], kinds)
        with _own_torch_state():
            return function(*args, **kwargs)

    return wrapped


def _kinds(annotation: object) -> list[str]:
    """The plain types in an annotation, read from its text, the last one first; empty if any is not plain."""
    names = [name.strip() for name in reversed(annotation.split("|"))] if isinstance(annotation, str) else []
    return names if set(names) <= _KINDS.keys() else []


def _check(name: str, value: object, kinds: list[str]) -> None:
    if (type(value).__module__, type(value).__name__) in (("numpy", "bool"), ("numpy", "bool_")):
        value = bool(value)
    is_switch = isinstance(value, bool)
    matching = [kind for kind in kinds if isinstance(value, _KINDS[kind][0]) and is_switch in (False, kind == "bool")]
    if not matching:
        expected = " or ".join(_KINDS[kind][1] for kind in reversed(kinds) if kind != "None")
        raise SettingsError(f"{name} takes {expected}, not {shown(value)}", options=(name,))
    is_whole = isinstance(value, numbers.Integral)
    if isinstance(value, numbers.Real) and not is_whole and not math.isfinite(value):
        raise SettingsError(f"{name} takes a finite number, not {value}", options=(name,))
    if "Path" in kinds and isinstance(value, str | os.PathLike) and "\0" in str(value):
        raise SettingsError(f"{name}: a path cannot contain a NUL character: {shown(str(value))}", options=(name,))


@contextmanager
def _own_torch_state() -> Iterator[None]:
    """Gives torch the state that it has after its import; afterwards it has the caller's again."""
    torch: Any = sys.modules.get("torch")
    with ExitStack() as stack:
        if torch is not None and hasattr(torch, "get_default_device"):  # it may be half imported
            if (dtype := torch.get_default_dtype()) != torch.float32:  # torch has one for all threads
                stack.callback(torch.set_default_dtype, dtype)
                torch.set_default_dtype(torch.float32)
            if torch.get_default_device().type != "cpu":
                stack.enter_context(torch.device("cpu"))
            for device in ("cpu", "cuda"):
                if torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            if torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(mode=False))
            if not torch.is_grad_enabled():
                stack.enter_context(torch.enable_grad())
        yield
