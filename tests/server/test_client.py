"""The client: what the library gives, from a service, with Ctrl-C, and errors that say what is."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import msgspec
import pytest
from benchmarks.serving import Served, served

import poet
from poet.planning.frontier import Frontier
from poet.server.client import Client
from poet.values.progress import SearchProgress
from tests.conftest import INSTANCES

FILE = str(INSTANCES / "linear-m4.json")
LARGE = str(INSTANCES / "bert-m4.json")
TOKEN = "a token of some length"
MEASURED = {"solve_seconds": None, "first_seconds": None}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("jobs"), "--token", TOKEN, "--workers", "2") as service:
        yield service


@pytest.fixture
def client(service: Served) -> Client:
    return poet.connect(service.address, token=TOKEN)


def unmeasured(value: Any) -> Any:
    return msgspec.structs.replace(value, **MEASURED)


@pytest.mark.parametrize(
    "asked",
    [{"ram": "60%"}, {"ram": 1000}, {"ram": "70%", "deadline": "1.5x", "minimize": "seconds"}],
)
def test_a_plan_of_a_file_is_the_librarys(client: Client, asked: dict[str, Any]) -> None:
    found = client.plan(FILE, work_limit=1, **asked)
    assert unmeasured(found) == unmeasured(poet.plan(FILE, work_limit=1, **asked))


def test_an_instance_is_planned_with_its_own_costs(client: Client) -> None:
    problem = poet.read_instance(FILE)
    found = client.plan(problem, "rpi4", "62%", work_limit=1)
    assert unmeasured(found) == unmeasured(poet.plan(problem, "rpi4", "62%", work_limit=1))
    assert found.budget.transfers == "free"


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_program_is_planned_wherever_its_parameters_fit(client: Client, is_fused: bool) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 10))
    example = (torch.randn(4, 64), torch.randint(0, 10, (4,)))
    program = poet.capture(
        model, torch.nn.functional.cross_entropy, poet.SGD(lr=0.1), example=example,
        fuse_updates=is_fused,
    )  # fmt: skip
    for ram in ("80%", 30_000):  # resident; and less than the parameters
        found = client.plan(program, "rpi4", ram, work_limit=1)
        wanted = poet.plan(program, "rpi4", ram, work_limit=1)
        assert found.schedule != ()
        assert unmeasured(found) == unmeasured(wanted)


def test_costs_and_boards_of_ones_own_travel(client: Client) -> None:
    board = msgspec.structs.replace(poet.find_device("rpi4"), name="mine", ram_bytes=3 << 30)
    problem = poet.read_instance(FILE)
    costs = msgspec.structs.replace(problem.costs, device="measured")
    terms: dict[str, Any] = {"device": board, "costs": costs, "ram": "70%", "work_limit": 1}
    found = client.plan(problem.graph, **terms)
    assert unmeasured(found) == unmeasured(poet.plan(problem.graph, **terms))


def test_comparisons_and_frontiers_are_the_librarys(client: Client) -> None:
    methods = ("chen-sqrt", "revolve")
    rows = client.compare(FILE, ram="60%", methods=methods, time_limit=1)
    wanted = poet.compare(FILE, ram="60%", methods=methods, time_limit=1)
    assert list(map(unmeasured, rows)) == list(map(unmeasured, wanted))
    found = client.frontier(FILE, points=3, methods=["chen-sqrt"], time_limit=1)
    assert isinstance(found, Frontier)
    assert [len(point.rows) for point in found.points] == [1, 1, 1]


def test_ctrl_c_cancels_there_and_gives_the_best_so_far(client: Client) -> None:
    def interrupt(now: SearchProgress) -> None:
        if now.joules:
            os.kill(os.getpid(), signal.SIGINT)

    terms: dict[str, Any] = {"ram": "45%", "gap": 0.0, "time_limit": 600}
    found = client.plan(LARGE, **terms, progress=interrupt)
    assert poet.check(found).valid
    assert _unfinished(client) == 0


def test_who_waits_for_the_same_goes_on_when_another_cancels(client: Client) -> None:
    terms: dict[str, Any] = {"ram": "47%", "gap": 0.0, "time_limit": 6, "seed": 5}
    found: list[poet.Plan] = []
    other = threading.Thread(target=lambda: found.append(client.plan(LARGE, **terms)))

    def interrupt(now: SearchProgress) -> None:
        if now.joules and not other.is_alive():
            other.start()
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGINT)

    assert client.plan(LARGE, **terms, progress=interrupt).schedule
    other.join(60)
    assert found[0].solve_seconds is not None
    assert found[0].solve_seconds > 5


def _unfinished(client: Client) -> int:
    told = client._service.ask("GET", "/api/health")
    return int(msgspec.json.decode(told)["unfinished"])


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda client: client.plan("lenett", "rpi4"), "no model named 'lenett'"),
        (lambda client: client.plan("lenet", "nowhere"), "there is no board 'nowhere'"),
        (lambda client: client.plan("lenet"), "give a device"),
        (lambda client: client.plan(FILE, ram="lots"), "is not a size"),
        (lambda client: client.plan(FILE, time_limit=float("inf")), "must be a finite number"),
        (lambda client: client.plan(FILE, time_limit=1e6), "at most 600 s"),
        (lambda client: client.plan("no/such.json"), "cannot read no/such.json"),
        (lambda client: client.plan("lenet", "no/such.toml"), "cannot read no/such.toml"),
        (lambda client: client.compare(FILE, methods=["magic"]), "no method 'magic'"),
        (lambda client: client.frontier(FILE, points=1), "points"),
        (lambda client: client.plan(3), "cannot be planned"),
    ],
)
def test_what_cannot_be_asked_is_said(client: Client, call: Any, told: str) -> None:
    with pytest.raises(poet.PoetError, match=told):
        call(client)


def test_addresses_and_tokens_are_checked_at_once(service: Served) -> None:
    for token, told in ((None, "is needed by"), ("another, of some length", "is not the one of")):
        with pytest.raises(poet.PoetError, match=told):
            poet.connect(service.address, token=token)
    for address in ("127.0.0.1:8000", "ftp://here", "http://", "http://a:b@here", "http://x:y"):
        with pytest.raises(poet.PoetError, match=r"address"):
            poet.connect(address)
    with pytest.raises(poet.PoetError, match="printable"):
        poet.connect(service.address, token="a\r\nHost: b")
    with pytest.raises(poet.PoetError, match="does not answer"):
        poet.connect("http://127.0.0.1:9")


def test_what_is_no_service_is_told() -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"hi")

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(poet.PoetError, match="is no POET service"):
                poet.connect(f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
