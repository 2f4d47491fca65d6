"""Copies tables to Parquet with DuckDB's MySQL scanner; runs in an environment of its own (see export.py).

The extension is compiled for one version of DuckDB, which is seldom the one that the exporter's tests use:

    python -m venv scanner
    scanner/bin/pip install duckdb==1.5.5 duckdb-extension-mysql-scanner==1.5.5 duckdb-extensions==1.5.5

Each line of standard input is a JSON object with the socket, the queries by file name, and the folder; each line is
answered with an empty line once the files are written.
"""

import json
import sys

import duckdb
from duckdb_extensions import import_extension


def main() -> None:
    """Answer requests until the input ends."""
    connection = duckdb.connect()
    import_extension("mysql_scanner", con=connection)
    connection.execute("LOAD mysql_scanner")
    attached = None
    for line in sys.stdin:
        request = json.loads(line)
        if attached is None:
            attached = request["socket"]
            connection.execute(f"ATTACH 'user=root socket={attached} database=mysql' AS source (TYPE mysql, READ_ONLY)")
        for name, query in request["queries"].items():
            connection.execute(
                f"COPY ({query}) TO '{request['folder']}/{name}.parquet' "
                "(FORMAT parquet, CODEC zstd, COMPRESSION_LEVEL 3)"
            )
        print(flush=True)


if __name__ == "__main__":
    main()
