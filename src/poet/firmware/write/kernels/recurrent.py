"""Layers of LSTM cells, as PyTorch gives them to its processor's library: a layer, one direction.

What that keeps for the gradient is a piece of memory of its own making, larger than what C needs of
it. Other recurrent layers come as the products and functions that they are made of.
"""

from poet.calls.operands import Operand
from poet.firmware.write.kernels.masks import packed
from poet.firmware.write.kernels.site import Fields, Site, Table, addresses, dense, operand

LSTM = 2
"""What PyTorch calls it by in `mode`."""


def lstm_floats(moments: int, batch: int, hidden: int) -> int:
    """The numbers that C keeps, and the room it needs beside them."""
    return batch * hidden * (5 * moments + 4)


def _shape(site: Site, memory: Operand | None, gradient: Operand | None) -> str:
    given, weight = operand(site, "input"), operand(site, _weight(site, 1))
    hidden = site.arguments["hidden_size"]
    if site.arguments["mode"] != LSTM or site.arguments.get("batch_sizes"):
        raise site.refuse("only LSTMs over sequences of one length are covered")
    if len(given.shape) != 3 or given.dtype != "float32" or not site.arguments["has_biases"]:
        raise site.refuse("only LSTMs of float32 with biases are covered")
    if weight.shape != (4 * hidden, hidden):
        raise site.refuse("projected states are not covered")
    moments, batch, inputs = given.shape
    if memory is None or memory.nbytes < 4 * lstm_floats(moments, batch, hidden):
        raise site.refuse("what it keeps for its gradient is too small, or not there")
    strides = (0, 0, 0) if gradient is None else gradient.strides
    fields: Fields = {
        "moments": moments, "batch": batch, "inputs": inputs, "hidden": hidden,
        "is_reversed": int(bool(site.arguments["reverse"])),
        "in_moment": given.strides[0], "in_sample": given.strides[1],
        "in_element": given.strides[2], "gradient_moment": strides[0],
        "gradient_sample": strides[1], "gradient_element": strides[2],
    }  # fmt: skip
    return site.constant("lstm", fields)


def _weight(site: Site, n: int) -> str:
    """The weights are called from 0 on, in the gradient from 1 on."""
    return f"weight{n if 'weight0' in site.arguments else n + 1}"


def _weights(site: Site) -> list[Operand]:
    return [dense(site, _weight(site, n)) for n in range(4)]


def _lstm(site: Site) -> list[str]:
    out, last, last_cell, memory = site.results
    shape = _shape(site, memory, None)
    if out is None or not out.is_dense:
        raise site.refuse("its result is not row-major")
    states = [dense(site, name) for name in ("hx_", "cx_")]
    made = addresses(site, out, last, last_cell, memory)
    given = addresses(site, operand(site, "input"), *_weights(site), *states)
    return [f"poet_lstm({made}, {given}, {shape});"]


def _lstm_gradient(site: Site) -> list[str]:
    memory, gradient = operand(site, "workspace"), site.arguments.get("grad_output")
    shape = _shape(site, memory, gradient)
    lines = []
    for name, seat in zip(("grad_hy", "grad_cy"), site.results[5:], strict=True):
        if seat is None:
            raise site.refuse("the gradients of its first states have no room")
        if site.arguments.get(name) is not None:
            packed(site, name, None)
    if any(site.results[n] is None for n in (1, 2)):
        raise site.refuse("only gradients of all weights are covered")
    in_weight, weight, *_ = _weights(site)
    later = [site.arguments.get(name) for name in ("grad_output", "grad_hy", "grad_cy")]
    known = (operand(site, "input"), in_weight, weight, dense(site, "output"),
             dense(site, "hx_"), dense(site, "cx_tmp"), memory)  # fmt: skip
    to_in, to_in_weight, to_weight, one, other, *to_first = site.results
    bias, more = (one, other) if other is not None else (None, one)
    made = addresses(site, to_in, to_in_weight, to_weight, bias, more, *to_first)
    lines.append(f"poet_lstm_gradient({made}, {addresses(site, *later, *known)}, {shape});")
    return lines


KERNELS: Table = {
    "aten.mkldnn_rnn_layer": _lstm,
    "aten.mkldnn_rnn_layer_backward": _lstm_gradient,
}
