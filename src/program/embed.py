"""Writes the files named on the command line into a C++ table that a function returns: embed.py OUTPUT FUNCTION FILE..."""

import pathlib
import sys

output, function, *files = sys.argv[1:]
entries = []
for file in map(pathlib.Path, files):
    text = file.read_text(encoding="ascii")
    if ')weft"' in text:
        sys.exit(f"{file}: the text cannot be embedded")
    entries.append(f'    {{"{file.name}", R"weft({text})weft"}},\n')
pathlib.Path(output).write_text(
    '#include "program/embedded.hpp"\n\nnamespace weft {\nnamespace {\n\n'
    f"const std::array<EmbeddedFile, {len(entries)}> kTable = {{{{\n{''.join(entries)}}}}};\n\n}}  // namespace\n\n"
    f"std::span<const EmbeddedFile> {function}() {{ return kTable; }}\n\n}}  // namespace weft\n"
)
