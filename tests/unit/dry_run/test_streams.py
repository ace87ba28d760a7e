"""Streams and events: what a stream is certain of after it waited."""

from overlapscope.dry_run.streams import Event, Known, Stream, StreamContext, Streams


def waits() -> tuple[Streams, list[tuple[str, int]]]:
    seen: list[tuple[str, int]] = []
    return Streams(lambda stream, awaited, _: seen.append((stream.label, awaited.last_order))), seen


def test_an_event_takes_what_its_stream_knew_when_it_was_recorded() -> None:
    streams, seen = waits()
    side = Stream(streams, "side")
    with StreamContext(streams, side):
        streams.advance(3)
        event = side.record_event()
        streams.advance(4)
    streams.compute.wait_event(event)
    assert seen == [("compute", 3)]


def test_a_wait_that_teaches_nothing_is_no_wait() -> None:
    streams, seen = waits()
    event = Event(streams)
    event.record()
    Stream(streams, "side").wait_event(event)
    assert seen == []


def test_what_a_stream_waited_for_is_passed_on() -> None:
    streams, _ = waits()
    gathers, copies = Stream(streams, "gathers"), Stream(streams, "copies")
    streams.wait(gathers, Known(calls=0b10, orders={"compute": 7}, last_order=9))
    copies.wait_stream(gathers)
    assert (copies.known.calls, copies.known.compute_order) == (0b10, 7)
