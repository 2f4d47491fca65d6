"""Adds a field to each document of a column that lacks it, by appending a new version.

    python examples/add_field.py mezzanine mezzanine-tail locations

The first datastore is opened to read and write cells, the second, with the role tail, to read the change feed. First
deploy the code that writes the field. After Ctrl-C or a crash, the next run continues from the locations in the folder.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import schemaless

COLUMN, FIELD, VALUE = "FARE", "currency", "USD"
PAGE_CELLS = 100
PER_SECOND = 200
"""Highest rate of appended versions. To be faster, divide the shards among several processes."""


def add_field(store: schemaless.Datastore, feed: schemaless.Datastore, shard: int, checkpoint: Path) -> int:
    """Add the field in one shard, up to the end of its feed, and return the number of versions appended.

    Args:
        store: reads the latest versions, and appends.
        feed: reads which rows have cells.
        shard: number of the shard.
        checkpoint: the file that keeps the shard's location.
    """
    changed = 0
    location = int(checkpoint.read_text()) if checkpoint.exists() else 0
    while True:
        page = feed.get_stored_cells_for_shard(shard, location, PAGE_CELLS, column_name=COLUMN)
        if page.next_location == location:
            return changed
        latest = store.get_cells_latest({(cell.row_key, COLUMN) for cell in page.cells})
        missing = [
            (cell, cell.body) for cell in latest.values() if isinstance(cell.body, dict) and FIELD not in cell.body
        ]
        for cell, document in missing:
            try:
                with_field = {**document, FIELD: VALUE}
                store.append_cell(cell.row_key, COLUMN, with_field, if_latest=cell.ref_key, refill=False)
                changed += 1
            except (schemaless.LatestChanged, schemaless.CellErased):
                pass  # The feed will return the newer version, or the row no longer needs the field.
        location = page.next_location
        checkpoint.with_suffix(".new").write_text(str(location))
        checkpoint.with_suffix(".new").replace(checkpoint)
        time.sleep(len(missing) / PER_SECOND)


def main() -> None:
    """Read the arguments, and go through all shards."""
    parser = argparse.ArgumentParser(description="Add a field to the documents of a column.")
    parser.add_argument("store", help="URL or name of the datastore, to read and write cells")
    parser.add_argument("feed", help="URL or name of the same datastore, for an account with the role tail")
    parser.add_argument("folder", type=Path, help="keeps a location per shard")
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    with schemaless.connect(arguments.store) as store, schemaless.connect(arguments.feed) as feed:
        for shard in range(store.shard_count):
            changed = add_field(store, feed, shard, arguments.folder / f"shard-{shard}")
            print(f"shard {shard}: {changed} documents have the field now")


if __name__ == "__main__":
    main()
