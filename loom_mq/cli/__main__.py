"""``python -m loom_mq.cli``, where the script `loom` is not at hand."""

from loom_mq.cli.main import main

main()
