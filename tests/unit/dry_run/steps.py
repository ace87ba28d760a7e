"""Small steps for the tests of dry runs; `build` functions as a user writes them."""

from collections.abc import Callable

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functions
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

Step = Callable[[], None]


def layers(count: int, width: int = 256) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))


def plain(device: torch.device) -> Step:
    """Two products of 64 x 256 by 256 x 256, forward and backward, and SGD."""
    model, x = layers(2), torch.randn(64, 256, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def ddp(device: torch.device) -> Step:
    model = nn.parallel.DistributedDataParallel(layers(3), bucket_cap_mb=0.1)
    x = torch.randn(8, 256, device=device)

    def step() -> None:
        model(x).sum().backward()
        model.zero_grad()

    return step


def fsdp(device: torch.device) -> Step:
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - not in every version

    model, x = layers(3), torch.randn(8, 256, device=device)
    for layer in model:
        fully_shard(layer, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))
    fully_shard(model, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))

    def step() -> None:
        model(x).sum().backward()
        model.zero_grad()

    return step


def attends(device: torch.device) -> Step:
    q = torch.randn(2, 4, 128, 32, device=device, requires_grad=True)
    table = nn.Embedding(1000, 64, device=device)
    rows = torch.zeros(16, dtype=torch.int64, device=device)

    def step() -> None:
        functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
        with torch.no_grad():
            table(rows)

    return step


def reads_loss(device: torch.device) -> Step:
    model, x = layers(1), torch.randn(4, 256, device=device)

    def step() -> None:
        loss = model(x).square().mean()
        loss.backward()
        if loss.item() > 2:
            raise RuntimeError("a loss of 1 is assumed")

    return step


def reads_integer(device: torch.device) -> Step:
    x = torch.zeros(4, dtype=torch.int64, device=device)

    def step() -> None:
        torch.ones(int(x.sum().item()), device=device)

    return step


def selects(device: torch.device) -> Step:
    x = torch.randn(4, device=device)

    def step() -> None:
        x[x > 0].sum()

    return step


def needs_device(_: torch.device) -> Step:
    layers(1).cuda()
    return lambda: None


def autocast_of_cuda(device: torch.device) -> Step:
    model, x = layers(1), torch.randn(4, 256, device=device)

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            model(x).sum().backward()

    return step


def scaler_of_cuda(_: torch.device) -> Step:
    torch.amp.GradScaler()
    return lambda: None


def makes_tensor_of_cuda(device: torch.device) -> Step:
    x = torch.randn(4, 256, device=device)
    return lambda: x.to("cuda:0")


def nothing(_: torch.device) -> None:
    return None


def does_not_factor(device: torch.device) -> Step:
    init_device_mesh(device.type, (2, 3))
    return lambda: None


def leaves_ranks_out(device: torch.device) -> Step:
    init_device_mesh(device.type, (dist.get_world_size() // 3, 3))
    return lambda: None


def reduces_in_groups_of_their_own(device: torch.device) -> Step:
    groups = [dist.new_group([0, 1], backend=backend) for backend in ("nccl", "gloo", None)]
    x = torch.ones(4, device=device)

    def step() -> None:
        for group in groups:
            dist.all_reduce(x, group=group)

    return step


def shards_with_the_first_fsdp(_: torch.device) -> Step:
    torch.distributed.fsdp.FullyShardedDataParallel(layers(1))
    return lambda: None


def ends(_: torch.device) -> Step:
    raise SystemExit(1)


def asserts(_: torch.device) -> Step:
    if dist.get_world_size() % 3:
        raise AssertionError("ranks come in threes")  # written out: pytest rewrites what an assert says
    return lambda: None


def takes_nothing() -> Step:
    return lambda: None


def takes_a_batch(_: torch.device) -> Callable[[torch.Tensor], None]:
    return lambda _: None


def a_module(_: torch.device) -> nn.Module:
    return layers(1)


def imports_what_is_missing(_: torch.device) -> Step:
    import nowhere_at_all.inside  # type: ignore[import-not-found] # noqa: F401, PLC0415

    return lambda: None


def changes_dtype(device: torch.device) -> Step:
    model = layers(2).to(device).to(torch.bfloat16)
    x = torch.randn(4, 256, device=device, dtype=torch.bfloat16)

    def step() -> None:
        model(x).sum().backward()

    return step


def scales_and_prints(device: torch.device) -> Step:
    model = nn.parallel.DistributedDataParallel(layers(1))
    optimizer = torch.optim.AdamW(model.parameters())
    scaler, x = torch.amp.GradScaler("cpu"), torch.randn(4, 256, device=device)

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        f"{loss:.3f} {loss.detach().float().cpu().numpy()}"

    return step


def loads(_: torch.device) -> Step:
    dist.init_process_group("nccl")  # a script's own call meets the group that is there
    samples = torch.utils.data.TensorDataset(torch.randn(32, 256))
    batches = iter(torch.utils.data.DataLoader(samples, batch_size=8, shuffle=True))
    model = torch.compile(layers(1))

    def step() -> None:
        (x,) = next(batches)
        model(x).sum().backward()

    return step


class Numbers(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.numbers = torch.zeros(1 << 16, 256)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, at: int) -> torch.Tensor:
        return self.numbers[at]


def loads_with_workers(device: torch.device) -> Step:
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=8, num_workers=2, pin_memory=True, persistent_workers=True
    )
    batches, model = iter(loader), layers(1)

    def step() -> None:
        model(next(batches).to(device, non_blocking=True)).sum().backward()

    return step


def copies_to_the_host(device: torch.device) -> Step:
    model, x = layers(1), torch.randn(4, 256, device=device)

    def step() -> None:
        loss = model(x).square().mean()
        loss.backward()
        copied = loss.detach().cpu()  # waits
        copied.item()  # is there already
        loss.detach().to("cpu", non_blocking=True)
        loss.detach().to("cpu")  # waits
        loss.to(device)

    return step


def reduces_beside_compute(device: torch.device) -> Step:
    model, x = layers(2), torch.randn(4, 256, device=device)

    def step() -> None:
        early = functions.all_reduce(x, "sum", dist.group.WORLD)
        y = model(x) + early
        late = functions.all_reduce(y.detach(), "sum", dist.group.WORLD)
        (y + late).sum().backward()

    return step


def exchanges_objects(device: torch.device) -> Step:
    model, x = layers(1), torch.randn(4, 256, device=device)

    def step() -> None:
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, {"loss": 1})
        if found != [{"loss": 1}] * dist.get_world_size():
            raise RuntimeError("objects are this rank's own")
        model(x).sum().backward()

    return step


def on_meta(device: torch.device) -> Step:
    with torch.device("meta"):
        model = layers(2)
    model = nn.parallel.DistributedDataParallel(model.to_empty(device=device))
    x = torch.randn(4, 256, device=device)
    return lambda: model(x).sum().backward()


def module() -> tuple[nn.Module, torch.Tensor]:
    return layers(3), torch.randn(8, 256)
