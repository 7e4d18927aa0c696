"""The CUDA device: state by slot on the GPU, and steps that never wait for the host."""
