"""A data set as flat columns: in main memory, mapped from disk, on a device."""

# The file that marks a folder as a store.
MANIFEST = "manifest.json"
