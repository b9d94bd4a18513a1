"""How does fair sharing look? Served cost for the weight, a line a tenant, as SVG.

Where tenants compete their lines run side by side with the same slope; one that wants less lies
lower. Written by hand: one kind of picture is not worth a plotting library in every installation.
"""

from html import escape

from mantle.core.ids import TenantId
from mantle.testing.sim_cluster.replay import Replay
from mantle.testing.sim_cluster.report import Report

WIDTH, HEIGHT, MARGIN, LEGEND = 860, 420, 50, 130
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000")


def plot_svg(run: Replay, report: Report, *, title: str) -> str:
    """The most served tenants (as many as there are colours that people can tell apart)."""
    slices = int(run.end_ms // run.timeline.slice_ms) + 1
    curves: list[tuple[str, list[float]]] = []
    for line in report.tenants[: len(COLOURS)]:
        tenant_id = TenantId(line.name)
        weight = run.pool.weight_of(tenant_id)
        sums = run.timeline.cumulative(tenant_id, slices)
        label = line.name if weight == 1 else f"{line.name} (weight {weight:g})"
        curves.append((label, [value / weight for value in sums]))
    top = max((max(values) for _, values in curves), default=0.0) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{MARGIN}" y="24" font-size="14">{escape(title)}</text>',
        *_axes(run.end_ms / 1e3, top),
    ]
    for index, (label, values) in enumerate(curves):
        parts += _curve(label, values, top, index)
    return "\n".join([*parts, "</svg>", ""])


def _axes(seconds: float, top: float) -> list[str]:
    right, bottom = WIDTH - LEGEND, HEIGHT - MARGIN
    return [
        f'<path d="M{MARGIN} {MARGIN - 10}V{bottom}H{right}" fill="none" stroke="#555"/>',
        f'<text x="{right}" y="{bottom + 18}" text-anchor="end">{seconds:.0f} s</text>',
        f'<text x="{MARGIN}" y="{bottom + 18}">0</text>',
        f'<text x="{MARGIN + 4}" y="{MARGIN - 2}">{top:.3g} token cost served / weight</text>',
    ]


def _curve(label: str, values: list[float], top: float, index: int) -> list[str]:
    width, height = WIDTH - LEGEND - MARGIN, HEIGHT - 2 * MARGIN
    last = max(1, len(values) - 1)
    points = " ".join(
        f"{MARGIN + width * i / last:.1f},{HEIGHT - MARGIN - height * value / top:.1f}"
        for i, value in enumerate(values)
    )
    colour, y = COLOURS[index], MARGIN + 18 * index
    return [
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>',
        f'<rect x="{WIDTH - LEGEND + 8}" y="{y - 9}" width="10" height="10" fill="{colour}"/>',
        f'<text x="{WIDTH - LEGEND + 24}" y="{y}">{escape(label)}</text>',
    ]
