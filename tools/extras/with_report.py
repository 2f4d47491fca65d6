"""A forecast, and a chart."""

import datetime

from schemaless.planning.capacity.forecast import Forecast, forecast
from schemaless.ui.pages.charts import Chart

days = [datetime.date(2026, 1, 1) + datetime.timedelta(day) for day in range(40)]
assert isinstance(forecast([(day, 100.0 + day.weekday()) for day in days]), Forecast)
chart = Chart("line", "A line", "A line", lambda figure, narrow: figure.add_subplot().plot([1, 2]) and None)
assert chart.png().startswith(b"\x89PNG")
