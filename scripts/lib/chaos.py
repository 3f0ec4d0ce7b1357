"""What `scripts/soak chaos` runs: faults on a real cluster, in an order drawn by a seed, and the page of the run."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Final

from quire.verify import Report
from tests.chaos import report as reports
from tests.chaos import timeline as timelines
from tests.chaos.cluster import Cluster
from tests.chaos.containers import Containers
from tests.chaos.nemesis import possible, shuffled
from tests.chaos.processes import Processes
from tests.chaos.run import Run, inflict_all

PNG_WIDTH: Final = 1080
CHROMIUM: Final = ("chromium", "chromium-browser", "google-chrome")


def main() -> int:
    arguments = argparse.ArgumentParser(prog="scripts/soak chaos")
    arguments.add_argument("minutes", type=float)
    arguments.add_argument("--on", choices=["processes", "containers"], default="containers")
    arguments.add_argument("--seed", type=int, required=True)
    arguments.add_argument("--to", type=Path, required=True, help="Where the report goes.")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="quire-chaos-") as folder:
        history = Path(folder) / "history.jsonl"
        is_well = False
        try:
            run = asyncio.run(_run(given.on, Path(folder), history, seed=given.seed, minutes=given.minutes))
            report = write(run, given.to, minutes=given.minutes)
            is_well = run.is_well
        finally:
            if not is_well and history.exists():
                kept = given.to / f"chaos-{given.on}-{given.seed}.jsonl"
                shutil.copy(history, kept)
                print(f"the history is kept: {kept}")
    print(f"the report is {report}")
    return int(not is_well)


async def _run(kind: str, folder: Path, history: Path, *, seed: int, minutes: float) -> Run:
    cluster = _cluster(kind, folder)
    faults = shuffled(possible(cluster.able), random.Random(seed))
    try:
        await cluster.start()
        return await inflict_all(cluster, history, faults, seed=seed, s_max=minutes * 60)
    finally:
        await cluster.end()


def _cluster(kind: str, folder: Path) -> Cluster:
    if kind == "processes":
        (folder / "cluster").mkdir()
        return Processes(folder / "cluster")
    return Containers()


# --- the report ----------------------------------------------------------------------------------------------------


def write(run: Run, to: Path, *, minutes: float) -> Path:
    """The page, a picture of it where there is a browser, and a text. Where the text is."""
    assert run.report is not None
    wanted = {
        number for verdict in run.report.verdicts.values() for each in verdict.anomalies for number in each.lines
    }
    timeline = timelines.read(run.history, lines=wanted)
    facts = [
        ("", date.today().isoformat()),
        ("", f"{minutes:g} minutes"),
        ("seed", str(run.seed)),
        ("lease", f"{run.lease_ms / 1000:g} s"),
        ("", "acks=all, idempotent, min_isr=2, 3 replicas"),
    ]
    title = f"Chaos on three {run.kind if run.kind == 'containers' else 'nodes as processes'}"
    html = reports.page(title=title, timeline=timeline, report=run.report, facts=facts, failure=run.failure)
    to.mkdir(parents=True, exist_ok=True)
    page = to / f"{_name(run)}.html"
    page.write_text(html, encoding="utf-8")
    picture = _picture(page, height=_height(timeline, run.report))
    text = to / f"{_name(run)}.md"
    text.write_text(_text(run, timeline, run.report, minutes, picture), encoding="utf-8")
    return text


def _name(run: Run) -> str:
    return f"{date.today().isoformat()}-chaos-{run.kind}"


def _height(timeline: timelines.Timeline, report: Report) -> int:
    """Of the page in that width, so that the picture holds all of it."""
    kinds = len({fault.name for fault in timeline.faults})
    return 1_010 + 18 * kinds + 32 * max(kinds, len(report.verdicts) + 1)


def _picture(page: Path, *, height: int) -> Path | None:
    browser = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    if browser is None:
        print("there is no chromium, so no picture was made", file=sys.stderr)
        return None
    picture = page.with_suffix(".png")
    with tempfile.TemporaryDirectory(prefix="quire-browser-") as profile:
        subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={profile}",
                f"--window-size={PNG_WIDTH},{height}",
                f"--screenshot={picture.resolve()}",
                page.resolve().as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
    return picture


def _text(run: Run, timeline: timelines.Timeline, report: Report, minutes: float, picture: Path | None) -> str:
    rows = "\n".join(
        f"| {name} | {count} | {middle:.1f} s | {worst:.1f} s | {silent:.1f} s |"
        for name, count, middle, worst, silent in reports.fault_rows(timeline)
    )
    checks = "\n".join(
        f"| {each.kind.value} | {each.count:,} | {each.checked:,} {each.unit} |" for each in report.verdicts.values()
    )
    shown = "" if picture is None else f"\n![The run: faults, throughput, latency, leaders]({picture.name})\n"
    outcome = "no anomaly" if run.is_well else f"{report.anomalies:,} anomalies"
    failed = "" if run.failure is None else f"\nThe run failed: {run.failure[:2_000]}\n"
    return f"""# {date.today().isoformat()}: chaos on {run.kind}

`QUIRE_SOAK_SEED={run.seed} scripts/soak chaos {minutes:g} --on {run.kind}`: {outcome}. The same as a page:
[{_name(run)}.html]({_name(run)}.html).
{failed}{shown}
Two producers, idempotent, acks=all, `min_isr` 2, three replicas; a reader along the way, a full reader in the end.
Faults one after another, in an order that the seed draws; after each all was well by itself, and traffic paused until
the bytes of all replicas had been compared: {timeline.comparisons} times, equal each time.

| fault | times | well again after | at worst | longest without an acknowledgement |
|---|---|---|---|---|
{rows}

Of {report.sends:,} records sent {report.acknowledged:,} were acknowledged, {report.failed:,} failed and
{report.unknown:,} are unknown; {report.polled:,} were read along the way, {report.read:,} by the full reader.
{timeline.elections:,} times another node began to lead a partition.

| anomaly | found | among |
|---|---|---|
{checks}
"""


if __name__ == "__main__":
    sys.exit(main())
