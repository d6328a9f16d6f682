"""Pure core: evidence in, verdict and certificate out. No network, process, thread, clock or file."""
