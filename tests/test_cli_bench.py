"""``velaray bench``: its loads on a cluster, its figures, and its files."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

from tests.support.local_cluster import LocalCluster
from tests.support.samples import samples
from velaray import Client
from velaray.bench.clock import precise_loop, wall_clock
from velaray.bench.histogram import MAX_NS, Histogram, percentile_table
from velaray.bench.load import Load
from velaray.bench.producing import LoadProducer, Sending
from velaray.bench.server_figures import figures, parse
from velaray.bench.stamps import Stamps
from velaray.cli.app import main
from velaray.client.exceptions import Timeout

Run = Callable[..., Result]
QUICK = ("--warmup", "0", "--size", "100")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def run(cluster: LocalCluster) -> Run:
    where = {"VELARAY_ADMIN_URL": cluster.admin_url, "VELARAY_SERVICE_URL": cluster.service_url}

    def invoke(*arguments: str, code: int = 0) -> Result:
        result = CliRunner(env=where).invoke(main, ["bench", *arguments])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return invoke


def report(run: Run, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, *QUICK, "-o", "json").stdout)
    return found


# -- loads on a cluster ------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--batching", "none"),
        ("--list", "50"),
        ("--type", "shared", "--consumers", "2", "--producers", "2"),
        ("--type", "failover", "--subscriptions", "2"),
        ("--type", "key_shared", "--keys", "7", "--batching", "key", "--consumers", "2"),
        ("--topics", "2", "--keys", "3", "--list", "20"),
        ("--rate", "2000", "--in-flight", "10"),
        ("--rate", "2000", "--list", "20", "--producers", "2"),
    ],
)
def test_everything_that_was_sent_is_received(run: Run, arguments: tuple[str, ...]) -> None:
    found = report(run, f"load{abs(hash(arguments))}", "-n", "500", *arguments)
    times = 2 if "--subscriptions" in arguments else 1
    sent, received = found["client"]["produced"], found["client"]["received"]
    assert (sent["messages"], sent["failures"]) == (500, 0)
    assert received["expected"] == received["ofThisRun"] == received["messages"] == 500 * times
    assert found["load"]["loop"] == ("open" if "--rate" in arguments else "closed")
    for latency in (sent["latencyMs"], received["latencyMs"]):
        assert 0 < latency["p50"] <= latency["p99"] <= latency["p99.999"] <= latency["max"]
    assert found["server"]["messagesIn"] == 500
    assert found["server"]["bytesIn"] > 50_000
    assert found["server"]["cpuSeconds"] > 0
    assert found["server"]["writeLatencyP50Ms"] <= found["server"]["writeLatencyP99Ms"]


def test_the_examples_of_the_page_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (sample,) = [each for each in samples("docs/load-tests.md") if each.test]
    for line in sample.code.splitlines():
        arguments = shlex.split(line, comments=True)[2:]
        run(*arguments, "-n", "200", "--warmup", "0", "-s", f"s{len(line)}")
    assert {each.name for each in tmp_path.iterdir()} == {
        *("orders.hlog", "orders.produced.hgrm", "orders.received.hgrm")
    }


def test_the_rate_is_kept(run: Run) -> None:
    found = report(run, "paced", "--rate", "300", "--duration", "1")
    sent = found["client"]["produced"]
    assert (sent["messages"], found["client"]["notSent"]) == (300, 0)
    assert sent["messagesPerSecond"] < 310


def test_lines_are_those_of_pulsar_perf(run: Run) -> None:
    lines = run("lines", "--rate", "500", "--duration", "1", "--interval", "0.4", *QUICK).stdout
    number = r" *[\d.]+"
    levels = rf"Latency: mean:{number} ms - med:{number} - 95pct:{number} - 99pct:{number} - "
    interval = rf"{levels}99.9pct:{number} - 99.99pct:{number} - Max:{number}"
    received = rf"{number} msg --- {number}  msg/s ---{number} Mbit/s"
    total = rf"{levels}99.9pct:{number} - 99.99pct:{number} - 99.999pct:{number} - Max:{number}"
    rates = rf"{number} msg/s ---{number} Mbit/s"
    for form in (
        rf"Throughput produced: {number} msg --- {rates}  --- failure {number} msg/s"
        rf" --- {interval}",
        rf"Throughput received: {received}  --- {interval}",
        rf"Aggregated throughput stats --- 500 records sent --- {rates}",
        rf"Aggregated throughput stats --- 500 records received --- {rates} --- AckRate: {number}"
        "  msg/s --- ack failed 0 msg",
        rf"Aggregated latency stats --- {total}",
        r"Open loop: 500 msg/s intended --- sent late by: .* --- 0 not sent",
        r"Client: .* CPU s --- .* % of one core",
        r"Server: messagesIn 500 --- .*",
    ):
        assert re.search(rf"^{form}$", lines, flags=re.MULTILINE), (form, lines)
    assert lines.count("Throughput produced") == 2


def test_histograms_are_read_by_others(run: Run, tmp_path: Path) -> None:
    prefix = tmp_path / "load"
    options = ("--rate", "500", "--duration", "1", "--interval", "0.4")
    found = report(run, "kept", *options, "--histograms", str(prefix))["client"]
    reader = HistogramLogReader(f"{prefix}.hlog", HdrHistogram(1, MAX_NS, 3))
    sums = {"produced": HdrHistogram(1, MAX_NS, 3), "received": HdrHistogram(1, MAX_NS, 3)}
    while (each := reader.get_next_interval_histogram()) is not None:
        sums[each.get_tag()].add(each)
    for name, found_sum in sums.items():
        latency = found[name]["latencyMs"]
        assert found_sum.get_total_count() == 500
        assert round(found_sum.get_max_value() / 1e6, 3) == latency["max"]
        table = Path(f"{prefix}.{name}.hgrm").read_text(encoding="utf-8")
        assert f"{latency['p50']:12.3f} 0.500000000000" in table
        assert f"{latency['max']:12.3f} 1.000000000000        500\n" in table


def test_consumers_of_other_programs_messages(run: Run, cluster: LocalCluster) -> None:
    with Client(cluster.service_url) as client:
        client.subscribe("others", "bench")
        producer = client.create_producer("others")
        for number in range(20):
            producer.send(b"%d" % number)
    found = report(run, "others", "--producers", "0", "-n", "20")["client"]
    assert "produced" not in found
    assert (found["received"]["messagesWithWarmup"], found["received"]["expected"]) == (20, 0)


def test_producers_alone_and_a_server_without_figures(run: Run, cluster: LocalCluster) -> None:
    options = ("alone", "-n", "50", "--consumers", "0", *QUICK)
    found = json.loads(run(*options, "--admin-url", "http://127.0.0.1:9", "-o", "json").stdout)
    assert "received" not in found["client"]
    assert "127.0.0.1:9" in found["server"]["unavailable"]
    bare = CliRunner().invoke(main, ["bench", *options, "--service-url", cluster.service_url])
    assert "Server: no figures: give --admin-url" in bare.stdout


def test_a_run_within_the_warm_up_says_so(run: Run) -> None:
    lines = run("early", "-n", "10", "--warmup", "60").stdout
    assert "All 10 messages were sent in the warm-up of 60 s" in lines


def test_failures_are_counted_and_end_with_an_error(run: Run, cluster: LocalCluster) -> None:
    with Client(cluster.service_url) as client:
        client.create_producer("small").send(b"x")
    too_big = str(6 << 20)
    result = run("small", "-n", "3", "--size", too_big, "--warmup", "0", code=1)
    assert "3 messages failed: MessageTooBig" in result.stdout
    assert "3 messages failed, 0 weren't received" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--producers", "0", "--consumers", "0"), "neither producers nor consumers"),
        (("--consumers", "2"), "an exclusive subscription has one consumer"),
        (("--batching", "key"), "--batching key needs --keys"),
        (("--size", "15"), "15 is not in the range"),
    ],
)
def test_loads_that_make_no_sense(run: Run, arguments: tuple[str, ...], said: str) -> None:
    assert said in run("none", *arguments, code=2).stderr


@pytest.mark.slow
def test_on_a_cluster_of_its_own(tmp_path: Path) -> None:
    code = "from velaray.cli.app import main; main(prog_name='velaray')"
    command = [sys.executable, "-c", code]
    ports = "--service-port", "0", "--admin-port", "0"
    start = [*command, "start", "--local", "-o", "json", "--data", str(tmp_path / "data"), *ports]
    with subprocess.Popen(start, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        where = json.loads(started.stdout.readline())
        urls = "--service-url", where["service"][0], "--admin-url", where["admin"][0]
        load = "--rate", "1000", "--duration", "2", "--warmup", "0.5", "-o", "json"
        done = subprocess.run(
            [*command, "bench", "load", *load, *urls], capture_output=True, text=True, check=True
        )
        started.terminate()
        started.stdout.read()
    found = json.loads(done.stdout)
    assert found["client"]["produced"]["messages"] == 2000
    assert found["client"]["received"]["ofThisRun"] == 2500
    assert found["server"]["messagesIn"] == 2500


@pytest.mark.slow
def test_an_interrupted_run_shows_what_it_found(cluster: LocalCluster) -> None:
    code = "from velaray.cli.app import main; main(prog_name='velaray')"
    options = "--rate", "100", "--duration", "600", "--interval", "0.3", *QUICK
    command = [sys.executable, "-c", code, "bench", "cut", *options]
    with subprocess.Popen(
        [*command, "--service-url", cluster.service_url], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("Throughput produced")
        running.send_signal(signal.SIGINT)
        rest = running.stdout.read()
    assert running.returncode == 0
    assert "Aggregated throughput stats" in rest and "--- 0 not sent" in rest


# -- the open loop -----------------------------------------------------------------


class StallingProducer:
    """A producer whose receipts all come at once, after a stall."""

    def __init__(self, stall_s: float) -> None:
        self._until = asyncio.get_running_loop().time() + stall_s

    def submit(self, message: Any, done: Callable[[Any, Any], None]) -> None:
        loop = asyncio.get_running_loop()
        loop.call_at(max(self._until, loop.time()), done, None, "id")


async def latencies(load: Load, stall_s: float) -> Sending:
    clock = wall_clock()
    sending = Sending(load, clock, Stamps(load.size), clock(), 1)
    await LoadProducer(sending, StallingProducer(stall_s), 0).run()  # type: ignore[arg-type]
    sending.meter.cut()
    return sending


def test_a_stall_delays_all_messages_that_were_intended_meanwhile() -> None:
    common: dict[str, Any] = {"topic": "t", "warmup_s": 0, "in_flight": 1, "size": 16}
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        opened = runner.run(latencies(Load(**common, rate=1000, duration_s=0.6), 0.3))
        closed = runner.run(latencies(Load(**common, messages=600), 0.3))
    # 300 of 600 messages were due within the stall: half of these waited for 150 ms and more.
    assert opened.meter.stored == 600
    assert opened.meter.total.latency.percentile(76) > 145e6
    assert opened.lateness.percentile(76) > 145e6
    # The closed loop waits with the server: only one of its messages shows the stall.
    assert closed.meter.total.latency.max > 290e6
    assert closed.meter.total.latency.percentile(99) < 145e6


def test_what_there_was_no_time_for_is_counted() -> None:
    load = Load(topic="t", warmup_s=0, in_flight=1, size=16, rate=100, duration_s=0.1)
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        found = runner.run(latencies(load, 1.2))
    assert (found.meter.stored, found.unsent) == (1, 9)


def test_failures_are_told_apart() -> None:
    load = Load(topic="t", warmup_s=0, messages=1)
    sending = Sending(load, wall_clock(), Stamps(16), 0, 1)
    sending.failed(5, 3, Timeout("late"))
    sending.failed(5, 1, Timeout("late"))
    assert dict(sending.errors) == {"Timeout: late": 4}
    assert sending.meter.cut().failures == 4


# -- histograms and the server's metrics -------------------------------------------


def test_histograms_agree_with_hdrhistogram() -> None:
    chance = random.Random(7)
    ours, theirs = Histogram(), HdrHistogram(1, MAX_NS, 3)
    values = [0, 1, 2047, 2048, 2049, MAX_NS]
    values += [round(min(chance.lognormvariate(14, 3), MAX_NS)) for _ in range(5000)]
    for value in values:
        ours.record(value, 2)
        theirs.record_value(value, 2)
    decoded = HdrHistogram.decode(ours.encoded().encode())
    assert decoded.equals(theirs)
    for share in (25, 50, 90, 99, 99.9, 100):
        assert ours.percentile(share) == theirs.get_value_at_percentile(share)
    assert ours.mean() == pytest.approx(theirs.get_mean_value())
    assert ours.deviation() == pytest.approx(theirs.get_stddev())
    assert ours.max == theirs.get_max_value()
    added = Histogram()
    added.add(ours)
    added.add(ours)
    assert (added.count, added.percentile(99)) == (2 * ours.count, ours.percentile(99))


def test_values_out_of_range_are_kept_in_it() -> None:
    found = Histogram()
    found.record(-5)
    found.record(2 * MAX_NS)
    assert (found.percentile(1), found.count) == (0, 2)
    assert found.max >= MAX_NS
    empty = Histogram()
    assert (empty.percentile(99), empty.mean(), empty.deviation(), empty.max) == (0, 0.0, 0.0, 0)
    assert HdrHistogram.decode(empty.encoded().encode()).get_total_count() == 0
    assert percentile_table(empty).splitlines()[-1].startswith("#[Buckets")


def test_a_table_has_the_levels_of_hdrhistogram() -> None:
    found = Histogram()
    for value in range(1, 101):
        found.record(value * 1_000_000)
    lines = percentile_table(found).splitlines()
    assert lines[:2] == ["       Value     Percentile TotalCount 1/(1-Percentile)", ""]
    assert lines[2] == "       1.000 0.000000000000          1           1.00"
    shares = [float(line.split()[1]) for line in lines[2:13]]
    assert shares == [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75]
    assert lines[-4].split()[1:] == ["1.000000000000", "100"]


def test_figures_of_velaray_and_of_pulsar() -> None:
    topic = "persistent://public/default/t"
    labels = f'cluster="c",topic="{topic}-partition-0"'
    before = parse("", {topic})
    after = parse(
        f"""# HELP pulsar_in_messages_total Messages published.
pulsar_in_messages_total{{{labels}}} 1000.0
pulsar_in_messages_total{{cluster="c",topic="{topic}-2"}} 7
pulsar_out_messages_total{{{labels},subscription="a"}} 400
pulsar_out_messages_total{{{labels},subscription="b"}} 300 1395066363000
process_cpu_seconds_total 2.5
velaray_storage_write_latency_seconds_bucket{{{labels},le="0.001"}} 50
velaray_storage_write_latency_seconds_bucket{{{labels},le="0.003"}} 100
velaray_storage_write_latency_seconds_bucket{{{labels},le="+Inf"}} 100
""",
        {topic},
    )
    assert figures(before, after) == {
        "messagesIn": 1000,
        "messagesOut": 700,
        "bytesIn": None,
        "bytesOut": None,
        "cpuSeconds": 2.5,
        "cpuSecondsPerMillionIn": 2500.0,
        "writeLatencyP50Ms": 1.0,
        "writeLatencyP99Ms": 2.96,
    }
    both = parse(f"pulsar_out_messages_total{{{labels}}} 7\n", {topic})
    both.counters["pulsar_out_messages_total of subscriptions"] = 7
    assert figures(before, both)["messagesOut"] == 7
