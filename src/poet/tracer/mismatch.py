"""Mismatch: why a plan does not belong to a program, as far as the two graphs can tell."""

from collections import Counter

from poet.values.graph import Graph, Role


def likely_cause(planned: Graph, captured: Graph) -> str:
    """One sentence: another model, another shape, other options, or another version of torch."""
    if _shapes(planned, "parameter") != _shapes(captured, "parameter"):
        mine, other = _shapes(captured, "parameter"), _shapes(planned, "parameter")
        differing = min((other - mine) or (mine - other), key=str)
        return (
            f"The models differ: parameter {differing[0]} of shape {list(differing[1] or ())} is "
            "in one of them only. Plan again for this model."
        )
    mine_in, other_in = _shapes(captured, "input"), _shapes(planned, "input")
    if mine_in != other_in:
        texts = [
            ", ".join(
                f"{name} {list(shape or ())} {dtype}"
                for name, shape, dtype in sorted(found, key=str)
            )
            for found in (other_in - mine_in, mine_in - other_in)
        ]
        return (
            f"The inputs differ: the plan has {texts[0] or 'fewer'}, the program has "
            f"{texts[1] or 'fewer'}. Plan again for this batch shape and optimizer."
        )
    if _shapes(planned, "optimizer_state") != _shapes(captured, "optimizer_state"):
        return "The optimizers differ. Plan again with this one."
    kinds, other_kinds = _kinds(captured), _kinds(planned)
    if kinds != other_kinds:
        apart = sorted((kinds - other_kinds) | (other_kinds - kinds))
        return (
            f"Model and inputs are the same, the calls are not ({', '.join(apart[:4])}): another "
            "version of torch or transformers, training or evaluation mode, or changed code. "
            "Plan again."
        )
    return (
        "Model, inputs and calls are the same, their arguments or grouping are not: another "
        "granularity, dropout rate or optimizer setting. Plan again."
    )


def _shapes(graph: Graph, role: Role) -> set[tuple[str, tuple[int, ...] | None, str | None]]:
    return {
        (graph.tensors[i].name, graph.tensors[i].shape, graph.tensors[i].dtype)
        for i in graph.given
        if graph.tensors[i].role == role
    }


def _kinds(graph: Graph) -> Counter[str]:
    return Counter(call.kind for op in graph.ops for call in op.calls)
