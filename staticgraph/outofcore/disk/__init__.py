"""A large graph on disk: its partitions, their files, and the embeddings beside them."""
