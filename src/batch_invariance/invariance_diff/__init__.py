"""Pure core: evidence in, verdict and certificate out. It touches no file, network or clock."""
