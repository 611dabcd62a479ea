"""Proof that bubble flow control keeps a ring of queues moving.

Once arrivals and onward moves are done, a queue's receiver holds packets only while the next
sender is full. So q packets between two wires stand as min(q, F) in the sender and the rest in
the receiver, whatever they are, and a state of the ring is one number for each queue. A packet
may be taken to memory at any time here, which real runs do only where it has arrived: whatever
is proved holds for every size, order and number of calls.

*Invariant*: some receiver of the ring has a free slot. It holds at the start. `_step_keeps_it`
tries every move for every filling of the two queues it touches. A ring with a free slot moves:
the queue behind that slot sends, or is empty and has free slots itself, and so on around.
"""

from itertools import product

from ringline.schedule._flow import Flow


def prove_bubble(flow: Flow, *, max_states: int) -> tuple[str, int]:
    """Check the invariant's every step, and all fillings of the ring where they are few.

    Returns:
        What the proof rests on, in words, and the number of cases looked at.
    """
    slots, sender_slots = flow.slots, flow.sender_slots
    most = slots + sender_slots
    cases = 0
    for behind, here in product(range(most + 1), repeat=2):
        cases += 1
        assert _step_keeps_it(behind, here, slots, sender_slots)
    how = f"proved for every size: one receiver slot stays free ({cases} fillings of a queue pair"
    if (most + 1) ** len(flow.queues) > max_states * len(flow.queues):
        return f"{how})", cases
    states = _reachable(len(flow.queues), slots, sender_slots)
    assert (most,) * len(flow.queues) not in states
    return f"{how}, and all {len(states)} fillings of the ring up to rotation)", len(states)


def _in_receiver(packets: int, sender_slots: int) -> int:
    return max(0, packets - sender_slots)


def _step_keeps_it(behind: int, here: int, slots: int, sender_slots: int) -> bool:
    """Whether a move into queue `here`, from the one behind or from its device, leaves a slot.

    `behind` and `here` are packets between two wires. Moves elsewhere do not touch these two.
    """
    free = slots - _in_receiver(here, sender_slots)
    if free >= 2 and slots - _in_receiver(here + 1, sender_slots) < 1:
        return False  # put in by the device
    if behind and free:  # sent by the queue behind
        left = slots - _in_receiver(behind - 1, sender_slots)
        return slots - _in_receiver(here + 1, sender_slots) >= 1 or left >= 1
    return True


def _reachable(count: int, slots: int, sender_slots: int) -> set[tuple[int, ...]]:
    """All fillings that moves lead to, of each rotation the smallest."""
    start = (0,) * count
    seen, frontier = {start}, [start]
    while frontier:
        state = frontier.pop()
        for after in _after(state, slots, sender_slots):
            least = min(after[i:] + after[:i] for i in range(count))
            if least not in seen:
                seen.add(least)
                frontier.append(least)
    return seen


def _after(state: tuple[int, ...], slots: int, sender_slots: int):
    for at, here in enumerate(state):
        free = slots - _in_receiver(here, sender_slots)
        behind = state[at - 1]
        if free >= 2:
            yield (*state[:at], here + 1, *state[at + 1 :])
        if here:
            yield (*state[:at], here - 1, *state[at + 1 :])
        if behind and free:
            moved = list(state)
            moved[at - 1] -= 1
            moved[at] += 1
            yield tuple(moved)
