"""From a store and a plan to a stream of batches on the device."""
