"""Members of communicators, from what a library attached to the ranges of its own initialisation."""

from overlapscope.ingest.device_recording import DeviceRecording
from overlapscope.timeline.columns import NONE, make
from overlapscope.timeline.facts import Facts, Members
from overlapscope.timeline.names import NameTable


def member_facts(recording: DeviceRecording) -> Facts:
    """Give each member once, in the order in which they joined; their ranks in the world are not told."""
    names = NameTable()
    found: dict[tuple[str, int], tuple[int, ...]] = {}
    order = sorted(recording.payloads.items(), key=lambda each: int(recording.ranges.start_ns[each[0]]))
    for row, told in order:
        if told.group is not None and told.members is not None and told.member is not None:
            key = int(recording.ranges.process[row])
            process = recording.process_ids.get(key, key)
            device = NONE if told.device is None else told.device
            entry = (names.code(told.group), told.member, told.members, process, device)
            found.setdefault((told.group, told.member), entry)
    if not found:
        return Facts()
    communicator, member, members, process_id, device_id = zip(*found.values(), strict=True)
    table = make(
        Members,
        len(found),
        communicator=communicator,
        member=member,
        members=members,
        process=process_id,
        device=device_id,
    )
    return Facts(names=tuple(names.to_list()), members=table)
