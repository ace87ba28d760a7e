"""Make a step of a plain module: wrapped in DDP or FSDP2, with AdamW and the mean of its output as loss."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from overlapscope.dry_run.build_function import accepts
from overlapscope.errors import InputError, UsageError

Wrapper = Literal["ddp", "fsdp2"]
_SHAPE: Final = re.compile(r"(\d+(?:[x,]\d+)*)(?::([a-z]+\d*))?")


def step_of_module(make: Callable[..., Any], wrapper: Wrapper, inputs: Sequence[str] = ()) -> Callable[[Any], Any]:
    """Return a `build` function for what `make()` returns: a module, or a module and its example inputs.

    `inputs` are shapes of example inputs, such as `8x2048:int64`; without a dtype they are float32. FSDP2 shards each
    element of a ModuleList or Sequential on its own, and the rest with the root, over all ranks or the mesh that
    `build` is given (of two dimensions: replicated over the first). Raises UsageError for a bad shape.
    """
    shapes = [_shape(each) for each in inputs]

    def build(device: Any, mesh: Any = None) -> Callable[[], None]:
        import torch  # noqa: PLC0415 - loaded only where a step runs

        if not accepts(make):
            raise InputError(
                "the function takes arguments: to be wrapped, it returns the module without being given any"
            )
        made = make()
        module, given = made if isinstance(made, tuple) else (made, ())
        if not isinstance(module, torch.nn.Module):
            raise InputError(f"the function returned {type(module).__name__}, no torch.nn.Module")
        given = [
            *(given if isinstance(given, list | tuple) else (given,)),
            *(_example(each, device) for each in shapes),
        ]
        if not given:
            raise UsageError(
                "no example input: return (module, (inputs, ...)), or pass inputs=['8x2048:int64']",
                in_shell="no example input: return (module, (inputs, ...)), or add --input 8x2048:int64",
            )
        model = _wrapped(module.to(device), wrapper, device, mesh)
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            _loss(model(*given)).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


def _wrapped(module: Any, wrapper: Wrapper, device: Any, mesh: Any) -> Any:
    from torch import distributed  # noqa: PLC0415
    from torch.nn import ModuleList, Sequential  # noqa: PLC0415

    if wrapper == "ddp":
        if mesh is not None:
            raise UsageError("DDP takes no mesh: use FSDP2, or a build function", in_shell="--ddp takes no --mesh")
        from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

        return DistributedDataParallel(module)
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    if mesh is None:
        mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    elif mesh.ndim > 2:
        raise UsageError("FSDP2 takes a mesh of one dimension, or of two: the first replicates, the second shards")
    for each in list(module.modules()):
        if isinstance(each, ModuleList | Sequential):
            for block in each:
                if any(True for _ in block.parameters()):
                    fully_shard(block, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def _shape(text: str) -> tuple[tuple[int, ...], str]:
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is no shape: write 8x2048 or 8x2048:int64")
    return tuple(int(each) for each in re.split("[x,]", match[1])), match[2] or "float32"


def _example(shape: tuple[tuple[int, ...], str], device: Any) -> Any:
    import torch  # noqa: PLC0415

    dtype = getattr(torch, shape[1], None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"{shape[1]!r} is no dtype of torch")
    return torch.zeros(shape[0], dtype=dtype, device=device)


def _loss(output: Any) -> Any:
    """Return the output's own loss, or the mean of all that it has gradients for."""
    from overlapscope.dry_run.work import tensors_in  # noqa: PLC0415

    loss = getattr(output, "loss", None)
    if loss is not None:
        return loss
    found = [each for each in tensors_in(output if isinstance(output, list | tuple | dict) else [output])
             if each.requires_grad]  # fmt: skip
    if not found:
        raise InputError(
            "the module's output has no tensor with a gradient: write a build function that makes the loss"
        )
    return sum(each.float().mean() for each in found)
