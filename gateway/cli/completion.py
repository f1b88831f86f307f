"""The command `stateroom completion`: click's own script by which a shell completes commands and options."""

from typing import Literal

import rich_click as click


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(context: click.Context, *, shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print the script by which a shell completes commands, options and their choices.

    \b
    stateroom completion bash > ~/.local/share/bash-completion/completions/stateroom
    stateroom completion zsh > ~/.zfunc/_stateroom      # a folder of your fpath
    stateroom completion fish > ~/.config/fish/completions/stateroom.fish
    """  # noqa: D301 - the mark by which click leaves lines as they are
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    if complete is None:
        raise RuntimeError(f"click knows no shell {shell}")
    root = context.find_root()
    name = root.info_name or ""
    click.echo(complete(root.command, {}, name, f"_{name.upper()}_COMPLETE").source(), nl=False)


COMMANDS = (completion,)
