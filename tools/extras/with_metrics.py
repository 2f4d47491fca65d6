"""A scrape of the exporter."""

import re
import sys
import time
import urllib.request

import schemaless
from schemaless.monitoring.metrics import Exporter

with schemaless.connect(sys.argv[1]) as store, Exporter(store) as exporter, exporter.serve("127.0.0.1", 0) as port:
    for _ in range(600):
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        if re.search(r'schemaless_collector_up\{collector="servers".*\} 1\.0', page):
            break
        time.sleep(0.1)
    else:
        sys.exit(page)
