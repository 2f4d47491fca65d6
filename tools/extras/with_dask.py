"""A call in a worker of a local Dask cluster."""

import math

from schemaless.ops.jobs.workers import workers

if __name__ == "__main__":
    with workers(1, "local") as hands:
        assert hands.submit(math.sqrt, 4.0).result(60) == 2
