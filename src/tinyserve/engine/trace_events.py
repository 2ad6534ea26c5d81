"""A recorded trace in the Trace Event Format, which Perfetto and chrome://tracing open.

Follows "Trace Event Format" (Chromium, 2016): complete events (X) for steps, their parts and the
chunks of sequences; instants (i); counters (C); names of tracks as metadata (M). Times are in
microseconds since the recording began. One process; track 1 shows the steps, with their parts
inside them; each sequence has a track of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tinyserve.engine.trace import Key, TracedEvent, TracedStep, TraceRecorder

PROCESS = 1
STEPS = 1  # track of the steps
FIRST_SEQUENCE = 10
PARTS = ("plan", "run", "sample", "commit")

Event = dict[str, Any]


def trace_json(recorder: TraceRecorder, began: float, about: Mapping[str, Any]) -> bytes:
    """The whole file. `began` is of `time.monotonic`; `about` tells of the recording.

    Written piece by piece, so that other threads are not held up by one long call.
    """
    about = {**about, "steps": len(recorder.steps), "steps_missed": recorder.num_missed}
    events = ",\n".join(json.dumps(event) for event in _events(recorder.steps, began))
    head = json.dumps({"displayTimeUnit": "ms", "otherData": about})
    return f'{head[:-1]}, "traceEvents": [\n{events}\n]}}\n'.encode()


def _events(steps: list[TracedStep], began: float) -> Iterator[Event]:
    tracks: dict[Key, int] = {}
    yield _name("process_name", STEPS, "tinyserve engine")
    yield _name("thread_name", STEPS, "steps")
    for index, step in enumerate(steps):
        begin, *_, end = times = [_microseconds(time - began) for time in step.lap]
        yield _slice("step", STEPS, (begin, end), _step_args(index, step))
        for part, first, last in zip(PARTS, times, times[1:], strict=False):
            yield _slice(part, STEPS, (first, last), {})
        yield from _transfers(step, begin)
        for chunk in step.chunks:
            if chunk.key not in tracks:
                tracks[chunk.key] = FIRST_SEQUENCE + len(tracks)
                yield _name("thread_name", tracks[chunk.key], _label(chunk.key))
            args = {"start": chunk.start, "tokens": chunk.num_tokens}
            if chunk.num_drafts:
                args |= {"drafts": chunk.num_drafts, "accepted": chunk.num_accepted}
            yield _slice(chunk.kind, tracks[chunk.key], (begin, end), args)
            if chunk.num_accepted:
                args = {"accepted": chunk.num_accepted, "drafts": chunk.num_drafts}
                yield _instant("drafts accepted", tracks[chunk.key], end, args)
        for event in step.events:
            yield _happening(event, tracks[event.key], begin, end)
        yield from _counters(step, end)


def _microseconds(seconds: float) -> float:
    """A step that had begun before the recording shows from its beginning on."""
    return round(max(0.0, seconds) * 1e6, 3)


def _step_args(index: int, step: TracedStep) -> dict[str, Any]:
    return {
        "step": index,
        "tokens": sum(chunk.num_tokens for chunk in step.chunks),
        "sequences": len(step.chunks),
        "prefill_tokens": sum(c.num_tokens for c in step.chunks if c.kind == "prefill"),
    }


def _transfers(step: TracedStep, time: float) -> Iterator[Event]:
    moved = {
        "swap out": step.num_swapped_out,
        "swap in": step.num_swapped_in,
        "copy on write": step.num_copies,
    }
    for name, blocks in moved.items():
        if blocks:
            yield _instant(name, STEPS, time, {"blocks": blocks})


def _happening(event: TracedEvent, track: int, begin: float, end: float) -> Event:
    """Sequences end after a step's work; everything else is decided before it."""
    time = end if event.name == "finished" else begin
    return _instant(event.name, track, time, {"detail": event.detail} if event.detail else {})


def _counters(step: TracedStep, time: float) -> Iterator[Event]:
    sequences = {"running": step.num_running, "waiting": step.num_waiting}
    yield _counter("sequences", time, sequences)
    yield _counter("available blocks", time, {"blocks": step.num_free_blocks})


def _label(key: Key) -> str:
    request_id, choice = key
    return f"{request_id} #{choice}" if choice else request_id


def _name(kind: str, track: int, name: str) -> Event:
    return _event("M", kind, track, args={"name": name})


def _slice(name: str, track: int, span: tuple[float, float], args: dict[str, Any]) -> Event:
    begin, end = span
    kind = "step" if track == STEPS else "chunk"
    return _event("X", name, track, ts=begin, dur=round(end - begin, 3), cat=kind, args=args)


def _instant(name: str, track: int, time: float, args: dict[str, Any]) -> Event:
    return _event("i", name, track, ts=time, s="t", cat="event", args=args)


def _counter(name: str, time: float, values: dict[str, int]) -> Event:
    return _event("C", name, STEPS, ts=time, args=values)


def _event(phase: str, name: str, track: int, **rest: Any) -> Event:
    return {"ph": phase, "name": name, "pid": PROCESS, "tid": track, **rest}
