#!/usr/bin/env python3
"""Makes the tables and the plot of docs/benchmarks.md from benchmarks/results.

python benchmarks/report.py            # prints the tables, writes docs/scaling.svg (needs matplotlib)
"""

import json
import statistics
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results"
WORKLOADS = ["W1", "W2", "W3", "W3ws", "W4", "W5"]
LABELS = {
    "plain": "non-private (torch.optim.Adam)",
    "plain_fused": "non-private, fused Adam",
    "floor": "floor",
    "adamas": "**adamas**",
    "adamas_coord": "**adamas, center and scale per coordinate**",
    "opacus_hooks": "Opacus 1.6, hooks",
    "opacus_ghost": "Opacus 1.6, ghost clipping",
    "vmap": "torch.func.vmap",
}


def ratio(rows: dict, method: str, base: str = "floor") -> float | None:
    """Returns the median over rounds of a method's time relative to another method's in the same round."""
    if not rows.get(method, {}).get("ok") or "round_medians" not in rows[method]:
        return None
    pairs = zip(rows[method]["round_medians"], rows[base]["round_medians"], strict=True)
    return statistics.median(a / b for a, b in pairs)


def table(results: dict, cell) -> str:
    """Returns a Markdown table of methods against workloads."""
    workloads = [w for w in WORKLOADS if w in results]
    methods = [m for m in LABELS if any(m in results[w] for w in workloads)]
    lines = ["| | " + " | ".join(workloads) + " |", "|---" * (len(workloads) + 1) + "|"]
    for method in methods:
        cells = []
        for w in workloads:
            value = cell(results[w], method)
            cells.append("–" if value is None else f"{value:.2f}")
        lines.append(f"| {LABELS[method]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def growth(rows: dict, method: str) -> float | None:
    """Returns the peak memory growth relative to a non-private step."""
    if "peak_growth" not in rows.get(method, {}):
        return None
    return rows[method]["peak_growth"] / rows["plain"]["peak_growth"]


def plot(series: list[dict], path: Path) -> None:
    """Plots step time and memory growth along each axis."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "adamas"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, len(series), figsize=(3.2 * len(series), 5.6), layout="constrained")
    styles = {"plain": "k--", "adamas": "C0o-", "adamas_coord": "C1s-"}
    names = {"batch": "batch size", "seq": "tokens"}
    for column, one in enumerate(series):
        values = [point["value"] for point in one["points"]]
        for row, (key, scale, unit) in enumerate((("seconds", 1e3, "ms per step"), ("bytes", 2**-20, "MB"))):
            ax = axes[row][column]
            for method, style in styles.items():
                heights = [point[method][key] * scale for point in one["points"]]
                ax.plot(values, heights, style, label=method, markersize=4)
            ax.set_xlim(left=0)
            ax.set_ylim(bottom=0)
            ax.set_xlabel(names[one["axis"]])
            ax.set_ylabel(unit)
            if row == 0:
                ax.set_title(f"{one['workload']}, {names[one['axis']]}")
    axes[0][0].legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Prints the tables and draws the plot."""
    for file in sorted(RESULTS.glob("step-*.json")):
        result = json.loads(file.read_text())
        print(f"\n{file.stem}: {result['threads']} thread(s); time, x floor\n")
        print(table(result["results"], ratio))
        print("\npeak memory growth, x non-private\n")
        print(table(result["results"], growth))
    plot(json.loads((RESULTS / "scaling.json").read_text())["series"], HERE.parent / "docs" / "scaling.svg")


if __name__ == "__main__":
    main()
