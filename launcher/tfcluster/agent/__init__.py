"""The one process per node that starts, watches, stops and reports that node's tasks.

Standard library only and Python ≥ 3.9: it travels to nodes that have nothing of ours installed.
It avoids what costs memory or start-up time (asyncio, subprocess, dataclasses): it is resident
beside every training run.
"""
