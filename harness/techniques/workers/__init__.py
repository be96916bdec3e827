"""Processes that load beside the training process (``num_workers``), counted in cores of this machine.

``none`` loads in the training process itself, ``one`` in one process, ``half`` in half as many as there are cores, and
so on. A level that comes out at the number of another one is not measured twice.
"""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="workers",
    question="Where does the number of loader processes stop helping?",
    levels=("none", "one", "half", "cores", "double", "quadruple"),
    default="cores",
)
