"""The server: admission, queue, batching, the thread that runs the model, and answers."""
