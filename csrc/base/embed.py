"""Write a C++ source that holds the given files as text: python embed.py OUTPUT ROOT FILE..."""

import pathlib
import sys


def main() -> None:
    """Write the table."""
    output, root, *names = sys.argv[1:]
    lines = ['#include "base/embedded_table.h"', "", "namespace jf {", "", "const EmbeddedText kEmbeddedTexts[] = {"]
    for name in names:
        text = pathlib.Path(root, name).read_text()
        # Compilers limit the length of one literal; adjacent ones are joined.
        parts = [text[i : i + 8000] for i in range(0, len(text), 8000)] or [""]
        literal = "\n".join(f'R"JF_TEXT({part})JF_TEXT"' for part in parts)
        lines.append(f'    {{"{name}", {literal}}},')
    lines += ["};", f"const int kEmbeddedCount = {len(names)};", "", "}  // namespace jf", ""]
    pathlib.Path(output).write_text("\n".join(lines))


if __name__ == "__main__":
    main()
