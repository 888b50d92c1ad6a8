"""Module blocks: what is printed, how frameworks share one, and how scripts are brought up to date."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import Conflict, InvalidDocument, NotFound, UsageError
from fairmile.systems.blocks import Evaluation, evaluate, module_block
from fairmile.systems.model import SoftwareSet, System
from fairmile.systems.registry import Systems

DEEP_STAGE = [
    "ml --force purge",
    "ml use $OTHERSTAGES",
    "ml Stages/2022 GCC/11.2.0 OpenMPI/4.1.2 cuDNN/8.3.1.22-CUDA-11.5 NCCL/2.11.4-CUDA-11.5 Python/3.9.6",
]
JURECA = [
    "ml --force purge",
    "ml Stages/2022 NVHPC/22.3 ParaStationMPI/5.5.0-1-mt NCCL/2.12.7-1-CUDA-11.5 cuDNN/8.3.1.22-CUDA-11.5",
    "ml Python/3.9.6 libaio/0.3.112 HDF5/1.12.1-serial mpi-settings/CUDA",
]
SYSTEMS = Systems()


def made_up(software: dict[str, Any], **more: Any) -> System:
    """A system with partitions a, b and devel, and frameworks given by their lines or in full."""
    facts = {
        "name": "lake",
        "title": "The lake",
        "scheduler": {"dialect": "slurm"},
        "default_partition": "a",
        "partitions": {
            "a": {"cores": 8, "gpu": {"count": 4, "model": "A100"}, "max_time": "1:00:00", "max_nodes": 2},
            "b": {},
            "devel": {},
        },
        "software": {name: {"lines": each} if all_texts(each) else each for name, each in software.items()},
        "verified": "2026-11-15",
    }
    return System.model_validate(facts | more)


def all_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def lines_of(software: dict[str, Any], *names: str) -> list[str]:
    return list(module_block(made_up(software), names or list(software)).lines)


def refused(software: dict[str, Any], *names: str) -> str:
    with pytest.raises(Conflict) as caught:
        module_block(made_up(software), names or list(software))
    assert caught.value.hint
    return str(caught.value)


class TestABlock:
    def test_is_printed_exactly_between_its_markers(self) -> None:
        block = module_block(SYSTEMS["deep"], ["ddp"])
        expected = ["# MODULES BEGIN deep ddp", *DEEP_STAGE, "ml -nvidia-driver/.default", "# MODULES END"]
        assert block.text == "\n".join(expected) + "\n"

    def test_holds_the_lines_of_every_real_start_script(self) -> None:
        scripts = json.loads(Path(__file__).with_name("start_scripts.json").read_text())["scripts"]
        names = {"CTEAMD": "cte-amd", "Deep": "deep", "Jureca": "jureca"}
        seen = 0
        for script in scripts:
            if script["system"] not in names:
                continue
            system, software = SYSTEMS[names[script["system"]]], script["framework"].lower()
            partition = script["sbatch"].get("partition", "")
            assert list(module_block(system, [software], partition).lines) == script["module_lines"], script
            seen += 1
        assert seen >= 15

    def test_says_where_published_rules_disagree_and_that_the_file_wins(self) -> None:
        notes = module_block(SYSTEMS["deep"], ["ddp"]).notes
        assert any("nvidia-driver" in note and note.endswith("Fairmile follows the system's file.") for note in notes)

    def test_of_a_framework_without_modules_is_empty_and_says_so(self) -> None:
        block = module_block(SYSTEMS["jureca"], ["graphcore"])
        assert block.text == "# MODULES BEGIN jureca graphcore\n# MODULES END\n"
        assert "graphcore needs no modules on jureca." in block.notes

    def test_names_each_framework_once(self) -> None:
        assert module_block(SYSTEMS["deep"], ["ddp", "ddp"]).begin == "# MODULES BEGIN deep ddp"

    def test_needs_a_framework(self) -> None:
        with pytest.raises(UsageError, match="at least one framework"):
            module_block(SYSTEMS["deep"], [])

    def test_of_unknown_software_names_the_nearest_and_what_there_is(self) -> None:
        with pytest.raises(NotFound, match=r"no software 'dpd' on deep; did you mean 'ddp'\?") as caught:
            module_block(SYSTEMS["deep"], ["dpd"])
        assert caught.value.hint == "deep has: ddp, deepspeed, heat, horovod, tensorflow"

    def test_of_a_system_without_software_says_that_none_is_known(self) -> None:
        with pytest.raises(NotFound) as caught:
            module_block(SYSTEMS["laptop"], ["ddp"])
        assert "no software is registered for laptop" in str(caught.value.hint)

    def test_says_when_the_system_is_retired_or_nobody_verified_it(self) -> None:
        old = made_up({"x": ["ml A/1"]}, retired="2024-11-01", verified=None)
        notes = module_block(old, ["x"]).notes
        assert "lake was retired on 2024-11-01." in notes
        assert "The description of lake is unverified." in notes

    def test_says_when_its_lines_are_older_than_18_months(self) -> None:
        assert any(
            note.startswith("The lines of ddp on juwels are old, of 2023.")
            for note in module_block(SYSTEMS["juwels"], ["ddp:stages-2023"]).notes
        )
        today = date(2026, 11, 18)
        for lines, source, dated, old in (
            ("ml A/1", "a page (2025-05-17)", "2025-05-17", False),
            ("ml A/1", "a page (2025-04)", "2025-04", True),
            ("ml Stages/2023 A/1", "a page (2026-01)", "2026-01", False),
            ("ml Stages/2023 A/1", "a page", "2023", True),
            ("ml LUMI/22.08 A/1", "a page", "2022-08", True),
            ("ml A/1", "a page", "", False),
        ):
            one = SoftwareSet(lines=(lines,), source=source)
            assert (one.dated, one.is_old(today)) == (dated, old), (lines, source)

    @pytest.mark.parametrize("path", ["software", "software.x", "software.x.lines", "software.*.lines"])
    def test_says_when_its_lines_are_unverified(self, path: str) -> None:
        notes = module_block(made_up({"x": ["ml A/1"]}, unverified=[path]), ["x"]).notes
        assert "The lines of x on lake are unverified." in notes
        assert not module_block(made_up({"x": ["ml A/1"]}), ["x"]).notes


VARIANTS = {
    "ddp": [
        {"lines": ["ml T/2"], "partitions": ["a"]},
        {"lines": ["ml C/1"], "container": ["apptainer", "run", "t.sif"], "partitions": ["a"]},
        {"lines": ["ml T/1"], "variant": "old"},
    ]
}


class TestAVariant:
    def test_is_chosen_behind_a_colon_and_kept_in_the_marker(self) -> None:
        block = module_block(made_up(VARIANTS), ["ddp:container"])
        assert (block.begin, list(block.lines)) == ("# MODULES BEGIN lake ddp:container", ["ml C/1"])
        assert not any("Not used" in note for note in block.notes)
        assert list(module_block(made_up(VARIANTS), ["ddp:old"], "b").lines) == ["ml T/1"]

    def test_goes_by_what_it_is_where_the_file_gives_no_name(self) -> None:
        assert made_up(VARIANTS).software_words == ["ddp", "ddp:modules", "ddp:container", "ddp:old"]
        assert made_up({"x": ["ml A/1"]}).software_words == ["x"]

    def test_that_is_not_known_is_refused_with_those_there_are(self) -> None:
        with pytest.raises(
            NotFound, match=r"ddp on lake has no variant 'contaner'; did you mean 'container'\?"
        ) as caught:
            module_block(made_up(VARIANTS), ["ddp:contaner"])
        assert caught.value.hint == "its variants: modules, container, old"
        with pytest.raises(UsageError, match="ddp and ddp:old are variants of one framework"):
            module_block(made_up(VARIANTS), ["ddp", "ddp:old"])
        with pytest.raises(ValueError, match="'old' is the variant of another set of ddp"):
            made_up({"ddp": [{"variant": "old"}, {"variant": "old"}]})

    def test_stays_when_a_script_is_brought_up_to_date_and_can_be_changed(self) -> None:
        known = {"lake": made_up(VARIANTS)}
        text = "# MODULES BEGIN lake ddp:old\nml T/0\n# MODULES END\n"
        assert evaluate(text, known).text == "# MODULES BEGIN lake ddp:old\nml T/1\n# MODULES END\n"
        other = evaluate(text, known, add=["ddp:container"]).text
        assert other == "# MODULES BEGIN lake ddp:container\nml C/1\n# MODULES END\n"
        with pytest.raises(UsageError, match="nothing would be left"):
            evaluate(text, known, remove=["ddp"])


class TestAPartition:
    def test_chooses_the_set_that_is_right_there(self) -> None:
        block = module_block(SYSTEMS["jureca"], ["ddp"], "dc-mi200")
        assert block.lines[0] == "ml Architecture/jureca_mi200"
        assert not any("variants" in note for note in block.notes)

    def test_not_named_takes_the_first_set_and_says_which_were_left(self) -> None:
        block = module_block(SYSTEMS["jureca"], ["ddp"])
        assert list(block.lines) == JURECA
        assert any("3 variants; used: modules, for dc-gpu, dc-gpu-devel" in note for note in block.notes)
        assert any(note.startswith("Not used: ddp:modules-2, for dc-mi200") for note in block.notes)

    def test_with_two_sets_takes_the_first_and_says_so(self) -> None:
        notes = module_block(SYSTEMS["juwels"], ["ddp"], "booster").notes
        assert any(note.startswith("Not used: ddp:apptainer") and "Apptainer" in note for note in notes)

    def test_that_the_system_lacks_is_named(self) -> None:
        with pytest.raises(NotFound, match=r"no partition 'dc-gup' on jureca; did you mean 'dc-gpu'\?"):
            module_block(SYSTEMS["jureca"], ["ddp"], "dc-gup")

    def test_for_which_no_set_is_known_is_refused(self) -> None:
        with pytest.raises(Conflict, match="available for dc-gpu, dc-gpu-devel, dc-mi200, not for partition 'dc-cpu'"):
            module_block(SYSTEMS["jureca"], ["ddp"], "dc-cpu")

    def test_that_two_frameworks_share_is_found_among_their_sets(self) -> None:
        software = {
            "x": [{"lines": ["ml A/1"], "partitions": ["a"]}, {"lines": ["ml A/2"], "partitions": ["b"]}],
            "y": {"lines": ["ml B/1"], "partitions": ["b"]},
        }
        system = made_up(software)
        assert list(module_block(system, ["x", "y"]).lines) == ["ml A/2", "ml B/1"]

    def test_that_two_frameworks_do_not_share_is_a_conflict(self) -> None:
        with pytest.raises(Conflict, match="no partition of jureca has all of ddp, graphcore"):
            module_block(SYSTEMS["jureca"], ["ddp", "graphcore"])


class TestSeveralFrameworks:
    def test_with_the_same_lines_share_them(self) -> None:
        block = module_block(SYSTEMS["jureca"], ["ddp", "deepspeed"])
        assert (block.begin, list(block.lines)) == ("# MODULES BEGIN jureca ddp deepspeed", JURECA)

    @pytest.mark.parametrize("names", [["ddp", "heat"], ["heat", "ddp"], ["heat", "deepspeed", "ddp", "horovod"]])
    def test_keep_what_one_of_them_does_more(self, names: list[str]) -> None:
        block = module_block(SYSTEMS["deep"], names)
        assert list(block.lines) == [*DEEP_STAGE, "ml -nvidia-driver/.default"]
        assert block.begin == "# MODULES BEGIN deep " + " ".join(names)

    def test_have_their_lines_one_after_the_other(self) -> None:
        assert lines_of({"x": ["ml A/1"], "y": ["ml B/1", "export Z=1"]}) == ["ml A/1", "ml B/1", "export Z=1"]

    def test_purge_once_and_first_however_many_ask_for_it(self) -> None:
        software = {"x": ["ml A/1"], "y": ["module purge", "ml B/1"], "z": ["ml --force purge", "ml use /m", "ml C/1"]}
        block = module_block(made_up(software), ["x", "y", "z"])
        assert list(block.lines) == ["ml --force purge", "ml use /m", "ml A/1", "ml B/1", "ml C/1"]
        assert "y and z begin with a purge, x not: the purge comes first for all." in block.notes

    def test_name_a_place_for_modules_once_before_anything_is_loaded(self) -> None:
        software = {"x": ["module use /m", "ml A/1"], "y": ["module use /m", "module use /n", "ml B/1"]}
        assert lines_of(software) == ["module use /m", "module use /n", "ml A/1", "ml B/1"]

    def test_take_the_longer_of_two_lines_when_it_holds_the_shorter(self) -> None:
        short, long = ["ml S/1 A/1"], ["ml S/1 A/1 B/2"]
        assert lines_of({"x": short, "y": long}) == lines_of({"x": long, "y": short}) == long

    def test_load_nothing_twice(self) -> None:
        software = {"x": ["ml S/1 A/1", "module use /m", "ml P/1"], "y": ["ml S/1 B/2"]}
        assert lines_of(software) == ["ml S/1 A/1", "module use /m", "ml P/1", "ml B/2"]

    def test_keep_the_order_that_each_of_them_has(self) -> None:
        software = {"x": ["ml A/1", "ml D/1"], "y": ["ml A/1", "ml B/1", "ml D/1"]}
        assert lines_of(software) == ["ml A/1", "ml B/1", "ml D/1"]

    def test_with_contrary_orders_are_refused(self) -> None:
        assert "comes before" in refused({"x": ["ml A/1", "ml B/1"], "y": ["ml B/1", "ml A/1"]})

    def test_with_two_versions_of_a_module_are_refused_with_both_named(self) -> None:
        told = refused({"x": ["ml S/1 HDF5/1.12"], "y": ["ml S/1 HDF5/1.14"]})
        assert told == "x loads HDF5/1.12 and y loads HDF5/1.14: only one version of a module is loaded"

    def test_with_a_version_and_whatever_is_default_are_refused(self) -> None:
        assert "HDF5 and y loads HDF5/1.14" in refused({"x": ["ml HDF5"], "y": ["ml HDF5/1.14"]})

    def test_of_two_stages_are_refused(self) -> None:
        with pytest.raises(
            Conflict, match="asha loads Stages/2023 and raytune loads Stages/2022: a script has one stage"
        ):
            module_block(SYSTEMS["jureca"], ["asha", "raytune"])

    def test_built_with_two_compilers_are_refused(self) -> None:
        with pytest.raises(Conflict, match=r"NVHPC/22.3 and raytune loads GCC/11.2.0: only one compiler is loaded"):
            module_block(SYSTEMS["jureca"], ["ddp", "raytune"])

    def test_where_one_throws_out_what_the_other_loads_are_refused(self) -> None:
        assert refused({"x": ["ml A/1", "ml -B"], "y": ["ml B/1"]}) == "y loads B/1, which x unloads"
        assert refused({"x": ["ml B/1"], "y": ["ml A/1", "module unload B"]}) == "y unloads B, which x loads"

    def test_leave_the_lines_of_one_alone_when_the_other_needs_none(self) -> None:
        odd = ["ml A/1", "ml A/2", "source /opt/setup.sh; ml B/1"]
        assert lines_of({"x": odd, "y": []}) == odd


SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2

# MODULES BEGIN deep ddp heat
ml Stages/2020
# MODULES END
\tpython train.py
"""
UP_TO_DATE = [*DEEP_STAGE, "ml -nvidia-driver/.default"]


def now(text: str, **wanted: Any) -> Evaluation:
    return evaluate(text, SYSTEMS, file="train.sh", **wanted)


def problems(text: str, **wanted: Any) -> list[str]:
    with pytest.raises(InvalidDocument) as caught:
        now(text, **wanted)
    return [str(problem) for problem in caught.value.problems]


def block(system: str, *lines: str) -> str:
    return "\n".join([f"# MODULES BEGIN {system}", *lines, "# MODULES END", ""])


class TestAScript:
    def test_gets_the_lines_of_today(self) -> None:
        found = now(SCRIPT)
        assert found.changed
        assert found.text == SCRIPT.replace("ml Stages/2020", "\n".join(UP_TO_DATE))

    def test_shows_the_difference(self) -> None:
        assert now(SCRIPT).diff.splitlines()[:2] == ["--- train.sh", "+++ train.sh"]
        assert "-ml Stages/2020\n" in now(SCRIPT).diff
        assert "+ml -nvidia-driver/.default\n" in now(SCRIPT).diff

    def test_that_is_up_to_date_stays_as_it_is(self) -> None:
        once = now(SCRIPT).text
        again = now(once)
        assert (again.text, again.diff, again.changed) == (once, "", False)

    def test_moves_to_another_system(self) -> None:
        found = now(SCRIPT, to="jureca")
        assert block("jureca ddp heat", *JURECA) in found.text

    def test_moves_from_a_system_that_nobody_knows(self) -> None:
        assert block("jureca ddp", *JURECA) in now(block("pizdaint ddp", "ml daint-gpu"), to="jureca").text

    def test_gains_and_loses_software(self) -> None:
        found = now(SCRIPT, add=["horovod"], remove=["ddp"])
        assert block("deep heat horovod", *DEEP_STAGE) in found.text

    def test_may_hold_several_blocks(self) -> None:
        text = block("deep ddp") + "true\n" + block("jureca ddp", "ml X") + "false\n"
        wanted = block("deep ddp", *UP_TO_DATE) + "true\n" + block("jureca ddp", *JURECA) + "false\n"
        assert now(text).text == wanted

    def test_loses_software_only_where_it_is_named(self) -> None:
        found = now(block("deep ddp heat") + block("deep ddp"), remove=["heat"])
        assert found.text == block("deep ddp", *UP_TO_DATE) * 2

    def test_says_when_what_is_added_was_there(self) -> None:
        assert "The block in line 4 names heat already." in now(SCRIPT, add=["heat"]).notes

    @pytest.mark.parametrize(
        "around",
        [
            ("#!/bin/bash\r\n\ttab\r\n", "\r\n", "echo hi\r\n"),
            ("no final newline\n", "\n", "  trailing blanks  "),
            ("caf\udce9 \udcff\udcfe\n", "\n", "\x0b\x0c form feed\u2028\x85\n"),
            ("", "\n", ""),
        ],
    )
    def test_keeps_every_byte_outside_the_markers(self, around: tuple[str, str, str]) -> None:
        before, end, after = around
        text = f"{before}# MODULES BEGIN deep ddp{end}old{end}# MODULES END{end}{after}"
        lines = ["# MODULES BEGIN deep ddp", *UP_TO_DATE, "# MODULES END"]
        assert now(text).text == before + "".join(f"{line}{end}" for line in lines) + after

    def test_may_end_with_a_marker_without_a_newline(self) -> None:
        found = now("# MODULES BEGIN deep heat\n# MODULES END")
        assert found.text == block("deep heat", *DEEP_STAGE).removesuffix("\n")
        assert found.diff.endswith(" # MODULES END\n\\ No newline at end of file\n")

    def test_keeps_the_indentation_of_a_block(self) -> None:
        found = now("if true; then\n  # MODULES BEGIN deep heat\n  # MODULES END\nfi\n")
        assert "".join(f"  {line}\n" for line in DEEP_STAGE) in found.text

    def test_of_an_alias_gets_the_system_s_own_name(self) -> None:
        assert now(block("jureca-dc ddp", *JURECA)).text == block("jureca ddp", *JURECA)

    def test_without_a_block_is_told_how_to_make_one(self) -> None:
        with pytest.raises(UsageError, match=r"train\.sh has no module block") as caught:
            now("echo '# MODULES BEGIN deep ddp'\n")
        assert "fairmile system modules SYSTEM SOFTWARE" in str(caught.value.hint)

    def test_without_the_software_to_remove_is_told_so(self) -> None:
        with pytest.raises(NotFound, match=r"no module block of train\.sh names 'horovod'") as caught:
            now(SCRIPT, remove=["horovod"])
        assert caught.value.hint == "named there: ddp, heat"

    def test_cannot_lose_all_its_software(self) -> None:
        assert problems(SCRIPT, remove=["ddp", "heat"]) == ["train.sh:4: nothing would be left in the block"]

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("\n# MODULES BEGIN deep ddp\nml X\n", ["train.sh:2: the module block has no end"]),
            ("# MODULES END\n", ["train.sh:1: a module block ends here that was not started"]),
            (
                "# MODULES BEGIN deep ddp\n# MODULES BEGIN deep heat\n# MODULES END\n# MODULES END\n",
                [
                    "train.sh:2: a module block begins inside the one that began in line 1",
                    "train.sh:4: a module block ends here that was not started",
                ],
            ),
            ("# MODULES BEGIN\n# MODULES END\n", ["train.sh:1: the marker names no system"]),
            ("# MODULES BEGIN deep\n# MODULES END\n", ["train.sh:1: the marker names no software"]),
            ("# MODULES BEGIN dep ddp\n# MODULES END\n", ["train.sh:1: no system named 'dep'; did you mean 'deep'?"]),
            (
                "# MODULES BEGIN deep dpd\n# MODULES END\n" + "# MODULES BEGIN deep heet\n# MODULES END\n",
                [
                    "train.sh:1: no software 'dpd' on deep; did you mean 'ddp'?",
                    "train.sh:3: no software 'heet' on deep; did you mean 'heat'?",
                ],
            ),
        ],
    )
    def test_with_broken_markers_is_refused_by_line(self, text: str, told: list[str]) -> None:
        assert problems(text) == told

    def test_whose_software_the_new_system_lacks_is_refused_by_line(self) -> None:
        assert problems(SCRIPT, to="lumi") == ["train.sh:4: no software 'heat' on lumi"]


class TestTheHeaderOfAScript:
    def test_chooses_the_partition_whose_lines_are_taken(self) -> None:
        found = now("#SBATCH -p dc-mi200\n" + block("jureca ddp"))
        assert "ml Architecture/jureca_mi200\n" in found.text
        assert "The lines are those for dc-mi200, which line 1 requests." in found.notes

    def test_gives_way_to_a_partition_that_is_named(self) -> None:
        assert (
            block("jureca ddp", *JURECA) in now("#SBATCH -pdc-mi200\n" + block("jureca ddp"), partition="dc-gpu").text
        )

    def test_that_asks_for_a_partition_without_such_lines_is_noted(self) -> None:
        found = now("#SBATCH --partition dc-cpu\n" + block("jureca ddp"))
        assert block("jureca ddp", *JURECA) in found.text
        assert "Line 1 requests dc-cpu, for which these lines are unverified." in found.notes

    def moved(self, header: str, system: System | None = None) -> list[str]:
        lake = system or made_up({"x": {"lines": ["ml A/1"], "partition": "a"}})
        found = evaluate(header + block("deep x"), {"lake": lake}, to="lake")
        assert found.text == header + block("lake x", "ml A/1")
        return list(found.notes)

    def test_is_checked_against_the_limits_of_a_new_system(self) -> None:
        header = (
            "#!/bin/bash\n#SBATCH --partition=dp-esb,devel  # ours\n#SBATCH -t 90 -N3\n#SBATCH --gres=gpu:a100:8,nvme\n"
            "#SBATCH --gpus-per-node=v100:6\n#SBATCH --ntasks-per-node=4\n#SBATCH --cpus-per-task 4\n"
        )
        assert self.moved(header) == [
            "Line 2: lake has no partition 'dp-esb'; it has a, b, devel.",
            "Line 5: 6 GPUs on a node exceed the 4 of a.",
            "Line 4: 8 GPUs on a node exceed the 4 of a.",
            "Line 3: 90 exceeds the limit of a, 1h.",
            "Line 3: 3 nodes exceed the limit of a, 2.",
            "Line 7: 16 CPUs on a node exceed the 8 of a.",
        ]

    @pytest.mark.parametrize("time", ["60", "60:00", "1:00:00", "0-1", "0-01:00", "0-00:60:00"])
    def test_may_ask_for_all_the_time_there_is(self, time: str) -> None:
        assert self.moved(f"#SBATCH --time={time}\n") == []

    @pytest.mark.parametrize("time", ["61", "60:01", "25:00:00", "0-1:01", "1-0", "UNLIMITED", "0-30:00:00"])
    def test_may_not_ask_for_more_time(self, time: str) -> None:
        assert self.moved(f"#SBATCH --time={time}\n") == [f"Line 1: {time} exceeds the limit of a, 1h."]

    def test_is_measured_by_the_partition_it_names(self) -> None:
        assert self.moved("#SBATCH -p b\n#SBATCH --time=99:00:00\n") == []

    def test_is_read_up_to_the_first_command(self) -> None:
        assert self.moved("#SBATCH -p b\necho start\n#SBATCH -p nowhere\n") == []

    def test_with_a_quote_that_never_ends_is_read_as_far_as_possible(self) -> None:
        assert self.moved("#SBATCH --partition=b --comment='x\n") == []

    def test_of_another_scheduler_is_named(self) -> None:
        lake = made_up({"x": ["ml A/1"]}, scheduler={"dialect": "pbs"})
        assert self.moved("#SBATCH -p z\n#SBATCH -t 1\n", lake) == [
            "Line 1: lake has pbs, for which '#SBATCH' lines are only comments."
        ]

    def test_is_not_checked_when_the_script_stays_where_it_is(self) -> None:
        assert not any("99" in note for note in now("#SBATCH --time=99-0\n" + block("deep heat")).notes)
