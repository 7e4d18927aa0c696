"""The CUDA device's code on a GPU that computes nothing, under a torch that is built for CUDA.

`make check-gpu` installs that torch in an environment of its own and runs what is here. It shows
that queued work never waits, that captures are legal and complete, how much memory is taken, what
is compiled when, what becomes of an engine whose GPU breaks; and what all that costs the host.
"""
