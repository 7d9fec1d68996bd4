"""Medians, spreads and ratios of samples, and how they are written."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.rig import Sample


@dataclass(frozen=True)
class Spread:
    """A median between the least and the greatest of its values."""

    middle: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(median(values), min(values), max(values))

    def show(self, unit: str) -> str:
        middle = show(self.middle, unit)
        return middle if self.least == self.most else f"{middle} ({show(self.least, unit)} to {show(self.most, unit)})"


@dataclass(frozen=True)
class Ratio:
    """Two peers compared: by their medians, and round by round, where both ran in the same minute."""

    medians: float
    rounds: Spread

    @classmethod
    def of(cls, ours: Sequence[Sample], theirs: Sequence[Sample]) -> "Ratio | None":
        other = {sample.round: sample.value for sample in theirs}
        pairs = [(s.value, other[s.round]) for s in ours if other.get(s.round)]
        if not pairs:
            return None
        medians = median(a for a, _ in pairs) / median(b for _, b in pairs)
        return cls(medians, Spread.of([a / b for a, b in pairs]))

    def show(self) -> str:
        return f"{show(self.medians, 'x')}; {self.rounds.show('x')}"


def show(value: float, unit: str) -> str:
    if unit == "us":
        return f"{value:.0f} µs" if value < 1000 else f"{value / 1000:.{2 if value < 10_000 else 1}f} ms"
    if unit == "/s":
        return f"{value:,.0f}/s"
    if unit == "x":
        return f"{value:.2f}x" if value < 100 else f"{value:,.0f}x"
    return f"{value:,.1f} {unit}".rstrip()
