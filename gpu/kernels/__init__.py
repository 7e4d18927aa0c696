"""Triton kernels for what torch does not have, each beside its reference in plain torch.

A kernel's file holds the kernel, the function that launches it, the reference, and `BUILDS`: the
configurations it ships with, which `gate` compiles for every architecture without a GPU. Triton is
optional: nothing imports these files but a device that uses them.
"""
