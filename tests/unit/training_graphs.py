"""Training steps in small: chains whose every number is known, and networks with parameters."""

from random import Random

import msgspec

from poet import Costs, Graph, InPlace, Op, Run, Tensor, Transfer


def chain(
    nbytes: list[int],
    joules: list[float] | None = None,
    backward_joules: list[float] | None = None,
    paging: tuple[float, float] = (1.0, 1.0),
    gradient_bytes: int = 1,
) -> tuple[Graph, Costs]:
    """x_0 is given; op i makes x_{i+1} from x_i; backward goes back and reads x_i and x_{i+1}.

    An op takes as many seconds as it has joules; `paging` are the seconds and joules of a transfer
    for each byte.
    """
    steps = len(nbytes) - 1
    joules = joules or [1.0] * steps
    backward_joules = backward_joules or [1.0] * steps
    tensors = [Tensor(name="x0", nbytes=nbytes[0], role="input")]
    tensors += [Tensor(name=f"x{i + 1}", nbytes=nbytes[i + 1]) for i in range(steps)]
    ops = [Op(name=f"f{i}", inputs=(i,), outputs=(i + 1,)) for i in range(steps)]
    amounts = list(joules)
    before: tuple[int, ...] = ()
    for i in reversed(range(steps)):
        tensors.append(Tensor(name=f"g{i}", nbytes=gradient_bytes, role="gradient"))
        made = len(tensors) - 1
        ops.append(Op(name=f"b{i}", phase="backward", inputs=(i, i + 1, *before), outputs=(made,)))
        before = (made,)
        amounts.append(backward_joules[i])
    graph = Graph(name="chain", tensors=tuple(tensors), ops=tuple(ops))
    return graph, costs_of(graph, amounts, paging)


def costs_of(graph: Graph, joules: list[float], paging: tuple[float, float]) -> Costs:
    seconds_per_byte, joules_per_byte = paging
    return Costs(
        graph=graph.fingerprint,
        device="a test",
        ops=tuple({"plain": Run(seconds=amount, joules=amount)} for amount in joules),
        tensors=tuple(
            Transfer(
                in_seconds=seconds_per_byte * t.nbytes,
                in_joules=joules_per_byte * t.nbytes,
                out_seconds=seconds_per_byte * t.nbytes,
                out_joules=joules_per_byte * t.nbytes,
            )
            for t in graph.tensors
        ),
    )


def network(rng: Random, layers: int, paging: tuple[float, float] = (0.1, 0.1)) -> "Network":
    """Layers with a parameter each, skips, by-products, and updates inside backward.

    Backward of a layer reads what it read and made, makes the gradients of its input and of its
    parameter, and the update consumes the parameter right after.
    """
    tensors: list[Tensor] = []
    ops: list[Op] = []

    def tensor(role: str, nbytes: int, becomes: int | None = None) -> int:
        name = f"{role}{len(tensors)}"
        tensors.append(Tensor(name=name, nbytes=nbytes, role=role, becomes=becomes))  # type: ignore[arg-type]
        return len(tensors) - 1

    weights = [tensor("parameter", rng.randint(1, 8)) for _ in range(layers)]
    last = tensor("input", 16)
    reads: list[tuple[int, ...]] = []
    makes: list[tuple[int, ...]] = []
    old: list[int] = []
    for k in range(layers):
        skip = (rng.choice(old),) if old and rng.random() < 0.3 else ()
        outputs = [tensor("activation", rng.choice((8, 16, 32)))]
        if rng.random() < 0.3:
            outputs.append(tensor("activation", rng.randint(0, 8)))
        reads.append(tuple(dict.fromkeys((last, weights[k], *skip))))
        makes.append(tuple(outputs))
        ops.append(Op(name=f"layer{k}", inputs=reads[-1], outputs=makes[-1]))
        old.append(last)
        last = outputs[0]
    loss = tensor("output", 4)
    ops.append(Op(name="loss", inputs=(last,), outputs=(loss,)))
    gradient = tensor("gradient", tensors[last].nbytes)
    ops.append(Op(name="loss", phase="backward", inputs=(last,), outputs=(gradient,)))
    for k in reversed(range(layers)):
        of_input = tensor("gradient", tensors[reads[k][0]].nbytes)
        of_weight = tensor("gradient", tensors[weights[k]].nbytes)
        inputs = tuple(dict.fromkeys((*reads[k], *makes[k], gradient)))
        ops.append(
            Op(name=f"layer{k}", phase="backward", inputs=inputs, outputs=(of_input, of_weight))
        )
        new = tensor("parameter", tensors[weights[k]].nbytes, becomes=weights[k])
        ops.append(
            Op(
                name=f"update{k}",
                phase="update",
                inputs=(weights[k], of_weight),
                outputs=(new,),
                in_place=(InPlace(output=new, input=weights[k]),),
                recomputable=False,
            )
        )
        gradient = of_input
    graph = Graph(name="network", tensors=tuple(tensors), ops=tuple(ops))
    return graph, costs_of(graph, [rng.uniform(0.5, 4.0) for _ in ops], paging)


Network = tuple[Graph, Costs]


def deep(layers: int) -> tuple[Graph, Costs]:
    """Equal blocks of a residual network: two dear products with cheap ops between, 15 ops each.

    Forward: a = x·V, b = f(a), c = g(b), y = x + c·W. Backward reads a, b, c and x.
    """
    tensors: list[Tensor] = []
    ops: list[Op] = []
    amounts: list[float] = []

    def tensor(role: str, nbytes: int, becomes: int | None = None) -> int:
        name = f"{role}{len(tensors)}"
        tensors.append(Tensor(name=name, nbytes=nbytes, role=role, becomes=becomes))  # type: ignore[arg-type]
        return len(tensors) - 1

    def run(joules: float, inputs: tuple[int, ...], nbytes: int, phase: str = "forward") -> int:
        made = tensor("activation" if phase == "forward" else "gradient", nbytes)
        ops.append(Op(name=f"op{len(ops)}", phase=phase, inputs=inputs, outputs=(made,)))  # type: ignore[arg-type]
        amounts.append(joules)
        return made

    def update(weight: int, gradient: int) -> None:
        new = tensor("parameter", tensors[weight].nbytes, becomes=weight)
        pair = (InPlace(output=new, input=weight),)
        op = Op(name=f"op{len(ops)}", phase="update", inputs=(weight, gradient), outputs=(new,))
        ops.append(msgspec.structs.replace(op, in_place=pair, recomputable=False))
        amounts.append(0.1)

    weights = [(tensor("parameter", 20), tensor("parameter", 20)) for _ in range(layers)]
    x = tensor("input", 100)
    tape = []
    for v, w in weights:
        a = run(10.0, (x, v), 400)
        b = run(0.1, (a,), 400)
        c = run(0.2, (b,), 400)
        d = run(10.0, (c, w), 100)
        y = run(0.1, (x, d), 100)
        tape.append((x, a, b, c))
        x = y
    g = run(1.0, (x,), 100, "backward")
    for (x, a, b, c), (v, w) in zip(reversed(tape), reversed(weights), strict=True):
        gc = run(10.0, (g, w), 400, "backward")
        gw = run(10.0, (g, c), 20, "backward")
        update(w, gw)
        gb = run(0.2, (gc, c), 400, "backward")
        ga = run(0.2, (gb, a, b), 400, "backward")
        gv = run(10.0, (ga, x), 20, "backward")
        gx = run(10.0, (ga, v), 100, "backward")
        update(v, gv)
        g = run(0.1, (g, gx), 100, "backward")
    graph = Graph(name="deep", tensors=tuple(tensors), ops=tuple(ops))
    return graph, costs_of(graph, amounts, (1.0, 1.0))
