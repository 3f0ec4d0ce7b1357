"""The controller's state machine. Pure: what it becomes depends on the commands and their order, and on nothing else.

`machine.ControllerState` is the whole; `leases` and `duties` are what the leading controller needs beside it. A
handler decides and gives records; `tables` alone changes anything. docs/CONTROLLER.md has the rules.
"""
