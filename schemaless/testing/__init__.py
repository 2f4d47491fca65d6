"""For the tests of applications: a pytest plugin, private servers and datastores that are as good as new."""
