"""The server: admission, waiting, batches, the thread that runs the model, answers."""
