"""Activations, with a gate or without: values in one pass, gradients in another.

Arrays: T = positions in a line, I = intermediate size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from unmask.compiled import inlined, parallel
from unmask.model.kernels.floats import exp, load, store

KINDS = {"gelu": 0, "gelu_pytorch_tanh": 1, "silu": 2, "relu2": 3}


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


@parallel
def activate(kind: int, into_T: Any, out_TI: Any) -> None:
    """What is activated is the first half of `into_T`, and its second half is the gate; or all of it without one."""
    num, width = out_TI.shape
    for t in prange(num):
        x, gate, out = into_T[t, :width], into_T[t, width:], out_TI[t]
        if kind == 0:
            _line(_gelu, x, gate, out)
        elif kind == 1:
            _line(_gelu_tanh, x, gate, out)
        elif kind == 2:
            _line(_silu, x, gate, out)
        else:
            _line(_relu2, x, gate, out)


@parallel
def activate_backward(kind: int, gradient_TI: Any, into_T: Any, result_T: Any) -> None:
    """The gradient of `into_T`, from that of the result; the activation is computed again."""
    num, width = gradient_TI.shape
    for t in prange(num):
        gradient, x, gate = gradient_TI[t], into_T[t, :width], into_T[t, width:]
        of_x, of_gate = result_T[t, :width], result_T[t, width:]
        if kind == 0:
            _line_backward(_gelu, gradient, x, gate, of_x, of_gate)
        elif kind == 1:
            _line_backward(_gelu_tanh, gradient, x, gate, of_x, of_gate)
        elif kind == 2:
            _line_backward(_silu, gradient, x, gate, of_x, of_gate)
        else:
            _line_backward(_relu2, gradient, x, gate, of_x, of_gate)
