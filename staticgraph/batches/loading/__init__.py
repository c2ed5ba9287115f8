"""Store and plan to a stream of batches on the device."""
