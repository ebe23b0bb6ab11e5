"""``[SPEC] -- ARGS…``: what stands behind ``--`` is the job's, even where SPEC is left out."""

from __future__ import annotations

import click

_KEY = "tfcluster.job_args"


class WithJobArgs(click.Command):
    """A command whose line may end in ``-- ARGS…``; `job_args` gives them.

    click itself would read the first of them as SPEC.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[_KEY] = tuple(args[place + 1 :])
        return super().parse_args(ctx, args[:place])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGS...]"]


def job_args() -> tuple[str, ...]:
    """The arguments behind ``--`` of the command that is running."""
    found: tuple[str, ...] = click.get_current_context().meta[_KEY]
    return found
