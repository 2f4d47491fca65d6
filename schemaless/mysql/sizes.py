"""What tables take on disk, as InnoDB says."""

from __future__ import annotations

from dataclasses import dataclass

from schemaless.mysql.pool import Connection, NodePool


@dataclass(frozen=True, slots=True)
class TableSize:
    """A table's tablespace.

    Attributes:
        file_bytes: the apparent length of its file.
        allocated_bytes: what the file system has set aside for it.
    """

    file_bytes: int
    allocated_bytes: int

    def __add__(self, other: TableSize) -> TableSize:
        return TableSize(self.file_bytes + other.file_bytes, self.allocated_bytes + other.allocated_bytes)


def cell_table_sizes(pool: NodePool, databases: list[str]) -> dict[str, TableSize]:
    """Return the size of each shard database's ``cell`` table.

    Args:
        pool: the server that they are on.
        databases: their names; those that are not there are absent from the answer.

    Raises:
        AccessDenied: the account lacks the PROCESS privilege, which InnoDB wants for this.
    """

    def operation(connection: Connection) -> dict[str, TableSize]:
        mariadb = connection.is_mariadb
        view = b"INNODB_SYS_TABLESPACES" if mariadb else b"INNODB_TABLESPACES"
        names = b",".join(b"'%b/cell'" % database.encode() for database in databases)
        rows = connection.rows(
            b"SELECT NAME, FILE_SIZE, ALLOCATED_SIZE FROM information_schema.%b WHERE NAME IN (%b)" % (view, names)
        )
        return {str(name).partition("/")[0]: TableSize(int(size), int(allocated)) for name, size, allocated in rows}

    return pool.run(operation) if databases else {}
