"""``schemaless create``."""

from __future__ import annotations

import click

from schemaless.base.events import Advanced
from schemaless.base.numbers import counted
from schemaless.cli.command import JSONCommand
from schemaless.cli.option import option
from schemaless.cli.options import engine_option
from schemaless.ops.admin.create import create as create_datastore
from schemaless.ui.terminal.output import note, out, print_result, progress


@click.command(cls=JSONCommand)
@click.argument("name")
@option(
    "--shards",
    "Number of shards, 1 to 65,536. It can never be changed, so choose many more shards than servers.",
    type=int,
    required=True,
)
@option(
    "--cluster URL",
    "The primary of a cluster, such as mysql://root@db-1:3306/. Repeat the option for each cluster.",
    name="clusters",
    multiple=True,
    required=True,
)
@engine_option
def create(name: str, shards: int, clusters: tuple[str, ...], engine: str) -> None:
    """Create a datastore.

    The command creates the catalog on the first cluster, spreads the empty shards evenly over all clusters, and prints
    the datastore's URL. After an interruption, run the same command again. 'schemaless config add' gives the URL a
    name, and 'schemaless grants' prints the SQL for the accounts of applications.

    With --engine rocksdb, cells and index entries are kept in MyRocks, on MariaDB servers with the MyRocks plugin.

    \b
    Examples:
      schemaless create trips --shards 16 \\
          --cluster mysql://root@db-1/ --cluster mysql://root@db-2/
      schemaless create trips --shards 16 --engine rocksdb \\
          --cluster mysql://root@maria-1/
      schemaless create trips --shards 4 \\
          --cluster 'mysql://root@/?unix_socket=/run/mysqld/mysqld.sock'
    """
    with progress("creating shards", shards, "shards") as listener:
        url = create_datastore(name, shards, clusters, engine=engine, on_shard=lambda shard: listener(Advanced()))
    print_result({"name": name, "shards": shards, "url": url})
    out().print(url)
    note(f"created {name!r} with {counted(shards, 'shard')}; to use it: export SCHEMALESS_URL='{url}'")
