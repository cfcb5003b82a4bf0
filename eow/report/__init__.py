"""What people look at: figures and the report page, made from the files of finished runs.

    report(["runs/vanilla-0", "runs/eow-0"], "report.html")

gather.py reads the runs, soundness.py asks whether they can be drawn. tables.py, promises.py, curves.py, corrupted.py,
progress.py, gallery.py and provenance.py make of them what parts.py names: tables and figures as plain values, which
sections.py puts in order. svg.py and plots.py draw these, texts.py writes them, page.py is the page.
"""

from collections.abc import Sequence
from pathlib import Path

FORMATS = ("html", "md", "csv", "png", "latex")


def report(
    runs: Sequence[str | Path],
    out: str | Path,
    format: str = "html",
    unknown_rate: float | None = None,
    root: str = "",
) -> list[Path]:
    """Write a report on finished runs and return the files. Runs that differ in nothing but the seed are one row, with
    mean ± standard deviation; runs on different data get sections of their own.

    html, md and latex are one file. csv and png are one file where `out` has an ending, else a folder with a file for
    each table or figure. `root` is where data sets lie, for the pictures; an `unknown_rate` is applied to the runs that
    have an unknown logit.
    """
    from eow.errors import EowError
    from eow.plain import encoded
    from eow.report.gather import gather
    from eow.report.sections import compose
    from eow.storage import atomic, make_folder

    if format not in FORMATS:
        raise EowError(f"there is no report as {format!r}: choose one of {', '.join(FORMATS)}")
    out = Path(out)
    meant = next((name for name, suffix in SUFFIX.items() if out.suffix.lower() == f".{suffix}"), format)
    if meant != format and not out.is_dir():
        raise EowError(
            f"{out} does not fit a report as {format}: end it in .{SUFFIX[format]}, or choose --format {meant}"
        )
    if out.is_dir() and format in ("html", "md", "latex"):
        raise EowError(f"{out} is a folder: give the report a file's name, such as {out / 'report'}.{SUFFIX[format]}")
    many = format in ("csv", "png") and (out.is_dir() or not out.suffix)
    sections = compose(gather(runs, unknown_rate), format, unknown_rate, root)
    if format == "html":
        from eow.report.page import page

        files = {out: encoded(page(sections))}
    elif format == "png":
        from eow.report.plots import pictures

        files = pictures(sections, out, many)
    else:
        from eow.report.texts import WRITERS, csv_files

        if format == "csv":
            files = csv_files(sections, out, many)
        else:
            files = {out: encoded(WRITERS[format](sections))}
    make_folder(out if many else out.absolute().parent)
    for path, content in files.items():  # all are made before the first is written
        atomic(path, lambda file, content=content: file.write(content))  # type: ignore[misc]
    return list(files)


SUFFIX = {"html": "html", "md": "md", "latex": "tex", "csv": "csv", "png": "png"}
