"""The pretended job of one rank: torch's fake process group, fake tensors, and what must differ to run on them.

Nothing here opens a socket: the fake process group has a store in memory. Each replacement is undone at the end, so the
next rank, or the caller's own code, has torch as it was.
"""

import copy
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from overlapscope.dry_run.hosts import AccelerateHost
from overlapscope.dry_run.memory import following_resizes
from overlapscope.dry_run.recorder import Recorder
from overlapscope.dry_run.source_lines import line_of_caller
from overlapscope.dry_run.streams import Stream
from overlapscope.errors import InputError, UsageError

_READ_AGAIN: Final = (
    "torch.distributed.device_mesh", "torch.distributed._mesh_layout", "torch.utils.data.dataloader",
    "torch.utils.data.sampler", "torch.utils.data.distributed",
)  # fmt: skip
"""Modules that read the tensors which they make: tables of ranks, seeds and orders of samples."""
_FACTORIES: Final = frozenset({"arange", "tensor", "empty", "zeros", "ones", "full", "randperm", "randint"})


class FakeWorld:
    """One rank of the pretended job, with the recorder that sees its operations."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.recorder = Recorder()
        self.reducers: list[Any] = []
        self.hook_states: list[Any] = []
        self.optimizers: list[Any] = []
        self.more_warm_up = False
        """Whether one step is not enough until the next one is like those of a long job."""
        self._undo = ExitStack()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Start the process group and put all replacements in place; undo everything at the end."""
        import torch  # noqa: PLC0415 - loaded only where a step runs
        from torch import distributed  # noqa: PLC0415
        from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415

        if distributed.is_initialized():
            raise UsageError(
                "a process group exists already: a dry run starts its own; call it before init_process_group, or in "
                "another process"
            )
        with self._undo:
            self._environment()
            self._process_group(distributed)
            self._read_again(torch)
            self._loaders()
            self._meshes()
            self._mixed_precision(torch)
            self._streams(torch)
            self._functional_collectives(torch)
            self._ddp(torch, distributed)
            self._fsdp()
            self._shape_propagation()
            self._pipelines(torch, distributed)
            self._objects(distributed)
            self._values(torch)
            self._others(torch)
            self.accelerate = AccelerateHost(self.replace)
            self._undo.callback(self.accelerate.forget)
            self.recorder.places.open()
            self._undo.callback(self.recorder.places.close)
            self._undo.enter_context(torch.random.fork_rng(devices=()))
            self._undo.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            self._undo.enter_context(_mode(self.recorder))
            yield

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Put `new` in the place of an attribute until the end."""
        if name in owner.__dict__:
            self._undo.callback(setattr, owner, name, owner.__dict__[name])
        else:  # it belongs to a class above
            self._undo.callback(delattr, owner, name)
        setattr(owner, name, new)

    def end_warm_up_step(self) -> None:
        """Let DDP rebuild its buckets in the order of the gradients, as it does before its second forward, and PowerSGD
        compress, as it does after so many steps."""
        for reducer in self.reducers:
            reducer._rebuild_buckets()
        for state in self.hook_states:
            if hasattr(state, "start_powerSGD_iter"):
                state.iter = max(state.iter, state.start_powerSGD_iter)

    # -- what is replaced ------------------------------------------------------------------------------------------

    def _environment(self) -> None:
        values = {
            "RANK": self.rank, "LOCAL_RANK": self.rank, "WORLD_SIZE": self.world_size,
            "LOCAL_WORLD_SIZE": self.world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
            "TORCHELASTIC_RUN_ID": "dry-run",  # as under torchrun, by which frameworks know who starts the ranks
            "ACCELERATE_USE_CPU": "true",  # else Accelerate takes a machine without a device for a job of one rank
        }  # fmt: skip
        before = dict(os.environ)
        os.environ.update({name: str(value) for name, value in values.items()})

        def restore() -> None:
            os.environ.clear()
            os.environ.update(before)

        self._undo.callback(restore)

    def _process_group(self, distributed: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

        distributed.init_process_group("fake", store=FakeStore(), rank=self.rank, world_size=self.world_size)
        self._undo.callback(distributed.destroy_process_group)
        self._undo.callback(_forget_meshes)
        for name in ("init_process_group", "destroy_process_group"):
            # A script that starts and ends its own group meets the fake one.
            for owner in (distributed, distributed.distributed_c10d):
                self.replace(owner, name, lambda *_, **__: None)
        make = distributed.distributed_c10d._new_group_with_tag
        signature = inspect.signature(make)

        def group(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            given.arguments["backend"] = None  # a group of gloo or nccl is as fake as the others
            return make(*given.args, **given.kwargs)

        self.replace(distributed.distributed_c10d, "_new_group_with_tag", group)

    def _read_again(self, torch: Any) -> None:
        from torch._subclasses.fake_tensor import unset_fake_temporarily  # noqa: PLC0415

        def for_real(function: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **kwargs: Any) -> Any:
                with unset_fake_temporarily():
                    return function(*args, **kwargs)

            return called

        class RealFactories:
            """Torch as these modules see it: what they make are real tensors."""

            def __getattr__(self, name: str) -> Any:
                found = getattr(torch, name)
                return for_real(found) if name in _FACTORIES else found

        for name in _READ_AGAIN:
            module = sys.modules.get(name)
            if module is not None and hasattr(module, "torch"):
                self.replace(module, "torch", RealFactories())

    def _meshes(self) -> None:
        """Refuse a mesh that leaves ranks of the world out, which torch lets pass."""
        try:
            from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415
        except ImportError:  # before torch 2.2
            return
        make, world_size = DeviceMesh.__init__, self.world_size

        def init(own: Any, /, *args: Any, **kwargs: Any) -> None:
            make(own, *args, **kwargs)
            if sys._getframe(1).f_code.co_name == "init_device_mesh" and own.size() != world_size:
                raise InputError(
                    f"{line_of_caller() or 'torch'}: the mesh has {own.size()} ranks, the world {world_size}: choose "
                    "a world that is the product of its dimensions"
                )

        self.replace(DeviceMesh, "__init__", init)

    def _mixed_precision(self, torch: Any) -> None:
        """Refuse CUDA's own mixed precision, which torch leaves out with a warning where there is no CUDA."""

        def around(make: Callable[..., Any]) -> Callable[..., Any]:
            signature = inspect.signature(make)

            def init(own: Any, *args: Any, **kwargs: Any) -> None:
                given = signature.bind(own, *args, **kwargs)
                given.apply_defaults()
                device = given.arguments.get("device_type", given.arguments.get("device"))
                if given.arguments["enabled"] and str(device) != "cpu":
                    raise InputError(
                        f"{line_of_caller() or 'torch'}: {type(own).__name__} is that of {device}: give it the type of "
                        "the device that build is given, device.type"
                    )
                make(own, *args, **kwargs)

            return init

        for name in ("autocast", "GradScaler"):
            owner = getattr(torch.amp, name, None)
            if owner is not None:  # torch.amp.GradScaler: from torch 2.3
                self.replace(owner, "__init__", around(owner.__init__))

    def _loaders(self) -> None:
        """Let loaders load in this process, as the host: no worker could send a fake tensor."""
        from torch.utils.data import DataLoader, dataloader  # noqa: PLC0415

        recorder, load = self.recorder, dataloader._BaseDataLoaderIter.__next__

        def loaded(iterator: Any) -> Any:
            with recorder.on_host():
                return load(iterator)

        def in_this_process(loader: Any) -> Any:
            loader = copy.copy(loader)
            loader.num_workers, loader.timeout, loader.pin_memory = 0, 0, False
            return dataloader._SingleProcessDataLoaderIter(loader)

        self.replace(dataloader._BaseDataLoaderIter, "__next__", loaded)
        self.replace(DataLoader, "_get_iterator", in_this_process)

    def _functional_collectives(self, torch: Any) -> None:
        """Let functional collectives be awaited where their result is used, as outside of tracing; torch takes fake
        tensors for a sign that it traces, and waits at once."""
        from torch.distributed import _functional_collectives as functional  # noqa: PLC0415

        class Awaited(torch.autograd.Function):  # type: ignore[misc] # torch is Any at our rim
            """The result of a collective, waited for by its first use; gradients pass unchanged."""

            @staticmethod
            def forward(ctx: Any, tensor: Any) -> Any:
                return functional.AsyncCollectiveTensor(tensor)

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                return gradient

        self.replace(functional, "_maybe_wrap_tensor", Awaited.apply)
        self.replace(functional, "_are_we_tracing", lambda: False)

    def _streams(self, torch: Any) -> None:
        for name, function in self.recorder.streams.interface().items():
            self.replace(torch.cpu, name, function)

    def _ddp(self, torch: Any, distributed: Any) -> None:
        world, recorder, reducers, states = self, self.recorder, self.reducers, self.hook_states
        from torch.nn.parallel import distributed as ddp  # noqa: PLC0415

        class Reducer(distributed.Reducer):  # type: ignore[misc] # torch is Any at our rim
            """DDP's own, whose tables of integers are real tensors: it reads them again."""

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                with recorder.integers():
                    super().__init__(*args, **kwargs)
                reducers.append(self)

            def _rebuild_buckets(self) -> bool:
                with recorder.integers():
                    return bool(super()._rebuild_buckets())

            def _set_static_graph(self) -> None:
                world.more_warm_up = True  # its buckets are rebuilt after the second step
                with recorder.integers():
                    super()._set_static_graph()

        self.replace(distributed, "Reducer", Reducer)
        self.replace(ddp, "_verify_param_shape_across_processes", lambda *_, **__: True)
        register = ddp.DistributedDataParallel.register_comm_hook

        def register_comm_hook(model: Any, state: Any, hook: Any) -> Any:
            states.append(state)
            world.more_warm_up |= hasattr(state, "start_powerSGD_iter")
            return register(model, state, hook)

        self.replace(ddp.DistributedDataParallel, "register_comm_hook", register_comm_hook)

    def _fsdp(self) -> None:
        try:
            from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group  # noqa: PLC0415
        except ImportError:  # before torch 2.6
            return
        original = group.FSDPCommContext.lazy_init

        def lazy_init(context: Any, *args: Any, **kwargs: Any) -> None:
            original(context, *args, **kwargs)
            for name, stream in vars(context).items():
                if isinstance(stream, Stream):
                    stream.label = name.removesuffix("_stream")

        self.replace(group.FSDPCommContext, "lazy_init", lazy_init)
        make, places = group.FSDPParamGroup.__init__, self.recorder.places

        def init(parameters: Any, *args: Any, **kwargs: Any) -> None:
            make(parameters, *args, **kwargs)
            for module in getattr(parameters, "modules", ()):
                places.wrapped_at[id(module)] = line_of_caller()

        self.replace(group.FSDPParamGroup, "__init__", init)
        for name in ("foreach_all_gather", "foreach_reduce"):
            self.replace(group, name, _counting_parameters(self.recorder, getattr(group, name)))

    def _shape_propagation(self) -> None:
        """Keep out what DTensor runs on tensors of the full size to learn an output's shape: no device does that."""
        try:
            from torch.distributed.tensor._sharding_prop import ShardingPropagator  # noqa: PLC0415
        except ImportError:  # before torch 2.5
            return
        name = "_propagate_tensor_meta_non_cached"
        if not hasattr(ShardingPropagator, name):
            return
        original, recorder = getattr(ShardingPropagator, name), self.recorder

        def unseen(*args: Any, **kwargs: Any) -> Any:
            was, recorder.recording = recorder.recording, False
            try:
                return original(*args, **kwargs)
            finally:
                recorder.recording = was

        self.replace(ShardingPropagator, name, unseen)

    def _pipelines(self, torch: Any, distributed: Any) -> None:
        """Let stages begin without asking each other for shapes: no other stage is there to answer."""
        from torch._subclasses.fake_tensor import unset_fake_temporarily  # noqa: PLC0415

        def received(*_: Any, **__: Any) -> None:
            raise InputError(
                f"{line_of_caller() or 'torch'}: the step receives an object from another rank, which a dry run does "
                "not have; give each PipelineStage input_args and output_args, with requires_grad where gradients flow"
            )

        for name, instead in (("recv_object_list", received), ("send_object_list", lambda *_, **__: None)):
            for owner in (distributed, distributed.distributed_c10d):
                if hasattr(owner, name):
                    self.replace(owner, name, instead)
        try:
            from torch.distributed.pipelining import stage  # noqa: PLC0415
        except ImportError:  # before torch 2.4
            return
        if not hasattr(stage.PipelineStage, "_warmup_forward_vote"):  # before torch 2.13
            return

        def vote(own: Any, has_backward: bool, received_acc: Any = None) -> Any:
            if stage.InferenceMode.needs_dynamic(own._user_meta, has_backward):
                received()
            with unset_fake_temporarily():
                return torch.ones(1, dtype=torch.int32)

        self.replace(stage.PipelineStage, "_warmup_forward_vote", vote)
        self.replace(stage.PipelineStage, "_warmup_backward_result", lambda own, received_result=None: (
            vote(own, True) if received_result is None else received_result
        ))  # fmt: skip

    def _objects(self, distributed: Any) -> None:
        """Let ranks exchange objects: each sends what this one does."""
        noted = self.recorder.assumptions

        def note() -> None:
            line = line_of_caller() or "torch"
            noted[f"{line}: objects from other ranks are taken to be this rank's own; their calls are not recorded"] = (
                None
            )

        def gathered(objects: Any, own: Any, *_: Any, **__: Any) -> None:
            note()
            objects[:] = [own] * len(objects)

        def gathered_at_one(own: Any, objects: Any = None, *_: Any, **__: Any) -> None:
            note()
            if objects is not None:
                objects[:] = [own] * len(objects)

        functions = {
            "all_gather_object": gathered,
            "gather_object": gathered_at_one,
            "broadcast_object_list": lambda *_, **__: note(),
        }
        for name, instead in functions.items():
            for owner in (distributed, distributed.distributed_c10d):
                self.replace(owner, name, instead)

    def _values(self, torch: Any) -> None:
        """Let the host print a tensor, make an array of one, or copy it: it reads the device."""
        from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily  # noqa: PLC0415

        def formatted(tensor: Any, spec: str) -> str:
            return format(tensor.item(), spec) if tensor.dim() == 0 else object.__format__(tensor, spec)

        def as_array(tensor: Any, **_: Any) -> Any:
            value = self.recorder.read_of_device(tensor, "numpy")
            with unset_fake_temporarily():
                return torch.full(tuple(tensor.shape), value, dtype=tensor.dtype).numpy()

        move, to_host = torch.Tensor.to, self.recorder.copied_to_host

        def cpu(tensor: Any, **_: Any) -> Any:
            return to_host(tensor, "cpu", waits=True)

        def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            moved = move(tensor, *args, **kwargs)
            # Whoever means the device that `build` is given has no need to write its name.
            if "cpu" not in (*args[:1], kwargs.get("device")):
                return moved
            return to_host(moved, "to", waits=not (kwargs.get("non_blocking") or args[2:3] == (True,)))

        self.replace(FakeTensor, "__format__", formatted)

        def address(tensor: Any) -> int:
            return (int(tensor.untyped_storage()._cdata) << 40) + int(tensor.storage_offset() * tensor.element_size())

        self.replace(FakeTensor, "numpy", as_array)
        self.replace(FakeTensor, "cpu", cpu)
        self.replace(FakeTensor, "to", to)
        self.replace(FakeTensor, "pin_memory", lambda tensor, *_: tensor)
        self.replace(FakeTensor, "data_ptr", address)  # Accelerate finds a sharded parameter's optimizer by it

    def _others(self, torch: Any) -> None:
        from torch.optim import optimizer  # noqa: PLC0415

        self.replace(torch.nn.Module, "_apply", _apply)
        self.replace(
            torch.UntypedStorage, "resize_", following_resizes(self.recorder.memory)(torch.UntypedStorage.resize_)
        )
        # On a device optimizers take the implementation for lists of tensors; on the CPU one tensor after the other.
        self.replace(optimizer, "_get_foreach_kernels_supported_devices", lambda: ["cuda", "cpu"])
        from torch._subclasses.fake_tensor import FakeTensor  # noqa: PLC0415

        # In place: torch's tensors of other kinds add themselves to this list when they are imported.
        optimizer._foreach_supported_types.append(FakeTensor)
        self._undo.callback(optimizer._foreach_supported_types.remove, FakeTensor)
        original, made = optimizer.Optimizer.__init__, self.optimizers

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            made.append(self)

        self.replace(optimizer.Optimizer, "__init__", init)
        # What fails is explained in one line; torch would write the traceback beside it.
        self.replace(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True)
        if hasattr(torch.compiler, "set_stance"):
            self._undo.enter_context(torch.compiler.set_stance("force_eager"))
        noted = self.recorder.assumptions

        def noting(compiled: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **kwargs: Any) -> Any:
                line = line_of_caller() or "torch"
                noted[f"{line}: torch.compile is left out: all runs as it is, and graph breaks are not recorded"] = None
                return compiled(*args, **kwargs)

            return called

        for owner in (torch, torch.nn.Module):
            self.replace(owner, "compile", noting(owner.compile))


def _forget_meshes() -> None:
    """Clear what DTensor keeps from call to call: it names the process groups of this rank."""
    try:
        from torch.distributed.tensor import _redistribute, debug  # noqa: PLC0415
    except ImportError:  # before torch 2.5
        return
    for owner, name in ((debug, "_clear_sharding_prop_cache"), (_redistribute, "clear_redistribute_planner_cache")):
        clear = getattr(owner, name, None)
        if clear is not None:
            clear()
    cached = getattr(getattr(_redistribute, "_gen_transform_infos", None), "cache_clear", None)
    if cached is not None:
        cached()


def _mode(recorder: Recorder) -> Any:
    """Return the dispatch mode that shows each operation to the recorder."""
    import torch  # noqa: PLC0415
    from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily  # noqa: PLC0415
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415

    # Buffers have a class of their own since torch 2.5.
    plain = {torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor), FakeTensor}

    class RecordingMode(TorchDispatchMode):  # type: ignore[misc] # torch is Any at our rim
        """Shows each operation on plain tensors to the recorder."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if str(kwargs.get("device")).startswith("cpu:"):
                kwargs = kwargs | {"device": torch.device("cpu")}  # a real tensor on cpu:0 is on cpu, a fake one is not
            if not isinstance(func, torch._ops.OpOverload):
                return func(*args, **kwargs)
            if any(each not in plain for each in types):
                return NotImplemented  # a DTensor: its own dispatch makes operations on the local tensors
            if func.namespace == "aten" and _on_real_tensors(func, args, kwargs):
                with unset_fake_temporarily():
                    return func(*args, **kwargs)
            return recorder.dispatch(func, args, kwargs)

    def _on_real_tensors(func: Any, args: Any, kwargs: Any) -> bool:
        from overlapscope.dry_run.work import tensors_in  # noqa: PLC0415

        tensors = tensors_in((args, kwargs))
        if tensors:
            return not any(isinstance(each, FakeTensor) for each in tensors)
        return recorder.real_integers > 0 and kwargs.get("dtype") is torch.int32

    return RecordingMode()


def _apply(module: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
    """Change a module's tensors as `Module._apply` does; torch's own cannot swap fake ones (pytorch#148977)."""
    import torch  # noqa: PLC0415

    if recurse:
        for child in module.children():
            child._apply(fn)
    with torch.no_grad():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            changed = fn(parameter)
            if changed is parameter:
                continue
            if changed.device == parameter.device and type(changed) is type(parameter.data):
                parameter.data = changed
            else:
                module._parameters[name] = torch.nn.Parameter(changed, parameter.requires_grad)
            if parameter.grad is not None:
                module._parameters[name].grad = fn(parameter.grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fn(buffer)
    return module


def _counting_parameters(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    def called(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        with recorder.moving(sum(int(each._orig_size.numel()) for each in parameters)):
            return original(parameters, *args, **kwargs)

    return called
