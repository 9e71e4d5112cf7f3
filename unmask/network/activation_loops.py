"""Activations, with a gate or without: values in one pass, gradients in another.

Arrays: T = positions in a line, I = intermediate size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import prange

from unmask.compiled import inlined, parallel
from unmask.network.float_loops import exp, load, store


@inlined
def _gelu(x: float) -> tuple[float, float]:
    """x times the normal distribution's integral, to 1e-7. Source: Abramowitz and Stegun 1964, 7.1.26."""
    u = abs(x) * np.float32(0.7071067811865476)
    t = np.float32(1.0) / (np.float32(1.0) + np.float32(0.3275911) * u)
    p = np.float32(1.061405429) * t - np.float32(1.453152027)
    p = p * t + np.float32(1.421413741)
    p = p * t - np.float32(0.284496736)
    p = (p * t + np.float32(0.254829592)) * t
    density = exp(-u * u)
    tail = np.float32(0.5) * p * density
    below = np.float32(1.0) - tail if x > np.float32(0.0) else tail
    return x * below, below + x * density * np.float32(0.3989422804014327)


@inlined
def _gelu_tanh(x: float) -> tuple[float, float]:
    """The approximation of GELU by tanh. Source: Hendrycks and Gimpel 2016, section 2."""
    square = x * x
    inner = np.float32(1.5957691216057308) * x * (np.float32(1.0) + np.float32(0.044715) * square)  # twice tanh's
    below = np.float32(1.0) / (np.float32(1.0) + exp(-inner))
    slope = np.float32(1.5957691216057308) * (np.float32(1.0) + np.float32(0.134145) * square)
    return x * below, below + x * below * (np.float32(1.0) - below) * slope


@inlined
def _silu(x: float) -> tuple[float, float]:
    sigmoid = np.float32(1.0) / (np.float32(1.0) + exp(-x))
    return x * sigmoid, sigmoid * (np.float32(1.0) + x * (np.float32(1.0) - sigmoid))


@inlined
def _relu2(x: float) -> tuple[float, float]:
    y = max(x, np.float32(0.0))
    return y * y, np.float32(2.0) * y


@inlined
def _line(activation: Any, x: Any, gate: Any, out: Any) -> None:
    if gate.size:
        for i in range(len(out)):
            store(out, i, activation(load(x[i]))[0] * load(gate[i]))
    else:
        for i in range(len(out)):
            store(out, i, activation(load(x[i]))[0])


@inlined
def _line_backward(activation: Any, gradient: Any, x: Any, gate: Any, of_x: Any, of_gate: Any) -> None:
    if gate.size:
        for i in range(len(gradient)):
            value, slope = activation(load(x[i]))
            g = load(gradient[i])
            store(of_x, i, g * load(gate[i]) * slope)
            store(of_gate, i, g * value)
    else:
        for i in range(len(gradient)):
            store(of_x, i, load(gradient[i]) * activation(load(x[i]))[1])


# A loop for each kind, since loops are compiled as a whole: a model's own kind is all that costs time.


@parallel
def gelu(into_T: Any, out_TI: Any) -> None:
    """x times the normal distribution's integral."""
    width = out_TI.shape[1]
    for t in prange(len(out_TI)):
        _line(_gelu, into_T[t, :width], into_T[t, width:], out_TI[t])


@parallel
def gelu_backward(gradient_TI: Any, into_T: Any, result_T: Any) -> None:
    """Its gradient."""
    width = gradient_TI.shape[1]
    for t in prange(len(gradient_TI)):
        into, result = into_T[t], result_T[t]
        _line_backward(_gelu, gradient_TI[t], into[:width], into[width:], result[:width], result[width:])


@parallel
def gelu_tanh(into_T: Any, out_TI: Any) -> None:
    """GELU by tanh."""
    width = out_TI.shape[1]
    for t in prange(len(out_TI)):
        _line(_gelu_tanh, into_T[t, :width], into_T[t, width:], out_TI[t])


@parallel
def gelu_tanh_backward(gradient_TI: Any, into_T: Any, result_T: Any) -> None:
    """Its gradient."""
    width = gradient_TI.shape[1]
    for t in prange(len(gradient_TI)):
        into, result = into_T[t], result_T[t]
        _line_backward(_gelu_tanh, gradient_TI[t], into[:width], into[width:], result[:width], result[width:])


@parallel
def silu(into_T: Any, out_TI: Any) -> None:
    """x times its sigmoid."""
    width = out_TI.shape[1]
    for t in prange(len(out_TI)):
        _line(_silu, into_T[t, :width], into_T[t, width:], out_TI[t])


@parallel
def silu_backward(gradient_TI: Any, into_T: Any, result_T: Any) -> None:
    """Its gradient."""
    width = gradient_TI.shape[1]
    for t in prange(len(gradient_TI)):
        into, result = into_T[t], result_T[t]
        _line_backward(_silu, gradient_TI[t], into[:width], into[width:], result[:width], result[width:])


@parallel
def relu2(into_T: Any, out_TI: Any) -> None:
    """The square of what is positive."""
    width = out_TI.shape[1]
    for t in prange(len(out_TI)):
        _line(_relu2, into_T[t, :width], into_T[t, width:], out_TI[t])


@parallel
def relu2_backward(gradient_TI: Any, into_T: Any, result_T: Any) -> None:
    """Its gradient."""
    width = gradient_TI.shape[1]
    for t in prange(len(gradient_TI)):
        into, result = into_T[t], result_T[t]
        _line_backward(_relu2, gradient_TI[t], into[:width], into[width:], result[:width], result[width:])


# What is activated is the first half of a line of `into_T`, and its second half is the gate; or all of it without one.
# A backward pass computes the activation again.
LOOPS: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {
    "gelu": (gelu, gelu_backward),
    "gelu_pytorch_tanh": (gelu_tanh, gelu_tanh_backward),
    "silu": (silu, silu_backward),
    "relu2": (relu2, relu2_backward),
}
