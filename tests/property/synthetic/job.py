"""What a job is: its ranks and groups, the model it trains, how steady its machines are, and the fault planted."""

import msgspec
import numpy as np
import numpy.typing as npt

MS, US = 1_000_000.0, 1_000.0
Ranks = npt.NDArray[np.int64]


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks in Megatron's order: tensor groups are neighbours, then data (experts within it), then pipeline stages."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    """Ranks that share out the experts, within the data dimension."""
    ranks_per_host: int = 8

    def __post_init__(self) -> None:
        if self.dp % self.ep:
            raise ValueError(f"{self.ep} expert ranks do not divide {self.dp} data ranks")

    @property
    def world(self) -> int:
        """All ranks."""
        return self.tp * self.pp * self.dp

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage."""
        return self.tp * self.dp

    def host_of(self, ranks: Ranks) -> Ranks:
        """Return the host of each rank."""
        return ranks // self.ranks_per_host

    def groups(self, dimension: str) -> Ranks:
        """Return the members of every group of a dimension, one group a row: tp, dp, ep, pp, mp (tp x pp) or world."""
        every = np.arange(self.world).reshape(self.pp, self.dp // self.ep, self.ep, self.tp)
        if dimension == "tp":
            return every.reshape(-1, self.tp)
        if dimension == "dp":
            return every.reshape(self.pp, self.dp, self.tp).swapaxes(1, 2).reshape(-1, self.dp)
        if dimension == "ep":
            return every.transpose(0, 1, 3, 2).reshape(-1, self.ep)
        if dimension == "pp":
            return every.reshape(self.pp, -1).T
        if dimension == "mp":
            return every.reshape(self.pp, self.dp, self.tp).swapaxes(0, 1).reshape(self.dp, -1)
        return every.reshape(1, -1)


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong, on which ranks, and how strongly; a figure of 0 or 1 is harmless."""

    kind: str = "none"
    culprits: tuple[int, ...] = ()
    host_factor: float = 1.0
    """Each launch of a culprit costs its host this many times as much."""
    stall_ns: float = 0.0
    """A pause of the culprit's host within the step."""
    stall_noted: str = ""
    """The reading in which telemetry notes the pause: its length, or that the allocator asked once more."""
    stall_at: float = 0.5
    """How far into the step's launches; moves from step to step when negative."""
    stall_every: int = 1
    """In one of so many steps."""
    load_ns: float = 0.0
    """A pause before the first launch of the step."""
    load_marked: bool = True
    """A loader of torch's marks its own time."""
    compute_factor: float = 1.0
    since: int = 0
    """It holds from so many steps on; before, a culprit computes as fast as its peers."""
    clock_noted: bool = False
    """Telemetry reads every device's clock, and a culprit's is lower by that factor."""
    work_factor: float = 1.0
    """Tokens in a culprit's batch."""
    extra_kernels: float = 0.0
    """Share of its kernels that a culprit runs a second time."""
    stage: int = -1
    stage_layers: int = 0
    """That stage has so many layers more than the others."""
    link_factor: float = 1.0
    """Transfers that leave or enter the host of the culprits take so many times as long."""
    expert_share: float = 1.0
    """Tokens that come to the culprits' experts, as a multiple of their even share."""
    cores: int = 0
    """Cores that the hosts of each machine share; 0 for a core each."""
    slice_ns: float = 5 * MS
    """How long a host keeps a core before it goes to the next one that waits."""
    reads: int = 0
    """In every so many-th layer a result is copied to the host, which then works on it ..."""
    read_work_ns: float = 0.0
    """... for so long."""
    polling: bool = False
    """Before that work it polls until the copy is there, by no call that a trace could record."""
    start_spread_ns: float = 0.0
    """Profilers, and so the first recorded step, begin up to this much apart."""
    unrecorded: bool = False
    """Kernels of CUDA graphs are not recorded."""
    churn_ns: float = 0.0
    """Each layer allocates device memory and frees it, which waits for the device and then takes this long."""
    offload_ns: float = 0.0
    """Each layer's parameters are copied from the host on the compute stream, which takes this long."""
    tensors: int = 0
    """Gradients of each layer are reduced in so many parts, one after the other, when backward is over."""
    tensor_ns: float = 0.0
    """What each such reduction costs the host besides its launches."""
    notify: bool = False
    """A kernel without payload comes before every exchange between experts: ranks wait for each other there."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job, whole: the same value gives the same trace."""

    layout: Layout = msgspec.field(default_factory=Layout)
    seed: int = 0
    steps: int = 6
    first_step: int = 10
    layers: int = 2
    """Of each stage."""
    microbatches: int = 1
    kernels_each: int = 1
    """Every kernel of the model is split into so many, to make traces longer."""
    layer_ns: float = 2 * MS
    """Forward compute of a layer and microbatch."""
    layer_bytes: int = 64 << 20
    """Gradients of a layer on one rank."""
    activation_bytes: int = 8 << 20
    moe: bool = False
    """Layers have experts: dispatch and combine by all-to-all over the expert group."""
    expert_kernels: bool = False
    """Experts exchange by kernels of their own library, which tell no sizes, instead of NCCL's."""
    fsdp: bool = False
    """Parameters are gathered and gradients scattered a layer; else gradients are all-reduced a layer (DDP)."""
    joint_norm: bool = True
    """A gradient norm over the ranks of a model replica before the optimizer."""
    sync_steps: bool = True
    """The host waits for the device at the end of each step (`loss.item()`)."""
    graphs: bool = False
    """The forward of each layer is a CUDA graph."""
    persistent: bool = False
    """Matrix products are persistent kernels: their grid is the device, whatever the work."""
    launch_ns: float = 9 * US
    """What a launch costs the host."""
    latency_ns: float = 4 * US
    """From launch to the earliest start."""
    kernel_jitter: float = 0.01
    rank_jitter: float = 0.005
    """Devices differ by this for good."""
    host_jitter: float = 0.2
    host_rank_jitter: float = 0.03
    hiccup_chance: float = 0.0005
    """That a launch is held up ..."""
    hiccup_ns: float = 0.5 * MS
    """... by this on average ..."""
    hiccup_cap_ns: float | None = None
    """... and never longer than this."""
    batch_jitter: float = 0.0
    """Tokens of a data rank's batch vary by this from step to step."""
    expert_jitter: float = 0.05
    """Experts' shares of the tokens vary by this from layer to layer."""
    load_ns: float = 0.3 * MS
    """What getting the next batch costs anyway."""
    intra_gbs: float = 200.0
    inter_gbs: float = 25.0
    alpha_ns: float = 12 * US
    link_jitter: float = 0.03
    end_jitter_ns: float = 4 * US
    """Members see the end of a collective this much apart."""
    interference: float = 1.1
    """Compute while a collective of gradients runs takes so much longer."""
    recorded: tuple[int, ...] | None = None
    """Ranks that are written; None for all."""
    numbered: bool = True
    """Sequence numbers stand in the trace."""
    collective_args: bool = True
    """Groups and sizes stand on the kernels, as torch 2.4 and later write them."""
    offsets_ns: float = 5 * MS
    """Clocks of hosts differ by about this ..."""
    drift_ppm: float = 0.0
    """... and run apart by about this."""
    fault: Fault = msgspec.field(default_factory=Fault)

    def ranks(self) -> Ranks:
        """Return the recorded ranks."""
        return np.array(sorted(self.recorded), np.int64) if self.recorded is not None else np.arange(self.layout.world)

    def clocks(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return offset (ns) and drift (ns a ns) of every rank's clock; ranks of a host share one."""
        rng = np.random.default_rng([self.seed, 7])
        hosts = self.layout.host_of(np.arange(self.layout.world))
        offsets = np.rint(rng.normal(0, self.offsets_ns, hosts.max() + 1))
        drifts = rng.normal(0, self.drift_ppm * 1e-6, hosts.max() + 1)
        return offsets[hosts], drifts[hosts]
