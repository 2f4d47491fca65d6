"""What a datastore holds, from samples: codecs tried on sampled cells, sizes, advice."""
