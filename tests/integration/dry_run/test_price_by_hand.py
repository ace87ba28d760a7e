"""The price of one layer of a transformer, calculated by hand: FLOPs, bytes, rings, and the step they add up to."""

import numpy as np
import pytest

import overlapscope

torch = pytest.importorskip("torch", reason="torch is not installed: no step can run")

from overlapscope.timeline.columns import ATTENTION, MATMUL  # noqa: E402 - skipped without torch
from overlapscope.whatif.pricing.devices import device as device_named  # noqa: E402
from overlapscope.whatif.pricing.links import links  # noqa: E402
from overlapscope.whatif.pricing.prices import Terms, price_run, with_prices  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.dry_run]

BATCH, SEQUENCE, WIDTH, HEADS, HIDDEN, RANKS = 4, 4096, 2048, 16, 8192, 16
TOKENS = BATCH * SEQUENCE
# What the data sheet of the H100 SXM and the tables of constants state, written down again.
PEAK, MEMORY = 989e12, 3350e9
PRODUCTS, BANDWIDTH, PACE = 0.7, 0.8, 1.2
FORWARD_ATTENTION, BACKWARD_ATTENTION = 0.35, 0.30
CARD, NODE, LATENCY = 44e9, 350e9, 6e-6


class Layer(torch.nn.Module):
    """Attention and two products with a GELU, without norms and biases."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        like = {"bias": False, "device": device, "dtype": torch.bfloat16}
        self.q, self.k, self.v, self.o = (torch.nn.Linear(WIDTH, WIDTH, **like) for _ in range(4))
        self.up, self.down = torch.nn.Linear(WIDTH, HIDDEN, **like), torch.nn.Linear(HIDDEN, WIDTH, **like)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            each(x).view(BATCH, SEQUENCE, HEADS, WIDTH // HEADS).transpose(1, 2) for each in (self.q, self.k, self.v)
        )
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(found.transpose(1, 2).reshape(BATCH, SEQUENCE, WIDTH))
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def build(device: torch.device):  # type: ignore[no-untyped-def]
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    layer = fully_shard(Layer(device), mesh=init_device_mesh(device.type, (RANKS,)))
    optimizer = torch.optim.SGD(layer.parameters())
    x = torch.randn(BATCH, SEQUENCE, WIDTH, device=device, dtype=torch.bfloat16, requires_grad=True)

    def step() -> None:
        layer(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        x.grad = None

    return step


def product_s(rows: int, inner: int, columns: int) -> float:
    """The time of a product of bfloat16 matrices: of its FLOPs, or of its bytes if they take longer."""
    moved = 2 * (rows * inner + inner * columns + rows * columns)
    return max(2 * rows * inner * columns / (PEAK * PRODUCTS) * PACE, moved / (MEMORY * BANDWIDTH))


def ring_s(size_bytes: float) -> float:
    """A gather or a scatter over 16 ranks on two nodes: 15 steps, each with a sixteenth, at 8 cards a node."""
    return (RANKS - 1) * (LATENCY + size_bytes / RANKS / min(8 * CARD, NODE))


def test_a_layer_is_priced_as_by_hand() -> None:
    run = overlapscope.dryrun(build, world_size=RANKS).run
    priced = price_run(run, Terms(device=device_named("h100-sxm"), links=links("8xh100-nvswitch,roce-400")))
    timeline = with_prices(run, priced).ranks[0]
    table, calls, step = timeline.operations, timeline.collectives, priced.steps[0]

    weights = 4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN
    forward_flops = 2 * TOKENS * weights
    attention_flops = 4 * BATCH * SEQUENCE**2 * WIDTH // 2  # two products, half of them masked
    assert table.flops[table.work == MATMUL].sum() == 3 * forward_flops
    assert table.flops[table.work == ATTENTION].sum() == attention_flops + attention_flops * 5 // 2
    assert calls.bytes.tolist() == [2 * weights, 2 * weights]

    lasted_s = (step.row_end_ns - step.row_start_ns) / 1e9
    square = (TOKENS, WIDTH, WIDTH), (TOKENS, WIDTH, WIDTH), (WIDTH, TOKENS, WIDTH)
    up = (TOKENS, WIDTH, HIDDEN), (TOKENS, HIDDEN, WIDTH), (WIDTH, TOKENS, HIDDEN)
    down = (TOKENS, HIDDEN, WIDTH), (TOKENS, WIDTH, HIDDEN), (HIDDEN, TOKENS, WIDTH)
    products_s = 4 * sum(product_s(*each) for each in square) + sum(product_s(*each) for each in (*up, *down))
    assert np.nansum(lasted_s[table.work == MATMUL]) == pytest.approx(products_s, rel=1e-6)
    attention_s = attention_flops * PACE / PEAK * (1 / FORWARD_ATTENTION + 2.5 / BACKWARD_ATTENTION)
    assert np.nansum(lasted_s[table.work == ATTENTION]) == pytest.approx(attention_s, rel=1e-6)

    # Nothing can overlap: the gather comes before all compute, the scatter before the optimizer.
    on_compute = np.array([timeline.names[each] == "compute" for each in table.stream.tolist()])
    moved = np.maximum(table.read_bytes, 0) + np.maximum(table.written_bytes, 0)
    others = on_compute & (table.work != MATMUL) & (table.work != ATTENTION)
    copies_s = moved[~on_compute & (table.collective < 0) & (moved > 0)].sum() / (MEMORY * BANDWIDTH)
    compute_s = products_s + attention_s + moved[others].sum() / (MEMORY * BANDWIDTH)
    exposed_s = 2 * ring_s(2 * weights) + copies_s
    assert step.step_ns / 1e9 == pytest.approx(compute_s + exposed_s, rel=1e-6)
    assert step.exposed_comm_ns / 1e9 == pytest.approx(exposed_s, rel=1e-6)
