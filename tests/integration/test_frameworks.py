"""The framework adapters in loops of fakes that follow the hosts' own sources, named in tests.support.hosts."""

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import overlapscope
from overlapscope.capture.lifecycle.guard import CaptureWarning
from overlapscope.errors import UsageError
from overlapscope.frameworks import accelerate, deepspeed, lightning, megatron, torchtitan, transformers

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

from torch import distributed, nn  # noqa: E402 - behind the check for torch

from tests.support import hosts  # noqa: E402

pytestmark = pytest.mark.torch
OPTIONS: dict[str, Any] = {"mode": "events", "warmup": 0, "measure_overhead": False}
BATCHES = [torch.ones(4, 8)] * 7
PAIR = (BATCHES[0], BATCHES[0])


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


def ddp(module: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(module)


def phases(run: Path) -> list[list[str]]:
    """The phases of each recorded step, in order of time, each once; without what lies between them."""
    loaded = overlapscope.load(run)
    spans = loaded.table("spans", 0)
    spans = spans[(spans.kind == "compute") & (spans.name != "other")].sort_values("start_ns")
    names = []
    for step in loaded.table("steps", 0).step.tolist():
        found = spans[spans.step == step].name.tolist()
        names.append([name for at, name in enumerate(found) if at == 0 or found[at - 1] != name])
    return names


def whole(run: Path) -> list[int]:
    """Numbers of the steps that count as complete."""
    return [step.step for step in overlapscope.load(run).analysis().ranks[0].steps if step.complete]


def amounts(run: Path) -> dict[str, float]:
    """What this rank processes in a step, as far as it was recorded."""
    found = overlapscope.load(run).analysis().throughput
    known = {name: getattr(found, name) for name in ("tokens", "samples", "flops_per_device")}
    return {name: each.per_step for name, each in known.items() if each is not None}


ONE = ["forward", "backward", "optimizer"]
TWO = ["forward", "backward", "forward", "backward", "optimizer"]


# --- Lightning


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def lightning_package(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    hosts.install(monkeypatch, request.param, Callback=hosts.LightningCallback)
    return str(request.param)


@pytest.mark.slow
@pytest.mark.usefixtures("lightning_package")
def test_lightnings_steps_are_its_optimizer_steps(tmp_path: Path) -> None:
    callback = lightning.callback(tmp_path / "run", **OPTIONS)
    module = hosts.LightningModule(layers())
    trainer = hosts.LightningTrainer([callback], accumulate_grad_batches=2)
    trainer.fit(module, BATCHES, ddp(module))
    # Seven batches: three pairs, and a last one that steps alone.
    assert trainer.global_step == 4
    assert phases(tmp_path / "run") == [TWO, TWO, TWO, ONE]
    calls = overlapscope.load(tmp_path / "run").table("collectives", 0)
    reduced = calls[calls.op == "all_reduce"]
    assert set(reduced.step) == {0, 1, 2, 3}
    assert set(reduced.phase) == {"backward"}
    assert overlapscope.load(tmp_path / "run").run.ranks[0].recorded["ddp"]["bucket_bytes"]


@pytest.mark.slow
@pytest.mark.usefixtures("lightning_package")
def test_a_lightning_module_that_is_never_called_itself_has_its_forward_all_the_same(tmp_path: Path) -> None:
    trainer = hosts.LightningTrainer([lightning.callback(tmp_path / "run", **OPTIONS)], accumulate_grad_batches=2)
    trainer.fit(hosts.LightningModule(layers()), BATCHES[:4])
    assert phases(tmp_path / "run") == [TWO, TWO]


@pytest.mark.slow
@pytest.mark.usefixtures("lightning_package")
def test_a_step_that_validation_interrupts_does_not_count(tmp_path: Path) -> None:
    callback = lightning.callback(tmp_path / "run", **OPTIONS)
    trainer = hosts.LightningTrainer([callback], accumulate_grad_batches=2, val_check_interval=3)
    trainer.fit(hosts.LightningModule(layers()), [*BATCHES, *BATCHES[:1]])
    # Validation comes after batches 3 and 6: in the middle of the second step, and between the third and the fourth.
    assert trainer.global_step == 4
    assert len(phases(tmp_path / "run")) == 4
    assert len(whole(tmp_path / "run")) == 3
    assert whole(tmp_path / "run")[0] == 0


@pytest.mark.usefixtures("lightning_package")
def test_an_epoch_that_the_module_cuts_short_leaves_no_step_open(tmp_path: Path) -> None:
    class Short(hosts.LightningModule):
        def on_train_batch_start(self, batch: torch.Tensor, batch_idx: int) -> int | None:
            return -1 if batch_idx == 3 else None

    trainer = hosts.LightningTrainer([lightning.callback(tmp_path / "run", **OPTIONS)], max_epochs=2)
    trainer.fit(Short(layers()), BATCHES)
    assert trainer.global_step == 6
    # The batch that was cut and the one after it are left out.
    assert len(whole(tmp_path / "run")) == 5


@pytest.mark.usefixtures("lightning_package")
def test_an_exception_in_lightning_writes_the_run_and_passes_through(tmp_path: Path) -> None:
    class Failing(hosts.LightningModule):
        def on_train_batch_start(self, batch: torch.Tensor, batch_idx: int) -> int | None:
            del batch
            return 1 // (4 - batch_idx) and None

    trainer = hosts.LightningTrainer([lightning.callback(tmp_path / "run", **OPTIONS)])
    with pytest.raises(ZeroDivisionError):
        trainer.fit(Failing(layers()), BATCHES)
    assert len(whole(tmp_path / "run")) == 4
    recorded = overlapscope.load(tmp_path / "run").run.ranks[0].recorded
    assert recorded["failures"] == ["training ended with ZeroDivisionError"]


def test_lightnings_callback_is_one_of_each_package_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(hosts.LightningCallback):
        pass

    hosts.install(monkeypatch, "lightning.pytorch", Callback=hosts.LightningCallback)
    hosts.install(monkeypatch, "pytorch_lightning", Callback=type("Callback", (), {}))
    both = lightning.callback(tmp_path / "run")
    assert isinstance(both, hosts.LightningCallback)
    assert isinstance(both, sys.modules["pytorch_lightning"].Callback)
    assert not isinstance(both, Other)


def test_lightnings_callback_travels_to_spawned_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts.install(monkeypatch, "lightning.pytorch", Callback=hosts.LightningCallback)
    there = pickle.loads(pickle.dumps(lightning.callback(tmp_path / "run", **OPTIONS)))
    hosts.LightningTrainer([there]).fit(hosts.LightningModule(layers()), BATCHES[:2])
    assert phases(tmp_path / "run") == [ONE, ONE]


# --- Hugging Face


@pytest.fixture
def trainer_package(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts.install(monkeypatch, "transformers", TrainerCallback=hosts.TrainerCallback)


@pytest.mark.usefixtures("trainer_package")
@pytest.mark.parametrize("mode", ["events", "trace"])
def test_the_trainers_steps_hold_their_accumulated_batches_and_its_buckets_are_found(mode: str, tmp_path: Path) -> None:
    model = layers()
    trainer = hosts.Trainer(model, ddp(model), BATCHES, gradient_accumulation_steps=2)
    options = {**OPTIONS, "mode": mode, "steps": 3, "warmup": int(mode == "trace")}
    trainer.add_callback(transformers.callback(tmp_path / "run", **options))
    trainer.train()
    assert trainer.global_step == 4
    run = overlapscope.load(tmp_path / "run")
    if mode == "events":
        assert phases(tmp_path / "run") == [TWO, TWO, TWO, ONE]
    else:
        assert run.table("steps", 0).step.tolist() == [1, 2, 3]
        assert run.table("gradients", 0).name.nunique() == 4
    # The callback is given the bare model; the wrapper has the buckets.
    assert run.run.ranks[0].recorded["ddp"]["bucket_bytes"]


@pytest.mark.usefixtures("trainer_package")
def test_batches_that_the_trainer_leaves_without_a_step_do_not_count(tmp_path: Path) -> None:
    model = layers()
    trainer = hosts.Trainer(model, model, BATCHES[:5], gradient_accumulation_steps=2, epochs=2, partial_steps=False)
    trainer.add_callback(transformers.callback(tmp_path / "run", **OPTIONS))
    trainer.train()
    assert trainer.global_step == 4
    assert len(whole(tmp_path / "run")) == 4


@pytest.mark.usefixtures("trainer_package")
def test_a_second_training_is_a_recording_of_its_own(tmp_path: Path) -> None:
    model = layers()
    trainer = hosts.Trainer(model, model, BATCHES)
    trainer.add_callback(transformers.callback(tmp_path / "run", **OPTIONS))
    trainer.train()
    with pytest.warns(UserWarning, match="will be replaced"):
        trainer.train()
    assert len(whole(tmp_path / "run")) == 7


@pytest.mark.slow
@pytest.mark.usefixtures("trainer_package")
def test_counting_the_trainers_tokens_leaves_the_compilers_graph_as_it_is(tmp_path: Path) -> None:
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        graphs.append(graph.code)
        return graph.forward

    def trained(recorder: Any) -> None:
        torch._dynamo.reset()
        model = LanguageModel()
        recorder.on_train_begin(SimpleNamespace(), None, None, model=model)
        called = torch.compile(model, backend=backend, fullgraph=True)
        for _ in range(3):
            recorder.on_step_begin(None, None, None)
            called(input_ids=IDS).mean().backward()
            recorder.on_step_end(None, None, None)
        recorder.on_train_end(None, None, None)

    trained(Mock())
    trained(transformers.callback(tmp_path / "run", **OPTIONS))
    assert len(graphs) == 2
    assert graphs[0] == graphs[1]
    assert amounts(tmp_path / "run") == {}


def test_accelerates_steps_end_where_gradients_are_synchronised(tmp_path: Path) -> None:
    module = layers()
    model, optimizer = ddp(module), torch.optim.SGD(module.parameters(), lr=0.1)
    accelerator = hosts.Accelerator(gradient_accumulation_steps=2, batches=len(BATCHES))
    with overlapscope.profile(tmp_path / "run", model=model, **OPTIONS) as scope:
        batch_of_step = accelerate.batches(scope, accelerator)
        for batch in BATCHES:
            with batch_of_step(), accelerator.accumulate(model):
                accelerator.backward(model(batch).square().mean())
                if accelerator.sync_gradients:  # AcceleratedOptimizer.step does nothing otherwise
                    optimizer.step()
                    optimizer.zero_grad()
    assert phases(tmp_path / "run") == [TWO, TWO, TWO, ONE]
    calls = overlapscope.load(tmp_path / "run").table("collectives", 0)
    assert set(calls[calls.op == "all_reduce"].step) == {0, 1, 2, 3}


def test_an_exception_in_a_batch_ends_its_step_and_passes_through(tmp_path: Path) -> None:
    model = layers()
    accelerator = hosts.Accelerator(gradient_accumulation_steps=2, batches=100)
    with overlapscope.profile(tmp_path / "run", model=model, **OPTIONS) as scope:
        batch_of_step = accelerate.batches(scope, accelerator)
        for at, batch in enumerate(BATCHES):
            try:
                with batch_of_step(), accelerator.accumulate(model):
                    model(batch).mean().backward()
                    {}[at] if at == 3 else None
            except KeyError:
                continue
    assert whole(tmp_path / "run") == [0, 2]


def test_what_batches_hold_is_summed_over_a_step(tmp_path: Path) -> None:
    model = layers()
    accelerator = hosts.Accelerator(gradient_accumulation_steps=2, batches=4)
    with overlapscope.profile(tmp_path / "run", model=model, **OPTIONS) as scope:
        batch_of_step = accelerate.batches(scope, accelerator)
        scope.count(tokens=100)  # outside of a step nothing is counted
        for batch in BATCHES[:4]:
            with batch_of_step(tokens=batch.numel(), samples=len(batch)), accelerator.accumulate(model):
                accelerator.backward(model(batch).mean())
    assert amounts(tmp_path / "run") == {"tokens": 64, "samples": 8}


@pytest.mark.slow
@pytest.mark.usefixtures("lightning_package")
def test_samples_are_known_where_every_tensor_has_the_loaders_batch_size(tmp_path: Path) -> None:
    loader = SimpleNamespace(batch_size=4)
    for name, batch, size, expected in (
        ("tensor", torch.ones(4, 8), 4, {"samples": 4}),
        ("mapping", {"x": torch.ones(4, 8), "name": "a"}, 4, {"samples": 4}),
        ("images", [torch.ones(3, 8), torch.ones(3, 8)], 4, {}),  # a list of two images
        ("uneven", (torch.ones(4, 8), torch.ones(2)), 4, {}),
        ("none", torch.ones(4, 8), None, {}),
        ("last", torch.ones(3, 8), 4, {"samples": 3}),
    ):
        loader.batch_size = size
        trainer = SimpleNamespace(
            train_dataloader=loader,
            strategy=None,
            world_size=1,
            is_last_batch=name == "last",
            global_step=0,
            model=None,
        )
        recorder, model = lightning.callback(tmp_path / name, **OPTIONS), layers()
        recorder.on_train_start(trainer, model)
        recorder.on_train_batch_start(trainer, None, batch, 0)
        model(BATCHES[0]).mean().backward()
        trainer.global_step = 1
        recorder.on_train_batch_end(trainer, None, None, batch, 0)
        recorder.on_train_end(trainer, None)
        assert amounts(tmp_path / name) == expected, name


@pytest.mark.slow
@pytest.mark.usefixtures("lightning_package")
def test_lightning_counts_what_the_user_says_of_a_batch_and_its_ranks_part_of_a_shared_one(tmp_path: Path) -> None:
    module = hosts.LightningModule(layers())
    counted = {"amounts": lambda batch: {"tokens": batch.numel(), "flops": 2.0}}
    trainer = hosts.LightningTrainer([lightning.callback(tmp_path / "run", **counted, **OPTIONS)])
    trainer.fit(module, BATCHES)
    assert amounts(tmp_path / "run") == {"tokens": 32, "flops_per_device": 2}
    failing = lightning.callback(tmp_path / "failing", amounts=lambda batch: {"tokens": len(batch) // 0}, **OPTIONS)
    with pytest.warns(CaptureWarning, match="counting what a step processes"):
        hosts.LightningTrainer([failing]).fit(module, BATCHES)
    assert len(whole(tmp_path / "failing")) == 7
    shared = SimpleNamespace(
        train_dataloader=SimpleNamespace(batch_size=4), world_size=4,
        strategy=SimpleNamespace(distributed_sampler_kwargs={"num_replicas": 2, "rank": 0}),
    )  # fmt: skip
    assert lightning._known(shared, SimpleNamespace(flops_per_batch=7), BATCHES[0]) == {"samples": 2, "flops": 7}


class LanguageModel(nn.Module):
    """As much of a PreTrainedModel as is asked for."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.layers, self.config = layers(), SimpleNamespace(is_encoder_decoder=False, **config)

    def num_parameters(self, *, exclude_embeddings: bool) -> int:
        assert exclude_embeddings
        return 10

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs["input_ids"].float())


IDS = torch.ones(4, 8, dtype=torch.int64)
FULL = {"tokens": 32, "samples": 4, "flops_per_device": 32 * 60}


@pytest.mark.slow
@pytest.mark.usefixtures("trainer_package")
@pytest.mark.parametrize(
    ("config", "inputs", "expected"),
    [
        ({}, {"input_ids": IDS}, FULL),
        ({"num_local_experts": 8}, {"input_ids": IDS}, {"tokens": 32, "samples": 4}),
        ({}, {"input_ids": IDS, "position_ids": IDS}, {"tokens": 32, "flops_per_device": 32 * 60}),
        ({"is_encoder_decoder": True}, {"input_ids": IDS}, {"samples": 4}),
        ({"frozen": True}, {"input_ids": IDS}, {"tokens": 32, "samples": 4}),
        ({"tensor_parallel": 2}, {"input_ids": IDS}, {}),
    ],
)
def test_the_trainers_amounts_are_those_that_shapes_make_certain(
    config: dict[str, Any], inputs: dict[str, Any], expected: dict[str, float], tmp_path: Path
) -> None:
    model = LanguageModel(**{name: value for name, value in config.items() if name != "is_encoder_decoder"})
    model.config.is_encoder_decoder = config.get("is_encoder_decoder", False)
    model.layers[0].weight.requires_grad_(not config.get("frozen"))
    parallel = SimpleNamespace(non_data_parallel_size=config.get("tensor_parallel", 1))
    recorder = transformers.callback(tmp_path / "run", **OPTIONS)
    recorder.on_train_begin(SimpleNamespace(parallelism_config=parallel), None, None, model=model)
    for _ in range(2):
        recorder.on_step_begin(None, None, None)
        model(**inputs).mean().backward()
        with torch.no_grad():
            model(**inputs)  # generates
        recorder.on_step_end(None, None, None)
        model.eval()(**inputs)  # evaluates
        model.train()
    recorder.on_train_end(None, None, None)
    assert amounts(tmp_path / "run") == expected


# --- DeepSpeed


def test_deepspeeds_steps_end_at_the_accumulations_boundary(tmp_path: Path) -> None:
    engine = hosts.DeepSpeedEngine(layers(), gradient_accumulation_steps=3)
    with overlapscope.profile(tmp_path / "run", model=engine, **OPTIONS) as scope:
        batch_of_step = deepspeed.batches(scope, engine)
        for batch in BATCHES:
            with batch_of_step():
                engine.backward(engine(batch).square().mean())
                engine.step()
    three = ["forward", "backward"] * 3
    assert phases(tmp_path / "run") == [[*three, "optimizer"]] * 2
    calls = overlapscope.load(tmp_path / "run").table("collectives", 0)
    assert calls.groupby("step").size().to_dict() == {0: 4, 1: 4}


# --- Megatron-LM


def installed_megatron(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    functions = hosts.megatron_training(**{"steps": 4, "micro_batches": 2, "seen": [], **options})
    module = hosts.install(monkeypatch, "megatron.training.training")
    # The module's own dictionary has to be the functions' globals, as in a file.
    for name in ("pretrain", "train", "train_step", "forward_step"):
        function = functions[name]
        vars(module)[name] = type(function)(function.__code__, vars(module), name, function.__defaults__)
    vars(module).update({name: functions[name] for name in ("steps", "micro_batches", "seen", "exits_at")})
    return module


def test_megatrons_train_steps_are_steps_and_its_functions_are_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = installed_megatron(monkeypatch)
    train, train_step = training.train, training.train_step
    megatron.record(tmp_path / "run", **OPTIONS)
    assert not (tmp_path / "run").exists()
    assert training.pretrain(layers) == 4
    assert (training.train, training.train_step) == (train, train_step)
    assert training.seen == ["initialize_megatron", "after training is done"]
    assert phases(tmp_path / "run") == [TWO] * 4


def test_megatrons_exit_from_the_loop_writes_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = installed_megatron(monkeypatch)
    training.exits_at = 3
    megatron.record(tmp_path / "run", **OPTIONS)
    with pytest.raises(SystemExit, match="3"):
        training.pretrain(layers)
    assert len(whole(tmp_path / "run")) == 3


# --- torchtitan


def test_torchtitans_post_processor_says_what_its_trace_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.install(monkeypatch, "torchtitan.config.function", Function=hosts.TitanFunction)
    profiler = hosts.TitanProfiler(str(tmp_path), torchtitan.trace_post_processor())
    hosts.TitanTrainer(ddp(layers()), profiler, steps=4, accumulates=2).train(repeat(PAIR))
    folder = tmp_path / "profiling" / "traces" / "iteration_4"
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("overlapscope:")]
    assert len(said) == 1
    assert said[0].startswith("overlapscope: iteration_4, rank 0: ")
    assert said[0].endswith(f"overlapscope analyze {folder}")
    (rank,) = overlapscope.load(folder).analysis().ranks
    exposed = sum(step.exposed_comm_ns or 0 for step in rank.steps if step.complete)
    count = sum(step.complete for step in rank.steps)
    assert f": {exposed / count / 1e6:.3f} ms of a " in said[0]


def test_a_trace_that_cannot_be_read_does_not_stop_torchtitan(tmp_path: Path) -> None:
    broken = tmp_path / "rank0_trace.json.gz"
    broken.write_bytes(b"no trace")
    with pytest.warns(UserWarning, match="training goes on"):
        torchtitan.print_exposed(str(broken))


def test_other_ranks_of_torchtitan_do_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchtitan, "rank_and_world", lambda: (1, 2))
    torchtitan.print_exposed(str(tmp_path / "not there.json"))


def test_torchtitans_train_step_is_a_step_of_our_own_recording(tmp_path: Path) -> None:
    trainer = hosts.TitanTrainer(ddp(layers()), None, steps=3, accumulates=2)
    with overlapscope.profile(tmp_path / "run", model=trainer.model_parts[0], **OPTIONS) as scope:
        trainer.train_step = torchtitan.train_step(scope, trainer)
        trainer.train(repeat(PAIR))
    assert phases(tmp_path / "run") == [TWO] * 3
    # Two batches of 32, which the two ranks of a tensor-parallel pair share.
    assert amounts(tmp_path / "run") == {"tokens": 32, "flops_per_device": 320}


# --- guards


MISSING: dict[str, Callable[[Path], object]] = {
    "lightning": lightning.callback,
    "transformers": transformers.callback,
    "megatron": megatron.record,
    "torchtitan": lambda _: torchtitan.trace_post_processor(),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_host_that_is_not_installed_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"{name}.* is not installed: pip install {name}"):
        MISSING[name](tmp_path / "run")


def test_what_is_no_engine_and_no_accelerator_is_named(tmp_path: Path) -> None:
    with overlapscope.profile(tmp_path / "run", **OPTIONS) as scope:
        with pytest.raises(UsageError, match=r"Linear is no accelerate\.Accelerator"):
            accelerate.batches(scope, nn.Linear(1, 1))
        with pytest.raises(UsageError, match=r"Linear is no engine of deepspeed\.initialize"):
            deepspeed.batches(scope, nn.Linear(1, 1))
        with pytest.raises(UsageError, match=r"Linear is no torchtitan\.trainer\.Trainer"):
            torchtitan.train_step(scope, nn.Linear(1, 1))
        with scope.step():
            pass


@pytest.mark.slow
def test_importing_the_adapters_imports_no_host_and_no_torch() -> None:
    names = [f"overlapscope.frameworks.{each.__name__.rpartition('.')[2]}" for each in (lightning, transformers)]
    names += [f"overlapscope.frameworks.{each}" for each in ("accelerate", "deepspeed", "megatron", "torchtitan")]
    hosts_loaded = "{'torch', 'lightning', 'transformers', 'accelerate', 'deepspeed', 'megatron', 'torchtitan'}"
    code = f"import sys, {', '.join(names)}; print(sorted({hosts_loaded} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
