"""Plain PyG models, as the train command has them."""
