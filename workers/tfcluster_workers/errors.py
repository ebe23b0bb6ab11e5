"""The mistakes a job tells its user in one line: jobs/endings.py turns each into message and exit.

JobError
├── OptionError              jobs/options.py: a command line that cannot work
├── NoTpuError               tpu.py
├── KerasChoiceError         keras_choice.py
└── UnknownDatasetError, UnavailableDatasetError and others of data/
"""

from __future__ import annotations


class JobError(Exception):
    """What is wrong, and what to do, in words for the one who started the job."""


class OptionError(JobError, ValueError):
    """Options that do not fit each other or the cluster."""
