"""What a person is shown of a lost branch fits into a history, whatever the branch is (PROTOCOLS section 10)."""

from __future__ import annotations

import msgspec

from domicile.activities import branch_report
from domicile.node.sqlite.row_diff import Change, Diff, Table, TableDiff

HISTORY_BYTES = 512 << 10  # Temporal refuses a payload of 2 MiB


def table(number: int, rows: int, columns: int, text: str) -> TableDiff:
    names = tuple(f"column_{at}" for at in range(columns))
    row = tuple(text for _ in names)
    changes = tuple(Change("added", (at,), None, row) for at in range(rows))
    return TableDiff(Table(f"table_{number}", names, names[:1], None), names[:1], names, changes)


def test_case_125_a_huge_branch_is_cut_in_the_history_and_whole_in_the_store() -> None:
    """Thousands of rows, wide tables, texts of a megabyte: the summary stays small, counts are exact."""
    tables = (*(table(at, 3, 30, "x" * 2_000) for at in range(200)), table(999, 30_000, 2, "y" * 400))
    huge = table(1000, 2, 3, "z" * 3_000_000)
    found = Diff((*tables, huge), created=("CREATE TABLE t(" + "c, " * 5_000 + "d)",) * 100)
    said = msgspec.json.encode((branch_report.summary(found), branch_report.altered(found)))
    assert len(said) < HISTORY_BYTES
    assert branch_report.rows_of(found) == 200 * 3 + 30_000 + 2
    assert branch_report.summary(found)[0]["added"] == 30_000
    whole = msgspec.json.decode(branch_report.full(found))
    assert len(whole["tables"]) == 202
    assert [len(one["rows"]) for one in whole["tables"] if one["table"] == "table_999"] == [branch_report.FULL_ROWS]


def test_a_row_is_shown_as_what_it_was_and_what_it_is() -> None:
    """Both sides, in the order of the columns; bytes as hex."""
    plain = Table("t", ("k", "v"), ("k",), None)
    change = Change("updated", (1,), (1, b"\x01\x02"), (1, None))
    (shown,) = branch_report.summary(Diff((TableDiff(plain, ("k",), ("k", "v"), (change,)),)))
    assert shown["rows"] == [{"kind": "updated", "was": [1, "x'0102'"], "is": [1, None]}]
    assert (shown["table"], shown["updated"], shown["key"]) == ("t", 1, ["k"])
