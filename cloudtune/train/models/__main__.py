"""Print the search space of a script's models as JSON: `python -m cloudtune.train.models`."""

import json
import sys
import traceback
from pathlib import Path

from cloudtune.errors import UsageError, nearest
from cloudtune.train.models.space import ModelSpace
from cloudtune.train.user_script import load_file


def main(path: Path, name: str) -> str:
    """Import a script; return the choices of its ModelSpace of that name as JSON.

    Raises:
        SystemExit: there is none, or the script fails; with file, line and reason.
    """
    try:
        variables = vars(load_file(path))
        model = variables.get(name)
        if isinstance(model, ModelSpace):
            return json.dumps(model.search["mutators"])
    except BaseException as error:  # noqa: BLE001  a script may raise anything
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else (lines or [1])[-1]
        kind = "" if isinstance(error, UsageError) else f"{type(error).__name__}: "
        sys.exit(f"{path}:{line}: {kind}{error}")
    spaces = [key for key, value in variables.items() if isinstance(value, ModelSpace)]
    existing = f"it has {', '.join(spaces)}.{nearest(name, spaces)}" if spaces else "add one"
    sys.exit(f"{path}: no {name} = models.space(...) at its top level; {existing}")


if __name__ == "__main__":
    sys.dont_write_bytecode = True  # the folder is the user's
    output = sys.stdout
    sys.stdout = sys.stderr  # the script's output isn't the answer
    output.write(main(Path(sys.argv[1]), sys.argv[2]))
