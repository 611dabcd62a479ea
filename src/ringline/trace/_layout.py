"""What every drawing needs to know of a timeline beyond its events."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from ringline.schedule import Value
from ringline.simulate import Event, Timeline

Link = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """A timeline arranged in rows: the computations of each device, and its outgoing links.

    Attributes:
        timeline: what is drawn.
    """

    timeline: Timeline

    @cached_property
    def rows(self) -> tuple[tuple[Event, ...], ...]:
        """Per device, its computations in order; of a collective those that take any time."""
        rows: list[list[Event]] = [[] for _ in range(self.timeline.devices)]
        for event in self.timeline.events:
            if event.peer is None and (event.duration_s > 0 or not self.stripes):
                rows[event.device].append(event)
        return tuple(map(tuple, rows))

    @cached_property
    def links(self) -> tuple[tuple[Link, ...], ...]:
        """Per device, the (peer, channel) of its outgoing transfers that last any time."""
        return tuple(
            tuple(sorted(transfers, key=lambda link: self._from(device, link)))
            for device, transfers in enumerate(self._transfers)
        )

    @cached_property
    def lanes(self) -> tuple[tuple[tuple[Event, ...], ...], ...]:
        """Per device, its outgoing transfers in as few lanes as keep its links apart.

        Two links of a stage share a lane when they are never busy at once. A device without
        computations has a lane for each link. Transfers of one link that are under way at once,
        as packets of several stripes are, have lanes of their own.
        """
        return tuple(
            _packed(
                [lane for link in links for lane in _apart(transfers[link])],
                share=bool(row),
            )
            for links, transfers, row in zip(self.links, self._transfers, self.rows)
        )

    def _from(self, device: int, link: Link) -> Link:
        """Places of a device's links: to itself, to the next device, on to the one before it."""
        return (link[0] - device) % self.timeline.devices, link[1]

    @cached_property
    def _transfers(self) -> list[dict[Link, list[Event]]]:
        found: list[dict[Link, list[Event]]] = [{} for _ in range(self.timeline.devices)]
        for event in self.timeline.events:
            if event.peer is not None and event.duration_s > 0:
                found[event.device].setdefault((event.peer, event.channel), []).append(event)
        return found

    @cached_property
    def repeat_of(self) -> dict[int, int]:
        """For each chunk, its number among the chunks of its stage."""
        ranks = {}
        for row in self.rows:
            for rank, chunk in enumerate(sorted({event.index for event in row})):
                ranks[chunk] = 0 if self.stripes else rank
        return ranks

    @cached_property
    def repeats(self) -> int:
        """The most chunks that one stage runs."""
        return 1 + max(self.repeat_of.values(), default=0)

    @cached_property
    def parts(self) -> int:
        """How many microbatches (or pieces) there are."""
        return 1 + max((event.part for event in self.timeline.events), default=-1)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The operations that compute, in a fixed order."""
        return _ordered({e.kind for row in self.rows for e in row})

    @cached_property
    def transfer_kinds(self) -> tuple[str, ...]:
        """The operations that take time on a link, in a fixed order."""
        return _ordered(
            {e.kind for e in self.timeline.events if e.peer is not None and e.duration_s}
        )

    @cached_property
    def flows(self) -> tuple[tuple[int | None, int, int | None], ...]:
        """For each transfer, the events that make what it sends, that send it, and that read it.

        Each is an index into the timeline's events; None for a value that the device held from
        the start, or that nobody reads.
        """
        made: dict[tuple[int, Value], int] = {}
        read: dict[tuple[int, Value], int] = {}
        for index, event in enumerate(self.timeline.events):
            target = event.device if event.peer is None else event.peer
            for value in event.writes:
                made[target, value] = index
            for value in event.reads:
                read.setdefault((event.device, value), index)
        return tuple(
            (made.get((event.device, value)), index, read.get((event.peer, value)))
            for index, event in enumerate(self.timeline.events)
            if event.peer is not None
            for value in event.reads
        )

    @property
    def stripes(self) -> bool:
        """Whether this is a collective, of pieces of stripes, and no pipeline of microbatches."""
        return "SEND" in self.transfer_kinds

    @property
    def instructions(self) -> bool:
        """Whether this is of a compiled program, whose events belong to no microbatch."""
        return all(event.part < 0 for event in self.timeline.events)

    @property
    def caption(self) -> str:
        """Stages, microbatches and repeats in words."""
        if self.instructions:
            return "the program of every device"
        what = "devices" if self.stripes or not any(self.rows) else "stages"
        words = [f"{self.timeline.devices} {what}"]
        if any(self.rows) and not self.stripes:
            words.append(f"{self.parts} microbatches")
        if self.repeats > 1 and not self.stripes:
            words.append(f"{self.repeats} repeats")
        return ", ".join(words)


def _apart(transfers: list[Event]) -> list[list[Event]]:
    """The transfers in as few lanes as keep them from overlapping."""
    lanes: list[list[Event]] = []
    for event in transfers:
        for lane in lanes:
            if lane[-1].end_s <= event.start_s:
                lane.append(event)
                break
        else:
            lanes.append([event])
    return lanes


def _packed(links: list[list[Event]], *, share: bool) -> tuple[tuple[Event, ...], ...]:
    lanes: list[list[Event]] = []
    for transfers in links:
        for i, lane in enumerate(lanes):
            both = sorted((*lane, *transfers), key=lambda event: event.start_s)
            if share and all(a.end_s <= b.start_s for a, b in pairwise(both)):
                lanes[i] = both
                break
        else:
            lanes.append(transfers)
    return tuple(tuple(lane) for lane in lanes)


def _ordered(kinds: set[str]) -> tuple[str, ...]:
    known = ("F", "B", "I", "W", "SEND_F", "SEND_B")
    return (*(k for k in known if k in kinds), *sorted(kinds.difference(known)))


def as_layouts(timelines: Sequence[Timeline] | Timeline) -> tuple[Layout, ...]:
    """One layout for each timeline.

    Raises:
        ValueError: when there is none.
    """
    given = (timelines,) if isinstance(timelines, Timeline) else tuple(timelines)
    if not given:
        raise ValueError("expected at least one timeline to draw, got none")
    return tuple(Layout(timeline) for timeline in given)


def kinds_of(layouts: Sequence[Layout]) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """What a common legend shows: operations that compute, that transfer, and the repeats."""
    return (
        _ordered({kind for layout in layouts for kind in layout.kinds}),
        _ordered({kind for layout in layouts for kind in layout.transfer_kinds}),
        max(layout.repeats for layout in layouts),
    )
