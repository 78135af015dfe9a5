"""``python -m lazytrain``: the console command where no script is installed."""

import sys

from lazytrain.cli import app

# What a record says that it was made by; the interpreter puts this file's path here.
sys.argv[0] = "lazytrain"
app()
