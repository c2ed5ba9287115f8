"""The name of the file that makes a folder a store, for whoever does not read it."""

MANIFEST = "manifest.json"
