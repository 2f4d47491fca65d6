"""``python -m schemaless``: the ``schemaless`` command."""

import sys

from schemaless.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
