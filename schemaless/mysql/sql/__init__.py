"""Every statement that is sent to a server, in one form: bytes, as constants or from pure functions.

Names and values go in, one statement comes out; nothing here talks to a server, and no other room has SQL in it
(tests/test_sql_room.py looks). Values are checked by the caller to be what the table takes; databases are
``shard_database()`` names. Sessions run with backslash escapes on (``connect.SQL_MODE``), which ``parts`` counts on.

Bytes, since bodies are bytes, and because they go to the driver as they are. Only what Alembic's revisions do to tables
is made by SQLAlchemy (``mysql.revisions``, ``migrations/``).

Each statement about cells names its index. After a crash InnoDB's statistics may say that a table of thousands has two
rows, and the optimizer would then read all of them, and an UPDATE lock them.
"""
