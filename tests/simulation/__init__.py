"""The simulation: whole lives of an engine in virtual time, each given by a script.

script.py    what happens, as plain values: settings, and operations at moments
draw.py      a seed's script
device.py    the simulated device, and how it fails on order
expected.py  what a request hears in an undisturbed run
caller.py    who sends a request, and what became of it
life.py      runs a script with the five real actors, and asserts what must hold
shrink.py    the shortest script that still fails
__main__.py  `make simulate`: many seeds
"""
