"""What the operators in a graph may be given, and the C that is made of it: without torch."""

from typing import Any

import msgspec
import pytest

from poet.calls.shapes.check import has_rule
from poet.errors import PoetError
from poet.firmware.write.kernels import TABLE
from poet.firmware.write.text import c_double, c_float, c_int, check_statement, comment
from poet.values.files import decode_json
from poet.values.graph import Call, Graph
from poet.values.operators import check_whole, schemas

from .small_graphs import one_call, tensor

CODE = '1}; __attribute__((constructor)) static void f(void) { system("touch /tmp/x"); } int a = {1'
IMAGE = {"input": tensor(1, 1, 4, 4), "weight": tensor(1, 1, 3, 3)}
WRONG: list[tuple[str, dict[str, Any], Any]] = [
    ("aten.convolution", IMAGE, {"stride": [CODE, 1]}),
    ("aten.convolution", IMAGE, {"padding": CODE}),
    ("aten.convolution", IMAGE, {"groups": CODE}),
    ("aten.convolution", IMAGE, {"groups": True}),
    ("aten.convolution", IMAGE, {"groups": 2**63}),
    ("aten.convolution", IMAGE, {"transposed": 0}),
    ("aten.nll_loss_forward", {"self": tensor(2, 3)}, {"ignore_index": CODE}),
    ("aten.avg_pool2d", {"self": tensor(1, 2, 2)}, {"kernel_size": "wide"}),
    ("aten.hardtanh", {"self": tensor(4)}, {"min_val": CODE}),
    ("aten.gelu", {"self": tensor(4)}, {"approximate": 1}),
    ("aten.cat", {"tensors": [tensor(4)]}, {"dim": "0"}),
    ("aten.full", {}, {"size": [CODE], "fill_value": 1}),
    ("aten.zeros", {}, {"dtype": "float32", "size": [2]}),
    ("poet.adam", {"parameter": tensor(4)}, {"beta1": CODE}),
    ("poet.adam", {"parameter": tensor(4)}, {"epsilon": [1e-8]}),
]


@pytest.mark.parametrize(("kind", "arrays", "options"), WRONG, ids=str)
def test_arguments_are_of_their_types(kind: str, arrays: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"its argument {next(iter(options))} is .*, not "):
        one_call(kind, arrays, [tensor(4)], **options)


def test_a_file_with_code_in_it_is_not_read() -> None:
    graph = one_call("aten.hardtanh", {"self": tensor(4)}, [tensor(4)], min_val=0.5, max_val=6.0)
    text = msgspec.json.encode(graph)
    decode_json(text, Graph, "x.json")
    with pytest.raises(PoetError, match=r"x.json.*min_val is '1\}; __attribute__"):
        decode_json(text.replace(b"0.5", msgspec.json.encode(CODE)), Graph, "x.json")


@pytest.mark.parametrize("tagged", [{"float": "1e999"}, {"dtype": "a b"}, {"device": "cpu;"}])
def test_words_for_what_json_lacks_are_few(tagged: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="an argument POET does not know"):
        one_call("mine.op", {"self": tensor(4)}, [tensor(4)], x=tagged)


def test_an_operator_that_poet_does_not_know_is_data() -> None:
    graph = one_call("aten.from_file", {}, [tensor(4)], filename="/tmp/x", shared=True, size=4)
    (call,) = graph.ops[0].calls
    with pytest.raises(ValueError, match="does not know the operator"):
        check_whole(call.kind, call.arguments, call.results)


@pytest.mark.parametrize(
    ("arguments", "results", "why"),
    [
        ({"self": 1}, 1, "its argument mat2 is missing"),
        ({"self": 1, "mat2": 1, "out": 1}, 1, "does not know its argument out"),
        ({"self": 1, "mat2": 1}, 2, "it has 2 results, not 1"),
    ],
)
def test_a_call_is_whole(arguments: dict[str, Any], results: int, why: str) -> None:
    call = Call(kind="aten.mm", arguments=arguments, results=(None,) * results)
    with pytest.raises(ValueError, match=why):
        check_whole(call.kind, call.arguments, call.results)


def test_no_operator_that_writes_is_known() -> None:
    """Nor one that a file, a name or a generator of random numbers is given to."""
    for kind, schema in schemas().items():
        assert not kind.endswith(("_", "_out", ".out")), kind
        types = {parameter.type for parameter in schema.parameters.values()}
        assert not types & {"Generator", "Storage", "Dimname", "Stream"}, kind
    assert "aten.from_file" not in schemas()


def test_every_kernel_has_an_operator_and_a_rule_for_its_shapes() -> None:
    families = {".".join(kind.split(".", 2)[:2]) for kind in schemas()}
    for kind in TABLE:
        assert kind in schemas() or kind in families, kind
        assert has_rule(kind), kind


# C text


@pytest.mark.parametrize("make", [c_int, c_float, c_double])
@pytest.mark.parametrize("value", [CODE, "1", None, [1], {"float": "inf"}, b"1"])
def test_only_numbers_become_literals(make: Any, value: Any) -> None:
    with pytest.raises(ValueError, match="is no"):
        make(value)


def test_numbers_that_c_has_not() -> None:
    with pytest.raises(ValueError, match="no whole number"):
        c_int(2**63)
    with pytest.raises(ValueError, match="no finite number"):
        c_double(float("inf"))
    assert (c_int(-(2**40)), c_int(7)) == ("-1099511627776LL", "7")


@pytest.mark.parametrize(
    "text",
    [
        "system(1);",
        'poet_relu(t_x, t_y, "a");',
        "poet_relu(t_x, t_z, 4);",
        "poet_relu(t_x, t_y, 4); /* 1 */ asm(1);",
        "poet_relu(t_x, t_y, 4);\n#include <stdlib.h>",
        "poet_relu(t_x, t_y, 4); __asm__(1);",
        "poet_relu(t_x, t_y, '4');",
        "poet_relu(t_x, t_y, 4x);",
        "poet_relu(t_x, t_y, 0x1p3.system);",
        "poet_relu(t_x, t_y, ??/4);",
    ],
)
def test_a_statement_has_no_words_but_poets(text: str) -> None:
    check_statement("poet_relu(t_x, t_y + 12, 1.5e-05f);", {"t_x", "t_y"})
    with pytest.raises(ValueError, match="is no word of its C"):
        check_statement(text, {"t_x", "t_y"})


@pytest.mark.parametrize("name", ["*/ int x; /*", "*\\\n/", "a\nb", "*??/\n/", "é*/", "\x00*/"])
def test_a_name_cannot_end_its_comment(name: str) -> None:
    text = f"/* {comment(name)} */"
    assert text.count("*") == 2
    assert text.isascii()
    assert text.isprintable()
