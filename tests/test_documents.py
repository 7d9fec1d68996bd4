"""Documentation that keeps up with the code."""

from __future__ import annotations

import dataclasses
import re

from house import PACKAGES, ROOT, named, source_files, text_files

from domicile.errors import BY_CODE
from domicile.node.config import Config
from domicile.node.telemetry import Telemetry


def test_every_package_has_a_design_file() -> None:
    """DESIGN.md in each package says its purpose, what it is not, its flow, and what its decisions cost."""
    assert not [package for package in PACKAGES if not (ROOT / package / "DESIGN.md").exists()]


def test_every_error_is_documented() -> None:
    """docs/errors.md has a section for each code, and none for a code that is gone."""
    documented = set(re.findall(r"^### `(\w+)`", (ROOT / "docs/errors.md").read_text(), re.MULTILINE))
    assert documented == set(BY_CODE)


def test_every_error_says_its_status() -> None:
    """The status and outcome in docs/errors.md are the ones the code answers."""
    text = (ROOT / "docs/errors.md").read_text()
    for code, cls in BY_CODE.items():
        section = text.split(f"### `{code}`", 1)[1].split("###", 1)[0]
        assert f"{cls.status} · {cls.outcome}" in section.splitlines()[0], code
        assert ("retryable" in section.splitlines()[0]) == cls.retryable, code


def test_every_setting_is_documented() -> None:
    """docs/operations.md has each setting with its default, and none that is gone."""
    text = (ROOT / "docs/operations.md").read_text()
    rows = dict(re.findall(r"^\| `([A-Z][A-Z_0-9]+)` \| (\S+) \|", text, re.MULTILINE))
    defaults = {field.name.upper(): shown(field.default) for field in dataclasses.fields(Config)}
    assert rows == defaults


def shown(default: object) -> str:
    if default == "":
        return "empty"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def test_every_metric_is_documented() -> None:
    """docs/metrics.md has a row for each metric the node exports, and none for one that is gone."""
    exported = {metric.name for metric in Telemetry().collect()}
    assert exported
    assert {name.removesuffix("_total") for name in documented_metrics()} == exported


def test_metrics_that_nothing_feeds_are_named() -> None:
    """A metric that stays at 0 is listed as such in docs/metrics.md, and leaves the list when something feeds it."""
    code = "".join(path.read_text() for path in source_files("node") if path.name != "telemetry.py")
    fed_inside = {"calls", "call_seconds", "loop_lag_seconds"}  # by ClassMeter.done and watch_loop
    names = {metric.name.removeprefix("domicile_") for metric in Telemetry().collect()}
    fed = {name for name in names if re.search(rf"(telemetry|meters?|of_class\([^)]*\))\.{name}\b", code)} | fed_inside
    text = (ROOT / "docs/metrics.md").read_text().partition("## Not fed yet")[2]
    listed = set(re.findall(r"[a-z_]+_[a-z]+|residents|reads|members", text.partition(":")[2]))
    assert listed == names - fed


def test_dashboard_and_alerts_name_real_metrics() -> None:
    """deploy/ shows and watches only metrics that docs/metrics.md has."""
    used = set(re.findall(r"domicile_[a-z_]+", "".join(path.read_text() for path in (ROOT / "deploy").glob("*.[jy]*"))))
    assert used
    assert {name.removesuffix("_bucket") for name in used} <= documented_metrics()


def documented_metrics() -> set[str]:
    return set(re.findall(r"^\| `(domicile_\w+)", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE))


def test_links_between_documents_lead_somewhere() -> None:
    """Every relative link in a document names a file that is there."""
    broken = [
        f"{named(path)} -> {target}"
        for path in text_files()
        if path.suffix == ".md"
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[\w-]*)?\)", path.read_text())
        if not (path.parent / target).exists()
    ]
    assert not broken


def test_documents_name_modules_that_exist() -> None:
    """A module named in a document is there."""
    gone = [
        f"{named(path)} -> {name}"
        for path in text_files()
        if path.suffix == ".md" and path.name != "CHANGELOG.md"
        for name in re.findall(rf"\b((?:{'|'.join(PACKAGES)})/[\w/]+\.py)\b", path.read_text())
        if not (ROOT / name).exists()
    ]
    assert not gone
