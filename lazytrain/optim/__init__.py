"""AdamW on the host: native kernels with a torch reference beside each."""
