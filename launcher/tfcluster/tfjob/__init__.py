"""Kubeflow's TFJobs as specs of tfcluster, with a note for each field that means something else.

The fields, their defaults and their meaning are those of github.com/kubeflow/training-operator,
release 1.9, whose source the modules name: ``pkg/apis/kubeflow.org/v1`` for the fields and
``pkg/controller.v1`` for what the operator does with them.
"""
