"""What programs print, read as data. Recorded where a comment says so; the rest is made up in the same form."""

from __future__ import annotations

import json

import pytest
from cases import for_each

from fairmile.systems import answers
from fairmile.systems.probe_result import Accelerator, Network, Nodes, Processor


def lscpu(**fields: str) -> str:
    return json.dumps({"lscpu": [{"field": f"{name}:", "data": value} for name, value in fields.items()]})


class TestProcessors:
    def test_are_counted_by_socket(self) -> None:
        # Recorded on a virtual machine with a Xeon.
        text = lscpu(
            **{
                "CPU(s)": "16",
                "Model name": "Intel(R) Xeon(R) Processor",
                "Thread(s) per core": "1",
                "Core(s) per socket": "16",
                "Socket(s)": "1",
            }
        )
        assert answers.lscpu(text) == Processor("Intel(R) Xeon(R) Processor", 1, 16, 1)

    def test_without_sockets_are_counted_whole(self) -> None:
        # Recorded on a virtual machine with Arm cores, whose socket is a dash.
        text = lscpu(
            **{
                "CPU(s)": "2",
                "Model name": "Neoverse-N1",
                "Thread(s) per core": "1",
                "Core(s) per cluster": "2",
                "Socket(s)": "-",
            }
        )
        assert answers.lscpu(text) == Processor("Neoverse-N1", None, 2, 1)

    def test_are_found_where_newer_versions_nest_them(self) -> None:
        inner = [{"field": "Thread(s) per core:", "data": "2"}, {"field": "Core(s) per socket:", "data": "64"}]
        model = {
            "field": "Model name:",
            "data": "AMD EPYC 7742",
            "children": [*inner, {"field": "Socket(s):", "data": "2"}],
        }
        text = json.dumps({"lscpu": [{"field": "CPU(s):", "data": "256"}, model]})
        assert answers.lscpu(text) == Processor("AMD EPYC 7742", 2, 128, 2)

    @pytest.mark.parametrize("text", ["", "lscpu: cannot", "[]", "{}", '{"lscpu": [1, {"field": 2}]}', "[" * 100_000])
    def test_that_nobody_describes_are_not_known(self, text: str) -> None:
        assert answers.lscpu(text) == Processor()


def test_memory_is_read_in_gib() -> None:
    assert answers.meminfo("MemTotal:       24643328 kB\nMemFree: 1 kB\n") == 23.5
    assert answers.meminfo("") is None


class TestGpus:
    def test_of_nvidia_have_model_memory_and_driver(self) -> None:
        # Recorded.
        assert answers.nvidia_smi("NVIDIA H200, 143771, 580.159.04\n") == [
            Accelerator("NVIDIA H200", "nvidia", 140.4, "580.159.04")
        ]

    def test_of_nvidia_may_hide_their_memory(self) -> None:
        assert answers.nvidia_smi("NVIDIA GH200, [N/A], 570.1\n\nNo devices were found\n") == [
            Accelerator("NVIDIA GH200", "nvidia", None, "570.1")
        ]

    def test_of_amd_are_read_from_rocm_smi(self) -> None:
        card = {"VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "10747904"}
        text = json.dumps({"card1": {"Card series": "b", **card}, "card0": {"Card Series": "a", **card}, "system": {}})
        assert answers.rocm_smi("WARNING: low power state\n" + text) == [
            Accelerator("a", "amd", 64.0),
            Accelerator("b", "amd", 64.0),
        ]

    def test_of_amd_may_have_no_name(self) -> None:
        assert answers.rocm_smi('{"card0": {"Card series": "N/A"}, "card1": "broken"}') == [
            Accelerator("AMD GPU", "amd")
        ]

    @pytest.mark.parametrize("wrap", [lambda rows: rows, lambda rows: {"gpu_data": rows}])
    def test_of_amd_are_read_from_amd_smi_old_and_new(self, wrap: object) -> None:
        rows = [
            {
                "gpu": 0,
                "asic": {"market_name": "AMD Instinct MI300X"},
                "vram": {"size": {"value": 196592, "unit": "MB"}},
            },
            {"gpu": 1, "asic": {"market_name": ""}, "vram": {"size": "N/A"}},
            {"gpu": 2},
        ]
        text = json.dumps(wrap(rows))  # type: ignore[operator]
        assert answers.amd_smi(text) == [
            Accelerator("AMD Instinct MI300X", "amd", 192.0),
            Accelerator("AMD GPU", "amd"),
        ]

    @pytest.mark.parametrize("read", [answers.rocm_smi, answers.amd_smi, answers.nvidia_smi])
    @pytest.mark.parametrize("text", ["", "no such device", "null", "3", "[3]", "{}"])
    def test_that_are_not_there_are_none(self, read: object, text: str) -> None:
        assert read(text) == []  # type: ignore[operator]


# Recorded from Slurm 22.05.8, shortened.
CONFIG = """\
Configuration data as of 2026-11-15T19:15:36
AccountingStorageType   = accounting_storage/none
ClusterName             = test
GresTypes               = gpu
MaxArraySize            = 1001
SelectType              = select/cons_tres
SLURM_VERSION           = 22.05.8
"""
NODES = "NodeName=n1 Arch=aarch64 CoresPerSocket=2  CPUAlloc=0\nNodeName=n2 Arch=aarch64\nNodeName=n3 Arch=x86_64 \n"


class TestSlurm:
    def test_tells_its_version_and_rules(self) -> None:
        found = answers.slurm_config(CONFIG, NODES)
        assert (found.version, found.cluster, found.accounting) == ("22.05.8", "test", False)
        assert (found.most_array_tasks, found.gpu_option) == (1001, "gpus-per-node")
        assert found.architectures == ("aarch64", "x86_64")

    def test_of_an_older_kind_asks_for_gpus_as_resources(self) -> None:
        old = CONFIG.replace("cons_tres", "cons_res").replace("/none", "/slurmdbd")
        assert (answers.slurm_config(old).gpu_option, answers.slurm_config(old).accounting) == ("gres", True)
        assert answers.slurm_config(CONFIG.replace("= gpu", "= (null)")).gpu_option == "none"

    def test_lists_partitions(self) -> None:
        # Recorded from Slurm 22.05.8.
        cpu, gpu = answers.sinfo(
            "cpu*|up|3|2|1:2:1|2000|(null)|1:00:00|1-infinite\ngpu|up|1|2|1:2:1|2000|gpu:fake:2|1:00:00|1-infinite\n"
        )
        assert (cpu.name, cpu.default, cpu.nodes, cpu.max_time_s, cpu.max_nodes) == ("cpu", True, 3, 3600, None)
        assert gpu.kinds == (Nodes(1, 2, 1, 2, 1, 2.0, 2, "fake"),)

    def test_puts_the_most_frequent_kind_of_nodes_first(self) -> None:
        (queue,) = answers.sinfo(
            "batch|down|8|96+|2:24:2|190000+|(null)|infinite|2-64\nbatch|down|40|96|2:24:2|96000|(null)|infinite|2-64\n"
        )
        assert [kind.count for kind in queue.kinds] == [40, 8]
        assert (queue.nodes, queue.min_nodes, queue.max_nodes) == (48, 2, 64)
        assert (queue.max_time_s, queue.up) == (None, False)
        assert queue.kinds[1].memory_gib == 185.5

    def test_with_lines_that_nobody_understands_lists_the_others(self) -> None:
        assert answers.sinfo("slurm_load_partitions: error\nx|y\n||||||||\n") == []

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("(null)", (0, "")),
            ("gpu:4", (4, "")),
            ("gpu", (1, "")),
            ("gpu:a100:4(S:0-1)", (4, "a100")),
            ("nvme:1,gpu:a100_1g.5gb:7(S:0),gpu:a100:1", (8, "a100_1g.5gb and a100")),
            ("mygpu:3", (0, "")),
            ("craynetwork:4,gpu:v100:8", (8, "v100")),
        ],
    )
    def test_names_gpus_among_other_resources(self, text: str, expected: tuple[int, str]) -> None:
        assert answers.gres_gpus(text) == expected

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [("30:00", 1800), ("1:00:00", 3600), ("2-00:00:00", 172800), ("infinite", None), ("n/a", None)],
    )
    def test_prints_limits(self, text: str, seconds: float | None) -> None:
        assert answers.slurm_time(text) == seconds


def test_a_file_system_has_a_kind_and_a_size() -> None:
    # Recorded.
    text = """\
Filesystem     Type 1024-blocks     Used Available Capacity Mounted on
/dev/vda       ext4   264212084 36797564  65393184      37% /

"""
    place = answers.df(text, "$HOME", "/root")
    assert (place.kind, place.size_bytes, place.free_bytes) == ("ext4", 264212084 * 1024, 65393184 * 1024)
    assert answers.df("Filesystem\n", "$HOME", "/root").problem


class TestNetworks:
    def test_are_read_from_the_devices_of_the_kernel(self) -> None:
        devices = (
            "mlx5_0|InfiniBand|200 Gb/sec (4X HDR)|4: ACTIVE|\nmlx5_1|InfiniBand|10 Gb/sec (4X SDR)|1: DOWN|\n"
            "mlx5_2|Ethernet|100 Gb/sec (4X EDR)|4: ACTIVE|\nhfi1_0|InfiniBand|100 Gb/sec (4X EDR)|4: ACTIVE|\n"
        )
        assert answers.networks(devices, "lo eth0") == [
            Network("InfiniBand", "mlx5_0", "HDR 200 Gbit/s"),
            Network("RoCE", "mlx5_2", "EDR 100 Gbit/s"),
            Network("Omni-Path", "hfi1_0", "EDR 100 Gbit/s"),
        ]

    def test_of_slingshot_are_interfaces(self) -> None:
        assert [each.device for each in answers.networks("", "hsn1\nhsn0\nlo\n")] == ["hsn0", "hsn1"]

    def test_are_looked_for_on_the_bus_last(self) -> None:
        bus = "c1:00.0 Infiniband controller: Mellanox Technologies MT28908\n00:1f.0 ISA bridge\n"
        assert answers.networks("", "lo", bus) == [Network("InfiniBand", "c1:00.0")]
        assert len(answers.networks("mlx5_0|||\n", "", bus)) == 1


class TestModules:
    def test_are_listed_with_versions(self) -> None:
        # Recorded from Lmod 8.6.19.
        text = "/opt/mods:\nGCC/\nGCC/11.2.0\nplain\n/usr/share/lmod/lmod/modulefiles:\nCore/\nCore/lmod\n"
        assert answers.module_list(text) == ["GCC/11.2.0", "plain", "Core/lmod"]

    def test_lose_the_marks_of_environment_modules(self) -> None:
        assert answers.module_list("gcc/10.2.0(default)\ngcc/12 <L>\nrocm/5.1.1(@stable)\nERROR: no such\n") == [
            "gcc/10.2.0",
            "rocm/5.1.1",
        ]

    def test_offer_stages(self) -> None:
        modules = ["Stages/2023", "Stages/2022", "LUMI/22.08", "GCC/11"]
        assert answers.stages(modules) == ["2022", "2023", "LUMI/22.08"]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("\nModules based on Lua: Version 8.6.19  2022-04-16 13:46\n", ("lmod", "8.6.19")),
            ("Modules Release 5.2.0 (2022-11-08)\n", ("environment-modules", "5.2.0")),
            ("whatever", ("none", "")),
        ],
    )
    def test_come_from_a_system_that_names_itself(self, text: str, expected: tuple[str, str]) -> None:
        assert answers.module_version(text) == expected


@for_each(
    "text, expected",
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org\n", "4.1.4"),
        ("gcc (Debian 12.2.0-14+deb12u1) 12.2.0\n", "12.2.0"),
        ("nvcc: NVIDIA (R) Cuda compiler driver\nBuilt on x\nCuda compilation tools, release 13.0, V13.0.88\n", "13.0"),
        ("Docker version 20.10.24+dfsg1, build 297e128\n", "20.10.24+dfsg1"),
        ("0.31\n", "0.31"),
        ("unknown\n", "unknown"),
        ("", ""),
    ],
)
def test_a_program_tells_its_version(text: str, expected: str) -> None:
    assert answers.version(text) == expected


def test_components_are_read_from_what_python_answers() -> None:
    assert answers.components('{"python": "3.11.7", "components": {"torch": "2.13.0"}}') == (
        "3.11.7",
        {"torch": "2.13.0"},
    )
    assert answers.components("Traceback") == ("", {})
