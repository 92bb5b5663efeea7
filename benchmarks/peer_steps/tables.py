"""Prints the methods of a workload as a Markdown table."""

from peer_steps.catalog import WORKLOADS

RATIOS = {  # the key of a row -> the title of its column
    "ratio": "ratio (paired median)",
    "ratio_min": "ratio of mins",
    "ratio_cpu": "ratio of min CPU time",
}


def print_table(name, rows, batch=None):
    """Prints a title, and a line for each method."""
    workload = WORKLOADS[name]
    title = f"\n### {name}: {workload.note}; B={batch or workload.batch}"
    measured = [row for row in rows.values() if row["ok"]]
    if measured:
        title += f"; {measured[0]['params']:,} parameters, {measured[0]['trainable']:,} trainable"
    columns = ["method", "median ms", "min ms", *RATIOS.values(), "peak RSS growth MB", "mem ratio"]
    print(title)
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for method, row in rows.items():
        cells = measured_cells(row) if row["ok"] else ["–"] * (len(columns) - 2) + [row["error"]]
        print("| " + " | ".join([method, *cells]) + " |", flush=True)


def measured_cells(row):
    def ratio(key):
        return f"{row[key]:.2f}" if key in row else "–"

    return [
        f"{row['median'] * 1e3:.1f}",
        f"{row['min'] * 1e3:.1f}",
        *(ratio(key) for key in RATIOS),
        f"{row['peak_growth'] / 2**20:.0f}",
        ratio("mem_ratio"),
    ]
