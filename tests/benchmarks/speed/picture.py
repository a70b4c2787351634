"""One picture of all tables: a bar for each figure, its limit beside it."""

from pathlib import Path

OWN, PEER = "#2a6f97", "#bbbbbb"


def draw(tables: dict[str, list[dict]], ours: tuple[str, ...], file: Path) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(-(-len(tables) // 3), 3, figsize=(19, 3.6 * -(-len(tables) // 3)), squeeze=False)
    for axis in axes.flat[len(tables) :]:
        axis.set_visible(False)
    for axis, (title, rows) in zip(axes.flat, tables.items()):
        names = [row["name"] for row in rows]
        colours = [OWN if name.startswith(ours) else PEER for name in names]
        axis.barh(names, [row["ns"] for row in rows], color=colours)
        for place, row in enumerate(rows):
            if row["limit"]:
                axis.plot([row["limit"]] * 2, [place - 0.4, place + 0.4], color="black")
        axis.set_xscale("log")
        axis.invert_yaxis()
        axis.set_title(title, fontsize=8)
        axis.tick_params(labelsize=7)
    figure.supxlabel("ns; a black line is the limit")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
