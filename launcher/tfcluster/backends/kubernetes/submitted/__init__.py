"""Runs whose coordinator is a Job of the cluster: submitted, watched from outside, continued."""
