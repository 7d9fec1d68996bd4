"""What Domicile promises itself, as ratios."""

from dataclasses import dataclass

OURS = "domicile"


@dataclass(frozen=True)
class Target:
    """Our number in a case divided by another peer's, or by our own in the case `than`. No bound: it is only stated."""

    case: str
    against: str
    bound: float | None
    than: str | None = None

    def met(self, ratio: float, higher_is_better: bool) -> bool:
        if self.bound is None:
            return True
        return ratio >= self.bound if higher_is_better else ratio <= self.bound
