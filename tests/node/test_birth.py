"""The image every object starts from is part of the stored format."""

from __future__ import annotations

from blake3 import blake3

from domicile.node.sqlite.birth import IMAGE, build


def test_the_image_never_changes() -> None:
    """Copies of one position hold one base: the image is the same bytes in every version."""
    assert len(IMAGE) == 8 * 4096
    assert blake3(IMAGE).hexdigest() == "4705b13c4c9140360b9843814e8951b1b2f16be57c2eccd20f892be7b65e2fc2"


def test_the_image_is_what_its_schema_builds() -> None:
    """The image can be made again from the schema in the code, by whatever SQLite is at hand."""
    assert build() == IMAGE


def test_the_image_is_in_wal_mode_without_a_log() -> None:
    """An object starts without the costly switch of its journal mode."""
    assert IMAGE[:16] == b"SQLite format 3\0"
    assert IMAGE[18:20] == b"\x02\x02"
    assert IMAGE[68:72] == b"DOMI"
