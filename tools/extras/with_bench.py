"""A round of the codec benchmark, with every contender."""

from schemaless.bench.corpora import Corpus
from schemaless.bench.rounds import Benchmark

documents = [{"number": number, "to": "JFK", "fare": 12.5} for number in range(50)]
result = Benchmark(Corpus("trips", "", documents, [str(n) for n in range(50)], True, "0" * 64), rounds=1).run()
absent = [(each.name, each.reason) for each in result.absentees]
# The native extension is an extra of its own.
assert [each for each in absent if "native" not in each[1]] == [], absent
