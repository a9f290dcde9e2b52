"""The loads whose cost per entry is measured run to their end, and their functions are named."""

from __future__ import annotations

import pytest

from benchmarks.entry_costs import functions
from benchmarks.entry_loads import LOADS, RawConnection


@pytest.mark.parametrize("load", LOADS)
def test_a_load_names_the_functions_that_it_spends_time_in(load: str) -> None:
    found = functions(load, 1000)
    assert sum(each.share for each in found) == pytest.approx(1)
    ours = {each.name: each.calls for each in found if "::" in each.name}
    publishing = "actors/partition/publish_run.py::decide"
    dispatching = "broker/subscription/dispatcher.py::on_notice"
    expected = {
        "publish": publishing,
        "publish-authorised": publishing,
        "drain": "broker/partition/session/acknowledgements.py::on_ack",
        "fan-out": publishing,
        "topics": "actors/partition/machine.py::_publish",
    }
    assert expected.get(load, dispatching) in ours


def test_a_text_that_two_reads_share_is_counted_once() -> None:
    connection = RawConnection()
    connection.count(b"mark")
    for part in (b"..ma", b"rk..mark", b"m", b"a", b"rk"):
        connection.data_received(part)
    assert connection.counted == 3
