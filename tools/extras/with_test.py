"""The fixtures of the pytest plugin, on a server that runs already."""


def test_a_cell(schemaless_datastore, tmp_path):
    """Written and read."""
    import uuid

    row = uuid.uuid4()
    schemaless_datastore.put_cell(row, "BASE", 1, {"fare": 12.5})
    assert schemaless_datastore.get_row(row)["BASE"].body == {"fare": 12.5}
