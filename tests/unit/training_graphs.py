"""Training steps in small: chains whose every number is known, and networks with parameters."""

from random import Random

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
