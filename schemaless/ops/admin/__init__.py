"""Operations on a whole datastore: creation, schema upgrades, grants, checks, load and dump."""
