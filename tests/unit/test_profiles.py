"""Profiles as values, counters of energy, and what class rates do to analytic costs."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poet.costs.analytic import analytic
from poet.devices import find_device
from poet.errors import PoetError
from poet.values.device import Device
from poet.values.graph import Call, Graph, Op, Tensor
from poet.values.profile import StoreSpeed, Timing


def test_a_timing_is_the_median_and_shows_what_stood_out() -> None:
    timing = Timing.of([1.0, 1.1, 0.9, 1.0, 5.0, 1.2, 1.0, 0.8, 1.0, 1.1, 1.0])
    assert timing.seconds == 1.0
    assert (timing.low_seconds, timing.high_seconds) == (0.9, 1.2)
    assert timing.outliers == 1
    assert timing.spread == pytest.approx(0.3)


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=30))
def test_a_timing_lies_within_its_repeats(repeats: list[float]) -> None:
    timing = Timing.of(repeats)
    assert min(repeats) <= timing.low_seconds <= timing.seconds * (1 + 1e-12)
    assert timing.seconds <= timing.high_seconds * (1 + 1e-12) <= max(repeats) * (1 + 1e-9)


def steady(seconds: float) -> Timing:
    return Timing(seconds=seconds, low_seconds=seconds, high_seconds=seconds)


def test_pages_between_the_sizes_measured() -> None:
    speed = StoreSpeed(
        where="here",
        sizes_bytes=(100, 200, 400),
        page_ins=tuple(map(steady, (1.0, 1.5, 3.5))),
        page_outs=tuple(map(steady, (2.0, 2.0, 2.0))),
    )
    assert [speed.in_seconds(n) for n in (1, 100, 150, 200, 300, 400)] == [
        1,
        1,
        1.25,
        1.5,
        2.5,
        3.5,
    ]
    assert speed.in_seconds(800) == 7.0  # in proportion
    assert speed.out_seconds(300) == 2.0


@pytest.mark.parametrize("sizes", [(), (4, 4), (8, 4)])
def test_sizes_that_do_not_grow_are_refused(sizes: tuple[int, ...]) -> None:
    timings = (steady(1.0),) * len(sizes)
    with pytest.raises(ValueError, match="sizes_bytes"):
        StoreSpeed(where="", sizes_bytes=sizes, page_ins=timings, page_outs=timings)


def test_classes_of_work_have_rates_of_their_own() -> None:
    def one_call(kind: str, arguments: dict[str, object]) -> Graph:
        shapes: tuple[tuple[str, tuple[int, ...]], ...] = (
            ("a", (64, 64)),
            ("b", (64, 64)),
            ("c", (64, 64)),
        )
        tensors = tuple(
            Tensor(
                name=name, nbytes=64 * 64 * 4, role="input" if name != "c" else "activation",
                shape=shape, dtype="float32",
            )
            for name, shape in shapes
        )  # fmt: skip
        call = Call(kind=kind, arguments=arguments, results=({"tensor": 2},))
        op = Op(name="f", inputs=(0, 1), outputs=(2,), calls=(call,))
        return Graph(name="g", tensors=tensors, ops=(op,))

    product = one_call("aten.mm", {"self": {"tensor": 0}, "mat2": {"tensor": 1}})
    gelu = one_call("aten.gelu", {"self": {"tensor": 0}})
    plain = find_device("mkr1000-paper")
    assert plain.memory_bytes_per_second is None
    fast = msgspec.structs.replace(
        plain, class_flops_per_second={"products": 10 * plain.flops_per_second}
    )
    for graph, gain in ((product, 10), (gelu, 1)):
        slow, quick = (analytic(graph, board).ops[0]["plain"] for board in (plain, fast))
        assert slow.seconds == pytest.approx(gain * quick.seconds)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("class_flops_per_second", {"products": 0.0}),
        ("class_overhead_seconds", {"products": -1.0}),
        ("compute_speed_in_overlap", 1.5),
    ],
)
def test_absurd_figures_are_refused(field: str, value: object) -> None:
    board = find_device("laptop")
    with pytest.raises(ValueError, match=field):
        Device(**{**msgspec.structs.asdict(board), field: value})


def test_rapl_counts_packages_and_starts_over(tmp_path: Path) -> None:
    from poet.profiling.power import Rapl

    def set_counter(zone: str, energy: int) -> None:
        folder = tmp_path / zone
        folder.mkdir(exist_ok=True)
        (folder / "energy_uj").write_text(f"{energy}\n")
        (folder / "max_energy_range_uj").write_text("1000000\n")

    with pytest.raises(PoetError, match="no RAPL counter"):
        Rapl(tmp_path)
    for zone in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):  # the last is inside the first
        set_counter(zone, 900_000)
    counter = Rapl(tmp_path)
    assert counter.joules() == 0.0
    set_counter("intel-rapl:0", 950_000)
    set_counter("intel-rapl:1", 100_000)  # it started over
    assert counter.joules() == pytest.approx(0.25)
    assert counter.joules() == pytest.approx(0.25)
