"""A large graph on disk: its partitions, their files, and their embeddings."""
