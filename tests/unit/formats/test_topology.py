"""Matrices of links and NCCL's XML, and what is found wrong in them, and in no sound design."""

import random
import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.checks.topology_findings import topology_findings
from overlapscope.analysis.source_tables import rows_of_sources
from overlapscope.errors import InputError
from overlapscope.ingest.formats import topology
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.ingest.registry import find_reader, read_head
from overlapscope.timeline.facts import join_facts
from tests.conftest import shared_file
from tests.support.hostile import edited, read_or_refuse, read_text, recognises

Cell = Callable[[int, int], str]


def links_of(reading: Reading) -> dict[tuple[str, str], dict[str, Any]]:
    rows = rows_of_sources(reading.facts)["links"].rows if reading.facts else []
    return {(str(each["a"]), str(each["b"])): each for each in rows}


def matrix(gpus: int, cell: Cell, *, mark: str = "\t", prompt: str = "$ nvidia-smi topo -m\n", nics: int = 0) -> str:
    """Print what nvidia-smi prints."""
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(nics)]
    lines = [mark + mark.join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for i, name in enumerate(names):
        cells = [" X " if i == j else cell(i, j) if max(i, j) < gpus else "PXB" for j in range(len(names))]
        tail = ["0-55", "0", "", "N/A"] if i < gpus else ["", "", "", ""]
        lines.append(mark.join([name, *cells, *tail]))
    legend = "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
    cards = "\nNIC Legend:\n\n" + "".join(f"  NIC{i}: mlx5_{i}\n" for i in range(nics)) if nics else ""
    return prompt + "\n".join(lines) + "\n" + legend + cards


def found(text: str, tmp_path: Path) -> list[str]:
    reading = read_text(topology.MATRIX, tmp_path, text)
    return [f"{each.id}|{each.title}" for each in topology_findings(reading.facts)]


# --- real matrices --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pairs", "first", "some"),
    [
        ("litgpt_all_nvlink_connected_output.txt", 12, ("NVLink", 12), ("GPU3", "GPU0", "NVLink", 12)),
        ("litgpt_nvidia_smi_nvlink_output_dual_gpu_no_numa.txt", 2, ("NVLink", 1), ("GPU1", "GPU0", "NVLink", 1)),
        ("litgpt_nvlink_all_gpu_connected_but_other_connected_output.txt", 306, ("NVLink", 12),
         ("GPU0", "mlx5_2", "PXB", None)),
        ("litgpt_nvlink_not_connected_output.txt", 12, ("PHB", None), ("GPU3", "GPU1", "PHB", None)),
        ("litgpt_nvlink_partially_connected_output.txt", 12, ("NVLink", 1), ("GPU2", "GPU3", "NVLink", 1)),
    ],
)  # fmt: skip
def test_real_matrices_are_read_cell_by_cell(
    name: str, pairs: int, first: tuple[str, int | None], some: tuple[str, str, str, int | None]
) -> None:
    path = shared_file(f"topo/{name}")
    assert find_reader(read_head(path)) is topology.MATRIX
    reading = topology.MATRIX.read(path, ReadContext())
    assert (reading.source.events, reading.source.dropped, reading.source.warnings) == (pairs, 0, ())
    links = links_of(reading)
    assert (links["GPU0", "GPU1"]["kind"], links["GPU0", "GPU1"]["lanes"]) == first
    a, b, kind, lanes = some
    assert (links[a, b]["kind"], links[a, b]["lanes"]) == (kind, lanes)
    # Every cell once more, by another reading of the text.
    lines = [line for line in path.read_text().splitlines() if re.match(r"(GPU|NIC)\d+\s", line)]
    devices = [line.split()[0] for line in lines]
    for line in lines:
        own, *cells = line.split()[: len(devices) + 1]
        for other, cell in zip(devices, cells, strict=True):
            if cell == "X":
                continue
            link = links[own.replace("NIC", "mlx5_"), other.replace("NIC", "mlx5_")]
            assert (f"NV{link['lanes']}" if link["kind"] == "NVLink" else link["kind"]) == cell
    assert topology_findings(reading.facts) == []


def test_all_real_topologies_make_one_run() -> None:
    run = read_inputs([shared_file("topo"), shared_file("nccl_topo_xml")])
    assert {source.format for source in run.sources} == {"topo-matrix", "nccl-topology"}
    assert analyze(run).findings == []


# --- matrices -------------------------------------------------------------------------------------------------------


def mesh(i: int, j: int) -> str:
    del i, j
    return "NV18"


@pytest.mark.parametrize("mark", ["\t", "    ", " "])
def test_tabs_and_blanks_part_cells_alike(mark: str, tmp_path: Path) -> None:
    links = links_of(read_text(topology.MATRIX, tmp_path, matrix(8, mesh, mark=mark, nics=2)))
    assert len(links) == 90
    assert (links["GPU7", "GPU2"]["kind"], links["GPU7", "GPU2"]["lanes"]) == ("NVLink", 18)
    assert (links["mlx5_1", "GPU2"]["kind"], links["mlx5_1", "GPU2"]["lanes"]) == ("PXB", None)


def test_underlined_headers_prompts_and_old_names_are_read(tmp_path: Path) -> None:
    text = (
        "\x1b[1muser@host\x1b[0m:~$ /usr/bin/nvidia-smi topo -m\n"
        "\t\x1b[4mGPU0\tGPU1\tmlx5_0\tCPU Affinity\x1b[0m\n"
        "GPU0\t X \tSOC\tPIX\t0-9\nGPU1\tSOC\t X \tSOC\t10-19\nmlx5_0\tPIX\tSOC\t X \n"
    )
    links = links_of(read_text(topology.MATRIX, tmp_path, text))
    assert {pair: link["kind"] for pair, link in links.items()} == {
        ("GPU0", "GPU1"): "SOC", ("GPU0", "mlx5_0"): "PIX", ("GPU1", "GPU0"): "SOC", ("GPU1", "mlx5_0"): "SOC",
        ("mlx5_0", "GPU0"): "PIX", ("mlx5_0", "GPU1"): "SOC",
    }  # fmt: skip


def test_support_of_peer_access_is_no_path(tmp_path: Path) -> None:
    text = (
        "$ nvidia-smi topo -p2p r\n \tGPU0\tGPU1\tGPU2\n GPU0\tX\tCNS\tOK\n GPU1\tCNS\tX\tNS\n GPU2\tOK\tNS\tX\n"
        "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n"
    )
    reading = read_text(topology.MATRIX, tmp_path, text)
    assert links_of(reading)["GPU0", "GPU1"]["kind"] == "P2P r CNS"
    both = read_text(topology.MATRIX, tmp_path, matrix(3, mesh) + text)
    assert {each["host"] for each in rows_of_sources(both.facts)["links"].rows} == {None}
    assert topology_findings(both.facts) == []


ROCM = """
============================ ROCm System Management Interface ============================
WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status

================================ Weight between two GPUs =================================
       GPU0         GPU1         GPU2
GPU0   0            15           40
GPU1   15           0            40
GPU2   40           40           0

================================= Hops between two GPUs ==================================
       GPU0         GPU1         GPU2
GPU0   0            1            2
GPU1   1            0            2
GPU2   2            2            0

=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2
GPU0   0            XGMI         PCIE
GPU1   XGMI         0            PCIE
GPU2   PCIE         PCIE         0

======================================= Numa Nodes =======================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[0]\t\t: (Topology) Numa Affinity: 0
================================== End of ROCm SMI Log ===================================
"""


def test_rocm_smi_gives_the_type_of_each_link(tmp_path: Path) -> None:
    reading = read_text(topology.MATRIX, tmp_path, ROCM)
    kinds = {pair: link["kind"] for pair, link in links_of(reading).items()}
    assert kinds["GPU0", "GPU1"] == kinds["GPU1", "GPU0"] == "XGMI"
    assert kinds["GPU2", "GPU0"] == "PCIE"
    assert len(kinds) == 6
    assert reading.source.warnings == (
        "hops, weights and access between devices are not read, only the type of their link",
    )


def test_amd_smi_names_devices_by_address(tmp_path: Path) -> None:
    text = (
        "LINK TYPE TABLE:\n             0000:0c:00.0 0000:22:00.0\n0000:0c:00.0 SELF         XGMI\n"
        "0000:22:00.0 XGMI         SELF\n"
    )
    links = links_of(read_text(topology.MATRIX, tmp_path, text))
    assert links["GPU 0000:0c:00.0", "GPU 0000:22:00.0"]["kind"] == "XGMI"


def test_a_host_with_one_device_has_no_link(tmp_path: Path) -> None:
    reading = read_text(topology.MATRIX, tmp_path, matrix(1, mesh))
    assert reading.source.warnings == ("it lists fewer than two devices, so there is no link",)
    assert not reading.facts


def test_rows_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    text = matrix(4, mesh).replace("GPU2\tNV18", "GPU2\t????")
    reading = read_text(topology.MATRIX, tmp_path, text)
    assert (reading.source.dropped, len(links_of(reading))) == (1, 9)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GPU0 is faster than GPU1\n",
        "GPU0,GPU1\n1,2\n",
        "\tGPU0\tGPU1\n",
        "\tGPU0\tGPU1\nGPU0\t12\t13\nGPU1\t14\t15\n",
        '{"GPU0": {"GPU1": "NV12"}}',
        "[1/2] GPU0 X NV12\n",
    ],
)
def test_other_texts_are_left_to_other_readers(text: str, tmp_path: Path) -> None:
    assert not recognises(topology.MATRIX, tmp_path, text)
    assert not recognises(topology.XML, tmp_path, text)


def test_a_readme_that_shows_a_matrix_among_its_prose_is_left_alone(tmp_path: Path) -> None:
    text = "# Cluster\n" + "Some words on the cluster.\n" * 40 + matrix(8, mesh)
    assert not recognises(topology.MATRIX, tmp_path, text)


# --- what is wrong with a host --------------------------------------------------------------------------------------


def without(lost: Iterable[int], *, instead: str = "SYS") -> Cell:
    gone = set(lost)
    return lambda i, j: instead if gone & {i, j} else "NV18"


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (without([2], instead="NODE"),
         "lost_links:GPU2|GPU2 has no NVLink to any of the 7 GPUs that are connected by 18 NVLink*NODE*"),
        (lambda i, j: "NV17" if 4 in (i, j) else "NV18",
         "lost_links:GPU4|GPU4 is connected by 17 NVLink lanes, the other 7 GPUs by 18*"),
        (lambda i, j: "SYS" if {i, j} == {1, 6} else "NV18",
         "*GPU1 has no NVLink to GPU6*links between them are down*"),
    ],
    ids=["all links", "lanes", "one pair"],
)  # fmt: skip
def test_lost_links_are_found(cell: Cell, expected: str, tmp_path: Path) -> None:
    (one,) = found(matrix(8, cell, nics=2), tmp_path)
    assert fnmatchcase(one, expected)


@pytest.mark.parametrize("lost", [[0], [7], [1, 5], [0, 3, 6]])
def test_every_gpu_that_lost_its_links_is_found(lost: list[int], tmp_path: Path) -> None:
    losers = [each.split("|")[0] for each in found(matrix(8, without(lost)), tmp_path)]
    assert losers == [f"lost_links:GPU{i}" for i in lost]


def test_a_gpu_without_xgmi_among_seven_is_found(tmp_path: Path) -> None:
    names = [f"GPU{i}" for i in range(8)]
    rows = [
        " ".join([name, *("0" if name == other else "PCIE" if "GPU3" in (name, other) else "XGMI" for other in names)])
        for name in names
    ]
    (one,) = found("\n".join(["==== Link Type between two GPUs ====", f"     {' '.join(names)}", *rows, ""]), tmp_path)
    assert one.startswith("lost_links:GPU3|GPU3 has no XGMI to any of the 7 GPUs that are connected by XGMI")


def test_rows_that_disagree_are_found(tmp_path: Path) -> None:
    (one,) = found(matrix(2, lambda i, j: "NV4" if i < j else "SYS"), tmp_path)
    assert one.startswith(
        "one_sided_links|1 pairs of devices have different links in their two rows; the first is GPU0 and GPU1"
    )
    assert "NVLink x4 in one direction, SYS in the other" in one


CUBE = {  # DGX-1 with V100, as published in NVIDIA's user guide
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2, (2, 6): 1, (3, 7): 1,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def pairs(linked: dict[tuple[int, int], int]) -> Cell:
    return lambda i, j: f"NV{linked[min(i, j), max(i, j)]}" if (min(i, j), max(i, j)) in linked else "SYS"


@pytest.mark.parametrize(
    ("gpus", "cell"),
    [
        pytest.param(8, mesh, id="switched"),
        pytest.param(
            8, lambda i, j: "PIX" if i // 2 == j // 2 else "NODE" if i // 4 == j // 4 else "SYS", id="pcie only"
        ),
        pytest.param(8, pairs(CUBE), id="hybrid cube mesh of V100"),
        pytest.param(8, pairs(dict.fromkeys(CUBE, 1)), id="hybrid cube mesh of P100"),
        pytest.param(8, lambda i, j: "NV4" if i // 2 == j // 2 else "SYS", id="bridged pairs"),
        pytest.param(8, lambda i, j: "NV12" if i // 4 == j // 4 else "SYS", id="two quads"),
        pytest.param(6, lambda i, j: "NV12" if i // 4 == j // 4 else "SYS", id="a quad and a pair"),
        pytest.param(6, lambda i, j: "NV2" if i // 3 == j // 3 else "SYS", id="two triples of POWER9"),
        pytest.param(3, lambda i, j: "NV4" if max(i, j) < 2 else "PHB", id="a bridged pair and a third"),
        pytest.param(5, without([4], instead="NODE"), id="four and a display adapter"),
        pytest.param(9, without([8], instead="NODE"), id="eight and another card"),
        pytest.param(4, pairs({(0, 1): 2, (0, 2): 2, (2, 3): 2, (1, 3): 1}), id="a square of V100"),
        pytest.param(2, mesh, id="two"),
    ],
)
def test_sound_designs_raise_no_alarm(gpus: int, cell: Cell, tmp_path: Path) -> None:
    assert found(matrix(gpus, cell), tmp_path) == []


@given(
    gpus=st.integers(4, 12),
    seed=st.integers(0, 999),
    dense=st.floats(0, 1),
    lanes=st.sampled_from([[18], [1, 2], [4, 4, 4, 3]]),
)
def test_the_mesh_that_accuses_is_a_mesh(
    gpus: int, seed: int, dense: float, lanes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    chance = random.Random(seed)
    linked = {(i, j): chance.choice(lanes) for i in range(gpus) for j in range(i + 1, gpus) if chance.random() < dense}
    path = tmp_path_factory.mktemp("mesh") / "t"
    path.write_text(matrix(gpus, pairs(linked)))
    for each in topology_findings(topology.MATRIX.read(path, ReadContext()).facts):
        peers = [int(name.removeprefix("GPU")) for name in each.evidence["peers"]]
        accused = int(each.evidence["device"].removeprefix("GPU"))
        counts = {linked.get((min(i, j), max(i, j))) for i in peers for j in peers if i != j}
        assert counts == {each.evidence["lanes_of_peers"]}  # all of them, by the same number
        assert 2 * len(peers) > gpus
        own = {linked.get((min(accused, i), max(accused, i))) for i in peers}
        assert own != counts


def test_two_hosts_in_two_files_are_not_one(tmp_path: Path) -> None:
    sound = read_text(topology.MATRIX, tmp_path, matrix(8, mesh), "a")
    broken = read_text(topology.MATRIX, tmp_path, matrix(8, without([5])), "b")
    for parts in ([sound, broken], [broken, sound]):
        (one,) = topology_findings(join_facts([each.facts for each in parts]))
        assert one.title.startswith(f"host {1 + parts.index(broken)} of 2: GPU5 has no NVLink")
    assert topology_findings(join_facts([sound.facts, sound.facts])) == []


def test_two_hosts_in_one_file_are_distinguished(tmp_path: Path) -> None:
    (one,) = found(matrix(8, mesh) + matrix(8, without([5])), tmp_path)
    assert "matrix 2" in one


# --- XML ------------------------------------------------------------------------------------------------------------


def test_the_real_rccl_topology_is_read() -> None:
    path = shared_file("nccl_topo_xml/rccl_topo_8p1h_5.xml")
    assert find_reader(read_head(path)) is topology.XML
    reading = topology.XML.read(path, ReadContext())
    links = links_of(reading)
    root = ElementTree.parse(path).getroot()
    names = {
        pci.get("busid"): f"GPU{pci.find('gpu').get('dev')}" for pci in root.iter("pci") if pci.find("gpu") is not None
    }  # type: ignore[union-attr]
    xgmi = [
        (names[pci.get("busid")], names[link.get("target")], int(link.get("count", "0")))
        for pci in root.iter("pci")
        for gpu in pci.findall("gpu")
        for link in gpu.findall("xgmi")
    ]
    assert {(a, b, each["lanes"]) for (a, b), each in links.items() if each["kind"] == "XGMI"} == set(xgmi)
    assert len(xgmi) == len(set(xgmi)) > 16
    for net in root.iter("net"):
        assert links[str(net.get("name")), "network"]["bandwidth_gbs"] == int(net.get("speed", "0")) / 8000 == 25
    # 16 GT/s by 16 lanes: 16 * 120 / 80 (topo.cc)
    assert links["GPU0", "PCI 0000:30:00.0"]["bandwidth_gbs"] == 24
    assert (links["GPU0", "mlx5_1"]["kind"], links["GPU1", "mlx5_1"]["kind"]) == ("PXB", "PXB")
    assert topology_findings(reading.facts) == []


def test_the_real_azure_topologies_are_read() -> None:
    eight = links_of(topology.XML.read(shared_file("nccl_topo_xml/azure_ndv4-topo.xml"), ReadContext()))
    kinds = [each["kind"] for each in eight.values()]
    # 16 devices, 4 a switch: 16 PCIe links, 4 * 4 * 3 pairs within a switch, the rest across sockets
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"PCIe": 16, "PIX": 48, "SYS": 192}
    assert eight["GPU 0003:00:00.0", "NIC 0103:00:00.0"]["kind"] == "PIX"
    four = topology.XML.read(shared_file("nccl_topo_xml/azure_ncv4-topo.xml"), ReadContext())
    assert links_of(four)["GPU0", "eth0"]["kind"] == "PHB"
    assert links_of(four)["eth0", "network"]["bandwidth_gbs"] == 12.5
    assert four.source.warnings == ("4 GPUs have NVLinks to themselves, not to another device; left out",)


def pci(bus: str, inner: str = "", *, klass: str = "0x030200", speed: str = "32.0 GT/s PCIe", width: int = 16) -> str:
    return f'<pci busid="{bus}" class="{klass}" link_speed="{speed}" link_width="{width}">{inner}</pci>'


def gpu(dev: int, lanes: int = 18, *, width: int = 16, speed: str = "32.0 GT/s PCIe") -> str:
    switches = f'<nvlink target="0000:c0:00.0" count="{lanes - 4}" tclass="0x068000"/>' if lanes > 4 else ""
    more = '<nvlink target="0000:c1:00.0" count="4" tclass="0x068000"/>' if lanes >= 4 else ""
    inner = f'<gpu dev="{dev}" sm="90" rank="{dev}" gdr="1">{switches}{more}</gpu>'
    return pci(f"0000:{dev:02x}:00.0", inner, width=width, speed=speed)


def card(name: str, bus: str, mbits: int = 400_000, *, width: int = 16) -> str:
    return pci(
        bus, f'<nic><net name="{name}" dev="0" speed="{mbits}" port="1" gdr="1"/></nic>', klass="0x020000", width=width
    )


def system(*devices: str, cpus: int = 1) -> str:
    each = [f'<cpu numaid="{at}" arch="x86_64">{"".join(devices[at::cpus])}</cpu>' for at in range(cpus)]
    return f'<?xml version="1.0"?>\n<!-- made by - hand -->\n<system version="1">\n{"".join(each)}</system>\n'


def alarms(text: str, tmp_path: Path) -> list[str]:
    reading = read_text(topology.XML, tmp_path, text)
    return [f"{each.id}|{each.title}" for each in topology_findings(reading.facts)]


def test_lanes_to_switches_and_paths_are_read(tmp_path: Path) -> None:
    switch = pci(
        "0000:a0:00.0", gpu(0) + pci("0000:a1:00.0", card("mlx5_1", "0000:a2:00.0"), klass="0x060400"), klass="0x060400"
    )
    text = system(switch, gpu(1), card("mlx5_0", "0000:b0:00.0"), gpu(2), cpus=2)
    links = links_of(read_text(topology.XML, tmp_path, text))
    assert (links["GPU0", "NVSwitch 0000:c0:00.0"]["lanes"], links["GPU0", "NVSwitch 0000:c1:00.0"]["lanes"]) == (14, 4)
    assert links["GPU0", "PCI 0000:a0:00.0"]["bandwidth_gbs"] == 48  # 16 * 240 / 80
    kinds = {pair: links[pair]["kind"] for pair in links}
    assert kinds["GPU0", "mlx5_1"] == kinds["mlx5_1", "GPU0"] == "PXB"
    assert kinds["GPU0", "mlx5_0"] == "PHB"
    assert kinds["GPU1", "mlx5_0"] == kinds["GPU0", "GPU2"] == "SYS"
    assert kinds["GPU1", "GPU2"] == "PHB"


def test_a_gpu_short_of_switch_lanes_is_found(tmp_path: Path) -> None:
    assert alarms(system(*(gpu(dev) for dev in range(8))), tmp_path) == []
    (one,) = alarms(system(*(gpu(dev, 14 if dev == 6 else 18) for dev in range(8))), tmp_path)
    assert one.startswith("lost_links:GPU6|GPU6 has 14 NVLink lanes to the switches, 7 other GPUs have 18")
    (one,) = alarms(system(*(gpu(dev, 0 if dev == 1 else 18) for dev in range(8))), tmp_path)
    assert one.startswith("lost_links:GPU1|GPU1 has 0 NVLink lanes")
    assert alarms(system(*(gpu(dev, 0 if dev == 8 else 18) for dev in range(9))), tmp_path) == []


def test_a_narrow_or_slow_pcie_link_is_found(tmp_path: Path) -> None:
    (one,) = alarms(system(*(gpu(dev, width=8 if dev == 3 else 16) for dev in range(4))), tmp_path)
    assert one.startswith("narrow_pcie:GPU3|the PCIe link of GPU3 has 24 GB/s (x8), 3 other GPUs have 48 GB/s")
    (one,) = alarms(system(gpu(0, speed="16.0 GT/s PCIe"), gpu(1), gpu(2), gpu(3)), tmp_path)
    assert one.startswith("narrow_pcie:GPU0|")
    cards = [card(f"mlx5_{at}", f"0000:b{at}:00.0", width=8 if at == 2 else 16) for at in range(4)]
    (one,) = alarms(system(*cards, card("eth0", "0000:bf:00.0", 25_000, width=8)), tmp_path)
    assert one.startswith(
        "narrow_pcie:mlx5_2|the PCIe link of mlx5_2 has 24 GB/s (x8), 3 other network cards of 50 GB/s"
    )


def test_slots_without_a_majority_raise_no_alarm(tmp_path: Path) -> None:
    assert alarms(system(gpu(0, width=16), gpu(1, width=8)), tmp_path) == []
    assert alarms(system(*(gpu(dev, width=16 if dev % 2 else 8) for dev in range(8))), tmp_path) == []
    assert alarms(system(gpu(0, speed="", width=0), gpu(1), gpu(2), gpu(3)), tmp_path) == []


def test_fused_hosts_are_distinguished(tmp_path: Path) -> None:
    hosts = "".join(
        f'<cpu host_hash="{name}" numaid="0">{"".join(gpu(dev, 14 if dev == short else 18) for dev in range(8))}</cpu>'
        for name, short in (("0xa", None), ("0xb", 2))
    )
    (one,) = alarms(f'<system version="2">{hosts}</system>', tmp_path)
    assert one.startswith("lost_links:0xb:GPU2|0xb: GPU2 has 14 NVLink lanes")


BOMB = (
    '<?xml version="1.0"?><!DOCTYPE system [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {chr(98 + at)} "{f"&{chr(97 + at)};" * 10}">' for at in range(20))
    + ']><system version="1"><cpu numaid="&u;"/></system>'
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, r"t\.xml: declares a document type or an entity") for text in (
            BOMB,
            '<!DOCTYPE system SYSTEM "file:///etc/passwd"><system version="1"><cpu/></system>',
            '<!DOCTYPE system [<!ENTITY x SYSTEM "file:///etc/hostname">]><system version="1"><cpu>&x;</cpu></system>',
        )),
        ('<system version="1">' + "<cpu>" * 200 + "</cpu>" * 200 + "</system>", "more than 64 levels"),
        ('<system version="1">' + "<cpu/>" * 800_000 + "</system>", "holds more than 4 MiB"),
    ],
    ids=["bomb", "document type", "entity", "deep", "large"],
)  # fmt: skip
def test_entities_and_deep_and_large_xml_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.xml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        topology.XML.read(path, ReadContext())


def test_a_cut_file_gives_what_precedes_the_cut(tmp_path: Path) -> None:
    text = system(*(gpu(dev) for dev in range(8)))
    reading = read_text(topology.XML, tmp_path, text[: text.index('dev="5"') - 3])
    assert reading.source.truncated
    assert ("GPU4", "NVSwitch 0000:c0:00.0") in links_of(reading)


@pytest.mark.parametrize(
    "text", ["<system><cpu/></system>", "<html></html>", '<systems version="1"><cpu/></systems>', "<svg/>"]
)
def test_other_xml_is_left_to_other_readers(text: str, tmp_path: Path) -> None:
    assert not recognises(topology.XML, tmp_path, text)


# --- hostile input --------------------------------------------------------------------------------------------------

TEXTS = (matrix(4, mesh, nics=1), ROCM, system(gpu(0), gpu(1), card("mlx5_0", "0000:b0:00.0")))
ODD = [
    "9" * 30, "-1", "NV999999", "X", "\t", "\n", "<gpu/>", "<!DOCTYPE x>", '"', ">", "&lt;", "&#0;", "0x", "GPU1",
    "=" * 300,
]  # fmt: skip


@given(content=edited(TEXTS, ODD))
def test_spoiled_topologies_give_a_result_or_one_error(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "f"
    path.write_bytes(content)
    for reader in (topology.MATRIX, topology.XML):
        reading = read_or_refuse(reader, path)
        if reading is not None:
            topology_findings(reading.facts)


def test_long_lines_of_nothing_take_no_time(tmp_path: Path) -> None:
    for unit in ("=", " ", "= ", "GPU0 ", "NV1 ", "$ ", "GPU0 GPU1 ", "NIC0: ", "<!--", "<!-- -->"):
        path = tmp_path / "f"
        path.write_text("\n".join([(unit * 70_000)[:70_000]] * 5))
        topology.MATRIX.recognises(read_head(path))
        topology.XML.recognises(read_head(path))
        for reader in (topology.MATRIX, topology.XML):
            with pytest.raises(InputError):
                reader.read(path, ReadContext())
