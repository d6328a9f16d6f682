"""batch-invariance: does batching change the scored outputs of one llama-server cell?"""
