"""Puts a report together: for every bunch of comparable runs its tables, figures, pictures and provenance."""

import re
from dataclasses import dataclass

from eow.report.corrupted import corruptions
from eow.report.curves import reliability, risk_coverage, thresholds, unknown_histograms
from eow.report.gallery import Gallery, gallery
from eow.report.gather import Bunch
from eow.report.parts import Figure, Table
from eow.report.progress import chains, training
from eow.report.promises import certified, differences
from eow.report.provenance import Detail, details_of, runs_table
from eow.report.tables import at_thresholds, headline, unknowns


@dataclass(frozen=True)
class Section:
    """`slug` is the title as a part of a file's name or an address in the page."""

    title: str
    slug: str
    seeds: str
    headline: Table
    tables: list[Table]  # those after the headline
    figures: list[Figure]
    gallery: Gallery | None
    runs: Table
    details: list[Detail]

    @property
    def every_table(self) -> list[Table]:
        return [self.headline, *self.tables, self.runs]

    @property
    def with_numbers(self) -> list[Table | Figure]:
        """All that can be had as CSV."""
        return [*self.every_table, *(figure for figure in self.figures if figure.panels)]


def compose(bunches: list[Bunch], format: str, unknown_rate: float | None, root: str) -> list[Section]:
    """All sections, each with what the format shows of it: pictures are on the page alone."""
    sections, slugs = [], set[str]()
    for bunch in bunches:
        tables = [unknowns(bunch, unknown_rate), at_thresholds(bunch, unknown_rate), differences(bunch, unknown_rate)]
        tables.append(certified(bunch, unknown_rate))
        figures = [
            reliability(bunch), risk_coverage(bunch), thresholds(bunch), unknown_histograms(bunch),
            *corruptions(bunch, unknown_rate), training(bunch), chains(bunch),
        ]  # fmt: skip
        slug = re.sub(r"[^a-z0-9]+", "-", bunch.title.lower()).strip("-")[:60] or "runs"
        while slug in slugs:
            slug += "-2"
        slugs.add(slug)
        sections.append(Section(
            bunch.title, slug, seeds_of(bunch), headline(bunch, unknown_rate),
            [table for table in tables if table is not None], [figure for figure in figures if figure is not None],
            gallery(bunch, root) if format == "html" else None, runs_table(bunch), details_of(bunch),
        ))  # fmt: skip
    return sections


def seeds_of(bunch: Bunch) -> str:
    """ "4 methods, 2 seeds each"; groups of one method are settings."""
    counts = sorted({len(group.runs) for group in bunch.groups})
    word = "method" if len({group.first.method for group in bunch.groups}) == len(bunch.groups) else "setting"
    methods = f"{len(bunch.groups)} {word}{'s' if len(bunch.groups) > 1 else ''}"
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    seeds = f"{span} seed{'s' if counts[-1] > 1 else ''}"
    return f"{methods}, {seeds}{' each' if len(bunch.groups) > 1 else ''}"
