from __future__ import annotations

import json

from streamrec.devstore.statistics import RequestRecord, RequestStatistics


def record(method: str = "GET", kind: str = "GetObject") -> RequestRecord:
    return RequestRecord(method, "/b/k", {"x": "y"}, "bytes=0-1", None, "query", kind=kind)


def test_requests_are_counted_by_kind_and_status() -> None:
    statistics = RequestStatistics()
    for one, size in ((record(), 5), (record(), 6), (record("PUT", "PutObject"), 0)):
        statistics.arrive(one)
        statistics.answer(one, 200)
        statistics.send(one, size)
        statistics.leave()
    assert statistics.requests == 3
    assert statistics.bytes_sent == 11
    assert statistics.by_kind == {"GetObject": 2, "PutObject": 1}
    assert statistics.by_status == {200: 3}
    assert statistics.by_kind["HeadObject"] == 0


def test_a_record_grows_with_its_request() -> None:
    statistics = RequestStatistics()
    one = record()
    statistics.arrive(one)
    assert list(statistics.records) == [one]
    statistics.answer(one, 206)
    statistics.send(one, 2)
    statistics.send(one, 3)
    assert (one.status, one.sent) == (206, 5)
    assert statistics.bytes_sent == 5


def test_the_peak_of_requests_in_flight() -> None:
    statistics = RequestStatistics()
    statistics.arrive(record())
    statistics.arrive(record())
    statistics.leave()
    statistics.arrive(record())
    assert (statistics.in_flight, statistics.peak_in_flight) == (2, 2)


def test_clear_keeps_what_is_in_flight() -> None:
    statistics = RequestStatistics()
    statistics.arrive(record())
    statistics.arrive(record())
    statistics.leave()
    statistics.clear()
    assert statistics == RequestStatistics(in_flight=1, peak_in_flight=1)


def test_plain_data() -> None:
    statistics = RequestStatistics()
    one = record()
    statistics.arrive(one)
    statistics.answer(one, 206)
    assert "records" not in statistics.to_dict()
    plain = json.loads(json.dumps(statistics.to_dict(records=True)))
    assert plain["by_status"] == {"206": 1}
    assert plain["records"][0]["range"] == "bytes=0-1"
    assert plain["records"][0]["signed"] == "query"
