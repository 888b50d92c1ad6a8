"""Every command beside the Python call that does the same: `--json` prints what the call's `to_dict()` returns."""

from __future__ import annotations

from functools import cache

from fairmile.base.quick_dataclass import dataclass
from fairmile.testing.schemas import commands


@dataclass(frozen=True)
class Example:
    """A command line, without `fairmile`, and the call that returns what it prints with `--json`."""

    shell: str
    python: str
    is_executed: bool = True  # by the tests, which compare both

    @property
    def command(self) -> str:
        """The words of the command, such as `runs ls`."""
        return max((name for name in command_names() if f"{self.shell} ".startswith(f"{name} ")), key=len)


def _only_named(shell: str, python: str) -> Example:
    return Example(shell, python, is_executed=False)


EXAMPLES = (
    Example("search lake", 'fm.search("lake")'),
    Example("search --facet domain", 'fm.catalog.facets("domain")'),
    Example("show dataset/lake-temperatures", 'fm.show("dataset/lake-temperatures")'),
    Example("show cosmoflow --fair", 'fm.catalog.fair("cosmoflow")'),
    Example("show program/lake-tools --raw", 'fm.catalog.source_document("program/lake-tools")'),
    Example("match --dataset mnist", 'fm.match(dataset="mnist")'),
    Example("fetch tide.csv", 'fm.fetch("tide.csv")'),
    Example("fetch tide.csv --fresh --dry-run", 'fm.assets.plan("tide.csv", fresh=True)'),
    _only_named("run -- echo high tide", 'fm.run(["echo", "high", "tide"])'),
    Example("run --dry-run -- echo high tide", 'fm.runs.plan(["echo", "high", "tide"])'),
    _only_named("run --repeat 3 -- echo tide", 'fm.runs.repeat(3, fm.runs.plan(["echo", "tide"]))'),
    _only_named("run --resume last", 'fm.runs.resume("last")'),
    _only_named("rerun last", 'fm.rerun("last")'),
    Example("rerun last --dry-run", 'fm.runs.rerun_plan("last")'),
    _only_named("flow run tide-flow.yaml", 'fm.flows.run("tide-flow.yaml")'),
    Example("flow run tide-flow.yaml --dry-run", 'fm.flows.plan("tide-flow.yaml")'),
    Example("flow plan tide-flow.yaml", 'fm.flows.plan("tide-flow.yaml")'),
    Example("flow status tide-flow.yaml", 'fm.flows.status("tide-flow.yaml")'),
    Example("flow watch tide-flow.yaml", 'fm.flows.status("tide-flow.yaml")'),
    Example("flow graph tide-flow.yaml", 'fm.flows.graph("tide-flow.yaml", format="mermaid")'),
    Example("flow log tide-flow.yaml best", 'fm.flows.log("tide-flow.yaml", "best")'),
    Example("flow cancel tide-flow.yaml", 'fm.flows.cancel("tide-flow.yaml")'),
    Example("flow export tide-flow.yaml --to snakemake", 'fm.flows.export("tide-flow.yaml", to="snakemake")'),
    Example("flow save tide-flow.yaml --dry-run", 'fm.flows.save("tide-flow.yaml", dry_run=True)'),
    Example("flow suggest --model cosmoflow", 'fm.flows.suggest("cosmoflow")'),
    Example("flow ls", "fm.flows.ls()"),
    Example("sweep plan rates.yaml", 'fm.sweeps.list_points("rates.yaml")'),
    Example("sweep run rates", 'fm.sweep("rates")'),
    Example("sweep run rates.yaml --dry-run", 'fm.sweeps.plan("rates.yaml")'),
    Example("sweep ls", "fm.sweeps.ls(limit=20)"),
    Example("sweep show rates --best loss", 'fm.sweeps.status("rates", best="loss")'),
    Example("sweep generate rates.yaml --out out --dry-run", 'fm.sweeps.plan_generation("rates.yaml", "out")'),
    _only_named("sweep generate rates.yaml --out rates", 'fm.sweeps.generate("rates.yaml", "rates")'),
    Example("sweep cancel rates", 'fm.sweeps.cancel("rates")'),
    Example("sweep rm rates --dry-run", 'fm.sweeps.remove("rates", dry_run=True)'),
    Example("tune run quad", 'fm.tune("quad")'),
    Example("tune run quad.yaml --dry-run", 'fm.studies.plan("quad.yaml")'),
    Example("tune show quad", 'fm.studies.status("quad")'),
    Example("tune stop quad --dry-run", 'fm.studies.stop("quad", dry_run=True)'),
    Example("status", "fm.status()"),
    Example("compare slow fast", 'fm.compare("slow", "fast")'),
    Example("report slow fast -o both.html", 'fm.report("slow", "fast").write("both.html")'),
    Example("report --top loss", 'fm.reports.leaderboard("loss")'),
    _only_named(
        "predict memory step.py:build -a batch=64", 'fm.predict.memory("step.py:build", arguments={"batch": 64})'
    ),
    _only_named("predict memory step.py:build --largest", 'fm.predict.largest_batch("step.py:build")'),
    _only_named("predict time step.py:build --gpu h100", 'fm.predict.time("step.py:build", gpu="h100")'),
    _only_named("predict scaling gpt.yaml --on jupiter --gpus 64", 'fm.predict.scaling("gpt.yaml", "jupiter", [64])'),
    _only_named(
        "predict characterize step.py:build -a batch=64",
        'fm.predict.characterize("step.py:build", arguments={"batch": 64})',
    ),
    _only_named("predict calibrate --dry-run", "fm.predict.calibrate(dry_run=True)"),
    Example("predict learn --dry-run", "fm.predict.learn_from_runs(dry_run=True)"),
    _only_named("trace record -o first -- python train.py", 'fm.traces.record(["python", "train.py"], "first")'),
    Example(
        "trace record --dry-run -o new -- python train.py", 'fm.traces.plan_recording(["python", "train.py"], "new")'
    ),
    Example("trace analyze first", 'fm.traces.analyze("first")'),
    Example("trace replay first --bandwidth 4", 'fm.traces.replay("first", {"bandwidth": 4})'),
    Example("trace export first -o first.json --dry-run", 'fm.traces.export("first", "first.json", dry_run=True)'),
    _only_named("watch -- sleep 1", 'fm.watch(["sleep", "1"])'),
    Example("watch --list", "fairmile.meter.watching.list_sources()"),
    Example("watch --dry-run -- sleep 1", 'fairmile.meter.watching.plan_watch(["sleep", "1"])'),
    _only_named("watch --read levels.jsonl", 'fairmile.meter.watching.read_report("levels.jsonl")'),
    Example("compat path", "fairmile.compat.predecessors.published_path()"),
    Example(
        "compat run --dry-run -- lamec gen deep ddp",
        'fairmile.compat.predecessors.translate(["lamec", "gen", "deep", "ddp"])',
    ),
    Example("catalog check lake.jsonld", 'fm.catalog.check(["lake.jsonld"])'),
    Example("catalog add lake.jsonld --dry-run", 'fm.catalog.add_files(["lake.jsonld"], dry_run=True)'),
    Example(
        "catalog update lake-temperatures --set version=2 --dry-run",
        'fm.catalog.update("lake-temperatures", set={"version": "2"}, dry_run=True)',
    ),
    Example("catalog rm lake-temperatures --dry-run", 'fm.catalog.remove("lake-temperatures", dry_run=True)'),
    Example("catalog versions lake-temperatures", 'fm.catalog.versions("lake-temperatures")'),
    Example("catalog export dataset/mnist --to croissant", 'fm.catalog.export("dataset/mnist", "croissant")'),
    Example("catalog describe tide.csv", 'fm.catalog.describe("tide.csv")'),
    Example(
        "catalog convert tide.csv --to npy --array level --dry-run",
        'fm.datasets.convert("tide.csv", "npy", arrays=["level"], dry_run=True)',
    ),
    Example("catalog digest lake.jsonld shared-cards", 'fm.catalog.measure_all(["lake.jsonld", "shared-cards"])'),
    Example("model show tides.onnx", 'fm.models.describe("tides.onnx")'),
    Example(
        "model convert tides.onnx --to pytorch --dry-run", 'fm.models.convert("tides.onnx", "pytorch", dry_run=True)'
    ),
    Example("model export tides.onnx -o hub --replace", 'fm.models.export("tides.onnx", "hub", replace=True)'),
    Example("model package tides.onnx -o image --dry-run", 'fm.models.package("tides.onnx", "image", dry_run=True)'),
    Example(
        "model explore tides.onnx --batch 1,8 --dry-run",
        'fm.models.explore("tides.onnx", batch=[1, 8], dry_run=True)',
    ),
    Example("catalog sync --dry-run", "fm.catalog.sync(dry_run=True)"),
    Example("catalog reindex --dry-run", "fm.catalog.reindex(dry_run=True)"),
    Example("catalog publish site --dry-run", 'fm.catalog.publish("site", dry_run=True)'),
    Example(
        "catalog source add other ./shared-cards --dry-run",
        'fm.catalog.add_source("other", "./shared-cards", dry_run=True)',
    ),
    Example("catalog source ls", "fm.catalog.catalogs()"),
    Example("catalog source rm group --dry-run", 'fm.catalog.remove_source("group", dry_run=True)'),
    Example("store ls", "fm.store.ls()"),
    Example("store du", "fm.store.du()"),
    Example("store verify", "fm.store.verify()"),
    Example("store repair --dry-run", "fm.assets.repair(dry_run=True)"),
    Example("store gc --grace 0 --dry-run", "fm.assets.gc(grace_s=0, dry_run=True)"),
    Example("store pin tide.csv --as paper --dry-run", 'fm.store.pin("tide.csv", "paper", dry_run=True)'),
    Example("store unpin kept --dry-run", 'fm.store.unpin("kept", dry_run=True)'),
    Example("store pins", "fm.store.pins()"),
    Example("store push kept ./usb --dry-run", 'fm.store.push("kept", "./usb", dry_run=True)'),
    _only_named("store pull kept ./usb", 'fm.store.pull("kept", "./usb")'),
    Example("store pool ls", "fm.store.pools.ranked()"),
    Example(
        "store pool add fast ./fast --speed fast --dry-run",
        'fm.store.add_pool("fast", "./fast", speed="fast", dry_run=True)',
    ),
    Example("store pool rm scratch --dry-run", 'fm.store.remove_pool("scratch", dry_run=True)'),
    Example("store pool measure home --dry-run", 'fm.store.measure_pool("home", dry_run=True)'),
    Example("system ls", "fm.systems.ls()"),
    Example("system show jureca", 'fm.systems.show("jureca")'),
    Example("system check my-cluster.yaml", 'fm.systems.check(["my-cluster.yaml"])'),
    Example("system add my-cluster.yaml --dry-run", 'fm.systems.add("my-cluster.yaml", dry_run=True)'),
    Example("system rm my-cluster --dry-run", 'fm.systems.rm("my-cluster", dry_run=True)'),
    _only_named("system probe", "fm.systems.probe()"),
    _only_named("system probe --on laptop", 'fm.systems.survey("laptop")'),
    _only_named("system usage my-cluster", 'fm.systems.usage("my-cluster")'),
    _only_named("system report laptop", 'fm.systems.report("laptop")'),
    _only_named("system certify laptop", 'fm.jobs.certify("laptop")'),
    Example("system certify laptop --dry-run", 'fm.jobs.plan_certification("laptop")'),
    Example("system modules deep ddp", 'fm.systems["deep"].modules("ddp")'),
    Example("system eval train.sh --to jureca", 'fm.systems.evaluate_file("train.sh", to="jureca")'),
    Example(
        "system script --on deep --software ddp --account me -- python train.py",
        'fm.systems["deep"].script(fm.JobSpec(argv=("python", "train.py"), software=("ddp",), '
        'resources={"account": "me"}))',
    ),
    Example("env build plain.yaml", 'fm.envs.build("plain.yaml")'),
    Example("env build plain.yaml --dry-run", 'fm.envs.plan("plain.yaml")'),
    Example("env ls", "fm.envs.ls()"),
    Example("env show plain", 'fm.envs.show("plain")'),
    Example("env verify plain", 'fm.envs.verify("plain")'),
    Example("env repair plain --dry-run", 'fm.envs.repair("plain", dry_run=True)'),
    Example("env shell plain --dry-run -- echo tide", 'fm.envs.shell("plain", ["echo", "tide"])'),
    Example("env export plain --format bash", 'fm.envs.export("plain", "bash")'),
    _only_named("env kernel plain", 'fm.envs.kernel("plain")'),
    Example("env rm plain --dry-run", 'fm.envs.rm("plain", dry_run=True)'),
    Example("env gc --older-than 30d --dry-run", "fm.envs.gc(older_than_s=30 * 86400, dry_run=True)"),
    _only_named("job submit -- echo tide", 'fm.jobs.submit(fm.JobSpec(argv=("echo", "tide")))'),
    _only_named(
        "job pack commands.txt", 'fm.jobs.pack([["echo", "high"], ["echo", "low"]], fm.JobSpec(argv=(), name="pack"))'
    ),
    Example("job ls", "fm.jobs.ls()"),
    Example("job show echo", 'fm.jobs.show("echo")'),
    Example("job log echo", 'fm.jobs.log("echo")'),
    Example("job wait echo", 'fm.jobs.wait(["echo"])'),
    Example("job cancel echo --dry-run", 'fm.jobs.cancel(["echo"], dry_run=True)'),
    Example("job bring echo --to results --dry-run", 'fm.jobs.bring("echo", "results", dry_run=True)'),
    Example("job rm echo --dry-run", 'fm.jobs.rm(["echo"], dry_run=True)'),
    Example("runs ls --name slow", 'fm.runs.ls(name="slow", limit=20)'),
    Example("runs show last", 'fm.runs.show("last")'),
    Example("runs log last", 'fm.runs.output("last")'),
    Example("runs cancel last --dry-run", 'fm.runs.cancel_runs(["last"], dry_run=True)'),
    Example("runs rm last --dry-run", 'fm.runs.remove(["last"], dry_run=True)'),
    Example("runs pack last --dry-run", 'fm.runs.pack_runs(["last"], dry_run=True)'),
    Example("runs unpack last --dry-run", 'fm.runs.unpack_runs(["last"], dry_run=True)'),
    Example("runs export last --dry-run", 'fm.runs.export("last", dry_run=True)'),
    _only_named("runs export last --to tensorboard -o logs", 'fm.runs.export("last", "tensorboard", "logs")'),
    _only_named("runs import tides.crate.zip", 'fm.runs.import_runs("tides.crate.zip")'),
    Example("runs project slow --to 10", 'fm.runs.project(["slow"], to=10)'),
    Example("runs reindex --dry-run", "fm.runs.reindex(dry_run=True)"),
    Example("benchmark ls", "fm.benchmarks.ls()"),
    Example("benchmark show mnist", 'fm.benchmarks.show("mnist")'),
    Example("benchmark new tides --dry-run", 'fm.benchmarks.new("tides", ".", dry_run=True)'),
    _only_named("benchmark stages miniweather", 'fm.benchmarks.stages("miniweather")'),
    Example("benchmark stages miniweather --dry-run", 'fm.benchmarks.plan_stages("miniweather")'),
    _only_named("benchmark compare mnist", 'fm.benchmarks.compare("mnist")'),
    _only_named("benchmark ensemble last", 'fm.benchmarks.ensemble("last")'),
    _only_named("benchmark loaders mnist", 'fm.benchmarks.loaders("mnist")'),
    Example("benchmark loaders mnist --dry-run", 'fm.benchmarks.loaders("mnist", dry_run=True)'),
    _only_named(
        "benchmark submit last --to mlperf-hpc --org Lake -o submission",
        'fm.benchmarks.submit(["last"], "submission", to="mlperf-hpc", org="Lake")',
    ),
    _only_named("benchmark storage .", 'fm.benchmarks.storage(["."])'),
    Example("benchmark storage . --size 1MB --dry-run", 'fm.benchmarks.plan_storage(["."], size_bytes=1_000_000)'),
    _only_named("benchmark collectives --ranks 2,4", "fm.benchmarks.collectives(ranks=[2, 4])"),
    Example("benchmark collectives --dry-run", "fm.benchmarks.plan_collectives()"),
    Example("completion install --shell bash --dry-run", 'fairmile.completion.install("bash", dry_run=True)'),
    Example("completion uninstall --shell bash --dry-run", 'fairmile.completion.uninstall("bash", dry_run=True)'),
    Example("completion show --shell bash", 'fairmile.completion.script("bash")'),
    _only_named("serve", "fm.serve()"),
    _only_named("login https://data.example.org", 'fm.access.login("https://data.example.org")'),
    Example("login --list", "fm.access.logins()"),
    _only_named("logout https://data.example.org", 'fm.access.logout("https://data.example.org")'),
    Example(
        "access user add bob --right read --dry-run",
        'fm.access.add_user("bob", "a long password", rights=["read"], dry_run=True)',
    ),
    Example("access user ls", "fm.access.users()"),
    Example("access user set ada --group hydro --dry-run", 'fm.access.set_user("ada", groups=["hydro"], dry_run=True)'),
    Example("access user rm ada --dry-run", 'fm.access.remove_user("ada", dry_run=True)'),
    _only_named("access token add ada --label laptop", 'fm.access.new_token("ada", "laptop")'),
    Example("access token ls ada", 'fm.access.tokens("ada")'),
    _only_named("access token rm ada 1f3a5c7e9b2d", 'fm.access.revoke_token("ada", "1f3a5c7e9b2d")'),
    Example(
        "access set lake-temperatures --files restricted --dry-run",
        'fm.access.set("lake-temperatures", files="restricted", dry_run=True)',
    ),
    Example("access show lake-temperatures", 'fm.access.show("lake-temperatures")'),
    Example("access ls", "fm.access.ls()"),
    Example(
        "access grant lake-temperatures @hydro --until 2099-01-31 --dry-run",
        'fm.access.grant("lake-temperatures", "@hydro", until="2099-01-31", dry_run=True)',
    ),
    Example(
        "access revoke lake-temperatures ada --dry-run",
        'fm.access.revoke("lake-temperatures", "ada", dry_run=True)',
    ),
    Example("access grants", "fm.access.grants()"),
    Example("access requests", "fm.access.requests()"),
    Example("access approve 1 --dry-run", "fm.access.approve(1, dry_run=True)"),
    Example("access refuse 1 --dry-run", "fm.access.refuse(1, dry_run=True)"),
    _only_named("access request group/dataset/lake", 'fm.access.request("group/dataset/lake")'),
    _only_named("access accept group/dataset/lake --yes", 'fm.access.accept("group/dataset/lake", "SHA256")'),
    Example("access audit ls", "fm.access.audit(limit=20)"),
    Example("access audit verify", "fm.access.verify_audit()"),
    Example("course ls", "fm.course.ls()"),
    Example("course start lessons --dry-run", 'fm.course.start("lessons", dry_run=True)'),
    _only_named("course check lessons", 'fm.course.check("lessons")'),
    _only_named("course build pages", 'fm.course.build("pages")'),
    Example("trust --list", "fm.Workspace.trust().ls()"),
    Example("trust . --dry-run", 'fm.trust(".", dry_run=True)'),
    Example("doctor", "fm.doctor()"),
)


@cache
def command_names() -> tuple[str, ...]:
    """Return the words of every command."""
    return tuple(name for name, _ in commands())
