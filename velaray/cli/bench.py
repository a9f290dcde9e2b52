"""``velaray bench``: a load generator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from velaray.cli.common import Addresses, Command, Output, with_addresses
from velaray.client.admin import AdminError
from velaray.client.enums import BatchingType, ConsumerType, InitialPosition
from velaray.events.ids import TopicName

if TYPE_CHECKING:
    from velaray.bench.load import Load
    from velaray.bench.report import Server
    from velaray.bench.run import Interval, Outcome

_TYPES = {
    "exclusive": ConsumerType.Exclusive,
    "failover": ConsumerType.Failover,
    "shared": ConsumerType.Shared,
    "key_shared": ConsumerType.KeyShared,
}
_STARTS = {"earliest": InitialPosition.Earliest, "latest": InitialPosition.Latest}
_BATCHING = {"none": None, "default": BatchingType.Default, "key": BatchingType.KeyBased}
_LEAST_SIZE = 16
_DEFAULT_S = 10.0


def _number(
    name: str, default: int, text: str, least: int = 1, field: str | None = None
) -> Callable[[Command], Command]:
    """An option for a number; ``field``: its name in `Load`, if that isn't the option's."""
    kind, names = click.IntRange(min=least), (name, field) if field else (name,)
    return click.option(*names, type=kind, default=default, show_default=True, help=text)


def _seconds(
    name: str, default: float | None, text: str, *, above_0: bool = True
) -> Callable[[Command], Command]:
    kind = click.FloatRange(min=0, min_open=above_0)
    return click.option(name, type=kind, default=default, show_default=True, help=text)


@click.command()
@click.argument("topic")
@_number("--topics", 1, "Use so many topics, which are called TOPIC-0, TOPIC-1 and so on.")
@_number("--producers", 1, "Producers of each topic; 0: none.", 0)
@_number("--consumers", 1, "Consumers of each subscription; 0: none.", 0)
@click.option("-s", "--subscription", default="bench", show_default=True, help="Its name.")
@_number("--subscriptions", 1, "Subscriptions of each topic, which are numbered from 0.")
@click.option(
    "--type",
    "kind",
    type=click.Choice(list(_TYPES)),
    default="exclusive",
    show_default=True,
    help="Type of the subscriptions.",
)
@click.option(
    "--start",
    type=click.Choice(list(_STARTS)),
    default="latest",
    show_default=True,
    help="Where new subscriptions start.",
)
@_seconds(
    "--rate",
    None,
    "Open loop: messages a second of all producers, sent at intended times from which latency is "
    "measured.  [default: closed loop, as fast as receipts come]",
)
@_number("--in-flight", 1000, "The most messages of a producer that wait for receipts.")
@_number("--size", 1024, "Bytes of a message.", _LEAST_SIZE)
@_number("--keys", 0, "Give messages so many different keys in turn; 0: no keys.", 0)
@click.option(
    "--batching",
    type=click.Choice(list(_BATCHING)),
    default="default",
    show_default=True,
    help="How producers batch; key: by key, as Key_Shared needs.",
)
@_number("--batch-messages", 1000, "The most messages of a batch.")
@_number("--batch-bytes", 128 << 10, "The most bytes of a batch.")
@_number(
    "--batch-delay", 1, "Milliseconds that a batch waits for more messages.", 0, "batch_delay_ms"
)
@_number(
    "--list",
    0,
    "Send lists of so many messages with send_many; 0: single messages.",
    0,
    "values_per_call",
)
@_seconds(
    "--duration", None, f"Seconds after the warm-up.  [default: {_DEFAULT_S:g}, without --messages]"
)
@click.option("-n", "--messages", type=click.IntRange(min=1), help="Messages of all producers.")
@_seconds("--warmup", 1.0, "Seconds at the start that the figures leave out.", above_0=False)
@_seconds("--interval", 10.0, "Seconds between two lines of figures.")
@click.option(
    "--histograms",
    type=click.Path(path_type=Path),
    metavar="PREFIX",
    help="Write PREFIX.hlog, PREFIX.produced.hgrm and PREFIX.received.hgrm.",
)
@with_addresses
def bench(show: Output, addresses: Addresses, histograms: Path | None, **options: Any) -> None:
    """Send and receive messages at a rate or as fast as possible, and show rates and latencies.

    The lines have the quantities and units of pulsar-perf. Received latency is measured from the
    intended time of sending. Topics are created as the cluster allows; they and the subscriptions
    stay. Exits with 1 if a message failed or wasn't received.

    \b
    Examples:
      velaray bench load --rate 5000 --size 100 --duration 30
      velaray bench load --list 1000 --size 100 --type shared --consumers 2
      velaray bench load --topics 4 --keys 100 --type key_shared --batching key -n 100000 -o json
      velaray bench load --consumers 0 --rate 500 --histograms load
    """
    from velaray.bench.run import Run

    load = _load(**options)
    with ExitStack() as stack:
        intervals = _Intervals(show, stack, histograms)
        before = _read(addresses, load)
        run = Run(load, addresses.service_url, dict(addresses.client_options), intervals.show)
        outcome = run.run()
    server = _server_figures(addresses, load, before)
    if histograms is not None:
        _write_tables(histograms, load, outcome)
    _show(show, load, outcome, server)
    missing = outcome.expected - outcome.receiving.own
    if missing > 0 or outcome.sending.meter.failed:
        failed = outcome.sending.meter.failed
        raise click.ClickException(f"{failed} messages failed, {max(missing, 0)} weren't received")


def _load(
    *,
    kind: str,
    start: str,
    batching: str,
    duration: float | None,
    warmup: float,
    interval: float,
    **rest: Any,
) -> Load:
    """The load that the options describe. Raises `click.UsageError`."""
    from velaray.bench.load import Load

    if not rest["producers"] and not rest["consumers"]:
        raise click.UsageError("nothing to do: there are neither producers nor consumers")
    if kind == "exclusive" and rest["consumers"] > 1:
        raise click.UsageError("an exclusive subscription has one consumer: give another --type")
    if batching == "key" and not rest["keys"]:
        raise click.UsageError("--batching key needs --keys")
    if duration is None and rest["messages"] is None:
        duration = _DEFAULT_S
    return Load(
        kind=_TYPES[kind],
        start=_STARTS[start],
        batching=_BATCHING[batching],
        duration_s=duration,
        warmup_s=warmup,
        interval_s=interval,
        **rest,
    )


class _Intervals:
    """Prints intervals, and writes them to a file."""

    def __init__(self, show: Output, stack: ExitStack, histograms: Path | None) -> None:
        self._show = show
        self._stack = stack
        self._path = histograms
        self._log: Any = None

    def show(self, interval: Interval) -> None:
        """Handle the end of an interval."""
        import time

        from velaray.bench.histogram import HistogramLog
        from velaray.bench.report import interval_lines

        if interval.whole and not self._show.as_json:
            for line in interval_lines(interval):
                click.echo(line)
        if self._path is None:
            return
        if self._log is None:
            file = self._stack.enter_context(_beside(self._path, "hlog").open("w"))
            self._log = HistogramLog(file, time.time() - interval.begin_s - interval.length_s)
        for tag, figures in (("produced", interval.sent), ("received", interval.received)):
            if figures is not None:
                self._log.write(tag, interval.begin_s, interval.length_s, figures.latency)


def _beside(prefix: Path, ending: str) -> Path:
    return prefix.with_name(f"{prefix.name}.{ending}")


def _write_tables(prefix: Path, load: Load, outcome: Outcome) -> None:
    from velaray.bench.histogram import percentile_table

    directions = {
        "produced": (load.sending, outcome.sending.meter),
        "received": (load.receiving, outcome.receiving.meter),
    }
    for name, (wanted, meter) in directions.items():
        if wanted:
            _beside(prefix, f"{name}.hgrm").write_text(percentile_table(meter.total.latency))


def _topics(load: Load) -> set[str]:
    return {str(TopicName.parse(name)) for name in load.topic_names}


def _read(addresses: Addresses, load: Load) -> Any:
    """A reading of the server's metrics, or why there is none."""
    from velaray.bench.server_figures import read

    if isinstance(addresses.admin, str):
        return addresses.admin
    try:
        return read(addresses.admin, _topics(load))
    except AdminError as error:
        return str(error)


def _server_figures(addresses: Addresses, load: Load, before: Any) -> Server | str:
    from velaray.bench.server_figures import figures

    after = before if isinstance(before, str) else _read(addresses, load)
    return after if isinstance(after, str) else figures(before, after)


def _show(show: Output, load: Load, outcome: Outcome, server: Server | str) -> None:
    from velaray.bench.report import facts, own_lines, total_lines

    if show.as_json:
        show.value(facts(load, outcome, server))
        return
    for line in (*total_lines(load, outcome), *own_lines(load, outcome, server)):
        click.echo(line)
