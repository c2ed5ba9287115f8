"""The name of the file that marks a folder as a store, for modules that do not read it."""

MANIFEST = "manifest.json"
