"""Kinds of host work that names of ranges and Python functions tell: what a host does in them, and what helps."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

ASYNC_SAVE: Final = "torch.distributed.checkpoint.async_save(state, checkpoint_id=path)"
"""https://docs.pytorch.org/docs/stable/distributed.checkpoint.html"""


class HostWork(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of work that is the host's own, so that a pause in it is no accident."""

    id: str
    named: re.Pattern[str]
    """Searched for in names of ranges, and of functions with their files."""
    does: str
    """What the host does there, as the title of a finding ends."""
    what: str
    """The work, as an object of a sentence, ..."""
    instead: str
    """... and what else to do but to move it off the host."""
    apply: Mapping[str, str]
    """Code that does so, by framework."""
    assumed: tuple[str, ...] = ()
    """What costs of it assume."""


OBJECTS: Final = HostWork(
    id="objects",
    named=re.compile(
        r"(?:gather|scatter|broadcast|send|recv)_object(?:s|_list)?(?![a-z])|_tensor_to_object|_object_to_t"
    ),
    does="the host exchanges Python objects there, and pickles, copies and awaits them: it is that call's own work",
    what="the exchange of Python objects",
    instead="do it in fewer steps, or with tensors",
    apply={
        "torch": "# is the exchange of objects needed in these steps? leave it out, or do it in fewer\n"
        "torch.distributed.all_gather_into_tensor(gathered, tensor)  # or all_reduce(), broadcast(): tensors of the "
        "device are neither pickled nor read back",
    },
)
CHECKPOINT: Final = HostWork(
    id="checkpoint",
    named=re.compile(
        r"(?i)^(?!.*(?:async|load|restor|resum|activation)).*(?:"
        r"(?<![a-z])torch\.save(?![a-z_])|(?<![a-z])dcp\.save|serialization\.py\(\d+\): _?(?:legacy_)?save"
        r"|(?:sav(?:e|ing)|writ(?:e|ing))[ _.-]?(?:[a-z]+[ _.-])?(?:checkpoints?|ckpt|pretrained)(?![a-z])"
        r"|(?:checkpoint|ckpt)(?:er|ing)?[ _./-]sav(?:e|ing)(?![a-z]|_(?:for_backward|on_cpu))"
        r"|state_dict_saver|(?<![a-z])get_(?:model_|optimizer_)?state_dict|ModelCheckpoint)"
    ),
    does="the host writes a checkpoint there, and launches nothing until that is done",
    what="the writing of checkpoints",
    instead="write them sharded, or less often",
    apply={
        "torch": f"{ASYNC_SAVE}  # each rank its shard, in a thread beside training; "
        'before it: init_process_group("cpu:gloo,cuda:nccl")\n'
        "# torch.save: of a copy of the state on the host, in another thread or process",
        "megatron": "--async-save --ckpt-format torch_dist",
    },
    assumed=("of the hours a day: that checkpoints are written as often as in this recording",),
)
"""Nor reading one, nor one that is written asynchronously already. `checkpoint` alone may be of activations, and
`state_dict` of an average of parameters."""
LOGGING: Final = HostWork(
    id="logging",
    named=re.compile(
        r"(?i)(?<![a-z0-9_])(?:wandb|tensorboard|mlflow|summary_?writer|logging|loggers?"
        r"|log_?(?:metrics?|images?|stats?|scalars?|dict|figures?))(?![a-z])"
    ),
    does="the host logs there, and launches nothing until that is done",
    what="logging",
    instead="log in fewer steps",
    apply={
        "python": "# files, images, services: in another thread or process, by logging.handlers.QueueHandler(queue)\n"
        "# figures of the device: keep them there, and read many at once, in fewer steps",
    },
)
EVERY: Final = (OBJECTS, CHECKPOINT, LOGGING)
"""Data that are fetched are found by `loading`. An evaluation is none: devices work in it, and a pause of its
host may be anything."""


def take_off(work: HostWork, whom: str) -> str:
    """Return what to do about pauses of such work of one or more hosts, as the title of a recommendation begins."""
    return f"Take {work.what} off {whom}, or {work.instead}"


def work_of_id(id: str | None) -> HostWork | None:
    """Return the kind of this id; None for none."""
    return next((each for each in EVERY if each.id == id), None)


def work_of_names(names: Iterable[str]) -> HostWork | None:
    """Return the kind of work that the first of these names tells which tells any; else None."""
    return next((work for name in names for work in EVERY if work.named.search(name)), None)


def work_of_stack(stack: Iterable[str]) -> HostWork | None:
    """Return the kind of work of a Python stack (outermost function first), by its innermost function and those of
    torch: outer ones of the program may be around all that it does."""
    innermost_first = list(stack)[::-1]
    return work_of_names(each for each in innermost_first if each is innermost_first[0] or "torch/" in each)
