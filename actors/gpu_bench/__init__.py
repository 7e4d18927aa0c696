"""What a GPU is asked: whether kernels compute what they should, and how near steps, kernels and
whole workloads come to what the card could do at best. Models are named shapes of random weights.

Here and not on the command line, whose libraries a machine with a GPU may lack:
`python -m stepahead.actors.gpu_bench` needs torch and Triton, and for R2 transformers.
"""
