"""Worker processes that read bodies, and their connection to the process with the model."""
