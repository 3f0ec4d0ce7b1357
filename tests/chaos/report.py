"""The page of a run: one HTML file without anything from elsewhere. Light or dark as its reader has it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Final

from quire.verify import Anomaly, Report
from tests.chaos.timeline import Bin, FaultSpan, Span, Timeline

WIDTH: Final = 1000
LEFT: Final = 178
RIGHT: Final = 12
PLOT: Final = WIDTH - LEFT - RIGHT
LANE: Final = 18
RATE_HEIGHT: Final = 110
LATENCY_HEIGHT: Final = 110
STRIP: Final = 16
GAP: Final = 34
PEAK_MAX: Final = 4.0
"""How many times the usual rate is shown: what waited during a fault is sent at once after it."""
LINE_CHARS_MAX: Final = 600

STYLE: Final = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")


def page(
    *, title: str, timeline: Timeline, report: Report, facts: Sequence[tuple[str, str]], failure: str | None
) -> str:
    """`facts` are small things to say under the title: the date, the seed."""
    good = not report.anomalies and failure is None
    verdict = "no anomaly" if not report.anomalies else f"{report.anomalies:,} anomalies"
    if failure is not None:
        verdict = f"the run failed, {verdict}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}: {verdict}</title><style>{STYLE}</style></head><body><main>
<h1>{escape(title)}</h1>
<p class="soft">{" · ".join(f"{escape(name)} {escape(value)}" for name, value in facts)}</p>
<div class="verdict {"good" if good else "bad"}">{"✓" if good else "✗"} {verdict}</div>
{"" if failure is None else f'<p class="bad">{escape(failure[:2_000])}</p>'}
{_tiles(timeline, report)}
<h2>What happened</h2>
<div class="wide">{_chart(timeline)}</div>
<div class="columns"><div><h2>Faults</h2>{_fault_table(timeline)}
<p class="soft note">well after: from the end of a fault until all was well again, in the middle and at worst;
silence: the longest time without an acknowledgement; where the strip of leaders is empty, nobody answered</p></div>
<div><h2>Checks</h2>{_check_table(timeline, report, failure)}</div></div>
{_anomalies(timeline, report)}
</main></body></html>
"""


def _tiles(timeline: Timeline, report: Report) -> str:
    survived = sum(each.well_s is not None for each in timeline.faults)
    worst = max((each.silent_s for each in timeline.faults), default=0.0)
    tiles = [
        (f"{report.acknowledged:,}", "records acknowledged"),
        (f"{report.unknown:,}", "sends with an unknown outcome"),
        (f"{report.polled + report.read:,}", "records read"),
        (f"{survived} of {len(timeline.faults)}", "faults survived"),
        (f"{timeline.elections:,}", "changes of leader"),
        (f"{worst:.1f} s", "longest without an acknowledgement"),
    ]
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{n}</b><span>{w}</span></div>' for n, w in tiles)
        + "</div>"
    )


# --- the chart -----------------------------------------------------------------------------------------------------


class _Chart:
    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.end_s = max(timeline.duration_s, 1.0)
        self.parts: list[str] = []
        self.y = 0.0

    def x(self, at_s: float) -> float:
        return LEFT + PLOT * min(at_s, self.end_s) / self.end_s

    def rect(self, span: Span, y: float, height: float, kind: str, hint: str = "", width_min: float = 1.0) -> None:
        x = self.x(span.began_s)
        width = max(self.x(span.ended_s) - x, width_min)
        title = f"<title>{escape(hint)}</title>" if hint else ""
        self.parts.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">{title}</rect>'
        )

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        self.parts.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>')

    def rule(self, y: float) -> None:
        self.parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')

    def bands(self, top: float, bottom: float) -> None:
        """While a fault is inflicted, behind everything else."""
        for fault in self.timeline.faults:
            self.rect(fault, top, bottom - top, "shade", fault.name)

    def line(self, points: Sequence[tuple[float, float] | None], kind: str, floor: float | None = None) -> None:
        for run in _runs(points):
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in run)
            if floor is not None:
                area = f"{path}L{run[-1][0]:.1f} {floor:.1f}L{run[0][0]:.1f} {floor:.1f}Z"
                self.parts.append(f'<path class="area" d="{area}"/>')
            self.parts.append(f'<path class="{kind}" d="{path}"/>')


def _runs(points: Sequence[tuple[float, float] | None]) -> Iterator[list[tuple[float, float]]]:
    """What hangs together: a line is broken where nothing is known."""
    run: list[tuple[float, float]] = []
    for point in [*points, None]:
        if point is not None:
            run.append(point)
        elif run:
            yield run
            run = []


def _chart(timeline: Timeline) -> str:
    chart = _Chart(timeline)
    _lanes(chart)
    _rates(chart)
    _latencies(chart)
    _leaders(chart)
    _axis(chart)
    return (
        f'<svg viewBox="0 0 {WIDTH} {chart.y:.0f}" role="img" aria-label="Faults, throughput, latency and leaders '
        f'over time">{"".join(chart.parts)}</svg>'
    )


def _lanes(chart: _Chart) -> None:
    faults = chart.timeline.faults
    names = sorted(
        {fault.name for fault in faults}, key=lambda name: next(n for n, f in enumerate(faults) if f.name == name)
    )
    chart.text(0, 14, "faults", "head")
    chart.text(52, 14, "strong: inflicted, faint: until all is well", "soft")
    chart.y = 24
    for name in names:
        chart.rule(chart.y + LANE / 2)
        chart.text(LEFT - 8, chart.y + 13, _short(name), "end")
        for fault in faults:
            if fault.name == name:
                _fault_bar(chart, fault)
        chart.y += LANE


def _short(name: str) -> str:
    return name.replace("one direction cut: ", "cut ").replace("leader paused past its lease", "leader paused")


def _fault_bar(chart: _Chart, fault: FaultSpan) -> None:
    end_s = chart.end_s if fault.well_s is None else fault.well_s
    nodes = ", ".join(fault.nodes)
    hint = f"{fault.name} ({nodes}) at {_clock(fault.began_s)}, well after {end_s - fault.began_s:.1f} s"
    chart.rect(Span(fault.began_s, end_s), chart.y + 3, LANE - 6, "healing", hint)
    chart.rect(fault, chart.y + 3, LANE - 6, "fault", hint, width_min=2.0)


def _rates(chart: _Chart) -> None:
    top = chart.y + GAP
    floor = top + RATE_HEIGHT
    chart.bands(top, floor)
    bins = chart.timeline.bins
    rates = sorted(each.per_s for each in bins if each.per_s)
    most = _nice(min(rates[-1], PEAK_MAX * median(rates)) if rates else 1.0)
    chart.text(0, top + 10, "acknowledged", "head")
    chart.text(0, top + 27, "records a second", "soft")
    if rates and rates[-1] > most:
        chart.text(0, top + 44, "(higher peaks are cut)", "soft")
    for share in (0.0, 0.5, 1.0):
        y = floor - RATE_HEIGHT * share
        chart.rule(y)
        chart.text(LEFT - 8, y + 4, f"{most * share:,.0f}", "soft end")
    half = chart.timeline.bin_s / 2
    points = [
        None if each.per_s is None else (chart.x(each.at_s + half), floor - RATE_HEIGHT * min(each.per_s / most, 1.0))
        for each in bins
    ]
    chart.line(points, "rate", floor)
    chart.y = floor


def _latencies(chart: _Chart) -> None:
    top = chart.y + GAP
    floor = top + LATENCY_HEIGHT
    chart.bands(top, floor)
    bins = chart.timeline.bins
    found = [ms for each in bins for ms in (each.p50_ms, each.p99_ms) if ms is not None] or [1.0, 10.0]
    low, high = math.floor(math.log10(max(min(found), 0.1))), math.ceil(math.log10(max(*found, 1.0)))
    high = max(high, low + 1)
    chart.text(0, top + 10, "until acknowledged", "head")
    chart.text(0, top + 27, "p50", "lp50")
    chart.text(28, top + 27, "p99", "lp99")

    def y(ms: float) -> float:
        return floor - LATENCY_HEIGHT * (math.log10(max(ms, 10.0**low)) - low) / (high - low)

    for power in range(low, high + 1):
        chart.rule(y(10.0**power))
        chart.text(LEFT - 8, y(10.0**power) + 4, _duration(10.0**power), "soft end")
    half = chart.timeline.bin_s / 2

    def points(of: str) -> list[tuple[float, float] | None]:
        return [None if (ms := _ms(each, of)) is None else (chart.x(each.at_s + half), y(ms)) for each in bins]

    chart.line(points("p99"), "p99")
    chart.line(points("p50"), "p50")
    chart.y = floor


def _ms(each: Bin, of: str) -> float | None:
    return each.p50_ms if of == "p50" else each.p99_ms


def _leaders(chart: _Chart) -> None:
    top = chart.y + GAP
    chart.text(0, top + 10, "leaders", "head")
    x = float(LEFT)
    for kind, what in (("n1", "n1"), ("n2", "n2"), ("n3", "n3"), ("nobody", "nobody"), ("thin", "not all in sync")):
        height = 3 if kind == "thin" else 10
        y = top + (4 if kind == "thin" else 1)
        chart.parts.append(f'<rect class="{kind}" x="{x:.0f}" y="{y:.1f}" width="10" height="{height}"/>')
        chart.text(x + 14, top + 10, what, "soft")
        x += 34 + 7 * len(what)
    y = top + 20
    for partition in sorted({reign.partition for reign in chart.timeline.reigns}):
        chart.text(LEFT - 8, y + 12, f"partition {partition}", "soft end")
        chart.rect(Span(0, chart.end_s), y, STRIP, "band")
        for reign in chart.timeline.reigns:
            if reign.partition != partition or not reign.known:
                continue
            who = "nobody" if reign.leader is None else f"n{reign.leader}"
            hint = f"partition {partition}: {who} from {_clock(reign.began_s)} on, {reign.in_sync} in sync"
            chart.rect(reign, y, STRIP, who, hint, width_min=1.5)
            if reign.in_sync < 3:
                chart.rect(reign, y + STRIP + 2, 3, "thin", hint, width_min=1.5)
        y += STRIP + 9
    chart.y = y


def _axis(chart: _Chart) -> None:
    y = chart.y + 14
    step = next(
        (each for each in (5, 10, 20, 30, 60, 120, 300, 600, 1_200, 3_600) if chart.end_s / each <= 12), 7_200
    )
    for number in range(int(chart.end_s / step) + 1):
        chart.text(chart.x(number * step), y, _clock(number * step), "soft mid")
    chart.y = y + 8


def _nice(most: float) -> float:
    power = 10.0 ** math.floor(math.log10(max(most, 1.0)))
    return next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= most)


def _clock(at_s: float) -> str:
    return f"{int(at_s) // 60}:{int(at_s) % 60:02}"


def _duration(ms: float) -> str:
    return f"{ms / 1000:g} s" if ms >= 1000 else f"{ms:g} ms"


# --- tables --------------------------------------------------------------------------------------------------------


def fault_rows(timeline: Timeline) -> list[tuple[str, int, float, float, float]]:
    """Of each kind: how often, the middle and the worst time until all was well, the longest without an answer."""
    rows = []
    for name in sorted({fault.name for fault in timeline.faults}):
        found = [fault for fault in timeline.faults if fault.name == name and fault.well_s is not None]
        if found:
            healed = [(fault.well_s or 0.0) - fault.ended_s for fault in found]
            rows.append((name, len(found), median(healed), max(healed), max(fault.silent_s for fault in found)))
    return rows


def _fault_table(timeline: Timeline) -> str:
    head = "<tr><th>fault<th class=n>times<th class=n>well after<th class=n>at worst<th class=n>silence</tr>"
    rows = "".join(
        f"<tr><td>{escape(name)}<td class=n>{count}<td class=n>{middle:.1f} s<td class=n>{worst:.1f} s"
        f"<td class=n>{silent:.1f} s</tr>"
        for name, count, middle, worst, silent in fault_rows(timeline)
    )
    return f"<div class=wide><table>{head}{rows}</table></div>"


def _check_table(timeline: Timeline, report: Report, failure: str | None) -> str:
    rows = "".join(
        f"<tr><td>{_linked(verdict.kind.value, verdict.count)}<td class=n>{_found(verdict.count)}"
        f"<td>{verdict.checked:,} {escape(verdict.unit)}</tr>"
        for verdict in report.verdicts.values()
    )
    word = '<span class="good">0</span>' if failure is None else '<span class="bad">see above</span>'
    rows += f"<tr><td>replicas differ<td class=n>{word}<td>{timeline.comparisons:,} comparisons of all bytes</tr>"
    return f"<div class=wide><table><tr><th>anomaly<th class=n>found<th>among</tr>{rows}</table></div>"


def _linked(kind: str, count: int) -> str:
    return f'<a href="#{kind.replace(" ", "-")}">{kind}</a>' if count else kind


def _found(count: int) -> str:
    return f'<span class="{"bad" if count else "good"}">{count:,}</span>'


def _anomalies(timeline: Timeline, report: Report) -> str:
    parts = []
    for verdict in report.verdicts.values():
        if verdict.count:
            kind = verdict.kind.value
            parts.append(f'<h2 id="{kind.replace(" ", "-")}">{kind}: {verdict.count:,}</h2>')
            parts += [_anomaly(each) for each in verdict.anomalies]
    if timeline.lines and parts:
        parts.append("<h2>Lines of the history</h2>")
        parts += [
            f'<div class="line" id="line-{number}">{number}: {escape(text[:LINE_CHARS_MAX])}</div>'
            for number, text in sorted(timeline.lines.items())
        ]
    return "".join(parts)


def _anomaly(anomaly: Anomaly) -> str:
    where = f"{anomaly.topic}/{anomaly.partition}" + ("" if anomaly.offset is None else f" offset {anomaly.offset}")
    links = ", ".join(f'<a href="#line-{number}">{number:,}</a>' for number in anomaly.lines)
    return f"<p>{escape(where)}: {escape(anomaly.text)} <span class=soft>lines {links}</span></p>"
