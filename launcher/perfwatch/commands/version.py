"""``perfwatch version``: which version this is."""

from perfwatch.options import Json


def version(json: Json = False) -> None:
    """Show the version.

    \b
    Examples:
      perfwatch version
      perfwatch version --json | jq -r .perfwatch
    """
    import platform

    from perfwatch import __version__

    if json:
        import json as json_module

        print(json_module.dumps({"schema": "perfwatch.version/1", "perfwatch": __version__,
                                 "python": platform.python_version()}))  # fmt: skip
        return
    print(f"perfwatch {__version__}")
